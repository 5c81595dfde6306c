//! Hyperparameters by key, from GGUF metadata or from `config.json`.

use gyrus_formats::gguf::{Metadata, Number, Value as GgufValue};
use serde_json::Value;

use super::fields::Fields;
use crate::Error;

/// A hyperparameter: its key in GGUF, after the architecture's name, and its names in `config.json`, the newest first.
/// An empty key: that format does not have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) gguf: &'static str,
    pub(super) config: &'static [&'static str],
}

impl Key {
    pub(super) const fn new(gguf: &'static str, config: &'static [&'static str]) -> Key {
        Key { gguf, config }
    }
}

/// Where a model's hyperparameters are.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Gguf { metadata: Metadata<'a>, architecture: &'a str },
    Config(Fields<'a>),
}

impl<'a> Source<'a> {
    fn gguf_key(self, key: Key) -> Option<(Metadata<'a>, String)> {
        match self {
            Source::Gguf { metadata, architecture } if !key.gguf.is_empty() => {
                Some((metadata, format!("{architecture}.{}", key.gguf)))
            }
            _ => None,
        }
    }

    fn field(self, key: Key) -> Option<(Fields<'a>, &'static str)> {
        let Source::Config(fields) = self else { return None };
        key.config.iter().find(|name| fields.get(name).is_some()).map(|name| (fields, *name))
    }

    /// An unsigned number, if the file has it.
    pub(super) fn number(self, key: Key) -> Result<Option<u64>, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            return Ok(metadata.get(&name)?);
        }
        self.field(key).map_or(Ok(None), |(fields, name)| fields.optional_number(name))
    }

    /// A floating-point number, if the file has it.
    pub(super) fn float(self, key: Key) -> Result<Option<f64>, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            return Ok(metadata.get::<f32>(&name)?.map(f64::from));
        }
        self.field(key).map_or(Ok(None), |(fields, name)| fields.float(name))
    }

    /// A number that the file must have.
    pub(super) fn require(self, key: Key) -> Result<u64, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            return Ok(metadata.require(&name)?);
        }
        self.number(key)?.ok_or_else(|| missing(key))
    }

    /// A floating-point number that the file must have.
    pub(super) fn require_float(self, key: Key) -> Result<f64, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            return Ok(metadata.require::<f32>(&name)?.into());
        }
        self.float(key)?.ok_or_else(|| missing(key))
    }

    /// A number for each of `layers` layers: a list, or one number for all; in `config.json` single layers may override
    /// it.
    pub(super) fn per_layer(self, key: Key, layers: usize) -> Result<Option<Vec<u64>>, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            if let Some(GgufValue::Array(list)) = metadata.value(&name) {
                let number = |n: Number| n.integer().and_then(|n| u64::try_from(n).ok());
                let numbers: Option<Vec<u64>> = list.numbers().take(layers).map(number).collect();
                return match numbers.filter(|numbers| numbers.len() == layers) {
                    Some(numbers) => Ok(Some(numbers)),
                    None => Err(Error::Unsupported(format!("'{name}' that is not a number for each layer"))),
                };
            }
            return Ok(metadata.get::<u64>(&name)?.map(|number| vec![number; layers]));
        }
        let mut numbers = self.number(key)?.map(|number| vec![number; layers]);
        let Source::Config(fields) = self else { return Ok(numbers) };
        if let (Some(numbers), Value::Object(special)) = (&mut numbers, fields.object("per_layer_config").0) {
            for (layer, overrides) in special {
                let index = layer.parse::<usize>().ok().filter(|index| *index < layers);
                let Some(index) = index else {
                    return Err(Error::Config(format!("'per_layer_config' names layer '{layer}'")));
                };
                for name in key.config {
                    if let Some(number) = Fields(overrides).optional_number(name)? {
                        numbers[index] = number;
                    }
                }
            }
        }
        Ok(numbers)
    }

    /// A flag for each of `layers` layers, if the file has such a list.
    pub(super) fn flags(self, key: Key, layers: usize) -> Result<Option<Vec<bool>>, Error> {
        let flags: Vec<bool> = if let Some((metadata, name)) = self.gguf_key(key) {
            let Some(GgufValue::Array(list)) = metadata.value(&name) else { return Ok(None) };
            let flag = |number| match number {
                Number::Bool(flag) => flag,
                number => number.integer().is_some_and(|n| n != 0),
            };
            list.numbers().take(layers).map(flag).collect()
        } else {
            let Some((fields, name)) = self.field(key) else { return Ok(None) };
            let flag = |value: &Value| value.as_bool().or(value.as_u64().map(|n| n != 0));
            match fields.list(name, flag) {
                Ok(Some(flags)) => flags,
                // The same key may hold a number.
                _ => return Ok(None),
            }
        };
        if flags.len() < layers {
            return Err(Error::Unsupported(format!("{} flags for {layers} layers", flags.len())));
        }
        Ok(Some(flags))
    }

    /// A flag, if the file has it.
    pub(super) fn switch(self, key: Key) -> Result<Option<bool>, Error> {
        if let Some((metadata, name)) = self.gguf_key(key) {
            return Ok(metadata.get(&name)?);
        }
        self.field(key).map_or(Ok(None), |(fields, name)| fields.flag(name))
    }

    /// Where a file has a hyperparameter, for messages.
    pub(super) fn place(self, key: Key) -> String {
        if let Some((_, name)) = self.gguf_key(key) {
            return format!("'{name}'");
        }
        let name = self.field(key).map_or(key.config.first().copied().unwrap_or(key.gguf), |(_, name)| name);
        format!("'{name}' in config.json")
    }

    /// A flag of `config.json`.
    pub(super) fn flag(self, name: &str) -> Result<Option<bool>, Error> {
        match self {
            Source::Config(fields) => fields.flag(name),
            Source::Gguf { .. } => Ok(None),
        }
    }
}

fn missing(key: Key) -> Error {
    Error::Config(format!("'{}' is missing", key.config.first().unwrap_or(&key.gguf)))
}
