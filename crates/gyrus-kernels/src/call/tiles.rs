use super::f16_rows::PADDED;
use super::product::{Product, addressable, column_grid};
use super::{Experts, gate_name, weight_slots};
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::op::Activation;
use crate::shader::{Rungs, Variant};
use crate::weights::WeightLayout;

/// The most splits of a sum along `k`.
const MAX_SPLITS: u32 = 64;

/// `y[r, y_offset + n] (+)= Σ_k weight[n, k]·x[r, k]` for many rows, in tiles: prefill with `fast` precision.
///
/// Buffers: the planes of the weight; `x` and `x_scales` as a [`F16RowsCall`](super::F16RowsCall) writes them; `y`.
/// With [`Rungs::cooperative`] matrices the weights are rounded to f16, else they are exact. Sums are `f32`, along `k`
/// in one order whatever the shape of tiles and the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileCall {
    /// The weight matrix.
    pub weight: WeightLayout,
    /// Rows of `x` and `y`.
    pub rows: u32,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
    /// The first column of `y` that is written.
    pub y_offset: u32,
    /// Whether to add to `y`. Not with a gate.
    pub accumulate: bool,
    /// Writes `f(gate)·up`, half as many columns as the weight has rows: the gate's rows come first, then those of the
    /// up projection.
    pub gate: Option<Activation>,
    /// Whether a bias is added to each column: `biases`, one for each row of the weight. Not with splits; experts have
    /// their own.
    pub bias: bool,
    /// The function of each output. Not with `accumulate`, splits, a gate or experts.
    pub activation: Option<Activation>,
    /// Split-K: workgroups that share the sum of an output, for products with too few outputs to keep a device busy; at
    /// least 1. With more than one the launch has no `x_scales` and its `y` is `[splits, rows, n]`, which a
    /// [`SumTilesCall`](super::SumTilesCall) reduces. Unlike tuning this changes bits, so it must not depend on the
    /// number of rows. Not with a gate.
    pub splits: u32,
    /// The weight is that of several experts, one below the other, with a gate first all gates, then all up projections.
    /// `y` has a row for each slot of a row; `order` has the tiles of slots, as an
    /// [`ExpertTilesCall`](super::ExpertTilesCall) of as many rows writes them. Not with `accumulate` or splits.
    pub experts: Option<Experts>,
    /// Tuning.
    pub tuning: TileTuning,
}

/// Tuning of tiles. It changes no bit of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileTuning {
    /// The tile; if absent, chosen by the number of tiles.
    pub shape: Option<TileShape>,
    /// About the least number of workgroups that keeps the device busy.
    pub workgroups: Option<u32>,
    /// Bytes of workgroup memory of the device, if more than the 32 KiB that all devices with cooperative matrices have.
    pub memory: Option<u32>,
}

impl TileTuning {
    /// The default of [`workgroups`](TileTuning::workgroups): more than the 132 multiprocessors of an H200, on which it was
    /// measured, so that a last wave of workgroups is not mostly idle.
    pub const WORKGROUPS: u32 = 160;
    /// The default of [`memory`](TileTuning::memory).
    const MEMORY: u32 = 32 << 10;
}

/// What a workgroup computes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Rows: 32, 64 or 128; with cooperative matrices, any multiple of a subgroup's rows.
    pub rows: u32,
    /// Columns, likewise.
    pub columns: u32,
    /// Rows and columns of fragments of a subgroup: 1, 2 or 4 each. For cooperative matrices only, as all below.
    pub matrices: [u32; 2],
    /// Elements of `k` that are staged at a time: 32, 64, 128 or 256, a divisor of a padded row.
    pub step: u32,
    /// Rows and columns of a fragment: 16; 8 on Apple's GPUs.
    pub side: u32,
}

impl TileShape {
    /// A tile of this many rows and columns.
    pub const fn new(rows: u32, columns: u32) -> TileShape {
        let matrices = [if rows < 128 { 2 } else { 4 }, 2];
        TileShape { rows, columns, matrices, step: 32, side: 16 }
    }
}

