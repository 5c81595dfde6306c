use super::tiles::TileCall;
use crate::launch::{AXIS, Access, Launch, LaunchError, Slot, grid};
use crate::params::SumTilesParams;
use crate::shader::{Rungs, Variant};

/// `y[r, y_offset + n] (+)= x_scales[r]·Σ_s parts[s, r, n]`: the reduction after a split-K [`TileCall`].
///
/// Buffers: `parts`, `x_scales`, `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumTilesCall {
    /// Rows.
    pub rows: u32,
    /// Columns that are written.
    pub columns: u32,
    /// Splits.
    pub splits: u32,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
    /// The first column of `y` that is written.
    pub y_offset: u32,
    /// Whether to add to `y`.
    pub accumulate: bool,
}

impl SumTilesCall {
    /// The reduction of a call's partial sums. It writes where that call would have written.
    pub fn after(call: &TileCall) -> SumTilesCall {
        let TileCall { rows, splits, y_stride, y_offset, accumulate, .. } = *call;
        SumTilesCall { rows, columns: call.columns(), splits, y_stride, y_offset, accumulate }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        const WORKGROUP: u32 = 256;
        let kernel = || "sum_tiles".to_owned();
        let SumTilesCall { rows, columns, splits, y_stride, y_offset, accumulate } = *self;
        for (name, value) in [("m", rows), ("n", columns), ("splits", splits)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        let (m, n) = (u64::from(rows), u64::from(columns));
        let least = u64::from(y_offset) + n;
        if u64::from(y_stride) < least {
            return Err(LaunchError::TooLow { kernel: kernel(), name: "y_stride", value: y_stride, least });
        }
        let y = (m - 1) * u64::from(y_stride) + least;
        let parts = (m * n).saturating_mul(splits.into());
        // The last indices of a folded grid are beyond the end.
        let indices = m * n + (AXIS + 1) * u64::from(WORKGROUP);
        for (what, count) in [("elements of y", y), ("elements of parts", parts), ("outputs", indices)] {
            if count > u64::from(u32::MAX) {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
        }
        let slot = |name, binding, access, count| Slot { name, binding, access, bytes: 4 * count };
        let params = SumTilesParams {
            m: rows,
            n: columns,
            splits,
            y_stride,
            y_offset,
            accumulate: accumulate.into(),
            ..Default::default()
        };
        Ok(Launch {
            groups: grid("sum_tiles", (m * n).div_ceil(WORKGROUP.into()))?,
            variant: Variant {
                name: kernel(),
                file: "sum_tiles.wgsl",
                constants: vec![
                    ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
                    ("SUBGROUPS", "0".to_owned()),
                ],
                overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
            },
            slots: vec![
                slot("parts", 0, Access::Read, parts),
                slot("x_scales", 1, Access::Read, m),
                slot("y", 2, Access::ReadWrite, y),
            ],
            uniforms: Vec::new(),
            rope: None,
            params: Some((3, bytemuck::bytes_of(&params).to_vec())),
        })
    }
}
