//! `gyrus tune`: measures the variants of each kernel of a model on a GPU and saves the fastest.

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use gyrus::{Precision, Trial};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::cli::TuneArgs;
use crate::foreign::Foreign;
use crate::json;
use crate::load::{self, load};
use crate::options::BenchOutput;
use crate::profile::{NEEDS_GPU, refuse_cpu};
use crate::text::ratio;

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    version: &'static str,
    kernels: Vec<Kernel>,
    /// The folder that the tuning is saved in.
    kept: Option<String>,
}

/// A kernel whose variants were measured. Times are those of a whole decode step.
#[derive(Debug, Serialize)]
struct Kernel {
    name: String,
    trials: usize,
    /// The default variant, chosen by rule.
    rule: String,
    rule_microseconds: f64,
    best: String,
    best_microseconds: f64,
    /// Time saved, as a share of the step.
    gain: f64,
}

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    refuse_cpu(&args.model_options.device)?;
    let source = args.subject.source()?;
    let options = args.model_options.options(Precision::Fast);
    let model = load(&source, &options, args.report.quiet)?;
    let progress = (!args.report.quiet).then(line);
    let mut kernels: Vec<Kernel> = Vec::new();
    let tuned = model.tune(&mut |trial| {
        add_trial(&mut kernels, trial);
        if let (Some(progress), Some(kernel)) = (&progress, kernels.last()) {
            progress.set_message(format!(
                "{} · {}: {:.1} µs · best of {}: {:.1} µs, {}",
                trial.kernel,
                trial.form,
                microseconds(trial.time),
                kernel.trials,
                kernel.best_microseconds,
                kernel.best
            ));
        }
    })?;
    if let Some(progress) = progress {
        progress.finish_and_clear();
    }
    ensure!(tuned, NEEDS_GPU);
    let report = Report {
        model: source.name().to_owned(),
        device: load::device(model.device()),
        version: env!("CARGO_PKG_VERSION"),
        kernels,
        kept: options.pipelines.map(|folder| folder.to_string_lossy().into_owned()),
    };
    print(&report, args.report.output)
}

/// A status line on stderr, if that is a terminal.
fn line() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(
        ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar
}

/// Adds a trial. The trials of a kernel are consecutive and begin with the default variant. They are measured with the
/// best variants of the kernels before.
fn add_trial(kernels: &mut Vec<Kernel>, trial: &Trial) {
    let time = microseconds(trial.time);
    match kernels.last_mut() {
        Some(kernel) if kernel.name == trial.kernel => {
            kernel.trials += 1;
            if trial.best {
                kernel.best = trial.form.clone();
                kernel.best_microseconds = time;
                kernel.gain = ratio(kernel.rule_microseconds - time, kernel.rule_microseconds);
            }
        }
        _ => kernels.push(Kernel {
            name: trial.kernel.clone(),
            trials: 1,
            rule: trial.form.clone(),
            rule_microseconds: time,
            best: trial.form.clone(),
            best_microseconds: time,
            gain: 0.0,
        }),
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn print(report: &Report, output: BenchOutput) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        BenchOutput::Json => json::pretty(&mut out, report)?,
        BenchOutput::Csv => {
            writeln!(out, "kernel,trials,rule,rule_microseconds,best,best_microseconds,gain")?;
            for k in &report.kernels {
                writeln!(
                    out,
                    "\"{}\",{},\"{}\",{:.3},\"{}\",{:.3},{:.4}",
                    k.name, k.trials, k.rule, k.rule_microseconds, k.best, k.best_microseconds, k.gain
                )?;
            }
        }
        BenchOutput::Md => {
            writeln!(out, "{}\n", Foreign(&report.device))?;
            if report.kernels.is_empty() {
                // Only mat-vecs of quantised weights with int8 activations have variants.
                writeln!(out, "no kernel of this model has variants to choose from at this precision")?;
                return Ok(());
            }
            writeln!(out, "| kernel | trials | default | µs per step | fastest | µs per step | gain |")?;
            writeln!(out, "|---|---:|---|---:|---|---:|---:|")?;
            for k in &report.kernels {
                let (best, gain) = if k.best == k.rule {
                    ("default", String::new())
                } else {
                    (k.best.as_str(), format!("{:.1} %", 100.0 * k.gain))
                };
                writeln!(
                    out,
                    "| {} | {} | {} | {:.1} | {best} | {:.1} | {gain} |",
                    k.name, k.trials, k.rule, k.rule_microseconds, k.best_microseconds
                )?;
            }
            match &report.kept {
                Some(folder) => writeln!(out, "\nsaved in {} for this GPU", Foreign(folder))?,
                None => writeln!(out, "\nnot saved: there is no cache folder; set GYRUS_CACHE to one")?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_trial_is_reported_beside_the_default() {
        let trial = |kernel: &str, form: &str, micros, best| Trial {
            kernel: kernel.to_owned(),
            form: form.to_owned(),
            time: Duration::from_micros(micros),
            best,
        };
        let mut kernels = Vec::new();
        for trial in [
            trial("a", "rule", 400, false),
            trial("a", "one", 300, true),
            trial("a", "two", 350, false),
            trial("b", "rule", 310, false),
            trial("b", "one", 320, false),
        ] {
            add_trial(&mut kernels, &trial);
        }
        let [a, b] = &kernels[..] else { panic!("{kernels:?}") };
        assert_eq!((a.trials, a.best.as_str(), a.best_microseconds, a.gain), (3, "one", 300.0, 0.25));
        assert_eq!((b.trials, b.best.as_str(), b.best_microseconds, b.gain), (2, "rule", 310.0, 0.0));
    }
}
