// Rows of bytes as a mat-vec wants them. Needs lib/int8.wgsl, Q_BINDING and Q_SCALES_BINDING.
//
//   q         [m, 2, blocks] vectors of sixteen signed bytes: of all blocks the first sixteen, then the last
//   q_scales  [m, blocks] of two words: the scale (f32), and the sums of the first and last sixteen bytes (i16)

@group(0) @binding(Q_BINDING) var<storage, read_write> q: array<vec4<u32>>;
@group(0) @binding(Q_SCALES_BINDING) var<storage, read_write> q_scales: array<vec2<u32>>;

// Writes the four elements number `four` of a row, and the first of eight invocations what belongs to all of a block.
fn write_int8(bytes: Bytes, row: u32, four: u32, blocks: u32) {
    q[2u * row * blocks + int8_vector(four, blocks)][four & 3u] = bytes.word;
    if ((four & 7u) == 0u) {
        q_scales[row * blocks + four / 8u] = vec2<u32>(bitcast<u32>(bytes.scale), bytes.sums);
    }
}
