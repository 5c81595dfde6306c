//! Filters: the table, and those that return text. Filters on sequences are in [`super::sequences`].

use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::format;
use super::interp::Interp;
use super::json;
use super::ops;
use super::python::{self, is_space};
use super::sequences;
use super::text::{Text, Writer};
use super::value::Value;
use super::{methods, string_methods};

/// The filters of this file.
const NAMES: &[&str] = &[
    "abs",
    "attr",
    "capitalize",
    "center",
    "d",
    "default",
    "e",
    "escape",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "lower",
    "replace",
    "round",
    "safe",
    "string",
    "title",
    "tojson",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "wordcount",
];

/// Whether there is a filter of that name.
pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name) || sequences::NAMES.contains(&name)
}

/// `value | name(args)`.
pub(crate) fn apply(interp: &mut Interp<'_>, name: &str, value: Value, args: CallArgs) -> Outcome<Value> {
    interp.budget.step()?;
    if sequences::NAMES.contains(&name) {
        return sequences::apply(interp, name, &value, args);
    }
    match name {
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            let replace = value.is_undefined() || boolean.is_some_and(|b| b.truthy()) && !value.truthy();
            Ok(if replace { default.unwrap_or_else(|| Value::literal("")) } else { value })
        }
        "tojson" => Ok(json::filter(&value, args, &mut interp.budget)?.into()),
        "attr" => {
            let [attribute] = args.bind(name, ["name"])?;
            let Some(Value::Str(attribute)) = attribute else {
                return Err(Fault::failed("attr needs a name"));
            };
            // Unlike `.`, this filter uses attributes only, not items.
            match &value {
                Value::Dict(_) if methods::find(&value, &attribute).is_none() => {
                    Ok(Value::undefined(format!("'dict object' has no attribute '{attribute}'")))
                }
                _ => interp.attribute(&value, &attribute),
            }
        }
        "abs" => {
            args.none(name)?;
            value.defined()?;
            match (&value, value.as_int()) {
                (Value::Float(float), _) => Ok(Value::Float(float.abs())),
                (_, Some(int)) => int.checked_abs().map(Value::Int).ok_or_else(ops::overflow),
                _ => Err(Fault::failed(format!("bad operand type for abs(): '{}'", value.type_name()))),
            }
        }
        "int" => int(interp, &value, args),
        "float" => {
            value.defined()?;
            let [default] = args.bind(name, ["default"])?;
            value_float(&value)
                .map_or_else(|| Ok(default.unwrap_or(Value::Float(0.0))), |float| Ok(Value::Float(float)))
        }
        "round" => round(&value, args),
        "format" => {
            let Value::Str(pattern) = &value else { return Err(Fault::failed("format needs a string")) };
            if !args.named.is_empty() {
                if !args.positional.is_empty() {
                    return Err(Fault::failed("format takes positional or named arguments, not both"));
                }
                let entries = args.named.into_iter().map(|(name, value)| (Value::Str(name), value));
                let values = Value::Dict(std::rc::Rc::new(super::dict::Dict::new(entries)?));
                return format::percent(interp, pattern, &values);
            }
            let values = Value::tuple(args.positional)?;
            format::percent(interp, pattern, &values)
        }
        "truncate" => truncate(interp, value, args),
        "urlencode" => {
            args.none(name)?;
            urlencode(interp, &value)
        }
        _ if NAMES.contains(&name) => text(interp, name, &value, args),
        _ => Err(Fault::failed(format!("there is no filter named '{name}'"))),
    }
}

