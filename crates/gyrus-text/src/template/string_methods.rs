//! The methods of Python's `str`.

use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::format;
use super::interp::Interp;
use super::python::{self, is_space};
use super::text::{Text, Writer};
use super::value::Value;

/// Calls the method `name` of a string.
pub(super) fn call(interp: &mut Interp<'_>, text: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let verdict = |test: bool| Ok(Value::Bool(test));
    let rewritten = |new: String| Ok(text.rewritten(new).into());
    let all = |test: fn(char) -> bool| verdict(!text.is_empty() && text.chars().all(test));
    match name {
        "strip" | "lstrip" | "rstrip" => strip(text, name, args),
        "split" | "rsplit" => split(interp, text, name, args),
        "startswith" | "endswith" => affix(interp, text, name, args),
        "replace" => replace(interp, text, args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args),
        "center" | "ljust" | "rjust" | "zfill" => pad(interp, text, name, args),
        "format" => format::str_format(interp, text, args),
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let items =
                items.ok_or_else(|| Fault::failed("join needs an iterable"))?.items(&mut interp.budget)?;
            let mut joined = Writer::default();
            for (i, item) in items.iter().enumerate() {
                let Value::Str(item) = item else {
                    let kind = item.type_name();
                    return Err(Fault::failed(format!(
                        "sequence item {i}: expected str instance, {kind} found"
                    )));
                };
                interp.budget.work(text.weight() + item.weight())?;
                if i > 0 {
                    joined.push(text);
                }
                joined.push(item);
                interp.budget.check_output(joined.len())?;
            }
            Ok(joined.finish().into())
        }
        "removeprefix" | "removesuffix" => {
            let affix = one_string(name, args)?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(&*affix) } else { text.strip_suffix(&*affix) };
            Ok(text.part(rest.unwrap_or(text)).into())
        }
        "partition" | "rpartition" => {
            let separator = one_string(name, args)?;
            if separator.is_empty() {
                return Err(Fault::failed("empty separator"));
            }
            let found = if name == "partition" { text.find(&*separator) } else { text.rfind(&*separator) };
            let parts = match found {
                Some(at) => {
                    let end = at + separator.len();
                    [text.slice(0..at), separator, text.slice(end..text.len())]
                }
                None if name == "partition" => [text.clone(), Text::literal(""), Text::literal("")],
                None => [Text::literal(""), Text::literal(""), text.clone()],
            };
            Value::tuple(parts.map(Value::Str).into())
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let lines = python::split_lines(text, keep.is_some_and(|keep| keep.truthy()));
            interp.budget.items(lines.len() * 2)?;
            Value::list(lines.into_iter().map(|line| text.part(line).into()).collect())
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            let size = size
                .map_or(Some(8), |size| size.as_int())
                .ok_or_else(|| Fault::failed("tabsize must be an integer"))?;
            expand_tabs(interp, text, usize::try_from(size.max(0)).unwrap_or(usize::MAX))
        }
        _ => {
            args.none(name)?;
            match name {
                "lower" | "casefold" => rewritten(text.to_lowercase()),
                "upper" => rewritten(text.to_uppercase()),
                "title" => rewritten(python::title(text)),
                "capitalize" => rewritten(python::capitalize(text)),
                "swapcase" => rewritten(
                    text.chars()
                        .map(|c| {
                            if c.is_uppercase() {
                                c.to_lowercase().to_string()
                            } else {
                                c.to_uppercase().to_string()
                            }
                        })
                        .collect(),
                ),
                "isalpha" => all(char::is_alphabetic),
                "isalnum" => all(char::is_alphanumeric),
                "isdigit" | "isdecimal" => all(|c| c.is_ascii_digit() || is_decimal(c)),
                "isnumeric" => all(char::is_numeric),
                "isspace" => all(is_space),
                "isascii" => verdict(text.is_ascii()),
                "islower" => verdict(cased(text) && !text.chars().any(char::is_uppercase)),
                "isupper" => verdict(cased(text) && !text.chars().any(char::is_lowercase)),
                "istitle" => verdict(cased(text) && python::title(text) == **text),
                "isidentifier" => verdict(
                    !text.starts_with(|c: char| c.is_numeric())
                        && !text.is_empty()
                        && text.chars().all(|c| c == '_' || c.is_alphanumeric()),
                ),
                _ => Err(Fault::failed(format!("str.{name} is not supported"))),
            }
        }
    }
}

fn cased(text: &str) -> bool {
    text.chars().any(|c| c.is_lowercase() || c.is_uppercase())
}

