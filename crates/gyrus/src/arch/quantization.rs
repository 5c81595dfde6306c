//! The quantisation of MLX folders: settings in `config.json`, and three tensors for each quantised weight.
//!
//! `NAME.weight` has the quants as words of 32 bits, `NAME.scales` and `NAME.biases` have a number for each group.
//! `docs/mlx.md` describes the format.

use std::collections::HashMap;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_tensor::{AffineRows, DType, Shape};
use serde_json::Value;

use super::fields::Fields;
use crate::Error;

/// Bits of a quant and elements of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Affine {
    bits: usize,
    group: usize,
}

/// The settings of a model. Single layers, named like their tensors, may have others or be excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quantization {
    all: Affine,
    layers: HashMap<String, Option<Affine>>,
}

/// A weight as kernels read it, and the file's other tensors that it consists of.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) parts: Vec<String>,
}

impl Quantization {
    /// Reads and checks `quantization` of a `config.json`, if it has it. MLX repeats it as `quantization_config`, which
    /// other programs use for formats of their own.
    pub(super) fn read(config: &Value) -> Result<Option<Quantization>, Error> {
        let whole = Fields(config);
        let text = whole.object("text_config");
        let find = |name: &str| whole.get(name).or(text.get(name));
        match (find("quantization"), find("quantization_config")) {
            (None, None) => Ok(None),
            // The experts of gpt-oss; their tensors have names of their own.
            (None, Some(other)) if other["quant_method"] == "mxfp4" => Ok(None),
            (None, Some(other)) => Err(foreign(other)),
            (Some(given), Some(other)) if given != other => Err(foreign(other)),
            (Some(given), _) => Quantization::of(given).map(Some),
        }
    }

    fn of(given: &Value) -> Result<Quantization, Error> {
        let Some(settings) = given.as_object() else {
            return Err(Error::Config("'quantization' is not an object".to_owned()));
        };
        let all = Affine::read(Fields(given), "quantization")?;
        let mut layers = HashMap::new();
        for (name, value) in settings {
            let own = match value {
                _ if ["group_size", "bits", "mode"].contains(&name.as_str()) => continue,
                Value::Bool(true) => Some(all),
                Value::Bool(false) => None,
                Value::Object(_) => Some(Affine::read(Fields(value), &format!("quantization.{name}"))?),
                _ => return Err(Error::Unsupported(format!("'quantization.{name}' in config.json"))),
            };
            layers.insert(name.clone(), own);
        }
        Ok(Quantization { all, layers })
    }

    /// The weight that a tensor of words stands for; `None` if it is not quantised.
    pub(super) fn stored(
        &self,
        model: &Checkpoint,
        tensor: &TensorView<'_>,
    ) -> Result<Option<Stored>, Error> {
        let Some(stem) = tensor.name.strip_suffix(".weight").filter(|_| tensor.dtype == DType::U32) else {
            return Ok(None);
        };
        let Some(affine) = self.layers.get(stem).copied().unwrap_or(Some(self.all)) else {
            let what = format!("tensor '{}' of type U32, which 'quantization' excludes,", tensor.name);
            return Err(Error::Unsupported(what));
        };
        let part = |suffix: &str| {
            let name = format!("{stem}.{suffix}");
            model.tensor(&name).ok_or(Error::MissingTensor(name))
        };
        let (scales, biases) = (part("scales")?, part("biases")?);
        let dtype = affine
            .dtype(scales.dtype)
            .ok_or_else(|| Error::TensorType { name: scales.name.to_owned(), dtype: scales.dtype })?;
        if biases.dtype != scales.dtype {
            let what = format!("tensor '{}' of type {}, other than its scales", biases.name, biases.dtype);
            return Err(Error::Unsupported(what));
        }
        let shape = affine.shape(tensor)?;
        for part in [&scales, &biases] {
            let groups = shape.row() / affine.group;
            if part.shape.dims() != [shape.rows(), groups] {
                let Affine { bits, group } = affine;
                return Err(Error::TensorShape {
                    name: part.name.to_owned(),
                    found: part.shape.to_string(),
                    expected: format!(
                        "{} × {groups} for quants of {bits} bits in groups of {group}",
                        shape.rows()
                    ),
                });
            }
        }
        let parts = vec![scales.name.to_owned(), biases.name.to_owned()];
        Ok(Some(Stored { name: tensor.name.to_owned(), dtype, shape, parts }))
    }
}

/// The error for settings of another program.
fn foreign(other: &Value) -> Error {
    let place = "'quantization_config' in config.json";
    Error::Unsupported(match other.get("quant_method").and_then(Value::as_str) {
        Some(method) => format!("quantisation '{method}' ({place})"),
        None => place.to_owned(),
    })
}

