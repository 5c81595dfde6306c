// How one row's attention is divided over positions, and put together again.
//
// A row's split depends on its position and the window alone, never on what else is computed: tiles of SPLIT_TILE
// positions, and as many tiles a split as make at most MOST_SPLITS of them. Twin: call::engine::splits.

#define SPLIT_TILE 64u
#define MOST_SPLITS 24u

struct Splits {
    // The first position of the first split; the row may see only later ones of it.
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
    let size = SPLIT_TILE * ((tiles + MOST_SPLITS - 1u) / MOST_SPLITS);
    return Splits(first, size, (position - first) / size + 1u);
}
