//! The grammar of Gemma's notation: what of a JSON Schema it can enforce exactly. The rest is refused by name.

use gyrus_constrain::template::Part;
use serde_json::{Map, Value, json};

use super::{MARKERS, MAX_DEPTH, TABLE};
use crate::{Error, Tool};

/// A string in a grammar. The longest match would swallow the beginning of a marker, so it has none.
const CHARACTER: &str = "[^<]";

/// The most values of a tool's parameters: references may repeat each other's.
const MAX_VALUES: usize = 10_000;

/// The most parts of a grammar that repeat others: those of a list's items, and of properties that may be left out.
const MAX_REPEATED: usize = 200_000;

/// The most pairs of types or values that alternatives are compared by.
const MAX_PAIRS: usize = 1_000_000;

/// Keywords that constrain nothing.
const ANNOTATIONS: [&str; 10] = [
    "description",
    "title",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$defs",
    "definitions",
];

/// Types, each with the keywords that belong to it.
const TYPES: [(&str, &[&str]); 7] = [
    ("string", &["minLength", "maxLength"]),
    ("integer", BOUNDS),
    ("number", BOUNDS),
    ("boolean", &[]),
    ("null", &[]),
    ("array", &["items", "minItems", "maxItems"]),
    ("object", &["properties", "required", "additionalProperties"]),
];

const BOUNDS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

pub(super) fn grammar(tool: &Tool) -> Result<Part, Error> {
    let mut writer = Writer { root: &tool.parameters, values: 0, repeated: 0 };
    let value = writer.value(&tool.parameters, 0).map_err(|what| Error::Unconstrained {
        format: TABLE.name,
        reason: format!("{what} in the parameters of {:?}", tool.name),
    })?;
    Ok(Part::Sequence(vec![Part::Text(format!("call:{}", tool.name)), value]))
}

struct Writer<'a> {
    /// What references point into.
    root: &'a Value,
    values: usize,
    repeated: usize,
}

impl<'a> Writer<'a> {
    /// The notation of what a schema describes.
    fn value(&mut self, schema: &'a Value, depth: usize) -> Result<Part, String> {
        self.values += 1;
        if depth > MAX_DEPTH || self.values > MAX_VALUES {
            return Err(format!(
                "a schema that is nested more than {MAX_DEPTH} deep or has more than {MAX_VALUES} values"
            ));
        }
        let value = self.value_that_is(schema, depth)?;
        match schema.get("nullable") {
            Some(Value::Bool(true)) => Ok(Part::Choice(vec![value, Part::text("null")])),
            _ => Ok(value),
        }
    }

    fn value_that_is(&mut self, schema: &'a Value, depth: usize) -> Result<Part, String> {
        for keyword in ["$ref", "allOf", "anyOf", "oneOf"] {
            let Some(inner) = schema.get(keyword) else { continue };
            only(schema, &[keyword, "nullable"])?;
            return match (keyword, inner.as_array().map(Vec::as_slice)) {
                ("$ref", _) => self.value(self.referred(inner)?, depth + 1),
                ("allOf", Some([one])) => self.value(one, depth + 1),
                ("anyOf", Some(choices @ [_, ..])) => self.choice(choices, depth),
                ("oneOf", Some(choices @ [_, ..])) => {
                    self.check_apart(choices, depth)?;
                    self.choice(choices, depth)
                }
                _ => Err(format!("the keyword {keyword:?}")),
            };
        }
        if let Some(values) = listed(schema) {
            only(schema, &["enum", "const", "type", "nullable"])?;
            let types = types(schema)?;
            let fits = |value: &&Value| types.is_empty() || types.iter().any(|kind| is_of(value, kind));
            let choices = values.iter().copied().filter(fits).map(literal).collect::<Result<Vec<_>, _>>()?;
            return if choices.is_empty() {
                Err("an enum without a value".into())
            } else {
                Ok(Part::Choice(choices))
            };
        }
        let types = types(schema)?;
        let known = TYPES.iter().filter(|(name, _)| types.contains(name)).flat_map(|(_, keywords)| *keywords);
        only(schema, &known.copied().chain(["type", "nullable"]).collect::<Vec<_>>())?;
        // A number may be an integer.
        let is_both = types.contains(&"number");
        let each = types.iter().filter(|kind| !(is_both && **kind == "integer"));
        let mut parts = each.map(|kind| self.typed(kind, schema, depth)).collect::<Result<Vec<_>, _>>()?;
        match parts.len() {
            0 => Err("a schema without a type".into()),
            1 => Ok(parts.remove(0)),
            _ => Ok(Part::Choice(parts)),
        }
    }

    /// Counts a part that is repeated so many times, before it is.
    fn repeat(&mut self, part: &Part, times: usize) -> Result<(), String> {
        self.repeated = self.repeated.saturating_add(part.size().saturating_mul(times));
        match self.repeated > MAX_REPEATED {
            true => {
                Err(format!("nested lists or optional properties that repeat more than {MAX_REPEATED} parts"))
            }
            false => Ok(()),
        }
    }

