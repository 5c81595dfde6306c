//! Rotary embeddings as tables.

use std::io::{self, Write};

use super::report::{Band, Kind, Report, in_words};
use crate::foreign;
use crate::text::{self, Column, FAINT, HEADING};

/// The summary, then the table of every kind of layer.
pub(crate) fn report(out: &mut impl Write, report: &Report) -> io::Result<()> {
    head(out, report)?;
    for kind in &report.kinds {
        summary(out, report, kind)?;
    }
    for kind in &report.kinds {
        writeln!(out)?;
        if report.kinds.len() > 1 {
            writeln!(
                out,
                "{}{}{}",
                HEADING.render(),
                foreign::one_line(&kind.layers, 40),
                HEADING.render_reset()
            )?;
        }
        pairs(out, kind)?;
    }
    Ok(())
}

fn head(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let name = foreign::one_line(&report.name, 200);
    writeln!(out, "{}{name}{}", HEADING.render(), HEADING.render_reset())?;
    let mut facts: Vec<String> = report.architecture.iter().map(|name| foreign::one_line(name, 40)).collect();
    facts.extend(report.context.map(|context| format!("context {context}")));
    match facts.is_empty() {
        true => Ok(()),
        false => writeln!(out, "  {}", facts.join(" · ")),
    }
}

fn summary(out: &mut impl Write, report: &Report, kind: &Kind) -> io::Result<()> {
    if report.kinds.len() > 1 {
        let name = foreign::one_line(&kind.layers, 40);
        let (bold, reset) = (HEADING.render(), HEADING.render_reset());
        writeln!(out, "\n{bold}{name}{reset}, {}", layers(&kind.which))?;
    }
    writeln!(out, "  {}", in_words(kind))?;
    let total = kind.pairs.len();
    if let Some((short, long)) = kind.waves() {
        let within = report.context.map(|context| {
            let complete = kind.pairs.iter().filter(|p| p.wavelength.is_some_and(|w| w <= context as f64));
            format!("; {} of {total} pairs complete a rotation within the context", complete.count())
        });
        let (short, long) = (positions(short), positions(long));
        writeln!(out, "  wavelengths {short} to {long} positions{}", within.unwrap_or_default())?;
    }
    let bands: Vec<String> = [Band::Kept, Band::Ramp, Band::Stretched, Band::Still]
        .into_iter()
        .filter(|&band| kind.count(band) > 0)
        .map(|band| format!("{} {}", kind.count(band), words(band)))
        .collect();
    writeln!(out, "  {total} pairs: {}", bands.join(", "))?;
    if kind.attention_factor != 1.0 {
        writeln!(out, "  cosine and sine × {:.6}", kind.attention_factor)?;
    }
    if kind.score_factor != 1.0 {
        writeln!(out, "  attention scores × {:.6}", kind.score_factor)?;
    }
    let (faint, reset) = (FAINT.render(), FAINT.render_reset());
    match (kind.original(), kind.rope.length_class(usize::MAX)) {
        (Some(original), 1..) if kind.rope.length_class(kind.length) == 0 => writeln!(
            out,
            "  {faint}for sequences of up to {original} positions; --length shows longer ones{reset}"
        ),
        (Some(_), 1..) => writeln!(out, "  {faint}for sequences of up to {} positions{reset}", kind.length),
        _ => Ok(()),
    }
}

fn words(band: Band) -> &'static str {
    match band {
        Band::Kept => "unchanged",
        Band::Ramp => "on the ramp",
        Band::Stretched => "stretched",
        Band::Still => "not rotated",
    }
}

/// `layers 5, 11, 17`, or only their number if there are many.
fn layers(which: &[usize]) -> String {
    match which.len() {
        0 => "layers not listed".to_owned(),
        1..=12 => {
            let list: Vec<String> = which.iter().map(usize::to_string).collect();
            format!("layer{} {}", if which.len() == 1 { "" } else { "s" }, list.join(", "))
        }
        n => format!("{n} layers, {} to {}", which[0], which[n - 1]),
    }
}

/// A wavelength: two decimals while they matter, then whole positions.
fn positions(wave: f64) -> String {
    if wave < 1000.0 { format!("{wave:.2}") } else { format!("{wave:.0}") }
}

