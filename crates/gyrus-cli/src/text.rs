//! Formatting of numbers and tables for a terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

/// Section headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Names.
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();
/// Secondary text.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Errors.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// `93.8 MiB`, with three significant digits.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// `134.5 M`.
pub(crate) fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

fn scaled(n: u64, base: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (n as f64, 0);
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_owned()
}

/// `part / whole`, and 0 if `whole` is 0: a time of zero gives no speed.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A column of a table.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) right: bool,
    pub(crate) style: Style,
}

/// Writes rows under their titles, each column as wide as its widest cell.
pub(crate) fn table(out: &mut impl Write, columns: &[Column], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |n: usize| {
        let cells = rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count());
        cells.chain([columns[n].title.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut line = |cells: &dyn Fn(usize) -> String, heading: bool| -> io::Result<()> {
        let mut text = String::new();
        for (n, column) in columns.iter().enumerate() {
            let (cell, width) = (cells(n), widths[n]);
            let padded = match column.right {
                true => format!("{cell:>width$}"),
                // No blanks at the end of a line.
                false if n + 1 == columns.len() => cell,
                false => format!("{cell:<width$}"),
            };
            let style = if heading { FAINT } else { column.style };
            let _ = write!(text, "  {}{padded}{}", style.render(), style.render_reset());
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&|n| columns[n].title.to_owned(), true)?;
    for row in rows {
        line(&|n| row.get(n).cloned().unwrap_or_default(), false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [0, 1023, 1024, 98_362_432, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1.00 KiB", "93.8 MiB", "16.0 EiB"]
        );
        assert_eq!([999, 1000, 134_515_008].map(count), ["999", "1.00 k", "135 M"]);
    }
}
