// Finds the bins in which the cuts of a sampler and its drawn token are. Needs row_bins, and functions of mass.wgsl and
// random.wgsl. Every invocation of the workgroup must call `find_cuts`, and gets the same result.

// A bin, the mass before it and the mass up to its end.
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

var<workgroup> run_mass: array<vec2<u32>, BIN_RUNS>;
var<workgroup> bin_mass: array<vec2<u32>, BINS_OF_RUN>;

// Loads the masses of the bins of a run, a pair of words for each of the first invocations.
fn load_run(index: u32, at: u32, bin_run: u32) {
    workgroupBarrier();
    if (index < BINS_OF_RUN) {
        let word = at + BIN_MASS + 2u * (bin_run * BINS_OF_RUN + index);
        bin_mass[index] = vec2<u32>(atomicLoad(&row_bins[word]), atomicLoad(&row_bins[word + 1u]));
    }
    workgroupBarrier();
}

// The bin in which a mass is reached.
fn bin_at_mass(index: u32, at: u32, goal: vec2<u32>) -> BinMass {
    var before = vec2<u32>();
    var bin_run = 0u;
    for (; bin_run < BIN_RUNS - 1u; bin_run += 1u) {
        let next = add64(before, run_mass[bin_run]);
        if (!less64(next, goal)) {
            break;
        }
        before = next;
    }
    load_run(index, at, bin_run);
    var bin = 0u;
    for (; bin < BINS_OF_RUN - 1u; bin += 1u) {
        let next = add64(before, bin_mass[bin]);
        if (!less64(next, goal)) {
            break;
        }
        before = next;
    }
    return BinMass(bin_run * BINS_OF_RUN + bin, before, add64(before, bin_mass[bin]));
}

fn mass_at_bin(index: u32, at: u32, bin: u32) -> BinMass {
    var before = vec2<u32>();
    for (var bin_run = 0u; bin_run < bin / BINS_OF_RUN; bin_run += 1u) {
        before = add64(before, run_mass[bin_run]);
    }
    load_run(index, at, bin / BINS_OF_RUN);
    for (var i = 0u; i < bin % BINS_OF_RUN; i += 1u) {
        before = add64(before, bin_mass[i]);
    }
    return BinMass(bin, before, add64(before, bin_mass[bin % BINS_OF_RUN]));
}

fn min64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, less64(a, b));
}

// `index`: of the invocation. `at`: the row's first word in `bins`. `z`: the random number.
fn find_cuts(index: u32, at: u32, top_p: f32, min_p: f32, per_unit: f32, z: vec2<u32>) -> Cuts {
    let one = vec2<u32>(1u, 0u);
    workgroupBarrier();
    if (index < BIN_RUNS) {
        let word = at + BIN_RUN_MASS + 2u * index;
        run_mass[index] = vec2<u32>(atomicLoad(&row_bins[word]), atomicLoad(&row_bins[word + 1u]));
    }
    workgroupBarrier();
    var total = vec2<u32>();
    for (var i = 0u; i < BIN_RUNS; i += 1u) {
        total = add64(total, run_mass[i]);
    }
    let goal = select(total, top_p_mass(total, top_p), top_p < 1.0);
    let top = bin_at_mass(index, at, goal);
    let least = mass_at_bin(index, at, row_bin(-log(max(min_p, 1e-30)), per_unit));
    // The least and the most that may be kept.
    let by_top_p = select(total, add64(top.before, one), top_p < 1.0);
    let by_min_p = select(total, select(least.before, one, all(least.before == vec2<u32>())), min_p > 0.0);
    let most_by_top_p = select(total, top.through, top_p < 1.0);
    let most_by_min_p = select(total, least.through, min_p > 0.0);
    let low = random_mass(min64(by_top_p, by_min_p), z);
    let high = random_mass(min64(most_by_top_p, most_by_min_p), z);
    let first = bin_at_mass(index, at, add64(low, one));
    let last = bin_at_mass(index, at, add64(high, one));
    return Cuts(total, goal, top, least, first, last);
}

// Whether the tokens of a bin decide a cut or the draw.
fn is_wanted(bin: u32, cuts: Cuts, top_p: f32, min_p: f32) -> bool {
    return (bin >= cuts.first.bin && bin <= cuts.last.bin)
        || (top_p < 1.0 && bin == cuts.top.bin)
        || (min_p > 0.0 && bin == cuts.least.bin);
}
