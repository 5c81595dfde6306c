// The draw over a whole row, where what is near the likeliest is not enough: a descent by eight bits at a time through
// the tokens in descending order, to the one at which a count or a mass is reached.
//
// The order is by the distance in units of temperature first, in fixed point, since that spreads tokens over bins; it
// ends in the key's distance, where that was not enough to tell tokens apart, and in ids.

// Descents end after the two words of an order.
const LEVELS: u32 = 8u;

// The tokens that a descent is among, and what is before them.
struct Descent {
    // How many bits of the order they share, in units of eight, and those bits.
    level: u32,
    prefix: vec2<u32>,
    count: u32,
    mass: vec2<u32>,
    before_count: u32,
    before_mass: vec2<u32>,
}

var<workgroup> descent: Descent;

// Both words of a token's place in the order: smaller is likelier.
fn order_of(key: u32) -> vec2<u32> {
    // FAR in this fixed point is below 2^32.
    return vec2<u32>(u32(gap(key, most_value, inverse) * 134217728.0), most_key - key);
}

// Whether a token is among those that share the first `level` digits.
fn is_among(order: vec2<u32>, level: u32, prefix: vec2<u32>) -> bool {
    if (level == 0u) {
        return true;
    }
    if (level <= 4u) {
        return (order.x >> (32u - 8u * level)) == prefix.x;
    }
    return order.x == prefix.x && (order.y >> (64u - 8u * level)) == prefix.y;
}

fn digit_of(order: vec2<u32>, level: u32) -> u32 {
    if (level < 4u) {
        return (order.x >> (24u - 8u * level)) & 255u;
    }
    return (order.y >> (56u - 8u * level)) & 255u;
}

// The mass of all tokens that are at least so likely.
fn mass_above(likely: f32) -> vec2<u32> {
    workgroupBarrier();
    if (lane == 0u) {
        atomicStore(&sum_low, 0u);
        atomicStore(&sum_high, 0u);
    }
    workgroupBarrier();
    var sum = vec2<u32>();
    for (var token = lane; token < params.vocab; token += WORKGROUP) {
        let own = likelihood(gap(key_of(logits[base + token]), most_value, inverse));
        if (own >= likely) {
            sum = add64(sum, mass(own));
        }
    }
    pour(sum);
    workgroupBarrier();
    if (lane == 0u) {
        told_mass = poured();
    }
    return workgroupUniformLoad(&told_mass);
}

