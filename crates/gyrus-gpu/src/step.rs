//! Kernel calls bound to buffers and pipelines.

use gyrus_kernels::call::engine;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Launch, LaunchError, Traffic};

use crate::buffer::Buffer;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS};
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::lower::Call;

/// The properties of a batch that grids depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchShape<'a> {
    /// Rows that the steps compute.
    pub(crate) rows: u32,
    /// The position of each row of the batch.
    pub(crate) positions: &'a [u32],
    /// Tiles of flash attention.
    pub(crate) tiles: u32,
    /// Sequences of the batch, whose rows are adjacent.
    pub(crate) runs: u32,
    /// For each KV group that rows see the extent of, the most splits of a row's attention.
    pub(crate) spans: &'a [(u8, u32)],
    /// For each attention window, a number of splits that no row exceeds; empty if it follows from the positions.
    pub(crate) splits: &'a [(u32, u32)],
}

impl BatchShape<'_> {
    /// The largest position of a row.
    pub(crate) fn farthest(&self) -> u32 {
        self.positions.iter().copied().max().unwrap_or(0)
    }

    /// The most splits that any row's attention has. It need not be the farthest row's: a window may begin in a later
    /// tile, and splits become longer when there would be too many of them.
    pub(crate) fn splits(&self, window: u32) -> u32 {
        if let Some((_, splits)) = self.splits.iter().find(|(of, _)| *of == window) {
            return *splits;
        }
        self.positions.iter().map(|position| engine::splits(*position, window)).max().unwrap_or(1)
    }
}

impl BatchShape<'_> {
    /// The most splits of attention to the whole extent in a KV group.
    pub(crate) fn span_splits(&self, group: u8) -> u32 {
        self.spans.iter().find(|(of, _)| *of == group).map_or(1, |(_, splits)| *splits)
    }
}

/// What a step must read and write, and how much it computes, to compare its time with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// A matrix of this many bytes, times rows; bytes of activations that are read and written for each.
    Matrix { bytes: u64, row_bytes: u64, rows: u32, cols: u32 },
    /// The positions of a cache in a window, or all if it is 0: bytes and operations of one of them.
    Cache { bytes: u64, flops: u64, window: u32 },
    /// A state of each sequence: bytes that are read and written, and operations of a row.
    State { bytes: u64, flops: u64 },
    /// Bytes of activations of a row.
    Row { bytes: u64 },
}

impl Work {
    /// Traffic and operations for a batch, whose rows are of one sequence or, `separate`, each of its own.
    pub(crate) fn of(&self, batch: BatchShape<'_>, separate: bool) -> (Traffic, u64) {
        let rows = u64::from(batch.rows);
        let traffic = |own, activations| Traffic { bytes: own + activations, own, working_set: own };
        match *self {
            Work::Matrix { bytes, row_bytes, rows: n, cols } => {
                (traffic(bytes, rows * row_bytes), 2 * rows * u64::from(n) * u64::from(cols))
            }
            Work::Cache { bytes, flops, window } => {
                let window = if window == 0 { u64::MAX } else { u64::from(window) };
                let seen = batch.positions.iter().map(|position| (u64::from(*position) + 1).min(window));
                let seen: u64 = seen.sum();
                // Neighbouring rows of a sequence see the same positions except for one at each end.
                let all = (u64::from(batch.farthest()) + 1).min(window.saturating_add(rows - 1));
                (traffic(bytes * if separate { seen } else { all }, 0), flops * seen)
            }
            Work::State { bytes, flops } => (traffic(bytes * u64::from(batch.runs), 0), flops * rows),
            Work::Row { bytes } => (traffic(0, bytes * rows), 0),
        }
    }
}

