// Fragments of engine/flash_cooperative.wgsl without cooperative matrices. A lane of 32 has eight elements of a fragment's
// sums: half of row lane / 2. The other operands are read where they are staged.

// Queries, which are loaded once with cooperative matrices.
var<workgroup> queries: array<vec4<f16>, QUERIES * HEAD_STRIDE>;

struct Sums {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn store_sums(lane: u32, at: u32, sums: Sums) {
    let to = at + lane / 2u * KEY_STRIDE + lane % 2u * 2u;
    scores[to] = sums.low;
    scores[to + 1u] = sums.high;
}

fn load_sums(lane: u32, at: u32) -> Sums {
    let source = at + lane / 2u * KEY_STRIDE + lane % 2u * 2u;
    return Sums(scores[source], scores[source + 1u]);
}

fn score(query: u32, key: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < SIDE_VECTORS; i += 1u) {
        sum += dot(vec4<f32>(queries[query + i]), vec4<f32>(staged_keys[key + i]));
    }
    return sum;
}

// Adds products of 16 elements of queries and of keys, both in rows.
fn times_keys(lane: u32, at_queries: u32, at_keys: u32, sums: Sums) -> Sums {
    let query = at_queries + lane / 2u * HEAD_STRIDE;
    let key = at_keys + lane % 2u * 8u * HEAD_STRIDE;
    let low = vec4<f32>(
        score(query, key), score(query, key + HEAD_STRIDE), score(query, key + 2u * HEAD_STRIDE),
        score(query, key + 3u * HEAD_STRIDE));
    let high = vec4<f32>(
        score(query, key + 4u * HEAD_STRIDE), score(query, key + 5u * HEAD_STRIDE),
        score(query, key + 6u * HEAD_STRIDE), score(query, key + 7u * HEAD_STRIDE));
    return Sums(sums.low + low, sums.high + high);
}

// Adds products of 16 weights and the values of their keys.
fn times_values(lane: u32, at_weights: u32, at_values: u32, sums: Sums) -> Sums {
    var result = sums;
    for (var k = 0u; k < SIDE; k += 1u) {
        let weight = f32(left[at_weights + lane / 2u * KEY_STRIDE + k / 4u][k % 4u]);
        let value = at_values + k * HEAD_STRIDE + lane % 2u * 2u;
        result.low += weight * vec4<f32>(staged_values[value]);
        result.high += weight * vec4<f32>(staged_values[value + 1u]);
    }
    return result;
}
