// Quantises activations to int8: v ≈ scale·q in blocks of 32. The scale is the largest magnitude / 127; q is rounded to
// nearest, ties to even. Eight neighbouring invocations quantise a block, four elements each. Needs lib/lanes.wgsl or
// lib/lanes_subgroup32.wgsl, and INT8_SUMS (1: also sum the quantised values). All invocations of a workgroup must call
// these functions together.

fn max_over_8(value: u32, thread: Thread) -> u32 {
    var max_bits = value;
#if SUBGROUPS
    if (fits_subgroup(8u, thread)) {
        max_bits = max(max_bits, subgroupShuffleXor(max_bits, 1u));
        max_bits = max(max_bits, subgroupShuffleXor(max_bits, 2u));
        return max(max_bits, subgroupShuffleXor(max_bits, 4u));
    }
#endif
    max_bits = max(max_bits, shuffle_xor(max_bits, 1u, thread));
    max_bits = max(max_bits, shuffle_xor(max_bits, 2u, thread));
    return max(max_bits, shuffle_xor(max_bits, 4u, thread));
}

// Sums of two 16-bit integers over eight lanes, packed into one word.
fn pair_sum_over_8(pair: vec2<u32>, thread: Thread) -> u32 {
    var first = pair.x;
    var last = pair.y;
#if SUBGROUPS
    if (fits_subgroup(8u, thread)) {
        var sum = select(last, first, (thread.index & 4u) == 0u);
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        let other = subgroupShuffleXor(sum, 4u);
        let is_last = (thread.index & 4u) != 0u;
        return (select(sum, other, is_last) & 0xffffu) | (select(other, sum, is_last) << 16u);
    }
#endif
    first += shuffle_xor(first, 1u, thread);
    first += shuffle_xor(first, 2u, thread);
    first += shuffle_xor(first, 4u, thread);
    last += shuffle_xor(last, 1u, thread);
    last += shuffle_xor(last, 2u, thread);
    last += shuffle_xor(last, 4u, thread);
    return (first & 0xffffu) | (last << 16u);
}

struct Quantized {
    // Four int8.
    word: u32,
    // The scale of the block, the same in all eight invocations.
    scale: f32,
    // Sums of the block's first and last sixteen int8, two i16.
    sums: u32,
}

// Sums of the first and the last sixteen int8 of a block, from four of each of its eight invocations.
fn int8_sums(q: vec4<i32>, thread: Thread) -> u32 {
    let sum = bitcast<u32>((q.x + q.y) + (q.z + q.w));
    let is_last = (thread.index & 4u) != 0u;
    return pair_sum_over_8(select(vec2<u32>(sum, 0u), vec2<u32>(0u, sum), is_last), thread);
}

fn to_int8(v: vec4<f32>, thread: Thread) -> Quantized {
    // Magnitudes compare like their bits. NaN compares above every number, so it becomes the scale and is not hidden.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var max_bits = max(max(bits.x, bits.y), max(bits.z, bits.w));
    max_bits = max_over_8(max_bits, thread);
    let magnitude = bitcast<f32>(max_bits);
    let inverse = select(0.0, 127.0 / magnitude, magnitude > 0.0);
    let q = vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    var sums = 0u;
#if INT8_SUMS
    sums = int8_sums(q, thread);
#endif
    return Quantized(pack4xI8(q), magnitude / 127.0, sums);
}

// The sum of squares of a block of 32, the same in all eight invocations.
fn block_squares(v: vec4<f32>, thread: Thread) -> f32 {
    var sum = dot(v, v);
#if SUBGROUPS
    if (fits_subgroup(8u, thread)) {
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        return sum + subgroupShuffleXor(sum, 4u);
    }
#endif
    sum += shuffle_xor_f32(sum, 1u, thread);
    sum += shuffle_xor_f32(sum, 2u, thread);
    sum += shuffle_xor_f32(sum, 4u, thread);
    return sum;
}

// The vector that holds word number `four` of a row of `blocks` blocks. A row stores the first sixteen int8 of all
// blocks, then the last sixteen, so that invocations with neighbouring blocks read neighbouring vectors.
fn int8_vector(four: u32, blocks: u32) -> u32 {
    return ((four >> 2u) & 1u) * blocks + (four >> 3u);
}
