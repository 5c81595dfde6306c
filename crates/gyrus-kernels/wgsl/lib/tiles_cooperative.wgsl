// A tile by f16 cooperative matrices (tensor cores). SUBGROUP_COUNT subgroups, SUBGROUP_COLUMNS of them side by side,
// each with MATRIX_ROWS × MATRIX_COLUMNS accumulator fragments of MATRIX × MATRIX. Each fragment is a variable of its
// own: compilers do not reliably keep an array of fragments in registers.
//
// The loads of the next step are in flight in registers while a step is multiplied. SLICES fragments along k are a step.

#if MATRIX == 16
#define FRAGMENT_A coop_mat16x16<f16, A>
#define FRAGMENT_B coop_mat16x16<f16, B>
#define ACCUMULATOR coop_mat16x16<f32, C>
// An element of workgroup memory is four f16; strides count such elements.
#define STAGED vec4<f16>
const STAGED_PER_4: u32 = 1u;
#else
#define FRAGMENT_A coop_mat8x8<f16, A>
#define FRAGMENT_B coop_mat8x8<f16, B>
#define ACCUMULATOR coop_mat8x8<f32, C>
// Metal loads matrices from arrays of scalars only.
#define STAGED f16
const STAGED_PER_4: u32 = 4u;
#endif

// Elements from one staged row to the next. Eight f16 of padding avoid bank conflicts.
const STAGE_STRIDE: u32 = (STEP / 4u + 2u) * STAGED_PER_4;
const X_STAGE: u32 = TILE_ROWS * STAGE_STRIDE;
const W_STAGE: u32 = TILE_COLUMNS * STAGE_STRIDE;
const SIDE: u32 = MATRIX;
const AREA: u32 = SIDE * SIDE;

var<workgroup> staged_x: array<STAGED, X_STAGE>;
var<workgroup> staged_w: array<STAGED, W_STAGE>;
// One fragment of each subgroup, for the epilogue; before the loop, zeros that initialise the accumulators.
var<workgroup> fragments: array<f32, SUBGROUP_COUNT * AREA>;

fn put_x(at: u32, four: vec4<f16>) {
#if MATRIX == 16
    staged_x[at] = four;
#else
    staged_x[at] = four.x;
    staged_x[at + 1u] = four.y;
    staged_x[at + 2u] = four.z;
    staged_x[at + 3u] = four.w;
#endif
}

fn put_w(at: u32, four: vec4<f16>) {
#if MATRIX == 16
    staged_w[at] = four;
#else
    staged_w[at] = four.x;
    staged_w[at + 1u] = four.y;
    staged_w[at + 2u] = four.z;
    staged_w[at + 3u] = four.w;
#endif
}

// Four weights as f16, rounded once. With BIT_CONVERT a byte becomes f16 by bit operations: it is the low mantissa of
// the f16 1024 + byte. Integer conversion instructions are slow.
#if WEIGHT == f32 || WEIGHT == f16 || WEIGHT == bf16
#define BIT_CONVERT 0
#elif WEIGHT == q8_0 || CODEBOOK
#define BIT_CONVERT 1
const SIGN_FLIP: u32 = 0x80808080u;
const BYTE_BIAS: u32 = 1152u;
#elif UNSIGNED_8
#define BIT_CONVERT 1
const SIGN_FLIP: u32 = 0x80808080u;
const BYTE_BIAS: u32 = 1024u;
#else
#define BIT_CONVERT 1
const SIGN_FLIP: u32 = 0u;
const BYTE_BIAS: u32 = 1024u + ZERO_POINT;
#endif

#if BIT_CONVERT
fn four_f16(word: u32, s: Weights16) -> vec4<f16> {
    let q8 = word ^ SIGN_FLIP;
    let even = unpack2x16float((q8 & 0x00ff00ffu) | 0x64006400u);
    let odd = unpack2x16float(((q8 >> 8u) & 0x00ff00ffu) | 0x64006400u);
#if WEIGHT == q4_0 || WEIGHT == q5_0 || WEIGHT == q8_0 || WEIGHT == iq4_nl
    // The scale is f16, so the product in f16 is rounded once as well.
    let first = (vec2<f16>(even) - f16(BYTE_BIAS)) * f16(s.scale);
    let second = (vec2<f16>(odd) - f16(BYTE_BIAS)) * f16(s.scale);
    return vec4<f16>(first.x, second.x, first.y, second.y);
#else
    let quants_f32 = vec4<f32>(even.x, odd.x, even.y, odd.y) - f32(BYTE_BIAS);
#if OFFSETS
    return vec4<f16>(s.scale * quants_f32 + s.offset);
#else
    return vec4<f16>(s.scale * quants_f32);
#endif
#endif
}
#endif

fn stage_weights(group: u32, s: Weights16) {
    let at = group / WEIGHT_GROUPS * STAGE_STRIDE + group % WEIGHT_GROUPS * 4u * STAGED_PER_4;
#if BIT_CONVERT
    put_w(at, four_f16(s.q8.x, s));
    put_w(at + STAGED_PER_4, four_f16(s.q8.y, s));
    put_w(at + 2u * STAGED_PER_4, four_f16(s.q8.z, s));
    put_w(at + 3u * STAGED_PER_4, four_f16(s.q8.w, s));
#else
    let values = weights16_values(s);
    put_w(at, vec4<f16>(values[0]));
    put_w(at + STAGED_PER_4, vec4<f16>(values[1]));
    put_w(at + 2u * STAGED_PER_4, vec4<f16>(values[2]));
    put_w(at + 3u * STAGED_PER_4, vec4<f16>(values[3]));
#endif
}

