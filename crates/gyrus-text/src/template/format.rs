//! Python's two string formatting operations: the `%` operator and `str.format`.

use std::str::Chars;

use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::interp::Interp;
use super::python;
use super::text::{Origin, Text, Writer};
use super::value::Value;

/// The layout of one value, for both operations.
#[derive(Clone, Copy)]
struct Spec {
    fill: char,
    align: Option<char>,
    /// `+`, a space, or `-` for "only when negative".
    sign: char,
    alternate: bool,
    grouping: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
    /// The origin of the fill character.
    origin: Origin,
}

const PLAIN: Spec = Spec {
    fill: ' ',
    align: None,
    sign: '-',
    alternate: false,
    grouping: None,
    width: 0,
    precision: None,
    kind: None,
    origin: Origin::Template,
};

/// Larger precisions are rejected: no double has more digits.
const MAX_PRECISION: usize = 1100;

/// The next character, if it satisfies the test.
fn next_if(chars: &mut Chars<'_>, test: impl FnOnce(char) -> bool) -> Option<char> {
    let mut ahead = chars.clone();
    let next = ahead.next().filter(|&c| test(c))?;
    *chars = ahead;
    Some(next)
}

/// `pattern % values`.
pub(crate) fn percent(interp: &mut Interp<'_>, pattern: &Text, values: &Value) -> Outcome<Value> {
    let mut positional = match values {
        Value::Tuple(seq) => seq.items.clone(),
        other => vec![other.clone()],
    }
    .into_iter();
    let mut next =
        || positional.next().ok_or_else(|| Fault::failed("not enough arguments for format string"));
    let mut out = Writer::default();
    let mut rest = &**pattern;
    while let Some(at) = rest.find('%') {
        out.push(&pattern.part(&rest[..at]));
        let sign = &rest[at..=at];
        let mut chars = rest[at + 1..].chars();
        let mut spec = PLAIN;
        let mut key = None;
        if next_if(&mut chars, |c| c == '(').is_some() {
            let name: String = chars.by_ref().take_while(|&c| c != ')').collect();
            key = Some(name);
        }
        while let Some(flag) = next_if(&mut chars, |c| "-+ 0#".contains(c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' if spec.align.is_none() => (spec.fill, spec.align) = ('0', Some('=')),
                '#' => spec.alternate = true,
                '+' => spec.sign = '+',
                ' ' if spec.sign == '-' => spec.sign = ' ',
                _ => {}
            }
        }
        let mut number = |chars: &mut Chars<'_>| -> Outcome<Option<i128>> {
            if next_if(chars, |c| c == '*').is_some() {
                let value = next()?.as_int();
                return value.map(Some).ok_or_else(|| Fault::failed("* wants an integer"));
            }
            let mut value = None;
            while let Some(digit) = next_if(chars, |c| c.is_ascii_digit()) {
                let digit = i128::from(digit as u8 - b'0');
                value = Some((value.unwrap_or(0) * 10 + digit).min(i128::from(u32::MAX)));
            }
            Ok(value)
        };
        if let Some(width) = number(&mut chars)? {
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        if next_if(&mut chars, |c| c == '.').is_some() {
            spec.precision =
                Some(usize::try_from(number(&mut chars)?.unwrap_or(0).max(0)).unwrap_or(usize::MAX));
        }
        while next_if(&mut chars, |c| "hlL".contains(c)).is_some() {}
        let Some(kind) = chars.next() else { return Err(Fault::failed("incomplete format")) };
        rest = chars.as_str();
        if kind == '%' {
            out.push(&pattern.part(sign));
            continue;
        }
        let value = match (&key, values) {
            (Some(key), Value::Dict(dict)) => dict
                .get_str(key)
                .cloned()
                .ok_or_else(|| Fault::failed(format!("no key '{key}' to format")))?,
            (Some(_), _) => return Err(Fault::failed("format requires a mapping")),
            (None, _) => next()?,
        };
        let text = percent_value(interp, &value, kind, spec)?;
        out.push(&text);
        interp.budget.check_output(out.len())?;
    }
    out.push(&pattern.part(rest));
    interp.budget.work(out.len())?;
    // Any value with an index operator counts as a mapping. Not all of its items need be used.
    let is_mapping =
        matches!(values, Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_));
    if positional.next().is_some() && !is_mapping {
        return Err(Fault::failed("not all arguments converted during string formatting"));
    }
    Ok(out.finish().into())
}

