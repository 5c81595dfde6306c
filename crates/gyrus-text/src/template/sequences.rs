//! Filters on sequences and dictionaries.

use super::call::CallArgs;
use super::checks;
use super::error::{Fault, Outcome};
use super::filters;
use super::interp::Interp;
use super::methods::pairs;
use super::ops;
use super::text::{Text, Writer};
use super::value::{Value, compare, equal, sort};

/// The filters of this file.
pub(crate) const NAMES: &[&str] = &[
    "batch",
    "count",
    "dictsort",
    "first",
    "groupby",
    "items",
    "join",
    "last",
    "length",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
];

/// `value | name(args)` for a name of [`NAMES`].
pub(crate) fn apply(interp: &mut Interp<'_>, name: &str, value: &Value, args: CallArgs) -> Outcome<Value> {
    match name {
        "length" | "count" => args.none(name).and_then(|()| {
            interp.budget.work(value.as_str().map_or(0, str::len))?;
            value.len().map(Value::from)
        }),
        "first" => args.none(name).and_then(|()| first(interp, value)),
        "last" => args.none(name).and_then(|()| {
            if matches!(value, Value::Generator(_)) {
                return Err(Fault::failed("'generator' object is not reversible"));
            }
            let items = value.items(&mut interp.budget)?;
            Ok(items
                .into_iter()
                .next_back()
                .unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
        }),
        "list" => args.none(name).and_then(|()| Value::list(value.items(&mut interp.budget)?)),
        "items" => args.none(name).and_then(|()| items(interp, value)),
        "join" => join(interp, value, args),
        "reverse" => args.none(name).and_then(|()| reverse(interp, value)),
        "sort" => sorted(interp, value, args),
        "dictsort" => dictsort(interp, value, args),
        "unique" => unique(interp, value, args),
        "min" | "max" => extreme(interp, name == "min", value, args),
        "sum" => sum(interp, value, args),
        "map" => map(interp, value, args),
        "select" | "reject" => select(interp, value, args, name == "select", false),
        "selectattr" | "rejectattr" => select(interp, value, args, name == "selectattr", true),
        "groupby" => groupby(interp, value, args),
        "batch" => batch(interp, value, args),
        "slice" => slice(interp, value, args),
        _ => Err(Fault::failed(format!("there is no filter named '{name}'"))),
    }
}

fn first(interp: &mut Interp<'_>, value: &Value) -> Outcome<Value> {
    let first = match value {
        Value::Generator(generator) => generator.next()?,
        Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => seq.items.first().cloned(),
        other => other.items(&mut interp.budget)?.into_iter().next(),
    };
    Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
}

fn items(interp: &mut Interp<'_>, value: &Value) -> Outcome<Value> {
    match value {
        Value::Undefined(_) => Value::generator(|_| Ok(())),
        Value::Dict(dict) => {
            interp.budget.items(dict.len() * 4)?;
            let pairs = pairs(dict)?;
            Value::generator(|out| {
                *out = pairs;
                Ok(())
            })
        }
        _ => Value::generator(|_| Err(Fault::failed("Can only get item pairs from a mapping."))),
    }
}

fn join(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => interp.text(&separator)?,
        None => Text::literal(""),
    };
    let mut joined = Writer::default();
    for (i, item) in value.items(&mut interp.budget)?.iter().enumerate() {
        let item = match &attribute {
            Some(path) if !matches!(path, Value::None) => lookup(interp, item, path)?,
            _ => item.clone(),
        };
        let text = interp.text(&item)?;
        interp.budget.work(separator.weight() + text.weight())?;
        if i > 0 {
            joined.push(&separator);
        }
        joined.push(&text);
        interp.budget.check_output(joined.len())?;
    }
    Ok(joined.finish().into())
}

fn reverse(interp: &mut Interp<'_>, value: &Value) -> Outcome<Value> {
    if let Value::Str(text) = value {
        interp.budget.work(text.len())?;
        return Ok(text.rewritten(text.chars().rev().collect::<String>()).into());
    }
    let mut items = value.items(&mut interp.budget)?;
    items.reverse();
    // A generator cannot be iterated backwards, so the result is a list.
    if matches!(value, Value::Generator(_)) {
        return Value::list(items);
    }
    Value::generator(|out| {
        *out = items;
        Ok(())
    })
}

/// An item's attribute by a dotted path; numbers in it are indices.
fn lookup(interp: &mut Interp<'_>, item: &Value, path: &Value) -> Outcome<Value> {
    match path {
        Value::Str(path) => {
            let mut value = item.clone();
            for part in path.split('.') {
                interp.budget.step()?;
                value = match part.parse() {
                    Ok(index) => interp.item(&value, &Value::Int(index))?,
                    Err(_) => interp.item(&value, &path.part(part).into())?,
                };
            }
            Ok(value)
        }
        index => interp.item(item, index),
    }
}

fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.truthy())
}

/// The sort key of an item: its attributes, case-insensitive by default.
fn sort_key(
    interp: &mut Interp<'_>,
    item: &Value,
    attribute: &Option<Value>,
    case_sensitive: bool,
) -> Outcome<Value> {
    let fold = |interp: &mut Interp<'_>, value: Value| -> Outcome<Value> {
        match &value {
            Value::Str(text) if !case_sensitive => {
                interp.budget.work(text.len())?;
                Ok(text.rewritten(text.to_lowercase()).into())
            }
            _ => Ok(value),
        }
    };
    match attribute {
        None | Some(Value::None) => fold(interp, item.clone()),
        Some(Value::Str(paths)) if paths.contains(',') => {
            let mut keys = Vec::new();
            for path in paths.split(',') {
                let key = lookup(interp, item, &paths.part(path).into())?;
                keys.push(fold(interp, key)?);
            }
            Value::list(keys)
        }
        Some(path) => {
            let key = lookup(interp, item, path)?;
            fold(interp, key)
        }
    }
}

fn sort_by_key(interp: &mut Interp<'_>, keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome<Vec<Value>> {
    let budget = &mut interp.budget;
    let less = &mut |a: &(Value, Value), b: &(Value, Value)| {
        let order = compare(&a.0, &b.0, "<", budget)?;
        Ok(order.is_some_and(|order| if reverse { order.is_gt() } else { order.is_lt() }))
    };
    Ok(sort(keyed, less)?.into_iter().map(|(_, item)| item).collect())
}

fn sorted(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let several = attribute.as_ref().and_then(Value::as_str).is_some_and(|paths| paths.contains(','));
    let mut keyed = Vec::new();
    for item in value.items(&mut interp.budget)? {
        // The key is a list even for one attribute, so that equal keys, even undefined ones, do not fail to compare.
        let key = match sort_key(interp, &item, &attribute, case_sensitive)? {
            keys @ Value::List(_) if several => keys,
            key => Value::list(vec![key])?,
        };
        keyed.push((key, item));
    }
    Value::list(sort_by_key(interp, keyed, flag(reverse))?)
}

fn dictsort(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let case_sensitive = flag(case_sensitive);
    let by_value = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => false,
        Some("value") => true,
        _ => return Err(Fault::failed("dictsort sorts by \"key\" or \"value\"")),
    };
    let Value::Dict(dict) = value.defined()? else {
        return Err(Fault::failed(format!("dictsort needs a dictionary, not '{}'", value.type_name())));
    };
    interp.budget.items(dict.len() * 4)?;
    let mut keyed = Vec::new();
    for ((key, value), pair) in dict.iter().zip(pairs(dict)?) {
        let by = if by_value { value } else { key };
        keyed.push((sort_key(interp, by, &None, case_sensitive)?, pair));
    }
    Value::list(sort_by_key(interp, keyed, flag(reverse))?)
}

fn unique(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let mut seen = super::dict::Dict::new([])?;
    Value::generator(|kept| {
        for item in value.items(&mut interp.budget)? {
            let key = sort_key(interp, &item, &attribute, case_sensitive)?;
            if seen.get(&key)?.is_none() {
                seen.insert(key, Value::None)?;
                kept.push(item);
            }
        }
        Ok(())
    })
}

fn extreme(interp: &mut Interp<'_>, smallest: bool, value: &Value, args: CallArgs) -> Outcome<Value> {
    let name = if smallest { "min" } else { "max" };
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let mut best: Option<(Value, Value)> = None;
    for item in value.items(&mut interp.budget)? {
        let key = sort_key(interp, &item, &attribute, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((other, _)) => compare(&key, other, if smallest { "<" } else { ">" }, &mut interp.budget)?
                .is_some_and(|order| if smallest { order.is_lt() } else { order.is_gt() }),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item))
}

fn sum(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    if matches!(total, Value::Str(_)) {
        return Err(Fault::failed("sum() can't sum strings"));
    }
    for item in value.items(&mut interp.budget)? {
        let item = match &attribute {
            Some(path) if !matches!(path, Value::None) => lookup(interp, &item, path)?,
            _ => item,
        };
        total = ops::binary(interp, super::ast::Binary::Add, &total, &item)?;
    }
    Ok(total)
}

