//! `gyrus rerank`: documents in the order of their relevance to a query.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gyrus::{Precision, RerankOptions, Reranker};
use serde_json::json;

use crate::cli::RerankArgs;
use crate::embed::numbered_lines;
use crate::progress::Progress;
use crate::screen::Screen;
use crate::source::Source;
use crate::{diagnostics, foreign};

pub(crate) fn run(args: &RerankArgs) -> Result<()> {
    // Blank lines are no documents, but they count: results name lines of the file.
    let lines = match &args.documents {
        Some(path) => {
            let file = File::open(path).with_context(|| foreign::path(path))?;
            numbered_lines(BufReader::new(file)).with_context(|| foreign::path(path))?
        }
        None => numbered_lines(io::stdin().lock())?,
    };
    let (places, documents): (Vec<usize>, Vec<String>) = lines.into_iter().unzip();
    if documents.is_empty() {
        bail!("there is no document to rank");
    }
    let reranker = load(args)?;
    let options = RerankOptions { truncate: args.truncate, instruction: args.instruction.clone() };
    let start = Instant::now();
    let ranked = reranker.rank(&args.query, &documents, &options);
    let mut ranked = ranked.map_err(|error| named(error, &places))?;
    ranked.truncate(args.top.unwrap_or(usize::MAX));
    if args.json {
        let list: Vec<_> = ranked
            .iter()
            .map(|one| json!({ "index": places[one.index], "score": one.score, "logit": one.logit, "document": documents[one.index] }))
            .collect();
        let mut out = BufWriter::new(io::stdout().lock());
        serde_json::to_writer(&mut out, &list).map_err(io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let mut text = String::new();
        for one in &ranked {
            text += &format!("{:.4}\t{}\t{}\n", one.score, places[one.index] + 1, documents[one.index]);
        }
        Screen::stdout().bytes(text.as_bytes())?;
    }
    if !args.quiet {
        diagnostics::aside(format!(
            "{} documents in {:.2} s",
            documents.len(),
            start.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

/// Names the line of an error.
fn named(error: gyrus::Error, places: &[usize]) -> anyhow::Error {
    let (index, what) = match &error {
        gyrus::Error::TextTooLong { index, tokens, most } => {
            let advice = "--truncate shortens it";
            (*index, format!("{tokens} tokens with the query, at most {most} are possible; {advice}"))
        }
        gyrus::Error::TextNotFinite { index, .. } => {
            (*index, "the model computed NaN or infinity".to_owned())
        }
        _ => return error.into(),
    };
    match places.get(index) {
        Some(place) => anyhow::anyhow!("line {}: {what}", place + 1),
        None => error.into(),
    }
}

fn load(args: &RerankArgs) -> Result<Reranker> {
    let options = args.model_options.options(Precision::Fast);
    let source = Source::resolve(Some(&args.model))?;
    let checkpoint = source.open(options.access)?;
    let start = Instant::now();
    let progress = Progress::new("loading");
    let report = |done, total| {
        if !args.quiet {
            progress.set(done, total);
        }
    };
    let reranker = Reranker::load(checkpoint, &options, &report)?;
    drop(progress);
    if !args.quiet {
        diagnostics::aside(format!(
            "{} · {} · {} · up to {} tokens · loaded in {:.2} s",
            foreign::one_line(source.name(), 80),
            foreign::one_line(reranker.architecture(), 40),
            foreign::one_line(&reranker.device().to_string(), 240),
            reranker.max_tokens(),
            start.elapsed().as_secs_f64(),
        ));
    }
    Ok(reranker)
}
