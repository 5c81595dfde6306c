use crate::launch::{Access, Launch, LaunchError};
use crate::params::{LayerNormParams, RMSNormParams};
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
    /// Invocations of a workgroup, which computes a row: a power of two from 32 to 1,024.
    pub workgroup: u32,
}

/// The longest row: an invocation holds its part of a row in registers.
const MOST: u32 = 1 << 18;

impl NormCall {
    /// A norm from one buffer to another.
    pub fn new(norm: Norm, rows: u32, dim: u32, eps: f32) -> NormCall {
        NormCall { rows, dim, norm, eps, residual: false, in_place: false, workgroup: 256 }
    }

    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        match (self.norm, self.residual) {
            (Norm::Layer { .. }, false) => "layer_norm",
            (Norm::Layer { .. }, true) => "residual_layer_norm",
            (_, false) => "rms_norm",
            (_, true) => "residual_rms_norm",
        }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let NormCall { rows, dim, norm, eps, residual, in_place, workgroup } = *self;
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
        let all = u64::from(rows) * u64::from(dim);
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
        let width = if dim.is_multiple_of(4) { 4 } else { 1 };
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
        launch(kernel, rungs, slots, (3, &RMSNormParams { dim, eps, ..Default::default() }), groups)
    }
}