/// Filters that convert their subject to text first.
fn text(interp: &mut Interp<'_>, name: &str, value: &Value, args: CallArgs) -> Outcome<Value> {
    let text = interp.text(value)?;
    interp.budget.work(text.weight())?;
    match name {
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let set = match chars {
                None | Some(Value::None) => None,
                Some(Value::Str(set)) => Some(set),
                Some(_) => return Err(Fault::failed("trim needs a string or None")),
            };
            let trimmed = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
            Ok(text.part(text.trim_matches(trimmed)).into())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Fault::failed("replace needs two strings"));
            };
            let (Value::Str(old), Value::Str(new)) = (&old, &new) else {
                return Err(Fault::failed("replace needs two strings"));
            };
            let count = match count {
                None | Some(Value::None) => -1,
                Some(count) => count.as_int().ok_or_else(|| Fault::failed("count must be an integer"))?,
            };
            Ok(string_methods::replace_text(interp, &text, old, new, usize::try_from(count).ok())?.into())
        }
        "indent" => {
            if !matches!(value.defined()?, Value::Str(_)) {
                return Err(Fault::failed(format!("indent needs a string, not '{}'", value.type_name())));
            }
            indent(interp, &text, args)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let args = CallArgs { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            methods::call(interp, &Value::Str(text), "center", args)
        }
        _ => {
            args.none(name)?;
            Ok(match name {
                "upper" => text.rewritten(text.to_uppercase()).into(),
                "lower" => text.rewritten(text.to_lowercase()).into(),
                "capitalize" => text.rewritten(python::capitalize(&text)).into(),
                "title" => text.rewritten(title(&text)).into(),
                "escape" | "e" | "forceescape" => text.rewritten(escape(&text)).into(),
                "wordcount" => words(&text).into(),
                // `string` and `safe`: there is no escaping, so there is nothing to mark as safe.
                _ => Value::Str(text),
            })
        }
    }
}

fn int(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    value.defined()?;
    let [default, base] = args.bind("int", ["default", "base"])?;
    let default = default.unwrap_or(Value::Int(0));
    let base = base.map_or(Some(10), |base| base.as_int()).and_then(|base| u32::try_from(base).ok());
    let found = match value {
        Value::Str(text) => {
            interp.budget.work(text.len())?;
            let digits = text.trim_matches(is_space).replace('_', "").to_lowercase();
            let bare = match base {
                Some(16) => digits.trim_start_matches("0x"),
                Some(8) => digits.trim_start_matches("0o"),
                Some(2) => digits.trim_start_matches("0b"),
                _ => &digits,
            };
            let parsed = base
                .filter(|base| (2..=36).contains(base))
                .and_then(|base| i128::from_str_radix(bare, base).ok());
            parsed.or_else(|| value_float(value).and_then(|float| format::truncate(float).ok()))
        }
        Value::Float(float) => format::truncate(*float).ok(),
        other => other.as_int(),
    };
    Ok(found.map_or(default, Value::Int))
}

/// Python's `float(value)`.
fn value_float(value: &Value) -> Option<f64> {
    let Value::Str(text) = value else { return value.as_float() };
    let text = text.trim_matches(is_space).replace('_', "");
    text.parse().ok()
}

fn round(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Some(0), |precision| precision.as_int());
    let precision =
        precision.ok_or_else(|| Fault::failed("precision must be an integer"))?.clamp(-400, 400) as i32;
    value.defined()?;
    let number =
        value.as_float().ok_or_else(|| Fault::failed(format!("cannot round a '{}'", value.type_name())))?;
    let factor = 10f64.powi(precision);
    let method = method.as_ref().map_or(Some("common"), Value::as_str);
    let rounded = match method {
        Some("ceil") => (number * factor).ceil() / factor,
        Some("floor") => (number * factor).floor() / factor,
        Some("common") => {
            if let Some(int) = value.as_int().filter(|_| precision >= 0) {
                return Ok(Value::Int(int));
            }
            // Printing rounds decimal digits exactly, ties to even.
            match usize::try_from(precision) {
                Ok(places) => format!("{number:.places$}").parse().unwrap_or(number),
                Err(_) => (number * factor).round_ties_even() / factor,
            }
        }
        _ => return Err(Fault::failed("method must be common, ceil or floor")),
    };
    Ok(match value.as_int().filter(|_| method == Some("common")) {
        Some(_) => Value::Int(format::truncate(rounded)?),
        None => Value::Float(rounded),
    })
}