    fn choice(&mut self, choices: &'a [Value], depth: usize) -> Result<Part, String> {
        let parts = choices.iter().map(|choice| self.value(choice, depth + 1));
        Ok(Part::Choice(parts.collect::<Result<_, _>>()?))
    }

    fn typed(&mut self, kind: &str, schema: &'a Value, depth: usize) -> Result<Part, String> {
        Ok(match kind {
            "string" => {
                let (min, max) = counts(schema, "minLength", "maxLength")?;
                let max = max.map_or(String::new(), |max| max.to_string());
                let text = Part::Regex(format!("{CHARACTER}{{{min},{max}}}"));
                Part::Sequence(vec![quote(), text, quote()])
            }
            // JSON writes numbers as this notation does.
            "integer" | "number" if BOUNDS.iter().any(|bound| schema.get(bound).is_some()) => {
                let bounds =
                    BOUNDS.iter().filter_map(|bound| Some(((*bound).to_owned(), schema.get(bound)?.clone())));
                let mut numbers: Map<String, Value> = bounds.collect();
                numbers.insert("type".to_owned(), json!(kind));
                Part::Schema(Value::Object(numbers).to_string())
            }
            "integer" => Part::Regex("-?(?:0|[1-9][0-9]{0,17})".into()),
            "number" => Part::Regex("-?(?:0|[1-9][0-9]{0,17})(?:[.][0-9]{1,17})?".into()),
            "boolean" => Part::Choice(vec![Part::text("true"), Part::text("false")]),
            "null" => Part::text("null"),
            "array" => {
                let (min, max) = counts(schema, "minItems", "maxItems")?;
                if max == Some(0) {
                    return Ok(Part::text("[]"));
                }
                let item = self.value(schema.get("items").ok_or("an array without items")?, depth + 1)?;
                self.repeat(&item, 1)?;
                let more = Part::Sequence(vec![Part::text(","), item.clone()]);
                let (least, most) = (min.saturating_sub(1), max.map(|max| max - 1));
                let more = Part::Repeat { part: Box::new(more), min: least, max: most };
                let items = Part::Sequence(vec![item, more]);
                let items = if min == 0 { optional(items) } else { items };
                Part::Sequence(vec![Part::text("["), items, Part::text("]")])
            }
            "object" => self.object(schema, depth)?,
            other => return Err(format!("the type {other:?}")),
        })
    }

    /// Required properties, then any of the others, in order.
    fn object(&mut self, schema: &'a Value, depth: usize) -> Result<Part, String> {
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Value::as_str).collect();
        let (mut first, mut others, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (name, schema) in properties {
            let member = Part::Sequence(vec![Part::Text(format!("{name}:")), self.value(schema, depth + 1)?]);
            let group = if required.contains(&name.as_str()) { &mut first } else { &mut others };
            group.push(member);
            names.push(name.as_str());
        }
        if let Some(name) = required.iter().find(|name| !names.contains(name)) {
            return Err(format!("the required property {name:?} without a schema"));
        }
        for (at, part) in others.iter().enumerate() {
            self.repeat(part, at + 1)?;
        }
        let after_comma = |part: &Part| Part::Sequence(vec![Part::text(","), part.clone()]);
        let rest = |from: usize| others[from..].iter().map(|part| optional(after_comma(part)));
        let mut parts = vec![Part::text("{")];
        if first.is_empty() {
            let choices: Vec<Part> = (0..others.len())
                .map(|at| Part::Sequence([others[at].clone()].into_iter().chain(rest(at + 1)).collect()))
                .collect();
            parts.extend((!choices.is_empty()).then(|| optional(Part::Choice(choices))));
        } else {
            let member = |(at, part): (usize, &Part)| if at == 0 { part.clone() } else { after_comma(part) };
            parts.extend(first.iter().enumerate().map(member));
            parts.extend(rest(0));
        }
        parts.push(Part::text("}"));
        Ok(Part::Sequence(parts))
    }

    /// The schema that a reference inside the document points to.
    fn referred(&self, reference: &Value) -> Result<&'a Value, String> {
        let text = reference.as_str().unwrap_or_default();
        let found = match text.strip_prefix('#') {
            Some(pointer) if !pointer.contains('%') => self.root.pointer(pointer),
            _ => None,
        };
        found.ok_or_else(|| format!("the reference {reference}"))
    }

    /// Whether no value fits two of the schemas, as far as their types and lists of values show.
    fn check_apart(&self, choices: &'a [Value], depth: usize) -> Result<(), String> {
        let sets = choices.iter().map(|choice| self.set(choice, depth)).collect::<Result<Vec<_>, _>>()?;
        let mut pairs = 0usize;
        for (at, one) in sets.iter().enumerate() {
            for other in &sets[at + 1..] {
                pairs = pairs.saturating_add(one.len().saturating_mul(other.len()));
            }
            if pairs > MAX_PAIRS {
                return Err(format!("the keyword \"oneOf\" with more than {MAX_PAIRS} pairs of values"));
            }
            if sets[at + 1..].iter().any(|other| !one.is_apart(other)) {
                return Err("the keyword \"oneOf\" with alternatives that may overlap".into());
            }
        }
        Ok(())
    }

    fn set(&self, schema: &'a Value, depth: usize) -> Result<Set<'a>, String> {
        if depth > MAX_DEPTH {
            return Err("a reference that contains itself".into());
        }
        if let Some(reference) = schema.get("$ref") {
            return self.set(self.referred(reference)?, depth + 1);
        }
        if schema.get("nullable").is_some() {
            return Ok(Set::Types(Vec::new()));
        }
        Ok(match listed(schema) {
            Some(values) => Set::Values(values),
            None => Set::Types(types(schema)?),
        })
    }
}

