// How a row's logits are divided: runs of RUN tokens go to the slices in turn, `each` runs a slice, so that tokens
// which stand together in a vocabulary are apart. A chunk is CHUNK neighbours of each run of its slice.

const RUN: u32 = 256u;
const CHUNK: u32 = 8u;
const SLICES: u32 = 64u;
const CHUNKS_OF_SLICE: u32 = RUN / CHUNK;
const CHUNKS: u32 = SLICES * CHUNKS_OF_SLICE;
// Words of a row's partial results: the largest key of each chunk, then the largest key and the sum of each slice.
const PARTIALS: u32 = CHUNKS + 2u * SLICES;

// Token `place` of a slice's run; beyond the vocabulary there is none.
fn token_at(slice: u32, run: u32, place: u32) -> u32 {
    return (run * params.slices + slice) * RUN + place;
}
