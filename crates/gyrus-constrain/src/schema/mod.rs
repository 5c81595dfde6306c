//! JSON Schema: what the engine enforces exactly, and nothing else.
//!
//! The engine ignores some keywords, resolves only simple references and reads some values loosely. [`prepare`] rewrites
//! a schema to the part of the language that it enforces: references are resolved within the document, patterns are
//! translated from ECMAScript, formats become patterns, annotations are dropped. What remains is refused by name.

mod format;
mod keywords;
mod locate;
mod pattern;
mod reference;
mod rewrite;
mod values;

use serde_json::{Map, Value, json};

use crate::work::Work;
use crate::{Error, Limits};

/// What errors call it.
const LANGUAGE: &str = "JSON schema";

/// White space between tokens of JSON: a space, or a line break and an indentation with spaces or tabs. Small models that may write
/// more lose themselves in it.
const SPACES: &str = r"\x20|\x0D?\x0A(?:\x20{0,32}|\x09{0,8})";

/// Escapes in strings. Without `\u` every string has one spelling, so that a name cannot be repeated in disguise.
const ESCAPES: &str = "nrbtf\\\"";

/// A schema of any JSON value.
pub(crate) fn any() -> Value {
    with_options(Map::new())
}

/// A schema of any JSON object.
pub(crate) fn object() -> Value {
    with_options(Map::from_iter([("type".to_owned(), json!("object"))]))
}

/// Reads a schema and rewrites it for the engine.
pub(crate) fn prepare_text(text: &str, work: &Work<'_>) -> Result<Value, Error> {
    work.limits.check_source(text)?;
    let schema = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line().max(1), error.column().max(1));
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        Error::Syntax { language: LANGUAGE, line, column, message }
    })?;
    rewrite::rewrite(&schema, work).map(with_options).map_err(|error| locate::located(error, text))
}

/// Rewrites a schema to one that the engine enforces exactly.
pub fn prepare(schema: &Value, limits: &Limits) -> Result<Value, Error> {
    rewrite::rewrite(schema, &Work::new(limits)).map(with_options)
}

/// The keyword that a message of the engine is about.
pub(crate) fn explain(message: &str) -> Option<Error> {
    let (keyword, reason) = match message {
        m if m.contains("oneOf constraints") => ("oneOf", "its alternatives may overlap; use anyOf"),
        m if m.contains("patternProperty regexes") => {
            ("patternProperties", "its patterns may match the same name")
        }
        m if m.contains("min/maxProperties") => {
            ("maxProperties", "all properties beside it must be required")
        }
        m if m.contains("if regex is empty") => ("pattern", "with the lengths beside it, it is too complex"),
        m if m.contains("'multipleOf'") => ("multipleOf", "it has too many digits"),
        m if m.contains("circular references") => ("$ref", "it refers to itself beside other keywords"),
        _ => return None,
    };
    Some(Error::Keyword {
        keyword: keyword.into(),
        place: "the schema".into(),
        position: None,
        reason: reason.into(),
    })
}

fn with_options(mut schema: Map<String, Value>) -> Value {
    let options = json!({ "whitespace_pattern": SPACES, "json_allowed_escapes": ESCAPES });
    schema.insert("x-guidance".into(), options);
    Value::Object(schema)
}

/// Whether a string has only characters that [`ESCAPES`] can spell.
fn is_spellable(text: &str) -> bool {
    text.chars().all(|c| !c.is_ascii_control() || matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}'))
}
