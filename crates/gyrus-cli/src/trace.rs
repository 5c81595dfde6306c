//! `gyrus trace`: the result of each op of a forward pass, and where two backends part.

mod report;

use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use gyrus::text::Special;
use gyrus::{Model, Options, Precision, Trace};

use crate::cli::{Ids, TraceArgs};
use crate::diagnostics;
use crate::load::load;
use crate::progress::Progress;
use crate::source::Source;
use crate::tokenize::tokenizer;
use report::Report;

pub(crate) fn run(args: &TraceArgs) -> Result<()> {
    let source = Source::resolve(Some(&args.model))?;
    let ids = tokens(args)?;
    let mut options = args.model_options.options(Precision::Fast);
    // No more KV cache than the tokens need: there may be two of them in one memory.
    options.context = options.context.or(Some(ids.len()));
    let model = load(&source, &options, args.quiet)?;
    let other = match &args.against {
        None => None,
        Some(against) => {
            let options: Options = against.options(&options);
            let other = load(&source, &options, args.quiet).context("the run to compare with")?;
            note_if_same(&model, &other);
            Some(other)
        }
    };
    let chunks: Vec<usize> = args.chunk.iter().map(|rows| usize::from(*rows)).collect();
    let trace = Trace {
        chunks: &chunks,
        against: other.as_ref(),
        tolerance: args.tolerance,
        accumulate: args.accumulate,
    };
    let mut report = Report::new(source.name(), &model, &trace, ids.len());
    let progress = (!args.quiet).then(|| Progress::new("tracing"));
    model.trace(&ids, &trace, |chunk| {
        progress.as_ref().inspect(|p| p.set(chunk.positions.end as u64, ids.len() as u64));
        if !args.all {
            report.forget();
        }
        report.add(&model, chunk);
        match chunk.first_divergence() {
            Some(_) if !args.all => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    drop(progress);
    report.print(args.json)?;
    match report.first_divergence() {
        Some(found) => bail!("the two runs diverge at op {}", found.op),
        None => Ok(()),
    }
}

/// The tokens to trace, found before a model is loaded, since they decide how much KV cache it needs.
fn tokens(args: &TraceArgs) -> Result<Vec<u32>> {
    if let Some(Ids(ids)) = &args.ids {
        return Ok(ids.clone());
    }
    let prompt = args.prompt.as_deref().unwrap_or_default();
    let ids = tokenizer(&args.model)?.encode(prompt, Special::Literal, true);
    if ids.is_empty() {
        bail!("the prompt is empty");
    }
    Ok(ids)
}

/// Says that two runs have nothing to differ in: a GPU that was not found may be the reason.
fn note_if_same(ours: &Model, theirs: &Model) {
    if ours.device() == theirs.device() && ours.plan().precision == theirs.plan().precision {
        let name = report::run_name(ours);
        diagnostics::note(format!("both runs are {name}, so they should be equal; --device names another"));
    }
}