/// What a schema may describe.
enum Set<'a> {
    /// Values of these types; of any, if there is none.
    Types(Vec<&'a str>),
    Values(Vec<&'a Value>),
}

impl Set<'_> {
    fn len(&self) -> usize {
        match self {
            Set::Types(types) => types.len().max(1),
            Set::Values(values) => values.len().max(1),
        }
    }

    fn is_apart(&self, other: &Set<'_>) -> bool {
        let is_number = |kind: &&str| matches!(*kind, "integer" | "number");
        match (self, other) {
            (Set::Types(a), Set::Types(b)) => {
                let shared = a.iter().any(|kind| b.contains(kind));
                let numbers = a.iter().any(is_number) && b.iter().any(is_number);
                !a.is_empty() && !b.is_empty() && !shared && !numbers
            }
            // `1` and `1.0` are one value.
            (Set::Values(a), Set::Values(b)) => {
                let same = |one: &Value, other: &Value| {
                    one == other || (one.is_number() && one.as_f64() == other.as_f64())
                };
                !a.iter().any(|one| b.iter().any(|other| same(one, other)))
            }
            (Set::Types(types), Set::Values(values)) | (Set::Values(values), Set::Types(types)) => {
                !types.is_empty() && !values.iter().any(|value| types.iter().any(|kind| is_of(value, kind)))
            }
        }
    }
}

fn quote() -> Part {
    Part::Marker(MARKERS[0].2.into())
}

fn optional(part: Part) -> Part {
    Part::Repeat { part: Box::new(part), min: 0, max: Some(1) }
}

/// An error for the first keyword that is neither of these nor an annotation.
fn only(schema: &Value, known: &[&str]) -> Result<(), String> {
    let keys = schema.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    match keys.filter(|key| !ANNOTATIONS.contains(key)).find(|key| !known.contains(key)) {
        Some(keyword) => Err(format!("the keyword {keyword:?}")),
        None => Ok(()),
    }
}

/// The types that a schema names.
fn types(schema: &Value) -> Result<Vec<&str>, String> {
    let named = match schema.get("type") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        Some(one) => vec![one.as_str()],
    };
    let known = |name: &Option<&str>| TYPES.iter().any(|(known, _)| Some(*known) == *name);
    match named.iter().all(known) {
        true => Ok(named.into_iter().flatten().collect()),
        false => Err(format!("the type {}", schema["type"])),
    }
}

/// The values that a schema lists.
fn listed(schema: &Value) -> Option<Vec<&Value>> {
    let list = schema.get("enum").and_then(Value::as_array).map(|list| list.iter().collect::<Vec<_>>());
    match (schema.get("const"), list) {
        (Some(one), Some(list)) => Some(list.into_iter().filter(|value| *value == one).collect()),
        (Some(one), None) => Some(vec![one]),
        (None, list) => list,
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
        Value::Number(number) => {
            let is_whole =
                number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0);
            kind == "number" || (kind == "integer" && is_whole)
        }
    }
}

/// A value in the notation.
fn literal(value: &Value) -> Result<Part, String> {
    match value {
        Value::String(text) if !text.contains(MARKERS[0].2) => {
            Ok(Part::Sequence(vec![quote(), Part::Text(text.clone()), quote()]))
        }
        Value::Number(_) | Value::Bool(_) | Value::Null => Ok(Part::Text(value.to_string())),
        Value::String(_) => Err(format!("an enum of a string with {:?}", MARKERS[0].2)),
        _ => Err("an enum of arrays or objects".to_owned()),
    }
}

/// The least and the most of something.
fn counts(schema: &Value, least: &str, most: &str) -> Result<(usize, Option<usize>), String> {
    let count = |keyword: &str| match schema.get(keyword) {
        None => Ok(None),
        Some(count) => {
            let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| format!("the keyword {keyword:?} that is no count"))
        }
    };
    let (min, max) = (count(least)?.unwrap_or(0), count(most)?);
    match max {
        Some(max) if max < min => Err(format!("{least:?} above {most:?}")),
        max => Ok((min, max)),
    }
}
