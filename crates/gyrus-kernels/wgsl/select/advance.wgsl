// Advances the state of a row's slot after a token was chosen, or holds it. Needs slots, tokens, rows, emitted, and with
// PENALTIES history and counts.

// The most rows of a step, and the most steps that can be read back at once.
const MAX_ROWS: u32 = 16u;
const EMITTED: u32 = 64u;
// What a row emits that holds.
const HELD: u32 = 0xfffffffeu;

#if PENALTIES
// Adds the token to the penalty window and removes the one that leaves it.
fn slide_window(row: u32, position: u32, token: u32, window: u32) {
    if (window > 0u) {
        if (position >= window) {
            let old = history[row * params.history + (position - window) % params.history];
            if (old < params.vocab) {
                let at = row * params.vocab + old;
                // A count that the host has not set must not wrap.
                counts[at] = max(counts[at], 1u) - 1u;
            }
        }
        counts[row * params.vocab + token] += 1u;
    }
    history[row * params.history + position % params.history] = token;
}
#endif

// The position that a row advances to, or HELD.
fn next_position(row: u32, slot: SlotState) -> u32 {
    let position = rows[row].x + 1u;
    let has_mask = (slot.flags & SLOT_MASKED) == 0u || slot.mask_position == position;
    return select(HELD, position, is_running(slot.flags) && position < slot.limit && has_mask);
}

fn emit(row: u32, slot: SlotState, word: u32) {
    emitted[(slot.step % EMITTED) * MAX_ROWS + row] = word;
    slots[row].step = slot.step + 1u;
}

fn is_end(slot: SlotState, token: u32) -> bool {
    let low = vec4<u32>(slot.end0, slot.end1, slot.end2, slot.end3) == vec4<u32>(token);
    let high = vec4<u32>(slot.end4, slot.end5, slot.end6, slot.end7) == vec4<u32>(token);
    return any(low) || any(high);
}

// Advances a row to the chosen token, unless that is NOT_FINITE: then the row ends where it is.
fn advance(row: u32, slot: SlotState, position: u32, chosen: u32) {
    emit(row, slot, chosen);
    if (chosen != NOT_FINITE) {
        tokens[row] = chosen;
        rows[row].x = position;
#if PENALTIES
        slide_window(row, position, chosen, min(slot.penalty_window, params.history));
#endif
    }
    if (chosen == NOT_FINITE || is_end(slot, chosen)) {
        slots[row].flags = slot.flags | SLOT_ENDED;
    }
}
