// The draw over a whole row, where what is near the likeliest is not enough: a descent by eight bits at a time through
// the tokens in descending order, to the one at which a count or a mass is reached.
//
// The order is by the distance in units of temperature first, in fixed point, since that spreads tokens over bins; by
// the key's distance, where that was not enough to tell tokens apart; and by id. Most descents end after a few of its
// digits, when one token is left.

const LEVELS: u32 = 11u;

// The tokens that a descent is among, and what is before them.
struct Descent {
    // What they share of the order's words.
    prefix: vec3<u32>,
    count: u32,
    mass: vec2<u32>,
    before_count: u32,
    before_mass: vec2<u32>,
    // The token, if it is one.
    token: u32,
}

var<workgroup> descent: Descent;

// A token's place in the order: smaller is earlier.
fn order_of(key: u32, token: u32) -> vec3<u32> {
    // FAR in this fixed point is below 2^32.
    return vec3<u32>(u32(gap(key, most_value, inverse) * 134217728.0), most_key - key, token);
}

// Whether a token is among those that share the first `codebook_byte` digits: four of the first words each, three of the id.
fn is_among(order: vec3<u32>, codebook_byte: u32, prefix: vec3<u32>) -> bool {
    if (codebook_byte == 0u) {
        return true;
    }
    if (codebook_byte <= 4u) {
        return (order.x >> (32u - 8u * codebook_byte)) == prefix.x;
    }
    if (codebook_byte <= 8u) {
        return order.x == prefix.x && (order.y >> (64u - 8u * codebook_byte)) == prefix.y;
    }
    return all(order.xy == prefix.xy) && (order.z >> (88u - 8u * codebook_byte)) == prefix.z;
}

fn digit_of(order: vec3<u32>, codebook_byte: u32) -> u32 {
    if (codebook_byte < 4u) {
        return (order.x >> (24u - 8u * codebook_byte)) & 255u;
    }
    if (codebook_byte < 8u) {
        return (order.y >> (56u - 8u * codebook_byte)) & 255u;
    }
    return (order.z >> (80u - 8u * codebook_byte)) & 255u;
}

// The prefix with one more digit.
fn extended(prefix: vec3<u32>, codebook_byte: u32, digit: u32) -> vec3<u32> {
    if (codebook_byte < 4u) {
        return vec3<u32>((prefix.x << 8u) | digit, 0u, 0u);
    }
    if (codebook_byte < 8u) {
        return vec3<u32>(prefix.x, (prefix.y << 8u) | digit, 0u);
    }
    return vec3<u32>(prefix.xy, (prefix.z << 8u) | digit);
}

// Keys of four tokens WORKGROUP apart.
fn far_keys(token: u32) -> vec4<u32> {
    return keys_at(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u) * WORKGROUP);
}

fn mass_if(key: u32, likely: f32) -> vec2<u32> {
    let own = likelihood(gap(key, most_value, inverse));
    return select(vec2<u32>(), mass(own), own >= likely);
}

fn mass_if4(keys: vec4<u32>, likely: f32) -> vec2<u32> {
    return add64(
        add64(mass_if(keys.x, likely), mass_if(keys.y, likely)),
        add64(mass_if(keys.z, likely), mass_if(keys.w, likely)));
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
    for (var token = lane; token < params.vocab; token += 8u * WORKGROUP) {
        let low = far_keys(token);
        let high = far_keys(token + 4u * WORKGROUP);
        sum = add64(sum, add64(mass_if4(low, likely), mass_if4(high, likely)));
    }
    pour(sum);
    workgroupBarrier();
    if (lane == 0u) {
        told_mass = poured();
    }
    return workgroupUniformLoad(&told_mass);
}

