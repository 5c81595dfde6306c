//! The `tojson` filter: Python's `json.dumps` with `ensure_ascii` off by default.

use super::budget::Budget;
use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::python;
use super::text::{Text, Writer};
use super::value::{Value, compare, sort};

struct Style {
    ensure_ascii: bool,
    indent: Option<Text>,
    item_separator: Text,
    key_separator: Text,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)`.
pub(crate) fn filter(value: &Value, args: CallArgs, budget: &mut Budget) -> Outcome<Text> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text),
        Some(value) => {
            let Some(width) = value.as_int() else {
                return Err(Fault::failed("tojson: indent must be a number or a string"));
            };
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            budget.work(width)?;
            budget.check_output(width)?;
            Some(Text::literal(" ".repeat(width)))
        }
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(value) => match &value.items(budget)?[..] {
            [Value::Str(item), Value::Str(key)] => Some((item.clone(), key.clone())),
            _ => return Err(Fault::failed("tojson: separators must be two strings")),
        },
    };
    let (item_separator, key_separator) = separators
        .unwrap_or_else(|| (Text::literal(if indent.is_some() { "," } else { ", " }), Text::literal(": ")));
    let style = Style {
        ensure_ascii: ensure_ascii.is_some_and(|value| value.truthy()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|value| value.truthy()),
    };
    let mut out = Writer::default();
    write(value, &style, 0, &mut out, budget)?;
    Ok(out.finish())
}

fn write(value: &Value, style: &Style, level: usize, out: &mut Writer, budget: &mut Budget) -> Outcome<()> {
    budget.step()?;
    budget.check_output(out.len())?;
    match value {
        Value::None => out.literal("null"),
        Value::Bool(true) => out.literal("true"),
        Value::Bool(false) => out.literal("false"),
        Value::Int(int) => out.literal(&int.to_string()),
        Value::Float(float) => out.literal(&number(*float)),
        Value::Str(text) => {
            budget.work(text.len() * 2)?;
            out.push_as(&quote(text, style.ensure_ascii), text.overall());
        }
        Value::List(seq) | Value::Tuple(seq) => {
            if seq.items.is_empty() {
                out.literal("[]");
                return Ok(());
            }
            out.literal("[");
            for (i, item) in seq.items.iter().enumerate() {
                separate(i, style, level + 1, out, budget)?;
                write(item, style, level + 1, out, budget)?;
            }
            newline(style, level, out, budget)?;
            out.literal("]");
        }
        Value::Dict(dict) => {
            if dict.len() == 0 {
                out.literal("{}");
                return Ok(());
            }
            let mut entries: Vec<(&Value, &Value)> = dict.iter().collect();
            if style.sort_keys {
                let less = &mut |a: &(&Value, &Value), b: &(&Value, &Value)| {
                    Ok(compare(a.0, b.0, "<", budget)?.is_some_and(|order| order.is_lt()))
                };
                entries = sort(entries, less)?;
            }
            out.literal("{");
            for (i, (key, item)) in entries.into_iter().enumerate() {
                separate(i, style, level + 1, out, budget)?;
                let key = match key {
                    Value::Str(text) => text.clone(),
                    Value::None => Text::literal("null"),
                    Value::Bool(value) => Text::literal(if *value { "true" } else { "false" }),
                    Value::Int(int) => Text::literal(int.to_string()),
                    Value::Float(float) => Text::literal(number(*float)),
                    other => {
                        return Err(Fault::failed(format!("tojson: keys cannot be '{}'", other.type_name())));
                    }
                };
                budget.work(key.len() * 2)?;
                out.push_as(&quote(&key, style.ensure_ascii), key.overall());
                out.push(&style.key_separator);
                write(item, style, level + 1, out, budget)?;
            }
            newline(style, level, out, budget)?;
            out.literal("}");
        }
        Value::Undefined(description) => {
            return Err(Fault::failed(format!("tojson: {description}")));
        }
        other => {
            let kind = other.type_name();
            return Err(Fault::failed(format!("tojson: a value of type '{kind}' is not JSON serializable")));
        }
    }
    Ok(())
}

fn number(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".into(),
        v if v.is_infinite() => if v < 0.0 { "-Infinity" } else { "Infinity" }.into(),
        v => python::float(v),
    }
}

fn separate(i: usize, style: &Style, level: usize, out: &mut Writer, budget: &mut Budget) -> Outcome<()> {
    if i > 0 {
        budget.work(style.item_separator.weight())?;
        out.push(&style.item_separator);
    }
    newline(style, level, out, budget)
}

fn newline(style: &Style, level: usize, out: &mut Writer, budget: &mut Budget) -> Outcome<()> {
    let Some(indent) = &style.indent else { return Ok(()) };
    budget.work(indent.weight().saturating_mul(level))?;
    out.literal("\n");
    for _ in 0..level {
        out.push(indent);
    }
    Ok(())
}

fn quote(text: &str, ensure_ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ensure_ascii && c > '~' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