fn percent_value(interp: &mut Interp<'_>, value: &Value, kind: char, mut spec: Spec) -> Outcome<Text> {
    spec.align = spec.align.or(Some('>'));
    match kind {
        's' | 'r' | 'a' => {
            let text = if kind == 's' { interp.text(value)? } else { interp.repr(value)? };
            if spec.align == Some('=') {
                (spec.align, spec.fill) = (Some('>'), ' ');
            }
            text_field(interp, &text, spec)
        }
        'c' => {
            let text = match value {
                Value::Str(text) if text.chars().count() == 1 => text.clone(),
                // A number has no origin, and characters can be spelt as numbers.
                _ => value
                    .as_int()
                    .and_then(|code| u32::try_from(code).ok())
                    .and_then(char::from_u32)
                    .map(|c| Text::new(c.to_string(), Origin::Data))
                    .ok_or_else(|| Fault::failed("%c requires an integer or a character"))?,
            };
            text_field(interp, &text, Spec { precision: None, ..spec })
        }
        'd' | 'i' | 'u' => {
            let value = match value {
                Value::Float(float) => truncate(*float)?,
                other => needs_number(kind, other)?,
            };
            number_field(interp, &Value::Int(value), Spec { kind: Some('d'), ..spec })
        }
        'x' | 'X' | 'o' => {
            let value = needs_number(kind, value)?;
            number_field(interp, &Value::Int(value), Spec { kind: Some(kind), ..spec })
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let Some(float) = value.as_float() else {
                return Err(Fault::failed(format!("%{kind} needs a number, not '{}'", value.type_name())));
            };
            number_field(interp, &Value::Float(float), Spec { kind: Some(kind), ..spec })
        }
        other => Err(Fault::failed(format!("unsupported format character '{other}'"))),
    }
}

fn needs_number(kind: char, value: &Value) -> Outcome<i128> {
    value.as_int().ok_or_else(|| {
        Fault::failed(format!("%{kind} format: a number is required, not {}", value.type_name()))
    })
}

/// Python's `int(float)`.
pub(crate) fn truncate(value: f64) -> Outcome<i128> {
    if !value.is_finite() || value.abs() >= 1e38 {
        return Err(Fault::failed(format!("cannot convert float {} to integer", python::float(value))));
    }
    Ok(value as i128)
}

/// `pattern.format(…)`.
pub(crate) fn str_format(interp: &mut Interp<'_>, pattern: &Text, args: CallArgs) -> Outcome<Value> {
    let mut auto = 0;
    let mut out = Writer::default();
    let mut rest = &**pattern;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&pattern.part(&rest[..at]));
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(&pattern.part(brace));
            rest = after;
            continue;
        }
        let Some(end) = rest.find('}').filter(|_| brace == "{") else {
            return Err(Fault::failed(format!("single '{brace}' in format string")));
        };
        let (field, spec) = rest[..end].split_once(':').unwrap_or((&rest[..end], ""));
        rest = &rest[end + 1..];
        if spec.contains('{') {
            return Err(Fault::failed("nested fields in a format specification are not supported"));
        }
        let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
        let mut value = field_value(interp, path, &args, &mut auto)?;
        match conversion {
            "" => {}
            "s" => value = Value::Str(interp.text(&value)?),
            "r" | "a" => value = Value::Str(interp.repr(&value)?),
            other => return Err(Fault::failed(format!("unknown conversion '{other}'"))),
        }
        let spec = Spec { origin: pattern.overall(), ..parse_spec(spec)? };
        let numeric = matches!(value, Value::Int(_) | Value::Float(_))
            || matches!(value, Value::Bool(_)) && spec.kind.is_some_and(|kind| kind != 's');
        let text = if numeric {
            number_field(interp, &value, Spec { align: spec.align.or(Some('>')), ..spec })?
        } else {
            if spec.kind.is_some_and(|kind| kind != 's') {
                let kind = value.type_name();
                return Err(Fault::failed(format!("this format specification cannot print a '{kind}'")));
            }
            let text = interp.text(&value)?;
            text_field(interp, &text, spec)?
        };
        out.push(&text);
        interp.budget.work(text.weight())?;
        interp.budget.check_output(out.len())?;
    }
    out.push(&pattern.part(rest));
    Ok(out.finish().into())
}

