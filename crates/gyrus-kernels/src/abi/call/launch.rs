use super::{Cache, RopeCall, RopeKernel, RopeTuning, Shape};
use crate::launch::{Launch, LaunchError, grid};
use crate::shader::{Rungs, Variant};

impl RopeCall {
    /// Checks everything that can be checked without data, and returns the launch.
    pub fn launch(&self, rungs: Rungs, tuning: RopeTuning) -> Result<Launch, LaunchError> {
        self.check()?;
        let slots = self.slots()?;
        let shape = self.shape();
        let name = self.name();
        let vector = self.is_vectored(&shape) && !self.is_single(&shape);
        let per_vector = self.storage.vector();
        let passes = shape.rope_dim < shape.head_dim && !matches!(self.kernel, RopeKernel::InPlace { .. });

        let flag = |name, value: bool| (name, u32::from(value).to_string());
        let mut constants = vec![
            ("STORAGE", self.storage.name().to_owned()),
            flag("VECTOR", vector),
            flag("F16", rungs.f16),
            flag("SUBGROUPS", rungs.subgroups),
        ];
        if !matches!(self.kernel, RopeKernel::X { .. }) {
            constants.push(flag("IMMEDIATES", rungs.immediates));
        }
        if !matches!(self.kernel, RopeKernel::Op { .. }) {
            constants.push(("FREQS", self.freqs.name().to_owned()));
        }
        if !matches!(self.kernel, RopeKernel::Op { .. } | RopeKernel::X { .. }) {
            constants.push(("POSITIONS", self.positions.to_string()));
        }
        if let Some(cache) = self.cache() {
            constants.push(flag("PASS_THROUGH", passes));
            constants.push(flag("PAGED", matches!(cache, Cache::Paged { .. })));
        }
        if let RopeKernel::HeadNorm { plus_one, .. } = self.kernel {
            constants.push(flag("NORM_PLUS_ONE", plus_one));
        }

        let mut overrides = Vec::new();
        let groups = if vector {
            let mut pieces = u64::from(shape.rope_dim / (2 * per_vector));
            if passes {
                pieces += u64::from((shape.head_dim - shape.rope_dim) / per_vector);
            }
            let lanes = tuning.lanes.unwrap_or_else(|| self.lanes(&shape, pieces)).clamp(1, shape.heads);
            // A small grid uses small workgroups, to spread over more cores.
            let small = u64::from(shape.tokens) * u64::from(lanes) * pieces < 1 << 14;
            let workgroup = tuning.workgroup.unwrap_or(if small { 32 } else { 256 }).clamp(1, 256);
            overrides.extend([
                ("WORKGROUP", f64::from(workgroup)),
                ("HEAD_LANES", f64::from(lanes)),
                ("PIECES", pieces as f64),
            ]);
            let invocations = u64::from(shape.tokens) * u64::from(lanes) * pieces;
            if invocations > u64::from(u32::MAX) - u64::from(u16::MAX) * u64::from(workgroup) {
                return Err(LaunchError::Large { kernel: name, what: "invocations", count: invocations });
            }
            grid(&name, invocations.div_ceil(u64::from(workgroup)))?
        } else {
            let per_word = (4 / self.storage.bytes()) as u32;
            let fits = |value: u32| value.is_multiple_of(per_word);
            let words = shape.head_dim / 2 / per_word;
            let staged =
                !fits(shape.rope_dim / 2) || !fits(shape.head_dim / 2) || !fits(shape.offset) || words > 256;
            // One invocation a slot, up to the limit of every device; powers of two, so that variants are few.
            let slots = if staged { shape.head_dim / 2 } else { words }.next_power_of_two();
            let workgroup = slots.clamp(32, 256);
            constants.push(flag("STAGED", staged));
            overrides.push(("WORKGROUP", f64::from(workgroup)));
            if staged {
                constants.push(flag("SLOT_LOOP", slots > workgroup));
                overrides.push(("STAGE_ELEMENTS", f64::from((2 * slots).max(64))));
            }
            const AXIS: u32 = 65_535;
            let layers = shape.tokens.div_ceil(AXIS);
            if shape.heads > AXIS || layers > AXIS {
                let count = u64::from(shape.heads) * u64::from(shape.tokens);
                return Err(LaunchError::Large { kernel: name, what: "heads", count });
            }
            [shape.heads, shape.tokens.div_ceil(layers), layers]
        };
        if !matches!(self.kernel, RopeKernel::X { .. } | RopeKernel::Op { .. }) {
            overrides.push(("SIN_SIGN", self.direction.sign()));
        }
        let (uniforms, params) = self.parameters();
        let variant = Variant { name, file: self.file(), constants, overrides };
        Ok(Launch { variant, slots, uniforms, params, groups, rope: Some(*self) })
    }

