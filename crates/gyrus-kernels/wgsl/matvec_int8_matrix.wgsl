// matvec_int8_matrix: y (+)= W·x for up to sixteen rows of activations as signed bytes, by matrices of bytes that a
// subgroup of 32 multiplies together. To the bit what matvec makes of the same bytes.
//
//   0  quants    the weight matrix [n, K] in planes, by WEIGHT (lib/weights.wgsl): one scale a block, a half, and no
//                offsets
//   1  high      likewise, if the type has upper bits
//   2  scales    likewise
//   3  x         [m, 2, K / 32] vectors of sixteen signed bytes, as quantize writes them
//   4  x_scales  [m, K / 32] as quantize writes them
//   5  y         [m, y_stride] f32: in n columns from y_offset on; with a GATE in n / 2
//   6  params    MatVecParams (immediates where the device has them)
//   7  factors   NORM: [m] f32, 1 / rms of the rows, as quantize writes them. INPUT squares: `squares` instead,
//                [m, K / 32] f32, of the rows' blocks
//   9  q         RESULTS int8: what is in y, as in lib/int8_rows.wgsl. RESULTS normed: what is there times `weight`
//  10  q_scales  likewise
//  11  weight    RESULTS normed: [y_stride] f32, of a norm
//  12  made      RESULTS normed: [m, y_stride / 32] f32, sums of squares of what is in y, for INPUT squares
//
// WGSL has no matrices of bytes, and no product of matrices element by element; SPIR-V has both. This kernel is
// rewritten on its way to the device: a matrix that is loaded from words is one of their bytes, 16 × 32 or 32 × 16, with
// sums of integers that become f32; EACH_TIMES, which WGSL takes for a subtraction, multiplies.
//
// A workgroup takes TILES of sixteen columns one after the other, and sums in SPLITS, as matvec does: a subgroup has
// what lanes `subgroup`, + 8, + 16 and + 24 of a team have there, and the tree of a team's sum begins with these. Its
// part of the activations stays in registers. A tile's weights become bytes in workgroup memory, while those of the next
// tile are on their way. A matrix of the scales of the columns' blocks, the same in every row of x, is a product as well:
// of the scales of sixteen blocks, by ones where it is this block and zeros. It is exact, and so are the sums of a block;
// what is rounded is rounded as in matvec: fma(scale of the weight, scale of the row · sum of the block, sum before).
// Twin: scalar::matmul on scalar::quantize_rows.

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
#include "lib/lanes_near.wgsl"

#define LEFT coop_mat16x16<f16, A>
#define RIGHT coop_mat16x16<f16, B>
#define SUMS coop_mat16x16<f32, C>
#define EACH_TIMES -

@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> x_scales: array<vec2<u32>>;
#if INPUT == squares
@group(0) @binding(7) var<storage, read> squares: array<f32>;
#elif NORM
@group(0) @binding(7) var<storage, read> factors: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Blocks of a column that a tile has of a split.
#define WIDTH (32u * NUMBERS)
// Vectors from one staged column, or row of x, to the next: one more than there are spreads them over the banks.
#define STAGED_ROW (2u * WIDTH + 1u)
// Halves from one staged column's scales to the next, likewise.
#define SCALES_ROW (WIDTH + 8u)

var<workgroup> staged: array<vec4<u32>, 16u * STAGED_ROW>;
var<workgroup> staged_scales: array<f16, 16u * SCALES_ROW>;
// Row k of it, as all columns of a matrix, chooses block number k of sixteen.
var<workgroup> identity: array<f16, 256>;
// Scales of x, [WIDTH blocks, 16 rows].
var<workgroup> scales_x: array<f32, 16u * WIDTH>;
// The sums of each subgroup, [16 rows, 16 columns].
var<workgroup> leaving: array<f32, 8u * 256u>;

// What an invocation stages of a tile: block number `place` of a column or of a row of x.
struct Place {
    column: u32,
    place: u32,
}

fn place_of(lane: u32, number: u32) -> Place {
    let at = lane + number * WORKGROUP;
    return Place(at / WIDTH, at % WIDTH);
}

fn block_of(place: u32, split: u32) -> u32 {
    return (place / 32u * SPLITS + split) * 32u + place % 32u;
}

// Every other four blocks have their halves exchanged, in weights and activations alike: so eight invocations store to
// different banks.
fn put(at: Place, first: vec4<u32>, last: vec4<u32>) {
    let to = at.column * STAGED_ROW + 2u * at.place;
    let other = (at.place / 4u) % 2u;
    staged[to + other] = first;
    staged[to + 1u - other] = last;
}

#if WEIGHT == q4_0
// Four bits in the upper half of a byte, with its sign the other way round, are sixteen times what they stand for: no
// need to take eight off. Powers of two change no other bit of a sum; results are multiplied by PART of it.
#define PART 0.0625

