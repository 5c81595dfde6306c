//! The ops of a Gated DeltaNet layer.

use gyrus_kernels::{Activation, BufferId, DeltaLayer, DeltaShape, Op, WeightId};

use super::config::Layer;
use super::description::DeltaTensors;
use super::plan::Builder;
use super::tensor_names::LayerTensor;
use crate::Error;

impl Builder<'_> {
    /// Gated DeltaNet of a layer, added to the stream.
    pub(super) fn delta_net(
        &mut self,
        i: usize,
        layer: &Layer,
        shape: DeltaShape,
        stream: BufferId,
    ) -> Result<(), Error> {
        let (dim, eps) = (self.config.dim, self.config.norm_eps);
        let (channels, value_width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
        let normed = self.normed(i, layer.pre_norms, LayerTensor::AttentionNorm, stream)?;

        let projected = self.buffer("delta_projected", shape.projected_width());
        let weights = self.delta_projections(i, shape)?;
        self.ops.push(Op::MatMul { x: normed, weights, accumulate: false, out: projected });

        let state = DeltaLayer(self.delta.len() as u16);
        self.delta.push(shape);
        let prepared = self.buffer("delta_prepared", shape.prepared_width());
        self.ops.push(Op::DeltaConv {
            x: projected,
            layer: state,
            taps: self.weights.delta_taps(i, channels)?,
            a: self.weights.layer(i, LayerTensor::DeltaA, &[heads])?,
            bias: self.weights.layer(i, LayerTensor::DeltaBias, &[heads])?,
            a_is_log: !self.weights.names.is_gguf(),
            out: prepared,
        });
        let mixed = self.buffer("delta_out", value_width);
        self.ops.push(Op::DeltaRule { x: projected, prepared, layer: state, out: mixed });
        let weight = self.weights.layer(i, LayerTensor::DeltaNorm, &[shape.value_dim])?;
        self.ops.push(Op::RmsNorm { x: mixed, weight, eps, out: mixed });
        let first = channels as u32;
        self.ops.push(Op::MulBy { x: mixed, activation: Activation::Silu, by: projected, first });

        let weights = vec![self.weights.layer(i, LayerTensor::DeltaOutput, &[dim, value_width])?];
        self.add_to_stream(i, layer, LayerTensor::AttentionPostNorm, (mixed, weights, None), stream)
    }
    /// The projections of queries, keys, values, the output gate, and two gates for each value head.
    fn delta_projections(&mut self, i: usize, shape: DeltaShape) -> Result<Vec<WeightId>, Error> {
        let (dim, heads) = (self.config.dim, shape.value_heads);
        let by_key_head = self.arch.delta == Some(DeltaTensors::ByKeyHead);
        let (turns, of_key) = (shape.key_heads, heads / shape.key_heads);
        let mut weights = Vec::new();
        // GGUF files that are not old have these by part.
        let is_old = self.weights.has(i, LayerTensor::DeltaQkvz);
        if by_key_head && (is_old || !self.weights.names.is_gguf()) {
            let (key, values) = (shape.key_dim, of_key * shape.value_dim);
            let blocks = [key, key, values, values];
            weights.extend(self.weights.interleaved(i, LayerTensor::DeltaQkvz, blocks, turns, dim)?);
        } else {
            weights.push(self.weights.layer(i, LayerTensor::DeltaQkv, &[shape.channels(), dim])?);
            weights.push(self.weights.layer(i, LayerTensor::DeltaGate, &[shape.value_width(), dim])?);
        }
        if by_key_head {
            let blocks = [of_key; 2];
            weights.extend(self.weights.interleaved(i, LayerTensor::DeltaBetaAlpha, blocks, turns, dim)?);
        } else {
            weights.push(self.weights.layer(i, LayerTensor::DeltaBeta, &[heads, dim])?);
            weights.push(self.weights.layer(i, LayerTensor::DeltaAlpha, &[heads, dim])?);
        }
        Ok(weights)
    }
}
