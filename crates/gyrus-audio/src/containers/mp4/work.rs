//! How often the reader looks through the tables of an MP4 file.

use super::malformed;
use crate::AudioError;

/// The most tracks. For each packet the reader looks for the next sample of all of them.
const MOST_TRACKS: u64 = 64;
/// The most fragments that are looked through, in all: for each fragment without samples, the ones before it, track by track.
const MOST_FRAGMENTS: u64 = 1 << 34;
/// The most entries of runs that are looked through, in all: for each sample, those before it in its run, and the runs before.
const MOST_ENTRIES: u64 = 1 << 36;
/// A run takes as long as this many entries.
const ENTRIES_OF_RUN: u64 = 8;

/// What makes the reader's time grow faster than the file.
#[derive(Default)]
pub(super) struct Work {
    tracks: u64,
    /// Descriptions of tracks that have fragments.
    extended: u64,
    fragments: u64,
    /// Runs of the fragment's track so far.
    runs: u64,
    entries: u64,
}

impl Work {
    /// Counts a box.
    pub(super) fn meet(&mut self, name: &[u8; 4]) {
        match name {
            b"trak" => self.tracks += 1,
            b"trex" => self.extended += 1,
            b"moof" => self.fragments += 1,
            b"traf" => self.runs = 0,
            _ => {}
        }
    }

    /// Counts a run of samples of a fragment.
    pub(super) fn add_run(&mut self, samples: u64, has_durations: bool) {
        let of_run = if has_durations { samples.saturating_mul(samples) } else { 0 };
        let of_runs = samples.saturating_mul(self.runs).saturating_mul(ENTRIES_OF_RUN);
        self.entries = self.entries.saturating_add(of_run).saturating_add(of_runs);
        self.runs += 1;
    }

    /// Refuses a file that would take very long.
    pub(super) fn check(&self) -> Result<(), AudioError> {
        let tracks = self.tracks.max(self.extended);
        if tracks > MOST_TRACKS {
            return Err(malformed("M4A", format!("{tracks} tracks; a file may have {MOST_TRACKS}")));
        }
        let most = (MOST_FRAGMENTS / tracks.max(1)).isqrt();
        if self.fragments > most {
            let problem = format!("{} fragments of {tracks} tracks; it may have {most}", self.fragments);
            return Err(malformed("M4A", problem));
        }
        if self.entries > MOST_ENTRIES {
            let problem = "runs of samples that are too long; a fragment's may have 262144".to_owned();
            return Err(malformed("M4A", problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(boxes: &[(&[u8; 4], u64)], runs: &[(u64, bool)]) -> Option<String> {
        let mut work = Work::default();
        boxes.iter().for_each(|(name, count)| (0..*count).for_each(|_| work.meet(name)));
        runs.iter().for_each(|(samples, has_durations)| work.add_run(*samples, *has_durations));
        work.check().err().map(|error| error.to_string())
    }

    #[test]
    fn tracks_and_fragments_are_counted() {
        assert_eq!(error(&[(b"trak", 64), (b"trex", 64), (b"moof", 16_000)], &[]), None);
        let tracks = "malformed M4A data: 65 tracks; a file may have 64";
        assert_eq!(error(&[(b"trak", 65)], &[]).unwrap(), tracks);
        assert_eq!(error(&[(b"trex", 65)], &[]).unwrap(), tracks);
        assert_eq!(
            error(&[(b"trak", 2), (b"moof", 100_000)], &[]).unwrap(),
            "malformed M4A data: 100000 fragments of 2 tracks; it may have 92681"
        );
    }

    #[test]
    fn entries_of_runs_are_counted_as_often_as_they_are_read() {
        let hour = (170_000, true);
        assert_eq!(error(&[], &[hour]), None);
        // The fragments of a long broadcast.
        let mut work = Work::default();
        (0..80_000).for_each(|_| {
            work.meet(b"traf");
            work.add_run(50, true);
        });
        assert_eq!(work.check(), Ok(()));
        let long = "malformed M4A data: runs of samples that are too long; a fragment's may have 262144";
        assert_eq!(error(&[], &[(300_000, true)]).unwrap(), long);
        assert_eq!(error(&[], &[(300_000, false)]), None);
        assert_eq!(error(&[], &[(1, false); 200_000]).unwrap(), long);
        assert_eq!(error(&[], &[(u64::MAX, true); 3]).unwrap(), long);
    }
}
