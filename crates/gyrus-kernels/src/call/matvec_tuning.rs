use super::matvec_sizes::MatVecSizes;
use crate::launch::LaunchError;

/// Elements of a quantisation block.
const BLOCK: u32 = 32;

/// Invocations of a lane group.
const LANES: u32 = 32;

/// The most passes of a workgroup.
const MOST_PASSES: u32 = 8;

/// How often workgroups with a prologue for each row may fill the device.
const FILLS: u64 = 2;

/// Tuning of a mat-vec. `splits` also changes the order of sums, so it must not depend on the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatVecTuning {
    /// Invocations of a workgroup: a power of two, at least 32 times `splits`.
    pub workgroup: u32,
    /// Columns of the output that a 32-lane group computes: 1, 2, 4 or 8.
    pub columns: u32,
    /// Split-K: lane groups that share the sum of one output: 1, 2, 4 or 8.
    pub splits: u32,
    /// Passes of a workgroup over sets of columns, with one prologue for all of them: 1 to 8. For one row only.
    pub passes: u32,
}

impl MatVecTuning {
    /// The form for a matrix of `n` rows of `k` on a device of these sizes, with at most `most` invocations a workgroup.
    pub fn of(n: u32, k: u32, most: u32, sizes: &MatVecSizes) -> MatVecTuning {
        let MatVecSizes { narrow_outputs: narrow, medium_outputs: medium, .. } = *sizes;
        let MatVecSizes { wide_outputs: wide, layer_outputs: layer, workgroup, .. } = *sizes;
        // One or two blocks an invocation: more would be a long dependent sum, fewer mostly a reduction.
        let splits = match k / BLOCK {
            0..=64 => 1,
            65..=128 if n <= narrow || (n > medium && n <= layer) => 2,
            65..=256 => 4,
            _ => 8,
        };
        let (workgroup, columns, passes) = match n {
            _ if n <= narrow => (workgroup, 1, 1),
            _ if n <= medium && splits == 1 => (workgroup, 1, 1),
            _ if n <= medium => {
                let lane_groups = sizes.prologue_workgroups * (sizes.prologue_workgroup / LANES);
                let sums = u64::from(n) * u64::from(splits);
                let columns = 1 << (sums / u64::from(lane_groups)).max(1).ilog2().min(5);
                let at_once: u32 = if splits == 8 { 2 } else { 4 };
                let at_once = at_once.min(columns);
                // As many passes as leave no workgroup that would have to wait for another.
                let passes = sums.div_ceil(u64::from(lane_groups) * u64::from(at_once));
                (sizes.prologue_workgroup, at_once, passes.clamp(1, MOST_PASSES.into()) as u32)
            }
            _ if n <= wide => (workgroup, 2, 1),
            _ if n <= layer && splits == 1 => (workgroup, 2, 2),
            _ if n <= layer => (workgroup, 4, 1),
            _ if splits == 1 => (workgroup, 2, 1),
            _ => (workgroup, 8, 1),
        };
        let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        let least = LANES * splits;
        MatVecTuning { workgroup: workgroup.min(most).max(least), columns, splits, passes }
    }

    /// The same order of sums for this many rows of matrices with `k` columns. Several rows run best in small
    /// workgroups, whose weights stay in registers.
    #[must_use]
    pub fn for_rows(self, rows: u32, k: u32, sizes: &MatVecSizes) -> MatVecTuning {
        if rows == 1 {
            return self;
        }
        let columns = (sizes.register_blocks / self.own(k)).clamp(1, 4);
        let columns = if columns.is_power_of_two() { columns } else { columns.next_power_of_two() / 2 };
        let workgroup = (LANES * self.splits).max(sizes.rows_workgroup);
        MatVecTuning { workgroup, columns, passes: 1, ..self }
    }

    /// The passes for `rows` rows of `n` outputs each that have weights of their own. Every workgroup runs the prologue, so
    /// there are no more of them than fill the device a few times.
    pub(super) fn passes_for(&self, rows: u32, n: u32, sizes: &MatVecSizes) -> u32 {
        let invocations =
            u64::from(rows) * u64::from(n) * u64::from(LANES * self.splits) / u64::from(self.columns);
        let fill = FILLS * u64::from(sizes.prologue_workgroups) * u64::from(sizes.prologue_workgroup);
        (invocations / fill).clamp(self.passes.into(), MOST_PASSES.into()) as u32
    }

    /// Blocks of a column per invocation.
    pub(super) fn own(&self, k: u32) -> u32 {
        (k / BLOCK).div_ceil(LANES * self.splits).max(1)
    }

    /// Checks that the kernel has this form.
    pub fn check(&self) -> Result<(), LaunchError> {
        let MatVecTuning { workgroup, columns, splits, passes } = *self;
        let wrong = |name, value, needed| {
            Err(LaunchError::Tuning { kernel: "matvec".to_owned(), name, value, needed })
        };
        if !workgroup.is_power_of_two() || !(32..=1024).contains(&workgroup) {
            return wrong("workgroup", workgroup, "a power of two from 32 to 1024");
        }
        for (name, value) in [("columns", columns), ("splits", splits)] {
            if ![1, 2, 4, 8].contains(&value) {
                return wrong(name, value, "1, 2, 4 or 8");
            }
        }
        if !(1..=MOST_PASSES).contains(&passes) {
            return wrong("passes", passes, "1 to 8");
        }
        if workgroup < 32 * splits {
            return wrong("workgroup", workgroup, "at least 32 for each split");
        }
        Ok(())
    }
}

impl std::fmt::Display for MatVecTuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MatVecTuning { workgroup, columns, splits, passes } = self;
        write!(f, "{workgroup} invocations, {columns} columns, {splits} splits, {passes} passes")
    }
}
