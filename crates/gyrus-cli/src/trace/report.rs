//! A trace as a table and as JSON.

use std::io::Write;

use anstyle::Style;
use anyhow::Result;
use gyrus::{Difference, Model, OpResult, Trace, TraceSide, TracedChunk, TracedResult};
use serde::Serialize;

use crate::text::{self, Column, FAINT};
use crate::{foreign, json, load};

/// A trace of a model.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    version: &'static str,
    tokens: usize,
    ours: Run,
    theirs: Option<Run>,
    /// Whether each op has the same inputs in both runs.
    isolated: bool,
    /// The first result that diverges.
    first_divergence: Option<Line>,
    /// Results that were compared in all batches, and the one that is closest to its tolerance.
    compared: usize,
    closest: Option<Line>,
    /// The batches to print.
    batches: Vec<Batch>,
}

#[derive(Debug, Serialize)]
struct Run {
    device: String,
    precision: String,
}

#[derive(Debug, Serialize)]
struct Batch {
    first_position: usize,
    rows: usize,
    results: Vec<Line>,
}

/// A result of an op.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Line {
    pub(super) op: usize,
    line: String,
    /// A buffer, or q, k, v of a layer.
    result: String,
    ours: Side,
    theirs: Option<Side>,
    difference: Option<Apart>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Side {
    Values { checksum: String, largest: f32 },
    Hidden { hidden: String },
}

/// JSON has `null` for differences that are infinite.
#[derive(Debug, Clone, Serialize)]
struct Apart {
    absolute: f32,
    relative: f32,
    row: usize,
    position: usize,
    column: usize,
    tolerance: f32,
    diverges: bool,
}

/// `fast on the CPU`.
pub(super) fn run_name(model: &Model) -> String {
    Run::of(model).to_string()
}

impl Run {
    fn of(model: &Model) -> Run {
        let precision = format!("{:?}", model.plan().precision).to_lowercase();
        Run { device: load::device(model.device()), precision }
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.precision, foreign::one_line(&self.device, 80))
    }
}

impl Report {
    pub(super) fn new(name: &str, model: &Model, trace: &Trace<'_>, tokens: usize) -> Report {
        Report {
            model: name.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            tokens,
            ours: Run::of(model),
            theirs: trace.against.map(Run::of),
            isolated: trace.isolates(model),
            first_divergence: None,
            compared: 0,
            closest: None,
            batches: Vec::new(),
        }
    }

    /// Forgets the batches so far.
    pub(super) fn forget(&mut self) {
        self.batches.clear();
    }

    pub(super) fn add(&mut self, model: &Model, chunk: &TracedChunk) {
        let results: Vec<Line> = chunk.results.iter().map(|result| Line::new(model, result)).collect();
        for line in &results {
            let Some(difference) = &line.difference else { continue };
            self.compared += 1;
            if difference.diverges && self.first_divergence.is_none() {
                self.first_divergence = Some(line.clone());
            }
            if self.closest.as_ref().is_none_or(|closest| closest.excess() < line.excess()) {
                self.closest = Some(line.clone());
            }
        }
        let rows = chunk.positions.len();
        self.batches.push(Batch { first_position: chunk.positions.start, rows, results });
    }

    pub(super) fn first_divergence(&self) -> Option<&Line> {
        self.first_divergence.as_ref()
    }

