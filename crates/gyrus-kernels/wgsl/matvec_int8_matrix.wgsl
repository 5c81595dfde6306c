// matvec_int8_matrix: y (+)= W·x for up to sixteen rows of int8 activations, by int8 cooperative matrices (tensor
// cores) of a subgroup of 32. The bits are those of matvec on the same int8 values.
//
//   0  quants    the weight matrix [n, K] in planes, by WEIGHT (lib/weights.wgsl): types with one f16 scale a block and
//                no
//                offsets
//   1  high      likewise, if the type has high bits
//   2  scales    likewise
//   3  x         [m, 2, K / 32] vectors of sixteen int8, as quantize writes them
//   4  x_scales  [m, K / 32] as quantize writes them
//   5  y         [m, y_stride] f32: n columns from y_offset on are written; n / 2 with a GATE
//   6  params    MatVecParams (immediates where the device has them)
//   7  factors   NORM: [m] f32, 1 / rms of the rows, as quantize writes them. INPUT squares: `squares` instead,
//                [m, K / 32] f32, sums of squares of the rows' blocks
//   9  q         RESULTS int8: y as int8, as in lib/int8_rows.wgsl. RESULTS normed: y times `weight` as int8
//  10  q_scales  likewise
//  11  weight    RESULTS normed: [y_stride] f32, the weight of the following norm
//  12  made      RESULTS normed: [m, y_stride / 32] f32, written: sums of squares of y, for INPUT squares of the next
//                kernel
//
// WGSL has neither int8 cooperative matrices nor element-wise products of matrices; SPIR-V has both. The host rewrites
// the SPIR-V of this kernel: a matrix that is loaded from words becomes a matrix of their int8, 16 × 32 or 32 × 16,
// with i32 sums that are converted to f32; ELEMENTWISE_MUL, a subtraction in WGSL, becomes a product.
//
// Grid: workgroups of 256, each with TILES tiles of sixteen columns, one after the other; SPLITS as in matvec
// (split-K). A subgroup computes what lanes `subgroup`, + 8, + 16 and + 24 of a lane group compute in matvec; the
// reduction tree of a lane group begins with these. A subgroup's fragments of the activations stay in registers. A
// tile's weights are unpacked to int8 in workgroup memory while the next tile's loads are in flight. The matrix of the
// scales of the columns' blocks has equal rows. It is a product too: the scales of sixteen blocks times a matrix of
// ones in the row of this block and zeros elsewhere. That product and the integer sums of a block are exact. Rounding
// happens where matvec rounds: fma(weight scale, row scale · block sum, previous sum). Twin: scalar::matmul on
// scalar::quantize_rows.

enable f16;
enable wgpu_cooperative_matrix;

#include "params/MatVecParams"
#define PARAMS MatVecParams
#define PARAMS_BINDING 6
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define LANES 32u
#define WORKGROUP 256u
#define ROWS 16u
#define BLOCKS (K / 32u)
#define QUANTS_BINDING 0
#define HIGH_BINDING 1
#define SCALES_BINDING 2
#include "lib/weights_blocks.wgsl"
#include "lib/lanes_subgroup32.wgsl"

#define LEFT coop_mat16x16<f16, A>
#define RIGHT coop_mat16x16<f16, B>
#define SUMS coop_mat16x16<f32, C>
#define ELEMENTWISE_MUL -

@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> x_scales: array<vec2<u32>>;
#if INPUT == squares
@group(0) @binding(7) var<storage, read> squares: array<f32>;
#elif NORM
@group(0) @binding(7) var<storage, read> factors: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Blocks of a column in one split.
#define SPLIT_BLOCKS (32u * BLOCKS_PER_LANE)
// Vectors from one staged column, or row of x, to the next. One vector of padding avoids bank conflicts.
#define STAGE_STRIDE (2u * SPLIT_BLOCKS + 1u)
// f16 from one staged column's scales to the next, padded likewise.
#define SCALE_STRIDE (SPLIT_BLOCKS + 8u)

