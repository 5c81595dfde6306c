//! A progress bar on stderr for work that takes longer than half a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long work may take before a bar appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar that appears only if the work lasts, and only on a terminal. It is gone when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    /// A bar with this label.
    pub(crate) fn new(what: &'static str) -> Progress {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Progress { bar, start: Instant::now() }
    }

    /// Sets the progress.
    pub(crate) fn set(&self, done: u64, total: u64) {
        if self.bar.is_hidden() && self.start.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
