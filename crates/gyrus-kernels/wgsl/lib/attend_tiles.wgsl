// What a workgroup of engine/attend_gathered.wgsl attends to in a turn, and how it is fetched. Needs lib/attend.wgsl,
// TILES, SHARE (positions of a share), SHARE_BLOCKS and SHARE_IN_BLOCK (blocks it takes, and positions of one), and
// ROUNDS, how often an invocation sums for all values to be summed.

// Pairs of elements of a head.
#define PAIRS (HEAD_DIM / 2u)
// Invocations that sum the values of a tile.
#define SUMMERS (SHARES * PAIRS)

// Which tiles: where in the splits from `split` on.
struct Turn {
    split: u32,
    offset: u32,
}

fn first_of(turn: Turn, tile: u32, splits: Splits) -> u32 {
    return splits.first + (turn.split + tile) * splits.size + turn.offset;
}

// The next tiles, which may be beyond the last position.
fn next(turn: Turn, splits: Splits) -> Turn {
    if (turn.offset + SPLIT_TILE < splits.size) {
        return Turn(turn.split, turn.offset + SPLIT_TILE);
    }
    return Turn(turn.split + TILES, 0u);
}

// What an invocation sums in a round.
struct Summer {
    tile: u32,
    share: u32,
    pair: u32,
    in_range: bool,
}

// Shares of a pair are within a team, as far apart as there is room.
fn summer(task: Task, round: u32) -> Summer {
    let index = task.place + round * WORKGROUP;
    let within = index % SUMMERS;
    let apart = LANES / SHARES;
    return Summer(
        min(index / SUMMERS, TILES - 1u), within % LANES / apart, within / LANES * apart + within % apart,
        index < TILES * SUMMERS);
}

// Entries of the block table for the tiles of a turn, two each, and of the next one: ENTRIES of both.
#define ENTRIES (2u * TILES)
var<workgroup> entries: array<u32, 2u * ENTRIES>;

// Entry `number` of a turn. A position beyond the last is taken for the last.
fn entry_of(task: Task, turn: Turn, number: u32, splits: Splits) -> u32 {
    let position = first_of(turn, number / 2u, splits) + number % 2u * KV_BLOCK;
    return block_table[task.table + min(position, task.last) / KV_BLOCK];
}

// What an invocation has of a turn's tiles: its part of a key of each, and its pair of elements of a share's values.
struct Keys {
    vectors: array<vec4<u32>, TILES * FETCH>,
}

struct Values {
    words: array<u32, ROUNDS * SHARE>,
}

// What lies beyond the last position is fetched as well; it is in a block that is there.
fn fetch_keys(task: Task, blocks: array<u32, TILES>) -> Keys {
    var keys: Keys;
#repeat T TILES
    {
        let at = vector_at(task, blocks[T], task.place / 4u) + task.place % 4u;
#repeat I FETCH
        keys.vectors[T * FETCH + I] = k_cache[at + 4u * I];
#end
    }
#end
    return keys;
}

fn fetch_values(task: Task, blocks: array<u32, ROUNDS * SHARE_BLOCKS>, values: ptr<function, Values>) {
#repeat R ROUNDS
    {
        let mine = summer(task, R);
        if (mine.in_range) {
#repeat B SHARE_BLOCKS
            {
                // Shares lie in a block, or are whole ones.
                let at = vector_at(task, blocks[R * SHARE_BLOCKS + B], mine.share * SHARE) + mine.pair / 4u;
#repeat P SHARE_IN_BLOCK
                (*values).words[R * SHARE + B * KV_BLOCK + P] = v_cache[at + P * HEAD_VECTORS][mine.pair % 4u];
#end
            }
#end
        }
    }
#end
}

// The blocks of what an invocation fetches for turn number `turn`.
fn key_blocks(task: Task, turn: u32) -> array<u32, TILES> {
    let first = turn % 2u * ENTRIES;
    var blocks: array<u32, TILES>;
#repeat T TILES
    blocks[T] = entries[first + 2u * T + task.place / 4u / KV_BLOCK];
#end
    return blocks;
}

fn value_blocks(task: Task, turn: u32) -> array<u32, ROUNDS * SHARE_BLOCKS> {
    let first = turn % 2u * ENTRIES;
    var blocks: array<u32, ROUNDS * SHARE_BLOCKS>;
#repeat R ROUNDS
    {
        let mine = summer(task, R);
#repeat B SHARE_BLOCKS
        blocks[R * SHARE_BLOCKS + B] = entries[first + 2u * mine.tile + mine.share * SHARE / KV_BLOCK + B];
#end
    }
#end
    return blocks;
}

// As the table has them, of the first turn.
fn first_key_blocks(task: Task, splits: Splits) -> array<u32, TILES> {
    var blocks: array<u32, TILES>;
#repeat T TILES
    {
        let position = first_of(Turn(0u, 0u), T, splits) + task.place / 4u;
        blocks[T] = block_table[task.table + min(position, task.last) / KV_BLOCK];
    }
#end
    return blocks;
}

fn first_value_blocks(task: Task, splits: Splits) -> array<u32, ROUNDS * SHARE_BLOCKS> {
    var blocks: array<u32, ROUNDS * SHARE_BLOCKS>;
#repeat R ROUNDS
    {
        let mine = summer(task, R);
        let first = first_of(Turn(0u, 0u), mine.tile, splits) + mine.share * SHARE;
#repeat B SHARE_BLOCKS
        blocks[R * SHARE_BLOCKS + B] = block_table[task.table + min(first + B * KV_BLOCK, task.last) / KV_BLOCK];
#end
    }
#end
    return blocks;
}
