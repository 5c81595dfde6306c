// matvec: y (+)= W·x for few rows of activations as signed bytes, with what stands before and behind it in a model.
//
//   0  quants    the weight matrix [n, K] in planes, by WEIGHT (lib/weights.wgsl)
//   1  high      likewise, if the type has upper bits
//   2  scales    likewise
//   3  x         INPUT int8: [m, 2, K / 32] vectors of sixteen signed bytes, as quantize writes them.
//                INPUT f32, norm: [1, K] f32. INPUT merge: partials of K / HEAD_DIM heads (lib/merge.wgsl)
//   4  x_scales  INPUT int8: [m, K / 32] as quantize writes them. INPUT norm: the norm's weight, [K] f32.
//                INPUT merge: rows, [1] (position, first entry of a block table), unless POSITION says that the
//                position is a parameter
//   5  y         [m, y_stride] f32: in n columns from y_offset on; with a GATE in n / 2
//   6  params    MatVecParams (immediates where the device has them)
//   7  factors   INPUT int8 with NORM: [m] f32, 1 / rms of the rows, as quantize writes them
//
// INPUT other than int8 is for one row: every workgroup makes bytes of all of it for itself, which is quicker than a
// dispatch. NORM multiplies by 1 / rms of the input; the bytes do not depend on it, since scales do not.
// GATE: rows 0.. of the matrix are gates, rows n / 2.. what they let through: y = GATE(gate)·up.
//
// Teams of LANES invocations take COLUMNS of the output each, SPLITS teams share them. An invocation takes every
// LANES·SPLITS-th block. One row: FETCH of them, for all columns, are on their way at once, the first before the input
// is looked at; TURNS of columns follow each other, so that the input is made ready once for all of them. Several rows:
// all blocks stay in registers while ROWS pass by, PACE at a time. A row's bits are the same for every ROWS, PACE,
// COLUMNS, FETCH, TURNS and number of rows. Twin: scalar::matmul on scalar::quantize_rows.

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
#include "lib/team_sums.wgsl"
#endif

#if OFFSETS || ZERO > 0
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

var<workgroup> results: array<f32, SHELVES * RESULTS>;
// Where the results of a turn begin: those of the last one may still be read.
var<private> shelf: u32;

#if INPUT != int8
// Puts four bytes where the products find them, and the first of eight what belongs to all of a block.
fn keep(bytes: Bytes, four: u32, sum: f32) {
    if (four >= 8u * BLOCKS) {
        return;
    }
    x[int8_vector(four, BLOCKS)][four & 3u] = bytes.word;
    if ((four & 7u) == 0u) {
        x_scales[four / 8u] = vec2<u32>(bitcast<u32>(bytes.scale), bytes.sums);
#if INPUT == norm
        squares[four / 8u] = sum;
#endif
    }
}
#endif

// A block of a row: bytes, their scale, and what a weight's offset is multiplied by: scale times the sum of the first
// and last sixteen bytes, or of all. What the zero of quants adds to a product, `zero`, is taken off in integers: in
// f32 its digits, which are the greater part, would be lost in one order of operations and not in another.
struct Activation {
    first: vec4<u32>,
    last: vec4<u32>,
    scale: f32,
    sums: vec2<f32>,
    zero: vec2<i32>,
}

