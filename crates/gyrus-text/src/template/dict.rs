//! A dictionary with Python's key equality and insertion order.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::{Fault, Outcome};
use super::value::{Value, deeper};

/// Small dictionaries are searched linearly, larger ones are indexed.
const SEARCHED: usize = 8;

/// A key in a form in which keys that are equal in Python are equal: `1`, `1.0` and `True` are one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    None,
    Int(i128),
    Bits(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
    Object(usize),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    depth: u16,
}

fn key(value: &Value) -> Outcome<Key> {
    Ok(match value {
        Value::None => Key::None,
        Value::Bool(value) => Key::Int(i128::from(*value)),
        Value::Int(value) => Key::Int(*value),
        Value::Float(value) if *value == value.trunc() && value.abs() < 1e30 => Key::Int(*value as i128),
        Value::Float(value) => Key::Bits(value.to_bits()),
        Value::Str(text) => Key::Str(text.shared().clone()),
        Value::Tuple(seq) => Key::Tuple(seq.items.iter().map(key).collect::<Outcome<_>>()?),
        Value::Namespace(index) => Key::Object(*index),
        Value::Undefined(_) => Key::Object(usize::MAX),
        other => return Err(Fault::failed(format!("unhashable type: '{}'", other.type_name()))),
    })
}

impl Dict {
    /// Later entries replace the values of earlier ones with the same key.
    pub(crate) fn new(entries: impl IntoIterator<Item = (Value, Value)>) -> Outcome<Dict> {
        let mut dict = Dict { depth: 1, ..Dict::default() };
        for (key, value) in entries {
            dict.insert(key, value)?;
        }
        Ok(dict)
    }

    pub(crate) fn insert(&mut self, name: Value, value: Value) -> Outcome<()> {
        self.depth = self.depth.max(deeper([&name, &value].into_iter())?);
        match self.find(&name)? {
            Some(at) => self.entries[at].1 = value,
            None => {
                let at = self.entries.len();
                if at == SEARCHED {
                    for (i, (name, _)) in self.entries.iter().enumerate() {
                        self.index.insert(key(name)?, i);
                    }
                }
                if at >= SEARCHED {
                    self.index.insert(key(&name)?, at);
                }
                self.entries.push((name, value));
            }
        }
        Ok(())
    }

    fn find(&self, name: &Value) -> Outcome<Option<usize>> {
        if self.entries.len() > SEARCHED {
            return Ok(self.index.get(&key(name)?).copied());
        }
        if let Value::Str(name) = name {
            let is_it = |(other, _): &(Value, Value)| other.as_str() == Some(&**name);
            return Ok(self.entries.iter().position(is_it));
        }
        let wanted = key(name)?;
        for (at, (other, _)) in self.entries.iter().enumerate() {
            if key(other)? == wanted {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    pub(crate) fn get(&self, name: &Value) -> Outcome<Option<&Value>> {
        Ok(self.find(name)?.map(|at| &self.entries[at].1))
    }

    pub(crate) fn get_str(&self, name: &str) -> Option<&Value> {
        if self.entries.len() > SEARCHED {
            return self.index.get(&Key::Str(name.into())).map(|&at| &self.entries[at].1);
        }
        self.entries.iter().find(|(other, _)| other.as_str() == Some(name)).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Value> {
        self.entries.iter().map(|(key, _)| key)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_python_keys_are_one_key_and_order_is_kept() {
        let mut dict = Dict::default();
        for i in 0..20 {
            dict.insert(Value::Int(19 - i), Value::Int(i)).unwrap();
        }
        dict.insert(Value::Bool(true), Value::None).unwrap();
        dict.insert(Value::Float(0.0), Value::None).unwrap();
        assert_eq!(dict.len(), 20);
        assert!(matches!(dict.get(&Value::Int(1)).unwrap(), Some(Value::None)));
        assert!(matches!(dict.keys().next(), Some(Value::Int(19))));
        assert!(dict.insert(Value::list(vec![]).unwrap(), Value::None).is_err());
    }
}
