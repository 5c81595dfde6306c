use std::collections::HashSet;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::{
    Activation, BufferId, BufferSpec, KvSpec, Op, Plan, Precision, RopeId, Rows, WeightId, WeightSpec,
};
use gyrus_tensor::{Shape, can_dequantize};

use super::config::Config;
use super::tensor_names::{
    GlobalTensor, LayerTensor, ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, TensorNames,
};
use super::{gguf, hugging_face};
use crate::Error;

/// Reads a model's configuration and builds its plan.
pub(crate) fn build(model: &Checkpoint, precision: Precision) -> Result<(Config, Plan), Error> {
    let (config, names) = match (model.gguf(), model.config()) {
        (Some(metadata), _) => (gguf::read(model, metadata)?, TensorNames::Gguf),
        (None, Some(config)) => (hugging_face::read(config)?, TensorNames::HuggingFace),
        (None, None) => {
            let path = model.path().display();
            return Err(Error::Unsupported(format!("{path}: a model without a config.json beside it")));
        }
    };
    let plan = Builder::new(model, names, &config).build(precision)?;
    Ok((config, plan))
}

/// The forward pass of a decoder-only transformer, top to bottom.
struct Builder<'a> {
    model: &'a Checkpoint,
    names: TensorNames,
    config: &'a Config,
    weights: Vec<WeightSpec>,
    used: HashSet<String>,
}

