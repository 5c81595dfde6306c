//! The ops of encoders, and biases and activations in the epilogue of tiles.

use gyrus_kernels::call::{EmbedCall, UnfoldCall};
use gyrus_kernels::{Activation, BufferId, Op, WeightId};

use super::Fuser;
use crate::error::GpuError;
use crate::lower::call::{Ids, Kernel};
use crate::weight::{column_biases, groups};

/// What a product does with its sums before it writes them.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct TileEpilogue {
    /// The first half of the columns is a gate for the second.
    pub(super) gate: Option<Activation>,
    /// Vectors that are added to columns from some on. Tiles only, as the activation.
    pub(super) biases: Vec<(u32, WeightId)>,
    /// A function of each output.
    pub(super) activation: Option<Activation>,
}

impl TileEpilogue {
    pub(super) fn gate(activation: Activation) -> TileEpilogue {
        TileEpilogue { gate: Some(activation), ..TileEpilogue::default() }
    }
}

impl Fuser<'_> {
    /// The epilogue of the product that is the first of these ops: the biases and the activation that follow it, if its
    /// kernel computes them. Returns how many ops these are, too.
    pub(super) fn tile_epilogue(&self, ops: &[Op]) -> (TileEpilogue, usize) {
        let none = (TileEpilogue::default(), 0);
        let [Op::MatMul { weights, accumulate, out, .. }, rest @ ..] = ops else { return none };
        // One kernel must compute all columns.
        let one = groups(self.on.plan, weights).count() == 1 && self.on.weights.matrix(weights).len() == 1;
        if !one || !self.takes_f16(weights) || self.is_router(*out) {
            return none;
        }
        let biases = column_biases(self.on.plan, rest, *out);
        let mut fused = biases.len();
        let activation = match rest.get(fused) {
            Some(Op::Activate { x, activation }) if x == out && !accumulate => {
                fused += 1;
                Some(*activation)
            }
            _ => None,
        };
        (TileEpilogue { gate: None, biases, activation }, fused)
    }

    /// Adds entries of a table to rows.
    pub(super) fn add_entries(
        &mut self,
        table: WeightId,
        ids: Ids,
        offset: u32,
        out: BufferId,
    ) -> Result<(), GpuError> {
        self.finish(out)?;
        self.before_write(out)?;
        let vocab = self.on.plan.weight(table).shape.rows() as u32;
        let to = self.id(out);
        // A row of positions is a position and a place in a block table.
        let (name, token_stride) =
            if ids == Ids::Positions { ("add positions", 2) } else { ("add types", 1) };
        for (part, first) in self.parts(&[table]) {
            let call = EmbedCall::new(part.layout, 1, 1.0);
            let call = EmbedCall { vocab, first, add: true, offset, token_stride, ..call };
            self.push(name, Kernel::Embed { call, ids, table: part, out: to });
        }
        Ok(())
    }

    pub(super) fn unfold(&mut self, x: BufferId, taps: u16, out: BufferId) -> Result<(), GpuError> {
        self.finish(x)?;
        self.before_write(out)?;
        let (x_slots, out_slots) = (self.slots_of(x), self.slots_of(out));
        let call = UnfoldCall { rows: 1, x_slots, out_slots, channels: self.width(x), taps: taps.into() };
        let (x, out) = (self.id(x), self.id(out));
        self.push("unfold", Kernel::Unfold { call, x, out });
        Ok(())
    }

    pub(super) fn layer_norm(
        &mut self,
        x: BufferId,
        weight: WeightId,
        bias: Option<WeightId>,
        eps: f32,
        out: BufferId,
    ) -> Result<(), GpuError> {
        self.finish(x)?;
        self.before_write(out)?;
        let (width, from, to) = (self.width(x), self.id(x), self.id(out));
        let kernel = Kernel::LayerNorm { x: from, weight, bias, eps, width, out: to };
        self.push_rows(x, "layer norm", kernel);
        Ok(())
    }

    pub(super) fn activate(&mut self, x: BufferId, activation: Activation) -> Result<(), GpuError> {
        self.finish(x)?;
        self.before_write(x)?;
        let kernel = Kernel::Activate { x: self.id(x), activation, width: self.width(x) };
        self.push_rows(x, "activate", kernel);
        Ok(())
    }
}