// Blocks beyond the end count for nothing.
fn activation(row: u32, block: u32, is_there: bool) -> Activation {
    let of_x = x_scales[row * BLOCKS + block];
#if EVEN
    let scale = bitcast<f32>(of_x.x);
#else
    let scale = select(0.0, bitcast<f32>(of_x.x), is_there);
#endif
    var sums = vec2<f32>();
    var zero = vec2<i32>();
#if INT8_SUMS
    let first = extractBits(bitcast<i32>(of_x.y), 0u, 16u);
    let last = bitcast<i32>(of_x.y) >> 16u;
#if SCALES == 1
    sums = vec2<f32>(scale * f32(first + last));
    zero = vec2<i32>(-ZERO * (first + last));
#else
    sums = scale * vec2<f32>(f32(first), f32(last));
    zero = -ZERO * vec2<i32>(first, last);
#endif
#endif
    return Activation(x[2u * row * BLOCKS + block], x[(2u * row + 1u) * BLOCKS + block], scale, sums, zero);
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A block's part of the sum, added to what there was.
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

// The block that is an invocation's next but `number`.
fn block_of(number: u32, split: u32, lane: u32) -> u32 {
    return (number * SPLITS + split) * LANES + lane;
}

// The output's element number `column` of this workgroup, from the sums of its teams.
fn result(column: u32, row: u32) -> f32 {
    var sum = results[shelf + (column * ROWS + row) * SPLITS];
#repeat S SPLITS
#if S > 0
    sum += results[shelf + (column * ROWS + row) * SPLITS + S];
#endif
#end
    return sum;
}

#include "lib/outputs.wgsl"

// FETCH blocks of an invocation's columns, from its block number `first` on.
fn fetch(column: u32, first: u32, split: u32, lane: u32) -> array<Fetched, FETCHED> {
    var fetched: array<Fetched, FETCHED>;
#repeat C COLUMNS
    {
        let row = weight_row(column + C);
#repeat I FETCH
        fetched[C * FETCH + I] = weight_fetch(row, min(block_of(first + I, split, lane), BLOCKS - 1u), K);
#end
    }
#end
    return fetched;
}

// Puts the sums of rows over the team where the outputs are made of them: those of PACE rows for each column.
fn keep_sums(sums: ptr<function, array<f32, SUMS>>, first: u32, row: u32, split: u32, here: Member) {
    let lane = here.place % LANES;
#if SUBGROUPS
    if (is_near(LANES, here)) {
        team_sums(sums, lane);
        if (lane % ALIKE == 0u) {
            let number = lane / ALIKE;
            results[shelf + ((first + number / PACE) * ROWS + row + number % PACE) * SPLITS + split] = (*sums)[0];
        }
        return;
    }
#endif
#repeat I SUMS
    {
        let sum = team_sum((*sums)[I], here);
        if (lane == 0u) {
            results[shelf + ((first + I / PACE) * ROWS + row + I % PACE) * SPLITS + split] = sum;
        }
    }
#end
}

@compute @workgroup_size(WORKGROUP)
#if SUBGROUPS
fn KERNEL(here: Invocation, @builtin(subgroup_size) subgroup_size: u32) {
    let member = team_member(here, subgroup_size);
#else
fn KERNEL(here: Invocation) {
    let member = team_member(here);
#endif
    let lane = member.place % LANES;
    let team = member.place / LANES;
    let split = team % SPLITS;
    let own = team / SPLITS * COLUMNS;
    let first_column = group_index(here) * (TURNS * GROUP_COLUMNS);
    let first_row = here.group.z * ROWS;

    // What the weights have to say depends on nothing: it may be fetched while the input is made ready.
    var fetched = fetch(first_column + own, 0u, split, lane);

#if INPUT != int8
#if INPUT == merge
#if POSITION
    let splits = splits_of(params.position, params.window);
#else
    let splits = splits_of(rows[0].x, params.window);
#endif
    for (var first = 0u; first < 8u * BLOCKS; first += WORKGROUP) {
        let index = first + member.place;
        let four = min(index, 8u * BLOCKS - 1u);
        let head = four / (HEAD_DIM / 4u);
        let v = merged(0u, K / HEAD_DIM, head, four % (HEAD_DIM / 4u), splits.count);
        keep(to_int8(v, member), index, 0.0);
    }
#else
    for (var first = 0u; first < 8u * BLOCKS; first += PASSES * WORKGROUP) {
        // All loads are on their way before anything is made of the first.
        var inputs: array<vec4<f32>, PASSES>;
#if INPUT == norm
        var weights: array<vec4<f32>, PASSES>;
#endif
#repeat P PASSES
        {
            let four = min(first + P * WORKGROUP + member.place, 8u * BLOCKS - 1u);
            inputs[P] = input[four];
#if INPUT == norm
            weights[P] = norm_weight[four];
#endif
        }
#end
#repeat P PASSES
        {
            let index = first + P * WORKGROUP + member.place;
#if INPUT == norm
            keep(to_int8(inputs[P] * weights[P], member), index, block_squares(inputs[P], member));
#else
            keep(to_int8(inputs[P], member), index, 0.0);
#endif
        }
#end
    }
#endif
    workgroupBarrier();
#endif

#if ROWS == 1
#if EARLY
    // While weights are on their way.
    find_factors(first_row, member);
#endif
    // Chunks of the blocks of a turn's columns, turn by turn: while one is multiplied the next is on its way.
    var sums: array<f32, SUMS>;
    for (var piece = 0u; piece < CHUNKS * TURNS; piece += 1u) {
        let chunk = piece % CHUNKS;
        let turn_column = first_column + piece / CHUNKS * GROUP_COLUMNS;
#repeat I FETCH
        {
            let block = block_of(chunk * FETCH + I, split, lane);
            let there = min(block, BLOCKS - 1u);
            let a = activation(first_row, there, block < BLOCKS);
#repeat C COLUMNS
            sums[C] = block_dot(weight_unpack(fetched[C * FETCH + I], there), a, sums[C]);
#end
        }
#end
        let next = piece + 1u;
        if (next < CHUNKS * TURNS) {
            let next_column = first_column + next / CHUNKS * GROUP_COLUMNS;
            fetched = fetch(next_column + own, next % CHUNKS * FETCH, split, lane);
        }
        if (next % CHUNKS == 0u) {
            keep_sums(&sums, own, 0u, split, member);
#if !EARLY
            if (next == CHUNKS) {
                find_factors(first_row, member);
            }
#endif
            workgroupBarrier();
            write_outputs(first_row, turn_column, member);
            shelf = RESULTS - shelf;
            sums = array<f32, SUMS>();
        }
    }
#else
    find_factors(first_row, member);
    // Weights stay in registers, rows come one after the other: a loop is small enough for a GPU's cache of
    // instructions, which one kernel after another wants.
    var unpacked: array<Block, FETCHED>;
#repeat I FETCH
#repeat C COLUMNS
    unpacked[C * FETCH + I] =
        weight_unpack(fetched[C * FETCH + I], min(block_of(I, split, lane), BLOCKS - 1u));
#end
#end
    // Rows beyond the end are the last one again, and are not written.
    for (var row = 0u; row < min(ROWS, params.m - first_row); row += PACE) {
        var sums: array<f32, SUMS>;
#repeat I FETCH
        {
            let block = block_of(I, split, lane);
            let there = min(block, BLOCKS - 1u);
#repeat R PACE
            {
                let a = activation(min(first_row + row + R, params.m - 1u), there, block < BLOCKS);
#repeat C COLUMNS
                sums[C * PACE + R] = block_dot(unpacked[C * FETCH + I], a, sums[C * PACE + R]);
#end
            }
#end
        }
#end
        keep_sums(&sums, own, row, split, member);
    }
    workgroupBarrier();
    write_outputs(first_row, first_column, member);
#endif
}
