use crate::launch::{AXIS, LaunchError, grid};
use crate::params::MatMulParams;

/// The sizes of `y[r, y_offset + n] (+)= Σ_k weight[n, k]·x[r, k]`, and the checks that all mat-muls share.
pub(super) struct Product<'a> {
    /// The kernel, for errors.
    pub(super) kernel: &'a str,
    /// Rows of `x` and `y`.
    pub(super) rows: u32,
    /// Columns of `y` that are written.
    pub(super) n: u32,
    /// Elements of the sum.
    pub(super) k: u32,
    /// Elements from one row of `y` to the next.
    pub(super) y_stride: u32,
    /// The first column of `y` that is written.
    pub(super) y_offset: u32,
}

impl Product<'_> {
    /// Elements of `y`. Refuses empty products, rows of `y` that overlap, and a `y` beyond 32-bit indices.
    pub(super) fn y_elements(&self) -> Result<u64, LaunchError> {
        for (name, value) in [("m", self.rows), ("n", self.n), ("k", self.k)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: self.kernel.to_owned(), name });
            }
        }
        let row = u64::from(self.y_offset) + u64::from(self.n);
        at_least(self.kernel, "y_stride", self.y_stride, row)?;
        let y = u64::from(self.rows - 1) * u64::from(self.y_stride) + row;
        addressable(self.kernel, "elements of y", y)?;
        Ok(y)
    }

    pub(super) fn params(&self, x_stride: u32, accumulate: bool) -> MatMulParams {
        let Product { rows: m, n, k, y_stride, y_offset, .. } = *self;
        MatMulParams { m, n, k, x_stride, y_stride, y_offset, accumulate: accumulate.into(), tiles: 0 }
    }
}

/// Refuses a parameter below `least`.
pub(super) fn at_least(kernel: &str, name: &'static str, value: u32, least: u64) -> Result<(), LaunchError> {
    if u64::from(value) < least {
        return Err(LaunchError::TooLow { kernel: kernel.to_owned(), name, value, least });
    }
    Ok(())
}

/// Refuses more elements than 32-bit indices address.
pub(super) fn addressable(kernel: &str, what: &'static str, count: u64) -> Result<(), LaunchError> {
    if count > u64::from(u32::MAX) {
        return Err(LaunchError::Large { kernel: kernel.to_owned(), what, count });
    }
    Ok(())
}

/// A folded grid of `count` workgroups of `columns` columns each. The first column of its last workgroup, which may be
/// beyond the end, must not wrap around.
pub(super) fn column_grid(kernel: &str, count: u64, columns: u32) -> Result<[u32; 3], LaunchError> {
    if (count + AXIS).saturating_mul(columns.into()) > u64::from(u32::MAX) {
        let what = "columns of the grid";
        return Err(LaunchError::Large { kernel: kernel.to_owned(), what, count });
    }
    grid(kernel, count)
}
