use crate::abi::RopeCall;
use crate::shader::Variant;

/// How a kernel uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and written.
    ReadWrite,
}

/// A buffer that a kernel needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Its binding in group 0.
    pub binding: u32,
    /// Whether it is written.
    pub access: Access,
    /// Its least size in bytes.
    pub bytes: u64,
}

/// A checked dispatch: kernel, grid, parameters and buffers.
///
/// Shaders run without bounds checks and trust it. So only the calls of this crate create one, and no other crate can
/// change it:
///
/// ```compile_fail
/// let mut launch = gyrus_kernels::call::copy(gyrus_kernels::shader::Rungs::NONE, 64).unwrap();
/// launch.groups = [65_535, 65_535, 1];
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    pub(crate) variant: Variant,
    pub(crate) slots: Vec<Slot>,
    pub(crate) uniforms: Vec<(u32, Vec<u8>)>,
    pub(crate) params: Option<(u32, Vec<u8>)>,
    pub(crate) groups: [u32; 3],
    pub(crate) rope: Option<RopeCall>,
}

impl Launch {
    /// The kernel.
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    /// The buffers, in the order in which the caller passes them.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Uniform buffers that the kernel always has: binding and contents.
    pub fn uniforms(&self) -> &[(u32, Vec<u8>)] {
        &self.uniforms
    }

    /// The parameters: immediates if the device has them, else a uniform at this binding; and their contents.
    pub fn params(&self) -> Option<&(u32, Vec<u8>)> {
        self.params.as_ref()
    }

    /// Workgroups.
    pub fn groups(&self) -> [u32; 3] {
        self.groups
    }

    /// The call of a published rope kernel. Backends without shaders run it.
    pub fn rope(&self) -> Option<&RopeCall> {
        self.rope.as_ref()
    }

    /// Checks the buffers' sizes, and that no written buffer is bound twice. `same(i, j)` says whether two of them are
    /// the same memory.
    pub fn check_buffers(
        &self,
        bytes: &[u64],
        same: impl Fn(usize, usize) -> bool,
    ) -> Result<(), LaunchError> {
        let kernel = || self.variant.name.clone();
        if bytes.len() != self.slots.len() {
            let names: Vec<&str> = self.slots.iter().map(|slot| slot.name).collect();
            return Err(LaunchError::Buffers {
                kernel: kernel(),
                found: bytes.len(),
                expected: names.len(),
                names: names.join(", "),
            });
        }
        for (slot, &found) in self.slots.iter().zip(bytes) {
            if found < slot.bytes {
                let needed = slot.bytes;
                return Err(LaunchError::Small { kernel: kernel(), buffer: slot.name, found, needed });
            }
        }
        for (i, a) in self.slots.iter().enumerate() {
            for (j, b) in self.slots.iter().enumerate().skip(i + 1) {
                if (a.access == Access::ReadWrite || b.access == Access::ReadWrite) && same(i, j) {
                    return Err(LaunchError::Alias { kernel: kernel(), a: a.name, b: b.name });
                }
            }
        }
        Ok(())
    }
}

/// The most workgroups along one axis. A folded grid has up to this many workgroups too many.
pub(crate) const AXIS: u64 = 65_535;

/// A grid of at least `count` workgroups, folded over two axes if one is too short.
pub(crate) fn grid(kernel: &str, count: u64) -> Result<[u32; 3], LaunchError> {
    if count > AXIS * AXIS {
        return Err(LaunchError::Large { kernel: kernel.to_owned(), what: "workgroups", count });
    }
    let x = count.clamp(1, AXIS);
    Ok([x as u32, count.div_ceil(x).max(1) as u32, 1])
}

