//! The weights of a plan: tensors of a checkpoint, checked against the shapes that the plan needs.

use std::collections::HashSet;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::{CONV_TAPS, RowBlocks, WeightId, WeightSpec};
use gyrus_tensor::{DType, Shape, can_dequantize, dequantize};

use super::config::{Skipped, SkippedPart};
use super::quantization::{Quantization, Stored};
use super::tensor_names::{
    GlobalTensor, LayerTensor, OTHER_TOWERS, PREDICTION_LAYERS, ROPE_FACTORS, ROPE_FACTORS_LONG,
    ROPE_FACTORS_SHORT, TensorNames,
};
use crate::Error;

/// Collects the weights that a plan uses.
pub(super) struct Weights<'a> {
    model: &'a Checkpoint,
    pub(super) names: TensorNames,
    /// What is added to the weights of norms.
    norm_plus: f32,
    /// How an MLX folder is quantised.
    quantization: Option<Quantization>,
    /// The type that matrices of floats are quantised to when they are loaded.
    quantize: Option<DType>,
    pub(super) specs: Vec<WeightSpec>,
    pub(super) used: HashSet<String>,
    /// What is not loaded.
    skipped: Vec<Skipped>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(
        model: &'a Checkpoint,
        names: TensorNames,
        norm_plus: f32,
        quantization: Option<Quantization>,
        quantize: Option<DType>,
    ) -> Weights<'a> {
        let skipped = match names {
            TensorNames::Gguf => Vec::new(),
            TensorNames::HuggingFace { .. } => {
                let towers = OTHER_TOWERS.iter().map(|name| (name, SkippedPart::Tower));
                let layers = PREDICTION_LAYERS.iter().map(|name| (name, SkippedPart::PredictionLayers));
                towers.chain(layers).map(|(name, part)| Skipped { name: (*name).to_owned(), part }).collect()
            }
        };
        let (specs, used) = (Vec::new(), HashSet::new());
        Weights { model, names, norm_plus, quantization, quantize, specs, used, skipped }
    }

    /// Skips the layers after the first `count` ones that predict several tokens.
    pub(super) fn skip_layers(&mut self, count: usize, extra: usize) {
        let skipped = |layer| Skipped {
            name: match &self.names {
                TensorNames::Gguf => format!("blk.{layer}."),
                TensorNames::HuggingFace { prefix, .. } => format!("{prefix}layers.{layer}."),
            },
            part: SkippedPart::PredictionLayers,
        };
        let all: Vec<Skipped> = (count..count + extra).map(skipped).collect();
        self.skipped.extend(all);
    }

    /// Skips the tensors of a head, whose names begin with this.
    pub(super) fn skip_head(&mut self, name: String) {
        self.skipped.push(Skipped { name, part: SkippedPart::Head });
    }

    /// A tensor, if the file has it.
    pub(super) fn tensor(&self, name: &str) -> Option<TensorView<'a>> {
        self.model.tensor(name)
    }

    pub(super) fn find(&self, name: &str) -> Result<TensorView<'a>, Error> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor(name.to_owned()))
    }

    /// Whether the file has a tensor of a layer.
    pub(super) fn has(&self, layer: usize, part: LayerTensor) -> bool {
        self.tensor(&self.names.layer(layer, part)).is_some()
    }

    /// A tensor of a layer.
    pub(super) fn layer(
        &mut self,
        layer: usize,
        part: LayerTensor,
        dims: &[usize],
    ) -> Result<WeightId, Error> {
        let tensor = self.find(&self.names.layer(layer, part))?;
        self.add(tensor, dims)
    }

    /// Weights whose blocks of rows take turns in one tensor, `turns` times: `blocks` has the rows of each one's blocks.
    pub(super) fn interleaved<const N: usize>(
        &mut self,
        layer: usize,
        part: LayerTensor,
        blocks: [usize; N],
        turns: usize,
        cols: usize,
    ) -> Result<[WeightId; N], Error> {
        let step: usize = blocks.iter().sum();
        let tensor = self.find(&self.names.layer(layer, part))?;
        let stored = self.checked(&tensor, &[turns * step, cols])?;
        let (mut first_row, mut ids) = (0, [WeightId(0); N]);
        for (rows, id) in blocks.into_iter().zip(&mut ids) {
            let shape = Shape::new(&[turns * rows, cols]).map_err(|e| Error::Unsupported(e.to_string()))?;
            let dtype = self.dtype(&stored, shape)?;
            let blocks = Some(RowBlocks { rows, step });
            *id = self.push(WeightSpec { first_row, blocks, ..WeightSpec::new(&stored.name, dtype, shape) });
            first_row += rows;
        }
        Ok(ids)
    }

    /// The taps of a layer's convolution, one after the other.
    pub(super) fn delta_taps(&mut self, layer: usize, channels: usize) -> Result<WeightId, Error> {
        let tensor = self.find(&self.names.layer(layer, LayerTensor::DeltaTaps))?;
        let stored = match self.names.is_gguf() {
            true => self.checked(&tensor, &[channels, CONV_TAPS])?,
            false => self.checked(&tensor, &[channels, 1, CONV_TAPS])?,
        };
        let flat = Shape::new(&[channels * CONV_TAPS]).map_err(|e| Error::Unsupported(e.to_string()))?;
        Ok(self.push(WeightSpec::new(stored.name, stored.dtype, flat)))
    }

    /// A tensor outside the layers.
    pub(super) fn global(&mut self, tensor: GlobalTensor, dims: &[usize]) -> Result<WeightId, Error> {
        let tensor = self.find(&self.names.global(tensor))?;
        self.add(tensor, dims)
    }

    /// The weight of a norm in a layer.
    pub(super) fn layer_norm(
        &mut self,
        layer: usize,
        part: LayerTensor,
        dim: usize,
    ) -> Result<WeightId, Error> {
        let id = self.layer(layer, part, &[dim])?;
        self.specs[id.0 as usize].plus = self.norm_plus;
        Ok(id)
    }

    /// The weight of a norm outside the layers.
    pub(super) fn global_norm(&mut self, tensor: GlobalTensor, dim: usize) -> Result<WeightId, Error> {
        let id = self.global(tensor, &[dim])?;
        self.specs[id.0 as usize].plus = self.norm_plus;
        Ok(id)
    }

    /// The bias of a layer's projection: required, or used if the file has it.
    pub(super) fn bias(
        &mut self,
        layer: usize,
        part: LayerTensor,
        dim: usize,
        required: bool,
    ) -> Result<Option<WeightId>, Error> {
        let name = self.names.bias(layer, part);
        if self.tensor(&name).is_none() && !required {
            return Ok(None);
        }
        let tensor = self.find(&name)?;
        self.add(tensor, &[dim]).map(Some)
    }

    /// Several weights that a file has one below the other in one tensor.
    pub(super) fn fused(
        &mut self,
        layer: usize,
        part: LayerTensor,
        rows: &[usize],
        cols: usize,
    ) -> Result<Vec<WeightId>, Error> {
        let tensor = self.find(&self.names.layer(layer, part))?;
        let stored = self.checked(&tensor, &[rows.iter().sum(), cols])?;
        let (mut first_row, mut ids) = (0, Vec::new());
        for count in rows {
            let shape = Shape::new(&[*count, cols]).map_err(|e| Error::Unsupported(e.to_string()))?;
            let dtype = self.dtype(&stored, shape)?;
            let spec = WeightSpec { first_row, ..WeightSpec::new(&stored.name, dtype, shape) };
            first_row += count;
            ids.push(self.push(spec));
        }
        Ok(ids)
    }

    /// A vector of ones, for norms without a weight.
    pub(super) fn ones(&mut self, dim: usize) -> Result<WeightId, Error> {
        let shape = Shape::new(&[dim]).map_err(|e| Error::Unsupported(e.to_string()))?;
        let spec = WeightSpec { plus: 1.0, constant: true, ..WeightSpec::new("ones", DType::F32, shape) };
        match self.specs.iter().position(|known| *known == spec) {
            Some(at) => Ok(WeightId(at as u32)),
            None => Ok(self.push(spec)),
        }
    }

    /// The value of a tensor with one element.
    pub(super) fn scalar(&mut self, name: &str) -> Result<f32, Error> {
        let tensor = self.find(name)?;
        self.checked(&tensor, &[1])?;
        let mut value = [0.0];
        dequantize(tensor.dtype, tensor.data, &mut value)
            .map_err(|source| Error::Tensor { name: name.to_owned(), source })?;
        self.used.insert(name.to_owned());
        super::config::factor(name, value[0].into())
    }

    /// Adds a tensor. Its shape and type are checked.
    pub(super) fn add(&mut self, tensor: TensorView<'_>, dims: &[usize]) -> Result<WeightId, Error> {
        let stored = self.checked(&tensor, dims)?;
        let dtype = self.dtype(&stored, stored.shape)?;
        Ok(self.push(WeightSpec::new(stored.name, dtype, stored.shape)))
    }

    /// The type of a weight once it is loaded. Vectors and weights that are quantised already keep their type.
    fn dtype(&self, stored: &Stored, shape: Shape) -> Result<DType, Error> {
        self.loaded_dtype(&stored.name, stored.dtype, shape)
    }

    pub(super) fn loaded_dtype(&self, name: &str, stored: DType, shape: Shape) -> Result<DType, Error> {
        match self.quantize.filter(|_| shape.rank() >= 2 && !stored.is_quantized()) {
            None => Ok(stored),
            Some(dtype) => match dtype.bytes_of(&shape) {
                Ok(_) => Ok(dtype),
                Err(source) => Err(Error::Tensor { name: name.to_owned(), source }),
            },
        }
    }

    /// A tensor as kernels read it. Its shape and type are checked.
    pub(super) fn checked(&mut self, tensor: &TensorView<'_>, dims: &[usize]) -> Result<Stored, Error> {
        let quantised = self.quantization.as_ref().map(|all| all.stored(self.model, tensor)).transpose()?;
        let stored = quantised.flatten().unwrap_or_else(|| Stored {
            name: tensor.name.to_owned(),
            dtype: tensor.dtype,
            shape: tensor.shape,
            parts: Vec::new(),
        });
        if !can_dequantize(stored.dtype) {
            return Err(Error::TensorType { name: stored.name, dtype: stored.dtype });
        }
        if stored.shape.dims() != dims {
            let expected = Shape::new(dims).map_err(|e| Error::Unsupported(e.to_string()))?.to_string();
            let found = stored.shape.to_string();
            return Err(Error::TensorShape { name: stored.name, found, expected });
        }
        self.used.extend(stored.parts.iter().cloned());
        Ok(stored)
    }

    pub(super) fn push(&mut self, spec: WeightSpec) -> WeightId {
        self.used.insert(spec.name.clone());
        self.specs.push(spec);
        WeightId(self.specs.len() as u32 - 1)
    }

    /// An unused tensor means that the model's forward pass differs from this plan. Other towers of a multimodal model
    /// and layers that predict several tokens are known not to be part of it.
    pub(super) fn check_all_used(&self) -> Result<(), Error> {
        let left = |t: &TensorView<'_>| {
            let factors = [ROPE_FACTORS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG];
            let known = factors.contains(&t.name)
                || t.name.ends_with("rotary_emb.inv_freq")
                || self.skipped.iter().any(|skipped| t.name.starts_with(&skipped.name));
            !known && !self.used.contains(t.name)
        };
        match self.model.tensors().find(left) {
            Some(tensor) => Err(Error::UnusedTensor(tensor.name.to_owned())),
            None => Ok(()),
        }
    }

    /// What the file has that is not loaded.
    pub(super) fn skipped(&self) -> Vec<Skipped> {
        let has = |one: &&Skipped| self.model.tensors().any(|t| t.name.starts_with(&one.name));
        let shown =
            |one: &Skipped| Skipped { name: one.name.trim_end_matches('.').to_owned(), part: one.part };
        self.skipped.iter().filter(has).map(shown).collect()
    }
}
