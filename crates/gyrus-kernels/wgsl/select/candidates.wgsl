// The draw among the candidates, the tokens with the largest logits, for a small top-k. Sets `chosen`, or leaves it if too
// many logits are equal.

// The token at an offset of a chunk, in a run of its slice. It may be beyond the vocabulary.
fn chunk_token(chunk: u32, run: u32, offset: u32) -> u32 {
    return token_at(chunk / CHUNKS_OF_SLICE, run, (chunk % CHUNKS_OF_SLICE) * CHUNK + offset);
}

// The largest keys of four chunks, NO_KEY for chunks that do not exist.
fn load_chunk_max(partial: u32, four: u32) -> vec4<u32> {
    let keys = partials[partial + min(four, CHUNKS / 4u - 1u)];
    return select(vec4<u32>(NO_KEY), keys, four < params.slices * CHUNKS_OF_SLICE / 4u);
}

fn count_key(key: u32) {
    if (key != NO_KEY) {
        atomicAdd(&bins[bin_of(key)], 1u);
    }
}

fn count_keys4(keys: vec4<u32>) {
    count_key(keys.x);
    count_key(keys.y);
    count_key(keys.z);
    count_key(keys.w);
}

// The distance bin of the `wanted`-th largest of the chunks' maxima; DISTANCE_BINS if there are fewer chunks.
fn last_bin_of(wanted: u32) -> u32 {
    count_keys4(chunk_max);
    count_keys4(chunk_max_high);
    if (lane == 0u) {
        broadcast = DISTANCE_BINS;
    }
    workgroupBarrier();
    let each = (DISTANCE_BINS + WORKGROUP - 1u) / WORKGROUP;
    let first = lane * each;
    var count = 0u;
    for (var i = first; i < min(first + each, DISTANCE_BINS); i += 1u) {
        count += atomicLoad(&bins[i]);
    }
    let prefix_sum = scan(vec2<u32>(count, 0u)).x;
    if (prefix_sum >= wanted && prefix_sum - count < wanted) {
        var sum = prefix_sum - count;
        for (var i = first; i < min(first + each, DISTANCE_BINS); i += 1u) {
            sum += atomicLoad(&bins[i]);
            if (sum >= wanted) {
                broadcast = i;
                break;
            }
        }
    }
    return workgroupUniformLoad(&broadcast);
}

fn list(chunk: u32, key: u32, last: u32) {
    if (key != NO_KEY && bin_of(key) <= last) {
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

// Lists in `bins` the chunks that have a token up to bin `last`. Returns their number, or NONE if the list overflows.
fn list_chunks(last: u32) -> u32 {
    list4(4u * lane, chunk_max, last);
    list4(4u * (lane + WORKGROUP), chunk_max_high, last);
    workgroupBarrier();
    if (lane == 0u) {
        let listed = atomicLoad(&found);
        broadcast = select(listed, NONE, listed > BINS);
        atomicStore(&found, 0u);
    }
    return workgroupUniformLoad(&broadcast);
}

fn collect(token: u32, key: u32, last: u32) {
    if (key != NO_KEY && bin_of(key) <= last) {
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

// Collects the tokens of the listed chunks up to bin `last`, in any order. Returns their number, or NONE if the buffer
// overflows.
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
        broadcast = select(gathered, NONE, gathered > CANDIDATES);
    }
    return workgroupUniformLoad(&broadcast);
}

fn draw_candidates(slot: SlotState, z: vec2<u32>) {
    let last = last_bin_of(slot.top_k);
    let listed = list_chunks(last);
    if (listed == NONE) {
        return;
    }
    let gathered = gather(listed, last);
    if (gathered == NONE) {
        return;
    }
    sort(gathered);
    let count = min(gathered, slot.top_k);
    let each = (count + WORKGROUP - 1u) / WORKGROUP;
    let first = lane * each;
    let end = min(first + each, count);
    var own = vec2<u32>();
    for (var i = first; i < end; i += 1u) {
        own = add64(own, mass_of(candidates[i].x));
    }
    let prefix_sum = scan(own);
    let before = subtract64(prefix_sum, own);
    workgroupBarrier();
    if (lane == WORKGROUP - 1u) {
        broadcast_mass = prefix_sum;
    }
    if (lane == 0u) {
        atomicStore(&found, count);
    }
    let target_mass = top_p_mass(workgroupUniformLoad(&broadcast_mass), slot.top_p);
    var sum = before;
    for (var i = first; i < end; i += 1u) {
        let probability = relative_probability(distance_to_max(candidates[i].x, max_logit, inverse));
        let next = add64(sum, mass(probability));
        if (slot.top_p < 1.0 && less64(sum, target_mass) && !less64(next, target_mass)) {
            atomicMin(&found, i + 1u);
        }
        if (probability < slot.min_p) {
            atomicMin(&found, max(i, 1u));
        }
        sum = next;
    }
    workgroupBarrier();
    let kept = atomicLoad(&found);
    sum = before;
    for (var i = first; i < end; i += 1u) {
        sum = add64(sum, mass_of(candidates[i].x));
        if (i + 1u == kept) {
            broadcast_mass = sum;
        }
    }
    let drawn_mass = random_mass(workgroupUniformLoad(&broadcast_mass), z);
    sum = before;
    for (var i = first; i < min(end, kept); i += 1u) {
        let next = add64(sum, mass_of(candidates[i].x));
        if (!less64(drawn_mass, sum) && less64(drawn_mass, next)) {
            atomicStore(&chosen, candidates[i].y);
        }
        sum = next;
    }
}
