//! Sizes that depend on how large a device is.

use gyrus_kernels::call::{MatVecSizes, TileTuning};
use gyrus_kernels::shader::Rungs;

/// Sizes for one class of devices. A line `device NAME = NUMBER` in a tuning file overrides the number of that name; the
/// names of [`MatVecSizes`] have the prefix `matvec_`. They change the speed and not what is computed. Of all numbers, only
/// the outputs of mat-vecs can change bits, since the order of sums depends on them, as it does on a tuned form.
///
/// The numbers suit an H200 (132 multiprocessors), on which the benchmarks in `docs/benchmarks.md` ran. Other GPUs were not
/// measured and have the same numbers, except where they might lack registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceProfile {
    /// Workgroups of attention that keep the device busy without splits. From this many on, one workgroup attends to all
    /// splits of a row and merges them, which saves the others their prologue and the kernel that merges.
    pub(crate) gathered_workgroups: u32,
    /// The most tiles of keys that such a workgroup attends to at once. Their scores and sums are in registers, of which
    /// four tiles need more than some devices have.
    pub(crate) gathered_tiles: u32,
    /// Workgroups that a matrix product of prefill should have, more than there are multiprocessors. If large tiles give
    /// fewer, smaller tiles are used, which read weights more often.
    pub(crate) tile_workgroups: u32,
    /// Kernels of the first submission to an idle device. The next has twice as many, and so on, so that each is recorded
    /// while the one before runs.
    pub(crate) first_submission: u32,
    /// Invocations that keep the device busy. `gyrus tune` tries no form of several passes with fewer.
    pub(crate) busy_invocations: u32,
    /// How mat-vecs divide their work.
    pub(crate) mat_vec: MatVecSizes,
}

impl DeviceProfile {
    /// NVIDIA's GPUs with int8 tensor cores. They have registers for four tiles.
    const TENSOR_CORES: DeviceProfile = DeviceProfile {
        gathered_workgroups: 64,
        gathered_tiles: 4,
        tile_workgroups: TileTuning::WORKGROUPS,
        first_submission: 16,
        // Half of the 132 · 2048 that run at once: each of them has several loads in flight.
        busy_invocations: 128 << 10,
        mat_vec: MatVecSizes::H200,
    };

    /// All other devices.
    const OTHER: DeviceProfile = DeviceProfile { gathered_tiles: 2, ..DeviceProfile::TENSOR_CORES };

    /// The profile of a device with these features.
    pub(crate) fn of(rungs: Rungs) -> DeviceProfile {
        if rungs.int8_matrix { DeviceProfile::TENSOR_CORES } else { DeviceProfile::OTHER }
    }

    /// Overrides the number of this name. `None`: there is none, or it cannot have this value.
    pub(crate) fn set(&mut self, name: &str, value: u32) -> Option<()> {
        if let Some(name) = name.strip_prefix("matvec_") {
            return self.mat_vec.set(name, value);
        }
        let number = match name {
            "gathered_workgroups" => &mut self.gathered_workgroups,
            "gathered_tiles" if ![1, 2, 4].contains(&value) => return None,
            "gathered_tiles" => &mut self.gathered_tiles,
            "tile_workgroups" => &mut self.tile_workgroups,
            "busy_invocations" => &mut self.busy_invocations,
            "first_submission" => &mut self.first_submission,
            _ => return None,
        };
        *number = Some(value).filter(|value| *value > 0)?;
        Some(())
    }
}