fn signed_bytes(fetched: Fetched) -> array<vec4<u32>, 2> {
    let upper = vec4<u32>(0xf0f0f0f0u);
    let sign = vec4<u32>(0x80808080u);
    return array<vec4<u32>, 2>(((fetched.q << vec4<u32>(4u)) & upper) ^ sign, (fetched.q & upper) ^ sign);
}
#else
#define PART 1.0

// Bytes below 128 less their zero.
fn less_zero(bytes: vec4<u32>) -> vec4<u32> {
#if ZERO > 0
    return ((bytes | vec4<u32>(0x80808080u)) - vec4<u32>(ZERO * 0x01010101u)) ^ vec4<u32>(0x80808080u);
#else
    return bytes;
#endif
}

fn signed_bytes(fetched: Fetched) -> array<vec4<u32>, 2> {
    let w = weight_unpack(fetched, 0u);
    return array<vec4<u32>, 2>(less_zero(w.first), less_zero(w.last));
}
#endif

fn fetch(lane: u32, first_column: u32, split: u32) -> array<Fetched, EACH> {
    var fetched: array<Fetched, EACH>;
#repeat I EACH
    {
        let at = place_of(lane, I);
        fetched[I] = weight_fetch(weight_row(first_column + at.column), block_of(at.place, split), K);
    }
#end
    return fetched;
}

struct FetchedX {
    first: vec4<u32>,
    last: vec4<u32>,
    scale: u32,
}

fn fetch_x(lane: u32, split: u32) -> array<FetchedX, EACH> {
    var fetched: array<FetchedX, EACH>;
#repeat I EACH
    {
        let at = place_of(lane, I);
        let row = min(at.column, params.m - 1u);
        let block = block_of(at.place, split);
        let first = 2u * row * BLOCKS + block;
        fetched[I] = FetchedX(x[first], x[first + BLOCKS], x_scales[row * BLOCKS + block].x);
    }
#end
    return fetched;
}

fn stage_x(fetched: array<FetchedX, EACH>, lane: u32) {
#repeat I EACH
    {
        let at = place_of(lane, I);
        put(at, fetched[I].first, fetched[I].last);
        scales_x[16u * at.place + at.column] = bitcast<f32>(fetched[I].scale);
    }
#end
}

fn stage(fetched: array<Fetched, EACH>, lane: u32, split: u32) {
#repeat I EACH
    {
        let at = place_of(lane, I);
        let bytes = signed_bytes(fetched[I]);
        put(at, bytes[0], bytes[1]);
        let scale = scales_of(fetched[I].s, block_of(at.place, split)).scale.x;
        staged_scales[at.column * SCALES_ROW + at.place] = f16(scale);
    }
#end
}

// The upper part of a team's tree, for one of a tile's results.
fn tree(at: u32) -> f32 {
    let even = (leaving[at] + leaving[at + 1024u]) + (leaving[at + 512u] + leaving[at + 1536u]);
    let odd = (leaving[at + 256u] + leaving[at + 1280u]) + (leaving[at + 768u] + leaving[at + 1792u]);
    return PART * (even + odd);
}

// The output's element number `column` of this tile; with SPLITS their sums are where those of a subgroup were.
fn result(column: u32, row: u32) -> f32 {
#if SPLITS > 1
    return leaving[16u * row + column];
#else
    return tree(16u * row + column);
#endif
}

#include "lib/outputs.wgsl"

#if INPUT == squares
// What a subgroup sums for two rows: an invocation has every 32nd block of each.
struct Squares {
    rows: array<array<f32, ROW_BLOCKS>, 2>,
}

fn fetch_squares(here: Member) -> Squares {
    var fetched: Squares;
#repeat R 2
    {
        let row = min(here.place / 32u + R * 8u, params.m - 1u);
#repeat B ROW_BLOCKS
        fetched.rows[R][B] = squares[row * BLOCKS + here.place % 32u + B * 32u];
#end
    }
#end
    return fetched;
}

