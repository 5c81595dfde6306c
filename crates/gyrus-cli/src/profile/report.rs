//! A profile as tables and JSON.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use gyrus::{Bandwidth, Level, Model, Profile, ProfileEntry, Traffic, Workload};
use serde::Serialize;

use crate::options::BenchOutput;
use crate::text::{self, ratio};
use crate::{foreign, json};

/// The profiled batches of a model on a device.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) architecture: String,
    pub(super) device: String,
    pub(super) precision: String,
    version: &'static str,
    pub(super) batches: Vec<Batch>,
}

/// A profiled batch: a decode step or a prefill.
#[derive(Debug, Serialize)]
pub(super) struct Batch {
    pub(super) name: String,
    rows: usize,
    depth: usize,
    /// Number of dispatches, and dispatches per row.
    pub(super) dispatches: usize,
    dispatches_per_token: f64,
    /// Time of all kernels in their order.
    pub(super) microseconds: f64,
    /// Sum of the kernels' separately measured times.
    pub(super) parts_microseconds: f64,
    pub(super) tokens_per_second: f64,
    bytes: u64,
    flops: u64,
    /// The least time to move the bytes: weights and KV cache from memory unless they fit in a cache, the rest from a cache.
    pub(super) roofline_microseconds: f64,
    /// The bandwidth of memory, and of the fastest cache that was seen.
    pub(super) memory_gigabytes_per_second: f64,
    pub(super) cache_gigabytes_per_second: f64,
    pub(super) kernels: Vec<Kernel>,
}

/// The memory that limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Limit {
    Memory,
    Cache,
}

impl Limit {
    fn of(level: Level) -> Limit {
        match level {
            Level::Memory => Limit::Memory,
            Level::Cache => Limit::Cache,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Cache => "cache",
        }
    }
}

/// All dispatches of a kernel.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) count: usize,
    microseconds_each: f64,
    /// Sum over the dispatches.
    pub(super) microseconds: f64,
    /// Share of the time of the batch.
    pub(super) share: f64,
    bytes: u64,
    flops: u64,
    gigabytes_per_second: f64,
    /// The least time to move the bytes, as a share of the time.
    pub(super) share_of_bandwidth: f64,
    /// What that time is limited by.
    limit: Limit,
    teraflops: f64,
}

impl Report {
    pub(super) fn new(name: &str, model: &Model, batches: Vec<Batch>) -> Report {
        Report {
            model: name.to_owned(),
            architecture: model.config().architecture.clone(),
            device: crate::load::device(model.device()),
            precision: format!("{:?}", model.plan().precision).to_lowercase(),
            version: env!("CARGO_PKG_VERSION"),
            batches,
        }
    }
}

/// The name of a batch.
pub(super) fn name(workload: Workload, depth: usize) -> String {
    match workload {
        Workload::Sequences(1) => format!("decode at depth {depth}"),
        Workload::Sequences(n) => format!("decode of {n} sequences at depth {depth}"),
        Workload::Prompt(tokens) if depth == 0 => format!("prefill of {tokens} tokens"),
        Workload::Prompt(tokens) => format!("prefill of {tokens} tokens at depth {depth}"),
    }
}

impl Batch {
    pub(super) fn new(profile: &Profile) -> Batch {
        let kernels: Vec<Kernel> = profile
            .entries
            .iter()
            .map(|entry| Kernel::new(entry, profile.time, &profile.bandwidth))
            .collect();
        let traffic =
            profile.entries.iter().map(|entry| entry.traffic).fold(Traffic::default(), Traffic::with);
        let (least, _) = profile.bandwidth.least(traffic);
        let rows = profile.workload.rows() as f64;
        Batch {
            name: name(profile.workload, profile.depth),
            rows: profile.workload.rows(),
            depth: profile.depth,
            dispatches: profile.dispatches(),
            dispatches_per_token: ratio(profile.dispatches() as f64, rows),
            microseconds: microseconds(profile.time),
            parts_microseconds: kernels.iter().map(|kernel| kernel.microseconds).sum(),
            tokens_per_second: ratio(rows, profile.time.as_secs_f64()),
            bytes: traffic.bytes,
            flops: profile.entries.iter().map(|entry| entry.flops).sum(),
            roofline_microseconds: microseconds(least),
            memory_gigabytes_per_second: profile.bandwidth.memory() * 1e-9,
            cache_gigabytes_per_second: profile.bandwidth.peak() * 1e-9,
            kernels,
        }
    }
}

