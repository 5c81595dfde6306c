//! The rewriting of a schema to what the engine enforces.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::LANGUAGE;
use super::format::{Format, format};
use super::keywords::{DRAFTS, REFUSED};
use super::pattern::translate;
use super::reference::{Place, Registry, at, pointer};
use super::values::Keyword;
use crate::regex::{self, Fault};
use crate::work::Work;
use crate::{Error, Limits};

pub(super) fn rewrite(root: &Value, work: &Work<'_>) -> Result<Map<String, Value>, Error> {
    check_depth(root, work.limits, 0)?;
    let mut rewriter = Rewriter {
        root,
        registry: Registry::new(root)?,
        work,
        limits: work.limits,
        names: HashMap::new(),
        pending: Vec::new(),
        count: 0,
    };
    let mut out = match rewriter.schema(root, "", &mut Vec::new())? {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        _ => return Err(Error::Unsatisfiable { language: LANGUAGE, reason: "it is false".into() }),
    };
    let mut definitions = Map::new();
    while let Some((name, mut place)) = rewriter.pending.pop() {
        let (base, target) =
            (rewriter.registry.base_at(root, &place), at(root, &place).unwrap_or(&Value::Null));
        definitions.insert(name, rewriter.schema(target, &base, &mut place)?);
    }
    if !definitions.is_empty() {
        out.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(out)
}

fn check_depth(value: &Value, limits: &Limits, depth: usize) -> Result<(), Error> {
    limits.check_depth(depth)?;
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_depth(item, limits, depth + 1)),
        Value::Object(map) => map.values().try_for_each(|item| check_depth(item, limits, depth + 1)),
        _ => Ok(()),
    }
}

struct Rewriter<'a> {
    root: &'a Value,
    registry: Registry,
    work: &'a Work<'a>,
    limits: &'a Limits,
    /// The definitions that references were resolved to, by place.
    names: HashMap<Place, String>,
    /// Definitions to be written.
    pending: Vec<(String, Place)>,
    count: usize,
}

