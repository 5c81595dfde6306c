//! Changes of slots that the next submission makes on the device before anything else.

use std::ops::Range;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::recorder::Recorder;

/// Writes in their order, in memory that is reused.
#[derive(Debug, Default)]
pub(super) struct Writes {
    all: Vec<Write>,
    words: Vec<u32>,
}

#[derive(Debug)]
struct Write {
    buffer: Buffer,
    /// Where its words are in the buffer, and in [`Writes::words`].
    at: Range<usize>,
    words: Range<usize>,
}

impl Write {
    fn overlaps(&self, other: &Write) -> bool {
        self.at.start < other.at.end && other.at.start < self.at.end
    }
}

impl Writes {
    /// Adds a write of words from an offset in words.
    pub(super) fn push(&mut self, buffer: &Buffer, offset: usize, words: &[u32]) {
        let first = self.words.len();
        self.words.extend_from_slice(words);
        let (at, words) = (offset..offset + words.len(), first..self.words.len());
        self.all.push(Write { buffer: buffer.clone(), at, words });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Records all writes, and forgets them.
    pub(super) fn record(&mut self, gpu: &Gpu, recorder: &mut Recorder) -> Result<(), GpuError> {
        for (i, write) in self.all.iter().enumerate() {
            let before = || self.all[..i].iter().filter(|before| before.buffer == write.buffer);
            let follows = before().next().is_some() && !before().any(|before| before.overlaps(write));
            let words = &self.words[write.words.clone()];
            recorder.write(gpu, &write.buffer, 4 * write.at.start as u64, words, follows)?;
        }
        self.clear();
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.words.clear();
    }
}
