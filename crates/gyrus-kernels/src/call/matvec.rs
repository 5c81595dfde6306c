use super::matvec_sizes::MatVecSizes;
use super::matvec_tuning::MatVecTuning;
use super::product::{Product, addressable, column_grid};
use super::quantize::partial_bytes;
use super::{Experts, gate_name, weight_slots};
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::op::Activation;
use crate::params::MatVecParams;
use crate::shader::{Rungs, Variant};
use crate::weights::WeightLayout;

/// The input of a mat-vec.
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
        /// The attention window: positions the row attends to; 0 for all.
        window: u32,
        /// The row's position, if it is a parameter, which saves a dependent load; otherwise `rows` has it.
        position: Option<u32>,
    },
}

/// `y (+)= W·x` for few rows of int8 activations: for `fast` precision.
///
/// Buffers: the planes of the weight, what the [`Input`] names, `y`, and for a normalised int8 input `factors`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatVecCall {
    /// The weight matrix, of a quantised type.
    pub weight: WeightLayout,
    /// Rows of `x` and `y`; one unless the input is int8.
    pub rows: u32,
    /// What it is multiplied by.
    pub input: Input,
    /// The function of a gated feed-forward: the first half of the weight's rows is the gate, the second half the up
    /// projection.
    pub gate: Option<Activation>,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
    /// The first column of `y` that is written.
    pub y_offset: u32,
    /// Whether to add to `y`.
    pub accumulate: bool,
    /// The weight is that of several experts, one below the other, of which each row has those that `routes` names; with
    /// a gate first all gates, then all up projections. The input is f32 or normalised, with any number of rows.
    pub experts: Option<Experts>,
    /// Tuning.
    pub tuning: MatVecTuning,
    /// Numbers that depend on the device.
    pub sizes: MatVecSizes,
}

/// Rows of an iteration: enough work to hide the latency of a reduction.
const ROW_BATCH: u32 = 4;

impl MatVecCall {
    /// A product without prologue and epilogue, with the default tuning and sizes.
    pub fn new(weight: WeightLayout, rows: u32) -> MatVecCall {
        let sizes = MatVecSizes::H200;
        MatVecCall {
            weight,
            rows,
            input: Input::Int8 { norm: false },
            gate: None,
            y_stride: weight.rows(),
            y_offset: 0,
            accumulate: false,
            experts: None,
            tuning: MatVecTuning::of(weight.rows(), weight.cols(), 256, &sizes),
            sizes,
        }
    }

    /// The byte offset of the row's position in the parameters, if it is a parameter.
    pub fn position_at(&self) -> Option<usize> {
        let is_param = matches!(self.input, Input::Merge { position: Some(_), .. });
        is_param.then_some(std::mem::offset_of!(MatVecParams, position))
    }

    /// Bytes of workgroup memory it needs. Some devices have 16 KiB.
    pub fn workgroup_bytes(&self) -> u64 {
        let blocks = u64::from(self.cols() / 32);
        let MatVecTuning { workgroup, columns, .. } = self.tuning;
        let results = 2 * u64::from(self.tile() * (workgroup / 32) * columns);
        let input = if matches!(self.input, Input::Int8 { .. }) { 0 } else { 44 * blocks };
        let chosen = self.experts.map_or(0, |experts| 2 * u64::from(experts.used));
        4 * (results + u64::from(workgroup) + 16 + chosen) + input
    }

    /// Elements of a sum: with experts that are summed, those of all slots.
    pub fn cols(&self) -> u32 {
        let slots = self.experts.filter(|experts| experts.sum).map_or(1, |experts| experts.used);
        self.weight.cols().saturating_mul(slots)
    }

