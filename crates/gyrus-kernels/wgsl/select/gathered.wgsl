// The draw among the tokens that select_gather has gathered: those of the bins in which top-p and min-p cut, and in which
// the drawn token is. Sorted, they say where exactly. Sets `chosen`, or leaves it if too many were gathered.

fn row_word(word: u32) -> u32 {
    return partials[word / 4u][word % 4u];
}

fn row_mass(word: u32) -> vec2<u32> {
    return vec2<u32>(row_word(word), row_word(word + 1u));
}

// The mass of a candidate in bins `first` to `last` whose probability is at least this, else 0.
fn mass_in(i: u32, first: u32, last: u32, probability: f32, per_unit: f32) -> vec2<u32> {
    let distance = distance_to_max(candidates[i].x, max_logit, inverse);
    let bin = bin_at(distance, per_unit);
    let own = relative_probability(distance);
    return select(vec2<u32>(), mass(own), bin >= first && bin <= last && own >= probability);
}

// The mass of such candidates of the invocations before this one, and of all.
struct Sums {
    before: vec2<u32>,
    all: vec2<u32>,
}

fn sums_in(begin: u32, end: u32, first: u32, last: u32, probability: f32, per_unit: f32) -> Sums {
    var own = vec2<u32>();
    for (var i = begin; i < end; i += 1u) {
        own = add64(own, mass_in(i, first, last, probability, per_unit));
    }
    let through = scan(own);
    workgroupBarrier();
    if (lane == WORKGROUP - 1u) {
        broadcast_mass = through;
    }
    return Sums(subtract64(through, own), workgroupUniformLoad(&broadcast_mass));
}

// `at`: the first word of the row's bins.
fn draw_gathered(slot: SlotState, at: u32, z: vec2<u32>) {
    let count = row_word(at + BIN_GATHERED);
    if (count > MAX_GATHERED) {
        return;
    }
    let most = distance_to_max(row_word(at + BIN_MIN_KEY), max_logit, inverse);
    let per_unit = bins_per_unit(most);
    mass_scale = mass_scale_of(most);
    for (var i = lane; i < count; i += WORKGROUP) {
        let two = partials[(at + BIN_TOKENS) / 4u + i / 2u];
        candidates[i] = select(two.xy, two.zw, i % 2u == 1u);
    }
    workgroupBarrier();
    sort(count);
    let each = (count + WORKGROUP - 1u) / WORKGROUP;
    let begin = min(lane * each, count);
    let end = min(begin + each, count);
    var kept = row_mass(at + CUT_TOTAL);
    if (slot.top_p < 1.0) {
        let goal = row_mass(at + CUT_GOAL);
        let top = row_word(at + CUT_TOP);
        let of_top = sums_in(begin, end, top, top, 0.0, per_unit);
        var sum = add64(row_mass(at + CUT_TOP + 1u), of_top.before);
        for (var i = begin; i < end; i += 1u) {
            let next = add64(sum, mass_in(i, top, top, 0.0, per_unit));
            if (less64(sum, goal) && !less64(next, goal)) {
                broadcast_mass = next;
            }
            sum = next;
        }
        kept = workgroupUniformLoad(&broadcast_mass);
    }
    if (slot.min_p > 0.0) {
        let least = row_word(at + CUT_LEAST);
        let of_least = sums_in(begin, end, least, least, slot.min_p, per_unit);
        let by_min_p = add64(row_mass(at + CUT_LEAST + 1u), of_least.all);
        kept = select(kept, by_min_p, less64(by_min_p, kept));
    }
    let drawn_mass = random_mass(kept, z);
    let first = row_word(at + CUT_FIRST);
    let last = row_word(at + CUT_LAST);
    let of_drawn = sums_in(begin, end, first, last, 0.0, per_unit);
    var sum = add64(row_mass(at + CUT_FIRST + 1u), of_drawn.before);
    for (var i = begin; i < end; i += 1u) {
        let next = add64(sum, mass_in(i, first, last, 0.0, per_unit));
        if (!less64(drawn_mass, sum) && less64(drawn_mass, next)) {
            atomicStore(&chosen, candidates[i].y);
        }
        sum = next;
    }
}
