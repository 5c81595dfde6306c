//! The methods of Python's built-in types that templates may call.

use std::rc::Rc;

use super::call::CallArgs;
use super::error::{Fault, Outcome};
use super::interp::Interp;

use super::string_methods;
use super::value::{Seq, Value, equal};

pub(crate) enum Found {
    Method(&'static str),
    /// The method exists but mutates its object, which the sandbox forbids.
    Unsafe,
}

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "encode",
    "format_map",
    "isidentifier",
    "isprintable",
    "maketrans",
    "translate",
];
const DICT: &[&str] = &["get", "items", "keys", "values", "copy", "fromkeys"];
const DICT_UNSAFE: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST: &[&str] = &["count", "index", "copy"];
const LIST_UNSAFE: &[&str] = &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE: &[&str] = &["count", "index"];
const FLOAT: &[&str] = &["is_integer"];
const LOOP: &[&str] = &["cycle", "changed"];
const CYCLER: &[&str] = &["next", "reset"];

/// The method `name` of the value's type.
pub(crate) fn find(value: &Value, name: &str) -> Option<Found> {
    let (methods, forbidden): (&[&str], &[&str]) = match value {
        Value::Str(_) => (STR, &[]),
        Value::Dict(_) => (DICT, DICT_UNSAFE),
        Value::List(_) => (LIST, LIST_UNSAFE),
        Value::Tuple(_) | Value::Range(_) => (TUPLE, &[]),
        Value::Float(_) => (FLOAT, &[]),
        Value::Loop(_) => (LOOP, &[]),
        Value::Cycler(_) => (CYCLER, &[]),
        Value::Function("dict") => (&["fromkeys"], &[]),
        _ => return None,
    };
    if forbidden.contains(&name) {
        return Some(Found::Unsafe);
    }
    methods.iter().find(|known| **known == name).map(|known| Found::Method(known))
}

/// Calls the method `name`, which [`find`] found.
pub(crate) fn call(interp: &mut Interp<'_>, object: &Value, name: &str, args: CallArgs) -> Outcome<Value> {
    match object {
        Value::Str(text) => {
            interp.budget.work(text.weight())?;
            string_methods::call(interp, text, name, args)
        }
        Value::Dict(_) | Value::Function(_) => dict(interp, object, name, args),
        Value::List(_) | Value::Tuple(_) | Value::Range(_) => sequence(interp, object, name, args),
        Value::Float(value) => Ok(Value::Bool(value.fract() == 0.0)),
        Value::Loop(state) if name == "cycle" => {
            if args.positional.is_empty() {
                return Err(Fault::failed("loop.cycle needs at least one item"));
            }
            Ok(args.positional[state.index.get() % args.positional.len()].clone())
        }
        Value::Loop(state) => {
            let seen = interp.repr(&Value::tuple(args.positional)?)?.to_string();
            let last = state.last_changed.replace(Some(seen.clone()));
            Ok(Value::Bool(last.as_deref() != Some(&*seen)))
        }
        Value::Cycler(cycler) => {
            args.none(name)?;
            let at = cycler.at.get();
            let next = if name == "next" { (at + 1) % cycler.items.items.len().max(1) } else { 0 };
            cycler.at.set(next);
            Ok(if name == "next" { cycler.items.items[at].clone() } else { Value::None })
        }
        other => Err(Fault::failed(format!("'{}' has no method '{name}'", other.type_name()))),
    }
}

fn dict(interp: &mut Interp<'_>, object: &Value, name: &str, args: CallArgs) -> Outcome<Value> {
    if name == "fromkeys" {
        let [keys, value] = args.bind(name, ["iterable", "value"])?;
        let keys = keys.ok_or_else(|| Fault::failed("fromkeys needs keys"))?.items(&mut interp.budget)?;
        interp.budget.items(keys.len() * 4)?;
        let value = value.unwrap_or(Value::None);
        let entries = keys.into_iter().map(|key| (key, value.clone()));
        return Ok(Value::Dict(Rc::new(super::dict::Dict::new(entries)?)));
    }
    let Value::Dict(dict) = object else { return Err(Fault::failed("not a dictionary")) };
    if name == "get" {
        if !args.named.is_empty() {
            return Err(Fault::failed("dict.get takes no named arguments"));
        }
        let [key, default] = args.bind("dict.get", ["key", "default"])?;
        let key = key.ok_or_else(|| Fault::failed("dict.get needs a key"))?;
        interp.budget.work(key.as_str().map_or(0, str::len))?;
        return Ok(dict.get(&key)?.cloned().or(default).unwrap_or(Value::None));
    }
    args.none(name)?;
    interp.budget.items(dict.len() * 4)?;
    Ok(match name {
        "keys" => Value::View("dict_keys", Seq::new(dict.keys().cloned().collect())?),
        "values" => Value::View("dict_values", Seq::new(dict.iter().map(|(_, v)| v.clone()).collect())?),
        "items" => Value::View("dict_items", Seq::new(pairs(dict)?)?),
        _ => object.clone(),
    })
}

/// The entries of a dictionary as tuples.
pub(crate) fn pairs(dict: &super::dict::Dict) -> Outcome<Vec<Value>> {
    dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect()
}

fn sequence(interp: &mut Interp<'_>, object: &Value, name: &str, args: CallArgs) -> Outcome<Value> {
    let items = object.items(&mut interp.budget)?;
    if name == "copy" {
        args.none(name)?;
        return Ok(object.clone());
    }
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = wanted.ok_or_else(|| Fault::failed(format!("{name} needs a value")))?;
    let mut count = 0;
    for (at, item) in items.iter().enumerate() {
        if equal(item, &wanted, &mut interp.budget)? {
            if name == "index" {
                return Ok(at.into());
            }
            count += 1;
        }
    }
    if name == "index" {
        return Err(Fault::failed("the value is not in the list"));
    }
    Ok(Value::Int(count))
}
