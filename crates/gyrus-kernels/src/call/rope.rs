use crate::launch::{Access, Launch, LaunchError, Slot, grid};
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use crate::rope::{Direction, Pairing};
use crate::shader::{Rungs, Variant};

/// What elements lie in memory as; arithmetic is `f32` with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl Storage {
    /// Its name, which kernels' names end with.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        if self == Storage::F32 { 4 } else { 2 }
    }

    /// Elements of sixteen bytes.
    fn vector(self) -> u32 {
        16 / self.bytes() as u32
    }
}

/// Where a kernel has its frequencies from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Freqs {
    /// From the base alone, computed where the kernel runs.
    Inline,
    /// `f32` divisors of the position, one a pair.
    Divisors,
    /// 64-bit fractions of a turn per position, one a pair, made by [`crate::Rope::turns`]: exact at any
    /// position. The two lowest bits say which row of positions the pair reads.
    Turns,
}

impl Freqs {
    fn name(self) -> &'static str {
        match self {
            Freqs::Inline => "inline",
            Freqs::Divisors => "divisors",
            Freqs::Turns => "turns",
        }
    }
}

/// How the cache is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cache {
    /// One block of `max_seq_len` positions.
    Contiguous,
    /// Blocks of `max_seq_len` positions, found through a table. Whoever writes the table answers for it.
    Paged {
        /// Entries of the table.
        entries: u32,
        /// Blocks the cache has.
        blocks: u32,
    },
}

/// One of the rope kernels with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeKernel {
    /// `rope`, `rope_neox`: heads in place.
    InPlace {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes and position.
        params: RoPEParams,
    },
    /// `rope_qkv_write`, `rope_neox_qkv_write`: Q and K of one token, K and V to the cache.
    QkvWrite {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes, offsets and position.
        params: RoPEQKVWriteParams,
        /// The cache.
        cache: Cache,
    },
    /// `rope_batch_kv_write`, `rope_neox_batch_kv_write`: the same for several tokens.
    BatchKvWrite {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes and position; `k_elem_offset` is the number of tokens.
        params: RoPEQKVWriteParams,
        /// The cache.
        cache: Cache,
    },
    /// `head_norm_rope_neox_kv_write`: one token, with the RMS norm of each head first.
    HeadNorm {
        /// Sizes, offsets and position.
        params: RoPEQKVWriteParams,
        /// The norm's epsilon.
        eps: NormEpsParams,
        /// Whether the factor is one plus the weight.
        plus_one: bool,
        /// The cache.
        cache: Cache,
    },
    /// `rope_q` or `rope_k` and their `_backward`: heads in place in `f32`, adjacent pairs.
    X {
        /// `q` or `k`.
        of: char,
        /// Sizes and position.
        dims: RoPEDims,
        /// The base.
        base: RoPEBase,
    },
    /// `rope_fwd`, `rope_bwd`: from one tensor to another, by given angles.
    Op {
        /// Sizes and scale.
        params: RoPEOpParams,
    },
}

/// A call of a rope kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeCall {
    /// Which, with its parameters.
    pub kernel: RopeKernel,
    /// Element type of all tensors.
    pub storage: Storage,
    /// Which way.
    pub direction: Direction,
    /// Frequencies. Without meaning for [`RopeKernel::Op`], which is given angles.
    pub freqs: Freqs,
    /// Rows of position ids: 0 if tokens follow each other, more than 1 for M-RoPE.
    pub positions: u32,
}

/// What does not change a result, only its speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RopeTuning {
    /// Invocations of a workgroup.
    pub workgroup: Option<u32>,
    /// Heads of a token that different invocations take.
    pub lanes: Option<u32>,
}

/// Sizes that all kernels have in common.
pub(crate) struct Shape {
    pub(crate) tokens: u32,
    /// Heads of a token, those that are only copied included.
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) rope_dim: u32,
    pub(crate) offset: u32,
}