/// Why a call is refused, before anything runs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A size that must not be odd, or zero.
    #[error("{kernel}: {name} is {value}, an even number from 2 on is needed")]
    Odd {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
    },
    /// More elements to rotate than a head has.
    #[error("{kernel}: elements {offset} to {offset}+{rope_dim} are to be rotated, a head has {head_dim}")]
    RopeDim {
        /// The kernel.
        kernel: String,
        /// First element.
        offset: u32,
        /// How many.
        rope_dim: u32,
        /// How many there are.
        head_dim: u32,
    },
    /// A parameter that must not be zero.
    #[error("{kernel}: {name} is 0")]
    Zero {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
    },
    /// A parameter that is not a positive finite number.
    #[error("{kernel}: {name} is {value}, a positive number is needed")]
    NotPositive {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// Query heads that are not a multiple of the KV heads.
    #[error("{kernel}: {n_heads} query heads are not a multiple of {n_kv_heads} KV heads")]
    Heads {
        /// The kernel.
        kernel: String,
        /// Query heads.
        n_heads: u32,
        /// Key heads.
        n_kv_heads: u32,
    },
    /// A parameter below its least value.
    #[error("{kernel}: {name} is {value}, at least {least} is needed")]
    TooLow {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The least it may be.
        least: u64,
    },
    /// An odd offset or stride of 16-bit elements, which are accessed in 32-bit words.
    #[error("{kernel}: {name} is {value}; 16-bit elements need an even number")]
    Unaligned {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
    },
    /// A size that is not a multiple of a vector or block.
    #[error("{kernel}: {name} is {value}, a multiple of {of} is needed")]
    NotMultiple {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u32,
        /// What must divide it.
        of: u32,
    },
    /// A tuning that the kernel does not support.
    #[error("{kernel}: {name} is {value}, {needed} is needed")]
    Tuning {
        /// The kernel.
        kernel: String,
        /// What is tuned.
        name: &'static str,
        /// Its value.
        value: u32,
        /// What it may be.
        needed: &'static str,
    },
    /// Slots beyond the cache's end.
    #[error("{kernel}: slots {first} to {first}+{count} of a cache that has {capacity}")]
    CacheFull {
        /// The kernel.
        kernel: String,
        /// First slot.
        first: u64,
        /// Slots to write.
        count: u32,
        /// Slots of the cache.
        capacity: u64,
    },
    /// Positions beyond 32 bits.
    #[error("{kernel}: {count} positions from {first} on pass the last one, {}", u32::MAX)]
    Positions {
        /// The kernel.
        kernel: String,
        /// First position.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Position ids for a kernel that takes none.
    #[error("{kernel}: takes no position ids")]
    PositionIds {
        /// The kernel.
        kernel: String,
    },
    /// An unsupported number of angles.
    #[error("{kernel}: {found} angles per position, {rope_dim} or half as many are needed")]
    Angles {
        /// The kernel.
        kernel: String,
        /// Angles given.
        found: u32,
        /// Elements that are rotated.
        rope_dim: u32,
    },
    /// More than 32-bit indices or the grid can address.
    #[error("{kernel}: {count} {what} are more than can be addressed")]
    Large {
        /// The kernel.
        kernel: String,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        count: u64,
    },
    /// An element type that the kernel does not support.
    #[error("{kernel}: elements of type {storage} are not supported")]
    Storage {
        /// The kernel.
        kernel: String,
        /// The type.
        storage: &'static str,
    },
    /// A list that is not as long as the call says.
    #[error("{kernel}: a list of {found} {what}s for {expected}")]
    Pairs {
        /// The kernel.
        kernel: String,
        /// What is listed.
        what: &'static str,
        /// How many are listed.
        found: usize,
        /// How many the call has.
        expected: u32,
    },
    /// A listed number beyond the end.
    #[error("{kernel}: {what} {number} of a cache that has {capacity}")]
    Beyond {
        /// The kernel.
        kernel: String,
        /// What is listed.
        what: &'static str,
        /// Its number.
        number: u32,
        /// How many there are.
        capacity: u64,
    },
    /// Something that a launch would write while it reads it, or write twice.
    #[error("{kernel}: {what} {number} is written, and read or written by another of the same launch")]
    Clash {
        /// The kernel.
        kernel: String,
        /// What is listed.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// The wrong number of buffers.
    #[error("{kernel}: {found} buffers for {expected} ({names})")]
    Buffers {
        /// The kernel.
        kernel: String,
        /// Buffers given.
        found: usize,
        /// Buffers needed.
        expected: usize,
        /// Their names.
        names: String,
    },
    /// A buffer that is too small.
    #[error("{kernel}: buffer {buffer} has {found} bytes, {needed} are needed")]
    Small {
        /// The kernel.
        kernel: String,
        /// The buffer's name.
        buffer: &'static str,
        /// Its bytes.
        found: u64,
        /// The least it must have.
        needed: u64,
    },
    /// The same memory under two names, one of which is written.
    #[error("{kernel}: buffers {a} and {b} are the same memory, and one of them is written")]
    Alias {
        /// The kernel.
        kernel: String,
        /// One buffer's name.
        a: &'static str,
        /// The other's.
        b: &'static str,
    },
}
