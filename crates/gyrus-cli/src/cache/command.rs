//! `gyrus cache`: lists and prunes the cache folder.

use std::io::{BufRead, IsTerminal, Write};

use anstyle::Style;
use anyhow::{Result, ensure};
use serde::Serialize;

use super::contents::{Contents, Entry, Kind, State};
use crate::cli::{CacheAction, CacheArgs, PruneArgs};
use crate::environment::Environment;
use crate::text::{self, Column, FAINT, NAME};
use crate::usage::usage;
use crate::{diagnostics, foreign, json};

/// A file as JSON.
#[derive(Debug, Serialize)]
struct Row {
    kind: Kind,
    bytes: u64,
    state: State,
    /// Bytes that are not UTF-8 are replaced, since JSON is text.
    path: String,
}

impl Row {
    fn new(entry: &Entry) -> Row {
        let path = entry.path.to_string_lossy().into_owned();
        Row { kind: entry.kind, bytes: entry.bytes, state: entry.state, path }
    }
}

#[derive(Debug, Serialize)]
struct Listing {
    folder: String,
    bytes: u64,
    files: Vec<Row>,
}

pub(crate) fn run(args: &CacheArgs) -> Result<()> {
    let environment = Environment::of_process();
    let root = environment.cache()?;
    match &args.action {
        None => list(&Contents::read(root)?, args.json),
        Some(CacheAction::Prune(prune_args)) => {
            if prune_args.kinds().is_empty() {
                return Err(usage(
                    "nothing selected: give --models, --pipelines, --tunings, --self-tests, --history or --all",
                ));
            }
            let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
            if !prune_args.yes && !asks {
                return Err(usage(
                    "cannot ask for confirmation without a terminal; --yes removes without asking",
                ));
            }
            prune(&Contents::read(root)?, prune_args, args.json)
        }
    }
}

fn list(contents: &Contents, as_json: bool) -> Result<()> {
    let mut out = anstream::stdout().lock();
    let total = contents.entries.iter().map(|entry| entry.bytes).sum();
    if as_json {
        let folder = contents.root.to_string_lossy().into_owned();
        let files = contents.entries.iter().map(Row::new).collect();
        json::pretty(&mut out, &Listing { folder, bytes: total, files })?;
        return Ok(());
    }
    if !contents.entries.is_empty() {
        table(&mut out, &contents.entries.iter().collect::<Vec<_>>())?;
        writeln!(out)?;
    }
    let sums: Vec<String> = Kind::ALL
        .into_iter()
        .filter(|kind| contents.entries.iter().any(|entry| entry.kind == *kind))
        .map(|kind| format!("{} {}", kind.name(), text::bytes(contents.bytes(kind))))
        .collect();
    let sums = if sums.is_empty() { "empty".to_owned() } else { sums.join(", ") };
    for line in [
        format!("total {}: {sums}", text::bytes(total)),
        format!("cache folder: {}", foreign::path(&contents.root)),
    ] {
        writeln!(out, "  {}{line}{}", FAINT.render(), FAINT.render_reset())?;
    }
    note_skipped(contents);
    Ok(())
}

fn table(out: &mut impl Write, entries: &[&Entry]) -> std::io::Result<()> {
    let column = |title, right, style| Column { title, right, style };
    let columns = [
        column("kind", false, NAME),
        column("size", true, Style::new()),
        column("state", false, Style::new()),
        column("path", false, Style::new()),
    ];
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| {
            let state = match entry.state {
                State::Complete => "complete",
                State::Incomplete => "incomplete",
                State::Link => "link",
            };
            let (kind, size) = (entry.kind.name().to_owned(), text::bytes(entry.bytes));
            vec![kind, size, state.to_owned(), foreign::path(&entry.path)]
        })
        .collect();
    text::table(out, &columns, &rows)
}

fn note_skipped(contents: &Contents) {
    for path in &contents.skipped {
        diagnostics::note(format!("{}: a link to a folder, which is not followed", path.display()));
    }
}

fn prune(contents: &Contents, args: &PruneArgs, as_json: bool) -> Result<()> {
    let kinds = args.kinds();
    let selected: Vec<&Entry> = contents.entries.iter().filter(|entry| kinds.contains(&entry.kind)).collect();
    note_skipped(contents);
    if !args.yes && !selected.is_empty() && !confirm(&selected)? {
        diagnostics::note("nothing was removed");
        return Ok(());
    }
    let mut removed: Vec<&Entry> = Vec::new();
    for &entry in &selected {
        match contents.remove(entry) {
            Ok(()) => removed.push(entry),
            Err(error) => diagnostics::error(&error),
        }
    }
    let bytes = removed.iter().map(|entry| entry.bytes).sum();
    let mut out = std::io::stdout().lock();
    if as_json {
        let folder = contents.root.to_string_lossy().into_owned();
        let files = removed.iter().map(|entry| Row::new(entry)).collect();
        json::pretty(&mut out, &Listing { folder, bytes, files })?;
    } else {
        for entry in &removed {
            writeln!(out, "removed {}", foreign::path(&entry.path))?;
        }
        writeln!(out, "{}, {} freed", files(removed.len()), text::bytes(bytes))?;
    }
    let failed = selected.len() - removed.len();
    ensure!(failed == 0, "{} could not be removed", files(failed));
    Ok(())
}

/// Shows what would be removed, and asks.
fn confirm(selected: &[&Entry]) -> Result<bool> {
    let mut shown = Vec::new();
    table(&mut shown, selected)?;
    let bytes = selected.iter().map(|entry| entry.bytes).sum();
    let question = format!("Remove {} ({})? [y/N] ", files(selected.len()), text::bytes(bytes));
    let mut err = anstream::stderr().lock();
    err.write_all(&shown)?;
    write!(err, "\n{question}")?;
    err.flush()?;
    agreed(&mut std::io::stdin().lock())
}

/// Whether the next line is `y` or `yes`.
fn agreed(input: &mut impl BufRead) -> Result<bool> {
    let mut line = Vec::new();
    input.read_until(b'\n', &mut line)?;
    Ok(matches!(String::from_utf8_lossy(&line).trim().to_lowercase().as_str(), "y" | "yes"))
}

fn files(count: usize) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_agreement() {
        let agreed = |mut text: &[u8]| agreed(&mut text).unwrap();
        assert!(agreed(b"y\n") && agreed(b" Yes \r\n") && agreed(b"YES"));
        assert!(
            !agreed(b"\n") && !agreed(b"") && !agreed(b"no\n") && !agreed(b"yep\ny\n") && !agreed(b"\xff\n")
        );
    }
}
