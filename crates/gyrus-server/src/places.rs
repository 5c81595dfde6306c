//! The places that a request takes: in the queue, and among the requests of its key.

use std::sync::Arc;

use crate::failure::Failure;
use crate::gate::Ticket;
use crate::keys::Slot;
use crate::state::{Caller, State};

/// Places of a request, given back when they are dropped.
#[derive(Debug)]
pub(crate) struct Places {
    #[allow(dead_code, reason = "it is given back when it is dropped")]
    ticket: Ticket,
    #[allow(dead_code, reason = "it is given back when it is dropped")]
    slot: Option<Slot>,
}

impl Places {
    /// Takes places in the queue for some sequences, and one among the requests of the key. `field`: what decides the number
    /// of sequences.
    pub(crate) fn take(
        state: &State,
        caller: &Caller,
        sequences: usize,
        field: &str,
    ) -> Result<Arc<Places>, Failure> {
        let capacity = state.gate.capacity();
        if sequences > capacity {
            let message = format!(
                "the request has {sequences} sequences, and the server takes at most {capacity}: send several requests"
            );
            return Err(Failure::field(field, message));
        }
        let ticket = state.gate.enter(sequences).ok_or_else(|| state.full())?;
        let slot = caller.key.as_ref().map(|key| key.enter()).transpose()?;
        Ok(Arc::new(Places { ticket, slot }))
    }
}
