// The tiles of an iteration of engine/attend_gathered.wgsl and their loads. Needs lib/attend.wgsl, TILES,
// PART_POSITIONS (positions of a part), PART_BLOCKS and PART_POSITIONS_IN_BLOCK (cache blocks of a part, and its
// positions in one), and VALUE_ITERATIONS (iterations in which the invocations sum all values of the tiles).

// Pairs of elements of a head.
#define PAIRS (HEAD_DIM / 2u)
// Invocations needed to sum the values of a tile.
#define VALUE_INVOCATIONS (PARTS * PAIRS)

// An iteration: the tiles at `offset` in TILES splits from `split` on.
struct Step {
    split: u32,
    offset: u32,
}

fn first_position(step: Step, tile: u32, splits: Splits) -> u32 {
    return splits.first + (step.split + tile) * splits.size + step.offset;
}

// The next iteration. Its tiles may be beyond the last position.
fn next_step(step: Step, splits: Splits) -> Step {
    if (step.offset + SPLIT_TILE < splits.size) {
        return Step(step.split, step.offset + SPLIT_TILE);
    }
    return Step(step.split + TILES, 0u);
}

// The values that an invocation sums in an iteration.
struct ValueTask {
    tile: u32,
    part: u32,
    pair: u32,
    in_range: bool,
}

// The parts of a pair are in one 32-lane group, LANES / PARTS lanes apart.
fn value_task(task: Task, iteration: u32) -> ValueTask {
    let index = task.index + iteration * WORKGROUP;
    let in_tile = index % VALUE_INVOCATIONS;
    let part_lanes = LANES / PARTS;
    return ValueTask(
        min(index / VALUE_INVOCATIONS, TILES - 1u), in_tile % LANES / part_lanes,
        in_tile / LANES * part_lanes + in_tile % part_lanes, index < TILES * VALUE_INVOCATIONS);
}

// Block table entries of the tiles of an iteration, two a tile, double-buffered: this iteration's and the next one's.
#define ENTRIES (2u * TILES)
var<workgroup> entries: array<u32, 2u * ENTRIES>;

// Block table entry `number` of an iteration. Positions beyond the last are clamped to it.
fn table_entry(task: Task, step: Step, number: u32, splits: Splits) -> u32 {
    let position = first_position(step, number / 2u, splits) + number % 2u * KV_BLOCK;
    return block_table[task.table_base + min(position, task.position) / KV_BLOCK];
}

// The loads of an invocation: its part of one key of each tile, and one pair of elements of the values of a part.
struct Keys {
    vectors: array<vec4<u32>, TILES * KEY_LOADS>,
}

struct Values {
    words: array<u32, VALUE_ITERATIONS * PART_POSITIONS>,
}

// Positions beyond the last are loaded too. They are in an allocated block.
fn fetch_keys(task: Task, blocks: array<u32, TILES>) -> Keys {
    var keys: Keys;
#repeat T TILES
    {
        let at = vector_at(task, blocks[T], task.index / 4u) + task.index % 4u;
#repeat I KEY_LOADS
        keys.vectors[T * KEY_LOADS + I] = k_cache[at + 4u * I];
#end
    }
#end
    return keys;
}

fn fetch_values(task: Task, blocks: array<u32, VALUE_ITERATIONS * PART_BLOCKS>, values: ptr<function, Values>) {
#repeat R VALUE_ITERATIONS
    {
        let mine = value_task(task, R);
        if (mine.in_range) {
#repeat B PART_BLOCKS
            {
                // A part is within a cache block, or consists of whole blocks.
                let at = vector_at(task, blocks[R * PART_BLOCKS + B], mine.part * PART_POSITIONS) + mine.pair / 4u;
#repeat P PART_POSITIONS_IN_BLOCK
                (*values).words[R * PART_POSITIONS + B * KV_BLOCK + P] = v_cache[at + P * HEAD_VECTORS][mine.pair % 4u];
#end
            }
#end
        }
    }
#end
}

// The cache blocks that an invocation loads from in iteration number `step`.
fn key_blocks(task: Task, step: u32) -> array<u32, TILES> {
    let first = step % 2u * ENTRIES;
    var blocks: array<u32, TILES>;
#repeat T TILES
    blocks[T] = entries[first + 2u * T + task.index / 4u / KV_BLOCK];
#end
    return blocks;
}

fn value_blocks(task: Task, step: u32) -> array<u32, VALUE_ITERATIONS * PART_BLOCKS> {
    let first = step % 2u * ENTRIES;
    var blocks: array<u32, VALUE_ITERATIONS * PART_BLOCKS>;
#repeat R VALUE_ITERATIONS
    {
        let mine = value_task(task, R);
#repeat B PART_BLOCKS
        blocks[R * PART_BLOCKS + B] = entries[first + 2u * mine.tile + mine.part * PART_POSITIONS / KV_BLOCK + B];
#end
    }
#end
    return blocks;
}

// The same for the first iteration, read directly from the block table.
fn first_key_blocks(task: Task, splits: Splits) -> array<u32, TILES> {
    var blocks: array<u32, TILES>;
#repeat T TILES
    {
        let position = first_position(Step(0u, 0u), T, splits) + task.index / 4u;
        blocks[T] = block_table[task.table_base + min(position, task.position) / KV_BLOCK];
    }
#end
    return blocks;
}

fn first_value_blocks(task: Task, splits: Splits) -> array<u32, VALUE_ITERATIONS * PART_BLOCKS> {
    var blocks: array<u32, VALUE_ITERATIONS * PART_BLOCKS>;
#repeat R VALUE_ITERATIONS
    {
        let mine = value_task(task, R);
        let first = first_position(Step(0u, 0u), mine.tile, splits) + mine.part * PART_POSITIONS;
#repeat B PART_BLOCKS
        blocks[R * PART_BLOCKS + B] =
            block_table[task.table_base + min(first + B * KV_BLOCK, task.position) / KV_BLOCK];
#end
    }
#end
    return blocks;
}
