//! Tests, the operand of `is`.

use super::ast::{Binary, Comparison};
use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::filters;
use super::interp::Interp;
use super::ops;
use super::value::Value;

/// Whether `value is name(args)`.
pub(crate) fn check(interp: &mut Interp<'_>, name: &str, value: &Value, args: CallArgs) -> Outcome<bool> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(Comparison::Equal),
        "!=" | "ne" => Some(Comparison::NotEqual),
        "<" | "lt" | "lessthan" => Some(Comparison::Less),
        "<=" | "le" => Some(Comparison::LessOrEqual),
        ">" | "gt" | "greaterthan" => Some(Comparison::Greater),
        ">=" | "ge" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let other = one(name, args)?;
        return interp.holds(comparison, value, &other);
    }
    match name {
        "divisibleby" => {
            let other = one(name, args)?;
            let remainder = ops::binary(interp, Binary::Remainder, value, &other)?;
            interp.holds(Comparison::Equal, &remainder, &Value::Int(0))
        }
        "sameas" => Ok(same(value, &one(name, args)?)),
        _ => {
            args.none(name)?;
            plain(interp, name, value)
        }
    }
}

fn one(name: &str, args: CallArgs) -> Outcome<Value> {
    let [other] = args.bind(name, ["other"])?;
    other.ok_or_else(|| Fault::failed(format!("test '{name}' needs an argument")))
}

fn plain(interp: &mut Interp<'_>, name: &str, value: &Value) -> Outcome<bool> {
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" => value.is_iterable(),
        // Values with a length and an index operator, including undefined.
        "sequence" => matches!(
            value,
            Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
                | Value::Undefined(_)
        ),
        "callable" => matches!(
            value,
            Value::Macro(_)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Loop(_)
                | Value::Joiner(_)
                | Value::Undefined(_)
        ),
        "odd" | "even" => {
            let remainder = ops::binary(interp, Binary::Remainder, value, &Value::Int(2))?;
            let wanted = Value::Int(i128::from(name == "odd"));
            interp.holds(Comparison::Equal, &remainder, &wanted)?
        }
        "lower" | "upper" => {
            let text = interp.text(value)?;
            interp.budget.work(text.len())?;
            let unwanted = if name == "lower" { char::is_uppercase } else { char::is_lowercase };
            text.chars().any(|c| c.is_lowercase() || c.is_uppercase()) && !text.chars().any(unwanted)
        }
        "escaped" => false,
        "filter" => value.as_str().is_some_and(filters::exists),
        "test" => value.as_str().is_some_and(exists),
        _ => return Err(Fault::failed(format!("there is no test named '{name}'"))),
    })
}

const NAMES: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Python's `is`, for the values whose identity is certain.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => **a == **b,
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => false,
    }
}
