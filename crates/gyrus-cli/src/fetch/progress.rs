//! How far a download is: a bar on a terminal, now and then a line in a log, and a number for others of this process.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{diagnostics, foreign, text};

/// How long a log stays silent.
const SILENCE: Duration = Duration::from_secs(10);

const WAITING: &str = "{prefix}  {spinner} {msg} {elapsed}";
const MEASURED: &str =
    "{prefix}  {wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
const UNMEASURED: &str = "{prefix}  {spinner} {msg} {binary_bytes}  {binary_bytes_per_sec}";

/// Another thread's view of a download: how much has come, and a switch that stops it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Follower(Arc<Followed>);

#[derive(Debug, Default)]
struct Followed {
    bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl Follower {
    /// The bytes that have come, of all files together.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Stops the download at its next step. What can be resumed stays.
    pub(crate) fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Relaxed)
    }

    /// An error if the download was stopped.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.is_stopped(), "it was stopped");
        Ok(())
    }
}

/// A bar that vanishes when dropped, so that an error or the next message stands alone on its line.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    /// `None` if stderr is no terminal.
    bar: Option<ProgressBar>,
    total: Option<u64>,
    spoken: Instant,
    follower: Follower,
    /// Bytes of files that came before this one.
    before: u64,
}

impl Progress {
    /// Begins with work of unknown length.
    pub(crate) fn new(name: &str, doing: &str, follower: &Follower) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            set_template(&bar, WAITING);
            // The file's name is the telling part of a long name, and leaves room for the bar.
            bar.set_prefix(foreign::one_line(name.rsplit('/').next().unwrap_or(name), 28));
            bar.set_message(doing.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let (follower, before) = (follower.clone(), follower.bytes());
        Progress { name: name.to_owned(), bar, total: None, spoken: Instant::now(), follower, before }
    }

    /// The number of bytes has become known: the spinner becomes a bar. `done` of them were there before,
    /// and say nothing about the speed.
    pub(crate) fn begin(&mut self, total: Option<u64>, done: u64) {
        self.total = total;
        self.tell(done);
        let Some(bar) = &self.bar else { return };
        if let Some(total) = total {
            bar.set_length(total);
            set_template(bar, MEASURED);
        } else {
            set_template(bar, UNMEASURED);
        }
        bar.set_position(done);
        bar.reset_eta();
    }

    /// What is being done, as long as no number of bytes is known.
    pub(crate) fn doing(&mut self, doing: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(doing.to_owned());
        }
    }

    /// So many of `total` bytes are done now; the bar appears with the first of them and ends at `total`.
    pub(crate) fn of(&mut self, total: Option<u64>, done: u64) {
        let done = total.map_or(done, |total| done.min(total));
        if self.total != total {
            self.begin(total, done);
        }
        self.at(done);
    }

    fn tell(&self, done: u64) {
        self.follower.0.bytes.store(self.before.saturating_add(done), Ordering::Relaxed);
    }

    /// So many bytes are done now.
    pub(crate) fn at(&mut self, done: u64) {
        self.tell(done);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.spoken.elapsed() >= SILENCE {
            let of = self.total.map_or_else(String::new, |total| format!(" of {}", text::bytes(total)));
            self.note(&format!("{}{of}", text::bytes(done)));
        }
    }

    /// Says something in a line of its own.
    pub(crate) fn note(&mut self, message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| diagnostics::about(&self.name, message)),
            None => diagnostics::about(&self.name, message),
        }
        self.spoken = Instant::now();
    }
}

fn set_template(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [WAITING, MEASURED, UNMEASURED] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