impl<'a> Builder<'a> {
    fn new(model: &'a Checkpoint, names: TensorNames, config: &'a Config) -> Builder<'a> {
        Builder { model, names, config, weights: Vec::new(), used: HashSet::new() }
    }

    fn build(mut self, precision: Precision) -> Result<Plan, Error> {
        let c = self.config;
        let (dim, ffn) = (c.dim, c.ffn_dim);
        let kv = KvSpec { layers: c.layers, heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let (q, k) = (kv.q_width(), kv.row());

        let embedding_name = self.names.global(GlobalTensor::Embedding);
        let embedding = self.find(embedding_name)?;
        // The vocabulary size is the number of rows.
        let vocab = embedding.shape.rows();
        let table = self.add_weight(embedding, &[vocab, dim])?;
        let output = self.names.global(GlobalTensor::Output);
        // Without an output matrix the embedding is tied, unless `config.json` denies it.
        let untied = self.model.config().is_some_and(|c| c["tie_word_embeddings"] == false);
        let head = match self.model.tensor(output) {
            Some(tensor) => self.add_weight(tensor, &[vocab, dim])?,
            None if untied => return Err(Error::MissingTensor(output.to_owned())),
            None => table,
        };

        let mut buffers = Vec::new();
        let mut buffer = |name, width, rows| {
            buffers.push(BufferSpec { name, width, rows });
            BufferId(buffers.len() as u16 - 1)
        };
        let stream = buffer("stream", dim, Rows::Batch);
        let normed = buffer("normed", dim, Rows::Batch);
        let qkv = buffer("qkv", q + 2 * k, Rows::Batch);
        let attended = buffer("attended", q, Rows::Batch);
        let gate_up = buffer("gate_up", 2 * ffn, Rows::Batch);
        let gated = buffer("gated", ffn, Rows::Batch);
        let last = buffer("last", dim, Rows::Logits);
        let logits = buffer("logits", vocab, Rows::Logits);

        let mut ops = vec![Op::Embed { table, scale: 1.0, out: stream }];
        for layer in 0..c.layers {
            let norm = self.layer(layer, LayerTensor::AttentionNorm, &[dim])?;
            ops.push(Op::RmsNorm { x: stream, weight: norm, eps: c.norm_eps, out: normed });
            let weights = vec![
                self.layer(layer, LayerTensor::Q, &[q, dim])?,
                self.layer(layer, LayerTensor::K, &[k, dim])?,
                self.layer(layer, LayerTensor::V, &[k, dim])?,
            ];
            ops.push(Op::MatMul { x: normed, weights, accumulate: false, out: qkv });
            let head_norm = self.head_norm(layer)?;
            let at = layer as u16;
            ops.push(Op::RopeWrite { qkv, layer: at, head_norm, rope: RopeId(0) });
            let scale = 1.0 / (c.head_dim as f32).sqrt();
            ops.push(Op::Attention { qkv, layer: at, scale, window: c.window, out: attended });
            let weights = vec![self.layer(layer, LayerTensor::AttentionOutput, &[dim, q])?];
            ops.push(Op::MatMul { x: attended, weights, accumulate: true, out: stream });

            let norm = self.layer(layer, LayerTensor::FfnNorm, &[dim])?;
            ops.push(Op::RmsNorm { x: stream, weight: norm, eps: c.norm_eps, out: normed });
            let weights = vec![
                self.layer(layer, LayerTensor::Gate, &[ffn, dim])?,
                self.layer(layer, LayerTensor::Up, &[ffn, dim])?,
            ];
            ops.push(Op::MatMul { x: normed, weights, accumulate: false, out: gate_up });
            ops.push(Op::Gate { x: gate_up, activation: Activation::Silu, out: gated });
            let weights = vec![self.layer(layer, LayerTensor::Down, &[dim, ffn])?];
            ops.push(Op::MatMul { x: gated, weights, accumulate: true, out: stream });
        }
        ops.push(Op::Gather { x: stream, out: last });
        let norm = self.global(GlobalTensor::OutputNorm, &[dim])?;
        ops.push(Op::RmsNorm { x: last, weight: norm, eps: c.norm_eps, out: last });
        ops.push(Op::MatMul { x: last, weights: vec![head], accumulate: false, out: logits });

        self.check_all_used()?;
        Ok(Plan {
            precision,
            vocab,
            buffers,
            weights: self.weights,
            ropes: vec![c.rope.clone()],
            kv,
            forward: ops,
            select: vec![Op::Select { logits }],
            logits,
        })
    }

    /// The per-head norms of Q and K, if the model has them. One of them without the other is an error.
    fn head_norm(&mut self, layer: usize) -> Result<Option<(WeightId, WeightId, f32)>, Error> {
        let present = |part| self.model.tensor(&self.names.layer(layer, part)).is_some();
        if !present(LayerTensor::QNorm) && !present(LayerTensor::KNorm) {
            return Ok(None);
        }
        let shape = [self.config.head_dim];
        let q = self.layer(layer, LayerTensor::QNorm, &shape)?;
        let k = self.layer(layer, LayerTensor::KNorm, &shape)?;
        Ok(Some((q, k, self.config.norm_eps)))
    }

    fn find(&self, name: &str) -> Result<TensorView<'a>, Error> {
        self.model.tensor(name).ok_or_else(|| Error::MissingTensor(name.to_owned()))
    }

    fn layer(&mut self, layer: usize, part: LayerTensor, dims: &[usize]) -> Result<WeightId, Error> {
        let tensor = self.find(&self.names.layer(layer, part))?;
        self.add_weight(tensor, dims)
    }

    fn global(&mut self, tensor: GlobalTensor, dims: &[usize]) -> Result<WeightId, Error> {
        let tensor = self.find(self.names.global(tensor))?;
        self.add_weight(tensor, dims)
    }

    /// Adds a tensor to the plan's weights. Its shape and type are checked.
    fn add_weight(&mut self, tensor: TensorView<'_>, dims: &[usize]) -> Result<WeightId, Error> {
        if tensor.shape.dims() != dims {
            let expected = Shape::new(dims).map_err(|e| Error::Unsupported(e.to_string()))?.to_string();
            let found = tensor.shape.to_string();
            return Err(Error::TensorShape { name: tensor.name.to_owned(), found, expected });
        }
        if !can_dequantize(tensor.dtype) {
            return Err(Error::TensorType { name: tensor.name.to_owned(), dtype: tensor.dtype });
        }
        self.used.insert(tensor.name.to_owned());
        let spec = WeightSpec { name: tensor.name.to_owned(), dtype: tensor.dtype, shape: tensor.shape };
        self.weights.push(spec);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    /// An unused tensor means that the model's forward pass differs from this plan.
    fn check_all_used(&self) -> Result<(), Error> {
        let left = |t: &TensorView<'_>| {
            let factors = [ROPE_FACTORS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG];
            let known = factors.contains(&t.name) || t.name.ends_with("rotary_emb.inv_freq");
            !known && !self.used.contains(t.name)
        };
        match self.model.tensors().find(left) {
            Some(tensor) => Err(Error::UnusedTensor(tensor.name.to_owned())),
            None => Ok(()),
        }
    }
}