impl RopeCall {
    /// The kernel's name.
    pub fn name(&self) -> String {
        let neox = |pairing| if pairing == Pairing::Split { "neox_" } else { "" };
        let name = match self.kernel {
            RopeKernel::InPlace { pairing: Pairing::Split, .. } => "rope_neox".to_owned(),
            RopeKernel::InPlace { .. } => "rope".to_owned(),
            RopeKernel::QkvWrite { pairing, .. } => format!("rope_{}qkv_write", neox(pairing)),
            RopeKernel::BatchKvWrite { pairing, .. } => format!("rope_{}batch_kv_write", neox(pairing)),
            RopeKernel::HeadNorm { .. } => "head_norm_rope_neox_kv_write".to_owned(),
            RopeKernel::X { of, .. } => {
                let backward = if self.direction == Direction::Inverse { "_backward" } else { "" };
                return format!("rope_{of}{backward}");
            }
            RopeKernel::Op { .. } if self.direction == Direction::Inverse => "rope_bwd".to_owned(),
            RopeKernel::Op { .. } => "rope_fwd".to_owned(),
        };
        format!("{name}_{}", self.storage.name())
    }

    fn file(&self) -> &'static str {
        match (self.kernel, self.direction) {
            (RopeKernel::InPlace { pairing: Pairing::Adjacent, .. }, _) => "rope/rope.wgsl",
            (RopeKernel::InPlace { .. }, _) => "rope/rope_neox.wgsl",
            (RopeKernel::QkvWrite { pairing: Pairing::Adjacent, .. }, _) => "rope/rope_qkv_write.wgsl",
            (RopeKernel::QkvWrite { .. }, _) => "rope/rope_neox_qkv_write.wgsl",
            (RopeKernel::BatchKvWrite { pairing: Pairing::Adjacent, .. }, _) => {
                "rope/rope_batch_kv_write.wgsl"
            }
            (RopeKernel::BatchKvWrite { .. }, _) => "rope/rope_neox_batch_kv_write.wgsl",
            (RopeKernel::HeadNorm { .. }, _) => "rope/head_norm_rope_neox_kv_write.wgsl",
            (RopeKernel::X { of: 'q', .. }, Direction::Forward) => "rope/rope_q.wgsl",
            (RopeKernel::X { of: 'q', .. }, Direction::Inverse) => "rope/rope_q_backward.wgsl",
            (RopeKernel::X { .. }, Direction::Forward) => "rope/rope_k.wgsl",
            (RopeKernel::X { .. }, Direction::Inverse) => "rope/rope_k_backward.wgsl",
            (RopeKernel::Op { .. }, Direction::Forward) => "rope/rope_fwd.wgsl",
            (RopeKernel::Op { .. }, Direction::Inverse) => "rope/rope_bwd.wgsl",
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        let all = |rope_dim, head_dim| if rope_dim == 0 { head_dim } else { rope_dim };
        match self.kernel {
            RopeKernel::InPlace { params: p, .. } => Shape {
                tokens: p.seq_len,
                heads: p.n_heads,
                head_dim: p.head_dim,
                rope_dim: all(p.rope_dim, p.head_dim),
                offset: p.rope_offset,
            },
            RopeKernel::QkvWrite { params: p, .. }
            | RopeKernel::BatchKvWrite { params: p, .. }
            | RopeKernel::HeadNorm { params: p, .. } => Shape {
                tokens: if matches!(self.kernel, RopeKernel::BatchKvWrite { .. }) {
                    p.k_elem_offset
                } else {
                    1
                },
                heads: p.n_heads.saturating_add(p.n_kv_heads.saturating_mul(2)),
                head_dim: p.head_dim,
                rope_dim: all(p.rope_dim, p.head_dim),
                offset: p.rope_offset,
            },
            RopeKernel::X { dims, .. } => Shape {
                tokens: dims.seq_len,
                heads: dims.n_heads,
                head_dim: dims.head_dim,
                rope_dim: dims.head_dim,
                offset: 0,
            },
            RopeKernel::Op { params: p } => Shape {
                tokens: p.batch.saturating_mul(p.seq_len),
                heads: p.n_heads,
                head_dim: p.head_dim,
                rope_dim: p.rope_dim,
                offset: p.head_dim.saturating_sub(p.rope_dim),
            },
        }
    }

