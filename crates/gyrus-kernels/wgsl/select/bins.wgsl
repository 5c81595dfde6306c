// Bins of a row by the distance from the largest logit, between that and the smallest: the mass of each bin, of each run
// of BINS_OF_RUN of them, and the tokens of the bins in which cuts and the drawn token are.
//
// Words of a row's bins: the number of gathered tokens, the largest and the smallest key; CUT_*; the masses of the runs;
// the masses of the bins; the gathered tokens as (key, token). Masses are pairs of words.

const BINS_OF_ROW: u32 = 16384u;
const BINS_OF_RUN: u32 = 64u;
const BIN_RUNS: u32 = BINS_OF_ROW / BINS_OF_RUN;
const MAX_GATHERED: u32 = 1024u;

const BIN_GATHERED: u32 = 0u;
const BIN_MAX_KEY: u32 = 1u;
const BIN_MIN_KEY: u32 = 2u;
// The mass of the row and the mass that top-p keeps at least; the bins in which top-p and min-p cut, and the masses before
// them; the first bin in which the drawn token may be, and the mass before it; the last one.
const CUT_TOTAL: u32 = 4u;
const CUT_GOAL: u32 = 6u;
const CUT_TOP: u32 = 8u;
const CUT_LEAST: u32 = 11u;
const CUT_FIRST: u32 = 14u;
const CUT_LAST: u32 = 17u;
const BIN_RUN_MASS: u32 = 20u;
const BIN_MASS: u32 = BIN_RUN_MASS + 2u * BIN_RUNS;
const BIN_TOKENS: u32 = BIN_MASS + 2u * BINS_OF_ROW;
// Counters and masses are cleared before each step.
const BIN_CLEARED: u32 = BIN_TOKENS;
const BIN_WORDS: u32 = BIN_TOKENS + 2u * MAX_GATHERED;

// The kernels of bins read a row in blocks of four tokens an invocation.
const BLOCK: u32 = 4u * RUN;

// Bins a unit of distance, for a row whose smallest logit is at this distance.
fn bins_per_unit(most: f32) -> f32 {
    return f32(BINS_OF_ROW) / max(most, 1e-20);
}

fn bin_at(distance: f32, per_unit: f32) -> u32 {
    return min(u32(min(distance * per_unit, f32(BINS_OF_ROW))), BINS_OF_ROW - 1u);
}

// The unit of masses, at least 2^-40: the smallest probability, at distance `most`, has 24 bits. So if no probability is
// small, the mass of a token is one word, and the sums of few of them are.
fn mass_scale_of(most: f32) -> f32 {
    let exponent = min(i32(ceil(most * 1.442695)) - 8, 8);
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// Whether a running row's token is found by bins: all tokens may be drawn, and a small top-k does not bound them.
fn is_binned(slot: SlotState) -> bool {
    let keeps_all = slot.top_k == 0u || (slot.top_k > MAX_CANDIDATE_K && slot.top_k >= params.vocab);
    return is_running(slot.flags) && slot.temperature > 0.0 && keeps_all;
}