fn cell(wave: Option<f64>) -> String {
    wave.map_or_else(|| "–".to_owned(), positions)
}

fn right(title: &'static str) -> Column {
    Column { title, right: true, style: anstyle::Style::new() }
}

fn left(title: &'static str) -> Column {
    Column { title, right: false, style: anstyle::Style::new() }
}

fn pairs(out: &mut impl Write, kind: &Kind) -> io::Result<()> {
    let rows_matter = kind.sections.is_some();
    let mut columns = vec![right("pair"), right("elements"), right("wavelength"), right("frequency")];
    columns.extend([right("stretch"), left("band")]);
    if rows_matter {
        columns.push(right("row"));
    }
    let rows: Vec<Vec<String>> = kind
        .pairs
        .iter()
        .map(|pair| {
            let mut cells = vec![
                pair.pair.to_string(),
                format!("{} {}", pair.elements.0, pair.elements.1),
                cell(pair.wavelength),
                format!("{:.6e}", pair.frequency),
                pair.stretch.map_or_else(|| "–".to_owned(), |s| format!("{s:.4}")),
                pair.band.name().to_owned(),
            ];
            if rows_matter {
                cells.push(pair.row.to_string());
            }
            cells
        })
        .collect();
    text::table(out, &columns, &rows)
}

/// Two settings side by side.
pub(crate) fn comparison(out: &mut impl Write, ours: &Report, theirs: &Report) -> io::Result<()> {
    for report in [ours, theirs] {
        head(out, report)?;
        for kind in &report.kinds {
            summary(out, report, kind)?;
        }
        writeln!(out)?;
    }
    for (i, a) in ours.kinds.iter().enumerate() {
        // A kind is compared with the kind of the same name, else with the first.
        let named = theirs.kinds.iter().find(|b| b.layers == a.layers);
        let Some(b) = named.or(theirs.kinds.first()) else { continue };
        if i > 0 {
            writeln!(out)?;
        }
        if ours.kinds.len() > 1 {
            let (bold, reset) = (HEADING.render(), HEADING.render_reset());
            writeln!(out, "{bold}{}{reset}", foreign::one_line(&a.layers, 40))?;
        }
        differences(out, a, b)?;
    }
    Ok(())
}

fn differences(out: &mut impl Write, a: &Kind, b: &Kind) -> io::Result<()> {
    let mut notes = Vec::new();
    let mut differs = |what: &str, a: String, b: String| {
        if a != b {
            notes.push(format!("{what} {a} and {b}"));
        }
    };
    differs("pairing", a.pairing.to_owned(), b.pairing.to_owned());
    differs("head size", a.head_dim.to_string(), b.head_dim.to_string());
    differs("rotated elements", a.rope_dim.to_string(), b.rope_dim.to_string());
    differs("offset", a.offset.to_string(), b.offset.to_string());
    differs("factor on cosine and sine", a.attention_factor.to_string(), b.attention_factor.to_string());
    differs("factor on scores", a.score_factor.to_string(), b.score_factor.to_string());
    let both = a.pairs.len().min(b.pairs.len());
    let rows: Vec<Vec<String>> = (0..both)
        .map(|i| {
            let (a, b) = (&a.pairs[i], &b.pairs[i]);
            let ratio = a.wavelength.zip(b.wavelength).map(|(a, b)| b / a);
            let ratio = ratio.map_or_else(|| "–".to_owned(), |r| format!("{r:.4}"));
            let (first, second) = (a.band.name().to_owned(), b.band.name().to_owned());
            vec![i.to_string(), cell(a.wavelength), first, cell(b.wavelength), second, ratio]
        })
        .collect();
    let same = |i: usize| {
        let (a, b) = (a.pairs[i].frequency, b.pairs[i].frequency);
        a == b || (a / b - 1.0).abs() < 1e-9
    };
    let different = (0..both).filter(|&i| !same(i)).count();
    notes.push(format!("{different} of {both} pairs have other frequencies"));
    writeln!(out, "  {}\n", notes.join("; "))?;
    let columns =
        [right("pair"), right("first"), left("band"), right("second"), left("band"), right("second/first")];
    text::table(out, &columns, &rows)
}
