use super::matvec_tuning::{HELD, MatVecTuning};
use super::quantize::partial_bytes;
use super::{gate_name, weight_slots};
use crate::launch::{AXIS, Access, Launch, LaunchError, Slot, grid};
use crate::op::Activation;
use crate::params::MatVecParams;
use crate::shader::{Rungs, Variant};
use crate::weights::WeightLayout;

/// What a mat-vec multiplies by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Input {
    /// int8 activations of a [`QuantizeCall`](super::QuantizeCall): `x`, `x_scales` and, with `norm`, `factors`.
    Int8 {
        /// Whether results are multiplied by 1 / rms.
        norm: bool,
    },
    /// int8 activations `x` and `x_scales` that are normalised here: the kernel computes 1 / rms from `squares`, the sums
    /// of squares of blocks. [`Results::NormedInt8`](super::Results::NormedInt8) or a
    /// [`QuantizeCall`](super::QuantizeCall) wrote them. Int8 cooperative matrices only.
    Int8Squares {
        /// Added to the mean square.
        eps: f32,
    },
    /// One row in f32, `x`.
    F32,
    /// One row in f32, `x`, normalised in the prologue with `norm_weight`.
    Norm {
        /// Added to the mean square.
        eps: f32,
    },
    /// One row, merged in the prologue from the splits of attention, `partials`.
    Merge {
        /// Elements of a head.
        head_dim: u32,
        /// How many positions the row sees; 0 for all.
        window: u32,
        /// The row's position, if it is a parameter, which saves a dependent load; otherwise `rows` has it.
        position: Option<u32>,
    },
}

/// `y (+)= W·x` for few rows of int8 activations: `fast`.
///
/// Buffers: the planes of the weight, what the [`Input`] names, `y`, and with normalised bytes `factors`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatVecCall {
    /// The weight matrix, of a quantised type.
    pub weight: WeightLayout,
    /// Rows of `x` and `y`; one unless the input is bytes.
    pub rows: u32,
    /// What it is multiplied by.
    pub input: Input,
    /// The function of the first half of the results that their second half is multiplied by.
    pub gate: Option<Activation>,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
    /// The first column of `y` that is written.
    pub y_offset: u32,
    /// Whether to add to what `y` holds.
    pub accumulate: bool,
    /// What changes the speed.
    pub tuning: MatVecTuning,
}

/// Rows that pass by at once: enough to do while a sum goes through a team.
const PACE: u32 = 4;

impl MatVecCall {
    /// One product, nothing before and behind it, with the usual tuning.
    pub fn new(weight: WeightLayout, rows: u32) -> MatVecCall {
        MatVecCall {
            weight,
            rows,
            input: Input::Int8 { norm: false },
            gate: None,
            y_stride: weight.rows(),
            y_offset: 0,
            accumulate: false,
            tuning: MatVecTuning::of(weight.rows(), weight.cols(), 256),
        }
    }

    /// Where the parameters have the row's position, if they tell it.
    pub fn position_at(&self) -> Option<usize> {
        let told = matches!(self.input, Input::Merge { position: Some(_), .. });
        told.then_some(std::mem::offset_of!(MatVecParams, position))
    }

    /// Bytes of workgroup memory it takes; there are devices with 16 KiB.
    pub fn workgroup_bytes(&self) -> u64 {
        let blocks = u64::from(self.weight.cols() / 32);
        let MatVecTuning { workgroup, columns, .. } = self.tuning;
        let results = 2 * u64::from(self.tile() * (workgroup / 32) * columns);
        let input = if matches!(self.input, Input::Int8 { .. }) { 0 } else { 44 * blocks };
        4 * (results + u64::from(workgroup) + 16) + input
    }

