// A tile by f32 arithmetic: 16 × 16 invocations, each with ROWS_PER_INVOCATION × COLUMNS_PER_INVOCATION outputs that
// are 16 apart, so that neighbouring invocations read neighbouring rows.

// Vectors of four in a staged row of STEP elements.
const QUADS: u32 = STEP / 4u;
const BANK_VECTORS: u32 = 8u;

var<workgroup> staged_x: array<vec4<f32>, TILE_ROWS * QUADS>;
var<workgroup> staged_w: array<vec4<f32>, TILE_COLUMNS * QUADS>;

// Swizzle against bank conflicts: the same quad of eight neighbouring rows covers all banks.
fn swizzled(row: u32, quad: u32) -> u32 {
    return row * QUADS + (quad ^ (row * QUADS / BANK_VECTORS % QUADS));
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
    let own_row = here.local_index / 16u;
    let own_column = here.local_index % 16u;

    var sums: array<f32, ROWS_PER_INVOCATION * COLUMNS_PER_INVOCATION>;
    for (var step = tile.first_step; step < tile.end_step; step += 1u) {
        workgroupBarrier();
        for (var group = here.local_index; group < TILE_COLUMNS * WEIGHT_GROUPS; group += WORKGROUP) {
            let values = weights16_values(load_weights(group, step, first_column));
            let row = group / WEIGHT_GROUPS;
            let quad = group % WEIGHT_GROUPS * 4u;
            staged_w[swizzled(row, quad)] = values[0];
            staged_w[swizzled(row, quad + 1u)] = values[1];
            staged_w[swizzled(row, quad + 2u)] = values[2];
            staged_w[swizzled(row, quad + 3u)] = values[3];
        }
        for (var group = here.local_index; group < TILE_ROWS * X_GROUPS; group += WORKGROUP) {
            let words = x[x_index(group, step, first_row)];
            let row = group / X_GROUPS;
            let quad = group % X_GROUPS * 2u;
            staged_x[swizzled(row, quad)] = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
            staged_x[swizzled(row, quad + 1u)] = vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w));
        }
        workgroupBarrier();
        for (var quad = 0u; quad < QUADS; quad += 1u) {
            var w: array<vec4<f32>, COLUMNS_PER_INVOCATION>;
            for (var j = 0u; j < COLUMNS_PER_INVOCATION; j += 1u) {
                w[j] = staged_w[swizzled(own_column + 16u * j, quad)];
            }
            for (var i = 0u; i < ROWS_PER_INVOCATION; i += 1u) {
                let v = staged_x[swizzled(own_row + 16u * i, quad)];
                for (var j = 0u; j < COLUMNS_PER_INVOCATION; j += 1u) {
                    let at = i * COLUMNS_PER_INVOCATION + j;
                    sums[at] = fma(v.w, w[j].w, fma(v.z, w[j].z, fma(v.y, w[j].y, fma(v.x, w[j].x, sums[at]))));
                }
            }
        }
    }
    for (var i = 0u; i < ROWS_PER_INVOCATION; i += 1u) {
        let row = first_row + own_row + 16u * i;
#if !GATED
        for (var j = 0u; j < COLUMNS_PER_INVOCATION; j += 1u) {
            write(row, first_column + own_column + 16u * j, sums[i * COLUMNS_PER_INVOCATION + j], tile);
        }
#else
        for (var j = 0u; j < COLUMNS_PER_INVOCATION / 2u; j += 1u) {
            let at = i * COLUMNS_PER_INVOCATION + j;
            write(row, first_column + own_column + 16u * j, sums[at], sums[at + COLUMNS_PER_INVOCATION / 2u], tile);
        }
#endif
    }
}
