use std::io::{self, Write};

use super::summary::Summary;
use crate::foreign;
use crate::text::{self, Column, FAINT, HEADING, NAME};

/// Characters of a metadata value on its line.
const VALUE_WIDTH: usize = 100;

/// The summary for people.
pub(crate) fn show(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    head(out, summary)?;
    if !summary.metadata.is_empty() {
        heading(out, &format!("Metadata, {} keys", summary.metadata.len()))?;
        metadata(out, summary)?;
    }
    heading(out, &format!("Tensors, {}", summary.tensors.len()))?;
    tensors(out, summary)?;
    if !summary.types.is_empty() {
        heading(out, "Types")?;
        types(out, summary)?;
    }
    if let Some(kv) = &summary.kv_cache {
        heading(out, "Memory")?;
        writeln!(out, "  weights   {:>9}", text::bytes(summary.bytes))?;
        writeln!(
            out,
            "  KV cache  {:>9}  {}at {} tokens in f16, {} layers, {} a token{}",
            text::bytes(kv.bytes),
            FAINT.render(),
            kv.context,
            kv.layers,
            text::bytes(kv.elements_per_token * 2),
            FAINT.render_reset()
        )?;
    }
    Ok(())
}

fn head(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let path = foreign::one_line(&summary.path, 200);
    writeln!(out, "{}{path}{}", HEADING.render(), HEADING.render_reset())?;
    let mut facts = vec![summary.format.to_owned()];
    if let Some(name) = &summary.architecture {
        facts.push(foreign::one_line(name, 40));
    }
    if summary.elements > 0 {
        facts.push(format!("{} parameters", text::count(summary.elements)));
        let bits = summary.bytes as f64 * 8.0 / summary.elements as f64;
        facts.push(format!("{bits:.2} bits each"));
    }
    let total: u64 = summary.files.iter().map(|f| f.bytes).sum();
    facts.push(match summary.files.len() {
        1 => text::bytes(total),
        n => format!("{} in {n} files", text::bytes(total)),
    });
    writeln!(out, "  {}", facts.join(" · "))
}

fn heading(out: &mut impl Write, title: &str) -> io::Result<()> {
    writeln!(out, "\n{}{title}{}", HEADING.render(), HEADING.render_reset())
}

fn metadata(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let width = summary.metadata.keys().map(|k| k.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &summary.metadata {
        let key = foreign::one_line(key, 80);
        let value = value_text(value);
        writeln!(out, "  {}{key:<width$}{}  {value}", NAME.render(), NAME.render_reset())?;
    }
    Ok(())
}

fn value_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => foreign::one_line(text, VALUE_WIDTH),
        serde_json::Value::Object(shortened) if shortened.contains_key("array_of") => {
            let first = shortened.get("first").map(value_text).unwrap_or_default();
            let (kind, length) = (&shortened["array_of"], &shortened["length"]);
            let first = first.trim_end_matches(']').to_owned();
            format!(
                "{first}, …] {}{length} × {}{}",
                FAINT.render(),
                kind.as_str().unwrap_or(""),
                FAINT.render_reset()
            )
        }
        serde_json::Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|i| foreign::one_line(&i.to_string(), 24)).collect();
            format!("[{}]", items.join(", "))
        }
        other => foreign::one_line(&other.to_string(), VALUE_WIDTH),
    }
}

fn plain(title: &'static str) -> Column {
    Column { title, right: false, style: anstyle::Style::new() }
}

fn right(title: &'static str) -> Column {
    Column { title, right: true, style: anstyle::Style::new() }
}

fn tensors(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let columns =
        [Column { title: "name", right: false, style: NAME }, plain("type"), right("shape"), right("size")];
    let rows: Vec<Vec<String>> = summary
        .tensors
        .iter()
        .map(|tensor| {
            let dims: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let shape = if dims.is_empty() { "scalar".to_owned() } else { dims.join(" × ") };
            vec![
                foreign::one_line(&tensor.name, 100),
                tensor.dtype.to_owned(),
                shape,
                text::bytes(tensor.bytes),
            ]
        })
        .collect();
    text::table(out, &columns, &rows)
}

fn types(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let columns = [plain("type"), right("tensors"), right("elements"), right("size"), right("share")];
    let rows: Vec<Vec<String>> = summary
        .types
        .iter()
        .map(|share| {
            let percent = 100.0 * share.bytes as f64 / summary.bytes.max(1) as f64;
            vec![
                share.dtype.to_owned(),
                share.tensors.to_string(),
                text::count(share.elements),
                text::bytes(share.bytes),
                format!("{percent:.1} %"),
            ]
        })
        .collect();
    text::table(out, &columns, &rows)
}