    /// Checks the call and makes it a launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let name = "matvec";
        let kernel = || name.to_owned();
        let MatVecCall { weight, rows, input, gate, y_stride, y_offset, accumulate, tuning } = *self;
        let (n, k) = (weight.rows(), weight.cols());
        if !weight.dtype().is_quantized() {
            return Err(LaunchError::Storage { kernel: kernel(), storage: weight.dtype().name() });
        }
        let y = self.outputs(name)?;
        let is_bytes = matches!(input, Input::Int8 { .. } | Input::Int8Squares { .. });
        if !is_bytes && rows != 1 {
            let count = rows.into();
            return Err(LaunchError::Large { kernel: kernel(), what: "rows that are not bytes", count });
        }
        tuning.check()?;
        let (m, k64) = (u64::from(rows), u64::from(k));
        let mut slots = weight_slots(name, &weight)?;
        let mut push = |name, binding, access, bytes| slots.push(Slot { name, binding, access, bytes });
        let mut params = MatVecParams { m: rows, n, y_stride, y_offset, ..Default::default() };
        let mut head = 4;
        let (source, norm) = match input {
            Input::Int8 { norm } => {
                push("x", 3, Access::Read, m * k64);
                push("x_scales", 4, Access::Read, m * k64 / 4);
                ("int8", norm)
            }
            Input::Int8Squares { .. } => {
                let storage = "bytes whose squares are to be summed";
                return Err(LaunchError::Storage { kernel: kernel(), storage });
            }
            Input::F32 => {
                push("x", 3, Access::Read, 4 * k64);
                ("f32", false)
            }
            Input::Norm { eps } => {
                push("x", 3, Access::Read, 4 * k64);
                push("norm_weight", 4, Access::Read, 4 * k64);
                params.eps = eps;
                ("norm", true)
            }
            Input::Merge { head_dim, window, position } => {
                if head_dim == 0 || !head_dim.is_multiple_of(4) || !k.is_multiple_of(head_dim) {
                    let (name, value, of) = ("k", k, head_dim);
                    return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
                }
                push("partials", 3, Access::Read, partial_bytes(1, k / head_dim, head_dim));
                match position {
                    Some(position) => params.position = position,
                    None => push("rows", 4, Access::Read, 8),
                }
                head = head_dim;
                params.window = window;
                ("merge", false)
            }
        };
        push("y", 5, Access::ReadWrite, 4 * y);
        if is_bytes && norm {
            push("factors", 7, Access::Read, 4 * m);
        }
        if m * k64 > u64::from(u32::MAX) {
            return Err(LaunchError::Large { kernel: kernel(), what: "elements of x", count: m * k64 });
        }

