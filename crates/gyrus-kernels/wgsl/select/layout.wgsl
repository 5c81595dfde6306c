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

// Eight tokens at one place of a slice's runs: so many are loaded before anything depends on one of them.
struct Eight {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn token_indices(token: u32) -> Eight {
    let by = params.slices * RUN;
    let low = vec4<u32>(token, token + by, token + 2u * by, token + 3u * by);
    return Eight(low, low + vec4<u32>(4u * by));
}

// Keys of logits; NO_KEY for tokens beyond the vocabulary.
fn keys_of(bits: vec4<u32>, tokens_at: vec4<u32>) -> vec4<u32> {
    let keys = vec4<u32>(key_of(bits.x), key_of(bits.y), key_of(bits.z), key_of(bits.w));
    return select(vec4<u32>(NO_KEY), keys, tokens_at < vec4<u32>(params.vocab));
}
