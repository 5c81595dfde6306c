//! The ops of a Gated DeltaNet layer.

use gyrus_kernels::{Activation, BufferId, DeltaLayer, DeltaShape, Op};

use super::config::Layer;
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
        let weights = [
            (LayerTensor::DeltaQkv, channels),
            (LayerTensor::DeltaGate, value_width),
            (LayerTensor::DeltaBeta, heads),
            (LayerTensor::DeltaAlpha, heads),
        ];
        let weights = weights.map(|(part, rows)| self.weights.layer(i, part, &[rows, dim]));
        let weights = weights.into_iter().collect::<Result<_, _>>()?;
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
}