/// Tiles from the largest, which reads its operands least often, to the smallest, which gives the most workgroups.
const SHAPES: [TileShape; 5] = [
    TileShape::new(128, 128),
    TileShape::new(128, 64),
    TileShape::new(64, 128),
    TileShape::new(64, 64),
    TileShape::new(32, 64),
];

/// Tiles for products with too few outputs for [`SHAPES`], likewise from the largest: with cooperative matrices such a
/// product takes the time in which a workgroup waits for its steps along `k`, so that steps are long.
const LONG_STEPS: [TileShape; 4] = [
    TileShape { matrices: [2, 1], step: 128, ..TileShape::new(64, 64) },
    TileShape { matrices: [1, 1], step: 128, ..TileShape::new(64, 32) },
    TileShape { matrices: [1, 1], step: 128, ..TileShape::new(32, 32) },
    TileShape { matrices: [1, 1], step: 256, ..TileShape::new(32, 32) },
];

impl TileCall {
    /// Contiguous rows in `y`.
    pub fn new(weight: WeightLayout, rows: u32) -> TileCall {
        TileCall {
            weight,
            rows,
            y_stride: weight.rows(),
            y_offset: 0,
            accumulate: false,
            gate: None,
            bias: false,
            activation: None,
            splits: 1,
            experts: None,
            tuning: TileTuning::default(),
        }
    }

    /// Contiguous rows in `y`, with half as many columns as the weight has rows.
    pub fn gated(weight: WeightLayout, rows: u32, gate: Activation) -> TileCall {
        TileCall { y_stride: weight.rows() / 2, gate: Some(gate), ..TileCall::new(weight, rows) }
    }

