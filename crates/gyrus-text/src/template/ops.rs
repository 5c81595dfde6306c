//! Python's operators, indexing and slicing.

use super::ast::Binary;
use super::budget::Budget;
use super::error::{Fault, Outcome};
use super::format;
use super::interp::Interp;
use super::text::Writer;
use super::value::{Value, equal};

/// Integers are 128 bits wide; Python's are unbounded.
pub(crate) fn overflow() -> Fault {
    Fault::failed("integer overflow")
}

pub(crate) fn binary(interp: &mut Interp<'_>, op: Binary, left: &Value, right: &Value) -> Outcome<Value> {
    if op == Binary::Remainder
        && let Value::Str(pattern) = left
    {
        return format::percent(interp, pattern, right);
    }
    left.defined()?;
    right.defined()?;
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return integers(op, a, b);
    }
    if let (Some(a), Some(b)) = (left.as_float(), right.as_float()) {
        return floats(op, a, b);
    }
    let budget = &mut interp.budget;
    match (op, left, right) {
        (Binary::Add, Value::Str(a), Value::Str(b)) => {
            budget.work(a.weight() + b.weight())?;
            budget.check_output(a.len() + b.len())?;
            let mut joined = Writer::default();
            joined.push(a);
            joined.push(b);
            Ok(joined.finish().into())
        }
        (Binary::Add, Value::List(a), Value::List(b)) => {
            budget.items(a.items.len() + b.items.len())?;
            Value::list([&a.items[..], &b.items[..]].concat())
        }
        (Binary::Add, Value::Tuple(a), Value::Tuple(b)) => {
            budget.items(a.items.len() + b.items.len())?;
            Value::tuple([&a.items[..], &b.items[..]].concat())
        }
        (Binary::Multiply, repeated, times) | (Binary::Multiply, times, repeated)
            if times.as_int().is_some() && !matches!(repeated, Value::Dict(_) | Value::None) =>
        {
            repeat(repeated, times.as_int().unwrap_or(0), budget)
        }
        _ => Err(Fault::failed(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            symbol(op),
            left.type_name(),
            right.type_name()
        ))),
    }
}

fn symbol(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Remainder => "%",
        Binary::Power => "**",
    }
}

fn repeat(value: &Value, times: i128, budget: &mut Budget) -> Outcome<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Str(text) => {
            budget.work(text.weight().saturating_mul(times))?;
            budget.check_output(text.len().saturating_mul(times))?;
            Ok(text.repeat(times).into())
        }
        Value::List(seq) | Value::Tuple(seq) => {
            budget.items(seq.items.len().saturating_mul(times))?;
            let times = if seq.items.is_empty() { 0 } else { times };
            let items = std::iter::repeat_n(&seq.items, times).flatten().cloned().collect();
            if matches!(value, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        other => Err(Fault::failed(format!("'{}' cannot be repeated", other.type_name()))),
    }
}

fn integers(op: Binary, a: i128, b: i128) -> Outcome<Value> {
    let zero = || Fault::failed("division by zero");
    let result = match op {
        Binary::Add => a.checked_add(b),
        Binary::Subtract => a.checked_sub(b),
        Binary::Multiply => a.checked_mul(b),
        Binary::Divide if b == 0 => return Err(zero()),
        Binary::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Binary::FloorDivide | Binary::Remainder if b == 0 => return Err(zero()),
        Binary::FloorDivide => {
            a.checked_div(b).map(|q| if a % b != 0 && ((a % b < 0) != (b < 0)) { q - 1 } else { q })
        }
        Binary::Remainder => a.checked_rem(b).map(|r| if r != 0 && ((r < 0) != (b < 0)) { r + b } else { r }),
        Binary::Power if b < 0 => return floats(op, a as f64, b as f64),
        Binary::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)).or(match a {
            0 | 1 => Some(a),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => None,
        }),
    };
    result.map(Value::Int).ok_or_else(overflow)
}

