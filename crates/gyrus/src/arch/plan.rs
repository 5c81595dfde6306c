use std::ops::Range;

use gyrus_formats::Checkpoint;
use gyrus_kernels::{
    Activation, BufferId, BufferSpec, DeltaShape, HIDDEN, HeadNorms, KvGroup, KvLayer, LOGITS, MAX_KV_GROUPS,
    Op, Output, Plan, Precision, RopeId, Rows, SCORES, Span, WeightId,
};
use gyrus_tensor::DType;

use super::config::{Attention, Config, Layer, Mixer, QkNorm};
use super::description::Arch;
use super::encoder;
use super::quantization::Quantization;
use super::reader;
use super::tensor_names::{GlobalTensor, LayerTensor, TensorNames};
use super::weights::Weights;
use crate::Error;

impl Config {
    /// Reads a model's configuration and builds its plan. No weight is loaded.
    pub fn read(model: &Checkpoint, precision: Precision) -> Result<(Config, Plan), Error> {
        build(model, precision, None)
    }
}

/// What a plan computes from the last hidden rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// Logits of the next token, of texts that are continued.
    Logits,
    /// Logits of the next token, of texts that are computed whole.
    Answer,
    /// The rows themselves, normalised.
    Hidden,
    /// The labels of a classifier of the rows.
    Labels,
}

impl Head {
    fn has_logits(self) -> bool {
        matches!(self, Head::Logits | Head::Answer)
    }

    /// Whether no position is computed in a later batch than those before it.
    fn takes_whole_texts(self) -> bool {
        self != Head::Logits
    }
}

/// Reads a model's configuration and builds its plan, with matrices of floats quantised to a type.
pub(crate) fn build(
    model: &Checkpoint,
    precision: Precision,
    quantize: Option<DType>,
) -> Result<(Config, Plan), Error> {
    build_with(model, Head::Logits, precision, quantize)
}

/// As [`build`], for this head.
pub(crate) fn build_with(
    model: &Checkpoint,
    head: Head,
    precision: Precision,
    quantize: Option<DType>,
) -> Result<(Config, Plan), Error> {
    if let Ok((_, found)) = encoder::find(model) {
        return Err(Error::WrongKind {
            found,
            what: "a text encoder, which generates no text",
            instead: "it computes embeddings, or is a reranker",
        });
    }
    let (mut config, arch, extra) = reader::read(model)?;
    if !head.takes_whole_texts() && config.layers.iter().filter_map(Layer::attention).any(|a| !a.causal) {
        return Err(Error::WrongKind {
            found: config.architecture,
            what: "a model whose rows attend to later positions, which generates no text",
            instead: "it computes embeddings, or is a reranker",
        });
    }
    let names = match model.gguf() {
        Some(_) => TensorNames::Gguf,
        None => TensorNames::hugging_face(model, arch.post_norms),
    };
    let plus = if arch.norms_minus_one && !names.is_gguf() { 1.0 } else { 0.0 };
    let quantization = model.config().map_or(Ok(None), Quantization::read)?;
    let mut weights = Weights::new(model, names, plus, quantization, quantize);
    weights.skip_layers(config.layers.len(), extra);
    let mut builder = Builder {
        arch,
        head,
        config: &config,
        weights,
        buffers: Vec::new(),
        groups: Vec::new(),
        delta: Vec::new(),
        ops: Vec::new(),
    };
    // Without an output matrix the embedding is tied, unless `config.json` denies it.
    let untied = model.config().is_some_and(|config| config["tie_word_embeddings"] == false);
    let plan = builder.build(precision, untied)?;
    config.skipped = builder.weights.skipped();
    Ok((config, plan))
}

/// The forward pass of a decoder-only transformer, top to bottom. Experts are in `plan_experts.rs`, Gated DeltaNet in
/// `delta_plan.rs`.
pub(super) struct Builder<'a> {
    pub(super) arch: &'a Arch,
    head: Head,
    pub(super) config: &'a Config,
    pub(super) weights: Weights<'a>,
    buffers: Vec<BufferSpec>,
    groups: Vec<KvGroup>,
    pub(super) delta: Vec<DeltaShape>,
    pub(super) ops: Vec<Op>,
}

