//! Norms that no matrix product reads, sums and factors.

use gyrus_kernels::call::Columns;
use gyrus_kernels::call::engine::AddCall;
use gyrus_kernels::{BufferId, WeightId};

use super::{Fuser, Pending};
use crate::error::GpuError;
use crate::lower::call::Kernel;

impl Fuser<'_> {
    /// Elements of a vector.
    pub(super) fn dim_of(&self, weight: WeightId) -> u32 {
        self.on.plan.weight(weight).shape.elems() as u32
    }

    /// The norm of rows that an op is, or of their parts if the weight is shorter. Buffers are by their first names.
    pub(super) fn norm(&mut self, op: usize, x: BufferId, weight: WeightId, eps: f32, out: BufferId) {
        let dim = self.dim_of(weight);
        let parts = self.width(x) / dim.max(1);
        self.push_for([op], "norm", Kernel::Norm { x, weight, eps, dim, parts, out });
    }

    /// The norm of columns in place, which is an op or a part of it.
    pub(super) fn norm_columns(
        &mut self,
        op: usize,
        x: BufferId,
        first: u32,
        parts: u32,
        weight: WeightId,
        eps: f32,
    ) {
        let columns = Columns { stride: self.width(x), first, parts };
        let (x, dim) = (self.id(x), self.dim_of(weight));
        self.push_for([op], "norm", Kernel::NormColumns { x, weight, eps, dim, columns });
    }

    /// Adds a buffer to another. A pending norm of which nothing else is read is computed and added by one kernel.
    pub(super) fn add(&mut self, x: BufferId, scale: f32, out: BufferId) -> Result<(), GpuError> {
        let (from, width) = (self.id(x), self.width(out));
        match self.pending.get(&from).copied() {
            Some(Pending::Norm { x: source, weight, eps, op })
                if source != self.id(out) && !self.is_read_by(self.later, from) =>
            {
                self.pending.remove(&from);
                self.finish(out)?;
                self.before_write(out)?;
                let (ops, out) = ([op, self.current.start], self.id(out));
                let kernel = Kernel::NormAdd { x: source, weight, eps, width, scale, out };
                self.push_for(ops, "norm · add", kernel);
            }
            _ => {
                self.finish(x)?;
                self.finish(out)?;
                self.before_write(out)?;
                let call = AddCall { rows: 1, count: width, bias: false, out_stride: width, first: 0, scale };
                let out = self.id(out);
                self.push_rows(x, "add", Kernel::Add { call, x: from, out });
            }
        }
        Ok(())
    }

    /// Multiplies a buffer by a factor, and caps it.
    pub(super) fn scale(&mut self, x: BufferId, factor: f32, cap: Option<f32>) -> Result<(), GpuError> {
        self.finish(x)?;
        self.before_write(x)?;
        let kernel = Kernel::Scale { x: self.id(x), width: self.width(x), factor, cap };
        self.push_rows(x, if cap.is_some() { "soft cap" } else { "scale" }, kernel);
        Ok(())
    }
}
