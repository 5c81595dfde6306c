// Bins of a row by the distance from the largest logit, between that and the smallest: the mass of each bin, of each run
// of BINS_OF_RUN of them, and the tokens of the bins in which cuts and the drawn token are. Needs row_bins.
//
// Words of a row in `bins`: what is left of the row (as in `partials`), the number of gathered tokens, the largest and the
// smallest key; the masses of the runs; the masses of the bins; the gathered tokens as (key, token).

const ROW_BINS: u32 = 4096u;
const BINS_OF_RUN: u32 = 64u;
const BIN_RUNS: u32 = ROW_BINS / BINS_OF_RUN;
const MAX_GATHERED: u32 = 1024u;

const BIN_LEFT: u32 = 0u;
const BIN_GATHERED: u32 = 1u;
const BIN_MAX_KEY: u32 = 2u;
const BIN_MIN_KEY: u32 = 3u;
const BIN_RUN_MASS: u32 = 4u;
const BIN_MASS: u32 = BIN_RUN_MASS + 2u * BIN_RUNS;
const BIN_TOKENS: u32 = BIN_MASS + 2u * ROW_BINS;
// Masses and counters are cleared before each step.
const BIN_CLEARED: u32 = BIN_TOKENS;
const BIN_WORDS: u32 = BIN_TOKENS + 2u * MAX_GATHERED;

// Bins a unit of distance, for a row whose smallest logit is at this distance.
fn bins_per_unit(most: f32) -> f32 {
    return f32(ROW_BINS) / max(most, 1e-20);
}

fn row_bin(distance: f32, per_unit: f32) -> u32 {
    return min(u32(min(distance * per_unit, f32(ROW_BINS))), ROW_BINS - 1u);
}