impl Builder<'_> {
    fn build(&mut self, precision: Precision, untied: bool) -> Result<Plan, Error> {
        let c = self.config;
        let (dim, norm_eps) = (c.dim, c.norm_eps);

        let embedding_name = self.weights.names.global(GlobalTensor::Embedding);
        let Some(embedding) = self.weights.tensor(&embedding_name) else {
            return Err(Error::MissingTensor(embedding_name));
        };
        // The vocabulary size is the number of rows.
        let vocab = embedding.shape.rows();
        let table = self.weights.add(embedding, &[vocab, dim])?;
        let output_name = self.weights.names.global(GlobalTensor::Output);
        let head = match self.weights.tensor(&output_name) {
            _ if !self.head.has_logits() => {
                self.weights.skip_head(output_name);
                table
            }
            Some(tensor) => self.weights.add(tensor, &[vocab, dim])?,
            None if untied => return Err(Error::MissingTensor(output_name)),
            None => table,
        };

        let stream = self.buffer("stream", dim);
        self.ops.push(Op::Embed { table, scale: c.embedding_scale, out: stream });
        let inputs = match c.per_layer_input {
            Some(width) => Some((self.per_layer_inputs(stream, vocab, width)?, width)),
            None => None,
        };
        let mut kv_layers: Vec<Option<KvLayer>> = Vec::with_capacity(c.layers.len());
        let mut layers: Vec<Range<usize>> = Vec::with_capacity(c.layers.len());
        for (i, layer) in c.layers.iter().enumerate() {
            let first = self.ops.len();
            match &layer.mixer {
                Mixer::Attention(attention) => {
                    let kv = match attention.kv_owner.and_then(|owner| kv_layers[owner]) {
                        Some(owner) => owner,
                        None => self.kv_layer(attention)?,
                    };
                    kv_layers.push(Some(kv));
                    self.attention(i, layer, attention, kv, stream)?;
                }
                Mixer::Delta(shape) => {
                    kv_layers.push(None);
                    self.delta_net(i, layer, *shape, stream)?;
                }
            }
            self.feed_forward(i, layer, stream)?;
            if let Some((inputs, width)) = inputs {
                self.add_input(i, layer, (inputs, width), stream)?;
            }
            if layer.output_scale {
                let factor = self.weights.scalar(&self.weights.names.layer(i, LayerTensor::OutputScale))?;
                self.ops.push(Op::Scale { x: stream, factor });
            }
            layers.push(first..self.ops.len());
        }

        let last = self.logits_buffer("last", dim);
        self.ops.push(Op::Gather { x: stream, out: last });
        let weight = self.weights.global_norm(GlobalTensor::OutputNorm, dim)?;
        self.ops.push(Op::RmsNorm { x: last, weight, eps: norm_eps, out: last });
        let output = match self.head {
            Head::Logits | Head::Answer => Output { name: LOGITS, buffer: self.logits(last, head, vocab) },
            Head::Hidden => Output { name: HIDDEN, buffer: last },
            Head::Labels => Output { name: SCORES, buffer: self.labels(last)? },
        };

        self.weights.check_all_used()?;
        Ok(Plan {
            precision,
            vocab,
            buffers: std::mem::take(&mut self.buffers),
            weights: std::mem::take(&mut self.weights.specs),
            ropes: c.ropes.clone(),
            kv: std::mem::take(&mut self.groups),
            delta: std::mem::take(&mut self.delta),
            encode: Vec::new(),
            forward: std::mem::take(&mut self.ops),
            layers,
            outputs: vec![output],
        })
    }

    /// The labels of the last hidden rows: those that GGUF files have for yes and no.
    fn labels(&mut self, last: BufferId) -> Result<BufferId, Error> {
        let name = "cls.output.weight";
        let labels = self.buffer_of("labels", 2, Rows::Logits);
        let tensor = self.weights.find(name)?;
        let weights = vec![self.weights.add(tensor, &[2, self.config.dim])?];
        self.ops.push(Op::MatMul { x: last, weights, accumulate: false, out: labels });
        Ok(labels)
    }

    /// The logits of the last hidden rows.
    fn logits(&mut self, last: BufferId, head: WeightId, vocab: usize) -> BufferId {
        let logits = self.logits_buffer("logits", vocab);
        self.ops.push(Op::MatMul { x: last, weights: vec![head], accumulate: false, out: logits });
        if self.config.logit_scale != 1.0 {
            self.ops.push(Op::Scale { x: logits, factor: self.config.logit_scale });
        }
        if let Some(cap) = self.config.logit_cap {
            self.ops.push(Op::SoftCap { x: logits, cap });
        }
        logits
    }

    /// Attention of a layer, added to the stream.
    fn attention(
        &mut self,
        i: usize,
        layer: &Layer,
        attention: &Attention,
        kv: KvLayer,
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, eps) = (self.config.dim, self.config.norm_eps);
        let Attention { heads, kv_heads, head_dim, .. } = *attention;
        let (q, k) = (heads * head_dim, kv_heads * head_dim);
        let write = attention.kv_owner.is_none();
        let normed = self.normed(i, layer.pre_norms, LayerTensor::AttentionNorm, stream)?;

        let gate = if write { q + 2 * k } else { q };
        let qkv = self.buffer("qkv", if attention.output_gate { gate + q } else { gate });
        let weights = self.qkv_weights(i, attention)?;
        self.ops.push(Op::MatMul { x: normed, weights, accumulate: false, out: qkv });
        let mut first = 0;
        for (part, width) in [(LayerTensor::Q, q), (LayerTensor::K, k), (LayerTensor::V, k)] {
            if (!write && first > 0) || self.arch.fused {
                break;
            }
            if let Some(bias) = self.weights.bias(i, part, width, attention.qkv_bias)? {
                self.ops.push(Op::Bias { x: qkv, first: first as u32, bias });
            }
            first += width;
        }
        let norms = match attention.qk_norm {
            QkNorm::PerHead => Some(HeadNorms {
                q: self.weights.layer_norm(i, LayerTensor::QNorm, head_dim)?,
                k: match write {
                    true => Some(self.weights.layer_norm(i, LayerTensor::KNorm, head_dim)?),
                    false => None,
                },
                v: if attention.v_norm && write { Some(self.weights.ones(head_dim)?) } else { None },
                eps,
            }),
            QkNorm::Whole => {
                for (part, first, width) in [(LayerTensor::QNorm, 0, q), (LayerTensor::KNorm, q, k)] {
                    let weight = self.weights.layer_norm(i, part, width)?;
                    self.ops.push(Op::NormColumns { x: qkv, first: first as u32, weight, eps });
                }
                None
            }
            QkNorm::None => None,
        };
        let rope = attention.rope.map(|rope| RopeId(rope as u8));
        let heads = heads as u16;
        self.ops.push(Op::RopeWrite { qkv, heads, kv, write, norms, rope });
        let attended = self.buffer("attended", q);
        let (scale, soft_cap) = (attention.scale, attention.soft_cap);
        let sinks = match attention.sinks {
            true => Some(self.weights.layer(i, LayerTensor::Sinks, &[usize::from(heads)])?),
            false => None,
        };
        let span = if attention.causal { Span::Causal } else { Span::Whole };
        self.ops.push(Op::Attention { qkv, heads, kv, span, scale, soft_cap, sinks, out: attended });
        if attention.output_gate {
            let (activation, first) = (Activation::Sigmoid, gate as u32);
            self.ops.push(Op::MulBy { x: attended, activation, by: qkv, first });
        }

        let weights = vec![self.weights.layer(i, LayerTensor::AttentionOutput, &[dim, q])?];
        let bias = self.weights.bias(i, LayerTensor::AttentionOutput, dim, false)?;
        self.add_to_stream(i, layer, LayerTensor::AttentionPostNorm, (attended, weights, bias), stream)
    }

    fn qkv_weights(&mut self, i: usize, attention: &Attention) -> Result<Vec<WeightId>, Error> {
        let dim = self.config.dim;
        let (q, k) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        if self.arch.fused {
            return self.weights.fused(i, LayerTensor::Qkv, &[q, k, k], dim);
        }
        let (query, gate) = match attention.output_gate {
            true => {
                let blocks = [attention.head_dim; 2];
                let [query, gate] =
                    self.weights.interleaved(i, LayerTensor::Q, blocks, attention.heads, dim)?;
                (query, Some(gate))
            }
            false => (self.weights.layer(i, LayerTensor::Q, &[q, dim])?, None),
        };
        let mut weights = vec![query];
        if attention.kv_owner.is_none() {
            let key = self.weights.layer(i, LayerTensor::K, &[k, dim])?;
            weights.push(key);
            // GGUF files have no key for it.
            let absent = || self.weights.tensor(&self.weights.names.layer(i, LayerTensor::V)).is_none();
            let is_key =
                attention.v_is_k || (self.weights.names == TensorNames::Gguf && attention.v_norm && absent());
            weights.push(match is_key {
                true => key,
                false => self.weights.layer(i, LayerTensor::V, &[k, dim])?,
            });
        }
        weights.extend(gate);
        Ok(weights)
    }

    /// The feed-forward of a layer, added to the stream.
    fn feed_forward(&mut self, i: usize, layer: &Layer, stream: BufferId) -> Result<(), Error> {
        let (dim, experts) = (self.config.dim, layer.feed_forward.experts);
        let Some(width) = layer.feed_forward.dense else {
            return match experts {
                Some(experts) => self.experts_alone(i, layer, &experts, stream),
                None => Err(Error::Unsupported(format!("layer {i}, which has no feed-forward,"))),
            };
        };
        let normed = self.normed(i, layer.pre_norms, self.arch.ffn_norm, stream)?;
        let weights = match self.arch.fused {
            true => self.weights.fused(i, LayerTensor::GateUp, &[width, width], dim)?,
            false => vec![
                self.weights.layer(i, LayerTensor::Gate, &[width, dim])?,
                self.weights.layer(i, LayerTensor::Up, &[width, dim])?,
            ],
        };
        let (gate_up, gated) = (self.buffer("gate_up", 2 * width), self.buffer("gated", width));
        self.ops.push(Op::MatMul { x: normed, weights, accumulate: false, out: gate_up });
        let activation = layer.feed_forward.activation;
        self.ops.push(Op::Gate { x: gate_up, activation, out: gated });
        let weights = vec![self.weights.layer(i, LayerTensor::Down, &[dim, width])?];
        let Some(experts) = experts else {
            return self.add_to_stream(i, layer, LayerTensor::FfnPostNorm, (gated, weights, None), stream);
        };
        let projected = self.buffer("projected", dim);
        self.ops.push(Op::MatMul { x: gated, weights, accumulate: false, out: projected });
        let weight = self.weights.layer_norm(i, LayerTensor::DensePostNorm, dim)?;
        self.ops.push(Op::RmsNorm { x: projected, weight, eps: self.config.norm_eps, out: projected });
        self.experts_beside(i, layer, &experts, stream, projected)?;
        self.add_projected(i, layer, LayerTensor::FfnPostNorm, projected, stream)
    }

    /// The normalised stream, or the stream itself if the layer has no such norm.
    pub(super) fn normed(
        &mut self,
        i: usize,
        norm: bool,
        part: LayerTensor,
        stream: BufferId,
    ) -> Result<BufferId, Error> {
        if !norm {
            return Ok(stream);
        }
        let weight = self.weights.layer_norm(i, part, self.config.dim)?;
        let normed = self.buffer("normed", self.config.dim);
        self.ops.push(Op::RmsNorm { x: stream, weight, eps: self.config.norm_eps, out: normed });
        Ok(normed)
    }

    /// A projection of `x` that is added to the stream: directly, or after a norm or times a factor.
    pub(super) fn add_to_stream(
        &mut self,
        i: usize,
        layer: &Layer,
        post_norm: LayerTensor,
        (x, weights, bias): (BufferId, Vec<WeightId>, Option<WeightId>),
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, scale) = (self.config.dim, self.config.residual_scale);
        if !layer.post_norms && scale == 1.0 {
            self.ops.push(Op::MatMul { x, weights, accumulate: true, out: stream });
            self.ops.extend(bias.map(|bias| Op::Bias { x: stream, first: 0, bias }));
            return Ok(());
        }
        let projected = self.buffer("projected", dim);
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: projected });
        self.ops.extend(bias.map(|bias| Op::Bias { x: projected, first: 0, bias }));
        self.add_projected(i, layer, post_norm, projected, stream)
    }

    /// Adds what attention or feed-forward computed to the stream, after a norm or times a factor.
    pub(super) fn add_projected(
        &mut self,
        i: usize,
        layer: &Layer,
        post_norm: LayerTensor,
        projected: BufferId,
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, scale) = (self.config.dim, self.config.residual_scale);
        if layer.post_norms {
            let weight = self.weights.layer_norm(i, post_norm, dim)?;
            self.ops.push(Op::RmsNorm { x: projected, weight, eps: self.config.norm_eps, out: projected });
        }
        self.ops.push(Op::Add { x: projected, scale, out: stream });
        Ok(())
    }

    /// The inputs that each layer has of its own: an embedding and a projection of the stream, `width` for each layer.
    fn per_layer_inputs(&mut self, stream: BufferId, vocab: usize, width: usize) -> Result<BufferId, Error> {
        let (dim, all) = (self.config.dim, self.config.layers.len() * width);
        let inputs = self.buffer("layer_inputs", all);
        let table = self.weights.global(GlobalTensor::PerLayerEmbedding, &[vocab, all])?;
        self.ops.push(Op::Embed { table, scale: (width as f32).sqrt(), out: inputs });
        let projected = self.buffer("projected_inputs", all);
        let weights = vec![self.weights.global(GlobalTensor::PerLayerProjection, &[all, dim])?];
        self.ops.push(Op::MatMul { x: stream, weights, accumulate: false, out: projected });
        self.ops.push(Op::Scale { x: projected, factor: 1.0 / (dim as f32).sqrt() });
        let (weight, eps) =
            (self.weights.global_norm(GlobalTensor::PerLayerNorm, width)?, self.config.norm_eps);
        self.ops.push(Op::RmsNorm { x: projected, weight, eps, out: projected });
        self.ops.push(Op::Add { x: projected, scale: 1.0, out: inputs });
        self.ops.push(Op::Scale { x: inputs, factor: std::f32::consts::FRAC_1_SQRT_2 });
        Ok(inputs)
    }

    /// Adds a layer's own input to the stream, gated by the stream.
    fn add_input(
        &mut self,
        i: usize,
        layer: &Layer,
        (inputs, width): (BufferId, usize),
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, eps) = (self.config.dim, self.config.norm_eps);
        let gated = self.buffer("input_gate", width);
        let weights = vec![self.weights.layer(i, LayerTensor::InputGate, &[width, dim])?];
        self.ops.push(Op::MatMul { x: stream, weights, accumulate: false, out: gated });
        let (activation, first) = (layer.feed_forward.activation, (i * width) as u32);
        self.ops.push(Op::GateBy { x: gated, activation, by: inputs, first });
        let projected = self.buffer("projected", dim);
        let weights = vec![self.weights.layer(i, LayerTensor::InputProjection, &[dim, width])?];
        self.ops.push(Op::MatMul { x: gated, weights, accumulate: false, out: projected });
        let weight = self.weights.layer_norm(i, LayerTensor::InputPostNorm, dim)?;
        self.ops.push(Op::RmsNorm { x: projected, weight, eps, out: projected });
        self.ops.push(Op::Add { x: projected, scale: 1.0, out: stream });
        Ok(())
    }

    /// The layer index in the KV group of this shape and window, for its keys and values.
    fn kv_layer(&mut self, attention: &Attention) -> Result<KvLayer, Error> {
        let Attention { kv_heads, head_dim, window, .. } = *attention;
        let same =
            |group: &KvGroup| (group.kv_heads, group.head_dim, group.window) == (kv_heads, head_dim, window);
        let group = match self.groups.iter().position(same) {
            Some(group) => group,
            None if self.groups.len() == MAX_KV_GROUPS => {
                let what = format!("a model with more than {MAX_KV_GROUPS} kinds of keys and values");
                return Err(Error::Unsupported(what));
            }
            None => {
                self.groups.push(KvGroup { layers: 0, kv_heads, head_dim, window });
                self.groups.len() - 1
            }
        };
        // Keys and values of whole texts are not read after the next layer of the group writes its own, so that all have
        // one place for them: layers that share keys share those of the last layer that writes.
        if self.head.takes_whole_texts() {
            self.groups[group].layers = 1;
            return Ok(KvLayer { group: group as u8, index: 0 });
        }
        self.groups[group].layers += 1;
        Ok(KvLayer { group: group as u8, index: self.groups[group].layers as u16 - 1 })
    }

    /// A buffer for all rows of a batch. Layers share buffers of the same name and width.
    pub(super) fn buffer(&mut self, name: &'static str, width: usize) -> BufferId {
        self.buffer_of(name, width, Rows::Batch)
    }

    pub(super) fn buffer_of(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        self.find_buffer(BufferSpec { name, width, rows })
    }

    fn logits_buffer(&mut self, name: &'static str, width: usize) -> BufferId {
        self.buffer_of(name, width, Rows::Logits)
    }

    fn find_buffer(&mut self, spec: BufferSpec) -> BufferId {
        let at = self.buffers.iter().position(|known| *known == spec);
        BufferId(at.unwrap_or_else(|| {
            self.buffers.push(spec);
            self.buffers.len() - 1
        }) as u16)
    }
}