var<workgroup> staged: array<vec4<u32>, 16u * STAGE_STRIDE>;
var<workgroup> staged_scales: array<f16, 16u * SCALE_STRIDE>;
// The identity matrix. Its row k, loaded as every column of a matrix, selects block number k of sixteen.
var<workgroup> identity: array<f16, 256>;
// Scales of x, [SPLIT_BLOCKS blocks, 16 rows].
var<workgroup> scales_x: array<f32, 16u * SPLIT_BLOCKS>;
// The accumulator fragment of each subgroup, [16 rows, 16 columns].
var<workgroup> fragments: array<f32, 8u * 256u>;

// What an invocation stages: block number `block` of a column of the tile or of a row of x.
struct StageSlot {
    column: u32,
    block: u32,
}

fn stage_slot(lane: u32, number: u32) -> StageSlot {
    let at = lane + number * WORKGROUP;
    return StageSlot(at / SPLIT_BLOCKS, at % SPLIT_BLOCKS);
}

fn block_of(block: u32, split: u32) -> u32 {
    return (block / 32u * SPLITS + split) * 32u + block % 32u;
}

// The two vectors of a block are swapped in every other group of four blocks, for weights and activations alike, so
// that eight invocations store to different banks.
fn put(at: StageSlot, first: vec4<u32>, last: vec4<u32>) {
    let to = at.column * STAGE_STRIDE + 2u * at.block;
    let other = (at.block / 4u) % 2u;
    staged[to + other] = first;
    staged[to + 1u - other] = last;
}

#if WEIGHT == q4_0
// A 4-bit quant in the high bits of a byte, with its sign bit flipped, is 16·(q − 8) as int8: the zero point needs no
// subtraction. A power of two does not change the rounding of a sum, and results are multiplied by RESULT_SCALE.
#define RESULT_SCALE 0.0625

fn unpack_int8(packed: PackedBlock) -> array<vec4<u32>, 2> {
    let upper = vec4<u32>(0xf0f0f0f0u);
    let sign = vec4<u32>(0x80808080u);
    return array<vec4<u32>, 2>(((packed.q << vec4<u32>(4u)) & upper) ^ sign, (packed.q & upper) ^ sign);
}
#else
#define RESULT_SCALE 1.0

// Subtracts the zero point from each of four bytes below 128.
fn subtract_zero_point(q8: vec4<u32>) -> vec4<u32> {
#if ZERO_POINT > 0
    return ((q8 | vec4<u32>(0x80808080u)) - vec4<u32>(ZERO_POINT * 0x01010101u)) ^ vec4<u32>(0x80808080u);
#else
    return q8;
#endif
}

fn unpack_int8(packed: PackedBlock) -> array<vec4<u32>, 2> {
    let w = unpack_block(packed, 0u);
    return array<vec4<u32>, 2>(subtract_zero_point(w.first), subtract_zero_point(w.last));
}
#endif

fn load_packed(lane: u32, first_column: u32, split: u32) -> array<PackedBlock, BLOCKS_PER_INVOCATION> {
    var packed: array<PackedBlock, BLOCKS_PER_INVOCATION>;
#repeat I BLOCKS_PER_INVOCATION
    {
        let at = stage_slot(lane, I);
        packed[I] = load_packed_block(weight_row(first_column + at.column), block_of(at.block, split), K);
    }
#end
    return packed;
}

struct PackedX {
    first: vec4<u32>,
    last: vec4<u32>,
    scale: u32,
}

fn load_x(lane: u32, split: u32) -> array<PackedX, BLOCKS_PER_INVOCATION> {
    var packed: array<PackedX, BLOCKS_PER_INVOCATION>;
#repeat I BLOCKS_PER_INVOCATION
    {
        let at = stage_slot(lane, I);
        let row = min(at.column, params.m - 1u);
        let block = block_of(at.block, split);
        let first = 2u * row * BLOCKS + block;
        packed[I] = PackedX(x[first], x[first + BLOCKS], x_scales[row * BLOCKS + block].x);
    }
#end
    return packed;
}

fn stage_x(packed: array<PackedX, BLOCKS_PER_INVOCATION>, lane: u32) {
#repeat I BLOCKS_PER_INVOCATION
    {
        let at = stage_slot(lane, I);
        put(at, packed[I].first, packed[I].last);
        scales_x[16u * at.block + at.column] = bitcast<f32>(packed[I].scale);
    }
#end
}

