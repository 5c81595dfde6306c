use super::engine::{Kernel, launch, slot};
use crate::launch::{Access, Launch, LaunchError};
use crate::params::UnfoldParams;
use crate::shader::Rungs;

/// The inputs of a convolution over the rows of each sequence, side by side:
/// `out[r][c·taps + t] = x[r·stride + t − taps / 2][c]`, and 0 where the sequence has no such row. The stride is
/// `x_slots / out_slots`.
///
/// Buffers: `x`, `rows` (position and first entry of the block table), `out`. The rows of a sequence must be adjacent and
/// begin with position 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfoldCall {
    /// Rows of the batch.
    pub rows: u32,
    /// Rows of `x` for each of them, a multiple of those of `out`.
    pub x_slots: u32,
    /// Rows of `out` for each of them.
    pub out_slots: u32,
    /// Elements of a row of `x`.
    pub channels: u32,
    /// How many rows of `x` a row of `out` has; odd.
    pub taps: u32,
}

impl UnfoldCall {
    const NAME: &str = "unfold";

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        const WORKGROUP: u32 = 256;
        let kernel = || Self::NAME.to_owned();
        let UnfoldCall { rows, x_slots, out_slots, channels, taps } = *self;
        let counts = [
            ("rows", rows),
            ("x_slots", x_slots),
            ("out_slots", out_slots),
            ("channels", channels),
            ("taps", taps),
        ];
        for (name, value) in counts {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        if !x_slots.is_multiple_of(out_slots) {
            let (name, value) = ("x_slots", x_slots);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of: out_slots });
        }
        if taps.is_multiple_of(2) {
            let (name, value, needed) = ("taps", taps, "an odd number");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        let product = |factors: [u32; 3], what| {
            let count = factors.into_iter().fold(1u64, |all, n| all.saturating_mul(n.into()));
            // Half of the range, so that a row beyond the last by some taps is still a number.
            if count > u64::from(u32::MAX / 2) {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
            Ok(count)
        };
        let width = product([channels, taps, 1], "elements of a row of out")?;
        let read = product([rows, x_slots, channels], "elements of x")?;
        let written = product([rows, out_slots, width as u32], "elements of out")?;
        let slots = vec![
            slot("x", 0, Access::Read, read),
            slot("rows", 1, Access::Read, 2 * u64::from(rows)),
            slot("out", 2, Access::ReadWrite, written),
        ];
        let kernel = Kernel {
            name: Self::NAME,
            file: "engine/unfold.wgsl",
            constants: Vec::new(),
            overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
        };
        let params = UnfoldParams { rows, x_slots, out_slots, channels, taps, ..Default::default() };
        launch(kernel, rungs, slots, (3, &params), [(width as u32).div_ceil(WORKGROUP), rows * out_slots])
    }
}