impl Rewriter<'_> {
    /// Rewrites a schema. `base` is the URI around it.
    fn schema(&mut self, value: &Value, base: &str, place: &mut Place) -> Result<Value, Error> {
        self.count += 1;
        if self.count > self.limits.schemas {
            let reason = "the schema, with what it refers to, has more sub-schemas".to_owned();
            return Err(self.limits.exceeded("schemas", self.limits.schemas, reason));
        }
        let object = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(object) => object,
            _ => {
                let keyword = place.last().map_or("$schema", String::as_str);
                return Err(Keyword { name: keyword, place: &pointer(place) }
                    .invalid("a schema: an object or boolean"));
            }
        };
        let base = self.registry.base_of(value, base);
        self.work.spend(base.len())?;
        let mut out = Map::new();
        let only_refers = self.registry.only_refers(value);
        for (name, value) in object.iter().filter(|(name, _)| !only_refers || *name == "$ref") {
            self.keyword(object, name, value, &base, place, &mut out)?;
        }
        Ok(Value::Object(out))
    }

    /// Rewrites one keyword into `out`.
    fn keyword(
        &mut self,
        schema: &Map<String, Value>,
        name: &str,
        value: &Value,
        base: &str,
        place: &mut Place,
        out: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        let here = pointer(place);
        self.work.spend(here.len())?;
        let keyword = Keyword { name, place: &here };
        let written = match name {
            "$schema" => {
                let draft = keyword.string(value)?.trim_end_matches('#');
                if !DRAFTS.contains(&draft) {
                    return Err(keyword.refused(format!("{draft:?} is not one of {}", DRAFTS.join(", "))));
                }
                return Ok(());
            }
            "$ref" => json!(self.reference(&keyword, value, base)?),
            "type" => {
                check_type(&keyword, value)?;
                value.clone()
            }
            "const" => {
                keyword.constant(value)?;
                value.clone()
            }
            "enum" => {
                keyword.list(value)?.iter().try_for_each(|value| keyword.constant(value))?;
                value.clone()
            }
            "allOf" => {
                let schemas = self.list(&keyword, value, base, place)?;
                all_of(out, schemas);
                return Ok(());
            }
            "anyOf" | "oneOf" | "prefixItems" => Value::Array(self.list(&keyword, value, base, place)?),
            "properties" => self.map(&keyword, value, base, place, Ok)?,
            "patternProperties" => {
                let limits = self.limits;
                self.map(&keyword, value, base, place, |name| pattern(&keyword, &name, limits))?
            }
            "items" if value.is_array() => {
                out.insert("prefixItems".into(), Value::Array(self.list(&keyword, value, base, place)?));
                return Ok(());
            }
            "additionalItems" => {
                // It means something only beside an array of `items`, in drafts up to 2019-09.
                if schema.get("items").is_some_and(Value::is_array) {
                    out.insert("items".into(), self.child(name, value, base, place)?);
                }
                return Ok(());
            }
            "items" | "additionalProperties" => self.child(name, value, base, place)?,
            "unevaluatedProperties" if is_plain(schema) => {
                if !schema.contains_key("additionalProperties") {
                    out.insert("additionalProperties".into(), self.child(name, value, base, place)?);
                }
                return Ok(());
            }
            "unevaluatedItems" if is_plain(schema) && !schema.contains_key("contains") => {
                if !schema.contains_key("items") {
                    out.insert("items".into(), self.child(name, value, base, place)?);
                }
                return Ok(());
            }
            "required" => {
                keyword.list(value)?.iter().try_for_each(|name| keyword.string(name).map(drop))?;
                value.clone()
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "maxProperties" => {
                json!(keyword.count(value, self.limits)?)
            }
            "minProperties" => {
                let count = keyword.count(value, self.limits)?;
                let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
                if count > required + 1 {
                    let reason =
                        "names that are not required could repeat; require all but one of the properties";
                    return Err(keyword.refused(reason));
                }
                json!(count)
            }
            "minimum" | "maximum" => {
                keyword.number(value)?;
                value.clone()
            }
            "exclusiveMinimum" | "exclusiveMaximum" => {
                // A boolean is the form of draft 4, which the engine knows.
                if !value.is_boolean() {
                    keyword.number(value)?;
                }
                value.clone()
            }
            "multipleOf" => {
                if keyword.number(value)? <= 0.0 {
                    return Err(keyword.invalid("a number above 0"));
                }
                value.clone()
            }
            "pattern" => {
                json!(pattern(&keyword, keyword.string(value)?, self.limits)?)
            }
            "format" => {
                let name = keyword.string(value)?;
                match format(name) {
                    Format::Enforced => value.clone(),
                    Format::Pattern(pattern, longest) => {
                        let mut schema = Map::from_iter([("pattern".to_owned(), json!(pattern))]);
                        schema.extend(longest.map(|longest| ("maxLength".to_owned(), json!(longest))));
                        all_of(out, vec![Value::Object(schema)]);
                        return Ok(());
                    }
                    Format::Refused => {
                        return Err(keyword.refused(format!("the format {name:?} is not enforced")));
                    }
                    Format::Unknown => return Ok(()),
                }
            }
            _ => return self.refused(schema, &keyword, value),
        };
        out.insert(name.to_owned(), written);
        Ok(())
    }

    /// Refuses a keyword that the engine cannot enforce, unless its value asks for nothing. Others are annotations.
    fn refused(
        &self,
        schema: &Map<String, Value>,
        keyword: &Keyword<'_>,
        value: &Value,
    ) -> Result<(), Error> {
        let Some((_, hint)) = REFUSED.iter().find(|(name, _)| *name == keyword.name) else { return Ok(()) };
        let asks_nothing = match keyword.name {
            "if" => !schema.contains_key("then") && !schema.contains_key("else"),
            "uniqueItems" => {
                value == &json!(false)
                    || schema.get("maxItems").and_then(Value::as_f64).is_some_and(|most| most <= 1.0)
            }
            "not" => value == &json!(false),
            "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
                value == &json!(true) || value == &json!({})
            }
            "dependentRequired" | "dependentSchemas" | "dependencies" => value == &json!({}),
            _ => false,
        };
        if asks_nothing { Ok(()) } else { Err(keyword.refused(*hint)) }
    }

    fn child(&mut self, name: &str, value: &Value, base: &str, place: &mut Place) -> Result<Value, Error> {
        place.push(name.to_owned());
        let written = self.schema(value, base, place)?;
        place.pop();
        Ok(written)
    }

    fn list(
        &mut self,
        keyword: &Keyword<'_>,
        value: &Value,
        base: &str,
        place: &mut Place,
    ) -> Result<Vec<Value>, Error> {
        let list = keyword.list(value)?;
        if list.is_empty() && keyword.name.ends_with("Of") {
            return Err(keyword.invalid("an array of at least one schema"));
        }
        place.push(keyword.name.to_owned());
        let written = list
            .iter()
            .enumerate()
            .map(|(at, value)| self.child(&at.to_string(), value, base, place))
            .collect::<Result<Vec<_>, _>>()?;
        place.pop();
        Ok(written)
    }

    fn map(
        &mut self,
        keyword: &Keyword<'_>,
        value: &Value,
        base: &str,
        place: &mut Place,
        key: impl Fn(String) -> Result<String, Error>,
    ) -> Result<Value, Error> {
        let (mut written, most) = (Map::new(), self.limits.properties);
        if keyword.map(value)?.len() > most {
            return Err(self.limits.exceeded("properties", most, format!("{} has more", keyword.place)));
        }
        place.push(keyword.name.to_owned());
        for (name, value) in keyword.map(value)? {
            let new = key(name.clone())?;
            if written.insert(new, self.child(name, value, base, place)?).is_some() {
                return Err(keyword.refused(format!("{name:?} means the same as another pattern")));
            }
        }
        place.pop();
        Ok(Value::Object(written))
    }

    /// The reference for the engine: `#`, or a definition of ours.
    fn reference(&mut self, keyword: &Keyword<'_>, value: &Value, base: &str) -> Result<String, Error> {
        let reference = keyword.string(value)?;
        let place =
            self.registry.resolve(self.root, base, reference).map_err(|reason| keyword.refused(reason))?;
        if place.is_empty() {
            return Ok("#".into());
        }
        let next = self.names.len();
        let name = self.names.entry(place.clone()).or_insert_with(|| {
            let name = format!("d{next}");
            self.pending.push((name.clone(), place));
            name
        });
        Ok(format!("#/$defs/{name}"))
    }
}

