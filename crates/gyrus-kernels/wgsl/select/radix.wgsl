// The draw over a whole row, if the candidates do not suffice: a radix select, eight bits a pass, that descends the
// tokens in descending order to the one at which a count or a mass is reached.
//
// The order is by distance from the largest logit in units of temperature first, in fixed point, since that spreads
// tokens over the bins; then by the distance of keys, for tokens that the first cannot tell apart; then by id. Most
// descents end after a few digits, when one token is left.

const LEVELS: u32 = 11u;

// The tokens that share a prefix of digits, and the count and mass of those before them.
struct Descent {
    // The common prefix of their sort keys.
    prefix: vec3<u32>,
    count: u32,
    mass: vec2<u32>,
    count_before: u32,
    mass_before: vec2<u32>,
    // The token, if it is the only one.
    token: u32,
}

var<workgroup> descent: Descent;

// A token's sort key: smaller is earlier.
fn order_of(key: u32, token: u32) -> vec3<u32> {
    // MAX_DISTANCE in this fixed point is below 2^32.
    return vec3<u32>(u32(distance_to_max(key, max_logit, inverse) * 134217728.0), max_key - key, token);
}

// Whether a sort key begins with the first `level` digits: four digits for each of the first two words, three for the
// id.
fn is_among(order: vec3<u32>, level: u32, prefix: vec3<u32>) -> bool {
    if (level == 0u) {
        return true;
    }
    if (level <= 4u) {
        return (order.x >> (32u - 8u * level)) == prefix.x;
    }
    if (level <= 8u) {
        return order.x == prefix.x && (order.y >> (64u - 8u * level)) == prefix.y;
    }
    return all(order.xy == prefix.xy) && (order.z >> (88u - 8u * level)) == prefix.z;
}

fn digit_of(order: vec3<u32>, level: u32) -> u32 {
    if (level < 4u) {
        return (order.x >> (24u - 8u * level)) & 255u;
    }
    if (level < 8u) {
        return (order.y >> (56u - 8u * level)) & 255u;
    }
    return (order.z >> (80u - 8u * level)) & 255u;
}

// The prefix with one more digit.
fn extended(prefix: vec3<u32>, level: u32, digit: u32) -> vec3<u32> {
    if (level < 4u) {
        return vec3<u32>((prefix.x << 8u) | digit, 0u, 0u);
    }
    if (level < 8u) {
        return vec3<u32>(prefix.x, (prefix.y << 8u) | digit, 0u);
    }
    return vec3<u32>(prefix.xy, (prefix.z << 8u) | digit);
}

// Keys of four tokens WORKGROUP apart.
fn keys_apart(token: u32) -> vec4<u32> {
    return keys_at(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u) * WORKGROUP);
}

fn mass_if(key: u32, probability: f32) -> vec2<u32> {
    let own = relative_probability(distance_to_max(key, max_logit, inverse));
    return select(vec2<u32>(), mass(own), own >= probability);
}

fn mass_if4(keys: vec4<u32>, probability: f32) -> vec2<u32> {
    return add64(
        add64(mass_if(keys.x, probability), mass_if(keys.y, probability)),
        add64(mass_if(keys.z, probability), mass_if(keys.w, probability)));
}

// The mass of all tokens whose relative probability is at least this.
fn mass_above(probability: f32) -> vec2<u32> {
    workgroupBarrier();
    if (lane == 0u) {
        atomicStore(&sum_low, 0u);
        atomicStore(&sum_high, 0u);
    }
    workgroupBarrier();
    var sum = vec2<u32>();
    for (var token = lane; token < params.vocab; token += 8u * WORKGROUP) {
        let low = keys_apart(token);
        let high = keys_apart(token + 4u * WORKGROUP);
        sum = add64(sum, add64(mass_if4(low, probability), mass_if4(high, probability)));
    }
    add_shared(sum);
    workgroupBarrier();
    if (lane == 0u) {
        broadcast_mass = shared_sum();
    }
    return workgroupUniformLoad(&broadcast_mass);
}

