use gyrus_tensor::DType;

use super::matvec::{Input, MatVecCall};
use super::quantize::Target;
use super::{gate_name, weight_slots};
use crate::launch::{Access, Launch, LaunchError, Slot, grid};
use crate::params::MatVecParams;
use crate::shader::{Rungs, Variant};

const NAME: &str = "matvec_int8_matrix";

/// Rows of a cooperative matrix.
pub(super) const INT8_MATRIX_MOST_ROWS: u32 = 16;

/// Columns of a tile.
const TILE: u32 = 16;

/// Invocations of a workgroup.
pub const INT8_MATRIX_INVOCATIONS: u32 = 256;

/// What [`launch_int8_matrix`](MatVecCall::launch_int8_matrix) writes besides `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Results {
    /// f32 only.
    F32,
    /// Also int8, as a [`QuantizeCall`](super::QuantizeCall) would make them: `q` and `q_scales`.
    Int8,
    /// Also the results times a norm's `weight` as int8, and `made`, the sums of squares of blocks of 32, for
    /// [`Input::Int8Squares`].
    NormedInt8,
}

impl Results {
    fn name(self) -> &'static str {
        match self {
            Results::F32 => "f32",
            Results::Int8 => "int8",
            Results::NormedInt8 => "normed",
        }
    }
}

impl MatVecCall {
    /// Bytes of workgroup memory that [`launch_int8_matrix`](Self::launch_int8_matrix) needs.
    pub fn int8_matrix_workgroup_bytes(&self) -> u64 {
        let blocks = 32 * u64::from(self.tuning.own(self.weight.cols()));
        let staged = 16 * (16 * (2 * blocks + 1) + 2 * (blocks + 8) + 4 * blocks);
        // The identity matrix, fragments of eight subgroups, factors.
        staged + 2 * 256 + 4 * 8 * 256 + 64
    }

