use std::sync::Arc;

use gyrus::Model;

use super::entry::Entry;
use crate::keep_alive::KeepAlive;

/// A model that is in use. It stays loaded until the lease is dropped.
pub(crate) struct Lease {
    entry: Arc<Entry>,
    model: Option<Model>,
    keep_alive: Option<KeepAlive>,
}

impl Lease {
    pub(super) fn new(entry: Arc<Entry>, model: Model) -> Lease {
        Lease { entry, model: Some(model), keep_alive: None }
    }

    /// How long the model is to stay after this use.
    pub(crate) fn keep_alive(mut self, time: Option<KeepAlive>) -> Lease {
        self.keep_alive = time;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.entry.name
    }

    pub(crate) fn model(&self) -> &Model {
        match &self.model {
            Some(model) => model,
            None => unreachable!("the model is there until the lease is dropped"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Before the entry is told, so that whoever unloads it holds the last clone.
        self.model = None;
        self.entry.release(self.keep_alive);
    }
}
