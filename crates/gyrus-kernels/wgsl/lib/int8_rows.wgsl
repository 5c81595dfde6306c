// Rows of int8 activations in the layout that mat-vecs read. Needs lib/int8.wgsl, Q_BINDING and Q_SCALES_BINDING.
//
//   q         [m, 2, blocks] vectors of sixteen int8: the first sixteen of all blocks, then the last sixteen
//   q_scales  [m, blocks] of two words: the scale (f32), and the sums of the first and last sixteen int8 (two i16)

@group(0) @binding(Q_BINDING) var<storage, read_write> q: array<vec4<u32>>;
@group(0) @binding(Q_SCALES_BINDING) var<storage, read_write> q_scales: array<vec2<u32>>;

// Writes word number `four` of a row. The first of a block's eight invocations also writes its scale and sums.
fn write_int8(quantized: Quantized, row: u32, four: u32, blocks: u32) {
    q[2u * row * blocks + int8_vector(four, blocks)][four & 3u] = quantized.word;
    if ((four & 7u) == 0u) {
        q_scales[row * blocks + four / 8u] = vec2<u32>(bitcast<u32>(quantized.scale), quantized.sums);
    }
}