    /// Invocations that share the heads of a token. Two heads each hide the cost of phases on large tensors (measured:
    /// 4.13 TB/s of 4.2 with 20 lanes for 40 heads, 3.90 with 4); few tokens use one invocation a head.
    fn lanes(&self, shape: &Shape, pieces: u64) -> u32 {
        const FEW: u64 = 1 << 15;
        if u64::from(shape.tokens) * pieces * u64::from(shape.heads) <= FEW {
            return shape.heads;
        }
        // Angles cost more than a table of frequencies, and heads far apart in memory gain nothing from neighbouring
        // lanes (measured: 3.92 TB/s with 4 lanes for 40 heads, 3.61 with 20).
        let each = if matches!(self.kernel, RopeKernel::Op { .. }) { 8 } else { 2 };
        shape.heads.div_ceil(each)
    }

    /// Whether there is so little to do that only latency counts.
    pub(super) fn is_single(&self, shape: &Shape) -> bool {
        shape.tokens == 1 && u64::from(shape.heads) * u64::from(shape.head_dim) <= 1 << 16
    }

    pub(super) fn is_vectored(&self, shape: &Shape) -> bool {
        if matches!(self.kernel, RopeKernel::HeadNorm { .. }) {
            return false;
        }
        let strides = match self.kernel {
            RopeKernel::InPlace { params, .. } => [params.row_stride, 0],
            RopeKernel::QkvWrite { params, .. } => [params.k_elem_offset, params.v_elem_offset],
            _ => [0, 0],
        };
        let n = self.storage.vector();
        [shape.head_dim, shape.rope_dim / 2, shape.offset].iter().chain(&strides).all(|v| v.is_multiple_of(n))
    }

    /// Uniforms that every device binds, and the parameters that may be immediates.
    #[expect(clippy::type_complexity, reason = "two lists of bindings, named in the doc")]
    fn parameters(&self) -> (Vec<(u32, Vec<u8>)>, Option<(u32, Vec<u8>)>) {
        match &self.kernel {
            RopeKernel::InPlace { params, .. } => {
                (Vec::new(), Some((1, bytemuck::bytes_of(params).to_vec())))
            }
            RopeKernel::QkvWrite { params, .. } => {
                (Vec::new(), Some((3, bytemuck::bytes_of(params).to_vec())))
            }
            RopeKernel::BatchKvWrite { params, .. } => {
                (Vec::new(), Some((5, bytemuck::bytes_of(params).to_vec())))
            }
            RopeKernel::HeadNorm { params, eps, .. } => {
                let eps = (6, bytemuck::bytes_of(eps).to_vec());
                (vec![eps], Some((3, bytemuck::bytes_of(params).to_vec())))
            }
            RopeKernel::X { dims, base, .. } => {
                let dims = (1, bytemuck::bytes_of(dims).to_vec());
                (vec![dims, (2, bytemuck::bytes_of(base).to_vec())], None)
            }
            RopeKernel::Op { params } => (Vec::new(), Some((3, bytemuck::bytes_of(params).to_vec()))),
        }
    }
}
