use std::ops::Range;

use gyrus_kernels::call::engine;
use gyrus_kernels::{Launch, LaunchError};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::tuning::MatShape;

/// What the grids of a table's steps follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent<'a> {
    /// Rows that the steps compute.
    pub(crate) rows: u32,
    /// The position of each row of the batch.
    pub(crate) positions: &'a [u32],
    /// Tiles that attention divides many rows into.
    pub(crate) tiles: u32,
}

impl Extent<'_> {
    /// The farthest row's position.
    pub(crate) fn farthest(&self) -> u32 {
        self.positions.iter().copied().max().unwrap_or(0)
    }

    /// The most splits that any row's attention has. It need not be the farthest row's: a window may begin in a later
    /// tile, and splits become longer when there would be too many of them.
    fn splits(&self, window: u32) -> u32 {
        self.positions.iter().map(|position| engine::splits(*position, window)).max().unwrap_or(1)
    }
}

/// What a step must read and write, and how much it computes: what it is measured by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// A matrix of so many bytes, times rows.
    Matrix { bytes: u64, rows: u32, cols: u32 },
    /// All positions of a cache, bytes and operations of one of them.
    Cache { bytes: u64, flops: u64 },
    /// Bytes of a row.
    Row { bytes: u64 },
}

impl Work {
    /// Bytes and operations for a batch: rows of one text, or each of its own.
    pub(crate) fn of(&self, extent: Extent<'_>, apart: bool) -> (u64, u64) {
        let rows = u64::from(extent.rows);
        match *self {
            Work::Matrix { bytes, rows: n, cols } => {
                let (n, k) = (u64::from(n), u64::from(cols));
                (bytes + 4 * rows * (n + k), 2 * rows * n * k)
            }
            Work::Cache { bytes, flops } => {
                let all = u64::from(extent.farthest()) + 1;
                if apart {
                    return (rows * bytes * all, rows * flops * all);
                }
                // Each row sees one position more than the one before.
                let seen = rows * all - rows * (rows - 1) / 2;
                (bytes * all, flops * seen)
            }
            Work::Row { bytes } => (bytes * rows, 0),
        }
    }
}

/// What a step's grid follows beside the number of rows.
#[derive(Debug, Clone, Copy)]
enum Follows {
    Rows,
    /// Its width is the most splits of a row's attention, which has this window, for fewer rows than are gathered.
    Splits {
        window: u32,
        gathered: u32,
    },
    /// Its height is the number of tiles.
    Tiles,
}

/// An op of a plan on the device, or several in one kernel: how its launch follows the number of rows, and its
/// buffers.
///
/// A launch is checked and a kernel bound when a number of rows comes up that was not the last one; a text that is
/// written token by token replays the same dispatch.
pub(crate) struct Step {
    /// What it does, the same in all layers.
    pub(crate) name: String,
    pub(crate) work: Work,
    /// The matrix, if it is one that a mat-vec's form can be tuned for.
    pub(crate) shape: Option<MatShape>,
    launch: Box<dyn Fn(u32) -> Result<Launch, LaunchError> + Send>,
    /// By the names of the launch's slots.
    buffers: Vec<(&'static str, Buffer)>,
    follows: Follows,
    /// Where its parameters have the position of the only row.
    position_at: Option<usize>,
    /// For so many rows there is nothing to do.
    skipped: Range<u32>,
    /// One for each variant of the kernel that was needed so far.
    bound: Vec<(String, Dispatch)>,
    current: usize,
    rows: u32,
}

impl Step {
    pub(crate) fn new(
        name: impl Into<String>,
        work: Work,
        buffers: Vec<(&'static str, Buffer)>,
        launch: impl Fn(u32) -> Result<Launch, LaunchError> + Send + 'static,
    ) -> Step {
        Step {
            name: name.into(),
            work,
            shape: None,
            launch: Box::new(launch),
            buffers,
            follows: Follows::Rows,
            position_at: None,
            skipped: 0..0,
            bound: Vec::new(),
            current: 0,
            rows: 0,
        }
    }

    /// Says that its form can be tuned.
    pub(crate) fn tuned(self, shape: MatShape) -> Step {
        Step { shape: Some(shape), ..self }
    }

    /// Makes the grid as wide as the rows' attention has splits, unless there are so many that they are gathered.
    pub(crate) fn split(self, window: u32, gathered: u32) -> Step {
        Step { follows: Follows::Splits { window, gathered }, ..self }
    }

    /// Tells its parameters the position of the only row, at this offset. They must be immediates: steps in flight share
    /// whatever buffer it would stand in.
    pub(crate) fn position_immediate(self, offset: Option<usize>) -> Step {
        Step { position_at: offset, ..self }
    }

    /// Leaves it out for so many rows: another step has done its work for them.
    pub(crate) fn except(self, rows: Range<u32>) -> Step {
        Step { skipped: rows, ..self }
    }

    /// Makes the grid as high as there are tiles.
    pub(crate) fn tiled(self) -> Step {
        Step { follows: Follows::Tiles, ..self }
    }

    /// The launch for this many rows, if there is something to do for them, for compiling ahead.
    pub(crate) fn launch(&self, rows: u32) -> Option<Result<Launch, LaunchError>> {
        (!self.skipped.contains(&rows)).then(|| (self.launch)(rows))
    }

    /// Makes the dispatch ready for a batch. None: there is nothing to do for so many rows.
    pub(crate) fn follow(
        &mut self,
        gpu: &Gpu,
        extent: Extent<'_>,
    ) -> Result<Option<&mut Dispatch>, GpuError> {
        let rows = extent.rows;
        if self.skipped.contains(&rows) {
            self.rows = rows;
            return Ok(None);
        }
        if rows != self.rows || self.bound.is_empty() {
            let launch = (self.launch)(rows)?;
            let key = launch.variant().key();
            let buffers = named(&launch, &self.buffers)?;
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
        let dispatch = &mut self.bound[self.current].1;
        match self.follows {
            Follows::Rows => {}
            Follows::Splits { gathered, .. } if rows >= gathered => {}
            Follows::Splits { window, .. } => dispatch.groups[0] = extent.splits(window),
            Follows::Tiles => dispatch.groups[1] = extent.tiles,
        }
        if let Some(offset) = self.position_at {
            gpu.patch(dispatch, offset, extent.farthest());
        }
        Ok(Some(dispatch))
    }

    /// The dispatch as it was last made ready, if there was something to do.
    pub(crate) fn dispatch(&self) -> Option<&Dispatch> {
        let bound = self.bound.get(self.current).filter(|_| !self.skipped.contains(&self.rows));
        bound.map(|(_, dispatch)| dispatch)
    }
}

/// The buffers of a launch's slots, in their order.
pub(crate) fn named<'b>(
    launch: &Launch,
    buffers: &'b [(&'static str, Buffer)],
) -> Result<Vec<&'b Buffer>, GpuError> {
    let find = |name: &str| {
        let found = buffers.iter().find(|(of, _)| *of == name).map(|(_, buffer)| buffer);
        found.ok_or_else(|| GpuError::Refused {
            reason: format!("kernel {} wants a buffer '{name}' that nobody gave", launch.variant().name),
        })
    };
    launch.slots().iter().map(|slot| find(slot.name)).collect()
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.bound.get(self.current).map_or("not bound yet", |(name, _)| name);
        write!(f, "Step({name}, {} rows)", self.rows)
    }
}
