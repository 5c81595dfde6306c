// The draw among the tokens near the likeliest: sets `chosen`, or leaves it where they are not enough.

// The token at a place of a chunk, in a run of its slice; beyond the vocabulary there is none.
fn chunk_token(chunk: u32, run: u32, place: u32) -> u32 {
    return token_at(chunk / CHUNKS_OF_SLICE, run, (chunk % CHUNKS_OF_SLICE) * CHUNK + place);
}

// Four of the chunks' largest keys; those that do not exist have none.
fn held_at(partial: u32, four: u32) -> vec4<u32> {
    let keys = partials[partial + min(four, CHUNKS / 4u - 1u)];
    return select(vec4<u32>(NO_KEY), keys, four < params.slices * CHUNKS_OF_SLICE / 4u);
}

fn tally(key: u32) {
    if (key != NO_KEY) {
        atomicAdd(&bins[step_of(key)], 1u);
    }
}

fn tally4(keys: vec4<u32>) {
    tally(keys.x);
    tally(keys.y);
    tally(keys.z);
    tally(keys.w);
}

// The step that the `wanted`th of the chunks' maxima has, counted from the largest; STEPS where there are fewer.
fn last_step(wanted: u32) -> u32 {
    tally4(held);
    tally4(held_further);
    if (lane == 0u) {
        told = STEPS;
    }
    workgroupBarrier();
    let each = (STEPS + WORKGROUP - 1u) / WORKGROUP;
    let first = lane * each;
    var count = 0u;
    for (var i = first; i < min(first + each, STEPS); i += 1u) {
        count += atomicLoad(&bins[i]);
    }
    let upto = scan(vec2<u32>(count, 0u)).x;
    if (upto >= wanted && upto - count < wanted) {
        var sum = upto - count;
        for (var i = first; i < min(first + each, STEPS); i += 1u) {
            sum += atomicLoad(&bins[i]);
            if (sum >= wanted) {
                told = i;
                break;
            }
        }
    }
    return workgroupUniformLoad(&told);
}

fn list(chunk: u32, key: u32, last: u32) {
    if (key != NO_KEY && step_of(key) <= last) {
        let at = atomicAdd(&found, 1u);
        if (at < BINS) {
            atomicStore(&bins[at], chunk);
        }
    }
}

fn list4(chunk: u32, keys: vec4<u32>, last: u32) {
    list(chunk, keys.x, last);
    list(chunk + 1u, keys.y, last);
    list(chunk + 2u, keys.z, last);
    list(chunk + 3u, keys.w, last);
}

// Chunks that have a token within the step, listed in `bins`: how many, or NONE if they have no room.
fn list_chunks(last: u32) -> u32 {
    list4(4u * lane, held, last);
    list4(4u * (lane + WORKGROUP), held_further, last);
    workgroupBarrier();
    if (lane == 0u) {
        let listed = atomicLoad(&found);
        told = select(listed, NONE, listed > BINS);
        atomicStore(&found, 0u);
    }
    return workgroupUniformLoad(&told);
}

fn collect(token: u32, key: u32, last: u32) {
    if (key != NO_KEY && step_of(key) <= last) {
        let at = atomicAdd(&found, 1u);
        if (at < CANDIDATES) {
            candidates[at] = vec2<u32>(key, token);
        }
    }
}

fn collect4(at: vec4<u32>, keys: vec4<u32>, last: u32) {
    collect(at.x, keys.x, last);
    collect(at.y, keys.y, last);
    collect(at.z, keys.z, last);
    collect(at.w, keys.w, last);
}

