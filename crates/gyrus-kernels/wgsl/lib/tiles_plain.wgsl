// A tile by plain arithmetic: 16 × 16 invocations, each with the sums of EACH_ROWS × EACH_COLUMNS outputs that lie
// sixteen apart, so that neighbours read neighbouring rows.

// Rows of STEP numbers, four at a time.
const QUADS: u32 = STEP / 4u;
const PLACES: u32 = 8u;

var<workgroup> staged_x: array<vec4<f32>, TILE_ROWS * QUADS>;
var<workgroup> staged_w: array<vec4<f32>, TILE_COLUMNS * QUADS>;

// Neighbouring rows are shifted against each other: the same quad of eight of them lies in all banks.
fn place(row: u32, quad: u32) -> u32 {
    return row * QUADS + (quad ^ (row * QUADS / PLACES % QUADS));
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let own = tile(here);
    let first_row = own.first_row;
    let first_column = own.first_column;
    let own_row = here.local_index / 16u;
    let own_column = here.local_index % 16u;

    var sums: array<f32, EACH_ROWS * EACH_COLUMNS>;
    for (var step = own.first_step; step < own.last_step; step += 1u) {
        workgroupBarrier();
        for (var group = here.local_index; group < TILE_COLUMNS * SIXTEENS; group += WORKGROUP) {
            let values = sixteen_values(fetch_weights(group, step, first_column));
            let row = group / SIXTEENS;
            let quad = group % SIXTEENS * 4u;
            staged_w[place(row, quad)] = values[0];
            staged_w[place(row, quad + 1u)] = values[1];
            staged_w[place(row, quad + 2u)] = values[2];
            staged_w[place(row, quad + 3u)] = values[3];
        }
        for (var group = here.local_index; group < TILE_ROWS * EIGHTS; group += WORKGROUP) {
            let words = x[place_of_x(group, step, first_row)];
            let row = group / EIGHTS;
            let quad = group % EIGHTS * 2u;
            staged_x[place(row, quad)] = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
            staged_x[place(row, quad + 1u)] = vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w));
        }
        workgroupBarrier();
        for (var quad = 0u; quad < QUADS; quad += 1u) {
            var w: array<vec4<f32>, EACH_COLUMNS>;
            for (var j = 0u; j < EACH_COLUMNS; j += 1u) {
                w[j] = staged_w[place(own_column + 16u * j, quad)];
            }
            for (var i = 0u; i < EACH_ROWS; i += 1u) {
                let v = staged_x[place(own_row + 16u * i, quad)];
                for (var j = 0u; j < EACH_COLUMNS; j += 1u) {
                    let at = i * EACH_COLUMNS + j;
                    sums[at] = fma(v.w, w[j].w, fma(v.z, w[j].z, fma(v.y, w[j].y, fma(v.x, w[j].x, sums[at]))));
                }
            }
        }
    }
    for (var i = 0u; i < EACH_ROWS; i += 1u) {
        let row = first_row + own_row + 16u * i;
#if ACTIVATION == none
        for (var j = 0u; j < EACH_COLUMNS; j += 1u) {
            write(row, first_column + own_column + 16u * j, sums[i * EACH_COLUMNS + j]);
        }
#else
        for (var j = 0u; j < EACH_COLUMNS / 2u; j += 1u) {
            let at = i * EACH_COLUMNS + j;
            write(row, first_column + own_column + 16u * j, sums[at], sums[at + EACH_COLUMNS / 2u]);
        }
#endif
    }
}