// Finds 1 / rms of the rows as lib/rms.wgsl does, for after the next barrier.
fn find_factors(fetched: Squares, here: Member) {
#repeat R 2
    {
        var sum = fetched.rows[R][0];
#repeat B ROW_BLOCKS
#if B > 0
        sum += fetched.rows[R][B];
#endif
#end
        for (var distance = 16u; distance > 0u; distance /= 2u) {
            sum += neighbour_f32(sum, distance, here);
        }
        if (here.place % 32u == 0u) {
            row_factors[here.place / 32u + R * 8u] = inverseSqrt(sum / f32(K) + params.eps);
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

// Vectors of four results that a workgroup has of a row.
#define FOURS (TILES * OUTPUTS / 4u)

// Makes bytes of what the workgroup has written.
fn write_byte_outputs(first_output: u32, here: Member) {
    for (var first = 0u; first < ROWS * FOURS; first += WORKGROUP) {
        // Those of rows that are not there do the last one's work and keep it to themselves.
        let index = first + here.place;
        let row = min(index / FOURS, params.m - 1u);
        let four = first_output / 4u + index % FOURS;
        let at = row * params.y_stride + 4u * four;
        let v = vec4<f32>(y[at], y[at + 1u], y[at + 2u], y[at + 3u]);
#if RESULTS == normed
        let bytes = to_int8(v * weight[four], here);
        let sum = block_squares(v, here);
#else
        let bytes = to_int8(v, here);
#endif
        if (index / FOURS < params.m) {
            write_int8(bytes, row, four, params.y_stride / 32u);
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
    let member = Member(here.subgroup * 32u + here.subgroup_lane);
    let first_column = group_index(here) * (16u * TILES);
    identity[member.place] = select(f16(0.0), f16(1.0), member.place / 16u == member.place % 16u);
#if INPUT == squares
    let fetched_squares = fetch_squares(member);
#else
    find_factors(0u, member);
#endif
    var fetched_x = fetch_x(member.place, 0u);
    var fetched = fetch(member.place, first_column, 0u);
    var total = 0.0;
    for (var split = 0u; split < SPLITS; split += 1u) {
        stage_x(fetched_x, member.place);
#if INPUT == squares
        if (split == 0u) {
            find_factors(fetched_squares, member);
        }
#endif
        workgroupBarrier();
#repeat I 2
        let choice##I = coopLoad<RIGHT>(&identity[16u * (I##u * 8u + here.subgroup)], 0u);
#end
#repeat N NUMBERS
#repeat H 2
#repeat I 2
        let block##N##H##I = N##u * 32u + H##u * 16u + I##u * 8u + here.subgroup;
        let right##N##H##I = coopLoad<RIGHT>(&staged[2u * block##N##H##I], STAGED_ROW);
#if TILES > 1
        let scale_x##N##H##I = coopLoadT<SUMS>(&scales_x[16u * block##N##H##I], 0u);
#endif
#end
#end
#end
        workgroupBarrier();
        stage(fetched, member.place, split);
        workgroupBarrier();
        for (var tile = 0u; tile < TILES; tile += 1u) {
            // What comes next; behind the last, it once more, which is still at hand.
#if SPLITS > 1
            fetched_x = fetch_x(member.place, min(split + 1u, SPLITS - 1u));
            fetched = fetch(member.place, first_column, min(split + 1u, SPLITS - 1u));
#else
            fetched = fetch(member.place, first_column + 16u * min(tile + 1u, TILES - 1u), 0u);
#endif
#repeat N NUMBERS
#repeat H 2
            let scales##N##H = coopLoadT<LEFT>(&staged_scales[N##u * 32u + H##u * 16u], SCALES_ROW);
#repeat I 2
            let left##N##H##I = coopLoadT<LEFT>(&staged[2u * block##N##H##I], STAGED_ROW);
            let sums##N##H##I = coopMultiplyAdd(left##N##H##I, right##N##H##I, SUMS());
#if TILES == 1
            // For one tile there is no use in keeping them.
            let scale_x##N##H##I = coopLoadT<SUMS>(&scales_x[16u * block##N##H##I], 0u);
#endif
            let scaled##N##H##I = sums##N##H##I EACH_TIMES scale_x##N##H##I;
            let scale##N##H##I = coopMultiplyAdd(scales##N##H, choice##I, SUMS());
            let sum##N##H##I = scale##N##H##I EACH_TIMES scaled##N##H##I;
#end
#end
#end
#repeat H 2
#repeat I 2
#if NUMBERS == 1
            // Rounded before it is a summand.
            let leaf##H##I = sum0##H##I * 1.0;
#else
            let leaf##H##I = sum0##H##I + sum1##H##I;
#endif
#end
#end
            let leaves = (leaf00 + leaf10) + (leaf01 + leaf11);
            let leaves_at = here.subgroup * 256u;
            coopStore(leaves, &leaving[leaves_at], 16u);
            workgroupBarrier();
#if SPLITS > 1
            let more = tree(member.place);
            total = select(total + more, more, split == 0u);
#else
            write_outputs(0u, first_column + 16u * tile, member);
            stage(fetched, member.place, 0u);
            workgroupBarrier();
#endif
        }
    }
#if SPLITS > 1
    workgroupBarrier();
    leaving[member.place] = total;
    workgroupBarrier();
    write_outputs(0u, first_column, member);
#endif
#if RESULTS != f32
    // The last barrier was of workgroup memory.
    storageBarrier();
    write_byte_outputs(group_index(here) * (TILES * OUTPUTS), member);
#endif
}