fn stage(packed: array<PackedBlock, BLOCKS_PER_INVOCATION>, lane: u32, split: u32) {
#repeat I BLOCKS_PER_INVOCATION
    {
        let at = stage_slot(lane, I);
        let q8 = unpack_int8(packed[I]);
        put(at, q8[0], q8[1]);
        let scale = scales_of(packed[I].s, block_of(at.block, split)).scale.x;
        staged_scales[at.column * SCALE_STRIDE + at.block] = f16(scale);
    }
#end
}

// The top of a lane group's reduction tree, for one output of the tile.
fn tree(at: u32) -> f32 {
    let even = (fragments[at] + fragments[at + 1024u]) + (fragments[at + 512u] + fragments[at + 1536u]);
    let odd = (fragments[at + 256u] + fragments[at + 1280u]) + (fragments[at + 768u] + fragments[at + 1792u]);
    return RESULT_SCALE * (even + odd);
}

// Output number `column` of this tile. With several SPLITS, their total is in place of the first fragment.
fn result(column: u32, row: u32) -> f32 {
#if SPLITS > 1
    return fragments[16u * row + column];
#else
    return tree(16u * row + column);
#endif
}

#include "lib/outputs.wgsl"

#if INPUT == squares
// The sums of squares that a subgroup reduces for two rows: a lane has every 32nd block of each.
struct Squares {
    rows: array<array<f32, SQUARES_PER_LANE>, 2>,
}

fn load_squares(thread: Thread) -> Squares {
    var packed: Squares;
#repeat R 2
    {
        let row = min(thread.index / 32u + R * 8u, params.m - 1u);
#repeat B SQUARES_PER_LANE
        packed.rows[R][B] = squares[row * BLOCKS + thread.index % 32u + B * 32u];
#end
    }
#end
    return packed;
}

// Computes 1 / rms of the rows as lib/rms.wgsl does. It is valid after the next barrier.
fn load_factors(packed: Squares, thread: Thread) {
#repeat R 2
    {
        var sum = packed.rows[R][0];
#repeat B SQUARES_PER_LANE
#if B > 0
        sum += packed.rows[R][B];
#endif
#end
        for (var distance = 16u; distance > 0u; distance /= 2u) {
            sum += shuffle_xor_f32(sum, distance, thread);
        }
        if (thread.index % 32u == 0u) {
            row_factors[thread.index / 32u + R * 8u] = inverseSqrt(sum / f32(K) + params.eps);
        }
    }
#end
}
#endif

#if RESULTS != f32
#define INT8_SUMS 1
#define Q_BINDING 9
#define Q_SCALES_BINDING 10
#include "lib/int8.wgsl"
#include "lib/int8_rows.wgsl"

#if RESULTS == normed
@group(0) @binding(11) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(12) var<storage, read_write> made: array<f32>;
#endif

// Vectors of four outputs that a workgroup has of a row.
#define ROW_VECTORS (TILES * OUTPUTS / 4u)

// Quantises the outputs that the workgroup has written.
fn write_int8_outputs(first_output: u32, thread: Thread) {
    for (var first = 0u; first < ROWS * ROW_VECTORS; first += WORKGROUP) {
        // Invocations of rows beyond the end repeat the last row and do not write.
        let index = first + thread.index;
        let row = min(index / ROW_VECTORS, params.m - 1u);
        let four = first_output / 4u + index % ROW_VECTORS;
        let at = row * params.y_stride + 4u * four;
        let v = vec4<f32>(y[at], y[at + 1u], y[at + 2u], y[at + 3u]);
#if RESULTS == normed
        let q8 = to_int8(v * weight[four], thread);
        let sum = block_squares(v, thread);
#else
        let q8 = to_int8(v, thread);
#endif
        if (index / ROW_VECTORS < params.m) {
            write_int8(q8, row, four, params.y_stride / 32u);
#if RESULTS == normed
            if ((four & 7u) == 0u) {
                made[row * (params.y_stride / 32u) + four / 8u] = sum;
            }
#endif
        }
    }
}
#endif

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = Thread(here.subgroup_id * 32u + here.subgroup_lane);
    let first_column = workgroup_index(here) * (16u * TILES);
    identity[thread.index] = select(f16(0.0), f16(1.0), thread.index / 16u == thread.index % 16u);
