// matvec: y (+)= W·x for few rows of int8 activations, with a fused prologue and epilogue.
//
//   0  quants    the weight matrix [n, K] in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has high bits
//   2  scales    likewise
//   3  x         INPUT int8: [m, 2, K / 32] vectors of sixteen int8, as quantize writes them.
//                INPUT f32, norm: [rows, K] f32. INPUT merge: the splits of attention of K / HEAD_DIM heads
//                (lib/merge.wgsl)
//   4  x_scales  INPUT int8: [m, K / 32] as quantize writes them. INPUT norm: the norm's weight, [K] f32.
//                INPUT merge: rows, [1] (position, first entry in block_table); absent if POSITION is 1 and the
//                position
//                is a parameter
//   5  y         [m, y_stride] f32: n columns from y_offset on are written; n / 2 with a GATE
//   6  params    MatVecParams (immediates where the device has them)
//   7  factors   INPUT int8 with NORM: [m] f32, 1 / rms of the rows, as quantize writes them
//   8  routes    EXPERTS: [rows, 2 * USED] f32, the experts of each row (lib/experts.wgsl)
//   9  biases    BIAS: [rows of the matrix] f32
//
// EXPERTS each: the matrix is that of EXPERT_COUNT experts (lib/expert_rows.wgsl), and row m of y is slot m % USED of row
// m / USED; with SHARED x has a row for all slots of a row, otherwise a row a slot. EXPERTS sum: y = Σ weight·W[expert]·x
// over the slots of a row. It is one product: K is that of all slots, and block b of x belongs to slot
// b / EXPERT_BLOCKS. An INPUT f32 or norm may have any number of rows, one a workgroup.
//
// Prologue: an INPUT other than int8 is for one row. Every workgroup quantises all of that row for itself, which is
// faster than a separate dispatch. Epilogue: NORM multiplies by 1 / rms of the input. The int8 values do not depend on
// that factor, since the quantisation is relative to the largest magnitude. GATE: the first n / 2 rows of the matrix
// are the gate projection, the others the up projection, and y = GATE(gate)·up.
//
// Grid: (column tiles folded over x and y, 1, ceil(m / ROWS)). A group of LANES invocations computes COLUMNS outputs.
// SPLITS such groups share the same outputs (split-K); an invocation takes every LANES·SPLITS-th block of 32. One row:
// IN_FLIGHT blocks of all columns are loaded at a time, the first before the input is read. A workgroup computes
// COLUMN_PASSES sets of columns one after the other, so that the prologue runs once for all of them. Several rows: all
// blocks stay in registers while the kernel iterates over the ROWS rows, ROW_BATCH at a time. The bits of a row do not
// depend on ROWS, ROW_BATCH, COLUMNS, IN_FLIGHT, COLUMN_PASSES or m. Twin: scalar::matmul on scalar::quantize_rows.

#include "params/MatVecParams"
#define PARAMS MatVecParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define LANES 32u
#define BLOCKS (K / 32u)
#define QUANTS_BINDING 0
#define HIGH_BINDING 1
#define SCALES_BINDING 2
#include "lib/weights_blocks.wgsl"
#include "lib/lanes.wgsl"
#if SUBGROUPS
#include "lib/reduce_many.wgsl"
#endif

#if EXPERTS != none
#define ROUTE_BINDING 8
#include "lib/experts.wgsl"
#include "lib/expert_rows.wgsl"
#if BIAS
@group(0) @binding(9) var<storage, read> biases: array<f32>;
#endif
#endif
#if EXPERTS == each
// The expert of this workgroup's slot.
var<private> expert: u32;
#elif EXPERTS == sum
// The experts of this workgroup's row, and their weights.
var<workgroup> chosen: array<u32, USED>;
var<workgroup> chosen_weights: array<f32, USED>;
#endif

#if OFFSETS || ZERO_POINT > 0
#define INT8_SUMS 1
#else
#define INT8_SUMS 0
#endif