    /// Checks the call and repasses its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let name = match self.experts {
            None => "matvec",
            Some(Experts { sum: false, .. }) => "matvec_experts",
            Some(_) => "matvec_expert_sum",
        };
        let kernel = || name.to_owned();
        let MatVecCall {
            weight, input, gate, y_stride, y_offset, accumulate, experts, tuning, sizes, ..
        } = *self;
        let (x_rows, rows) = Experts::rows(name, experts.as_ref(), self.rows)?;
        let (n, k) = (self.columns(name)?, self.cols());
        if !weight.dtype().is_quantized() {
            return Err(LaunchError::Storage { kernel: kernel(), storage: weight.dtype().name() });
        }
        let y = self.outputs(name)?;
        let is_int8 = matches!(input, Input::Int8 { .. } | Input::Int8Squares { .. });
        if is_int8 && experts.is_some() {
            return Err(LaunchError::Storage { kernel: kernel(), storage: "int8 activations" });
        }
        if !is_int8 && rows != 1 && experts.is_none() {
            let count = rows.into();
            return Err(LaunchError::Large { kernel: kernel(), what: "rows that are not int8", count });
        }
        tuning.check()?;
        let (m, k64) = (u64::from(rows), u64::from(k));
        let x_elements = u64::from(x_rows) * k64;
        let mut slots = weight_slots(name, &weight)?;
        slots.extend(experts.iter().flat_map(|experts| experts.slots(self.rows, &weight, [8, 9])));
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
                let storage = "int8 with sums of squares (only int8 cooperative matrices take them)";
                return Err(LaunchError::Storage { kernel: kernel(), storage });
            }
            Input::F32 => {
                push("x", 3, Access::Read, 4 * x_elements);
                ("f32", false)
            }
            Input::Norm { eps } => {
                push("x", 3, Access::Read, 4 * x_elements);
                push("norm_weight", 4, Access::Read, 4 * k64);
                params.eps = eps;
                ("norm", true)
            }
            Input::Merge { .. } if experts.is_some() => {
                return Err(LaunchError::Storage { kernel: kernel(), storage: "splits of attention" });
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
        if is_int8 && norm {
            push("factors", 7, Access::Read, 4 * m);
        }
        addressable(name, "elements of x", x_elements.max(m * k64))?;

        let MatVecTuning { workgroup, columns, splits, passes } = tuning;
        let tile = self.tile();
        let group_columns = workgroup / 32 / splits * columns;
        let outputs = if gate.is_some() { group_columns / 2 } else { group_columns };
        if outputs == 0 {
            let (name, value, needed) = ("columns", columns, "2 or more with a gate");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        let (fetch, chunks) = self.fetches();
        let passes = match experts {
            _ if tile > 1 => 1,
            Some(_) => tuning.passes_for(rows, n, &sizes),
            None => passes,
        };
        let groups = u64::from(n).div_ceil((passes * group_columns).into());
        let [x, y, _] = column_grid(name, groups, passes * group_columns)?;
        let tiles = rows.div_ceil(tile);
        if tiles > 65_535 {
            return Err(LaunchError::Large { kernel: kernel(), what: "rows", count: m });
        }
        let row_batch = tile.min(ROW_BATCH);
        let sums = columns * row_batch;
        let blocks = k / 32;
        let number = |name, value: u32| (name, value.to_string());
        let mut constants = Experts::constants(experts.as_ref());
        constants.extend([
            ("EXPERTS", ["none", "each", "sum"][experts.map_or(0, |e| 1 + usize::from(e.sum))].to_owned()),
            number("EXPERT_BLOCKS", weight.cols() / 32),
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
            number("ROW_BATCH", row_batch),
            number("SUMS", sums),
            // Sums that a lane still has after each exchange of a reduction, and lanes that end with the same sum.
            number("SUMS_AFTER_16", sums / 2),
            number("SUMS_AFTER_8", sums / 4),
            number("SUMS_AFTER_4", sums / 8),
            number("SUMS_AFTER_2", sums / 16),
            number("LANES_PER_SUM", 32 / sums),
            number("COLUMN_PASSES", passes),
            number("FACTORS_FIRST", (n > sizes.factors_last_outputs).into()),
            number("RESULTS", group_columns * tile * splits),
            number("RESULT_BUFFERS", passes.min(2)),
            number("IMMEDIATES", rungs.immediates.into()),
            number("SUBGROUPS", rungs.subgroups.into()),
        ]);
        Ok(Launch {
            groups: [x, y, tiles],
            variant: Variant { name: kernel(), file: "matvec.wgsl", constants, overrides: Vec::new() },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((6, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// Elements of `y`; an error if the outputs do not fit.
    pub(super) fn outputs(&self, name: &str) -> Result<u64, LaunchError> {
        let MatVecCall { gate, y_stride, y_offset, .. } = *self;
        let (_, rows) = Experts::rows(name, self.experts.as_ref(), self.rows)?;
        let (n, k) = (self.columns(name)?, self.cols());
        if gate.is_some() && !n.is_multiple_of(2) {
            return Err(LaunchError::Odd { kernel: name.to_owned(), name: "n", value: n });
        }
        let width = if gate.is_some() { n / 2 } else { n };
        Product { kernel: name, rows, n: width, k, y_stride, y_offset }.y_elements()
    }

    /// Rows of the weight that an output row is computed from.
    fn columns(&self, name: &str) -> Result<u32, LaunchError> {
        Experts::outputs(name, self.experts.as_ref(), &self.weight, 1 + u32::from(self.gate.is_some()))
    }

    /// Outputs of a row.
    pub(super) fn width(&self) -> u32 {
        if self.gate.is_some() { self.weight.rows() / 2 } else { self.weight.rows() }
    }

    /// Rows that share one read of the weights. Weights stay in registers; if they do not fit, rows are computed one by
    /// one. A small matrix gets more workgroups if each computes half of the rows.
    fn tile(&self) -> u32 {
        let blocks = self.tuning.own(self.weight.cols()) * self.tuning.columns;
        match self.rows {
            1 => 1,
            // Each has its own weights.
            _ if self.experts.is_some() => 1,
            _ if blocks > self.sizes.register_blocks => 1,
            _ if self.weight.rows().saturating_mul(self.tuning.splits) < self.sizes.row_tile_outputs => 8,
            _ => 16,
        }
    }

    /// Blocks of a column that an invocation loads at once, and the number of such chunks.
    fn fetches(&self) -> (u32, u32) {
        let own = self.tuning.own(self.cols());
        if self.tile() > 1 {
            return (own, 1);
        }
        // A block has four to twelve words.
        let words = self.weight.row_words(crate::weights::Plane::Quants) / (self.weight.cols() / 32);
        let fetch = own.min((self.sizes.register_words / (words.max(4) * self.tuning.columns)).max(1));
        (fetch, own.div_ceil(fetch))
    }
}