#if INPUT == squares
    let loaded_squares = load_squares(thread);
#else
    load_factors(0u, thread);
#endif
    var packed_x = load_x(thread.index, 0u);
    var packed = load_packed(thread.index, first_column, 0u);
    var total = 0.0;
    for (var split = 0u; split < SPLITS; split += 1u) {
        stage_x(packed_x, thread.index);
#if INPUT == squares
        if (split == 0u) {
            load_factors(loaded_squares, thread);
        }
#endif
        workgroupBarrier();
#repeat I 2
        let selector##I = coopLoad<RIGHT>(&identity[16u * (I##u * 8u + here.subgroup_id)], 0u);
#end
#repeat N BLOCKS_PER_LANE
#repeat H 2
#repeat I 2
        let block##N##H##I = N##u * 32u + H##u * 16u + I##u * 8u + here.subgroup_id;
        let right##N##H##I = coopLoad<RIGHT>(&staged[2u * block##N##H##I], STAGE_STRIDE);
#if TILES > 1
        let scale_x##N##H##I = coopLoadT<SUMS>(&scales_x[16u * block##N##H##I], 0u);
#endif
#end
#end
#end
        workgroupBarrier();
        stage(packed, thread.index, split);
        workgroupBarrier();
        for (var tile = 0u; tile < TILES; tile += 1u) {
            // Prefetches the next split or tile. The last one is loaded again, from the cache, and not used.
#if SPLITS > 1
            packed_x = load_x(thread.index, min(split + 1u, SPLITS - 1u));
            packed = load_packed(thread.index, first_column, min(split + 1u, SPLITS - 1u));
#else
            packed = load_packed(thread.index, first_column + 16u * min(tile + 1u, TILES - 1u), 0u);
#endif
#repeat N BLOCKS_PER_LANE
#repeat H 2
            let scales##N##H = coopLoadT<LEFT>(&staged_scales[N##u * 32u + H##u * 16u], SCALE_STRIDE);
#repeat I 2
            let left##N##H##I = coopLoadT<LEFT>(&staged[2u * block##N##H##I], STAGE_STRIDE);
            let sums##N##H##I = coopMultiplyAdd(left##N##H##I, right##N##H##I, SUMS());
#if TILES == 1
            // With a single tile there is no reuse to keep them in registers for.
            let scale_x##N##H##I = coopLoadT<SUMS>(&scales_x[16u * block##N##H##I], 0u);
#endif
            let scaled##N##H##I = sums##N##H##I ELEMENTWISE_MUL scale_x##N##H##I;
            let scale##N##H##I = coopMultiplyAdd(scales##N##H, selector##I, SUMS());
            let sum##N##H##I = scale##N##H##I ELEMENTWISE_MUL scaled##N##H##I;
#end
#end
#end
#repeat H 2
#repeat I 2
#if BLOCKS_PER_LANE == 1
            // The product is rounded before it is added.
            let leaf##H##I = sum0##H##I * 1.0;
#else
            let leaf##H##I = sum0##H##I + sum1##H##I;
#endif
#end
#end
            let fragment = (leaf00 + leaf10) + (leaf01 + leaf11);
            let fragment_at = here.subgroup_id * 256u;
            coopStore(fragment, &fragments[fragment_at], 16u);
            workgroupBarrier();
#if SPLITS > 1
            let partial = tree(thread.index);
            total = select(total + partial, partial, split == 0u);
#else
            write_outputs(0u, first_column + 16u * tile, thread);
            stage(packed, thread.index, 0u);
            workgroupBarrier();
#endif
        }
    }
#if SPLITS > 1
    workgroupBarrier();
    fragments[thread.index] = total;
    workgroupBarrier();
    write_outputs(0u, first_column, thread);
#endif
#if RESULTS != f32
    // The last barrier covered workgroup memory only.
    storageBarrier();
    write_int8_outputs(workgroup_index(here) * (TILES * OUTPUTS), thread);
#endif
}
