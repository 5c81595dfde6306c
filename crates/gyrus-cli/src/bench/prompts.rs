//! `gyrus bench --prompts`: time to first token and time per output token on real prompts.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use gyrus::{Event, Model, Request};
use serde_json::json;

use super::report::median;
use crate::cli::BenchArgs;
use crate::options::BenchOutput;
use crate::text::ratio;
use crate::{json, load};

const SHORT: &str = "Why is the sky blue?";
const SENTENCE: &str = "The lighthouse keeper wrote down the weather every morning, counted the ships that \
    passed, and wondered whether anyone on board could see his lamp. ";

/// Name and text of each prompt.
fn prompts() -> [(&'static str, String); 3] {
    [("short", SHORT.to_owned()), ("medium", SENTENCE.repeat(4)), ("long", SENTENCE.repeat(24))]
}

pub(super) fn run(model: &Model, name: &str, args: &BenchArgs) -> Result<()> {
    let tokens = args.gen_tokens.first().copied().unwrap_or(128).max(2);
    let mut rows = Vec::new();
    for (label, text) in prompts() {
        let (mut firsts, mut gaps, mut prompt_tokens) = (Vec::new(), Vec::new(), 0);
        for repetition in 0..=args.repetitions {
            let mut session = model.session();
            let start = Instant::now();
            let request = Request::text(text.clone()).max_tokens(tokens).ignore_end(true);
            let mut generation = session.generate(request)?;
            let mut last: Option<Instant> = None;
            while let Some(event) = generation.next()? {
                match event {
                    Event::Prompt { tokens, .. } => prompt_tokens = tokens,
                    // The first run warms up and is not counted.
                    Event::Token { .. } if repetition > 0 => {
                        let now = Instant::now();
                        match last {
                            None => firsts.push((now - start).as_secs_f64()),
                            Some(before) => gaps.push((now - before).as_secs_f64()),
                        }
                        last = Some(now);
                    }
                    _ => {}
                }
            }
        }
        gaps.sort_by(f64::total_cmp);
        let at =
            |share: f64| gaps.get(((gaps.len() as f64 * share) as usize).min(gaps.len().saturating_sub(1)));
        let (p50, p95) = (at(0.5).context("no tokens")?, at(0.95).context("no tokens")?);
        rows.push((label, prompt_tokens, median(&firsts), *p50, *p95));
    }
    let mut out = std::io::stdout().lock();
    match args.report.output {
        BenchOutput::Json => {
            let all: Vec<_> = rows
                .iter()
                .map(|(label, n, first, p50, p95)| {
                    json!({
                        "test": label, "model": name, "device": load::device(model.device()),
                        "threads": model.threads(), "prompt_tokens": n, "first_token_seconds": first,
                        "token_seconds_p50": p50, "token_seconds_p95": p95, "tokens_per_second": ratio(1.0, *p50),
                    })
                })
                .collect();
            json::pretty(&mut out, &all)?;
        }
        BenchOutput::Csv => {
            writeln!(out, "prompt,tokens,first_token_ms,p50_ms,p95_ms")?;
            for (label, n, first, p50, p95) in rows {
                writeln!(out, "{label},{n},{:.2},{:.2},{:.2}", first * 1e3, p50 * 1e3, p95 * 1e3)?;
            }
        }
        BenchOutput::Md => {
            writeln!(out, "| prompt | tokens | time to first token | per token, p50 | per token, p95 |")?;
            writeln!(out, "|---|---:|---:|---:|---:|")?;
            for (label, n, first, p50, p95) in rows {
                writeln!(
                    out,
                    "| {label} | {n} | {:.1} ms | {:.2} ms | {:.2} ms |",
                    first * 1e3,
                    p50 * 1e3,
                    p95 * 1e3
                )?;
            }
        }
    }
    Ok(())
}
