// The flags of a slot, as in SlotState.

#include "params/SlotState"

const SLOT_ACTIVE: u32 = 1u;
const SLOT_ENDED: u32 = 2u;
const SLOT_MASKED: u32 = 4u;
const SLOT_LOGPROBS: u32 = 8u;
const SLOT_COUNT: u32 = 16u;
const SLOT_HOST: u32 = 32u;

fn is_running(flags: u32) -> bool {
    return (flags & (SLOT_ACTIVE | SLOT_ENDED)) == SLOT_ACTIVE;
}
