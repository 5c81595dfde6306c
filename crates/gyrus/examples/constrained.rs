//! Generates an instance of each JSON Schema of a file, sixteen at a time, and prints one line of JSON for each: schema,
//! text, stop, tokens.
//!
//! `cargo run --release --example constrained -- MODEL SCHEMAS.jsonl [COUNT_AT_A_TIME] > INSTANCES.jsonl`
//!
//! Tokens per second go to stderr. A line `null` in place of a schema asks for text without a constraint.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use gyrus::constrain::Source;
use gyrus::{Event, Message, Model, Options, Request, Sampler, StopReason};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: constrained MODEL SCHEMAS.jsonl [AT_A_TIME]".into());
    };
    let at_a_time = arguments.next().map_or(Ok(16), |n| n.parse::<usize>())?;
    let text = std::fs::read_to_string(file)?;
    let schemas: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let options = Options { sessions: at_a_time, context: Some(2048), ..Options::default() };
    let model = Model::open(model.as_ref(), &options)?;
    let _driver = model.drive()?;
    let (next, tokens, out) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(std::io::stdout()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> Result<(), gyrus::Error> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(schema) = schemas.get(at) else { return Ok(()) };
                let (text, stop, count) = instance(&model, schema, at as u64)?;
                tokens.fetch_add(count, Ordering::Relaxed);
                let line = json!({ "schema": schema, "text": text, "stop": stop, "tokens": count });
                if let Ok(mut out) = out.lock() {
                    // A closed pipe shows in what was printed.
                    let _ = writeln!(out, "{line}");
                }
            }
        };
        let running: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        let ends = running.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
        ends.collect::<Result<Vec<()>, _>>()
    })?;
    let (seconds, tokens) = (start.elapsed().as_secs_f64(), tokens.into_inner());
    eprintln!("{tokens} tokens in {seconds:.1} s, {:.1} tokens/s", tokens as f64 / seconds);
    Ok(())
}

/// An instance of a schema, why it ended, and its tokens.
fn instance(model: &Model, schema: &Value, seed: u64) -> Result<(String, &'static str, usize), gyrus::Error> {
    let question = "Describe something that can be bought, as JSON.";
    let sampler = Sampler { temperature: 1.0, seed, ..Sampler::default() };
    let mut request = Request::messages([Message::user(question)]).sampler(sampler).max_tokens(1000);
    if !schema.is_null() {
        request = request.constraint(Source::Schema(schema.to_string()));
    }
    let mut session = model.session();
    let mut generation = session.generate(request)?;
    let (mut text, mut end, mut tokens) = (String::new(), "none", 0);
    while let Some(event) = generation.next()? {
        match event {
            Event::Token { .. } => tokens += 1,
            Event::Text { text: piece, .. } => text.push_str(piece),
            Event::Stop { reason: StopReason::EndToken(_), .. } => end = "end",
            Event::Stop { reason: StopReason::MaxTokens, .. } => end = "max_tokens",
            Event::Stop { .. } => end = "other",
            _ => {}
        }
    }
    Ok((text, end, tokens))
}
