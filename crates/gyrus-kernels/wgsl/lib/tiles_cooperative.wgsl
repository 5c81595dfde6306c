// A tile by cooperative matrices: SUBGROUP_COUNT subgroups, SUBGROUP_COLUMNS of them side by side, each with the sums of
// MATRIX_ROWS × MATRIX_COLUMNS matrices of MATRIX × MATRIX. What each has is written out, since a compiler keeps an
// array of matrices in registers only if it likes.
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

// Four weights as halves, rounded once. Bytes become numbers by their place in the bits of 1024 + byte, since
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
const BIAS: u32 = 1024u + ZERO;
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
        let row = first_row + (subgroup_row * MATRIX_ROWS + i) * SIDE + e % AREA / SIDE;
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
    let own_x = here.subgroup / SUBGROUP_COLUMNS * (MATRIX_ROWS * SIDE * ROW);
    let own_w = here.subgroup % SUBGROUP_COLUMNS * (MATRIX_COLUMNS * SIDE * ROW);

    for (var e = here.lane; e < AREA; e += WORKGROUP) {
        leaving[e] = 0.0;
    }
    var next_w: array<Sixteen, EACH_SIXTEENS>;
    var next_x: array<Eight, EACH_EIGHTS>;
    for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
        next_w[i] = fetch_weights(here.lane + i * WORKGROUP, own.first_step, first_column);
    }
    for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
        next_x[i] = x[place_of_x(here.lane + i * WORKGROUP, own.first_step, first_row)];
    }
    workgroupBarrier();
    var c00 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c01 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c10 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c11 = coopLoadT<SUMS>(&leaving[0], SIDE);
#if MATRIX_COLUMNS == 4
    var c02 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c03 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c12 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c13 = coopLoadT<SUMS>(&leaving[0], SIDE);
#endif
#if MATRIX_ROWS == 4
    var c20 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c21 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c30 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c31 = coopLoadT<SUMS>(&leaving[0], SIDE);
#endif
#if MATRIX_ROWS == 4 && MATRIX_COLUMNS == 4
    var c22 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c23 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c32 = coopLoadT<SUMS>(&leaving[0], SIDE);
    var c33 = coopLoadT<SUMS>(&leaving[0], SIDE);
#endif

#if STAGES == 2
    for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
        stage_weights(here.lane + i * WORKGROUP, next_w[i], 0u);
    }
    for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
        stage_x(here.lane + i * WORKGROUP, next_x[i], 0u);
    }
#endif
    for (var step = own.first_step; step < own.last_step; step += 1u) {
        workgroupBarrier();
#if STAGES == 1
        for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
            stage_weights(here.lane + i * WORKGROUP, next_w[i], 0u);
        }
        for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
            stage_x(here.lane + i * WORKGROUP, next_x[i], 0u);
        }
        workgroupBarrier();
        let stage = 0u;
#else
        let stage = (step - own.first_step) % 2u;
#endif
        if (step + 1u < own.last_step) {
            for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
                next_w[i] = fetch_weights(here.lane + i * WORKGROUP, step + 1u, first_column);
            }
            for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
                next_x[i] = x[place_of_x(here.lane + i * WORKGROUP, step + 1u, first_row)];
            }
        }
        for (var k = 0u; k < STEP / SIDE; k += 1u) {
            let at_x = stage * X_STAGE + own_x + k * (SIDE / 4u * UNITS);
            let at_w = stage * W_STAGE + own_w + k * (SIDE / 4u * UNITS);
            let at_a0 = at_x + 0u * SIDE * ROW;
            let a0 = coopLoadT<LEFT>(&staged_x[at_a0], ROW);
            let at_a1 = at_x + 1u * SIDE * ROW;
            let a1 = coopLoadT<LEFT>(&staged_x[at_a1], ROW);
#if MATRIX_ROWS == 4
            let at_a2 = at_x + 2u * SIDE * ROW;
            let a2 = coopLoadT<LEFT>(&staged_x[at_a2], ROW);
            let at_a3 = at_x + 3u * SIDE * ROW;
            let a3 = coopLoadT<LEFT>(&staged_x[at_a3], ROW);
#endif
            let at_b0 = at_w + 0u * SIDE * ROW;
            let b0 = coopLoad<RIGHT>(&staged_w[at_b0], ROW);
            let at_b1 = at_w + 1u * SIDE * ROW;
            let b1 = coopLoad<RIGHT>(&staged_w[at_b1], ROW);
#if MATRIX_COLUMNS == 4
            let at_b2 = at_w + 2u * SIDE * ROW;
            let b2 = coopLoad<RIGHT>(&staged_w[at_b2], ROW);
            let at_b3 = at_w + 3u * SIDE * ROW;
            let b3 = coopLoad<RIGHT>(&staged_w[at_b3], ROW);
#endif
            c00 = coopMultiplyAdd(a0, b0, c00);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c11 = coopMultiplyAdd(a1, b1, c11);
#if MATRIX_COLUMNS == 4
            c02 = coopMultiplyAdd(a0, b2, c02);
            c03 = coopMultiplyAdd(a0, b3, c03);
            c12 = coopMultiplyAdd(a1, b2, c12);
            c13 = coopMultiplyAdd(a1, b3, c13);
#endif
#if MATRIX_ROWS == 4
            c20 = coopMultiplyAdd(a2, b0, c20);
            c21 = coopMultiplyAdd(a2, b1, c21);
            c30 = coopMultiplyAdd(a3, b0, c30);
            c31 = coopMultiplyAdd(a3, b1, c31);
#endif
#if MATRIX_ROWS == 4 && MATRIX_COLUMNS == 4
            c22 = coopMultiplyAdd(a2, b2, c22);
            c23 = coopMultiplyAdd(a2, b3, c23);
            c32 = coopMultiplyAdd(a3, b2, c32);
            c33 = coopMultiplyAdd(a3, b3, c33);
#endif
        }