/// `0.name[key]`: an argument, then attributes and items of it.
fn field_value(interp: &mut Interp<'_>, path: &str, args: &CallArgs, auto: &mut usize) -> Outcome<Value> {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (first, mut rest) = path.split_at(end);
    let index = if first.is_empty() {
        *auto += 1;
        Some(*auto - 1)
    } else {
        first.parse().ok()
    };
    let found = match index {
        Some(index) => args.positional.get(index),
        None => args.named.iter().find(|(name, _)| &**name == first).map(|(_, value)| value),
    };
    let mut value =
        found.cloned().ok_or_else(|| Fault::failed(format!("no argument '{first}' to format")))?;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = interp.attribute(&value, &after[..end])?;
            rest = &after[end..];
        } else if let Some((key, after)) = rest[1..].split_once(']') {
            let key = key.parse().map(Value::Int).unwrap_or_else(|_| Value::literal(key));
            value = interp.item(&value, &key)?;
            rest = after;
        } else {
            return Err(Fault::failed("missing ']' in format string"));
        }
        value.defined()?;
    }
    Ok(value)
}

fn parse_spec(text: &str) -> Outcome<Spec> {
    let mut spec = PLAIN;
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let is_align = |c: Option<&char>| c.copied().filter(|c| "<>=^".contains(*c));
    if let Some(align) = is_align(chars.get(1)) {
        (spec.fill, spec.align) = (chars[0], Some(align));
        at = 2;
    } else if let Some(align) = is_align(chars.first()) {
        spec.align = Some(align);
        at = 1;
    }
    let mut take = |wanted: &str| {
        let found = chars.get(at).copied().filter(|c| wanted.contains(*c));
        at += usize::from(found.is_some());
        found
    };
    spec.sign = take("+- ").unwrap_or('-');
    spec.alternate = take("#").is_some();
    if take("0").is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    let number = |take: &mut dyn FnMut(&str) -> Option<char>| {
        let mut value = None;
        while let Some(digit) = take("0123456789") {
            value = Some((value.unwrap_or(0) * 10 + (digit as usize - 48)).min(1 << 40));
        }
        value
    };
    spec.width = number(&mut take).unwrap_or(0);
    spec.grouping = take(",_");
    if take(".").is_some() {
        let precision = number(&mut take);
        spec.precision = Some(precision.ok_or_else(|| Fault::failed("format specifier missing precision"))?);
    }
    spec.kind = take("sdxXobeEfFgG%c");
    if at != chars.len() {
        return Err(Fault::failed(format!("invalid format specifier '{text}'")));
    }
    Ok(spec)
}

fn text_field(interp: &mut Interp<'_>, text: &Text, spec: Spec) -> Outcome<Text> {
    interp.budget.work(text.weight())?;
    let shown = spec.precision.and_then(|precision| text.char_indices().nth(precision));
    let text = text.slice(0..shown.map_or(text.len(), |(at, _)| at));
    lay_out(interp, "", &text, Spec { align: spec.align.or(Some('<')), ..spec })
}

