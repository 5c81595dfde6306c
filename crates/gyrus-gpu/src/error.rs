use std::path::PathBuf;

use gyrus_kernels::shader::PreprocessError;
use gyrus_kernels::{BackendError, LaunchError, WeightError};

use crate::memory::{Memory, MemoryNeed, size, verdict};

/// Why a GPU cannot do what was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter at all, or software adapters only.
    #[error("no GPU was found{}", if .software.is_empty() { String::new() } else { format!("; software adapters are used only if named: {}", .software.join(", ")) })]
    NoAdapter {
        /// Names of the software adapters.
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
    /// The driver failed to open the device.
    #[error("{adapter} could not be opened: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// A kernel's WGSL could not be preprocessed.
    #[error("kernel {kernel}: {error}")]
    Source {
        /// The kernel.
        kernel: String,
        /// What is wrong, and where.
        #[source]
        error: PreprocessError,
    },
    /// A shader that does not compile.
    #[error("kernel {kernel} does not compile: {reason}")]
    Shader {
        /// The kernel's variant.
        kernel: String,
        /// What the compiler said, with lines of the WGSL files where they are known.
        reason: String,
    },
    /// An op that no kernel computes.
    #[error("the model has an op that GPUs do not run yet: {op}; try --device cpu")]
    UnsupportedOp {
        /// What it is.
        op: &'static str,
    },
    /// A launch with wrong parameters or buffers.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A weight that kernels cannot compute with.
    #[error("tensor '{name}': {error}")]
    Weight {
        /// Its name in the file.
        name: String,
        /// What is wrong with it.
        #[source]
        error: WeightError,
    },
    /// A weight that the model's file does not have.
    #[error("tensor '{name}' is not in the file")]
    MissingWeight {
        /// Its name.
        name: String,
    },
    /// A buffer larger than the device's limit.
    #[error("{what} of {wanted} bytes is more than this device's limit of {most}")]
    Limit {
        /// What is too large.
        what: String,
        /// Its size.
        wanted: u64,
        /// The device's limit.
        most: u64,
    },
    /// A longer cache than a buffer of the device can hold.
    #[error("a cache for {positions} tokens is more than {adapter} can address; one for {most} would do")]
    Cache {
        /// The adapter's name.
        adapter: String,
        /// Positions asked for.
        positions: usize,
        /// Positions there can be.
        most: usize,
    },
    /// Not enough memory for a plan: found before anything was uploaded, or when an allocation failed.
    #[error("the model needs {need} on {adapter}, {}", verdict(.need, *.memory, *.fitting))]
    InsufficientMemory {
        /// The adapter's name.
        adapter: String,
        /// What is needed.
        need: MemoryNeed,
        /// What there is, where the driver says.
        memory: Option<Memory>,
        /// Positions of a cache that would fit, if any.
        fitting: Option<usize>,
    },
    /// Not enough memory for a buffer, or for something that the driver allocates.
    #[error("the GPU is out of memory{}", .bytes.map(|bytes| format!(": {} requested", size(bytes))).unwrap_or_default())]
    OutOfMemory {
        /// Bytes of the buffer, if it was one.
        bytes: Option<u64>,
    },
    /// Too few free blocks of the KV cache to measure with.
    #[error("measuring at this depth needs {needed} free blocks of the KV cache, {free} are free")]
    FreeBlocks {
        /// Blocks of one sequence.
        needed: usize,
        /// Free blocks.
        free: usize,
    },
    /// A file that could not be written.
    #[error("{} could not be written: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
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

impl From<GpuError> for BackendError {
    fn from(error: GpuError) -> BackendError {
        BackendError::device(error)
    }
}

impl GpuError {
    pub(crate) fn internal(fault: impl Into<String>) -> GpuError {
        GpuError::Internal { fault: fault.into() }
    }

    /// The reason in half a line.
    pub fn in_short(&self) -> String {
        match self {
            GpuError::NoAdapter { .. } => "no GPU was found".to_owned(),
            GpuError::InsufficientMemory { adapter, need, memory: Some(memory), .. }
                if need.total() > memory.free =>
            {
                let free = if memory.free < memory.total { " free" } else { "" };
                format!("the model needs {}, {adapter} has {}{free}", size(need.total()), size(memory.free))
            }
            GpuError::InsufficientMemory { adapter, need, .. } => {
                format!("the model needs {}, more than {adapter} has", size(need.total()))
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_error_keeps_the_gpu_error() {
        let error = BackendError::from(GpuError::OutOfMemory { bytes: Some(812 << 20) });
        assert_eq!(error.to_string(), "the GPU is out of memory: 812.0 MiB requested");
        let BackendError::Device(source) = error else { panic!("{error}") };
        assert!(matches!(source.downcast_ref(), Some(GpuError::OutOfMemory { .. })));
        assert_eq!(GpuError::OutOfMemory { bytes: None }.to_string(), "the GPU is out of memory");
    }
}