#if INPUT != int8
#include "lib/int8.wgsl"
#endif
#if INPUT == int8
@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> x_scales: array<vec2<u32>>;
#if NORM
@group(0) @binding(7) var<storage, read> factors: array<f32>;
#endif
#else
#if INPUT == merge
@group(0) @binding(3) var<storage, read> partials: array<vec4<f32>>;
#if !POSITION
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
#endif
#include "lib/merge.wgsl"
#else
@group(0) @binding(3) var<storage, read> input: array<vec4<f32>>;
#if INPUT == norm
@group(0) @binding(4) var<storage, read> norm_weight: array<vec4<f32>>;
var<workgroup> squares: array<f32, BLOCKS>;
#include "lib/rms.wgsl"
#endif
#endif
var<workgroup> x: array<vec4<u32>, 2u * BLOCKS>;
var<workgroup> x_scales: array<vec2<u32>, BLOCKS>;
#endif
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> results: array<f32, RESULT_BUFFERS * RESULTS>;
// Where the results of this pass begin. They are double-buffered: the previous ones may still be read.
var<private> result_base: u32;

#if INPUT != int8
// Stores four int8 of the input in workgroup memory. The first of a block's eight invocations also stores its scale and
// sums.
fn store_input(quantized: Quantized, four: u32, sum: f32) {
    if (four >= 8u * BLOCKS) {
        return;
    }
    x[int8_vector(four, BLOCKS)][four & 3u] = quantized.word;
    if ((four & 7u) == 0u) {
        x_scales[four / 8u] = vec2<u32>(bitcast<u32>(quantized.scale), quantized.sums);
#if INPUT == norm
        squares[four / 8u] = sum;
#endif
    }
}
#endif

// A block of a row: its int8 values, their scale, and `sums`, the factor of the weight's offset: scale times the sum of
// the first and last sixteen int8, or of all. `zero` is what the weight's zero point adds to the integer dot product.
// It is subtracted as an integer: in f32 most digits would cancel, and the rest would depend on the order of
// operations.
struct Activation {
    first: vec4<u32>,
    last: vec4<u32>,
    scale: f32,
    sums: vec2<f32>,
    zero: vec2<i32>,
}