fn number_field(interp: &mut Interp<'_>, value: &Value, spec: Spec) -> Outcome<Text> {
    let precision = spec.precision;
    if precision.is_some_and(|precision| precision > MAX_PRECISION) {
        return Err(Fault::failed("the precision is too large"));
    }
    let (negative, mut digits) = match (spec.kind, value) {
        (None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'c'), value) if value.as_int().is_some() => {
            let int = value.as_int().unwrap_or(0);
            let magnitude = int.unsigned_abs();
            let mut digits = match spec.kind {
                Some('x') => format!("{}{magnitude:x}", if spec.alternate { "0x" } else { "" }),
                Some('X') => format!("{}{magnitude:X}", if spec.alternate { "0X" } else { "" }),
                Some('o') => format!("{}{magnitude:o}", if spec.alternate { "0o" } else { "" }),
                Some('b') => format!("{}{magnitude:b}", if spec.alternate { "0b" } else { "" }),
                _ => magnitude.to_string(),
            };
            if let Some(precision) = precision {
                digits = format!("{digits:0>precision$}");
            }
            (int < 0, digits)
        }
        (kind, value) => {
            let float = value.as_float().ok_or_else(|| Fault::failed("a number is required"))?;
            let magnitude = float.abs();
            let digits = match kind {
                _ if magnitude.is_nan() => "nan".into(),
                _ if magnitude.is_infinite() => "inf".into(),
                Some('f' | 'F') => format!("{magnitude:.*}", precision.unwrap_or(6)),
                Some('%') => format!("{:.*}%", precision.unwrap_or(6), magnitude * 100.0),
                Some('e' | 'E') => exponent(magnitude, precision.unwrap_or(6)),
                Some('g' | 'G') => general(magnitude, precision.unwrap_or(6)),
                None => match precision {
                    Some(precision) => general(magnitude, precision),
                    None => python::float(magnitude),
                },
                Some(other) => return Err(Fault::failed(format!("format '{other}' needs an integer"))),
            };
            (float.is_sign_negative() && !float.is_nan(), digits)
        }
    };
    if matches!(spec.kind, Some('E' | 'F' | 'G')) {
        digits = digits.to_uppercase();
    }
    if let Some(separator) = spec.grouping {
        digits = grouped(&digits, separator);
    }
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, '+') => "+",
        (false, ' ') => " ",
        _ => "",
    };
    lay_out(interp, sign, &Text::literal(digits), spec)
}

fn grouped(digits: &str, separator: char) -> String {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (i, digit) in digits[..end].chars().enumerate() {
        if i > 0 && (end - i) % 3 == 0 {
            out.push(separator);
        }
        out.push(digit);
    }
    out + &digits[end..]
}

fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let scientific = format!("{value:.*e}", precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            text.into()
        }
    };
    if power < -4 || power >= precision as i32 {
        let text = exponent(value, precision - 1);
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{power}", trim(mantissa));
    }
    let decimals = usize::try_from(precision as i32 - 1 - power).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}

fn lay_out(interp: &mut Interp<'_>, sign: &str, body: &Text, spec: Spec) -> Outcome<Text> {
    let missing = spec.width.saturating_sub(sign.len() + body.chars().count());
    interp.budget.work(missing.saturating_mul(4))?;
    interp.budget.check_output(missing)?;
    // The fill before the sign, between the sign and the digits, and after them.
    let fills = match spec.align {
        Some('=') => [0, missing, 0],
        Some('>') => [missing, 0, 0],
        Some('^') => [missing / 2, 0, missing - missing / 2],
        _ => [0, 0, missing],
    };
    let [before, inside, after] = fills.map(|count| spec.fill.to_string().repeat(count));
    let mut out = Writer::default();
    out.push_as(&before, spec.origin);
    out.literal(sign);
    out.push_as(&inside, spec.origin);
    out.push(body);
    out.push_as(&after, spec.origin);
    Ok(out.finish())
}