    pub(super) fn print(&self, as_json: bool) -> Result<()> {
        let mut out = anstream::stdout().lock();
        if as_json {
            json::pretty(&mut out, self)?;
            return Ok(());
        }
        let Report { model, ours, theirs, .. } = self;
        let model = foreign::one_line(model, 80);
        match theirs {
            Some(theirs) => {
                let inputs = if self.isolated { "each op has the same inputs" } else { "differences add up" };
                writeln!(out, "{model}: {ours} against {theirs}; {inputs}")?;
            }
            None => writeln!(out, "{model}: {ours}")?,
        }
        for batch in &self.batches {
            let last = batch.first_position + batch.rows - 1;
            writeln!(out, "\npositions {} to {last} in a batch of {}", batch.first_position, batch.rows)?;
            let rows: Vec<Vec<String>> = batch.results.iter().map(|line| self.cells(line)).collect();
            text::table(&mut out, &self.columns(), &rows)?;
        }
        match (&self.first_divergence, &self.closest) {
            (Some(line), _) => {
                writeln!(out, "\nfirst divergence: op {}, {}\n  {}", line.op, line.line, line.place())?;
            }
            (None, Some(line)) => {
                let all = self.compared;
                writeln!(
                    out,
                    "\nno divergence in {all} results; op {} is closest to its tolerance:",
                    line.op
                )?;
                writeln!(out, "  {}", line.place())?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn columns(&self) -> Vec<Column> {
        let column = |title, right| Column { title, right, style: Style::new() };
        let mut columns = vec![
            column("op", true),
            column("result", false),
            column("checksum", false),
            column("largest", true),
        ];
        if self.theirs.is_some() {
            columns.extend([
                column("theirs", true),
                column("difference", true),
                column("relative", true),
                column("at", false),
            ]);
        }
        columns.push(Column { title: "", right: false, style: FAINT });
        columns
    }

    fn cells(&self, line: &Line) -> Vec<String> {
        let mut cells = vec![line.op.to_string(), line.result.clone()];
        cells.extend(line.ours.cells());
        if let Some(theirs) = &line.theirs {
            let [_, largest] = theirs.cells();
            cells.push(largest);
            match &line.difference {
                Some(apart) => cells.extend([
                    number(apart.absolute),
                    format!("{}{}", number(apart.relative), if apart.diverges { " !" } else { "  " }),
                    format!("{}, {}", apart.position, apart.column),
                ]),
                None => cells.extend([String::new(), String::new(), String::new()]),
            }
        }
        // Keys and values follow the queries of the same op.
        let mut what = match line.result.as_bytes() {
            [b'k' | b'v', ..] => String::new(),
            _ => line.line.clone(),
        };
        for (whose, side) in [("", Some(&line.ours)), ("theirs ", line.theirs.as_ref())] {
            if let Some(Side::Hidden { hidden }) = side {
                let space = if what.is_empty() { "" } else { " " };
                what = format!("{what}{space}[{whose}{hidden}]");
            }
        }
        cells.push(what);
        cells
    }
}

impl Line {
    fn new(model: &Model, traced: &TracedResult) -> Line {
        let plan = model.plan();
        let result = match traced.result {
            OpResult::Buffer(id) => id.to_string(),
            OpResult::Queries => "q".to_owned(),
            OpResult::Keys(layer) => format!("k {layer}"),
            OpResult::Values(layer) => format!("v {layer}"),
        };
        Line {
            op: traced.op,
            line: foreign::one_line(&plan.line(&plan.forward[traced.op]).to_string(), 240),
            result,
            ours: Side::of(&traced.ours),
            theirs: traced.theirs.as_ref().map(Side::of),
            difference: traced.difference.map(|difference| {
                let Difference { absolute, relative, row, column, position, tolerance } = difference;
                let diverges = difference.diverges();
                Apart { absolute, relative, row, position, column, tolerance, diverges }
            }),
        }
    }

    /// The difference relative to its tolerance.
    fn excess(&self) -> f32 {
        self.difference.as_ref().map_or(0.0, |apart| apart.relative / apart.tolerance.max(f32::MIN_POSITIVE))
    }

    /// Where it differs, and by how much.
    fn place(&self) -> String {
        let Some(Apart { absolute, relative, position, row, column, tolerance, .. }) = &self.difference
        else {
            return String::new();
        };
        format!(
            "{} differs by {}, {} of its row's largest value (tolerance {tolerance:.1e}), at position {position} (row \
             {row}), column {column}",
            self.result,
            number(*absolute),
            number(*relative)
        )
    }
}

impl Side {
    fn of(side: &TraceSide) -> Side {
        match side {
            TraceSide::Values(values) => {
                Side::Values { checksum: format!("{:016x}", values.checksum), largest: values.largest }
            }
            TraceSide::Hidden(why) => Side::Hidden { hidden: foreign::one_line(why, 120) },
        }
    }

    /// The checksum and the largest magnitude.
    fn cells(&self) -> [String; 2] {
        match self {
            Side::Values { checksum, largest } => [checksum.clone(), number(*largest)],
            Side::Hidden { .. } => ["hidden".to_owned(), String::new()],
        }
    }
}

/// Three digits.
fn number(x: f32) -> String {
    if x == 0.0 { "0".to_owned() } else { format!("{x:.2e}") }
}
