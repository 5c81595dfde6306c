//! A progress bar on stderr for work that takes longer than half a second.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

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
        Progress::with_template(what, "{msg} {wide_bar} {percent:>3} %, {eta} left")
    }

    /// A bar of seconds of audio.
    pub(crate) fn of_audio(what: &'static str) -> Progress {
        Progress::with_template(what, "{msg} {wide_bar} {position} of {length}, {eta} left")
    }

    fn with_template(what: &'static str, template: &str) -> Progress {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let time = |seconds: u64, out: &mut dyn Write| {
            // There is nowhere to report a line that cannot be formatted.
            let _ = out.write_str(&clock(seconds));
        };
        let style = style
            .with_key("position", move |state: &ProgressState, out: &mut dyn Write| time(state.pos(), out))
            .with_key("length", move |state: &ProgressState, out: &mut dyn Write| {
                time(state.len().unwrap_or(0), out);
            });
        bar.set_style(style);
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

/// Seconds as `2:03` or `1:02:03`.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audio_has_the_time_of_a_clock() {
        assert_eq!([0, 9, 83, 3599].map(clock), ["0:00", "0:09", "1:23", "59:59"]);
        assert_eq!([3600, 7384, 360_000].map(clock), ["1:00:00", "2:03:04", "100:00:00"]);
    }
}
