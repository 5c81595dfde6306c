//! Values of keywords: numbers, counts, constants.

use serde_json::{Map, Value};

use super::is_spellable;
use crate::{Error, Limits};

/// The largest integer up to which all integers are numbers of the engine (f64).
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A keyword of a schema, for errors.
pub(super) struct Keyword<'a> {
    pub(super) name: &'a str,
    pub(super) place: &'a str,
}

impl Keyword<'_> {
    pub(super) fn refused(&self, reason: impl Into<String>) -> Error {
        Error::Keyword {
            keyword: self.name.into(),
            place: self.place.into(),
            position: None,
            reason: reason.into(),
        }
    }

    pub(super) fn invalid(&self, expected: &'static str) -> Error {
        Error::Invalid { keyword: self.name.into(), place: self.place.into(), position: None, expected }
    }

    pub(super) fn list<'v>(&self, value: &'v Value) -> Result<&'v Vec<Value>, Error> {
        value.as_array().ok_or_else(|| self.invalid("an array"))
    }

    pub(super) fn map<'v>(&self, value: &'v Value) -> Result<&'v Map<String, Value>, Error> {
        value.as_object().ok_or_else(|| self.invalid("an object"))
    }

    pub(super) fn string<'v>(&self, value: &'v Value) -> Result<&'v str, Error> {
        value.as_str().ok_or_else(|| self.invalid("a string"))
    }

    /// A number that the engine represents exactly.
    pub(super) fn number(&self, value: &Value) -> Result<f64, Error> {
        let number = value.as_f64().ok_or_else(|| self.invalid("a number"))?;
        if number.abs() > EXACT {
            return Err(self.refused(format!("{value} is beyond 2^53, where numbers are rounded")));
        }
        Ok(number)
    }

    /// A count: a non-negative integer, which may be written as `2.0`.
    pub(super) fn count(&self, value: &Value, limits: &Limits) -> Result<u64, Error> {
        let number = value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0);
        let count = number.ok_or_else(|| self.invalid("a non-negative integer"))? as u64;
        limits.check_repetition(count, self.name)?;
        Ok(count)
    }

    /// Checks that a constant can be generated, and nothing else in its place.
    pub(super) fn constant(&self, value: &Value) -> Result<(), Error> {
        match value {
            Value::Null | Value::Bool(_) => Ok(()),
            Value::Number(_) => self.number(value).map(drop),
            Value::String(text) if is_spellable(text) => Ok(()),
            Value::String(_) => Err(self.refused("a string with control characters has no unique spelling")),
            Value::Array(items) => items.iter().try_for_each(|item| self.constant(item)),
            Value::Object(map) => map.values().try_for_each(|value| self.constant(value)),
        }
    }
}
