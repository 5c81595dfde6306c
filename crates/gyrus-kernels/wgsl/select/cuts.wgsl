// Finds the runs of bins, then the bins, in which the cuts of a sampler and its drawn token are. Needs partials with bins,
// scan.wgsl in a workgroup of an invocation a run, and functions of mass.wgsl and random.wgsl. Every invocation of the
// workgroup must call `find_runs` or `find_cuts`, and gets the same result.

// A bin or run, the mass before it and the mass up to its end.
struct BinMass {
    bin: u32,
    before: vec2<u32>,
    through: vec2<u32>,
}

struct Cuts {
    total: vec2<u32>,
    // The mass that top-p keeps at least.
    top_p: vec2<u32>,
    // Where top-p cuts, and where min-p does.
    top: BinMass,
    least: BinMass,
    // Where the drawn token is: the exact cuts decide in which of these bins.
    first: BinMass,
    last: BinMass,
}

// No bin is given.
const BY_MASS: u32 = 0xffffffffu;

// The masses up to the end of each run.
var<workgroup> run_through: array<vec2<u32>, BIN_RUNS>;
// The runs of the two bins that are searched for, then the bins.
var<workgroup> runs_found: array<u32, 2>;
var<workgroup> bins_found: array<BinMass, 2>;
var<workgroup> first_half: vec2<u32>;

fn load_mass(word: u32) -> vec2<u32> {
    return vec2<u32>(atomicLoad(&partials[word]), atomicLoad(&partials[word + 1u]));
}

// Fills `run_through`.
fn scan_runs(at: u32) {
    let through = scan(load_mass(at + BIN_RUN_MASS + 2u * lane));
    run_through[lane] = through;
    workgroupBarrier();
}

fn run_before(run: u32) -> vec2<u32> {
    return select(run_through[max(run, 1u) - 1u], vec2<u32>(), run == 0u);
}

fn is_reached(goal: vec2<u32>, before: vec2<u32>, through: vec2<u32>) -> bool {
    return less64(before, goal) && !less64(through, goal);
}

fn min64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, less64(a, b));
}

// The mass that top-p keeps at least.
fn top_p_goal(total: vec2<u32>, top_p: f32) -> vec2<u32> {
    return select(total, top_p_mass(total, top_p), top_p < 1.0);
}

fn least_bin(min_p: f32, per_unit: f32) -> u32 {
    return bin_at(-log(max(min_p, 1e-30)), per_unit);
}

// The least and the most mass at which the drawn token may be, if the cuts are somewhere in these bins or runs.
struct Goals {
    low: vec2<u32>,
    high: vec2<u32>,
}

fn drawn_goals(slot: SlotState, total: vec2<u32>, top: BinMass, least: BinMass, z: vec2<u32>) -> Goals {
    let one = vec2<u32>(1u, 0u);
    let by_top_p = select(total, add64(top.before, one), slot.top_p < 1.0);
    let by_min_p = select(total, select(least.before, one, all(least.before == vec2<u32>())), slot.min_p > 0.0);
    let most_by_top_p = select(total, top.through, slot.top_p < 1.0);
    let most_by_min_p = select(total, least.through, slot.min_p > 0.0);
    let low = random_mass(min64(by_top_p, by_min_p), z);
    let high = random_mass(min64(most_by_top_p, most_by_min_p), z);
    return Goals(add64(low, one), add64(high, one));
}

#if RUNS
struct Runs {
    top: u32,
    least: u32,
    first: u32,
    last: u32,
}

// The runs in which the bins of `find_cuts` are. `at`: the first word of the row's bins. `z`: the random number.
fn find_runs(at: u32, slot: SlotState, per_unit: f32, z: vec2<u32>) -> Runs {
    scan_runs(at);
    let total = run_through[BIN_RUNS - 1u];
    let before = run_before(lane);
    let through = run_through[lane];
    if (is_reached(top_p_goal(total, slot.top_p), before, through)) {
        bins_found[0] = BinMass(lane, before, through);
    }
    if (lane == least_bin(slot.min_p, per_unit) / BINS_OF_RUN) {
        bins_found[1] = BinMass(lane, before, through);
    }
    workgroupBarrier();
    let goals = drawn_goals(slot, total, bins_found[0], bins_found[1], z);
    if (is_reached(goals.low, before, through)) {
        runs_found[0] = lane;
    }
    if (is_reached(goals.high, before, through)) {
        runs_found[1] = lane;
    }
    workgroupBarrier();
    return Runs(bins_found[0].bin, bins_found[1].bin, runs_found[0], runs_found[1]);
}

// Whether the masses of a run's bins are needed.
fn is_needed(run: u32, runs: Runs, slot: SlotState) -> bool {
    return (run >= runs.first && run <= runs.last)
        || (slot.top_p < 1.0 && run == runs.top)
        || (slot.min_p > 0.0 && run == runs.least);
}
#else
// Finds in `bins_found` the bin in which the mass `first` is reached and the one in which `second` is or, unless that is
// BY_MASS, the bin `second_bin`. Each of the two has the invocations of a run's bins.
fn find_bins(at: u32, first: vec2<u32>, second: vec2<u32>, second_bin: u32) {
    let by_mass = second_bin == BY_MASS;
    if (lane == 0u && !by_mass) {
        runs_found[1] = second_bin / BINS_OF_RUN;
    }
    let run_from = run_before(lane);
    let run_to = run_through[lane];
    if (is_reached(first, run_from, run_to)) {
        runs_found[0] = lane;
    }
    if (by_mass && is_reached(second, run_from, run_to)) {
        runs_found[1] = lane;
    }
    workgroupBarrier();
    let half = lane / BINS_OF_RUN;
    let run = runs_found[min(half, 1u)];
    let bin = run * BINS_OF_RUN + lane % BINS_OF_RUN;
    var own = vec2<u32>();
    if (half < 2u) {
        own = load_mass(at + BIN_MASS + 2u * bin);
    }
    let sum = scan(own);
    if (lane == BINS_OF_RUN - 1u) {
        first_half = sum;
    }
    workgroupBarrier();
    let in_run = select(sum, subtract64(sum, first_half), half == 1u);
    let through = add64(run_before(run), in_run);
    let before = subtract64(through, own);
    let by_bin = half == 1u && !by_mass;
    let goal = select(first, second, half == 1u);
    if (half < 2u && select(is_reached(goal, before, through), bin == second_bin, by_bin)) {
        bins_found[half] = BinMass(bin, before, through);
    }
    workgroupBarrier();
}

// `at`: the first word of the row's bins. `z`: the random number.
fn find_cuts(at: u32, slot: SlotState, per_unit: f32, z: vec2<u32>) -> Cuts {
    scan_runs(at);
    let total = run_through[BIN_RUNS - 1u];
    let goal = top_p_goal(total, slot.top_p);
    find_bins(at, goal, vec2<u32>(), least_bin(slot.min_p, per_unit));
    let top = bins_found[0];
    let least = bins_found[1];
    workgroupBarrier();
    let goals = drawn_goals(slot, total, top, least, z);
    find_bins(at, goals.low, goals.high, BY_MASS);
    return Cuts(total, goal, top, least, bins_found[0], bins_found[1]);
}

// Whether the tokens of a bin decide a cut or the draw.
fn is_wanted(bin: u32, cuts: Cuts, slot: SlotState) -> bool {
    return (bin >= cuts.first.bin && bin <= cuts.last.bin)
        || (slot.top_p < 1.0 && bin == cuts.top.bin)
        || (slot.min_p > 0.0 && bin == cuts.least.bin);
}
#endif
