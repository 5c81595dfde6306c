use crate::launch::{Access, Launch, LaunchError, Slot, grid};
use crate::params::F16RowsParams;
use crate::shader::{Rungs, Variant};

/// Rows of f16 are padded to a multiple of this, so that tiles can stage as many elements at a time.
pub(super) const PADDED: u32 = 128;

/// Rows of activations as f16 with one scale a row, for a [`TileCall`](super::TileCall).
///
/// Buffers: `x`; with a norm, its `norm` weights; `h`, [`F16RowsCall::bytes`]; `h_scales`, 4 bytes a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct F16RowsCall {
    /// Rows.
    pub rows: u32,
    /// Elements of a row, a multiple of 4.
    pub cols: u32,
    /// Elements from one row of `x` to the next.
    pub x_stride: u32,
    /// Epsilon of an RMS norm to apply, if any.
    pub norm: Option<f32>,
}

impl F16RowsCall {
    /// Elements from one row of f16 to the next. Padding is zero.
    pub fn stride(&self) -> u32 {
        self.cols.div_ceil(PADDED).saturating_mul(PADDED)
    }

    /// Bytes of `h`.
    pub fn bytes(&self) -> u64 {
        2 * u64::from(self.rows) * u64::from(self.stride())
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        const WORKGROUP: u32 = 256;
        let kernel = || "f16_rows".to_owned();
        let F16RowsCall { rows, cols, x_stride, norm } = *self;
        for (name, value) in [("m", rows), ("k", cols)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        for (name, value) in [("k", cols), ("x_stride", x_stride)] {
            if !value.is_multiple_of(4) {
                return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of: 4 });
            }
        }
        if x_stride < cols {
            let (name, least) = ("x_stride", cols.into());
            return Err(LaunchError::TooLow { kernel: kernel(), name, value: x_stride, least });
        }
        let x = u64::from(rows - 1) * u64::from(x_stride) + u64::from(cols);
        // Rounding up must stay within 32 bits.
        let h = u64::from(rows) * u64::from(cols).next_multiple_of(PADDED.into());
        for (what, count) in [("elements of x", x), ("elements of h", h)] {
            if count > u64::from(u32::MAX) {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
        }
        let flag = |name, value: bool| (name, u32::from(value).to_string());
        let slot = |name, binding, access, bytes| Slot { name, binding, access, bytes };
        let mut slots = vec![slot("x", 0, Access::Read, 4 * x)];
        if norm.is_some() {
            slots.push(slot("norm", 1, Access::Read, 4 * u64::from(cols)));
        }
        slots.push(slot("h", 2, Access::ReadWrite, 2 * h));
        slots.push(slot("h_scales", 3, Access::ReadWrite, 4 * u64::from(rows)));
        let params = F16RowsParams { m: rows, k: cols, x_stride, eps: norm.unwrap_or(0.0) };
        Ok(Launch {
            groups: grid("f16_rows", rows.into())?,
            variant: Variant {
                name: kernel(),
                file: "f16_rows.wgsl",
                constants: vec![
                    flag("NORM", norm.is_some()),
                    flag("F16", rungs.f16),
                    flag("IMMEDIATES", rungs.immediates),
                    flag("SUBGROUPS", rungs.subgroups),
                ],
                overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
            },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((4, bytemuck::bytes_of(&params).to_vec())),
        })
    }
}