impl Affine {
    fn read(fields: Fields<'_>, place: &str) -> Result<Affine, Error> {
        if let Some(mode) = fields.optional_text("mode")?.filter(|mode| *mode != "affine") {
            let what = format!("quantisation mode '{mode}' ('{place}.mode' in config.json)");
            return Err(Error::Unsupported(what));
        }
        let number = |name: &str, known: &[u64]| match fields.optional_number(name)? {
            Some(n) if known.contains(&n) => Ok(n as usize),
            Some(n) => Err(Error::Unsupported(format!("'{place}.{name}' of {n} in config.json"))),
            None => Err(Error::Config(format!("'{place}.{name}' is missing"))),
        };
        Ok(Affine {
            bits: number("bits", &[2, 3, 4, 5, 6, 8])?,
            group: number("group_size", &[32, 64, 128])?,
        })
    }

    fn dtype(self, scale: DType) -> Option<DType> {
        let Affine { bits, group } = self;
        AffineRows { bits, group, scale, quants: &[], scales: &[], biases: &[] }.dtype()
    }

    /// The shape of a weight, from that of its words.
    fn shape(self, tensor: &TensorView<'_>) -> Result<Shape, Error> {
        let Affine { bits, group } = self;
        let contradiction = || Error::TensorShape {
            name: tensor.name.to_owned(),
            found: tensor.shape.to_string(),
            expected: format!("rows of whole groups of {group} elements of {bits} bits"),
        };
        let [rows, words] = *tensor.shape.dims() else { return Err(contradiction()) };
        let row_bits = words.checked_mul(32).filter(|row| row % (bits * group) == 0);
        let cols = row_bits.ok_or_else(contradiction)? / bits;
        Shape::new(&[rows, cols]).map_err(|_| contradiction())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn layers_override_the_settings_of_the_model() {
        let settings = json!({
            "group_size": 64, "bits": 4,
            "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8, "mode": "affine"},
            "lm_head": false, "model.embed_tokens": true,
        });
        let read = |config: Value| Quantization::read(&config).unwrap();
        let found = read(json!({"quantization": settings, "quantization_config": settings})).unwrap();
        assert_eq!(found.all, Affine { bits: 4, group: 64 });
        assert_eq!(found.layers["model.layers.0.mlp.down_proj"], Some(Affine { bits: 8, group: 32 }));
        assert_eq!(found.layers["lm_head"], None);
        assert_eq!(found.layers["model.embed_tokens"], Some(found.all));
        assert_eq!(read(json!({})), None);
        assert_eq!(read(json!({"text_config": {"quantization": settings}})), Some(found));
    }

    #[test]
    fn other_settings_are_refused_by_name() {
        let base = json!({"group_size": 64, "bits": 4});
        for (change, part) in [
            (json!({"bits": 7}), "'quantization.bits' of 7"),
            (json!({"bits": 16}), "'quantization.bits' of 16"),
            (json!({"bits": "4"}), "'bits' is not an unsigned integer"),
            (json!({"bits": null}), "'quantization.bits' is missing"),
            (json!({"group_size": 16}), "'quantization.group_size' of 16"),
            (json!({"mode": "mxfp4"}), "mode 'mxfp4' ('quantization.mode'"),
            (json!({"mode": "nvfp4"}), "mode 'nvfp4'"),
            (json!({"lm_head": {"bits": 4}}), "'quantization.lm_head.group_size' is missing"),
            (
                json!({"lm_head": {"bits": 8, "group_size": 32, "mode": "mxfp8"}}),
                "'quantization.lm_head.mode'",
            ),
            (json!({"quant_method": "x"}), "'quantization.quant_method'"),
        ] {
            let mut settings = base.clone();
            for (name, value) in change.as_object().unwrap() {
                settings[name] = value.clone();
            }
            let error = Quantization::read(&json!({"quantization": settings})).unwrap_err().to_string();
            assert!(error.contains(part), "{change}: {error}");
        }
        for (config, part) in [
            (json!({"quantization": 4}), "'quantization' is not an object"),
            (json!({"quantization_config": {}}), "'quantization_config' in config.json"),
            (json!({"quantization_config": {"quant_method": "gptq"}}), "quantisation 'gptq'"),
            (json!({"quantization": base, "quantization_config": {"bits": 4}}), "'quantization_config'"),
        ] {
            let error = Quantization::read(&config).unwrap_err().to_string();
            assert!(error.contains(part), "{config}: {error}");
        }
    }
}