    /// Checks everything that can be checked without data, and says what to run.
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
            constants.push(flag("PASS", passes));
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
            // A small grid is spread over as many cores as it reaches.
            let small = u64::from(shape.tokens) * u64::from(lanes) * pieces < 1 << 14;
            let workgroup = tuning.workgroup.unwrap_or(if small { 32 } else { 256 }).clamp(1, 256);
            overrides.extend([
                ("WORKGROUP", f64::from(workgroup)),
                ("LANES", f64::from(lanes)),
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
            // An invocation a slot, as far as every device goes; powers of two, so that variants are few.
            let slots = if staged { shape.head_dim / 2 } else { words }.next_power_of_two();
            let workgroup = slots.clamp(32, 256);
            constants.push(flag("STAGED", staged));
            overrides.push(("WORKGROUP", f64::from(workgroup)));
            if staged {
                constants.push(flag("MANY", slots > workgroup));
                overrides.push(("ROOM", f64::from((2 * slots).max(64))));
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
        Ok(Launch { variant, slots, uniforms, params, groups })
    }

    /// How many invocations share the heads of a token. Two heads each hide the phases' cost on large tensors
    /// (measured: 4.13 TB/s of 4.2 with 20 lanes for 40 heads, 3.90 with 4); few tokens take all there are.
    fn lanes(&self, shape: &Shape, pieces: u64) -> u32 {
        const FEW: u64 = 1 << 15;
        if u64::from(shape.tokens) * pieces * u64::from(shape.heads) <= FEW {
            return shape.heads;
        }
        // Given angles cost more than tabled frequencies, and heads that lie far apart gain nothing from being
        // taken together (measured: 3.92 TB/s with 4 lanes for 40 heads, 3.61 with 20).
        let each = if matches!(self.kernel, RopeKernel::Op { .. }) { 8 } else { 2 };
        shape.heads.div_ceil(each)
    }

    /// Whether there is so little to do that only the time to begin counts.
    fn is_single(&self, shape: &Shape) -> bool {
        shape.tokens == 1 && u64::from(shape.heads) * u64::from(shape.head_dim) <= 1 << 16
    }

    fn is_vectored(&self, shape: &Shape) -> bool {
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

    fn cache(&self) -> Option<Cache> {
        match self.kernel {
            RopeKernel::QkvWrite { cache, .. }
            | RopeKernel::BatchKvWrite { cache, .. }
            | RopeKernel::HeadNorm { cache, .. } => Some(cache),
            _ => None,
        }
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

    /// The buffers in the order of their bindings.
    fn slots(&self) -> Result<Vec<Slot>, LaunchError> {
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
                let room = product([cache_elements(&p, cache), size]);
                push("k_cache", 1, ReadWrite, room);
                push("v_cache", 2, ReadWrite, room);
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
                let room = product([cache_elements(&p, cache), size]);
                push("k_cache", 3, ReadWrite, room);
                push("v_cache", 4, ReadWrite, room);
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

    fn check(&self) -> Result<(), LaunchError> {
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
        // What workgroup memory holds on every device, less room for sums.
        const LONGEST: u32 = 2048;
        if head_dim > LONGEST && (!self.is_vectored(&self.shape()) || self.is_single(&self.shape())) {
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
                let room = match cache {
                    Cache::Contiguous => u64::from(p.max_seq_len),
                    Cache::Paged { entries, .. } => u64::from(entries) * u64::from(p.max_seq_len),
                };
                if first + u64::from(tokens) > room {
                    return Err(LaunchError::CacheFull { kernel, first, count: tokens, room });
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

/// A product that stays at the largest number where it would be larger: too much in any case.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.iter().fold(1, |all, &factor| all.saturating_mul(factor))
}

fn cache_elements(p: &RoPEQKVWriteParams, cache: Cache) -> u64 {
    let blocks = if let Cache::Paged { blocks, .. } = cache { blocks } else { 1 };
    product([p.n_kv_heads.into(), p.max_seq_len.into(), p.head_dim.into(), blocks.into()])
}
