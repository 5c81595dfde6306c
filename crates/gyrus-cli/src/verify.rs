//! `gyrus run --verify`: the divergence of `fast` from `exact` on a model and a prompt.

use std::io::Write;

use anyhow::{Result, bail, ensure};
use gyrus::{Model, Options, Precision, argmax};

use crate::cli::RunArgs;
use crate::source::Source;

/// Positions compared at a time.
const WINDOW: usize = 256;

/// Compares the logits of the two precisions at every position of the prompt.
pub(crate) fn run(
    source: &Source,
    options: &Options,
    fast: &Model,
    prompt: &str,
    args: &RunArgs,
) -> Result<()> {
    let exact = Model::load(
        source.open(options.access)?,
        &Options { precision: Precision::Exact, ..options.clone() },
    )?;
    let prompt = super::run::prompt_ids(fast, prompt, args)?;
    if prompt.is_empty() {
        bail!("the prompt is empty");
    }
    let (mut divergence, mut agree, mut worst) = (0.0, 0, 0.0f64);
    // In windows, since a row of logits is as wide as the vocabulary.
    for window in prompt.chunks(WINDOW) {
        let mut rows: Vec<Vec<f32>> = Vec::new();
        fast.session().score(window, |_, logits| rows.push(log_softmax(logits)))?;
        exact.session().score(window, |position, logits| {
            let exact = log_softmax(logits);
            let fast = &rows[position];
            let kl: f64 = exact.iter().zip(fast).map(|(&p, &q)| f64::from(p).exp() * f64::from(p - q)).sum();
            divergence += kl;
            worst = worst.max(kl);
            agree += usize::from(argmax(&exact) == argmax(fast));
        })?;
    }
    // `max` ignores NaN, a sum does not.
    ensure!(divergence.is_finite(), "the divergence of fast from exact is {divergence}, not a finite number");
    let n = prompt.len() as f64;
    let mut out = std::io::stdout().lock();
    writeln!(out, "fast compared with exact over {} positions", prompt.len())?;
    writeln!(out, "  same top-1 token           {:.1} %", 100.0 * agree as f64 / n)?;
    writeln!(out, "  mean KL divergence         {:.2e} nats", divergence / n)?;
    writeln!(out, "  largest KL divergence      {worst:.2e} nats")?;
    Ok(())
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    let log_sum = sum.ln();
    logits.iter().map(|&l| (f64::from(l - most) - log_sum) as f32).collect()
}
