//! How far a download is: a bar on a terminal, now and then a line in a log.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{diagnostics, foreign, text};

/// How long a log stays silent.
const SILENCE: Duration = Duration::from_secs(10);

const WAITING: &str = "{prefix}  {spinner} {msg} {elapsed}";
const MEASURED: &str =
    "{prefix}  {wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
const UNMEASURED: &str = "{prefix}  {spinner} {msg} {binary_bytes}  {binary_bytes_per_sec}";

/// A bar that vanishes when dropped, so that an error or the next message stands alone on its line.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    /// `None` if stderr is no terminal.
    bar: Option<ProgressBar>,
    total: Option<u64>,
    spoken: Instant,
}

impl Progress {
    /// Begins with work of unknown length.
    pub(crate) fn new(name: &str, doing: &str) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            set_template(&bar, WAITING);
            // The file's name is the telling part of a long name, and leaves room for the bar.
            bar.set_prefix(foreign::one_line(name.rsplit('/').next().unwrap_or(name), 28));
            bar.set_message(doing.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Progress { name: name.to_owned(), bar, total: None, spoken: Instant::now() }
    }

    /// The number of bytes has become known: the spinner becomes a bar. `done` of them were there before,
    /// and say nothing about the speed.
    pub(crate) fn begin(&mut self, total: Option<u64>, done: u64) {
        self.total = total;
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

    /// So many bytes are done now.
    pub(crate) fn at(&mut self, done: u64) {
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
