//! The kernels of Gated DeltaNet.

use super::engine::{Kernel, launch, slot};
use crate::delta::{DELTA_UNIT, DeltaShape, L2_EPS, MAX_DELTA_DIM, Records};
use crate::launch::{Access, Launch, LaunchError};
use crate::params::{DeltaParams, ElementwiseParams};
use crate::shader::Rungs;

/// Invocations of a workgroup of the convolution.
const CONV_WORKGROUP: u32 = 64;
/// Invocations that share a column of a state.
const LANES: u32 = 4;
/// Columns of a workgroup.
const COLUMNS: u32 = 16;
const COPY_WORKGROUP: u32 = 256;

/// No record: a state of zeros.
const NO_RECORD: u32 = u32::MAX;
/// In a run's number of rows: the position of its row decides which record is read.
const BY_PARITY: u32 = 1 << 31;

/// A layer of Gated DeltaNet on a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaCall {
    /// The layer.
    pub shape: DeltaShape,
    /// Rows of the batch.
    pub rows: u32,
    /// Records of the pool.
    pub records: u32,
    /// Whether `a` is stored as a logarithm.
    pub a_is_log: bool,
}

/// Rows of a sequence, adjacent in a batch, as kernels read them.
pub fn delta_run(first: u32, count: u32, Records { from, to }: Records) -> [u32; 4] {
    [first, count, from.unwrap_or(NO_RECORD), to]
}

/// A row of a slot that decodes: the state before position `p` is in record `p mod 2` of these.
pub fn decoding_run(row: u32, records: [u32; 2]) -> [u32; 4] {
    [row, 1 | BY_PARITY, records[0], records[1]]
}

/// The records of a copy, of zeros if there is none, as kernels read them.
pub fn record_pair(from: Option<u32>, to: u32) -> [u32; 2] {
    [from.unwrap_or(NO_RECORD), to]
}

/// A row without a sequence.
pub fn idle_run(row: u32) -> [u32; 4] {
    [row, 0, NO_RECORD, NO_RECORD]
}

impl DeltaCall {
    /// Checks the shape and returns the parameters.
    fn params(&self, kernel: &str) -> Result<DeltaParams, LaunchError> {
        let shape = &self.shape;
        let large = |what, count| LaunchError::Large { kernel: kernel.to_owned(), what, count };
        for dim in [shape.key_dim, shape.value_dim] {
            if dim == 0 || dim > MAX_DELTA_DIM || !dim.is_multiple_of(DELTA_UNIT) {
                return Err(large("elements of a head", dim as u64));
            }
        }
        let (n_heads, n_kv_heads) = (shape.value_heads as u32, shape.key_heads as u32);
        if shape.key_heads == 0
            || shape.value_heads == 0
            || shape.value_heads > 1 << 15
            || !shape.value_heads.is_multiple_of(shape.key_heads)
        {
            return Err(LaunchError::Heads { kernel: kernel.to_owned(), n_heads, n_kv_heads });
        }
        let rows = u64::from(self.rows);
        for (what, count) in [
            ("elements of a state", self.state_elems()),
            ("elements of rows", rows * shape.projected_width() as u64),
            ("elements of rows", rows * shape.prepared_width() as u64),
        ] {
            if count > u64::from(u32::MAX) {
                return Err(large(what, count));
            }
        }
        Ok(DeltaParams {
            key_heads: shape.key_heads as u32,
            value_heads: shape.value_heads as u32,
            key_dim: shape.key_dim as u32,
            value_dim: shape.value_dim as u32,
            x_stride: shape.projected_width() as u32,
            prepared_stride: shape.prepared_width() as u32,
            state_stride: shape.state_elems() as u32,
            query_scale: 1.0 / (shape.key_dim as f32).sqrt(),
            eps: L2_EPS,
            a_is_log: u32::from(self.a_is_log),
            tiled: u32::from(shape.tiled),
            _pad0: 0,
        })
    }

    /// Elements of the layer's state in all records.
    fn state_elems(&self) -> u64 {
        u64::from(self.records).saturating_mul(self.shape.state_elems() as u64)
    }

    /// The convolution, norms and gates. Buffers: `x`, `state`, `weights`, `runs`, `row_runs`, `rows`, `out`.
    pub fn conv(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let (name, rows, shape) = ("delta_conv", u64::from(self.rows), &self.shape);
        let params = self.params(name)?;
        let heads = shape.value_heads as u64;
        let slots = vec![
            slot("x", 0, Access::Read, rows * shape.projected_width() as u64),
            slot("state", 1, Access::Read, self.state_elems()),
            slot("weights", 2, Access::Read, 4 * shape.channels() as u64 + 2 * heads),
            slot("runs", 4, Access::Read, 4 * rows),
            slot("row_runs", 5, Access::Read, rows),
            slot("rows", 6, Access::Read, 2 * rows),
            slot("out", 7, Access::ReadWrite, rows * shape.prepared_width() as u64),
        ];
        let elements = shape.key_dim.max(shape.value_dim).div_ceil(CONV_WORKGROUP as usize);
        let constants = vec![("ELEMENTS_PER_INVOCATION", format!("{elements}u"))];
        let overrides = vec![("WORKGROUP", f64::from(CONV_WORKGROUP))];
        let kernel = Kernel { name, file: "engine/delta_conv.wgsl", constants, overrides };
        let groups = [params.key_heads * 2 + params.value_heads + 1, self.rows];
        launch(kernel, rungs, slots, (3, &params), groups)
    }

    /// The delta rule. Buffers: `x`, `state`, `prepared`, `runs`, `rows`, `out`. The second axis of the grid is the runs, at
    /// most as many as rows.
    pub fn rule(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let (name, rows, shape) = ("delta_rule", u64::from(self.rows), &self.shape);
        let params = self.params(name)?;
        let slots = vec![
            slot("x", 0, Access::Read, rows * shape.projected_width() as u64),
            slot("state", 1, Access::ReadWrite, self.state_elems()),
            slot("prepared", 2, Access::Read, rows * shape.prepared_width() as u64),
            slot("runs", 4, Access::Read, 4 * rows),
            slot("rows", 5, Access::Read, 2 * rows),
            slot("out", 6, Access::ReadWrite, rows * shape.value_width() as u64),
        ];
        let constants = vec![("VECTORS", format!("{}u", params.key_dim / (4 * LANES)))];
        let overrides = vec![("WORKGROUP", f64::from(LANES * COLUMNS)), ("LANES", f64::from(LANES))];
        let kernel = Kernel { name, file: "engine/delta_rule.wgsl", constants, overrides };
        let groups = [shape.value_width() as u32 / COLUMNS, self.rows];
        launch(kernel, rungs, slots, (3, &params), groups)
    }

    /// Copies a record of the layer to another. Buffers: `state`, `pair`.
    pub fn copy(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let name = "copy_record";
        let count = self.params(name)?.state_stride / 4;
        let slots =
            vec![slot("state", 0, Access::ReadWrite, self.state_elems()), slot("pair", 1, Access::Read, 2)];
        let overrides = vec![("WORKGROUP", f64::from(COPY_WORKGROUP))];
        let kernel = Kernel { name, file: "engine/copy_record.wgsl", constants: Vec::new(), overrides };
        let params = ElementwiseParams { count, ..Default::default() };
        launch(kernel, rungs, slots, (2, &params), [count.div_ceil(COPY_WORKGROUP), 1])
    }
}