fn count_digits(level: u32, prefix: vec2<u32>) {
    for (var i = lane; i < BINS; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    for (var token = lane; token < params.vocab; token += WORKGROUP) {
        let key = key_of(logits[base + token]);
        if (key != NO_KEY) {
            let order = order_of(key);
            if (is_among(order, level, prefix)) {
                let bin = 3u * digit_of(order, level);
                let own = mass_of(key);
                atomicAdd(&bins[bin], 1u);
                if (any(own != vec2<u32>())) {
                    let old = atomicAdd(&bins[bin + 1u], own.x);
                    let high = own.y + select(0u, 1u, old + own.x < old);
                    if (high > 0u) {
                        atomicAdd(&bins[bin + 2u], high);
                    }
                }
            }
        }
    }
    workgroupBarrier();
}

// Goes down to the token at which `goal` is reached, by count or by mass, or to several that are equal.
fn descend(by_count: bool, goal: vec2<u32>) -> Descent {
    workgroupBarrier();
    if (lane == 0u) {
        descent = Descent(0u, vec2<u32>(), 0u, vec2<u32>(), 0u, vec2<u32>());
    }
    var now = workgroupUniformLoad(&descent);
    for (var level = 0u; level < LEVELS && now.count != 1u; level += 1u) {
        count_digits(level, now.prefix);
        var count = 0u;
        var own = vec2<u32>();
        if (lane < 256u) {
            count = atomicLoad(&bins[3u * lane]);
            own = vec2<u32>(atomicLoad(&bins[3u * lane + 1u]), atomicLoad(&bins[3u * lane + 2u]));
        }
        let counts_upto = now.before_count + scan(vec2<u32>(count, 0u)).x;
        let mass_upto = add64(now.before_mass, scan(own));
        let mass_before =
            vec2<u32>(mass_upto.x - own.x, mass_upto.y - own.y - select(0u, 1u, mass_upto.x < own.x));
        let is_here = select(
            less64(mass_before, goal) && !less64(mass_upto, goal),
            counts_upto - count < goal.x && counts_upto >= goal.x,
            by_count);
        if (lane == 0u) {
            descent.count = 0u;
        }
        workgroupBarrier();
        if (lane < 256u && is_here) {
            var prefix = vec2<u32>((now.prefix.x << 8u) | lane, 0u);
            if (level >= 4u) {
                prefix = vec2<u32>(now.prefix.x, (now.prefix.y << 8u) | lane);
            }
            descent = Descent(level + 1u, prefix, count, own, counts_upto - count, mass_before);
        }
        now = workgroupUniformLoad(&descent);
        if (now.count == 0u) {
            // There is less than the goal.
            break;
        }
    }
    return now;
}

// How many of the equal tokens of a descent are needed to reach the mass.
fn needed(at: Descent, goal: vec2<u32>) -> u32 {
    if (at.count <= 1u) {
        return 1u;
    }
    let one = mass_of(most_key - at.prefix.y);
    var low = 1u;
    var high = at.count;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (less64(add64(at.before_mass, multiply64(one, vec2<u32>(middle, 0u))), goal)) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// The mass up to the `number`th of the tokens of a descent.
fn mass_upto_of(at: Descent, number: u32) -> vec2<u32> {
    if (at.count <= 1u) {
        return add64(at.before_mass, at.mass);
    }
    let one = mass_of(most_key - at.prefix.y);
    return add64(at.before_mass, multiply64(one, vec2<u32>(number, 0u)));
}

// Chooses the `number`th by id of the tokens of a descent.
fn pick(at: Descent, number: u32) {
    let each = (params.vocab + WORKGROUP - 1u) / WORKGROUP;
    let first = min(lane * each, params.vocab);
    let end = min(first + each, params.vocab);
    var count = 0u;
    for (var token = first; token < end; token += 1u) {
        let key = key_of(logits[base + token]);
        if (key != NO_KEY && is_among(order_of(key), at.level, at.prefix)) {
            count += 1u;
        }
    }
    let upto = scan(vec2<u32>(count, 0u)).x;
    var before = upto - count;
    if (before < number && number <= upto) {
        for (var token = first; token < end; token += 1u) {
            let key = key_of(logits[base + token]);
            if (key != NO_KEY && is_among(order_of(key), at.level, at.prefix)) {
                before += 1u;
                if (before == number) {
                    atomicStore(&chosen, token);
                }
            }
        }
    }
}

fn far(row: u32, z: vec2<u32>) {
    let top_k = samplers[row].top_k;
    let top_p = samplers[row].top_p;
    let min_p = samplers[row].min_p;
    var total = mass_above(0.0);
    if (top_k > 0u && top_k < params.vocab) {
        let last = descend(true, vec2<u32>(top_k, 0u));
        if (last.count > 0u) {
            total = mass_upto_of(last, top_k - last.before_count);
        }
    }
    if (top_p < 1.0) {
        let goal = goal_of(total, top_p);
        let last = descend(false, goal);
        if (last.count > 0u) {
            total = mass_upto_of(last, needed(last, goal));
        }
    }
    if (min_p > 0.0) {
        let above = mass_above(min_p);
        if (less64(above, total)) {
            total = above;
        }
    }
    let goal = add64(share(total, z), vec2<u32>(1u, 0u));
    let last = descend(false, goal);
    pick(last, needed(last, goal));
}
