// How a row of logits is divided among workgroups. Runs of RUN tokens are dealt to the slices round-robin, `each` runs
// a slice, since tokens with large logits are often neighbours in the vocabulary. A chunk is CHUNK neighbouring tokens
// of each run of its slice.

const RUN: u32 = 256u;
const CHUNK: u32 = 8u;
const SLICES: u32 = 64u;
const CHUNKS_OF_SLICE: u32 = RUN / CHUNK;
const CHUNKS: u32 = SLICES * CHUNKS_OF_SLICE;
// Words of a row in `partials`: the largest key of each chunk, then the largest key of each slice, then the smallest key
// or the sum of each slice, then with WHOLE the bins of the row.
const LARGEST: u32 = CHUNKS;
const SMALLEST: u32 = LARGEST + SLICES;
const SUMS: u32 = SMALLEST;
const ROW_BINS: u32 = SMALLEST + SLICES;
#if WHOLE
#include "select/bins.wgsl"
const PARTIALS: u32 = ROW_BINS + BIN_WORDS;
#else
const PARTIALS: u32 = ROW_BINS;
#endif

// Token `offset` of a slice's run. It may be beyond the vocabulary.
fn token_at(slice: u32, run: u32, offset: u32) -> u32 {
    return (run * params.slices + slice) * RUN + offset;
}

// Tokens at one offset of eight runs of a slice: eight loads are in flight at once.
struct Eight {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn token_indices(token: u32) -> Eight {
    let stride = params.slices * RUN;
    let low = vec4<u32>(token, token + stride, token + 2u * stride, token + 3u * stride);
    return Eight(low, low + vec4<u32>(4u * stride));
}

// Keys of logits; NO_KEY for tokens beyond the vocabulary.
fn keys_of(bits: vec4<u32>, tokens_at: vec4<u32>) -> vec4<u32> {
    let keys = vec4<u32>(key_of(bits.x), key_of(bits.y), key_of(bits.z), key_of(bits.w));
    return select(vec4<u32>(NO_KEY), keys, tokens_at < vec4<u32>(params.vocab));
}
