// Blocks of a row: four tokens for each of RUN invocations. Needs logits.

// The tokens of an invocation. They may be beyond the vocabulary.
fn block_tokens(block: u32, lane: u32) -> vec4<u32> {
    return vec4<u32>(block * BLOCK + lane) + vec4<u32>(0u, 1u, 2u, 3u) * RUN;
}

// Their keys, NO_KEY for those beyond the vocabulary or not allowed.
fn block_keys(base: u32, at: vec4<u32>) -> vec4<u32> {
    let inside = vec4<u32>(base) + min(at, vec4<u32>(params.vocab - 1u));
    return keys_of(vec4<u32>(logits[inside.x], logits[inside.y], logits[inside.z], logits[inside.w]), at);
}
