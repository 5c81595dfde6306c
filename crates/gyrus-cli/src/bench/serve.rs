//! `gyrus bench --serve`: a load of many requests against the library itself, or against a server.
//!
//! The load is open: requests arrive at times that do not depend on what is served, and times count from the arrival. A
//! closed loop would send fewer requests to a slow engine and hide how long they wait.

mod chart;
mod client;
mod join;
mod load;
mod quantiles;
mod random;
#[cfg(feature = "download")]
mod remote;
mod report;

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow};
use gyrus::{Error, Model, Options, Precision, Prompt, Request, Sampler};

pub(crate) use random::{Arrivals, Lengths};

use self::client::{Clients, Served};
use self::load::Load;
use self::report::{Measured, Report, Subject};
use crate::cli::{BenchArgs, ServeArgs};
use crate::interrupt::{Interrupted, on_ctrl_c};
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::source::Source;
use crate::{diagnostics, load as loading};

/// The most sequences for which a KV cache is allocated without `--kv-memory`.
const MOST_SEQUENCES: usize = 128;

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(url) = args.load.serve.as_deref().filter(|url| !url.is_empty()) {
        #[cfg(feature = "download")]
        return remote::run(args, &args.load, url);
        #[cfg(not(feature = "download"))]
        return Err(anyhow!("{url}: this gyrus was built without the feature `download`"));
    }
    match args.load.join {
        Some(tokens) => join::run(args, tokens as usize),
        None => run_load(args, &args.load),
    }
}

fn run_load(args: &BenchArgs, asked: &ServeArgs) -> Result<()> {
    let mut load = Load::draw(asked)?;
    let source = args.subject.source()?;
    let mut options = args.model_options.options(Precision::Fast);
    let in_turn = asked.rate == Arrivals::OneAfterAnother;
    let sequences = if in_turn { 1 } else { usize::from(asked.concurrency).min(load.requests.len()) };
    options.sessions = sequences.min(MOST_SEQUENCES);
    options.context = options.context.or(Some(load.longest()));
    let model = open(&source, options, args)?;
    load.fit(model.context().tokens, asked)?;
    let driver = model.drive()?;
    if !args.no_warmup {
        warm_up(&model)?;
    }
    let cancel = on_ctrl_c();
    let progress = (!args.report.quiet).then(|| Progress::new("serving"));
    let (done, all) = (AtomicU64::new(0), load.requests.len() as u64);
    let ended = || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(progress) = &progress {
            progress.set(done, all);
        }
    };
    let before = model.statistics();
    let sampler = super::sampler(args.sampled);
    let clients = Clients { concurrency: asked.concurrency.into(), in_turn, cancel: &cancel, ended: &ended };
    let one = |index: usize, start, arrival| {
        client::run(&model, &load, index, (&sampler, &cancel), (start, arrival))
    };
    let served = client::serve(&load, clients, &one)?;
    let after = model.statistics();
    drop(driver);
    drop(progress);
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    let (sampled, prefix_cache) = (args.sampled, !args.model_options.no_prefix_cache);
    let counts = Some((before, after));
    let measured = Measured { args: asked, load: &load, sampled, prefix_cache: Some(prefix_cache), counts };
    let report = Report::new(Subject::new(source.name(), &model), &served, &measured);
    print(args, &report, &served)
}

/// Prints a report, and draws it if that was asked for.
fn print(args: &BenchArgs, report: &Report, served: &[Served]) -> Result<()> {
    let failure = served.iter().find_map(|one| one.failure.as_ref());
    if let Some(failure) = failure {
        if report.finished == 0 {
            return Err(anyhow!("no request was completed: {}", failure.message));
        }
        diagnostics::note(format!("{}: {}", failure.kind, failure.message));
    }
    // Printed first, so that an error of writing the picture does not lose the results.
    report.print(args.report.output)?;
    if let Some(path) = &args.load.svg {
        OutputFile::write(path, chart::draw(report, served))?;
    }
    Ok(())
}

/// Loads the model. If the longest request of a random load needs more context than the model has, it gets all there is.
fn open(source: &Source, mut options: Options, args: &BenchArgs) -> Result<Model> {
    let loaded = loading::load(source, &options, args.report.quiet);
    match loaded.as_ref().map_err(|error| error.downcast_ref::<Error>()) {
        Err(Some(Error::Context { max, .. })) if args.model_options.ctx.is_none() => {
            options.context = Some(*max);
            // A model in memory cannot be opened twice.
            loading::load(source, &options, args.report.quiet).or(loaded)
        }
        _ => loaded,
    }
}

/// Touches weights and caches once, so that the first request does not pay for it.
fn warm_up(model: &Model) -> Result<()> {
    let tokens = 8.min(model.context().tokens / 2).max(1);
    let mut session = model.session();
    // Tokens that no load begins with.
    let ids = vec![0; tokens];
    let request = Request::new(Prompt::Ids(ids)).max_tokens(tokens).ignore_end(true);
    let mut generation = session.generate(request.sampler(Sampler::default()))?;
    while generation.next()?.is_some() {}
    Ok(())
}
