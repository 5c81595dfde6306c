// Activations as signed bytes, v ≈ scale·q in blocks of 32, scale the largest magnitude / 127; rounded to the nearest,
// ties to even. Eight neighbouring invocations take a block, four elements each. Needs lib/lanes.wgsl or
// lib/lanes_near.wgsl, and INT8_SUMS, whether sums of bytes are wanted. All invocations of a workgroup must call these
// together.

fn eight_max(value: u32, here: Member) -> u32 {
    var most = value;
#if SUBGROUPS
    if (is_near(8u, here)) {
        most = max(most, subgroupShuffleXor(most, 1u));
        most = max(most, subgroupShuffleXor(most, 2u));
        return max(most, subgroupShuffleXor(most, 4u));
    }
#endif
    most = max(most, neighbour(most, 1u, here));
    most = max(most, neighbour(most, 2u, here));
    return max(most, neighbour(most, 4u, here));
}

// Sums of two numbers, of sixteen bits each, as one word.
fn eight_pair_sum(pair: vec2<u32>, here: Member) -> u32 {
    var first = pair.x;
    var last = pair.y;
#if SUBGROUPS
    if (is_near(8u, here)) {
        var sum = select(last, first, (here.place & 4u) == 0u);
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        let other = subgroupShuffleXor(sum, 4u);
        let is_last = (here.place & 4u) != 0u;
        return (select(sum, other, is_last) & 0xffffu) | (select(other, sum, is_last) << 16u);
    }
#endif
    first += neighbour(first, 1u, here);
    first += neighbour(first, 2u, here);
    first += neighbour(first, 4u, here);
    last += neighbour(last, 1u, here);
    last += neighbour(last, 2u, here);
    last += neighbour(last, 4u, here);
    return (first & 0xffffu) | (last << 16u);
}

struct Bytes {
    // Four elements.
    word: u32,
    // Of the block, the same in all eight invocations.
    scale: f32,
    // Sums of the block's first and last sixteen bytes, two i16.
    sums: u32,
}

// Of four bytes and those of the seven neighbours.
fn int8_sums(q: vec4<i32>, here: Member) -> u32 {
    let sum = bitcast<u32>((q.x + q.y) + (q.z + q.w));
    let is_last = (here.place & 4u) != 0u;
    return eight_pair_sum(select(vec2<u32>(sum, 0u), vec2<u32>(0u, sum), is_last), here);
}

fn to_int8(v: vec4<f32>, here: Member) -> Bytes {
    // Magnitudes compare like their bits, and what is not a number is above all: it ends up in the scale and is seen.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var most = max(max(bits.x, bits.y), max(bits.z, bits.w));
    most = eight_max(most, here);
    let largest = bitcast<f32>(most);
    let inverse = select(0.0, 127.0 / largest, largest > 0.0);
    let q = vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    var sums = 0u;
#if INT8_SUMS
    sums = int8_sums(q, here);
#endif
    return Bytes(pack4xI8(q), largest / 127.0, sums);
}

// The sum of squares of a block, the same in all eight invocations.
fn block_squares(v: vec4<f32>, here: Member) -> f32 {
    var sum = dot(v, v);
#if SUBGROUPS
    if (is_near(8u, here)) {
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        return sum + subgroupShuffleXor(sum, 4u);
    }
#endif
    sum += neighbour_f32(sum, 1u, here);
    sum += neighbour_f32(sum, 2u, here);
    sum += neighbour_f32(sum, 4u, here);
    return sum;
}

// Where the word of four elements lies among the words of a row of `blocks` blocks: of all blocks the first sixteen
// bytes, then the last, so that invocations that take neighbouring blocks read neighbouring vectors.
fn int8_vector(four: u32, blocks: u32) -> u32 {
    return ((four >> 2u) & 1u) * blocks + (four >> 3u);
}