fn indent(interp: &mut Interp<'_>, text: &Text, args: CallArgs) -> Outcome<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let margin = match width {
        None => Text::literal("    "),
        Some(Value::Str(margin)) => margin,
        Some(width) => {
            let width = width.as_int().ok_or_else(|| Fault::failed("width must be a number or a string"))?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            interp.budget.work(width)?;
            interp.budget.check_output(width)?;
            Text::literal(" ".repeat(width))
        }
    };
    let is_set = |flag: Option<Value>| flag.is_some_and(|flag| flag.truthy());
    let (first, blank) = (is_set(first), is_set(blank));
    // A trailing newline gives an empty last line.
    let mut padded = Writer::default();
    padded.push(text);
    padded.literal("\n");
    let padded = padded.finish();
    let mut out = Writer::default();
    for (i, line) in python::split_lines(&padded, false).into_iter().enumerate() {
        if i > 0 {
            out.literal("\n");
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            interp.budget.work(margin.weight())?;
            interp.budget.check_output(out.len() + margin.len())?;
            out.push(&margin);
        }
        out.push(&padded.part(line));
    }
    Ok(out.finish().into())
}

fn truncate(interp: &mut Interp<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [length, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, default: i128| {
        let value = value.filter(|value| !matches!(value, Value::None));
        let number = value.map_or(Some(default), |value| value.as_int());
        number
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| Fault::failed("truncate needs numbers"))
    };
    let length = number(length, 255)?;
    let leeway = number(leeway, 5)?;
    let end = match end {
        Some(end) => interp.text(&end)?,
        None => Text::literal("..."),
    };
    let tail = end.chars().count();
    if length < tail {
        return Err(Fault::failed(format!("truncate: the length must be at least {tail}")));
    }
    interp.budget.work(value.as_str().map_or(0, str::len) * 4)?;
    if value.len()? <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let Value::Str(text) = &value else {
        return Err(Fault::failed(format!("cannot truncate a '{}'", value.type_name())));
    };
    let kept = text.char_indices().nth(length - tail).map_or(text.len(), |(at, _)| at);
    let mut head = &text[..kept];
    if !killwords.is_some_and(|kill| kill.truthy())
        && let Some(at) = head.rfind(' ')
    {
        head = &head[..at];
    }
    let mut out = Writer::default();
    out.push(&text.part(head));
    out.push(&end);
    Ok(out.finish().into())
}

/// Jinja's `title` filter: a word starts after white space, a dash or an opening bracket only.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        if starts {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        starts = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// A string is quoted as a URL path, pairs are joined to a query.
fn urlencode(interp: &mut Interp<'_>, value: &Value) -> Outcome<Value> {
    if matches!(value, Value::Str(_)) || !value.is_iterable() {
        let text = interp.text(value)?;
        interp.budget.work(text.len() * 3)?;
        return Ok(text.rewritten(url_quote(&text, false)).into());
    }
    let pairs = match value {
        Value::Dict(dict) => methods::pairs(dict)?,
        other => other.items(&mut interp.budget)?,
    };
    let mut query = Writer::default();
    for (i, pair) in pairs.iter().enumerate() {
        let pair = pair.items(&mut interp.budget)?;
        let [key, value] = &pair[..] else { return Err(Fault::failed("urlencode needs pairs")) };
        let (key, value) = (interp.text(key)?, interp.text(value)?);
        interp.budget.work((key.len() + value.len()) * 3)?;
        interp.budget.check_output(query.len())?;
        query.literal(if i > 0 { "&" } else { "" });
        query.push_as(&url_quote(&key, true), key.overall());
        query.literal("=");
        query.push_as(&url_quote(&value, true), value.overall());
    }
    Ok(query.finish().into())
}

fn url_quote(text: &str, in_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn words(text: &str) -> usize {
    text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty()).count()
}
