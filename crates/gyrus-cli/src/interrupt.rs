//! Ctrl-C ends an answer, not the process; a second one ends the process.

use std::sync::OnceLock;

use gyrus::Cancel;

/// The user interrupted: exit code 130, no message.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// A switch that Ctrl-C throws. If it is thrown already, Ctrl-C ends the process with 130.
pub(crate) fn on_ctrl_c() -> Cancel {
    static CANCEL: OnceLock<Cancel> = OnceLock::new();
    let cancel = CANCEL.get_or_init(|| {
        let cancel = Cancel::new();
        let switch = cancel.clone();
        // Without a handler Ctrl-C ends the process as it always does, which is no reason to fail.
        let _ = ctrlc::set_handler(move || {
            if switch.is_cancelled() {
                std::process::exit(130);
            }
            switch.cancel();
        });
        cancel
    });
    cancel.reset();
    cancel.clone()
}
