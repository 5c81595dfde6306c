//! The `tojson` filter: Python's `json.dumps` with `ensure_ascii` off unless asked for.

use std::sync::Arc;

use super::budget::Budget;
use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::python;
use super::value::{Value, compare, sort};

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: Arc<str>,
    key_separator: Arc<str>,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)`.
pub(crate) fn filter(value: &Value, args: CallArgs, budget: &mut Budget) -> Outcome<String> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(value) => {
            let Some(width) = value.as_int() else {
                return Err(Fault::failed("tojson: indent must be a number or a string"));
            };
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            budget.work(width)?;
            budget.check_output(width)?;
            Some(" ".repeat(width))
        }
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(value) => match &value.items(budget)?[..] {
            [Value::Str(item), Value::Str(key)] => Some((item.clone(), key.clone())),
            _ => return Err(Fault::failed("tojson: separators must be two strings")),
        },
    };
    let (item_separator, key_separator) =
        separators.unwrap_or_else(|| (if indent.is_some() { ",".into() } else { ", ".into() }, ": ".into()));
    let style = Style {
        ensure_ascii: ensure_ascii.is_some_and(|value| value.truthy()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|value| value.truthy()),
    };
    let mut out = String::new();
    write(value, &style, 0, &mut out, budget)?;
    Ok(out)
}

fn write(value: &Value, style: &Style, level: usize, out: &mut String, budget: &mut Budget) -> Outcome<()> {
    budget.step()?;
    budget.check_output(out.len())?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Int(int) => out.push_str(&int.to_string()),
        Value::Float(float) => out.push_str(&number(*float)),
        Value::Str(text) => {
            budget.work(text.len() * 2)?;
            quote(text, style.ensure_ascii, out);
        }
        Value::List(seq) | Value::Tuple(seq) => {
            if seq.items.is_empty() {
                out.push_str("[]");
                return Ok(());
            }
            out.push('[');
            for (i, item) in seq.items.iter().enumerate() {
                separate(i, style, level + 1, out, budget)?;
                write(item, style, level + 1, out, budget)?;
            }
            newline(style, level, out, budget)?;
            out.push(']');
        }
        Value::Dict(dict) => {
            if dict.len() == 0 {
                out.push_str("{}");
                return Ok(());
            }
            let mut entries: Vec<(&Value, &Value)> = dict.iter().collect();
            if style.sort_keys {
                let less = &mut |a: &(&Value, &Value), b: &(&Value, &Value)| {
                    Ok(compare(a.0, b.0, "<", budget)?.is_some_and(|order| order.is_lt()))
                };
                entries = sort(entries, less)?;
            }
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                separate(i, style, level + 1, out, budget)?;
                let key: Arc<str> = match key {
                    Value::Str(text) => text.clone(),
                    Value::None => "null".into(),
                    Value::Bool(value) => if *value { "true" } else { "false" }.into(),
                    Value::Int(int) => int.to_string().into(),
                    Value::Float(float) => number(*float).into(),
                    other => {
                        return Err(Fault::failed(format!("tojson: keys cannot be '{}'", other.type_name())));
                    }
                };
                budget.work(key.len() * 2)?;
                quote(&key, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                write(item, style, level + 1, out, budget)?;
            }
            newline(style, level, out, budget)?;
            out.push('}');
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

fn separate(i: usize, style: &Style, level: usize, out: &mut String, budget: &mut Budget) -> Outcome<()> {
    if i > 0 {
        budget.work(style.item_separator.len())?;
        out.push_str(&style.item_separator);
    }
    newline(style, level, out, budget)
}

fn newline(style: &Style, level: usize, out: &mut String, budget: &mut Budget) -> Outcome<()> {
    let Some(indent) = &style.indent else { return Ok(()) };
    budget.work(indent.len().saturating_mul(level))?;
    out.push('\n');
    for _ in 0..level {
        out.push_str(indent);
    }
    Ok(())
}

fn quote(text: &str, ensure_ascii: bool, out: &mut String) {
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
}
