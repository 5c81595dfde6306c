// A tile by cooperative matrices: SUBGROUP_COUNT subgroups, SUBGROUP_COLUMNS of them side by side, each with the sums of
// INT8_MATRIX_ROWS × MATRIX_COLUMNS matrices of MATRIX × MATRIX. Each matrix is a variable of its own, since a compiler keeps
// an array of them in registers only if it likes.
//
// STAGES 1: while a step is multiplied, the next one is on its way to registers. STAGES 2: likewise, and it is staged
// beside the one that is read, which saves a barrier a step.

#if MATRIX == 16
#define LEFT coop_mat16x16<f16, A>
#define RIGHT coop_mat16x16<f16, B>
#define SUMS coop_mat16x16<f32, C>
// Four halves are an element of workgroup memory, in which strides are counted.
#define STAGED vec4<f16>
const UNITS: u32 = 1u;
#else
#define LEFT coop_mat8x8<f16, A>
#define RIGHT coop_mat8x8<f16, B>
#define SUMS coop_mat8x8<f32, C>
// Metal loads matrices from scalars only.
#define STAGED f16
const UNITS: u32 = 4u;
#endif

// Elements from one staged row to the next: eight halves more than there are spread rows over the banks.
const ROW: u32 = (STEP / 4u + 2u) * UNITS;
const X_STAGE: u32 = TILE_ROWS * ROW;
const W_STAGE: u32 = TILE_COLUMNS * ROW;
const SIDE: u32 = MATRIX;
const AREA: u32 = SIDE * SIDE;

var<workgroup> staged_x: array<STAGED, X_STAGE * STAGES>;
var<workgroup> staged_w: array<STAGED, W_STAGE * STAGES>;
// A matrix of each subgroup on its way out; at first, zeros to begin with.
var<workgroup> leaving: array<f32, SUBGROUP_COUNT * AREA>;

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

// Four weights as halves, rounded once. Quantized become numbers by their place in the bits of 1024 + byte, since
// converting integers is slow.
#if WEIGHT == f32 || WEIGHT == f16 || WEIGHT == bf16
#define QUICK 0
#elif WEIGHT == q8_0 || WEIGHT == iq4_nl || WEIGHT == iq4_xs
#define QUICK 1
const FLIPPED: u32 = 0x80808080u;
const BIAS: u32 = 1152u;
#else
#define QUICK 1
const FLIPPED: u32 = 0u;
const BIAS: u32 = 1024u + ZERO_POINT;
#endif

#if QUICK
fn four_halves(word: u32, s: Sixteen) -> vec4<f16> {
    let bytes = word ^ FLIPPED;
    let even = unpack2x16float((bytes & 0x00ff00ffu) | 0x64006400u);
    let odd = unpack2x16float(((bytes >> 8u) & 0x00ff00ffu) | 0x64006400u);
#if WEIGHT == q4_0 || WEIGHT == q5_0 || WEIGHT == q8_0 || WEIGHT == iq4_nl
    // The scale is a half itself: one rounding of the product in halves too.
    let first = (vec2<f16>(even) - f16(BIAS)) * f16(s.scale);
    let second = (vec2<f16>(odd) - f16(BIAS)) * f16(s.scale);
    return vec4<f16>(first.x, second.x, first.y, second.y);
#else
    let numbers = vec4<f32>(even.x, odd.x, even.y, odd.y) - f32(BIAS);
#if OFFSETS
    return vec4<f16>(s.scale * numbers + s.offset);
#else
    return vec4<f16>(s.scale * numbers);
#endif
#endif
}
#endif

fn stage_weights(group: u32, s: Sixteen, stage: u32) {
    let at = stage * W_STAGE + group / SIXTEENS * ROW + group % SIXTEENS * 4u * UNITS;
#if QUICK
    put_w(at, four_halves(s.bytes.x, s));
    put_w(at + UNITS, four_halves(s.bytes.y, s));
    put_w(at + 2u * UNITS, four_halves(s.bytes.z, s));
    put_w(at + 3u * UNITS, four_halves(s.bytes.w, s));
#else
    let values = sixteen_values(s);
    put_w(at, vec4<f16>(values[0]));
    put_w(at + UNITS, vec4<f16>(values[1]));
    put_w(at + 2u * UNITS, vec4<f16>(values[2]));
    put_w(at + 3u * UNITS, vec4<f16>(values[3]));
#endif
}

fn stage_x(group: u32, eight: Eight, stage: u32) {
    let at = stage * X_STAGE + group / EIGHTS * ROW + group % EIGHTS * 2u * UNITS;
    put_x(at, eight.low);
    put_x(at + UNITS, eight.high);
}

