use std::sync::Arc;

use gyrus::Model;
use tokio::sync::OwnedSemaphorePermit;

use super::entry::Entry;
use super::served::Served;
use crate::failure::Failure;
use crate::keep_alive::KeepAlive;

/// A model that is in use. It stays loaded until the lease is dropped.
pub(crate) struct Lease {
    entry: Arc<Entry>,
    served: Option<Served>,
    keep_alive: Option<KeepAlive>,
}

impl Lease {
    pub(super) fn new(entry: Arc<Entry>, served: Served) -> Lease {
        Lease { entry, served: Some(served), keep_alive: None }
    }

    /// How long the model is to stay after this use.
    pub(crate) fn keep_alive(mut self, time: Option<KeepAlive>) -> Lease {
        self.keep_alive = time;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.entry.name
    }

    /// Waits until no other request works with the model. Generations need no turn: they have the scheduler.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let turns = Arc::clone(&self.entry.turns);
        turns.acquire_owned().await.map_err(|_| Failure::server("the model is gone"))
    }

    /// The model, of any kind.
    pub(crate) fn served(&self) -> &Served {
        match &self.served {
            Some(served) => served,
            None => unreachable!("the model is there until the lease is dropped"),
        }
    }

    /// The language model. Leases of other kinds are taken by those who look at the kind.
    pub(crate) fn model(&self) -> &Model {
        match self.served() {
            Served::Language(model) => model,
            _ => unreachable!("a lease of a language model was taken"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Before the entry is told, so that whoever unloads it holds the last clone.
        self.served = None;
        self.entry.release(self.keep_alive);
    }
}
