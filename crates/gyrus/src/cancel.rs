use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that stops a generation from another thread, for example on Ctrl-C.
///
/// It is looked at between steps and between pieces of a prompt. Clones share the switch.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Stops what listens to it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Makes it ready for the next generation.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