/// A kernel call with its buffers.
///
/// A launch is checked and a pipeline bound when a number of rows first comes up; decoding replays the same dispatch.
pub(crate) struct Step {
    pub(crate) call: Call,
    /// By the names of the launch's slots.
    buffers: Vec<(&'static str, Buffer)>,
    /// One dispatch for each number of rows up to [`MATVEC_ROWS`] that was needed so far, one for [`MAX_ROWS`], and for other
    /// numbers one for each variant of the kernel.
    bound: Vec<Bound>,
    current: usize,
    rows: u32,
}

/// A dispatch for a number of rows, and the key of the kernel's variant.
struct Bound {
    rows: u32,
    key: String,
    dispatch: Dispatch,
}

impl Step {
    pub(crate) fn new(call: Call, buffers: Vec<(&'static str, Buffer)>) -> Step {
        Step { call, buffers, bound: Vec::new(), current: 0, rows: 0 }
    }

    /// The launch for this many rows, if there is anything to compute for them: to compile it in advance.
    pub(crate) fn launch(&self, rungs: Rungs, rows: u32) -> Option<Result<Launch, LaunchError>> {
        self.call.runs_for(rows).then(|| self.call.launch(rungs, rows))
    }

    /// Prepares the dispatch for a batch. `None`: there is nothing to compute for this many rows.
    pub(crate) fn prepare(
        &mut self,
        gpu: &Gpu,
        batch: BatchShape<'_>,
    ) -> Result<Option<&mut Dispatch>, GpuError> {
        let rows = batch.rows;
        if !self.call.runs_for(rows) {
            self.rows = rows;
            return Ok(None);
        }
        if rows != self.rows || self.bound.is_empty() {
            self.current = match self.bound.iter().position(|bound| bound.rows == rows) {
                Some(at) => at,
                None => self.bind(gpu, rows)?,
            };
            self.rows = rows;
        }
        let dispatch = &mut self.bound[self.current].dispatch;
        self.call.adapt_grid(batch, &mut dispatch.groups);
        if let Some(offset) = self.call.position_offset() {
            gpu.patch(dispatch, offset, batch.farthest());
        }
        Ok(Some(dispatch))
    }

    /// Binds a dispatch for a number of rows, and returns its index.
    fn bind(&mut self, gpu: &Gpu, rows: u32) -> Result<usize, GpuError> {
        let launch = self.call.launch(gpu.rungs(), rows)?;
        let key = launch.variant().key();
        let buffers = buffers_of(&launch, &self.buffers)?;
        // Those of the most rows stay: the first chunk of every long prompt has them.
        let varies = |rows: u32| rows as usize > MATVEC_ROWS && rows as usize != MAX_ROWS;
        let reused = self.bound.iter().position(|bound| varies(bound.rows) && bound.key == key);
        if let Some(at) = reused.filter(|_| varies(rows)) {
            gpu.rebind(&mut self.bound[at].dispatch, &launch, &buffers)?;
            self.bound[at].rows = rows;
            return Ok(at);
        }
        let dispatch = gpu.bind(&launch, &buffers)?;
        self.bound.push(Bound { rows, key, dispatch });
        Ok(self.bound.len() - 1)
    }

    /// Binds a dispatch for up to [`MATVEC_ROWS`] rows before it is needed, if its kernel is compiled. `vulkan`: for the
    /// Vulkan recorder. Returns whether it did.
    pub(crate) fn bind_ahead(&mut self, gpu: &Gpu, rows: u32, vulkan: bool) -> Result<bool, GpuError> {
        if self.is_bound(rows) || !gpu.is_compiled(&self.call.launch(gpu.rungs(), rows)?, vulkan) {
            return Ok(false);
        }
        let at = self.bind(gpu, rows)?;
        if vulkan {
            self.bound[at].dispatch.bound(gpu)?;
        }
        Ok(true)
    }

    /// Whether a dispatch for this many rows is bound, or none is needed.
    pub(crate) fn is_bound(&self, rows: u32) -> bool {
        !self.call.runs_for(rows) || self.bound.iter().any(|bound| bound.rows == rows)
    }

    /// The dispatch as it was last prepared, if there was anything to compute.
    pub(crate) fn dispatch(&self) -> Option<&Dispatch> {
        let bound = self.bound.get(self.current).filter(|_| self.call.runs_for(self.rows));
        bound.map(|bound| &bound.dispatch)
    }
}

/// The buffers of a launch's slots, in their order.
pub(crate) fn buffers_of<'b>(
    launch: &Launch,
    buffers: &'b [(&'static str, Buffer)],
) -> Result<Vec<&'b Buffer>, GpuError> {
    let find = |name: &str| {
        let found = buffers.iter().find(|(slot, _)| *slot == name).map(|(_, buffer)| buffer);
        found.ok_or_else(|| {
            GpuError::internal(format!("no operand for buffer '{name}' of kernel {}", launch.variant().name))
        })
    };
    launch.slots().iter().map(|slot| find(slot.name)).collect()
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let variant = self.bound.get(self.current).map_or("not bound yet", |bound| &bound.key);
        write!(f, "Step({}, {variant}, {} rows)", self.call.name, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(positions: &[u32]) -> BatchShape<'_> {
        let rows = positions.len() as u32;
        BatchShape { rows, positions, tiles: 0, runs: rows, spans: &[], splits: &[] }
    }

    #[test]
    fn weights_and_caches_count_once_and_activations_are_not_their_own() {
        let matrix = Work::Matrix { bytes: 1000, row_bytes: 30, rows: 8, cols: 16 };
        let traffic = |bytes, own| Traffic { bytes, own, working_set: own };
        assert_eq!(matrix.of(shape(&[5, 6]), false), (traffic(1060, 1000), 512));
        assert_eq!(Work::Row { bytes: 7 }.of(shape(&[0, 1, 2]), false), (traffic(21, 0), 0));
        let cache = |window| Work::Cache { bytes: 10, flops: 100, window };
        // Rows of one sequence share its cache; sequences have their own.
        assert_eq!(cache(0).of(shape(&[7, 8, 9]), false), (traffic(100, 100), 2700));
        assert_eq!(cache(0).of(shape(&[9, 9, 9]), true), (traffic(300, 300), 3000));
        // Positions before a window are not read.
        assert_eq!(cache(4).of(shape(&[7, 8, 9]), false), (traffic(60, 60), 1200));
        assert_eq!(cache(4).of(shape(&[2, 9]), true), (traffic(70, 70), 700));
        assert_eq!(cache(40).of(shape(&[7, 8, 9]), false), (traffic(100, 100), 2700));
    }
}
