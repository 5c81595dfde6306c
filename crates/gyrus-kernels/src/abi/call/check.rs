use super::{Cache, Freqs, RopeCall, RopeKernel, Shape};
use crate::call::Storage;
use crate::launch::LaunchError;

impl RopeCall {
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        let kernel = self.name();
        let Shape { tokens, heads, head_dim, rope_dim, offset } = self.shape();
        let zero = |name, value| {
            if value == 0 { Err(LaunchError::Zero { kernel: kernel.clone(), name }) } else { Ok(()) }
        };
        let storages: &[Storage] = match self.kernel {
            RopeKernel::X { .. } => &[Storage::F32],
            RopeKernel::Op { .. } => &[Storage::F32, Storage::F16, Storage::Bf16],
            _ => &[Storage::F32, Storage::F16],
        };
        if !storages.contains(&self.storage) {
            return Err(LaunchError::Storage { kernel, storage: self.storage.name() });
        }
        zero("the number of tokens", tokens)?;
        zero("the number of heads", heads)?;
        if head_dim < 2 || !head_dim.is_multiple_of(2) {
            return Err(LaunchError::Odd { kernel, name: "head_dim", value: head_dim });
        }
        if rope_dim < 2 || !rope_dim.is_multiple_of(2) {
            return Err(LaunchError::Odd { kernel, name: "rope_dim", value: rope_dim });
        }
        if u64::from(offset) + u64::from(rope_dim) > u64::from(head_dim) {
            return Err(LaunchError::RopeDim { kernel, offset, rope_dim, head_dim });
        }
        // The elements that fit in workgroup memory on every device, beside the partial sums.
        const MAX_HEAD_DIM: u32 = 2048;
        if head_dim > MAX_HEAD_DIM && (!self.is_vectored(&self.shape()) || self.is_single(&self.shape())) {
            let count = head_dim.into();
            return Err(LaunchError::Large { kernel, what: "elements of a head of this shape", count });
        }
        let positive = |name, value: f32| {
            if value > 0.0 && value.is_finite() {
                Ok(())
            } else {
                Err(LaunchError::NotPositive { kernel: kernel.clone(), name, value })
            }
        };
        let aligned = |name, value: u32| {
            if self.storage.bytes() == 2 && !value.is_multiple_of(2) {
                Err(LaunchError::Unaligned { kernel: kernel.clone(), name, value })
            } else {
                Ok(())
            }
        };
        let at_least = |name, value: u32, least: u64| {
            if u64::from(value) < least {
                Err(LaunchError::TooLow { kernel: kernel.clone(), name, value, least })
            } else {
                Ok(())
            }
        };
        let positions = |first: u32| {
            if self.positions == 0 && u64::from(first) + u64::from(tokens) > 1 << 32 {
                Err(LaunchError::Positions { kernel: kernel.clone(), first, count: tokens })
            } else {
                Ok(())
            }
        };
        if self.positions > 0 && matches!(self.kernel, RopeKernel::X { .. } | RopeKernel::Op { .. }) {
            return Err(LaunchError::PositionIds { kernel });
        }
        if self.positions > 4 {
            let count = self.positions.into();
            return Err(LaunchError::Large { kernel, what: "rows of positions", count });
        }
        match self.kernel {
            RopeKernel::InPlace { params: p, .. } => {
                if self.freqs == Freqs::Inline {
                    positive("theta", p.theta)?;
                }
                aligned("row_stride", p.row_stride)?;
                if p.row_stride != 0 {
                    at_least("row_stride", p.row_stride, u64::from(p.n_heads) * u64::from(head_dim))?;
                }
                positions(p.pos_offset)
            }
            RopeKernel::QkvWrite { params: p, cache, .. }
            | RopeKernel::BatchKvWrite { params: p, cache, .. }
            | RopeKernel::HeadNorm { params: p, cache, .. } => {
                zero("n_kv_heads", p.n_kv_heads)?;
                zero("max_seq_len", p.max_seq_len)?;
                if p.n_heads == 0 || !p.n_heads.is_multiple_of(p.n_kv_heads) {
                    return Err(LaunchError::Heads { kernel, n_heads: p.n_heads, n_kv_heads: p.n_kv_heads });
                }
                if self.freqs == Freqs::Inline {
                    positive("theta", p.theta)?;
                }
                positive("freq_scale", p.freq_scale)?;
                if !matches!(self.kernel, RopeKernel::BatchKvWrite { .. }) {
                    aligned("k_elem_offset", p.k_elem_offset)?;
                    aligned("v_elem_offset", p.v_elem_offset)?;
                    let (q, kv) = (
                        u64::from(p.n_heads) * u64::from(head_dim),
                        u64::from(p.n_kv_heads) * u64::from(head_dim),
                    );
                    at_least("k_elem_offset", p.k_elem_offset, q)?;
                    at_least("v_elem_offset", p.v_elem_offset, u64::from(p.k_elem_offset) + kv)?;
                }
                if let RopeKernel::HeadNorm { eps, .. } = self.kernel {
                    positive("norm_eps", eps.norm_eps)?;
                }
                positions(p.pos)?;
                let first = u64::from(p.pos.wrapping_add(p.slot_offset));
                let capacity = match cache {
                    Cache::Contiguous => u64::from(p.max_seq_len),
                    Cache::Paged { entries, .. } => u64::from(entries) * u64::from(p.max_seq_len),
                };
                if first + u64::from(tokens) > capacity {
                    return Err(LaunchError::CacheFull { kernel, first, count: tokens, capacity });
                }
                Ok(())
            }
            RopeKernel::X { dims, base, .. } => {
                if self.freqs == Freqs::Inline {
                    positive("rope_base", base.rope_base)?;
                }
                positions(dims.pos_offset)
            }
            RopeKernel::Op { params: p } => {
                positive("output_scale", p.output_scale)?;
                if p.freqs_dim != rope_dim && p.freqs_dim != rope_dim / 2 {
                    return Err(LaunchError::Angles { kernel, found: p.freqs_dim, rope_dim });
                }
                Ok(())
            }
        }
    }
}