        let MatVecTuning { workgroup, columns, splits, turns } = tuning;
        let tile = self.tile();
        let group_columns = workgroup / 32 / splits * columns;
        let outputs = if gate.is_some() { group_columns / 2 } else { group_columns };
        if outputs == 0 {
            let (name, value, needed) = ("columns", columns, "two or more, where there is a gate");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        let (fetch, chunks) = self.fetches();
        let turns = if tile > 1 { 1 } else { turns };
        let groups = u64::from(n).div_ceil((turns * group_columns).into());
        if (groups + AXIS).saturating_mul((turns * group_columns).into()) > u64::from(u32::MAX) {
            return Err(LaunchError::Large { kernel: kernel(), what: "columns of the grid", count: groups });
        }
        let [x, y, _] = grid(name, groups)?;
        let tiles = rows.div_ceil(tile);
        if tiles > 65_535 {
            return Err(LaunchError::Large { kernel: kernel(), what: "rows", count: m });
        }
        let pace = tile.min(PACE);
        let sums = columns * pace;
        let blocks = k / 32;
        let number = |name, value: u32| (name, value.to_string());
        let constants = vec![
            ("WEIGHT", weight.constant()),
            number("K", k),
            ("INPUT", source.to_owned()),
            number("NORM", norm.into()),
            ("GATE", gate_name(gate).to_owned()),
            number("ACCUMULATE", accumulate.into()),
            number("HEAD_DIM", head),
            number("POSITION", self.position_at().is_some().into()),
            number("WORKGROUP", workgroup),
            number("ROWS", tile),
            number("COLUMNS", columns),
            number("SPLITS", splits),
            number("IN_FLIGHT", fetch),
            number("LOADS", (k / 4).div_ceil(workgroup).min(4)),
            number("LOADED_BLOCKS", fetch * columns),
            number("CHUNKS", chunks),
            number("EXACT_BLOCKS", (blocks == 32 * splits * fetch * chunks).into()),
            number("GROUP_COLUMNS", group_columns),
            number("OUTPUTS", outputs),
            number("ROW_BATCH", pace),
            number("SUMS", sums),
            // Sums that a lane keeps at each step of a reduction, and how many lanes have the same in the end.
            number("SUMS_AFTER_16", sums / 2),
            number("SUMS_AFTER_8", sums / 4),
            number("SUMS_AFTER_4", sums / 8),
            number("SUMS_AFTER_2", sums / 16),
            number("LANES_PER_SUM", 32 / sums),
            number("COLUMN_PASSES", turns),
            // Of a large matrix more is under way than arrives at once, so that there is time before the products.
            number("FACTORS_FIRST", (n > 6144).into()),
            number("RESULTS", group_columns * tile * splits),
            number("RESULT_BUFFERS", turns.min(2)),
            number("IMMEDIATES", rungs.immediates.into()),
            number("SUBGROUPS", rungs.subgroups.into()),
        ];
        Ok(Launch {
            groups: [x, y, tiles],
            variant: Variant { name: kernel(), file: "matvec.wgsl", constants, overrides: Vec::new() },
            slots,
            uniforms: Vec::new(),
            params: Some((6, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// Elements of `y`, if the results have room in it.
    pub(super) fn outputs(&self, name: &str) -> Result<u64, LaunchError> {
        let MatVecCall { weight, rows, gate, y_stride, y_offset, .. } = *self;
        let kernel = || name.to_owned();
        let (n, k) = (weight.rows(), weight.cols());
        for (name, value) in [("m", rows), ("n", n), ("k", k)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        if gate.is_some() && !n.is_multiple_of(2) {
            return Err(LaunchError::Odd { kernel: kernel(), name: "n", value: n });
        }
        let least = u64::from(y_offset) + u64::from(self.width());
        if u64::from(y_stride) < least {
            return Err(LaunchError::TooLow { kernel: kernel(), name: "y_stride", value: y_stride, least });
        }
        let y = u64::from(rows - 1) * u64::from(y_stride) + least;
        if y > u64::from(u32::MAX) {
            return Err(LaunchError::Large { kernel: kernel(), what: "elements of y", count: y });
        }
        Ok(y)
    }

    /// Results of a row.
    pub(super) fn width(&self) -> u32 {
        if self.gate.is_some() { self.weight.rows() / 2 } else { self.weight.rows() }
    }

    /// Rows that share one reading of the weights. Those stay in registers; where there are too many of them, rows are
    /// taken one by one. A small matrix has more workgroups if each takes half of the rows.
    fn tile(&self) -> u32 {
        let held = self.tuning.own(self.weight.cols()) * self.tuning.columns;
        match self.rows {
            1 => 1,
            _ if held > HELD => 1,
            _ if self.weight.rows().saturating_mul(self.tuning.splits) < 8192 => 8,
            _ => 16,
        }
    }

    /// Blocks that an invocation has under way at once for each of its columns, and how often it does.
    fn fetches(&self) -> (u32, u32) {
        let own = self.tuning.own(self.weight.cols());
        if self.tile() > 1 {
            return (own, 1);
        }
        // Registers: a block has four to twelve words.
        let words = self.weight.row_words(crate::weights::Plane::Quants) / (self.weight.cols() / 32);
        let fetch = own.min((64 / (words.max(4) * self.tuning.columns)).max(1));
        (fetch, own.div_ceil(fetch))
    }
}