impl Kernel {
    fn new(entry: &ProfileEntry, whole: Duration, bandwidth: &Bandwidth) -> Kernel {
        let seconds = entry.time.as_secs_f64();
        let (least, level) = bandwidth.least(entry.traffic);
        Kernel {
            name: entry.name.clone(),
            count: entry.count,
            microseconds_each: ratio(microseconds(entry.time), entry.count as f64),
            microseconds: microseconds(entry.time),
            share: ratio(seconds, whole.as_secs_f64()),
            bytes: entry.traffic.bytes,
            flops: entry.flops,
            gigabytes_per_second: ratio(entry.traffic.bytes as f64, seconds) * 1e-9,
            share_of_bandwidth: ratio(least.as_secs_f64(), seconds),
            limit: Limit::of(level),
            teraflops: ratio(entry.flops as f64, seconds) * 1e-12,
        }
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(super) fn print(report: &Report, output: BenchOutput) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        BenchOutput::Json => json::pretty(&mut out, report)?,
        BenchOutput::Csv => csv(&mut out, report)?,
        BenchOutput::Md => md(&mut out, report)?,
    }
    Ok(())
}

fn csv(out: &mut impl Write, report: &Report) -> std::io::Result<()> {
    writeln!(
        out,
        "rows,depth,kernel,count,microseconds_each,microseconds,share,bytes,gigabytes_per_second,\
         share_of_bandwidth,limit,teraflops"
    )?;
    for batch in &report.batches {
        for k in &batch.kernels {
            writeln!(
                out,
                "{},{},{},{},{:.3},{:.3},{:.4},{},{:.1},{:.4},{},{:.4}",
                batch.rows,
                batch.depth,
                foreign::csv(&k.name),
                k.count,
                k.microseconds_each,
                k.microseconds,
                k.share,
                k.bytes,
                k.gigabytes_per_second,
                k.share_of_bandwidth,
                k.limit.name(),
                k.teraflops
            )?;
        }
    }
    Ok(())
}

fn md(out: &mut impl Write, report: &Report) -> std::io::Result<()> {
    let Report { model, device, precision, .. } = report;
    writeln!(out, "{} · {precision} · {}", foreign::markdown(model), foreign::markdown(device))?;
    for batch in &report.batches {
        writeln!(out, "\n{}:\n", batch.name)?;
        writeln!(
            out,
            "| kernel | count | µs each | µs | of step | bytes | GB/s | of bandwidth | limit | TFLOP/s |"
        )?;
        writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|")?;
        for k in &batch.kernels {
            writeln!(
                out,
                "| {} | {} | {:.2} | {:.1} | {:.1} % | {} | {:.0} | {:.0} % | {} | {} |",
                foreign::markdown(&k.name),
                k.count,
                k.microseconds_each,
                k.microseconds,
                100.0 * k.share,
                text::bytes(k.bytes),
                k.gigabytes_per_second,
                100.0 * k.share_of_bandwidth,
                k.limit.name(),
                if k.flops == 0 { String::new() } else { digits(k.teraflops) },
            )?;
        }
        writeln!(
            out,
            "\n{} dispatches, {} per token\nwhole step {:.1} µs, sum of its kernels {:.1} µs\n\
             {:.0} tokens/s with no idle time between steps\n\
             {} take {:.1} µs at {:.0} GB/s from memory and {:.0} GB/s from a cache: {:.0} % of the step",
            batch.dispatches,
            digits(batch.dispatches_per_token),
            batch.microseconds,
            batch.parts_microseconds,
            batch.tokens_per_second,
            text::bytes(batch.bytes),
            batch.roofline_microseconds,
            batch.memory_gigabytes_per_second,
            batch.cache_gigabytes_per_second,
            100.0 * ratio(batch.roofline_microseconds, batch.microseconds),
        )?;
    }
    Ok(())
}

