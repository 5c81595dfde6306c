// Activations as signed bytes, v ≈ scale·q in blocks of 32, scale the largest magnitude / 127; rounded to the nearest,
// ties to even. Eight neighbouring invocations take a block, four elements each. Needs lib/lanes.wgsl and BYTE_SUMS,
// whether sums of bytes are wanted. All invocations of a workgroup must call these together.

struct Bytes {
    // Four elements.
    word: u32,
    // Of the block, the same in all eight invocations.
    scale: f32,
    // Sums of the block's first and last sixteen bytes, two i16.
    sums: u32,
}

fn to_bytes(v: vec4<f32>, here: Member) -> Bytes {
    // Magnitudes compare like their bits, and what is not a number is above all: it ends up in the scale and is seen.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var most = max(max(bits.x, bits.y), max(bits.z, bits.w));
    most = max(most, neighbour(most, 1u, here));
    most = max(most, neighbour(most, 2u, here));
    most = max(most, neighbour(most, 4u, here));
    let largest = bitcast<f32>(most);
    let inverse = select(0.0, 127.0 / largest, largest > 0.0);
    let q = vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    var sums = 0u;
#if BYTE_SUMS
    var sum = bitcast<u32>((q.x + q.y) + (q.z + q.w));
    sum += neighbour(sum, 1u, here);
    sum += neighbour(sum, 2u, here);
    let other = neighbour(sum, 4u, here);
    let is_last = (here.place & 4u) != 0u;
    sums = (select(sum, other, is_last) & 0xffffu) | (select(other, sum, is_last) << 16u);
#endif
    return Bytes(pack4xI8(q), largest / 127.0, sums);
}

// The sum of squares of a block, the same in all eight invocations.
fn block_squares(v: vec4<f32>, here: Member) -> f32 {
    var sum = dot(v, v);
    sum += neighbour_f32(sum, 1u, here);
    sum += neighbour_f32(sum, 2u, here);
    sum += neighbour_f32(sum, 4u, here);
    return sum;
}

// Where the word of four elements lies among the words of a row of `blocks` blocks: of all blocks the first sixteen
// bytes, then the last, so that invocations that take neighbouring blocks read neighbouring vectors.
fn byte_vector(four: u32, blocks: u32) -> u32 {
    return ((four >> 2u) & 1u) * blocks + (four >> 3u);
}