// Blocks beyond the end have scale 0.
fn activation(row: u32, block: u32, in_range: bool) -> Activation {
    let stored = x_scales[row * BLOCKS + block];
#if EXACT_BLOCKS
    var scale = bitcast<f32>(stored.x);
#else
    var scale = select(0.0, bitcast<f32>(stored.x), in_range);
#endif
#if EXPERTS == sum
    scale *= chosen_weights[block / EXPERT_BLOCKS];
#endif
    var sums = vec2<f32>();
    var zero = vec2<i32>();
#if INT8_SUMS
    let first = extractBits(bitcast<i32>(stored.y), 0u, 16u);
    let last = bitcast<i32>(stored.y) >> 16u;
#if SCALES == 1
    sums = vec2<f32>(scale * f32(first + last));
#if UNSIGNED_8
    zero = vec2<i32>(128 * (first + last));
#else
    zero = vec2<i32>(-ZERO_POINT * (first + last));
#endif
#else
    sums = scale * vec2<f32>(f32(first), f32(last));
    zero = -ZERO_POINT * vec2<i32>(first, last);
#endif
#endif
    return Activation(x[2u * row * BLOCKS + block], x[(2u * row + 1u) * BLOCKS + block], scale, sums, zero);
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// Adds a block's dot product to `sum`.
fn block_dot(w: Block, x: Activation, sum: f32) -> f32 {
#if SCALES == 1
    let product = x.scale * f32(dot16(w.first, x.first) + dot16(w.last, x.last) + x.zero.x);
    var all = fma(w.scales.scale.x, product, sum);
#if OFFSETS
    all = fma(w.scales.offset.x, x.sums.x, all);
#endif
#else
    let products = x.scale * vec2<f32>(vec2<i32>(dot16(w.first, x.first), dot16(w.last, x.last)) + x.zero);
    var all = fma(w.scales.scale.x, products.x, sum);
    all = fma(w.scales.scale.y, products.y, all);
#if OFFSETS
    all = fma(w.scales.offset.x, x.sums.x, all);
    all = fma(w.scales.offset.y, x.sums.y, all);
#endif
#endif
    return all;
}

// The index in the row of an invocation's block number `number`.
fn block_of(number: u32, split: u32, lane: u32) -> u32 {
    return (number * SPLITS + split) * LANES + lane;
}

// The index of a block of x in its row of the weights.
fn weight_block(block: u32) -> u32 {
#if EXPERTS == sum
    return block % EXPERT_BLOCKS;
#else
    return block;
#endif
}

// Output number `column` of this workgroup: the sum over its splits.
fn result(column: u32, row: u32) -> f32 {
    var sum = results[result_base + (column * ROWS + row) * SPLITS];
#repeat S SPLITS
#if S > 0
    sum += results[result_base + (column * ROWS + row) * SPLITS + S];
#endif
#end
    return sum;
}

#include "lib/outputs.wgsl"

// Loads IN_FLIGHT blocks of each of an invocation's columns, from its block number `first` on.
fn load_packed(column: u32, first: u32, split: u32, lane: u32) -> array<PackedBlock, LOADED_BLOCKS> {
    var packed: array<PackedBlock, LOADED_BLOCKS>;
#repeat C COLUMNS
    {
        let row = weight_row(column + C);
#repeat I IN_FLIGHT
        {
            let block = min(block_of(first + I, split, lane), BLOCKS - 1u);
#if EXPERTS == sum
            let expert_row = chosen[block / EXPERT_BLOCKS] * params.n + row;
            packed[C * IN_FLIGHT + I] = load_packed_block(expert_row, weight_block(block), 32u * EXPERT_BLOCKS);
#else
            packed[C * IN_FLIGHT + I] = load_packed_block(row, block, K);
#endif
        }
#end
    }
#end
    return packed;
}

// Reduces the sums over the lane group and stores them for the epilogue: ROW_BATCH rows of each column.
fn store_sums(sums: ptr<function, array<f32, SUMS>>, first: u32, row: u32, split: u32, thread: Thread) {
    let lane = thread.index % LANES;
#if SUBGROUPS
    if (fits_subgroup(LANES, thread)) {
        reduce_many(sums, lane);
        if (lane % LANES_PER_SUM == 0u) {
            let number = lane / LANES_PER_SUM;
            let at = (first + number / ROW_BATCH) * ROWS + row + number % ROW_BATCH;
            results[result_base + at * SPLITS + split] = (*sums)[0];
        }
        return;
    }
#endif
#repeat I SUMS
    {
        let sum = reduce_sum((*sums)[I], thread);
        if (lane == 0u) {
            results[result_base + ((first + I / ROW_BATCH) * ROWS + row + I % ROW_BATCH) * SPLITS + split] = sum;
        }
    }
#end
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let lane = thread.index % LANES;
    let lane_group = thread.index / LANES;
    let split = lane_group % SPLITS;
    let local_column = lane_group / SPLITS * COLUMNS;
    let first_column = workgroup_index(here) * (COLUMN_PASSES * GROUP_COLUMNS);
    let first_row = here.workgroup.z * ROWS;

#if EXPERTS == each
    expert = expert_of(first_row / USED, first_row % USED);
#elif EXPERTS == sum
    for (var slot = thread.index; slot < USED; slot += WORKGROUP) {
        chosen[slot] = expert_of(first_row, slot);
        chosen_weights[slot] = expert_weight(first_row, slot);
    }
    workgroupBarrier();
#endif
    // Weights do not depend on the input: their loads are issued before the prologue.
    var packed = load_packed(first_column + local_column, 0u, split, lane);

#if INPUT != int8
#if INPUT == merge
#if POSITION
    let splits = splits_of(params.position, params.window);
#else
    let splits = splits_of(rows[0].x, params.window);
#endif
    for (var first = 0u; first < 8u * BLOCKS; first += WORKGROUP) {
        let index = first + thread.index;
        let four = min(index, 8u * BLOCKS - 1u);
        let head = four / (HEAD_DIM / 4u);
        let v = merged(0u, K / HEAD_DIM, head, four % (HEAD_DIM / 4u), splits.count);
        store_input(to_int8(v, thread), index, 0.0);
    }
#else
#if EXPERTS == each && SHARED
    let input_first = first_row / USED * (8u * BLOCKS);
#elif EXPERTS != none
    let input_first = first_row * (8u * BLOCKS);
#else
    let input_first = 0u;
#endif
    for (var first = 0u; first < 8u * BLOCKS; first += LOADS * WORKGROUP) {
        // All loads are issued before the first is used.
        var inputs: array<vec4<f32>, LOADS>;
#if INPUT == norm
        var weights: array<vec4<f32>, LOADS>;
#endif
#repeat P LOADS
        {
            let four = min(first + P * WORKGROUP + thread.index, 8u * BLOCKS - 1u);
            inputs[P] = input[input_first + four];
#if INPUT == norm
            weights[P] = norm_weight[four];
#endif
        }
#end
#repeat P LOADS
        {
            let index = first + P * WORKGROUP + thread.index;
#if INPUT == norm
            store_input(to_int8(inputs[P] * weights[P], thread), index, block_squares(inputs[P], thread));
#else
            store_input(to_int8(inputs[P], thread), index, 0.0);
#endif
        }
#end
    }
#endif
    workgroupBarrier();
#endif

#if ROWS == 1
#if FACTORS_FIRST
    // Computed while the loads of weights are in flight.
    load_factors(first_row, thread);
#endif
#if INPUT == int8
    let x_row = first_row;
#else
    // The only row in workgroup memory.
    let x_row = 0u;
#endif
    // Iterates over chunks of blocks, pass by pass. While one chunk is multiplied the loads of the next are in flight.
    var sums: array<f32, SUMS>;
    for (var piece = 0u; piece < CHUNKS * COLUMN_PASSES; piece += 1u) {
        let chunk = piece % CHUNKS;
        let pass_column = first_column + piece / CHUNKS * GROUP_COLUMNS;
#repeat I IN_FLIGHT
        {
            let block = block_of(chunk * IN_FLIGHT + I, split, lane);
            let block_index = min(block, BLOCKS - 1u);
            let a = activation(x_row, block_index, block < BLOCKS);
#repeat C COLUMNS
            sums[C] = block_dot(unpack_block(packed[C * IN_FLIGHT + I], weight_block(block_index)), a, sums[C]);
#end
        }
#end
        let next = piece + 1u;
        if (next < CHUNKS * COLUMN_PASSES) {
            let next_column = first_column + next / CHUNKS * GROUP_COLUMNS;
            packed = load_packed(next_column + local_column, next % CHUNKS * IN_FLIGHT, split, lane);
        }
        if (next % CHUNKS == 0u) {
            store_sums(&sums, local_column, 0u, split, thread);
#if !FACTORS_FIRST
            if (next == CHUNKS) {
                load_factors(first_row, thread);
            }
#endif
            workgroupBarrier();
            write_outputs(first_row, pass_column, thread);
            result_base = RESULTS - result_base;
            sums = array<f32, SUMS>();
        }
    }
#else
    load_factors(first_row, thread);
    // Weights stay in registers while the loop iterates over rows. The loop is not unrolled: its code must fit the
    // GPU's instruction cache, which successive kernels share.
    var unpacked: array<Block, LOADED_BLOCKS>;
#repeat I IN_FLIGHT
#repeat C COLUMNS
    unpacked[C * IN_FLIGHT + I] =
        unpack_block(packed[C * IN_FLIGHT + I], min(block_of(I, split, lane), BLOCKS - 1u));
#end
#end
    // Rows beyond the end repeat the last one and are not written.
    for (var row = 0u; row < min(ROWS, params.m - first_row); row += ROW_BATCH) {
        var sums: array<f32, SUMS>;
#repeat I IN_FLIGHT
        {
            let block = block_of(I, split, lane);
            let block_index = min(block, BLOCKS - 1u);
#repeat R ROW_BATCH
            {
                let a = activation(min(first_row + row + R, params.m - 1u), block_index, block < BLOCKS);
#repeat C COLUMNS
                sums[C * ROW_BATCH + R] = block_dot(unpacked[C * IN_FLIGHT + I], a, sums[C * ROW_BATCH + R]);
#end
            }
#end
        }
#end
        store_sums(&sums, local_column, row, split, thread);
    }
    workgroupBarrier();
    write_outputs(first_row, first_column, thread);
#endif
}