fn stage_x(group: u32, values: F16x8) {
    let at = group / X_GROUPS * STAGE_STRIDE + group % X_GROUPS * 2u * STAGED_PER_4;
    put_x(at, values.low);
    put_x(at + STAGED_PER_4, values.high);
}

// Writes fragment (i, j) of all subgroups to y.
fn store_fragments(lane: u32, i: u32, j: u32, tile: Tile) {
    workgroupBarrier();
#if !GATED
    for (var e = lane; e < SUBGROUP_COUNT * AREA; e += WORKGROUP) {
        let subgroup_row = e / AREA / SUBGROUP_COLUMNS;
        let subgroup_column = e / AREA % SUBGROUP_COLUMNS;
#else
    // The left half of the subgroups has the gate's columns.
    for (var e = lane; e < SUBGROUP_COUNT / 2u * AREA; e += WORKGROUP) {
        let subgroup_row = e / AREA / (SUBGROUP_COLUMNS / 2u);
        let subgroup_column = e / AREA % (SUBGROUP_COLUMNS / 2u);
        let at = (subgroup_row * SUBGROUP_COLUMNS + subgroup_column) * AREA + e % AREA;
#endif
        let row = tile.first_row + (subgroup_row * MATRIX_ROWS + i) * SIDE + e % AREA / SIDE;
        let column = tile.first_column + (subgroup_column * MATRIX_COLUMNS + j) * SIDE + e % SIDE;
#if !GATED
        write(row, column, fragments[e], tile);
#else
        write(row, column, fragments[at], fragments[at + SUBGROUP_COLUMNS / 2u * AREA], tile);
#endif
    }
    workgroupBarrier();
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let tile = tile_of(here);
#if EXPERTS
    if (workgroupUniformLoad(&slot_count) == 0u) {
        return;
    }
#endif
    let first_row = tile.first_row;
    let first_column = tile.first_column;
    let subgroup_x = here.subgroup_id / SUBGROUP_COLUMNS * (MATRIX_ROWS * SIDE * STAGE_STRIDE);
    let subgroup_w = here.subgroup_id % SUBGROUP_COLUMNS * (MATRIX_COLUMNS * SIDE * STAGE_STRIDE);

    for (var e = here.local_index; e < AREA; e += WORKGROUP) {
        fragments[e] = 0.0;
    }
    var next_w: array<Weights16, WEIGHT_LOADS>;
    var next_x: array<F16x8, X_LOADS>;
    for (var i = 0u; i < WEIGHT_LOADS; i += 1u) {
        next_w[i] = load_weights(here.local_index + i * WORKGROUP, tile.first_step, first_column);
    }
    for (var i = 0u; i < X_LOADS; i += 1u) {
        next_x[i] = x[x_index(here.local_index + i * WORKGROUP, tile.first_step, first_row)];
    }
    workgroupBarrier();
#repeat I MATRIX_ROWS
#repeat J MATRIX_COLUMNS
    var c##I##J = coopLoadT<ACCUMULATOR>(&fragments[0], SIDE);
#end
#end

    for (var step = tile.first_step; step < tile.end_step; step += 1u) {
        workgroupBarrier();
        for (var i = 0u; i < WEIGHT_LOADS; i += 1u) {
            stage_weights(here.local_index + i * WORKGROUP, next_w[i]);
        }
        for (var i = 0u; i < X_LOADS; i += 1u) {
            stage_x(here.local_index + i * WORKGROUP, next_x[i]);
        }
        workgroupBarrier();
        if (step + 1u < tile.end_step) {
            for (var i = 0u; i < WEIGHT_LOADS; i += 1u) {
                next_w[i] = load_weights(here.local_index + i * WORKGROUP, step + 1u, first_column);
            }
            for (var i = 0u; i < X_LOADS; i += 1u) {
                next_x[i] = x[x_index(here.local_index + i * WORKGROUP, step + 1u, first_row)];
            }
        }
#repeat K SLICES
        {
            let at_x = subgroup_x + K##u * (SIDE / 4u * STAGED_PER_4);
            let at_w = subgroup_w + K##u * (SIDE / 4u * STAGED_PER_4);
#repeat I MATRIX_ROWS
            let at_a##I = at_x + I##u * SIDE * STAGE_STRIDE;
            let a##I = coopLoadT<FRAGMENT_A>(&staged_x[at_a##I], STAGE_STRIDE);
#end
#repeat J MATRIX_COLUMNS
            let at_b##J = at_w + J##u * SIDE * STAGE_STRIDE;
            let b##J = coopLoad<FRAGMENT_B>(&staged_w[at_b##J], STAGE_STRIDE);
#end
#repeat I MATRIX_ROWS
#repeat J MATRIX_COLUMNS
            c##I##J = coopMultiplyAdd(a##I, b##J, c##I##J);
#end
#end
        }
#end
    }

    // coopStoreT takes a `let` only.
    let fragment_at = here.subgroup_id * AREA;
#repeat I MATRIX_ROWS
#repeat J MATRIX_COLUMNS
    let d##I##J = c##I##J;
    coopStoreT(d##I##J, &fragments[fragment_at], SIDE);
    store_fragments(here.local_index, I##u, J##u, tile);
#end
#end
}