    /// Columns of `y` that are written.
    pub fn columns(&self) -> u32 {
        let rows = self.weight.rows() / self.experts.map_or(1, |experts| experts.count.max(1));
        if self.gate.is_some() { rows / 2 } else { rows }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let cooperative = rungs.cooperative && rungs.f16 && rungs.subgroups;
        let name = match (self.experts, cooperative) {
            (None, true) => "tiles_cooperative",
            (None, false) => "tiles",
            (Some(_), true) => "tiles_experts_cooperative",
            (Some(_), false) => "tiles_experts",
        };
        let kernel = || name.to_owned();
        let TileCall { weight, y_stride, y_offset, splits, experts, .. } = *self;
        let (x_rows, rows) = Experts::rows(name, experts.as_ref(), self.rows)?;
        Experts::outputs(name, experts.as_ref(), &weight, 1 + u32::from(self.gate.is_some()))?;
        let (n, k) = (self.columns(), weight.cols());
        if experts.is_some() && (self.accumulate || splits != 1) {
            let (name, needed) = ("splits", "1 with experts, and no accumulation");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: splits, needed });
        }
        if splits == 0 {
            return Err(LaunchError::Zero { kernel: kernel(), name: "splits" });
        }
        if splits > MAX_SPLITS {
            let (name, needed) = ("splits", "at most 64");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: splits, needed });
        }
        if self.gate.is_some() {
            if !weight.rows().is_multiple_of(2) {
                let (name, value) = ("rows of the gated weight", weight.rows());
                return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of: 2 });
            }
            let refused = |name, value, needed| LaunchError::Tuning { kernel: kernel(), name, value, needed };
            if self.accumulate {
                return Err(refused("accumulate", 1, "0 with a gate"));
            }
            if splits != 1 {
                return Err(refused("splits", splits, "1 with a gate"));
            }
        }
        let alone = splits == 1 && experts.is_none();
        if (self.bias && !alone) || (self.activation.is_some() && !(alone && self.gate.is_none())) {
            let (name, needed) = ("splits", "1 without experts for a bias or an activation");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: splits, needed });
        }
        if self.activation.is_some() && self.accumulate {
            let (name, needed) = ("accumulate", "0 with an activation");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: 1, needed });
        }
        let product = Product { kernel: name, rows, n, k, y_stride, y_offset };
        let y = product.y_elements()?;
        let m = u64::from(rows);
        // With several splits `y` has partial sums.
        let y = if splits > 1 { u64::from(splits) * m * u64::from(n) } else { y };
        let x_stride = k.next_multiple_of(PADDED);
        let x = u64::from(x_rows) * u64::from(x_stride);
        addressable(name, "elements of x", x)?;
        addressable(name, "elements of y", y)?;
        let mut slots = weight_slots(name, &weight)?;
        let mut push = |name, binding, access, bytes| slots.push(Slot { name, binding, access, bytes });
        push("x", 3, Access::Read, 2 * x);
        if splits == 1 {
            push("x_scales", 4, Access::Read, 4 * u64::from(x_rows));
        }
        push("y", 5, Access::ReadWrite, 4 * y);
        if let Some(experts) = &experts {
            push("order", 7, Access::Read, 4 * experts.order_words(self.rows));
        }
        let bias = self.bias || experts.is_some_and(|experts| experts.bias);
        if bias {
            push("biases", 8, Access::Read, 4 * u64::from(weight.rows()));
        }

        let shape = self.shape(cooperative);
        let count = u64::from(splits) * self.tiles(shape);
        let mut params = product.params(x_stride, self.accumulate);
        params.tiles = experts.map_or(0, |experts| experts.most_tiles(self.rows));
        if cooperative && !x_stride.is_multiple_of(shape.step.max(1)) {
            let (name, needed) = ("step", "a divisor of the elements from one row of x to the next");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: shape.step, needed });
        }
        let (workgroup, mut constants) = if cooperative { shape.cooperative()? } else { shape.plain()? };
        if cooperative && self.gate.is_some() && !(shape.columns / shape.of_subgroup()[1]).is_multiple_of(2) {
            let (name, needed) = ("columns", "an even number of subgroups side by side with a gate");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value: shape.columns, needed });
        }
        constants.extend(Experts::constants(experts.as_ref()));
        constants.retain(|(name, _)| *name != "BIAS");
        constants.extend([
            ("BIAS", u32::from(bias).to_string()),
            ("GATED", u32::from(self.gate.is_some()).to_string()),
            ("EXPERTS", u32::from(experts.is_some()).to_string()),
            ("WEIGHT", weight.constant()),
            ("ACTIVATION", gate_name(self.gate.or(self.activation)).to_owned()),
            ("SPLITS", splits.to_string()),
            ("COOPERATIVE", u32::from(cooperative).to_string()),
            ("TILE_ROWS", format!("{}u", shape.rows)),
            ("TILE_COLUMNS", format!("{}u", shape.columns)),
            ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
            // Plain tiles do not use subgroups.
            ("SUBGROUPS", if cooperative { 32 } else { 0 }.to_string()),
        ]);
        Ok(Launch {
            groups: column_grid(name, count, shape.columns)?,
            variant: Variant {
                name: kernel(),
                file: "tiles.wgsl",
                constants,
                overrides: vec![("WORKGROUP", f64::from(workgroup))],
            },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((6, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// The shape of the tuning, or the largest that gives enough workgroups and is not mostly padding.
    fn shape(&self, cooperative: bool) -> TileShape {
        if let Some(experts) = self.experts {
            return TileShape::new(experts.tile_rows(self.rows), 128);
        }
        if let Some(shape) = self.tuning.shape {
            return shape;
        }
        let enough = u64::from(self.tuning.workgroups.unwrap_or(TileTuning::WORKGROUPS));
        let workgroups = |shape: TileShape| u64::from(self.splits) * self.tiles(shape);
        // Tiles of 32 rows are for few rows only: with more they would read the weights too often. Cooperative matrices
        // have other tiles for few rows.
        let least = if self.rows > 32 || cooperative { 64 } else { 32 };
        let mut fitting = SHAPES
            .into_iter()
            .filter(|shape| shape.rows == least || shape.rows > least && shape.rows / 2 < self.rows);
        let last = SHAPES[if least == 64 { 3 } else { 4 }];
        match fitting.find(|shape| workgroups(*shape) >= enough) {
            // With a single row of tiles steps of 64 are faster: on an H200, 41 µs instead of 54 for 48 × 16,384 × 2,048.
            Some(shape) if cooperative && shape == last && self.rows <= 64 => TileShape { step: 64, ..shape },
            Some(shape) => shape,
            None if cooperative => self.long_steps(enough, workgroups),
            None => last,
        }
    }

    /// The largest of [`LONG_STEPS`] that gives half of the workgroups that are enough otherwise, as was measured on an H200.
    fn long_steps(&self, enough: u64, workgroups: impl Fn(TileShape) -> u64) -> TileShape {
        let [wide, middle, small, longest] = LONG_STEPS;
        let memory = self.tuning.memory.unwrap_or(TileTuning::MEMORY);
        let fits = |shape: TileShape| shape.memory() <= memory;
        let of_rows = [wide, middle].into_iter().filter(|shape| self.rows > 32 && fits(*shape));
        if let Some(shape) = of_rows.into_iter().find(|shape| workgroups(*shape) >= enough / 2) {
            return shape;
        }
        // The longest steps need so much memory that few workgroups run side by side.
        let divides = self.weight.cols().next_multiple_of(PADDED).is_multiple_of(longest.step);
        if divides && fits(longest) && workgroups(small) < enough { longest } else { small }
    }

    fn tiles(&self, shape: TileShape) -> u64 {
        // Zero is refused by `launch`.
        let (rows, columns) = (shape.rows.max(1), shape.columns.max(1));
        if let Some(experts) = self.experts {
            let per_expert = self.weight.rows() / experts.count.max(1);
            return u64::from(experts.most_tiles(self.rows)) * u64::from(per_expert.div_ceil(columns));
        }
        u64::from(self.rows).div_ceil(rows.into()) * u64::from(self.weight.rows()).div_ceil(columns.into())
    }
}

type Constants = Vec<(&'static str, String)>;

impl TileShape {
    /// Rows and columns of a subgroup.
    fn of_subgroup(&self) -> [u32; 2] {
        self.matrices.map(|count| count * self.side)
    }

    /// Bytes of workgroup memory with cooperative matrices: a step of both operands, and a fragment of each subgroup.
    fn memory(&self) -> u32 {
        let [of_rows, of_columns] = self.of_subgroup();
        let subgroups = self.rows / of_rows * (self.columns / of_columns);
        2 * (self.rows + self.columns) * (self.step + 8) + 4 * subgroups * self.side * self.side
    }

    /// Invocations and constants of the kernel with cooperative matrices.
    fn cooperative(&self) -> Result<(u32, Constants), LaunchError> {
        // Large tiles with steps of 32 need less than 32 KiB; others are for devices with more.
        const MEMORY: u32 = 48 << 10;
        let TileShape { rows, columns, matrices, step, side } = *self;
        let refused = |name, value, needed| {
            let kernel = "tiles_cooperative".to_owned();
            Err(LaunchError::Tuning { kernel, name, value, needed })
        };
        for (name, value, allowed, needed) in [
            ("rows of matrices", matrices[0], &[1, 2, 4][..], "1, 2 or 4"),
            ("columns of matrices", matrices[1], &[1, 2, 4][..], "1, 2 or 4"),
            ("step", step, &[32, 64, 128, 256][..], "32, 64, 128 or 256"),
            ("side", side, &[8, 16][..], "8 or 16"),
        ] {
            if !allowed.contains(&value) {
                return refused(name, value, needed);
            }
        }
        let [of_rows, of_columns] = self.of_subgroup();
        for (name, value, of) in [("rows", rows, of_rows), ("columns", columns, of_columns)] {
            if value == 0 || value > 256 || !value.is_multiple_of(of) {
                return refused(name, value, "a multiple of what a subgroup has, up to 256,");
            }
        }
        let subgroups = rows / of_rows * (columns / of_columns);
        let workgroup = 32 * subgroups;
        if workgroup > 256 {
            return refused("workgroup", workgroup, "at most 256");
        }
        let (weight_groups, x_groups) = (columns * step / 16, rows * step / 8);
        if !weight_groups.is_multiple_of(workgroup) || !x_groups.is_multiple_of(workgroup) {
            return refused("workgroup", workgroup, "a divisor of the pieces that are staged");
        }
        if self.memory() > MEMORY {
            return refused("bytes of workgroup memory", self.memory(), "at most 49,152");
        }
        let constants = vec![
            ("STEP", format!("{step}u")),
            ("SLICES", (step / side).to_string()),
            ("LOADS_EARLY", "1".to_owned()),
            ("MATRIX", side.to_string()),
            ("MATRIX_ROWS", matrices[0].to_string()),
            ("MATRIX_COLUMNS", matrices[1].to_string()),
            ("SUBGROUP_COUNT", format!("{subgroups}u")),
            ("SUBGROUP_COLUMNS", format!("{}u", columns / of_columns)),
            ("WEIGHT_LOADS", format!("{}u", weight_groups / workgroup)),
            ("X_LOADS", format!("{}u", x_groups / workgroup)),
        ];
        Ok((workgroup, constants))
    }

    /// Invocations and constants of the plain kernel.
    fn plain(&self) -> Result<(u32, Constants), LaunchError> {
        for (name, value) in [("rows", self.rows), ("columns", self.columns)] {
            if ![32, 64, 128].contains(&value) {
                let (kernel, needed) = ("tiles".to_owned(), "32, 64 or 128");
                return Err(LaunchError::Tuning { kernel, name, value, needed });
            }
        }
        // Both operands in 16 KiB, which every device has.
        let step = if self.rows + self.columns <= 128 { 32 } else { 16 };
        let constants = vec![
            ("STEP", format!("{step}u")),
            ("ROWS_PER_INVOCATION", format!("{}u", self.rows / 16)),
            ("COLUMNS_PER_INVOCATION", format!("{}u", self.columns / 16)),
        ];
        Ok((256, constants))
    }
}

#[cfg(test)]
mod tests {
    use gyrus_tensor::DType;

    use super::*;

    /// Tiles are as large as keeps every processor busy, and not much higher than the rows.
    #[test]
    fn shapes_follow_from_what_there_is_to_do() {
        for (rows, n, expected) in [
            (512, 16_384, (128, 128)),
            (512, 3072, (128, 64)),
            (512, 2048, (64, 64)),
            (4096, 2048, (128, 128)),
            (100, 16_384, (128, 64)),
            (64, 32_768, (64, 128)),
            (33, 1000, (64, 64)),
            (32, 128_000, (32, 64)),
            (17, 512, (32, 64)),
        ] {
            let weight = WeightLayout::new(DType::Q4_0, n, 2048).unwrap();
            let TileShape { rows: height, columns, .. } = TileCall::new(weight, rows).shape(false);
            assert_eq!((height, columns), expected, "{rows} × {n}");
        }
    }

    /// With cooperative matrices, products of few outputs have long steps, if rows are whole steps.
    #[test]
    fn steps_are_long_where_outputs_are_few() {
        for (rows, n, k, expected) in [
            (512, 16_384, 2048, (128, 128, 32)),
            (512, 2048, 2048, (64, 64, 32)),
            (128, 3072, 2048, (64, 64, 128)),
            (128, 2048, 8192, (64, 32, 128)),
            (48, 16_384, 2048, (64, 64, 64)),
            (48, 3072, 2048, (64, 32, 128)),
            (48, 2048, 8192, (32, 32, 256)),
            (48, 2048, 896, (32, 32, 128)),
            (32, 16_384, 2048, (64, 64, 64)),
            (32, 8192, 2048, (32, 32, 128)),
            (17, 512, 2048, (32, 32, 256)),
        ] {
            let weight = WeightLayout::new(DType::Q4_0, n, k).unwrap();
            let tuning = TileTuning { memory: Some(48 << 10), ..TileTuning::default() };
            let call = TileCall { tuning, ..TileCall::new(weight, rows) };
            let TileShape { rows: height, columns, step, .. } = call.shape(true);
            assert_eq!((height, columns, step), expected, "{rows} × {n} × {k}");
            assert!(call.launch(Rungs::ALL).is_ok());
            // What every device with cooperative matrices can do.
            let call = TileCall::new(weight, rows);
            let shape = call.shape(true);
            assert!(shape.memory() <= 32 << 10, "{shape:?}");
            assert!(call.launch(Rungs::ALL).is_ok());
        }
    }
}
