//! `gyrus bench --speculate`: decode speed with and without speculation, on prompts that edit code and on novel text.
//!
//! `--record` writes how often the look-up was right, token by token. `--replay` measures any model with that: its drafter
//! guesses the model's own tokens where the look-up was right, and others where it was wrong. So a model with random
//! weights has the accepted lengths of a real one.

mod prompts;
mod replay;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gyrus::{Event, Message, Model, Request, Speculation, Usage};
use serde_json::json;

use self::prompts::{PROMPTS, Set};
use self::replay::{Recording, Replay};
use super::report::median;
use super::sampler;
use crate::cli::BenchArgs;
use crate::json;
use crate::options::BenchOutput;
use crate::text::ratio;

/// What is measured of a prompt.
struct Measured {
    set: String,
    name: String,
    tokens: usize,
    drafted: usize,
    accepted: usize,
    /// Tokens per second.
    plain: f64,
    speculated: f64,
}

/// A prompt, and how it is speculated on.
struct Case {
    set: String,
    name: String,
    request: Request,
    recording: Option<Arc<Recording>>,
}

pub(super) fn run(model: &Model, args: &BenchArgs) -> Result<()> {
    ensure!(
        model.plan().delta.is_empty(),
        "models with a recurrent state decode without speculation: their states cannot be taken back"
    );
    let tokens = args.gen_tokens.first().copied().unwrap_or(128).max(2);
    let cases = match &args.speculation.replay {
        Some(path) => replayed(model, path)?,
        None => of_prompts(tokens),
    };
    let mut measured = Vec::new();
    let mut recorded = Vec::new();
    for case in &cases {
        let request = case.request.clone().sampler(sampler(args.sampled));
        // The first run warms up, and has the tokens that all others must have.
        let (prompt, expected, _) = generate(model, request.clone())?;
        ensure!(expected.len() > 1, "'{}': the model ended after {} tokens", case.name, expected.len());
        let speculation = match &case.recording {
            Some(recording) => Replay::of(Arc::clone(recording), expected.clone(), model.plan().vocab),
            None => Speculation::Lookup,
        };
        let speculated = request.clone().speculation(speculation);
        generate(model, speculated.clone())?;
        let (mut plain, mut fast, mut usage) = (Vec::new(), Vec::new(), Usage::default());
        for _ in 0..args.repetitions {
            for (request, speeds) in [(&request, &mut plain), (&speculated, &mut fast)] {
                let (_, found, of_run) = generate(model, request.clone())?;
                ensure!(found == expected, "'{}': the tokens differ with speculation", case.name);
                speeds.push(of_run.decode_speed().context("no tokens")?);
                usage = of_run;
            }
        }
        recorded.push(Recording::of(&case.set, &case.name, &prompt, &expected));
        measured.push(Measured {
            set: case.set.clone(),
            name: case.name.clone(),
            tokens: expected.len(),
            drafted: usage.drafted_tokens,
            accepted: usage.accepted_tokens,
            plain: median(&plain),
            speculated: median(&fast),
        });
    }
    if let Some(path) = &args.speculation.record {
        Recording::write(path, &recorded)?;
    }
    print(&measured, args.report.output)
}

fn of_prompts(tokens: usize) -> Vec<Case> {
    let case = |(set, name, text): &(Set, &str, &str)| Case {
        set: set.name().to_owned(),
        name: (*name).to_owned(),
        request: Request::messages([Message::user(text)]).max_tokens(tokens),
        recording: None,
    };
    PROMPTS.iter().map(case).collect()
}

/// Cases of a recording: prompts of its lengths, of any ids.
fn replayed(model: &Model, path: &Path) -> Result<Vec<Case>> {
    let vocab = model.plan().vocab;
    let case = |(number, recording): (usize, Recording)| {
        let ids: Vec<u32> =
            (0..recording.prompt_tokens.max(1)).map(|i| ((i + number) * 7919 % vocab) as u32).collect();
        Case {
            set: recording.set.clone(),
            name: recording.name.clone(),
            request: Request::ids(ids).max_tokens(recording.right.len()).ignore_end(true),
            recording: Some(Arc::new(recording)),
        }
    };
    Ok(Recording::read(path)?.into_iter().enumerate().map(case).collect())
}

/// The tokens of a prompt and of its completion.
fn generate(model: &Model, request: Request) -> Result<(Vec<u32>, Vec<u32>, Usage)> {
    let prompt = model.prompt_tokens(&request)?;
    let mut session = model.session();
    let mut generation = session.generate(request)?;
    let (mut tokens, mut usage) = (Vec::new(), Usage::default());
    while let Some(event) = generation.next()? {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Stop { usage: of_stop, .. } => usage = of_stop,
            _ => {}
        }
    }
    Ok((prompt, tokens, usage))
}

/// The speed of a set as a whole: all its tokens by all their time.
fn sets(measured: &[Measured]) -> Vec<(&str, f64)> {
    let mut names: Vec<&str> = measured.iter().map(|row| &row.set[..]).collect();
    names.dedup();
    let time = |set: &str, speed: fn(&Measured) -> f64| -> f64 {
        measured.iter().filter(|row| row.set == set).map(|row| row.tokens as f64 / speed(row)).sum()
    };
    names
        .into_iter()
        .map(|set| (set, ratio(time(set, |row| row.plain), time(set, |row| row.speculated))))
        .collect()
}

fn print(measured: &[Measured], output: BenchOutput) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        BenchOutput::Json => {
            let row = |row: &Measured| {
                json!({
                    "set": row.set, "prompt": row.name, "tokens": row.tokens, "drafted": row.drafted,
                    "accepted": row.accepted, "tokens_per_second": row.plain,
                    "tokens_per_second_speculated": row.speculated, "speedup": ratio(row.speculated, row.plain),
                })
            };
            json::pretty(&mut out, &measured.iter().map(row).collect::<Vec<_>>())?;
        }
        BenchOutput::Csv => {
            writeln!(out, "set,prompt,tokens,drafted,accepted,plain,speculated")?;
            for row in measured {
                let Measured { set, name, tokens, drafted, accepted, plain, speculated } = row;
                writeln!(out, "{set},{name},{tokens},{drafted},{accepted},{plain:.2},{speculated:.2}")?;
            }
        }
        BenchOutput::Md => {
            writeln!(
                out,
                "| set | prompt | tokens | guesses | right | tokens/s | with speculation | ratio |"
            )?;
            writeln!(out, "|---|---|---:|---:|---:|---:|---:|---:|")?;
            for row in measured {
                let Measured { set, name, tokens, drafted, accepted, plain, speculated } = row;
                let by = ratio(*speculated, *plain);
                writeln!(
                    out,
                    "| {set} | {name} | {tokens} | {drafted} | {accepted} | {plain:.1} | {speculated:.1} | {by:.2} |"
                )?;
            }
            for (set, by) in sets(measured) {
                writeln!(out, "| {set} | all | | | | | | {by:.2} |")?;
            }
        }
    }
    Ok(())
}
