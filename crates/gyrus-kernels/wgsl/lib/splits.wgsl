// How attention of one row is split over positions (split-K over the context), and merged again by lib/merge.wgsl.
//
// The split of a row depends only on its position and the window, never on the other rows: tiles of SPLIT_TILE
// positions, and as many tiles a split as give at most MAX_SPLITS splits. Twin: call::engine::splits.

#define SPLIT_TILE 64u
#define MAX_SPLITS 24u

struct Splits {
    // The first position of the first split, rounded down to a tile. A window may mask some of its positions.
    first: u32,
    // Positions of a split.
    size: u32,
    count: u32,
}

fn splits_of(position: u32, window: u32) -> Splits {
    var first = 0u;
    if (window != 0u && position + 1u > window) {
        first = (position + 1u - window) / SPLIT_TILE * SPLIT_TILE;
    }
    let tiles = (position - first) / SPLIT_TILE + 1u;
    let size = SPLIT_TILE * ((tiles + MAX_SPLITS - 1u) / MAX_SPLITS);
    return Splits(first, size, (position - first) / size + 1u);
}