fn floats(op: Binary, a: f64, b: f64) -> Outcome<Value> {
    let divides = matches!(op, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
    if b == 0.0 && divides || a == 0.0 && b < 0.0 && op == Binary::Power {
        return Err(Fault::failed("division by zero"));
    }
    let remainder = || {
        let r = a % b;
        if r == 0.0 {
            0.0f64.copysign(b)
        } else if (r < 0.0) != (b < 0.0) {
            r + b
        } else {
            r
        }
    };
    Ok(Value::Float(match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::FloorDivide => {
            let quotient = (a - remainder()) / b;
            let floored = quotient.floor();
            if quotient == 0.0 {
                0.0f64.copysign(a / b)
            } else if quotient - floored > 0.5 {
                floored + 1.0
            } else {
                floored
            }
        }
        Binary::Remainder => remainder(),
        Binary::Power if a < 0.0 && b.fract() != 0.0 => {
            return Err(Fault::failed("complex numbers are not supported"));
        }
        Binary::Power => {
            let result = a.powf(b);
            if result.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Fault::failed("numerical result out of range"));
            }
            result
        }
    }))
}

/// Python's `item in container`.
pub(crate) fn contains(container: &Value, item: &Value, budget: &mut Budget) -> Outcome<bool> {
    match container {
        Value::Str(text) => {
            let Value::Str(wanted) = item else {
                return Err(Fault::failed(format!(
                    "'in <string>' requires string as left operand, not {}",
                    item.type_name()
                )));
            };
            budget.work(text.len())?;
            Ok(text.contains(&**wanted))
        }
        Value::Dict(dict) => {
            budget.work(item.as_str().map_or(0, str::len))?;
            Ok(dict.get(item)?.is_some())
        }
        Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => {
            for other in &seq.items {
                if equal(other, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => {
            for other in other.items(budget)? {
                if equal(&other, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// `sequence[index]`, where negative indices count from the end.
pub(crate) fn index(subject: &Value, index: i128, budget: &mut Budget) -> Outcome<Option<Value>> {
    let at = |length: usize| -> Option<usize> {
        let index = if index < 0 { index.checked_add(length as i128)? } else { index };
        usize::try_from(index).ok().filter(|&index| index < length)
    };
    Ok(match subject {
        Value::Str(text) => {
            budget.work(text.len())?;
            let found = at(text.chars().count()).and_then(|at| text.char_indices().nth(at));
            found.map(|(at, c)| text.slice(at..at + c.len_utf8()).into())
        }
        Value::List(seq) | Value::Tuple(seq) => at(seq.items.len()).map(|at| seq.items[at].clone()),
        Value::Range(range) => at(range.len()).map(|at| range.get(at)),
        _ => None,
    })
}

/// `sequence[start:stop:step]` with Python's clamping.
pub(crate) fn slice(subject: &Value, bounds: [Option<i128>; 3], budget: &mut Budget) -> Outcome<Value> {
    subject.defined()?;
    match subject {
        Value::Str(text) => {
            budget.work(text.len() * 9 + text.weight())?;
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut positions = positions(ends.len() - 1, bounds)?;
            let mut picked = Writer::default();
            if matches!(bounds[2], None | Some(1)) {
                if let Some(first) = positions.next() {
                    picked.push_slice(text, ends[first]..ends[first + 1 + positions.len()]);
                }
            } else {
                positions.for_each(|i| picked.push_slice(text, ends[i]..ends[i + 1]));
            }
            Ok(picked.finish().into())
        }
        Value::List(seq) | Value::Tuple(seq) => {
            let positions = positions(seq.items.len(), bounds)?;
            budget.items(positions.len())?;
            let items = positions.map(|i| seq.items[i].clone()).collect();
            if matches!(subject, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        Value::Range(range) => {
            let positions = positions(range.len(), bounds)?;
            budget.items(positions.len())?;
            Value::list(positions.map(|i| range.get(i)).collect())
        }
        other => Err(Fault::failed(format!("'{}' object cannot be sliced", other.type_name()))),
    }
}

/// The indices that a slice selects from `length` items.
fn positions(
    length: usize,
    [start, stop, step]: [Option<i128>; 3],
) -> Outcome<impl ExactSizeIterator<Item = usize>> {
    let length = length as i128;
    let step = step.unwrap_or(1).clamp(-(1 << 62), 1 << 62);
    if step == 0 {
        return Err(Fault::failed("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |bound: i128| {
        let bound = if bound < 0 { bound.saturating_add(length) } else { bound };
        bound.clamp(lowest, highest)
    };
    let start = start.map_or(if step > 0 { lowest } else { highest }, clamp);
    let stop = stop.map_or(if step > 0 { highest } else { lowest }, clamp);
    let span = if step > 0 { stop - start } else { start - stop };
    let count = if span > 0 { (span - 1) / step.abs() + 1 } else { 0 };
    Ok((0..count as usize).map(move |i| (start + step * i as i128) as usize))
}