/// A pattern in the syntax of the engine, which parses it.
fn pattern(keyword: &Keyword<'_>, text: &str, limits: &Limits) -> Result<String, Error> {
    let refused = |what: String| {
        let shown: String = text.chars().take(SHOWN).collect();
        let more = if shown.len() < text.len() { " and so on" } else { "" };
        keyword.refused(format!("{what} in {shown:?}{more}"))
    };
    let pattern = translate(text).map_err(refused)?;
    match regex::parsed(&pattern, limits) {
        Ok(_) => Ok(pattern),
        Err(Fault::At(_, message)) => Err(refused(message)),
        Err(Fault::Limit(error)) => Err(error),
    }
}

/// Characters of a pattern that an error shows.
const SHOWN: usize = 80;

/// Adds schemas that must hold, too.
fn all_of(out: &mut Map<String, Value>, schemas: Vec<Value>) {
    if let Value::Array(all) = out.entry("allOf").or_insert_with(|| json!([])) {
        all.extend(schemas);
    }
}

/// Whether no other schema applies to the same instance, so that what `properties` and `items` leave is unevaluated.
fn is_plain(schema: &Map<String, Value>) -> bool {
    const IN_PLACE: [&str; 9] =
        ["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "not", "dependentSchemas", "dependencies"];
    !IN_PLACE.iter().any(|name| schema.contains_key(*name))
}

fn check_type(keyword: &Keyword<'_>, value: &Value) -> Result<(), Error> {
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let valid = match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        value => known(value),
    };
    if valid { Ok(()) } else { Err(keyword.invalid("a type or an array of types")) }
}