// Writes what all subgroups have left: matrix (i, j) of each of them.
fn leave(lane: u32, i: u32, j: u32, first_row: u32, first_column: u32) {
    workgroupBarrier();
#if ACTIVATION == none
    for (var e = lane; e < SUBGROUP_COUNT * AREA; e += WORKGROUP) {
        let subgroup_row = e / AREA / SUBGROUP_COLUMNS;
        let subgroup_column = e / AREA % SUBGROUP_COLUMNS;
#else
    // The left half of the subgroups has the gate.
    for (var e = lane; e < SUBGROUP_COUNT / 2u * AREA; e += WORKGROUP) {
        let subgroup_row = e / AREA / (SUBGROUP_COLUMNS / 2u);
        let subgroup_column = e / AREA % (SUBGROUP_COLUMNS / 2u);
        let at = (subgroup_row * SUBGROUP_COLUMNS + subgroup_column) * AREA + e % AREA;
#endif
        let row = first_row + (subgroup_row * INT8_MATRIX_ROWS + i) * SIDE + e % AREA / SIDE;
        let column = first_column + (subgroup_column * MATRIX_COLUMNS + j) * SIDE + e % SIDE;
#if ACTIVATION == none
        write(row, column, leaving[e]);
#else
        write(row, column, leaving[at], leaving[at + SUBGROUP_COLUMNS / 2u * AREA]);
#endif
    }
    workgroupBarrier();
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let own = tile(here);
    let first_row = own.first_row;
    let first_column = own.first_column;
    let own_x = here.subgroup_id / SUBGROUP_COLUMNS * (INT8_MATRIX_ROWS * SIDE * ROW);
    let own_w = here.subgroup_id % SUBGROUP_COLUMNS * (MATRIX_COLUMNS * SIDE * ROW);

    for (var e = here.local_index; e < AREA; e += WORKGROUP) {
        leaving[e] = 0.0;
    }
    var next_w: array<Sixteen, EACH_SIXTEENS>;
    var next_x: array<Eight, EACH_EIGHTS>;
    for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
        next_w[i] = fetch_weights(here.local_index + i * WORKGROUP, own.first_step, first_column);
    }
    for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
        next_x[i] = x[place_of_x(here.local_index + i * WORKGROUP, own.first_step, first_row)];
    }
    workgroupBarrier();
#repeat I INT8_MATRIX_ROWS
#repeat J MATRIX_COLUMNS
    var c##I##J = coopLoadT<SUMS>(&leaving[0], SIDE);
#end
#end

#if STAGES == 2
    for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
        stage_weights(here.local_index + i * WORKGROUP, next_w[i], 0u);
    }
    for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
        stage_x(here.local_index + i * WORKGROUP, next_x[i], 0u);
    }
#endif
    for (var step = own.first_step; step < own.last_step; step += 1u) {
        workgroupBarrier();
#if STAGES == 1
        for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
            stage_weights(here.local_index + i * WORKGROUP, next_w[i], 0u);
        }
        for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
            stage_x(here.local_index + i * WORKGROUP, next_x[i], 0u);
        }
        workgroupBarrier();
        let stage = 0u;
#else
        let stage = (step - own.first_step) % 2u;
#endif
        if (step + 1u < own.last_step) {
            for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
                next_w[i] = fetch_weights(here.local_index + i * WORKGROUP, step + 1u, first_column);
            }
            for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
                next_x[i] = x[place_of_x(here.local_index + i * WORKGROUP, step + 1u, first_row)];
            }
        }
        for (var k = 0u; k < STEP / SIDE; k += 1u) {
            let at_x = stage * X_STAGE + own_x + k * (SIDE / 4u * UNITS);
            let at_w = stage * W_STAGE + own_w + k * (SIDE / 4u * UNITS);
#repeat I INT8_MATRIX_ROWS
            let at_a##I = at_x + I##u * SIDE * ROW;
            let a##I = coopLoadT<LEFT>(&staged_x[at_a##I], ROW);
#end
#repeat J MATRIX_COLUMNS
            let at_b##J = at_w + J##u * SIDE * ROW;
            let b##J = coopLoad<RIGHT>(&staged_w[at_b##J], ROW);
#end
#repeat I INT8_MATRIX_ROWS
#repeat J MATRIX_COLUMNS
            c##I##J = coopMultiplyAdd(a##I, b##J, c##I##J);
#end
#end
        }
#if STAGES == 2
        if (step + 1u < own.last_step) {
            for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
                stage_weights(here.local_index + i * WORKGROUP, next_w[i], 1u - stage);
            }
            for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
                stage_x(here.local_index + i * WORKGROUP, next_x[i], 1u - stage);
            }
        }
#endif
    }

    // The store takes only what was named before it.
    let leaves_at = here.subgroup_id * AREA;
#repeat I INT8_MATRIX_ROWS
#repeat J MATRIX_COLUMNS
    let d##I##J = c##I##J;
    coopStoreT(d##I##J, &leaving[leaves_at], SIDE);
    leave(here.local_index, I##u, J##u, first_row, first_column);
#end
#end
}
