//! Changes of slots that the next submission makes on the device before anything else.

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
    /// In bytes.
    offset: u64,
    /// Where its words end; they begin where those of the write before end.
    end: usize,
}

impl Writes {
    /// Adds a write of words from an offset in words.
    pub(super) fn push(&mut self, buffer: &Buffer, offset: usize, words: &[u32]) {
        self.words.extend_from_slice(words);
        self.all.push(Write { buffer: buffer.clone(), offset: 4 * offset as u64, end: self.words.len() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Records all writes, and forgets them.
    pub(super) fn record(&mut self, gpu: &Gpu, recorder: &mut Recorder) -> Result<(), GpuError> {
        let mut first = 0;
        for write in &self.all {
            recorder.write(gpu, &write.buffer, write.offset, &self.words[first..write.end])?;
            first = write.end;
        }
        self.clear();
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.words.clear();
    }
}
