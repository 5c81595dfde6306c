use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use gyrus_tensor::DType;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::quote::Quote;

/// The parsed header, before its ranges are checked against the file.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// In file order.
    pub(super) entries: Vec<(String, Described)>,
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) struct Described {
    pub(super) dtype: Result<DType, String>,
    pub(super) rank: usize,
    /// The first dimensions; the caller rejects a rank beyond `MAX_RANK`.
    pub(super) dims: [u64; gyrus_tensor::MAX_RANK],
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Header {
    /// Parses the header. On an error inside a tensor entry, `tensor` is its name.
    pub(super) fn parse(text: &str, tensor: &mut Option<String>) -> serde_json::Result<Header> {
        let mut json = serde_json::Deserializer::from_str(text);
        let header = json.deserialize_map(HeaderVisitor { tensor })?;
        json.end()?;
        Ok(header)
    }
}

struct HeaderVisitor<'a> {
    tensor: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(de::Error::custom("'__metadata__' occurs twice"));
                }
                header.metadata = map.next_value::<StringMap>()?.0;
            } else if name.is_empty() {
                return Err(de::Error::custom("a tensor's name is empty"));
            } else {
                *self.tensor = Some(name.clone());
                header.entries.push((name, map.next_value()?));
                *self.tensor = None;
            }
        }
        Ok(header)
    }
}

/// A map of strings without duplicate keys.
pub(super) struct StringMap(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StringMap, D::Error> {
        struct StringMapVisitor;

        impl<'de> Visitor<'de> for StringMapVisitor {
            type Value = StringMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    match strings.entry(key) {
                        Entry::Vacant(slot) => drop(slot.insert(value)),
                        Entry::Occupied(slot) => {
                            return Err(de::Error::custom(format!("{} occurs twice", Quote(slot.key()))));
                        }
                    }
                }
                Ok(StringMap(strings))
            }
        }

        deserializer.deserialize_map(StringMapVisitor)
    }
}

impl<'de> Deserialize<'de> for Described {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Described, D::Error> {
        struct DescribedVisitor;

        impl<'de> Visitor<'de> for DescribedVisitor {
            type Value = Described;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Described, A::Error> {
                let (mut dtype, mut shape, mut range) = (None, None, None);
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "dtype" => once(&mut dtype, map.next_value::<String>()?, "dtype")?,
                        "shape" => once(&mut shape, map.next_value::<Dims>()?, "shape")?,
                        "data_offsets" => once(&mut range, map.next_value::<(u64, u64)>()?, "data_offsets")?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let dtype = dtype.ok_or_else(|| de::Error::missing_field("dtype"))?;
                let Dims { rank, dims } = shape.ok_or_else(|| de::Error::missing_field("shape"))?;
                let (start, end) = range.ok_or_else(|| de::Error::missing_field("data_offsets"))?;
                Ok(Described { dtype: dtype_of(dtype), rank, dims, start, end })
            }
        }

        deserializer.deserialize_map(DescribedVisitor)
    }
}

fn once<T, E: de::Error>(slot: &mut Option<T>, value: T, field: &'static str) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(field)),
    }
}

/// A list of dimensions, read without allocation even if it is very long.
struct Dims {
    rank: usize,
    dims: [u64; gyrus_tensor::MAX_RANK],
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dims, D::Error> {
        struct DimsVisitor;

        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut all = Dims { rank: 0, dims: [0; gyrus_tensor::MAX_RANK] };
                while let Some(dim) = seq.next_element()? {
                    if let Some(slot) = all.dims.get_mut(all.rank) {
                        *slot = dim;
                    }
                    all.rank += 1;
                }
                Ok(all)
            }
        }

        deserializer.deserialize_seq(DimsVisitor)
    }
}

/// The type of a SafeTensors dtype name; the format has no block types.
fn dtype_of(name: String) -> Result<DType, String> {
    let dtype = DType::ALL.iter().find(|d| d.name() == name && !d.is_quantized());
    dtype.copied().ok_or(name)
}