    /// Checks the call: whether there is a kernel with int8 cooperative matrices for it, on a device with these rungs.
    pub fn check_int8_matrix(&self, rungs: Rungs, results: Results) -> Result<(), LaunchError> {
        let kernel = || NAME.to_owned();
        let MatVecCall { weight, rows, input, y_stride, tuning, .. } = *self;
        let (n, k) = (weight.rows(), weight.cols());
        let has_one_scale = matches!(weight.dtype(), DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL);
        if !has_one_scale {
            return Err(LaunchError::Storage { kernel: kernel(), storage: weight.dtype().name() });
        }
        if self.experts.is_some() {
            return Err(LaunchError::Storage { kernel: kernel(), storage: "experts" });
        }
        if !matches!(input, Input::Int8 { .. } | Input::Int8Squares { .. }) {
            let storage = "activations other than int8";
            return Err(LaunchError::Storage { kernel: kernel(), storage });
        }
        if !(rungs.int8_matrix && rungs.f16 && rungs.subgroups) {
            let storage = "int8 cooperative matrices, which this device lacks,";
            return Err(LaunchError::Storage { kernel: kernel(), storage });
        }
        self.outputs(NAME)?;
        if rows > INT8_MATRIX_MOST_ROWS {
            return Err(LaunchError::Large { kernel: kernel(), what: "rows", count: rows.into() });
        }
        tuning.check()?;
        // Every lane has the same number of blocks, one or two.
        let (splits, blocks_per_lane) = (tuning.splits, tuning.own(k));
        if blocks_per_lane > 2 || k != 1024 * splits * blocks_per_lane {
            let (name, value, of) = ("k", k, 1024 * splits);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
        }
        let tiles = self.tiles(results);
        if tiles > 1 && splits > 1 {
            let (name, value, needed) = ("splits", splits, "1 for a workgroup of several tiles");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        let outputs = self.tile_outputs();
        // Blocks of 32 outputs must be whole within a workgroup, and rows contiguous.
        let whole = splits == 1 && y_stride == self.width() && n.is_multiple_of(TILE * tiles);
        if results != Results::F32 && !(whole && (outputs * tiles).is_multiple_of(32)) {
            let (name, value, of) = ("outputs of a workgroup", outputs * tiles, 32);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
        }
        self.int8_matrix_slots(results).map(drop)
    }

    /// Storage buffers that [matrices](Self::launch_int8_matrix) bind.
    pub fn int8_matrix_storage_buffers(&self, results: Results) -> usize {
        self.int8_matrix_slots(results).map_or(0, |slots| slots.len())
    }

    fn int8_matrix_slots(&self, results: Results) -> Result<Vec<Slot>, LaunchError> {
        let MatVecCall { weight, rows, input, .. } = *self;
        let (m, k64) = (u64::from(rows), u64::from(weight.cols()));
        let mut slots = weight_slots(NAME, &weight)?;
        let mut push = |name, binding, access, bytes| slots.push(Slot { name, binding, access, bytes });
        push("x", 3, Access::Read, m * k64);
        push("x_scales", 4, Access::Read, m * k64 / 4);
        push("y", 5, Access::ReadWrite, 4 * self.outputs(NAME)?);
        match input {
            Input::Int8Squares { .. } => push("squares", 7, Access::Read, m * k64 / 8),
            Input::Int8 { norm: true } => push("factors", 7, Access::Read, 4 * m),
            _ => {}
        }
        let width = u64::from(self.width());
        if results == Results::NormedInt8 {
            push("weight", 11, Access::Read, 4 * width);
            push("made", 12, Access::ReadWrite, m * width / 8);
        }
        if results != Results::F32 {
            slots.extend(Target::Int8.slots(rows, self.width(), [9, 10]));
        }
        Ok(slots)
    }

    /// The same bits by int8 cooperative matrices, for up to sixteen rows.
    ///
    /// Buffers: those of a mat-vec of int8 activations, and of the [`Results`], which are quantised only if each
    /// workgroup has whole blocks of them.
    pub fn launch_int8_matrix(&self, rungs: Rungs, results: Results) -> Result<Launch, LaunchError> {
        self.check_int8_matrix(rungs, results)?;
        let MatVecCall { weight, rows, input, gate, y_stride, y_offset, accumulate, tuning, .. } = *self;
        let (n, k) = (weight.rows(), weight.cols());
        let (source, norm, eps) = match input {
            Input::Int8Squares { eps } => ("squares", true, eps),
            other => ("int8", other == Input::Int8 { norm: true }, 0.0),
        };
        let (splits, blocks_per_lane) = (tuning.splits, tuning.own(k));
        let (tiles, outputs) = (self.tiles(results), self.tile_outputs());
        let slots = self.int8_matrix_slots(results)?;
        let number = |name, value: u32| (name, value.to_string());
        let constants = vec![
            number("INT8_MATRIX", 1),
            ("EXPERTS", "none".to_owned()),
            number("BIAS", 0),
            ("WEIGHT", weight.constant()),
            number("K", k),
            ("INPUT", source.to_owned()),
            number("NORM", norm.into()),
            ("GATE", gate_name(gate).to_owned()),
            number("ACCUMULATE", accumulate.into()),
            number("SPLITS", splits),
            number("BLOCKS_PER_LANE", blocks_per_lane),
            number("TILES", tiles),
            number("SQUARES_PER_LANE", k / 1024),
            // Blocks of a tile that an invocation stages.
            number("BLOCKS_PER_INVOCATION", 2 * blocks_per_lane),
            number("OUTPUTS", outputs),
            ("RESULTS", results.name().to_owned()),
            number("IMMEDIATES", rungs.immediates.into()),
            // Full subgroups of this size.
            number("SUBGROUPS", 32),
        ];
        let params = MatVecParams { m: rows, n, y_stride, y_offset, eps, ..Default::default() };
        Ok(Launch {
            groups: grid(NAME, u64::from(n).div_ceil((tiles * TILE).into()))?,
            variant: Variant {
                name: NAME.to_owned(),
                file: "matvec_int8_matrix.wgsl",
                constants,
                overrides: Vec::new(),
            },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((6, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// Columns of `y` that a tile has.
    fn tile_outputs(&self) -> u32 {
        if self.gate.is_some() { TILE / 2 } else { TILE }
    }

    /// Tiles of a workgroup: enough for one wave of workgroups, and with a norm an even number, which is a whole block.
    fn tiles(&self, results: Results) -> u32 {
        let tiles = self.weight.rows().div_ceil(TILE * self.sizes.int8_matrix_workgroups);
        if results == Results::NormedInt8 { tiles.next_multiple_of(2) } else { tiles }
    }
}