// Tokens of the listed chunks within the step, in any order: how many, or NONE if they have no room.
fn gather(listed: u32, last: u32) -> u32 {
    for (var i = lane; i < listed * CHUNK; i += WORKGROUP) {
        let chunk = atomicLoad(&bins[i / CHUNK]);
        for (var run = 0u; run < params.each; run += 8u) {
            let at = token_indices(chunk_token(chunk, run, i % CHUNK));
            let low = keys_at(at.low);
            let high = keys_at(at.high);
            collect4(at.low, low, last);
            collect4(at.high, high, last);
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        let gathered = atomicLoad(&found);
        told = select(gathered, NONE, gathered > CANDIDATES);
    }
    return workgroupUniformLoad(&told);
}

// Sorts the candidates, each by the number of those before it.
fn sort(count: u32) {
    var own: array<vec2<u32>, OWNED>;
    var ranks: array<u32, OWNED>;
    for (var i = 0u; i < OWNED; i += 1u) {
        if (i * WORKGROUP + lane < count) {
            let mine = candidates[i * WORKGROUP + lane];
            var rank = 0u;
            for (var j = 0u; j < count; j += 1u) {
                let other = candidates[j];
                let is_before = other.x > mine.x || (other.x == mine.x && other.y < mine.y);
                rank += select(0u, 1u, is_before);
            }
            own[i] = mine;
            ranks[i] = rank;
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWNED; i += 1u) {
        if (i * WORKGROUP + lane < count) {
            candidates[ranks[i]] = own[i];
        }
    }
    workgroupBarrier();
}

// The sum of probabilities over the whole row, of the slices' sums.
fn whole_mass(partial: u32) -> vec2<u32> {
    if (lane < params.slices) {
        let two = partials[partial + (CHUNKS + 2u * lane) / 4u];
        let slice = select(two.xy, two.zw, lane % 2u == 1u);
        pour(mass(bitcast<f32>(slice.y) * likelihood(gap(slice.x, most_value, inverse))));
    }
    workgroupBarrier();
    if (lane == 0u) {
        told_mass = poured();
    }
    return workgroupUniformLoad(&told_mass);
}

fn near(row: u32, partial: u32, wide: bool, z: vec2<u32>) {
    let top_k = samplers[row].top_k;
    let top_p = samplers[row].top_p;
    let min_p = samplers[row].min_p;
    let last = last_step(select(top_k, NEAR, wide));
    let listed = list_chunks(last);
    if (listed == NONE) {
        return;
    }
    let gathered = gather(listed, last);
    if (gathered == NONE) {
        return;
    }
    sort(gathered);
    let count = select(min(gathered, top_k), gathered, wide);
    // Whether no token is missing that the sampler keeps.
    let whole = !wide || last == STEPS;
    let each = (count + WORKGROUP - 1u) / WORKGROUP;
    let first = lane * each;
    let end = min(first + each, count);
    var own = vec2<u32>();
    for (var i = first; i < end; i += 1u) {
        own = add64(own, mass_of(candidates[i].x));
    }
    let upto = scan(own);
    let before = subtract64(upto, own);
    workgroupBarrier();
    if (lane == WORKGROUP - 1u) {
        told_mass = upto;
    }
    if (lane == 0u) {
        atomicStore(&found, select(NONE, count, whole));
    }
    var total = workgroupUniformLoad(&told_mass);
    if (!whole) {
        total = whole_mass(partial);
    }
    let goal = goal_of(total, top_p);
    var sum = before;
    for (var i = first; i < end; i += 1u) {
        let likely = likelihood(gap(candidates[i].x, most_value, inverse));
        let next = add64(sum, mass(likely));
        if (top_p < 1.0 && less64(sum, goal) && !less64(next, goal)) {
            atomicMin(&found, i + 1u);
        }
        if (likely < min_p) {
            atomicMin(&found, max(i, 1u));
        }
        sum = next;
    }
    workgroupBarrier();
    let kept = atomicLoad(&found);
    if (kept != NONE) {
        sum = before;
        for (var i = first; i < end; i += 1u) {
            sum = add64(sum, mass_of(candidates[i].x));
            if (i + 1u == kept) {
                told_mass = sum;
            }
        }
    } else if (lane == 0u) {
        // Nothing was cut among these: all are drawn from, or those are missing that are cut.
        told_mass = select(total, vec2<u32>(), top_p < 1.0 || min_p > 0.0);
    }
    let drawn = workgroupUniformLoad(&told_mass);
    if (all(drawn == vec2<u32>())) {
        return;
    }
    let goal_drawn = share(drawn, z);
    sum = before;
    for (var i = first; i < min(end, kept); i += 1u) {
        let next = add64(sum, mass_of(candidates[i].x));
        if (!less64(goal_drawn, sum) && less64(goal_drawn, next)) {
            atomicStore(&chosen, candidates[i].y);
        }
        sum = next;
    }
}
