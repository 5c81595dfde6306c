use crate::launch::LaunchError;

/// Elements of a quantisation block.
const BLOCK: u32 = 32;

/// The most unpacked blocks of weights that an invocation keeps in registers while it iterates over rows.
pub(super) const MAX_REGISTER_BLOCKS: u32 = 8;

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
    pub turns: u32,
}

impl MatVecTuning {
    /// What measured well for a matrix of `n` rows of `k` on large GPUs, with at most `most` invocations a workgroup.
    pub fn of(n: u32, k: u32, most: u32) -> MatVecTuning {
        // One or two blocks an invocation: more would be a long dependent sum, fewer mostly a reduction.
        let splits = match k / BLOCK {
            0..=64 => 1,
            65..=128 if n <= 1024 || (4097..=32_768).contains(&n) => 2,
            65..=256 => 4,
            _ => 8,
        };
        let (workgroup, columns, turns) = match n {
            0..=1024 => (512, 1, 1),
            1025..=4096 if splits == 1 => (512, 1, 1),
            1025..=4096 => {
                // As many large workgroups as a large GPU runs at once: each runs the prologue on the whole input.
                let columns = (n / 128 * splits / 32).max(1);
                let columns = 1 << columns.ilog2();
                let at_once = columns.min(if splits == 8 { 2 } else { 4 });
                (1024, at_once, columns / at_once)
            }
            4097..=6144 => (512, 2, 1),
            6145..=32_768 if splits == 1 => (512, 2, 2),
            6145..=32_768 => (512, 4, 1),
            _ if splits == 1 => (512, 2, 1),
            _ => (512, 8, 1),
        };
        let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        MatVecTuning { workgroup: workgroup.min(most.max(32 * splits)), columns, splits, turns }
    }

    /// The same order of sums for this many rows of matrices with `k` columns. Several rows run best in small
    /// workgroups, whose weights stay in registers.
    #[must_use]
    pub fn for_rows(self, rows: u32, k: u32) -> MatVecTuning {
        if rows == 1 {
            return self;
        }
        let columns = (MAX_REGISTER_BLOCKS / self.own(k)).clamp(1, 4);
        let columns = if columns.is_power_of_two() { columns } else { columns.next_power_of_two() / 2 };
        MatVecTuning { workgroup: (32 * self.splits).max(128), columns, turns: 1, ..self }
    }

    /// Blocks of a column per invocation.
    pub(super) fn own(&self, k: u32) -> u32 {
        (k / BLOCK).div_ceil(32 * self.splits).max(1)
    }

    /// Checks that the kernel has this form.
    pub fn check(&self) -> Result<(), LaunchError> {
        let MatVecTuning { workgroup, columns, splits, turns } = *self;
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
        if !(1..=8).contains(&turns) {
            return wrong("turns", turns, "1 to 8");
        }
        if workgroup < 32 * splits {
            return wrong("workgroup", workgroup, "at least 32 for each split");
        }
        Ok(())
    }
}

impl std::fmt::Display for MatVecTuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MatVecTuning { workgroup, columns, splits, turns } = self;
        write!(f, "{workgroup} invocations, {columns} columns, {splits} splits, {turns} passes")
    }
}
