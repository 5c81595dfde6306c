//! Launches of every kernel, from the op-test grid.

use gyrus_kernels::Launch;
use gyrus_kernels::grid::families;
use gyrus_kernels::shader::Rungs;

/// Sets of device features that kernels have variants for.
pub(crate) const ALL_RUNGS: [Rungs; 6] = [
    Rungs::ALL,
    Rungs { int8_matrix: false, ..Rungs::ALL },
    Rungs { cooperative: false, int8_matrix: false, ..Rungs::ALL },
    Rungs { f16: false, ..Rungs::ALL },
    Rungs { subgroups: false, ..Rungs::ALL },
    Rungs::NONE,
];

/// Launches of up to `count` cases of each family on a device with these features.
pub(crate) fn launches(rungs: Rungs, count: usize) -> impl Iterator<Item = Launch> {
    let cases = families().iter().flat_map(move |family| family.cases(rungs, count));
    cases.flat_map(|case| case.steps).map(|step| step.launch)
}
