use gyrus_kernels::{Launch, LaunchError};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;

/// An op of a plan on the device: how its launch follows the number of rows, and its buffers.
///
/// A launch is checked and a kernel bound when a number of rows comes up that was not the last one; a text that is
/// written token by token replays the same dispatch.
pub(crate) struct Step {
    launch: Box<dyn Fn(u32) -> Result<Launch, LaunchError> + Send>,
    buffers: Vec<Buffer>,
    /// One for each variant of the kernel that was needed so far.
    bound: Vec<(String, Dispatch)>,
    current: usize,
    rows: u32,
}

impl Step {
    pub(crate) fn new(
        buffers: Vec<Buffer>,
        launch: impl Fn(u32) -> Result<Launch, LaunchError> + Send + 'static,
    ) -> Step {
        Step { launch: Box::new(launch), buffers, bound: Vec::new(), current: 0, rows: 0 }
    }

    /// The launch for this many rows, for compiling ahead.
    pub(crate) fn launch(&self, rows: u32) -> Result<Launch, LaunchError> {
        (self.launch)(rows)
    }

    /// Makes the dispatch ready for this many rows.
    pub(crate) fn follow(&mut self, gpu: &Gpu, rows: u32) -> Result<&mut Dispatch, GpuError> {
        if rows != self.rows || self.bound.is_empty() {
            let launch = (self.launch)(rows)?;
            let key = launch.variant.key();
            let buffers: Vec<&Buffer> = self.buffers.iter().collect();
            match self.bound.iter().position(|(name, _)| *name == key) {
                Some(at) => {
                    gpu.rebind(&mut self.bound[at].1, &launch, &buffers)?;
                    self.current = at;
                }
                None => {
                    self.bound.push((key, gpu.bind(&launch, &buffers)?));
                    self.current = self.bound.len() - 1;
                }
            }
            self.rows = rows;
        }
        Ok(&mut self.bound[self.current].1)
    }

    /// The dispatch as it was last made ready.
    pub(crate) fn dispatch(&self) -> Option<&Dispatch> {
        self.bound.get(self.current).map(|(_, dispatch)| dispatch)
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.bound.get(self.current).map_or("not bound yet", |(name, _)| name);
        write!(f, "Step({name}, {} rows)", self.rows)
    }
}
