use super::{Cache, Freqs, RopeCall, RopeKernel};
use crate::launch::{Access, LaunchError, Slot};
use crate::params::RoPEQKVWriteParams;
use crate::rope::Pairing;

impl RopeCall {
    /// The buffers in the order of their bindings.
    pub(super) fn slots(&self) -> Result<Vec<Slot>, LaunchError> {
        use Access::{Read, ReadWrite};
        let shape = self.shape();
        let name = self.name();
        let (tokens, head_dim) = (u64::from(shape.tokens), u64::from(shape.head_dim));
        let mut slots = Vec::new();
        let mut push = |name, binding, access, bytes| slots.push(Slot { name, binding, access, bytes });
        let size = self.storage.bytes();
        let pairs = u64::from(shape.rope_dim / 2);
        let freqs = match self.freqs {
            Freqs::Inline => 0,
            Freqs::Divisors => 4 * pairs,
            Freqs::Turns => 8 * pairs,
        };
        let (freqs_at, positions_at) = match self.kernel {
            RopeKernel::InPlace { pairing: Pairing::Adjacent, .. } => (2, 3),
            RopeKernel::InPlace { .. } => (3, 2),
            RopeKernel::QkvWrite { .. } => (4, 6),
            RopeKernel::BatchKvWrite { .. } => (6, 8),
            RopeKernel::HeadNorm { .. } => (7, 9),
            RopeKernel::X { .. } => (3, 0),
            RopeKernel::Op { .. } => (0, 0),
        };
        match self.kernel {
            RopeKernel::InPlace { params: p, .. } => {
                let row = u64::from(p.n_heads) * head_dim;
                let stride = if p.row_stride == 0 { row } else { u64::from(p.row_stride) };
                push("x", 0, ReadWrite, product([product([tokens - 1, stride]).saturating_add(row), size]));
            }
            RopeKernel::QkvWrite { params: p, cache, .. } | RopeKernel::HeadNorm { params: p, cache, .. } => {
                let kv = u64::from(p.n_kv_heads) * head_dim;
                let last = u64::from(p.v_elem_offset.max(p.k_elem_offset));
                push("qkv", 0, ReadWrite, product([last.saturating_add(kv), size]));
                let cache_bytes = product([cache_elements(&p, cache), size]);
                push("k_cache", 1, ReadWrite, cache_bytes);
                push("v_cache", 2, ReadWrite, cache_bytes);
                if matches!(self.kernel, RopeKernel::HeadNorm { .. }) {
                    push("q_norm_weight", 4, Read, head_dim * size);
                    push("k_norm_weight", 5, Read, head_dim * size);
                }
            }
            RopeKernel::BatchKvWrite { params: p, cache, .. } => {
                let kv = product([tokens, p.n_kv_heads.into(), head_dim, size]);
                push("q", 0, ReadWrite, product([tokens, p.n_heads.into(), head_dim, size]));
                push("k", 1, Read, kv);
                push("v", 2, Read, kv);
                let cache_bytes = product([cache_elements(&p, cache), size]);
                push("k_cache", 3, ReadWrite, cache_bytes);
                push("v_cache", 4, ReadWrite, cache_bytes);
            }
            RopeKernel::X { dims, .. } => {
                push("x", 0, ReadWrite, product([tokens, dims.n_heads.into(), head_dim, size]));
            }
            RopeKernel::Op { params: p } => {
                let all = product([tokens, p.n_heads.into(), head_dim, size]);
                push("x", 0, Read, all);
                push("freqs", 1, Read, product([4, p.seq_len.into(), p.freqs_dim.into()]));
                push("y", 2, ReadWrite, all);
            }
        }
        let op = matches!(self.kernel, RopeKernel::Op { .. });
        let mut more = Vec::new();
        if freqs > 0 && !op {
            more.push(Slot { name: "freqs", binding: freqs_at, access: Read, bytes: freqs });
        }
        if let Some(Cache::Paged { entries, .. }) = self.cache() {
            more.push(Slot {
                name: "block_table",
                binding: freqs_at + 1,
                access: Read,
                bytes: 4 * u64::from(entries),
            });
        }
        if self.positions > 0 && !op {
            let bytes = 4 * u64::from(self.positions) * tokens;
            more.push(Slot { name: "position_ids", binding: positions_at, access: Read, bytes });
        }
        slots.extend(more);
        slots.sort_by_key(|slot| slot.binding);
        for slot in &slots {
            if slot.bytes / size > u64::from(u32::MAX) {
                return Err(LaunchError::Large { kernel: name, what: "elements", count: slot.bytes / size });
            }
        }
        Ok(slots)
    }
}

/// A saturating product: a result of `u64::MAX` is refused in any case.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.iter().fold(1, |all, &factor| all.saturating_mul(factor))
}

fn cache_elements(p: &RoPEQKVWriteParams, cache: Cache) -> u64 {
    let blocks = if let Cache::Paged { blocks, .. } = cache { blocks } else { 1 };
    product([p.n_kv_heads.into(), p.max_seq_len.into(), p.head_dim.into(), blocks.into()])
}