#if STAGES == 2
        if (step + 1u < own.last_step) {
            for (var i = 0u; i < EACH_SIXTEENS; i += 1u) {
                stage_weights(here.lane + i * WORKGROUP, next_w[i], 1u - stage);
            }
            for (var i = 0u; i < EACH_EIGHTS; i += 1u) {
                stage_x(here.lane + i * WORKGROUP, next_x[i], 1u - stage);
            }
        }
#endif
    }

    // The store takes only what was named before it.
    let leaves_at = here.subgroup * AREA;
    let d00 = c00;
    coopStoreT(d00, &leaving[leaves_at], SIDE);
    leave(here.lane, 0u, 0u, first_row, first_column);
    let d01 = c01;
    coopStoreT(d01, &leaving[leaves_at], SIDE);
    leave(here.lane, 0u, 1u, first_row, first_column);
    let d10 = c10;
    coopStoreT(d10, &leaving[leaves_at], SIDE);
    leave(here.lane, 1u, 0u, first_row, first_column);
    let d11 = c11;
    coopStoreT(d11, &leaving[leaves_at], SIDE);
    leave(here.lane, 1u, 1u, first_row, first_column);
#if MATRIX_COLUMNS == 4
    let d02 = c02;
    coopStoreT(d02, &leaving[leaves_at], SIDE);
    leave(here.lane, 0u, 2u, first_row, first_column);
    let d03 = c03;
    coopStoreT(d03, &leaving[leaves_at], SIDE);
    leave(here.lane, 0u, 3u, first_row, first_column);
    let d12 = c12;
    coopStoreT(d12, &leaving[leaves_at], SIDE);
    leave(here.lane, 1u, 2u, first_row, first_column);
    let d13 = c13;
    coopStoreT(d13, &leaving[leaves_at], SIDE);
    leave(here.lane, 1u, 3u, first_row, first_column);
#endif
#if MATRIX_ROWS == 4
    let d20 = c20;
    coopStoreT(d20, &leaving[leaves_at], SIDE);
    leave(here.lane, 2u, 0u, first_row, first_column);
    let d21 = c21;
    coopStoreT(d21, &leaving[leaves_at], SIDE);
    leave(here.lane, 2u, 1u, first_row, first_column);
    let d30 = c30;
    coopStoreT(d30, &leaving[leaves_at], SIDE);
    leave(here.lane, 3u, 0u, first_row, first_column);
    let d31 = c31;
    coopStoreT(d31, &leaving[leaves_at], SIDE);
    leave(here.lane, 3u, 1u, first_row, first_column);
#endif
#if MATRIX_ROWS == 4 && MATRIX_COLUMNS == 4
    let d22 = c22;
    coopStoreT(d22, &leaving[leaves_at], SIDE);
    leave(here.lane, 2u, 2u, first_row, first_column);
    let d23 = c23;
    coopStoreT(d23, &leaving[leaves_at], SIDE);
    leave(here.lane, 2u, 3u, first_row, first_column);
    let d32 = c32;
    coopStoreT(d32, &leaving[leaves_at], SIDE);
    leave(here.lane, 3u, 2u, first_row, first_column);
    let d33 = c33;
    coopStoreT(d33, &leaving[leaves_at], SIDE);
    leave(here.lane, 3u, 3u, first_row, first_column);
#endif
}
