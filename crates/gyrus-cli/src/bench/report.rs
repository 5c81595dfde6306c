use std::io::Write;

use anyhow::Result;
use gyrus::Model;
use serde::Serialize;

use crate::foreign;
use crate::options::BenchOutput;
use crate::{json, load};

/// A measured test.
#[derive(Debug, Serialize)]
pub(super) struct Measurement {
    test: String,
    /// Median over the repetitions.
    tokens_per_second: f64,
    /// Standard deviation over the repetitions.
    deviation: f64,
    repetitions: usize,
    /// Tokens per second of each repetition.
    samples: Vec<f64>,
    /// The share of time in which the GPU is idle, in one more run; absent without a GPU that has timestamps.
    gpu_idle: Option<f64>,
    model: String,
    architecture: String,
    /// Elements of all weights.
    parameters: u64,
    /// Bytes of all weights as they are in the file.
    weight_bytes: u64,
    device: String,
    threads: usize,
    precision: String,
    version: &'static str,
}

impl Measurement {
    pub(super) fn new(
        test: String,
        speeds: &[f64],
        gpu_idle: Option<f64>,
        name: &str,
        model: &Model,
    ) -> Measurement {
        let plan = model.plan();
        let bytes = |w: &gyrus::WeightSpec| w.dtype.bytes_of(&w.shape).unwrap_or(0) as u64;
        Measurement {
            test,
            tokens_per_second: median(speeds),
            deviation: deviation(speeds),
            repetitions: speeds.len(),
            samples: speeds.to_vec(),
            gpu_idle,
            model: name.to_owned(),
            architecture: model.config().architecture.clone(),
            parameters: plan.weights.iter().map(|w| w.shape.elems() as u64).sum(),
            weight_bytes: plan.weights.iter().map(bytes).sum(),
            device: load::device(model.device()),
            threads: model.threads(),
            precision: format!("{:?}", plan.precision).to_lowercase(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Bytes of weights, in the format of llama-bench's column `size`.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

/// A parameter count, in the format of llama-bench's column `params`.
fn params(count: u64) -> String {
    let millions = count as f64 * 1e-6;
    if millions < 1000.0 { format!("{millions:.2} M") } else { format!("{:.2} B", millions * 1e-3) }
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

pub(super) fn print(measured: &[Measurement], format: BenchOutput) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        BenchOutput::Json => json::pretty(&mut out, &measured)?,
        BenchOutput::Csv => {
            writeln!(
                out,
                "test,tokens_per_second,deviation,repetitions,model,device,threads,precision,weight_bytes,parameters,gpu_idle"
            )?;
            for m in measured {
                writeln!(
                    out,
                    "{},{:.3},{:.3},{},{},{},{},{},{},{},{}",
                    m.test,
                    m.tokens_per_second,
                    m.deviation,
                    m.repetitions,
                    foreign::csv(&m.model),
                    foreign::csv(&m.device),
                    m.threads,
                    m.precision,
                    m.weight_bytes,
                    m.parameters,
                    m.gpu_idle.map(|share| format!("{share:.4}")).unwrap_or_default()
                )?;
            }
        }
        BenchOutput::Md => {
            writeln!(
                out,
                "| model | size | params | device | threads | precision | test | tokens/s | GPU idle |"
            )?;
            writeln!(out, "|---|---:|---:|---|---:|---|---|---:|---:|")?;
            for m in measured {
                writeln!(
                    out,
                    "| {} | {} | {} | {} | {} | {} | {} | {:.2} ± {:.2} | {} |",
                    foreign::markdown(&m.model),
                    size(m.weight_bytes),
                    params(m.parameters),
                    foreign::markdown(&m.device),
                    m.threads,
                    m.precision,
                    m.test,
                    m.tokens_per_second,
                    m.deviation,
                    m.gpu_idle.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
                )?;
            }
        }
    }
    Ok(())
}

/// A column of a table: its name in CSV and in Markdown.
pub(super) enum Column {
    Text(&'static str, &'static str),
    Number(&'static str, &'static str),
}

/// A value as it is printed in CSV and in Markdown.
pub(super) struct Cell {
    csv: String,
    markdown: String,
}

impl Cell {
    /// Text without commas.
    pub(super) fn plain(text: &str) -> Cell {
        Cell { csv: text.to_owned(), markdown: text.to_owned() }
    }

    /// Text that CSV quotes.
    #[cfg(feature = "gpu")]
    pub(super) fn quoted(text: &str) -> Cell {
        Cell { csv: format!("\"{text}\""), markdown: text.to_owned() }
    }

    /// A number with this many digits after the point.
    pub(super) fn number(value: f64, csv: usize, markdown: usize) -> Cell {
        Cell { csv: format!("{value:.csv$}"), markdown: format!("{value:.markdown$}") }
    }

    /// A small number in scientific notation.
    #[cfg(feature = "gpu")]
    pub(super) fn scientific(value: f64) -> Cell {
        Cell { csv: format!("{value:.1e}"), markdown: format!("{value:.0e}") }
    }

    /// A part of one, in Markdown as a percentage.
    #[cfg(feature = "gpu")]
    pub(super) fn share(value: f64) -> Cell {
        Cell { csv: format!("{value:.3}"), markdown: format!("{:.0} %", 100.0 * value) }
    }
}

/// A row of a table.
pub(super) trait TableRow: Serialize {
    /// The columns but for the device, which is the last one of CSV and the title of Markdown.
    const COLUMNS: &'static [Column];

    /// The device that ran it.
    fn device(&self) -> &str;

    /// The values of the columns.
    fn cells(&self) -> Vec<Cell>;
}

/// Prints a table.
pub(super) fn table<R: TableRow>(rows: &[R], output: BenchOutput) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        BenchOutput::Json => json::pretty(&mut out, &rows)?,
        BenchOutput::Csv => {
            for Column::Text(csv, _) | Column::Number(csv, _) in R::COLUMNS {
                write!(out, "{csv},")?;
            }
            writeln!(out, "device")?;
            for row in rows {
                for cell in row.cells() {
                    write!(out, "{},", cell.csv)?;
                }
                writeln!(out, "\"{}\"", row.device())?;
            }
        }
        BenchOutput::Md => {
            if let Some(first) = rows.first() {
                writeln!(out, "{}\n", foreign::Foreign(first.device()))?;
            }
            for Column::Text(_, head) | Column::Number(_, head) in R::COLUMNS {
                write!(out, "| {head} ")?;
            }
            write!(out, "|\n|")?;
            for column in R::COLUMNS {
                write!(out, "{}", if matches!(column, Column::Text(..)) { "---|" } else { "---:|" })?;
            }
            writeln!(out)?;
            for row in rows {
                for cell in row.cells() {
                    write!(out, "| {} ", cell.markdown)?;
                }
                writeln!(out, "|")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_as_by_llama_bench() {
        assert_eq!(
            [7_533_216, 98_362_432, 1 << 30, 5 << 30].map(size),
            ["7.18 MiB", "93.81 MiB", "1.00 GiB", "5.00 GiB"]
        );
        assert_eq!([134_515_008, 1_235_814_400].map(params), ["134.52 M", "1.24 B"]);
    }

    #[test]
    fn medians_and_deviations() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(deviation(&[1.0, 3.0]), 2f64.sqrt());
        assert_eq!(deviation(&[1.0]), 0.0);
    }
}