// Adds a token to the bin of its digit: count, mass, and its id in case it is the only one.
fn count_digit(key: u32, token: u32, level: u32, prefix: vec3<u32>) {
    if (key == NO_KEY) {
        return;
    }
    let order = order_of(key, token);
    if (is_among(order, level, prefix)) {
        let bin = 4u * digit_of(order, level);
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

fn count_digit4(keys: vec4<u32>, token: u32, level: u32, prefix: vec3<u32>) {
    count_digit(keys.x, token, level, prefix);
    count_digit(keys.y, token + WORKGROUP, level, prefix);
    count_digit(keys.z, token + 2u * WORKGROUP, level, prefix);
    count_digit(keys.w, token + 3u * WORKGROUP, level, prefix);
}

fn count_digits(level: u32, prefix: vec3<u32>) {
    for (var i = lane; i < BINS; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    for (var token = lane; token < params.vocab; token += 8u * WORKGROUP) {
        let low = keys_apart(token);
        let high = keys_apart(token + 4u * WORKGROUP);
        count_digit4(low, token, level, prefix);
        count_digit4(high, token + 4u * WORKGROUP, level, prefix);
    }
    workgroupBarrier();
}

// Descends to the token at which `target_mass` is reached, by count or by mass. The count is 0 if the row has less.
fn descend(by_count: bool, target_mass: vec2<u32>) -> Descent {
    workgroupBarrier();
    if (lane == 0u) {
        descent = Descent(vec3<u32>(), 0u, vec2<u32>(), 0u, vec2<u32>(), 0u);
    }
    var node = workgroupUniformLoad(&descent);
    for (var level = 0u; level < LEVELS && node.count != 1u; level += 1u) {
        count_digits(level, node.prefix);
        var count = 0u;
        var own = vec2<u32>();
        var token = 0u;
        if (lane < 256u) {
            count = atomicLoad(&bins[4u * lane]);
            own = vec2<u32>(atomicLoad(&bins[4u * lane + 1u]), atomicLoad(&bins[4u * lane + 2u]));
            token = atomicLoad(&bins[4u * lane + 3u]);
        }
        let count_through = node.count_before + scan(vec2<u32>(count, 0u)).x;
        let mass_through = add64(node.mass_before, scan(own));
        let mass_below = subtract64(mass_through, own);
        let contains_goal = select(
            less64(mass_below, target_mass) && !less64(mass_through, target_mass),
            count_through - count < target_mass.x && count_through >= target_mass.x,
            by_count);
        if (lane == 0u) {
            descent.count = 0u;
        }
        workgroupBarrier();
        if (lane < 256u && contains_goal) {
            let prefix = extended(node.prefix, level, lane);
            descent = Descent(prefix, count, own, count_through - count, mass_below, token);
        }
        node = workgroupUniformLoad(&descent);
        if (node.count == 0u) {
            break;
        }
    }
    return node;
}

fn draw_row(slot: SlotState, z: vec2<u32>) {
    let top_k = slot.top_k;
    let top_p = slot.top_p;
    let min_p = slot.min_p;
    var total = mass_above(0.0);
    // A cut is a prefix of the order, so that its mass describes it completely.
    if (top_k > 0u && top_k < params.vocab) {
        let last = descend(true, vec2<u32>(top_k, 0u));
        if (last.count > 0u) {
            total = add64(last.mass_before, last.mass);
        }
    }
    if (top_p < 1.0) {
        let last = descend(false, top_p_mass(total, top_p));
        total = add64(last.mass_before, last.mass);
    }
    if (min_p > 0.0) {
        let above = mass_above(min_p);
        if (less64(above, total)) {
            total = above;
        }
    }
    let last = descend(false, add64(random_mass(total, z), vec2<u32>(1u, 0u)));
    if (lane == 0u) {
        atomicStore(&chosen, last.token);
    }
}
