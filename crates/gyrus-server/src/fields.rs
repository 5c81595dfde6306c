//! The fields of a JSON request: taken by name and checked, until none is left that nobody knows.

use serde_json::{Map, Value};
use tokio::runtime::RuntimeFlavor;

use crate::failure::{Failure, Kind};

/// Fields that were not taken yet, and where they are.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// The path of the object, such as `stream_options.`.
    path: String,
}

impl Fields {
    /// Parses a body. Nesting is limited to 128 by the parser.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, Failure> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let value = aside(body.len(), || serde_json::from_slice(body))
            .map_err(|error| Failure::new(Kind::Invalid, format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            _ => Err(Failure::new(Kind::Invalid, "the body must be a JSON object")),
        }
    }

    /// The fields of an object at a path.
    pub(crate) fn of(value: Value, path: &str) -> Result<Fields, Failure> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{path}.") }),
            _ => Err(Failure::field(path, "it must be an object")),
        }
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A refusal of a field.
    pub(crate) fn wrong(&self, name: &str, message: impl Into<String>) -> Failure {
        Failure::field(self.path(name), message)
    }

    /// A field that is taken later.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    /// Takes a field. One that is null is absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        record(&self.path(name));
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(crate) fn require(&mut self, name: &str) -> Result<Value, Failure> {
        self.take(name).ok_or_else(|| self.wrong(name, "it is missing"))
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "it must be a string")),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(name, "it must be true or false")),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(_) => Err(self.wrong(name, "it must be a number")),
        }
    }

    /// A whole number of a range.
    pub(crate) fn integer(&mut self, name: &str, least: i64, most: i64) -> Result<Option<i64>, Failure> {
        let Some(value) = self.take(name) else { return Ok(None) };
        // Some clients write whole numbers with a point.
        let float = || value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < i64::MAX as f64);
        let whole = value.as_i64().or_else(|| float().map(|n| n as i64));
        match whole {
            Some(n) if (least..=most).contains(&n) => Ok(Some(n)),
            _ => Err(self.wrong(name, format!("it must be a whole number from {least} to {most}"))),
        }
    }

    /// A count from 0 on.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<usize>, Failure> {
        Ok(self.integer(name, 0, i64::from(u32::MAX))?.map(|n| n as usize))
    }

    /// A string, or a list of strings.
    pub(crate) fn strings(&mut self, name: &str, most: usize) -> Result<Option<Vec<String>>, Failure> {
        let list = match self.take(name) {
            None => return Ok(None),
            Some(Value::String(text)) => vec![Value::String(text)],
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.wrong(name, "it must be a string or a list of strings")),
        };
        if list.len() > most {
            return Err(
                self.wrong(name, format!("it has {} entries, at most {most} are allowed", list.len()))
            );
        }
        let strings = list.into_iter().map(|entry| match entry {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong(name, "it must be a string or a list of strings")),
        });
        strings.collect::<Result<_, _>>().map(Some)
    }

    /// A list.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(name, "it must be a list")),
        }
    }

    /// An object, field by field.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, Failure> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::of(value, &path)).transpose()
    }

    /// An object as it is.
    pub(crate) fn map(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "it must be an object")),
        }
    }

    /// Drops fields that change nothing about an answer.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.map.shift_remove(*name)));
    }

    /// Refuses fields that would change the answer. A value that asks for nothing is allowed: false, zero, or empty.
    pub(crate) fn refuse(&mut self, names: &[&str]) -> Result<(), Failure> {
        for name in names {
            if self.map.shift_remove(*name).is_some_and(|value| !is_neutral(&value)) {
                let failure = self.wrong(name, "it is not supported, and the answer would depend on it");
                return Err(failure.with_code("unsupported_parameter"));
            }
        }
        Ok(())
    }

    /// Refuses the fields that are left.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => {
                let shown: String = name.chars().take(80).collect();
                Err(self.wrong(&shown, "there is no such field").with_code("unknown_parameter"))
            }
        }
    }
}

/// Bytes of a body that is parsed without keeping other connections waiting.
const LARGE: usize = 64 << 10;

/// Does work on a body of this size, and lets another thread serve connections meanwhile if it is large.
pub(crate) fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let can_move = || {
        let runtime = tokio::runtime::Handle::try_current();
        runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    if bytes > LARGE && can_move() { tokio::task::block_in_place(work) } else { work() }
}

fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
type Names = std::collections::BTreeSet<String>;

#[cfg(test)]
thread_local! {
    /// The fields that were asked for, while somebody wants to know.
    static ASKED: std::cell::RefCell<Option<Names>> = const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
fn record(path: &str) {
    if !path.contains('.') {
        ASKED.with_borrow_mut(|asked| asked.as_mut().map(|asked| asked.insert(path.to_owned())));
    }
}

/// Parses a request. Returns also the names of the fields that it asks for, whether they are there or not; not those that are
/// ignored or refused.
#[cfg(test)]
pub(crate) fn recorded<T>(parse: impl FnOnce() -> T) -> (T, Names) {
    ASKED.set(Some(Names::new()));
    let parsed = parse();
    (parsed, ASKED.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn errors_name_the_field() {
        let mut all = fields(r#"{"a": "x", "b": {"c": 1.5}, "d": null, "e": -1, "f": 2.0}"#);
        assert_eq!(all.number("a").unwrap_err().param.as_deref(), Some("a"));
        let mut inner = all.object("b").unwrap().unwrap();
        assert_eq!(inner.integer("c", 0, 9).unwrap_err().param.as_deref(), Some("b.c"));
        assert_eq!(all.require("d").unwrap_err().message, "d: it is missing");
        assert!(all.count("e").is_err());
        assert_eq!(all.count("f").unwrap(), Some(2));
        assert!(all.finish().is_ok());
    }

    #[test]
    fn unknown_fields_are_refused_and_neutral_ones_are_not() {
        let mut all = fields(r#"{"mirostat": 0, "user": "me", "logit_bias": {}}"#);
        all.refuse(&["mirostat", "logit_bias"]).unwrap();
        all.ignore(&["user"]);
        all.finish().unwrap();
        let error = fields(r#"{"mirostat": 2}"#).refuse(&["mirostat"]).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("mirostat"), Some("unsupported_parameter")));
        let error = fields(r#"{"temprature": 1}"#).finish().unwrap_err();
        assert!(error.message.contains("temprature"), "{error:?}");
    }

    #[test]
    fn hostile_bodies_are_refused() {
        let deep = "[".repeat(100_000);
        let nested = format!("{{\"a\": {deep}");
        for body in [deep.as_bytes(), nested.as_bytes(), b"\xff\xfe", b"{\"a\": \"\xff\"}", b"[]", b"{", b"1"]
        {
            assert_eq!(Fields::parse(body).unwrap_err().kind, Kind::Invalid);
        }
    }
}
