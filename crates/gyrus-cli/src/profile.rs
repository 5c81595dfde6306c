//! `gyrus profile`: the GPU time of each kernel of a decode step or a prefill.

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
    let decode = args.sequences.iter().map(|&n| (Workload::Sequences(n.into()), args.depth));
    let prefill = args.prompt_tokens.iter().map(|&tokens| (Workload::Prompt(tokens), 0));
    let wanted: Vec<(Workload, usize)> = decode.chain(prefill).filter(|(load, _)| load.rows() > 0).collect();
    if wanted.is_empty() {
        return Err(usage("nothing to measure: -s and -p are both 0"));
    }
    let source = args.subject.source()?;
    let mut options = args.model_options.options(Precision::Fast);
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    if most > 1 {
        // A KV cache for each sequence, no longer than the workloads need.
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
    // Printed first, so that an error of writing the picture does not lose the results.
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
    ensure!(fits, "does not fit into the context of {context} tokens");
    match model.profile(workload, depth)? {
        Some(profile) => Ok(Batch::new(&profile)),
        None => bail!(NEEDS_GPU),
    }
}

/// Refuses `--device cpu` before a model is loaded.
pub(crate) fn refuse_cpu(device: &Device) -> Result<()> {
    if *device == Device::Cpu {
        return Err(usage(NEEDS_GPU));
    }
    Ok(())
}

/// Why `profile` and `tune` do not run on the CPU.
pub(crate) const NEEDS_GPU: &str =
    "only GPU kernels can be profiled and tuned, and the model runs on the CPU; try --device gpu or gpu:NAME";
