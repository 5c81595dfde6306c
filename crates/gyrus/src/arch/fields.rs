use serde_json::Value;

use crate::Error;

/// Typed access to an object of `config.json`; `null` counts as absent, as in Python.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Value);

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    /// A nested object; an absent one has no fields.
    pub(super) fn object(&self, name: &str) -> Fields<'a> {
        Fields(self.get(name).unwrap_or(&Value::Null))
    }

    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not a string")))
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, Error> {
        self.optional_text(name)?.ok_or_else(|| Error::Config(format!("'{name}' is missing")))
    }

    pub(super) fn optional_number(&self, name: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64();
        number.map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not an unsigned integer")))
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, Error> {
        self.optional_number(name)?.ok_or_else(|| Error::Config(format!("'{name}' is missing")))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not a number")))
    }

    pub(super) fn require_rope_float(&self, name: &str) -> Result<f64, Error> {
        self.float(name)?.ok_or_else(|| Error::Config(format!("rope '{name}' is missing")))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not true or false")))
    }

    /// A list; `item` converts each of its items.
    pub(super) fn list<T>(
        &self,
        name: &str,
        item: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let items = value.as_array().and_then(|list| list.iter().map(item).collect());
        items
            .map(Some)
            .ok_or_else(|| Error::Config(format!("'{name}' is not a list, or an item has the wrong type")))
    }
}
