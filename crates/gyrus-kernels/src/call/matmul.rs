use super::product::{Product, addressable, at_least, column_grid};
use super::{Experts, weight_slots};
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::shader::{Rungs, Variant};
use crate::weights::WeightLayout;

/// `y[r, y_offset + n] (+)= Σ_k weight[n, k]·x[r, k]` in f32: for `exact` precision, and for weights that are not
/// quantised.
///
/// Buffers: the planes of the weight, `x` and `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatMulCall {
    /// The weight matrix.
    pub weight: WeightLayout,
    /// Rows of `x` and `y`.
    pub rows: u32,
    /// Elements from one row of `x` to the next.
    pub x_stride: u32,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
    /// The first column of `y` that is written.
    pub y_offset: u32,
    /// Whether to add to `y`.
    pub accumulate: bool,
    /// The weight is that of several experts, one below the other, and `y` has a row for each slot of a row: those that
    /// `routes` names, plus `biases`. `x` may have fewer rows than `y`.
    pub experts: Option<Experts>,
}

/// Sums of a tile of rows each that keep a device busy.
const BUSY_SUMS: u64 = 1024;

/// Tuning. `lanes` also changes the order of sums, so it must not depend on the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatMulTuning {
    /// Invocations of a workgroup, a power of two.
    pub workgroup: Option<u32>,
    /// Invocations that share the sum of one output, a power of two up to `workgroup`.
    pub lanes: Option<u32>,
    /// Columns of the output that a lane computes: 1, 2 or 4.
    pub columns: Option<u32>,
    /// Rows that share one read of the weights: 1, 2, 4 or 8. Experts have one.
    pub rows: Option<u32>,
}

impl MatMulCall {
    /// Contiguous rows in `x` and `y`.
    pub fn new(weight: WeightLayout, rows: u32) -> MatMulCall {
        MatMulCall {
            weight,
            rows,
            x_stride: weight.cols(),
            y_stride: weight.rows(),
            y_offset: 0,
            accumulate: false,
            experts: None,
        }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs, tuning: MatMulTuning) -> Result<Launch, LaunchError> {
        let name = if self.experts.is_some() { "matmul_experts" } else { "matmul" };
        let kernel = || name.to_owned();
        let MatMulCall { weight, x_stride, y_stride, y_offset, experts, .. } = *self;
        let (x_rows, rows) = Experts::rows(name, experts.as_ref(), self.rows)?;
        let (n, k) = (Experts::outputs(name, experts.as_ref(), &weight, 1)?, weight.cols());
        let product = Product { kernel: name, rows, n, k, y_stride, y_offset };
        let y = product.y_elements()?;
        let mut slots = weight_slots(name, &weight)?;
        let mut push = |name, binding, access, bytes| slots.push(Slot { name, binding, access, bytes });
        at_least(name, "x_stride", x_stride, k.into())?;
        if !x_stride.is_multiple_of(4) {
            let (name, value, of) = ("x_stride", x_stride, 4);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
        }
        let m = u64::from(rows);
        let x = u64::from(x_rows - 1) * u64::from(x_stride) + u64::from(k);
        addressable(name, "elements of x", x)?;
        push("x", 3, Access::Read, 4 * x);
        push("y", 5, Access::ReadWrite, 4 * y);
        slots.extend(experts.iter().flat_map(|experts| experts.slots(self.rows, &weight, [7, 8])));

        let tile = match tuning.rows {
            Some(rows) if self.experts.is_none() => rows,
            _ => self.tile(),
        };
        let Shape { workgroup, lanes, columns } = Self::shape(tuning)?;
        let tiles = m.div_ceil(tile.into());
        let lane_groups = u64::from(n).div_ceil(columns.into());
        let count = lane_groups.div_ceil(u64::from(workgroup / lanes)) * tiles;
        let params = product.params(x_stride, self.accumulate);
        let mut constants = Experts::constants(experts.as_ref());
        constants.extend([
            ("EXPERTS", u32::from(experts.is_some()).to_string()),
            ("WEIGHT", weight.constant()),
            ("ROWS", format!("{tile}u")),
            ("COLUMNS", format!("{columns}u")),
            ("SUMS", format!("{}u", tile * columns)),
            ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
            ("SUBGROUPS", u32::from(rungs.subgroups).to_string()),
        ]);
        let overrides = vec![("WORKGROUP", f64::from(workgroup)), ("LANES", f64::from(lanes))];
        Ok(Launch {
            groups: column_grid(name, count, workgroup / lanes * columns)?,
            variant: Variant { name: kernel(), file: "matmul.wgsl", constants, overrides },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((6, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// Rows that share one read of the weights. A small matrix, such as a router, has too few sums to keep a device busy
    /// with many rows each.
    fn tile(&self) -> u32 {
        let most = match self.rows {
            1 => 1,
            // Each has its own weights.
            _ if self.experts.is_some() => 1,
            2..=4 => 4,
            _ => 8,
        };
        let sums = |tile: u32| u64::from(self.weight.rows()) * u64::from(self.rows.div_ceil(tile));
        [8, 4, 2].into_iter().filter(|tile| *tile <= most).find(|tile| sums(*tile) >= BUSY_SUMS).unwrap_or(1)
    }

    /// How the sum is divided. It must not depend on the number of rows, or a row's bits would depend on other rows.
    fn shape(tuning: MatMulTuning) -> Result<Shape, LaunchError> {
        let lanes = tuning.lanes.unwrap_or(32);
        let workgroup = tuning.workgroup.unwrap_or(128);
        let columns = tuning.columns.unwrap_or(1);
        let kernel = || "matmul".to_owned();
        for (name, value) in [("lanes", lanes), ("workgroup", workgroup)] {
            if !value.is_power_of_two() {
                let needed = "a power of two";
                return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
            }
        }
        if workgroup < lanes {
            let least = lanes.into();
            return Err(LaunchError::TooLow { kernel: kernel(), name: "workgroup", value: workgroup, least });
        }
        let rows = tuning.rows.unwrap_or(1);
        if ![1, 2, 4, 8].contains(&rows) {
            let (name, value, needed) = ("rows", rows, "1, 2, 4 or 8");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        if ![1, 2, 4].contains(&columns) {
            let (name, value, needed) = ("columns", columns, "1, 2 or 4");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        Ok(Shape { workgroup, lanes, columns })
    }
}

struct Shape {
    workgroup: u32,
    lanes: u32,
    columns: u32,
}