/// Three significant digits.
fn digits(value: f64) -> String {
    let after = if value > 0.0 { (2 - value.log10().floor() as i32).clamp(0, 6) } else { 0 };
    format!("{value:.*}", after as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report as a device with 4 TB/s, and 8 TB/s from a cache of less than 64 MiB, would give it.
    pub(crate) fn example() -> Report {
        let entry = |name: &str, count, micros: u64, own, flops| ProfileEntry {
            name: name.to_owned(),
            count,
            time: Duration::from_micros(micros),
            traffic: Traffic { bytes: own, own, working_set: own },
            flops,
        };
        let profile = Profile {
            device: "a GPU".to_owned(),
            workload: Workload::Sequences(1),
            depth: 512,
            time: Duration::from_micros(400),
            entries: vec![
                entry("embed", 1, 4, 1200, 0),
                entry("norm · attn_qkv", 16, 100, 200_000_000, 400_000_000),
                entry("norm · a<b>&c", 16, 200, 600_000_000, 800_000_000),
                entry("head", 1, 50, 300_000_000, 500_000_000),
            ],
            bandwidth: Bandwidth::new(vec![(1 << 20, 8e12), (64 << 20, 4e12), (1 << 30, 4e12)]),
        };
        let batches = vec![Batch::new(&profile), Batch::new(&Profile { time: Duration::ZERO, ..profile })];
        Report {
            model: "a \"model\" | <of> & ours".to_owned(),
            architecture: "llama".to_owned(),
            device: "a GPU".to_owned(),
            precision: "fast".to_owned(),
            version: "0",
            batches,
        }
    }

    #[test]
    fn numbers_follow_from_times_and_bytes() {
        let report = example();
        let batch = &report.batches[0];
        assert_eq!((batch.dispatches, batch.bytes), (34, 1_100_001_200));
        assert_eq!(batch.parts_microseconds, 354.0);
        assert_eq!(batch.tokens_per_second, 2500.0);
        assert!((batch.roofline_microseconds - 275.0003).abs() < 1e-3);
        let qkv = &batch.kernels[1];
        assert_eq!((qkv.microseconds_each, qkv.share, qkv.share_of_bandwidth), (6.25, 0.25, 0.5));
        assert!((qkv.teraflops - 4.0).abs() < 1e-9);
        // A step without a time is no division by zero.
        assert_eq!((report.batches[1].tokens_per_second, report.batches[1].kernels[0].share), (0.0, 0.0));
    }

    #[test]
    fn tables_hold_every_kernel() {
        let report = example();
        let mut out = Vec::new();
        md(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("a \"model\" \\| <of> & ours · fast · a GPU\n\ndecode at depth 512:\n"),
            "{text}"
        );
        let line = "| norm · attn_qkv | 16 | 6.25 | 100.0 | 25.0 % | 191 MiB | 2000 | 50 % | memory | 4.00 |";
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("| embed | 1 | 4.00 | 4.0 | 1.0 % | 1.17 KiB | 0 | 0 % | cache |  |"),
            "{text}"
        );
        assert!(text.contains("34 dispatches, 34.0 per token\n"), "{text}");
        assert!(
            text.contains("275.0 µs at 4000 GB/s from memory and 8000 GB/s from a cache: 69 % of the step"),
            "{text}"
        );
        let mut out = Vec::new();
        csv(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1 + 2 * 4);
        let columns = text.lines().next().unwrap().split(',').count();
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
    }
}
