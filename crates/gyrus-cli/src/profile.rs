//! `gyrus profile`: where the time of a batch goes on a GPU, kernel by kernel.

mod picture;
mod report;

use anyhow::{Context, Result, bail, ensure};
use gyrus::{Device, Model, Precision, Workload};

use crate::cli::ProfileArgs;
use crate::load::load;
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::usage::usage;
use report::{Batch, Report};

pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    refuse_cpu(&args.model_options.device)?;
    let writing = args.sequences.iter().map(|&texts| (Workload::Sequences(texts.into()), args.depth));
    let reading = args.prompt_tokens.iter().map(|&tokens| (Workload::Prompt(tokens), 0));
    let wanted: Vec<(Workload, usize)> = writing.chain(reading).filter(|(load, _)| load.rows() > 0).collect();
    if wanted.is_empty() {
        return Err(usage("nothing to measure: both -s and -p are 0"));
    }
    let source = args.subject.source()?;
    let mut options = args.model_options.options(Precision::Fast);
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    if most > 1 {
        // Room for a cache of each text, and no longer than they are.
        let longest = args.prompt_tokens.iter().copied().max().unwrap_or(0).max(args.depth.saturating_add(1));
        options.sessions = most.into();
        options.context = options.context.or(Some(longest));
    }
    let model = load(&source, &options, args.report.quiet)?;
    let progress = (!args.report.quiet).then(|| Progress::new("measuring"));
    let mut batches = Vec::new();
    for (done, &(workload, depth)) in wanted.iter().enumerate() {
        if let Some(progress) = &progress {
            progress.set(done as u64, wanted.len() as u64);
        }
        batches.push(measure(&model, workload, depth).with_context(|| report::name(workload, depth))?);
    }
    drop(progress);
    let report = Report::new(source.name(), &model, batches);
    // Printed first: what was measured is not lost with a picture that could not be written.
    report::print(&report, args.report.output)?;
    if let Some(path) = &args.picture {
        OutputFile::write(path, picture::draw(&report))?;
    }
    Ok(())
}

fn measure(model: &Model, workload: Workload, depth: usize) -> Result<Batch> {
    let context = model.context().tokens;
    let own = if let Workload::Prompt(tokens) = workload { tokens } else { 1 };
    let fits = depth.checked_add(own).is_some_and(|all| all <= context);
    ensure!(fits, "more than the context of {context} tokens");
    match model.profile(workload, depth)? {
        Some(profile) => Ok(Batch::new(&profile)),
        None => bail!(NO_INSTRUMENTS),
    }
}

/// Says so before anything is loaded, if the CPU was asked for by name.
pub(crate) fn refuse_cpu(device: &Device) -> Result<()> {
    if *device == Device::Cpu {
        return Err(usage(NO_INSTRUMENTS));
    }
    Ok(())
}

/// Why there is no profile and nothing to tune.
pub(crate) const NO_INSTRUMENTS: &str =
    "kernels are looked into on GPUs alone, and this is the CPU; --device gpu or gpu:NAME takes a GPU";
