use gyrus_kernels::LaunchError;
use gyrus_kernels::shader::PreprocessError;

use crate::memory::{Memory, MemoryNeed, size, verdict};

/// Why a GPU cannot do what was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter at all, or none that counts.
    #[error("no GPU was found{}", if .software.is_empty() { String::new() } else { format!("; software adapters do not count unless named: {}", .software.join(", ")) })]
    NoAdapter {
        /// Names of software adapters that were passed over.
        software: Vec<String>,
    },
    /// No adapter of that name.
    #[error("no GPU is called '{name}'; there are: {}", if .there.is_empty() { "none".to_owned() } else { .there.join(", ") })]
    UnknownAdapter {
        /// The name asked for.
        name: String,
        /// The names there are.
        there: Vec<String>,
    },
    /// The driver gave no device.
    #[error("{adapter} could not be opened: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// A kernel's files make no shader.
    #[error("kernel {kernel}: {error}")]
    Source {
        /// The kernel.
        kernel: String,
        /// What is wrong, and where.
        error: PreprocessError,
    },
    /// A shader that was not accepted.
    #[error("kernel {kernel} was not accepted: {reason}")]
    Shader {
        /// The kernel's variant.
        kernel: String,
        /// What the compiler said, with lines of our files where they are known.
        reason: String,
    },
    /// A launch that is wrong in itself.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A weight that the device cannot compute with.
    #[error("tensor '{name}': {reason}")]
    Weight {
        /// Its name in the file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More than the device takes.
    #[error("{what} of {wanted} bytes: this device takes at most {most}")]
    Limit {
        /// What is too large.
        what: String,
        /// Its size.
        wanted: u64,
        /// The device's limit.
        most: u64,
    },
    /// A longer cache than the device can address.
    #[error("a cache for {positions} tokens is more than {adapter} can address; one for {most} would do")]
    Cache {
        /// The adapter's name.
        adapter: String,
        /// Positions asked for.
        positions: usize,
        /// Positions there can be.
        most: usize,
    },
    /// Not enough memory for a plan: seen before anything was uploaded, or when it ran out.
    #[error("the model needs {need} on {adapter}, {}", verdict(.need, *.memory, *.fitting))]
    NoRoom {
        /// The adapter's name.
        adapter: String,
        /// What is needed.
        need: MemoryNeed,
        /// What there is, where the driver says.
        memory: Option<Memory>,
        /// Positions of a cache that would fit, if any.
        fitting: Option<usize>,
    },
    /// Not enough memory.
    #[error("the GPU has no room for {bytes} bytes more")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// The device is gone: unplugged, reset by its driver, or hung.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// What the driver said.
        reason: String,
    },
    /// The driver refused a request.
    #[error("the GPU driver refused: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// A fault of this crate, or a plan that it cannot run: something that cannot happen did.
    #[error("internal error on the GPU: {fault}")]
    Internal {
        /// What happened.
        fault: String,
    },
}

impl GpuError {
    pub(crate) fn internal(fault: impl Into<String>) -> GpuError {
        GpuError::Internal { fault: fault.into() }
    }

    /// The reason alone, in half a line.
    pub fn in_short(&self) -> String {
        match self {
            GpuError::NoAdapter { .. } => "no GPU was found".to_owned(),
            GpuError::NoRoom { adapter, need, memory: Some(memory), .. } if need.total() > memory.free => {
                let free = if memory.free < memory.total { " free" } else { "" };
                format!("the model needs {}, {adapter} has {}{free}", size(need.total()), size(memory.free))
            }
            GpuError::NoRoom { adapter, need, .. } => {
                format!("the model needs {}, more than {adapter} has", size(need.total()))
            }
            other => other.to_string(),
        }
    }
}
