//! The part of a forward pass that is a mixture of experts.

use gyrus_kernels::{BufferId, FileLayout, Op, Rows, WeightId};

use super::config::{Experts, Layer};
use super::description::ExpertParts;
use super::expert_names::{ExpertNames, ExpertTensor};
use super::plan::Builder;
use super::tensor_names::{LayerTensor, TensorNames};
use crate::Error;

/// The weights of a layer's experts.
struct Matrices {
    /// Gate and up, as one weight or as two.
    gate_up: Vec<WeightId>,
    gate_up_biases: Vec<WeightId>,
    down: WeightId,
    down_biases: Vec<WeightId>,
}

impl Builder<'_> {
    /// A feed-forward of experts alone, added to the stream.
    pub(super) fn experts_alone(
        &mut self,
        i: usize,
        layer: &Layer,
        experts: &Experts,
        stream: BufferId,
    ) -> Result<(), Error> {
        let parts = self.expert_parts()?;
        let normed = self.normed(i, layer.pre_norms, self.arch.ffn_norm, stream)?;
        let route = self.route(i, parts, experts, normed)?;
        let direct = !layer.post_norms && self.config.residual_scale == 1.0;
        let out = if direct { stream } else { self.buffer("projected", self.config.dim) };
        self.experts(i, layer, parts, experts, (normed, route), (direct, out))?;
        if let Some(width) = experts.shared {
            self.shared_expert(i, layer, parts, width, normed, out)?;
        }
        if !direct {
            self.add_projected(i, layer, LayerTensor::FfnPostNorm, out, stream)?;
        }
        Ok(())
    }

    /// Experts beside a dense feed-forward, whose normalised result is in `out`: their own is added to it.
    pub(super) fn experts_beside(
        &mut self,
        i: usize,
        layer: &Layer,
        experts: &Experts,
        stream: BufferId,
        out: BufferId,
    ) -> Result<(), Error> {
        let (parts, dim, eps) = (self.expert_parts()?, self.config.dim, self.config.norm_eps);
        // The router has the residual stream, normalised and multiplied by a weight of its own.
        let weight = self.weights.named(&self.expert_name(i, ExpertTensor::RouterScale)?, &[dim])?;
        let router_input = self.buffer("router_input", dim);
        self.ops.push(Op::RmsNorm { x: stream, weight, eps, out: router_input });
        self.ops.push(Op::Scale { x: router_input, factor: 1.0 / (dim as f32).sqrt() });
        let route = self.route(i, parts, experts, router_input)?;
        let normed = self.normed(i, true, LayerTensor::ExpertsNorm, stream)?;
        let sum = self.buffer("expert_sum", dim);
        self.experts(i, layer, parts, experts, (normed, route), (false, sum))?;
        let weight = self.weights.layer_norm(i, LayerTensor::ExpertsPostNorm, dim)?;
        self.ops.push(Op::RmsNorm { x: sum, weight, eps, out: sum });
        self.ops.push(Op::Add { x: sum, scale: 1.0, out });
        Ok(())
    }

    fn expert_parts(&self) -> Result<ExpertParts, Error> {
        self.arch
            .experts
            .ok_or_else(|| Error::Unsupported("a mixture of experts of this architecture".into()))
    }

    fn expert_name(&self, i: usize, part: ExpertTensor) -> Result<String, Error> {
        Ok(self.weights.names.expert(i, part, self.expert_parts()?.names))
    }

    /// Chooses the experts of each row.
    fn route(
        &mut self,
        i: usize,
        parts: ExpertParts,
        experts: &Experts,
        x: BufferId,
    ) -> Result<BufferId, Error> {
        let (dim, count) = (self.config.dim, experts.count);
        let logits = self.buffer("router_logits", count);
        let weights = vec![self.weights.named(&self.expert_name(i, ExpertTensor::Router)?, &[count, dim])?];
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: logits });
        if parts.biases {
            let bias = self.weights.named(&self.expert_name(i, ExpertTensor::RouterBias)?, &[count])?;
            self.ops.push(Op::Bias { x: logits, first: 0, bias });
        }
        let scale = match parts.beside_dense {
            true => Some(self.weights.named(&self.expert_name(i, ExpertTensor::Scale)?, &[count])?),
            false => None,
        };
        let route = self.buffer("route", 2 * experts.used);
        let (used, weights) = (experts.used as u16, experts.weights);
        self.ops.push(Op::Route { logits, used, weights, scale, out: route });
        Ok(route)
    }

    /// Multiplies each row by its experts, and adds up their results, to `out` or in it.
    fn experts(
        &mut self,
        i: usize,
        layer: &Layer,
        parts: ExpertParts,
        experts: &Experts,
        (x, route): (BufferId, BufferId),
        (accumulate, out): (bool, BufferId),
    ) -> Result<(), Error> {
        let Matrices { gate_up, gate_up_biases, down, down_biases } =
            self.expert_matrices(i, parts, experts)?;
        let slots = Rows::Slots(experts.used as u16);
        let wide = self.buffer_of("expert_gate_up", 2 * experts.width, slots);
        let gated = self.buffer_of("expert_gated", experts.width, slots);
        let projected = self.buffer_of("expert_down", self.config.dim, slots);
        self.ops.push(Op::ExpertMatMul { x, route, weights: gate_up, biases: gate_up_biases, out: wide });
        self.ops.push(Op::Gate { x: wide, activation: layer.feed_forward.activation, out: gated });
        let weights = vec![down];
        self.ops.push(Op::ExpertMatMul { x: gated, route, weights, biases: down_biases, out: projected });
        self.ops.push(Op::ExpertSum { x: projected, route, accumulate, out });
        Ok(())
    }

    fn expert_matrices(&mut self, i: usize, parts: ExpertParts, e: &Experts) -> Result<Matrices, Error> {
        let (dim, count, width) = (self.config.dim, e.count, e.width);
        let name = |part| self.weights.names.expert(i, part, parts.names);
        let (gate, up, gate_up) =
            (name(ExpertTensor::Gate), name(ExpertTensor::Up), name(ExpertTensor::GateUp));
        let (down, down_bias) = (name(ExpertTensor::Down), name(ExpertTensor::DownBias));
        let stacked_down = name(ExpertTensor::StackedDown);
        let biases = [ExpertTensor::GateBias, ExpertTensor::UpBias].map(name);
        let gate_up_bias = name(ExpertTensor::GateUpBias);
        let in_gguf = self.weights.names == TensorNames::Gguf;
        let weights = &mut self.weights;
        if parts.names == ExpertNames::GptOss && !in_gguf {
            let turn = |first| FileLayout::Columns { first, step: 2 };
            let is_mxfp4 = weights.tensor(&gate_up).is_none();
            let mut matrix = |name: &str, shape: [usize; 3], first, step| match is_mxfp4 {
                true => weights.mxfp4(name, &shape, FileLayout::Mxfp4 { first, step }),
                false => weights.columns(name, &shape, FileLayout::Columns { first, step }),
            };
            let shape = [count, width, dim];
            let both = vec![matrix(&gate_up, shape, 0, 2)?, matrix(&gate_up, shape, 1, 2)?];
            let down = matrix(&down, [count, dim, width], 0, 1)?;
            return Ok(Matrices {
                gate_up: both,
                down,
                gate_up_biases: vec![
                    weights.columns_of_vectors(&gate_up_bias, [count, width], turn(0))?,
                    weights.columns_of_vectors(&gate_up_bias, [count, width], turn(1))?,
                ],
                down_biases: vec![weights.vectors(&down_bias, [count, dim])?],
            });
        }
        let fused = parts.names == ExpertNames::Gemma || weights.tensor(&gate_up).is_some();
        let mut all = match fused && weights.tensor(&gate).is_none() {
            true => Matrices {
                gate_up: vec![weights.stacked(&gate_up, &[count, 2 * width, dim])?],
                gate_up_biases: Vec::new(),
                down: weights.stacked(&stacked_down, &[count, dim, width])?,
                down_biases: Vec::new(),
            },
            false => Matrices {
                gate_up: vec![
                    weights.stacked(&gate, &[count, width, dim])?,
                    weights.stacked(&up, &[count, width, dim])?,
                ],
                gate_up_biases: Vec::new(),
                down: weights.stacked(&down, &[count, dim, width])?,
                down_biases: Vec::new(),
            },
        };
        if parts.biases {
            for bias in &biases {
                all.gate_up_biases.push(weights.vectors(bias, [count, width])?);
            }
            all.down_biases.push(weights.vectors(&down_bias, [count, dim])?);
        }
        Ok(all)
    }

    /// The expert that every row has: its result times a gate is added to `out`.
    fn shared_expert(
        &mut self,
        i: usize,
        layer: &Layer,
        parts: ExpertParts,
        width: usize,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), Error> {
        let dim = self.config.dim;
        let name = |part| self.weights.names.expert(i, part, parts.names);
        let [gate, up, down, router] = [
            ExpertTensor::SharedGate,
            ExpertTensor::SharedUp,
            ExpertTensor::SharedDown,
            ExpertTensor::SharedRouter,
        ]
        .map(name);
        let weights =
            vec![self.weights.named(&gate, &[width, dim])?, self.weights.named(&up, &[width, dim])?];
        let (gate_up, gated) = (self.buffer("shared_gate_up", 2 * width), self.buffer("shared_gated", width));
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: gate_up });
        self.ops.push(Op::Gate { x: gate_up, activation: layer.feed_forward.activation, out: gated });
        let projected = self.buffer("shared_down", dim);
        let weights = vec![self.weights.named(&down, &[dim, width])?];
        self.ops.push(Op::MatMul { x: gated, weights, accumulate: false, out: projected });
        let gate = self.buffer("shared_gate", 1);
        let weights = vec![self.weights.row(&router, dim)?];
        self.ops.push(Op::MatMul { x, weights, accumulate: false, out: gate });
        self.ops.push(Op::AddGated { x: projected, gate, out });
        Ok(())
    }
}
