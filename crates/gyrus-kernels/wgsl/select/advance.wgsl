// Advances the state of a row's sequence after a token was chosen. Needs tokens, rows, emitted, and with PENALTIES
// history and counts.

// The most rows of a step, and the most steps that can be read back at once.
const MAX_ROWS: u32 = 16u;
const EMITTED: u32 = 64u;

#if PENALTIES
const HISTORY: u32 = 1024u;

// Adds the token to the penalty window and removes the one that leaves it.
fn slide_window(row: u32, position: u32, token: u32, window: u32) {
    if (window > 0u) {
        if (position >= window) {
            let old = history[row * HISTORY + (position - window) % HISTORY];
            if (old < params.vocab) {
                let at = row * params.vocab + old;
                // A count that the host has not set must not wrap.
                counts[at] = max(counts[at], 1u) - 1u;
            }
        }
        counts[row * params.vocab + token] += 1u;
    }
    history[row * HISTORY + position % HISTORY] = token;
}
#endif

// NOT_FINITE is emitted unchanged, and the host stops the steps in flight. Until then they continue with token 0.
fn advance(row: u32, chosen: u32) {
    let position = rows[row].x + 1u;
    let token = select(chosen, 0u, chosen == NOT_FINITE);
    tokens[row] = token;
    emitted[(position % EMITTED) * MAX_ROWS + row] = chosen;
#if PENALTIES
    slide_window(row, position, token, min(samplers[row].penalty_window, HISTORY));
#endif
    rows[row].x = position;
}
