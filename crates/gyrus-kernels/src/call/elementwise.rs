//! Kernels that compute each element on its own. The grid's second axis is the rows.

use super::engine::{Kernel, flag, launch, slot};
use super::gate_name;
use crate::launch::{Access, Launch, LaunchError};
use crate::op::Activation;
use crate::params::{AddParams, ElementwiseParams, GateByParams, ScaleParams};
use crate::shader::Rungs;

const WORKGROUP: u32 = 256;

fn kernel(name: &'static str, file: &'static str, constants: Vec<(&'static str, String)>) -> Kernel {
    Kernel { name, file, constants, overrides: vec![("WORKGROUP", f64::from(WORKGROUP))] }
}

/// `out = f(gate) · up` for `rows` of `2·count` elements.
pub fn gate(rungs: Rungs, rows: u32, count: u32, activation: Activation) -> Result<Launch, LaunchError> {
    let all = u64::from(rows) * u64::from(count);
    let slots = vec![slot("x", 0, Access::Read, 2 * all), slot("out", 1, Access::ReadWrite, all)];
    let constants = vec![("ACTIVATION", gate_name(Some(activation)).to_owned())];
    let params = ElementwiseParams { count, ..Default::default() };
    let groups = [count.div_ceil(WORKGROUP), rows];
    launch(kernel("gate", "engine/gate.wgsl", constants), rungs, slots, (2, &params), groups)
}

/// `x = f(x)` for `rows` of `count` elements.
pub fn activate(rungs: Rungs, rows: u32, count: u32, activation: Activation) -> Result<Launch, LaunchError> {
    let slots = vec![slot("x", 0, Access::ReadWrite, u64::from(rows) * u64::from(count))];
    let constants = vec![("ACTIVATION", gate_name(Some(activation)).to_owned())];
    let params = ElementwiseParams { count, ..Default::default() };
    let groups = [count.div_ceil(WORKGROUP), rows];
    launch(kernel("activate", "engine/activate.wgsl", constants), rungs, slots, (1, &params), groups)
}

/// `x[r][i] = f(x[r][i]) · by[r][first + i]` for `rows` of `count` and of `stride` elements.
pub fn gate_by(
    rungs: Rungs,
    rows: u32,
    count: u32,
    activation: Activation,
    (stride, first): (u32, u32),
) -> Result<Launch, LaunchError> {
    by_columns("gate_by", false, rungs, rows, count, activation, (stride, first))
}

/// `x[r][i] *= f(by[r][first + i])` for `rows` of `count` and of `stride` elements.
pub fn mul_by(
    rungs: Rungs,
    rows: u32,
    count: u32,
    activation: Activation,
    (stride, first): (u32, u32),
) -> Result<Launch, LaunchError> {
    by_columns("mul_by", true, rungs, rows, count, activation, (stride, first))
}

fn by_columns(
    name: &'static str,
    multiply: bool,
    rungs: Rungs,
    rows: u32,
    count: u32,
    activation: Activation,
    (stride, first): (u32, u32),
) -> Result<Launch, LaunchError> {
    columns(name, "stride", stride, first, count)?;
    let slots = vec![
        slot("x", 0, Access::ReadWrite, u64::from(rows) * u64::from(count)),
        slot("by", 1, Access::Read, u64::from(rows) * u64::from(stride)),
    ];
    let constants = vec![("ACTIVATION", gate_name(Some(activation)).to_owned()), flag("MULTIPLY", multiply)];
    let params = GateByParams { count, stride, first, _pad0: 0 };
    let groups = [count.div_ceil(WORKGROUP), rows];
    launch(kernel(name, "engine/gate_by.wgsl", constants), rungs, slots, (2, &params), groups)
}

/// `out[r][first + i] += scale · x[r][i]` for `rows` of `count` elements, or with a bias the same `x` for all rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddCall {
    /// Rows.
    pub rows: u32,
    /// Elements that are added to each row.
    pub count: u32,
    /// Whether `x` is one row that is added to all.
    pub bias: bool,
    /// Elements from one row of `out` to the next.
    pub out_stride: u32,
    /// The first column of `out`.
    pub first: u32,
    /// Factor on `x`.
    pub scale: f32,
}

impl AddCall {
    /// Checks the call and returns its launch. Buffers: `x`, `out`.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let AddCall { rows, count, bias, out_stride, first, scale } = *self;
        columns("add", "out_stride", out_stride, first, count)?;
        let x_rows = if bias { 1 } else { rows };
        let slots = vec![
            slot("x", 0, Access::Read, u64::from(x_rows) * u64::from(count)),
            slot("out", 1, Access::ReadWrite, u64::from(rows) * u64::from(out_stride)),
        ];
        let x_stride = if bias { 0 } else { count };
        let params = AddParams { count, x_stride, out_stride, first, scale, ..Default::default() };
        let groups = [count.div_ceil(WORKGROUP), rows];
        launch(kernel("add", "engine/add.wgsl", Vec::new()), rungs, slots, (2, &params), groups)
    }
}

/// `x *= factor`, then with a cap `x = cap · tanh(x / cap)`, for `rows` of `count` elements.
pub fn scale(
    rungs: Rungs,
    rows: u32,
    count: u32,
    factor: f32,
    cap: Option<f32>,
) -> Result<Launch, LaunchError> {
    if let Some(value) = cap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
        return Err(LaunchError::NotPositive { kernel: "scale".to_owned(), name: "cap", value });
    }
    let slots = vec![slot("x", 0, Access::ReadWrite, u64::from(rows) * u64::from(count))];
    let params = ScaleParams { count, factor, cap: cap.unwrap_or(0.0), _pad0: 0 };
    let groups = [count.div_ceil(WORKGROUP), rows];
    launch(kernel("scale", "engine/scale.wgsl", Vec::new()), rungs, slots, (1, &params), groups)
}

/// Checks that columns `first` to `first + count` are in a row of `stride`.
fn columns(kernel: &str, name: &'static str, stride: u32, first: u32, count: u32) -> Result<(), LaunchError> {
    let least = u64::from(first) + u64::from(count);
    if u64::from(stride) < least {
        return Err(LaunchError::TooLow { kernel: kernel.to_owned(), name, value: stride, least });
    }
    Ok(())
}