/// Whether a character beyond ASCII is a decimal digit: they come in runs of ten that `is_numeric` accepts. Only the
/// common scripts are listed.
fn is_decimal(c: char) -> bool {
    matches!(c, '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{966}'..='\u{96f}' | '\u{ff10}'..='\u{ff19}')
}

fn one_string(name: &str, args: CallArgs) -> Outcome<Text> {
    let [value] = args.bind(name, ["value"])?;
    match value {
        Some(Value::Str(text)) => Ok(text),
        Some(other) => Err(Fault::failed(format!("{name} needs a string, not '{}'", other.type_name()))),
        None => Err(Fault::failed(format!("{name} needs a string"))),
    }
}

fn strip(text: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [chars] = args.bind(name, ["chars"])?;
    let set = match chars {
        None | Some(Value::None) => None,
        Some(Value::Str(set)) => Some(set),
        Some(other) => {
            return Err(Fault::failed(format!("{name} needs a string or None, not '{}'", other.type_name())));
        }
    };
    let stripped = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
    let kept = match name {
        "strip" => text.trim_matches(stripped),
        "lstrip" => text.trim_start_matches(stripped),
        _ => text.trim_end_matches(stripped),
    };
    Ok(text.part(kept).into())
}

fn split(interp: &mut Interp<'_>, text: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [separator, limit] = args.bind(name, ["sep", "maxsplit"])?;
    let limit = match limit {
        None => None,
        Some(value) => {
            let limit = value.as_int().ok_or_else(|| Fault::failed("maxsplit must be an integer"))?;
            usize::try_from(limit).ok()
        }
    };
    let limit = limit.unwrap_or(usize::MAX);
    let from_right = name == "rsplit";
    let parts: Vec<&str> = match &separator {
        None | Some(Value::None) => split_blanks(text, limit, from_right),
        Some(Value::Str(separator)) if separator.is_empty() => return Err(Fault::failed("empty separator")),
        Some(Value::Str(separator)) => {
            interp.budget.work(text.len())?;
            let count = limit.saturating_add(1);
            if from_right {
                let mut parts: Vec<&str> = text.rsplitn(count, &**separator).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(count, &**separator).collect()
            }
        }
        Some(other) => {
            return Err(Fault::failed(format!("{name} needs a string, not '{}'", other.type_name())));
        }
    };
    interp.budget.items(parts.len() * 2)?;
    Value::list(parts.into_iter().map(|part| text.part(part).into()).collect())
}

/// `split` without a separator: splits at runs of white space and ignores leading and trailing ones.
fn split_blanks(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
    if from_right {
        while !rest.is_empty() && parts.len() < limit {
            let Some((at, c)) = rest.char_indices().rev().find(|&(_, c)| is_space(c)) else { break };
            parts.push(&rest[at + c.len_utf8()..]);
            rest = rest[..at].trim_end_matches(is_space);
        }
        if !rest.is_empty() {
            parts.push(if parts.len() >= limit { text_before(text, rest) } else { rest });
        }
        parts.reverse();
        return parts;
    }
    while !rest.is_empty() && parts.len() < limit {
        let Some(at) = rest.find(is_space) else { break };
        parts.push(&rest[..at]);
        rest = rest[at..].trim_start_matches(is_space);
    }
    if !rest.is_empty() {
        // The rest after the limit keeps its trailing white space.
        let kept = if parts.len() >= limit {
            &text[text.trim_end_matches(is_space).len() - rest.len()..]
        } else {
            rest
        };
        parts.push(kept);
    }
    parts
}

/// The rest of `text` for an `rsplit` that reached its limit; it keeps its leading white space.
fn text_before<'s>(text: &'s str, rest: &'s str) -> &'s str {
    let lead = text.len() - text.trim_start_matches(is_space).len();
    &text[..lead + rest.len()]
}