// Adds a token to the bin of its digit: count, mass, and which it is, should it be alone.
fn count_digit(key: u32, token: u32, codebook_byte: u32, prefix: vec3<u32>) {
    if (key == NO_KEY) {
        return;
    }
    let order = order_of(key, token);
    if (is_among(order, codebook_byte, prefix)) {
        let bin = 4u * digit_of(order, codebook_byte);
        let own = mass_of(key);
        atomicAdd(&bins[bin], 1u);
        atomicStore(&bins[bin + 3u], token);
        if (any(own != vec2<u32>())) {
            let old = atomicAdd(&bins[bin + 1u], own.x);
            let high = own.y + select(0u, 1u, old + own.x < old);
            if (high > 0u) {
                atomicAdd(&bins[bin + 2u], high);
            }
        }
    }
}

fn count_digit4(keys: vec4<u32>, token: u32, codebook_byte: u32, prefix: vec3<u32>) {
    count_digit(keys.x, token, codebook_byte, prefix);
    count_digit(keys.y, token + WORKGROUP, codebook_byte, prefix);
    count_digit(keys.z, token + 2u * WORKGROUP, codebook_byte, prefix);
    count_digit(keys.w, token + 3u * WORKGROUP, codebook_byte, prefix);
}

fn count_digits(codebook_byte: u32, prefix: vec3<u32>) {
    for (var i = lane; i < BINS; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    for (var token = lane; token < params.vocab; token += 8u * WORKGROUP) {
        let low = far_keys(token);
        let high = far_keys(token + 4u * WORKGROUP);
        count_digit4(low, token, codebook_byte, prefix);
        count_digit4(high, token + 4u * WORKGROUP, codebook_byte, prefix);
    }
    workgroupBarrier();
}

// Goes down to the token at which `goal` is reached, by count or by mass: to none if there is less.
fn descend(by_count: bool, goal: vec2<u32>) -> Descent {
    workgroupBarrier();
    if (lane == 0u) {
        descent = Descent(vec3<u32>(), 0u, vec2<u32>(), 0u, vec2<u32>(), 0u);
    }
    var now = workgroupUniformLoad(&descent);
    for (var codebook_byte = 0u; codebook_byte < LEVELS && now.count != 1u; codebook_byte += 1u) {
        count_digits(codebook_byte, now.prefix);
        var count = 0u;
        var own = vec2<u32>();
        var token = 0u;
        if (lane < 256u) {
            count = atomicLoad(&bins[4u * lane]);
            own = vec2<u32>(atomicLoad(&bins[4u * lane + 1u]), atomicLoad(&bins[4u * lane + 2u]));
            token = atomicLoad(&bins[4u * lane + 3u]);
        }
        let count_upto = now.before_count + scan(vec2<u32>(count, 0u)).x;
        let mass_upto = add64(now.before_mass, scan(own));
        let mass_before = subtract64(mass_upto, own);
        let is_here = select(
            less64(mass_before, goal) && !less64(mass_upto, goal),
            count_upto - count < goal.x && count_upto >= goal.x,
            by_count);
        if (lane == 0u) {
            descent.count = 0u;
        }
        workgroupBarrier();
        if (lane < 256u && is_here) {
            let prefix = extended(now.prefix, codebook_byte, lane);
            descent = Descent(prefix, count, own, count_upto - count, mass_before, token);
        }
        now = workgroupUniformLoad(&descent);
        if (now.count == 0u) {
            break;
        }
    }
    return now;
}

fn far(row: u32, z: vec2<u32>) {
    let top_k = samplers[row].top_k;
    let top_p = samplers[row].top_p;
    let min_p = samplers[row].min_p;
    var total = mass_above(0.0);
    // A cut is a beginning of the order, so that its mass says all about it.
    if (top_k > 0u && top_k < params.vocab) {
        let last = descend(true, vec2<u32>(top_k, 0u));
        if (last.count > 0u) {
            total = add64(last.before_mass, last.mass);
        }
    }
    if (top_p < 1.0) {
        let last = descend(false, goal_of(total, top_p));
        total = add64(last.before_mass, last.mass);
    }
    if (min_p > 0.0) {
        let above = mass_above(min_p);
        if (less64(above, total)) {
            total = above;
        }
    }
    let last = descend(false, add64(share(total, z), vec2<u32>(1u, 0u)));
    if (lane == 0u) {
        atomicStore(&chosen, last.token);
    }
}
