use crate::launch::{Access, Launch, LaunchError};
use crate::params::{ColumnNormParams, LayerNormParams, RMSNormParams};
use crate::shader::Rungs;

use super::engine::{Kernel, flag, launch, slot};

/// How a row is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Norm {
    /// `v / √(mean(v²) + eps) · weight`.
    Rms,
    /// The same with `weight + 1`, as in Gemma.
    RmsPlusOne,
    /// `(v − mean) / √(var + eps) · weight`, plus a bias if there is one.
    Layer {
        /// Whether there is a bias.
        bias: bool,
    },
}

/// Parts of rows: `parts` of `dim` elements, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Elements from one row to the next.
    pub stride: u32,
    /// The first column.
    pub first: u32,
    /// Parts of a row.
    pub parts: u32,
}

/// A norm of each row, with an optional residual added before.
///
/// Buffers: `x`, `weight`, `out` unless in place, `residual` and `bias` if there are any. With a residual `x` becomes
/// the sum and `out` the normalised row; in place `x` becomes the normalised row, and the sum is not stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormCall {
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub dim: u32,
    /// Which norm.
    pub norm: Norm,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// Whether another buffer is added first.
    pub residual: bool,
    /// Whether `x` is overwritten.
    pub in_place: bool,
    /// Adds the result times this factor to `out`, instead of overwriting it. RMS norms only, without a residual.
    pub add: Option<f32>,
    /// Parts of rows instead of whole rows, in place. RMS norms only, without a residual.
    pub columns: Option<Columns>,
    /// Invocations of a workgroup, which computes a row: a power of two from 32 to 1,024.
    pub workgroup: u32,
}

/// The longest row: an invocation holds its part of a row in registers.
const MOST: u32 = 1 << 18;

impl NormCall {
    /// A norm from one buffer to another.
    pub fn new(norm: Norm, rows: u32, dim: u32, eps: f32) -> NormCall {
        NormCall {
            rows,
            dim,
            norm,
            eps,
            residual: false,
            in_place: false,
            add: None,
            columns: None,
            workgroup: 256,
        }
    }

    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        match (self.norm, self.residual) {
            (Norm::Layer { .. }, false) => "layer_norm",
            (Norm::Layer { .. }, true) => "residual_layer_norm",
            (_, false) if self.add.is_some() => "rms_norm_add",
            (_, false) if self.columns.is_some() => "rms_norm_columns",
            (_, false) => "rms_norm",
            (_, true) => "residual_rms_norm",
        }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let NormCall { rows, dim, norm, eps, residual, in_place, add, columns, workgroup } = *self;
        let name = self.name();
        let kernel = || name.to_owned();
        if dim == 0 {
            return Err(LaunchError::Zero { kernel: kernel(), name: "dim" });
        }
        if dim > MOST {
            let (what, count) = ("elements of a row", dim.into());
            return Err(LaunchError::Large { kernel: kernel(), what, count });
        }
        if !workgroup.is_power_of_two() || !(32..=1024).contains(&workgroup) {
            return Err(LaunchError::Tuning {
                kernel: kernel(),
                name: "workgroup",
                value: workgroup,
                needed: "a power of two from 32 to 1,024",
            });
        }
        let plain = norm == Norm::Rms && !residual;
        if (add.is_some() && (!plain || in_place || columns.is_some()))
            || (columns.is_some() && !(plain && in_place))
        {
            let storage = "a sum or columns of this norm";
            return Err(LaunchError::Storage { kernel: kernel(), storage });
        }
        if let Some(Columns { stride, first, parts }) = columns {
            let least = u64::from(first) + u64::from(parts) * u64::from(dim);
            if u64::from(stride) < least {
                return Err(LaunchError::TooLow { kernel: kernel(), name: "stride", value: stride, least });
            }
        }
        let all = u64::from(rows) * u64::from(columns.map_or(dim, |columns| columns.stride));
        if all > u64::from(u32::MAX) {
            return Err(LaunchError::Large { kernel: kernel(), what: "elements", count: all });
        }
        let bias = norm == Norm::Layer { bias: true };
        let access = if in_place || residual { Access::ReadWrite } else { Access::Read };
        let mut slots = vec![slot("x", 0, access, all), slot("weight", 1, Access::Read, dim.into())];
        if !in_place {
            slots.push(slot("out", 2, Access::ReadWrite, all));
        }
        if residual {
            slots.push(slot("residual", 4, Access::Read, all));
        }
        if bias {
            slots.push(slot("bias", 5, Access::Read, dim.into()));
        }
        let aligned = columns.is_none_or(|c| c.stride.is_multiple_of(4) && c.first.is_multiple_of(4));
        let width = if dim.is_multiple_of(4) && aligned { 4 } else { 1 };
        let layer = matches!(norm, Norm::Layer { .. });
        let kernel = Kernel {
            name,
            file: "norm.wgsl",
            constants: vec![
                ("NORM", if layer { "layer" } else { "rms" }.to_owned()),
                flag("PLUS_ONE", norm == Norm::RmsPlusOne),
                flag("BIAS", bias),
                flag("RESIDUAL", residual),
                flag("IN_PLACE", in_place),
                flag("ADD", add.is_some()),
                flag("COLUMNS", columns.is_some()),
                flag("VECTOR", width == 4),
                ("VECTORS_PER_INVOCATION", format!("{}u", (dim / width).div_ceil(workgroup))),
            ],
            overrides: vec![("WORKGROUP", f64::from(workgroup))],
        };
        let groups = [1, rows];
        if layer {
            let params = LayerNormParams { dim, eps, ..Default::default() };
            return launch(kernel, rungs, slots, (3, &params), groups);
        }
        if let Some(Columns { stride, first, parts }) = columns {
            let params = ColumnNormParams { dim, eps, stride, first };
            return launch(kernel, rungs, slots, (3, &params), [parts, rows]);
        }
        let params = RMSNormParams { dim, eps, scale: add.unwrap_or(1.0), ..Default::default() };
        launch(kernel, rungs, slots, (3, &params), groups)
    }
}