fn affix(interp: &mut Interp<'_>, text: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [wanted, start, end] = args.bind(name, ["prefix", "start", "end"])?;
    let wanted = wanted.ok_or_else(|| Fault::failed(format!("{name} needs a string")))?;
    let bounds = [start, end].map(|bound| bound.and_then(|bound| bound.as_int()));
    let part;
    let text = if bounds == [None, None] {
        &**text
    } else {
        part = super::ops::slice(&text.clone().into(), [bounds[0], bounds[1], None], &mut interp.budget)?;
        part.as_str().unwrap_or_default()
    };
    let test = |wanted: &Value| match wanted {
        Value::Str(wanted) if name == "startswith" => Ok(text.starts_with(&**wanted)),
        Value::Str(wanted) => Ok(text.ends_with(&**wanted)),
        other => Err(Fault::failed(format!(
            "{name} first arg must be str or a tuple of str, not {}",
            other.type_name()
        ))),
    };
    if let Value::Tuple(choices) = &wanted {
        for choice in &choices.items {
            interp.budget.work(text.len().min(choice.as_str().map_or(0, str::len)))?;
            if test(choice)? {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    test(&wanted).map(Value::Bool)
}

fn replace(interp: &mut Interp<'_>, text: &Text, args: CallArgs) -> Outcome<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let (Some(Value::Str(old)), Some(Value::Str(new))) = (&old, &new) else {
        return Err(Fault::failed("replace needs two strings"));
    };
    let count = match count {
        None => -1,
        Some(count) => count.as_int().ok_or_else(|| Fault::failed("count must be an integer"))?,
    };
    replace_text(interp, text, old, new, usize::try_from(count).ok()).map(Value::from)
}

/// Replaces up to `count` occurrences; the budget is charged for the result first.
pub(crate) fn replace_text(
    interp: &mut Interp<'_>,
    text: &Text,
    old: &Text,
    new: &Text,
    count: Option<usize>,
) -> Outcome<Text> {
    let count = count.unwrap_or(usize::MAX);
    let found = text.matches(&**old).take(count).count();
    let length = (text.len() + found.saturating_mul(new.len())).saturating_sub(found * old.len());
    interp.budget.items(found)?;
    interp.budget.work((text.weight() + length).saturating_add(found.saturating_mul(new.weight())))?;
    interp.budget.check_output(length)?;
    let mut replaced = Writer::default();
    let mut at = 0;
    for (begin, old) in text.match_indices(&**old).take(count) {
        replaced.push_slice(text, at..begin);
        replaced.push(new);
        at = begin + old.len();
    }
    replaced.push_slice(text, at..text.len());
    Ok(replaced.finish())
}

fn search(text: &str, name: &str, args: CallArgs) -> Outcome<Value> {
    let wanted = one_string(name, args)?;
    if name == "count" {
        return Ok(text.matches(&*wanted).count().into());
    }
    let found = if name.starts_with('r') { text.rfind(&*wanted) } else { text.find(&*wanted) };
    match found {
        Some(at) => Ok(text[..at].chars().count().into()),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Fault::failed("substring not found")),
    }
}

fn pad(interp: &mut Interp<'_>, text: &Text, name: &str, args: CallArgs) -> Outcome<Value> {
    let [width, fill] = args.bind(name, ["width", "fillchar"])?;
    let width = width.and_then(|width| width.as_int());
    let width = width.ok_or_else(|| Fault::failed(format!("{name} needs an integer width")))?;
    let fill = match fill {
        _ if name == "zfill" => Text::literal("0"),
        None => Text::literal(" "),
        Some(Value::Str(fill)) if fill.chars().count() == 1 => fill,
        _ => return Err(Fault::failed("the fill character must be exactly one character long")),
    };
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let missing = width.saturating_sub(text.chars().count());
    interp.budget.work(missing.saturating_mul(4).saturating_add(text.weight()))?;
    interp.budget.check_output(missing)?;
    // `left` fill characters go after the sign (which only `zfill` separates), the others after the text.
    let (sign, left) = match name {
        "ljust" => (0, 0),
        "rjust" => (0, missing),
        "zfill" => {
            let unsigned = text.trim_start_matches(['+', '-']);
            (usize::from(text.len() - unsigned.len() == 1), missing)
        }
        // An odd number of fill characters has the extra one on the left if the width is odd, as in Python.
        _ => (0, missing / 2 + (missing & width & 1)),
    };
    let mut padded = Writer::default();
    padded.push_slice(text, 0..sign);
    padded.push(&fill.repeat(left));
    padded.push_slice(text, sign..text.len());
    padded.push(&fill.repeat(missing - left));
    Ok(padded.finish().into())
}

fn expand_tabs(interp: &mut Interp<'_>, text: &Text, size: usize) -> Outcome<Value> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        if c == '\t' {
            let blanks = if size == 0 { 0 } else { size - column % size };
            interp.budget.work(blanks)?;
            interp.budget.check_output(out.len().saturating_add(blanks))?;
            out.extend(std::iter::repeat_n(' ', blanks));
            column += blanks;
        } else {
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(text.rewritten(out).into())
}
