use std::fmt;

use gyrus_kernels::Launch;
use gyrus_kernels::grid::{RunError, Runner};

use crate::{CpuError, Pool};

/// Runs the rope kernels on a thread pool, for the op-test grid of [`gyrus_kernels::grid`].
pub struct CpuRunner {
    pool: Pool,
}

impl CpuRunner {
    /// A runner on this pool, with the pool's instruction set.
    pub fn new(pool: Pool) -> CpuRunner {
        CpuRunner { pool }
    }
}

impl fmt::Debug for CpuRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuRunner({})", self.name())
    }
}

impl Runner for CpuRunner {
    fn name(&self) -> String {
        format!("{}, {} threads", self.pool.isa().name(), self.pool.threads())
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        let call = RunError::rope(launch, "the CPU's runner")?;
        let mut buffers: Vec<&mut [u32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        super::rope(&self.pool, call, &mut buffers).map_err(|error| match error {
            CpuError::Launch(error) => RunError::Launch(*error),
            other => RunError::Backend(other.to_string()),
        })
    }
}
