use std::collections::BTreeMap;

use gyrus_formats::gguf::{Array, Number, Value, ValueType};
use gyrus_formats::{Checkpoint, Format};
use gyrus_tensor::DType;
use serde::Serialize;
use serde_json::json;

use super::kv::KvCache;

/// Elements of an array that are shown unless all are asked for.
const FEW: usize = 8;
/// Characters of a text that are shown unless all are asked for.
const BRIEF: usize = 160;

/// Everything `gyrus inspect` says, in the order it says it.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) path: String,
    pub(crate) format: &'static str,
    pub(crate) architecture: Option<String>,
    pub(crate) files: Vec<File>,
    /// In file order.
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    pub(crate) tensors: Vec<Tensor>,
    /// Largest first.
    pub(crate) types: Vec<TypeShare>,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
    pub(crate) kv_cache: Option<KvCache>,
}

#[derive(Debug, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) dtype: &'static str,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: u64,
    pub(crate) file: usize,
    pub(crate) offset: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct TypeShare {
    #[serde(rename = "type")]
    pub(crate) dtype: &'static str,
    pub(crate) tensors: u64,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
}

impl Summary {
    pub(crate) fn new(model: &Checkpoint, context: Option<u64>, full: bool) -> Summary {
        let mut tensors = Vec::new();
        let mut types: BTreeMap<DType, TypeShare> = BTreeMap::new();
        let (mut elements, mut bytes) = (0u64, 0u64);
        for tensor in model.tensors() {
            let (n, size) = (tensor.shape.elems() as u64, tensor.data.len() as u64);
            // Tensors lie in files without overlap, so sums stay below the files' total.
            elements += n;
            bytes += size;
            let share = types.entry(tensor.dtype).or_insert(TypeShare {
                dtype: tensor.dtype.name(),
                tensors: 0,
                elements: 0,
                bytes: 0,
            });
            share.tensors += 1;
            share.elements += n;
            share.bytes += size;
            tensors.push(Tensor {
                name: tensor.name.to_owned(),
                dtype: tensor.dtype.name(),
                shape: tensor.shape.dims().to_vec(),
                bytes: size,
                file: tensor.shard,
                offset: tensor.at,
            });
        }
        let mut types: Vec<TypeShare> = types.into_values().collect();
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        Summary {
            path: model.path().display().to_string(),
            format: match model.format() {
                Format::Gguf => "GGUF",
                Format::SafeTensors => "SafeTensors",
                Format::WhisperGgml => "Whisper GGML",
            },
            architecture: architecture(model),
            files: model
                .files()
                .iter()
                .map(|(path, bytes)| File { path: path.display().to_string(), bytes: *bytes })
                .collect(),
            metadata: metadata(model, full),
            tensors,
            types,
            elements,
            bytes,
            kv_cache: KvCache::of(model, context),
        }
    }
}

/// The architecture that a file names.
pub(crate) fn architecture(model: &Checkpoint) -> Option<String> {
    match model.gguf() {
        Some(metadata) => metadata.get::<&str>("general.architecture").ok()?.map(str::to_owned),
        None => model.config()?.get("model_type")?.as_str().map(str::to_owned),
    }
}

/// A GGUF's keys, or the fields of `config.json`.
fn metadata(model: &Checkpoint, full: bool) -> serde_json::Map<String, serde_json::Value> {
    match (model.gguf(), model.config()) {
        (Some(metadata), _) => {
            metadata.iter().map(|(key, value)| (key.to_owned(), value_of(value, full))).collect()
        }
        (None, Some(serde_json::Value::Object(fields))) => fields.clone(),
        (None, _) => serde_json::Map::new(),
    }
}

fn value_of(value: Value<'_>, full: bool) -> serde_json::Value {
    match value {
        Value::Number(number) => number_of(number),
        Value::Str(bytes) => text_of(bytes, full),
        Value::Array(array) => array_of(array, full),
    }
}

fn number_of(number: Number) -> serde_json::Value {
    match number {
        Number::Unsigned(v) => json!(v),
        Number::Signed(v) => json!(v),
        Number::Bool(v) => json!(v),
        // Display spells an f32 with its own digits; JSON has no NaN and no infinities.
        Number::Float(v) if v.is_finite() => {
            number.to_string().parse().map_or_else(|_| json!(v), serde_json::Value::Number)
        }
        Number::Float(v) => json!(v.to_string()),
    }
}

fn text_of(bytes: &[u8], full: bool) -> serde_json::Value {
    let text = String::from_utf8_lossy(bytes);
    if full || text.chars().nth(BRIEF).is_none() {
        return json!(text);
    }
    let head: String = text.chars().take(BRIEF).collect();
    json!(format!("{head}… ({} bytes)", bytes.len()))
}

fn array_of(array: Array<'_>, full: bool) -> serde_json::Value {
    let few = if full { usize::MAX } else { FEW };
    let items: Vec<serde_json::Value> = if array.kind() == ValueType::Str {
        array.strings().take(few).map(|text| text_of(text, full)).collect()
    } else {
        array.numbers().take(few).map(number_of).collect()
    };
    if items.len() == array.len() {
        return serde_json::Value::Array(items);
    }
    json!({ "array_of": array.kind().to_string(), "length": array.len(), "first": items })
}
