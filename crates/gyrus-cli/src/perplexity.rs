//! `gyrus perplexity`: the perplexity of a model on a text file.

use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use gyrus::text::Special;
use gyrus::{Model, Precision};
use serde_json::json;

use crate::cli::PerplexityArgs;
use crate::json;
use crate::load::load;
use crate::progress::Progress;
use crate::source::Source;

/// Tokens in a window unless `--ctx` sets it.
const WINDOW: usize = 512;

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let bytes = std::fs::read(&args.file).with_context(|| args.file.display().to_string())?;
    let text = String::from_utf8(bytes).with_context(|| format!("{}: not UTF-8", args.file.display()))?;
    let source = Source::resolve(Some(&args.model))?;
    let options = args.model_options.options(Precision::Exact);
    let model = load(&source, &options, args.quiet)?;
    let window = options.context.unwrap_or(WINDOW.min(model.context().tokens));
    let tokenizer = model.tokenizer().context("the model has no tokenizer")?;
    let ids = tokenizer.encode(&text, Special::Literal, true);
    let score = if args.llama {
        as_llama_cpp(&model, &ids, window, args.quiet)?
    } else {
        windows(&model, &ids, window, args.quiet)?
    };
    if score.tokens == 0 {
        bail!("{}: too short: {} tokens, the window is {}", args.file.display(), ids.len(), window);
    }
    let nll = score.sum / score.tokens as f64;
    let perplexity = nll.exp();
    ensure!(
        perplexity.is_finite(),
        "the mean NLL over {} tokens is {nll}, so the perplexity is not finite",
        score.tokens
    );
    let mut out = std::io::stdout().lock();
    if args.json {
        let document = json!({
            "nll": nll, "perplexity": perplexity, "tokens": score.tokens, "window": window,
        });
        json::line(&mut out, &document)?;
    } else {
        writeln!(out, "perplexity {perplexity:.4} (mean NLL {nll:.6} over {} tokens)", score.tokens)?;
    }
    Ok(())
}

/// Negative log-likelihoods, added up.
#[derive(Default)]
struct Score {
    sum: f64,
    tokens: usize,
}

impl Score {
    fn add(&mut self, logits: &[f32], next: u32) {
        self.sum -= f64::from(gyrus::log_softmax_at(logits, next));
        self.tokens += 1;
    }
}

/// Windows without overlap; every token is scored except the first of a window.
fn windows(model: &Model, ids: &[u32], window: usize, quiet: bool) -> Result<Score> {
    let mut score = Score::default();
    let mut session = model.session();
    let progress = progress(quiet);
    let mut done = 0;
    for piece in ids.chunks(window) {
        session.score(piece, |position, logits| {
            if let Some(&next) = piece.get(position + 1) {
                score.add(logits, next);
            }
        })?;
        done += piece.len();
        progress.as_ref().inspect(|p| p.set(done as u64, ids.len() as u64));
    }
    Ok(score)
}

/// As `llama-perplexity` scores: whole windows only, the second half of each, and the begin token in
/// place of each window's first where the model uses one.
fn as_llama_cpp(model: &Model, ids: &[u32], window: usize, quiet: bool) -> Result<Score> {
    let bos = model.tokenizer().and_then(|t| t.bos().filter(|_| t.adds_bos()));
    let mut score = Score::default();
    let mut session = model.session();
    let progress = progress(quiet);
    let mut done = 0;
    for piece in ids.chunks_exact(window) {
        let mut input = piece.to_vec();
        if let (Some(bos), Some(first)) = (bos, input.first_mut()) {
            *first = bos;
        }
        session.score(&input, |position, logits| {
            if position >= window / 2
                && let Some(&next) = piece.get(position + 1)
            {
                score.add(logits, next);
            }
        })?;
        done += piece.len();
        progress.as_ref().inspect(|p| p.set(done as u64, ids.len() as u64));
    }
    Ok(score)
}

fn progress(quiet: bool) -> Option<Progress> {
    (!quiet).then(|| Progress::new("scoring"))
}