fn map(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    // Like `select`, it iterates true values only: none and zero have no items.
    if !value.truthy() {
        return Value::generator(|_| Ok(()));
    }
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let attribute = attribute.ok_or_else(|| Fault::failed("map needs a filter or an attribute"))?;
        return Value::generator(|out| {
            for item in value.items(&mut interp.budget)? {
                let found = lookup(interp, &item, &attribute)?;
                out.push(match &default {
                    Some(default) if found.is_undefined() => default.clone(),
                    _ => found,
                });
            }
            Ok(())
        });
    }
    let CallArgs { mut positional, named } = args;
    let Value::Str(name) = positional.remove(0) else {
        return Err(Fault::failed("map needs a filter's name"));
    };
    Value::generator(|out| {
        for item in value.items(&mut interp.budget)? {
            let args = CallArgs { positional: positional.clone(), named: named.clone() };
            interp.budget.enter()?;
            out.push(filters::apply(interp, &name, item, args)?);
            interp.budget.leave();
        }
        Ok(())
    })
}

fn select(
    interp: &mut Interp<'_>,
    value: &Value,
    args: CallArgs,
    keep: bool,
    by_attribute: bool,
) -> Outcome<Value> {
    if !value.truthy() {
        return Value::generator(|_| Ok(()));
    }
    let mut positional = args.positional.into_iter();
    let attribute = if by_attribute {
        let attribute = positional.next();
        Some(attribute.ok_or_else(|| Fault::failed("selectattr and rejectattr need an attribute"))?)
    } else {
        None
    };
    let test = match positional.next() {
        Some(Value::Str(test)) => Some(test),
        Some(_) => return Err(Fault::failed("the test must be named by a string")),
        None => None,
    };
    let rest: Vec<Value> = positional.collect();
    Value::generator(|out| {
        for item in value.items(&mut interp.budget)? {
            interp.budget.step()?;
            let subject = match &attribute {
                Some(path) => lookup(interp, &item, path)?,
                None => item.clone(),
            };
            let holds = match &test {
                Some(test) => {
                    let args = CallArgs { positional: rest.clone(), named: args.named.clone() };
                    checks::check(interp, test, &subject, args)?
                }
                None => subject.truthy(),
            };
            if holds == keep {
                out.push(item);
            }
        }
        Ok(())
    })
}

fn groupby(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| Fault::failed("groupby needs an attribute"))?;
    let case_sensitive = flag(case_sensitive);
    let mut keyed = Vec::new();
    for item in value.items(&mut interp.budget)? {
        let mut key = lookup(interp, &item, &attribute)?;
        if let (true, Some(default)) = (key.is_undefined(), &default) {
            key = default.clone();
        }
        let folded = sort_key(interp, &key, &None, case_sensitive)?;
        keyed.push((folded.clone(), Value::tuple(vec![folded, key, item])?));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for entry in sort_by_key(interp, keyed, false)? {
        let Value::Tuple(entry) = entry else { continue };
        let [folded, key, item] = &entry.items[..] else { continue };
        match groups.last_mut() {
            Some((last, _, items)) if equal(last, folded, &mut interp.budget)? => items.push(item.clone()),
            _ => groups.push((folded.clone(), key.clone(), vec![item.clone()])),
        }
    }
    let groups = groups.into_iter().map(|(_, key, items)| Value::tuple(vec![key, Value::list(items)?]));
    Value::list(groups.collect::<Outcome<_>>()?)
}

fn positive(value: Option<Value>, what: &str) -> Outcome<usize> {
    let count = value.and_then(|value| value.as_int()).and_then(|count| usize::try_from(count).ok());
    count.filter(|&count| count > 0).ok_or_else(|| Fault::failed(format!("{what} needs a positive number")))
}

fn batch(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = positive(count, "batch")?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    Value::generator(|out| {
        for chunk in value.items(&mut interp.budget)?.chunks(count) {
            interp.budget.items(3)?;
            let mut chunk = chunk.to_vec();
            if let Some(fill) = &fill {
                interp.budget.items(count)?;
                chunk.resize(count, fill.clone());
            }
            out.push(Value::list(chunk)?);
        }
        Ok(())
    })
}

fn slice(interp: &mut Interp<'_>, value: &Value, args: CallArgs) -> Outcome<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = positive(count, "slice")?;
    interp.budget.items(count)?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    Value::generator(|out| {
        let items = value.items(&mut interp.budget)?;
        let (each, extra) = (items.len() / count, items.len() % count);
        let mut rest = items.into_iter();
        for i in 0..count {
            let mut part: Vec<Value> = rest.by_ref().take(each + usize::from(i < extra)).collect();
            // Jinja fills every slice after the longer ones, even when all have equal length.
            if let (Some(fill), true) = (&fill, i >= extra) {
                part.push(fill.clone());
            }
            out.push(Value::list(part)?);
        }
        Ok(())
    })
}
