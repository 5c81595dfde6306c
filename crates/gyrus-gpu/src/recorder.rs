//! Recorders of steps in flight: wgpu, or Vulkan commands, which are faster to record and allocate nothing.

use std::time::Duration;

use gyrus_kernels::call::{SELECT_EMITTED, SELECT_ROWS};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::{vulkan_recorder, wgpu_recorder};

/// Bytes of the ring of sampled tokens of a group of slots.
pub(crate) const RING: u64 = 4 * (SELECT_EMITTED * SELECT_ROWS) as u64;

/// A part of a buffer that a submission copies to the host, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Copied<'_> {
    /// All of a buffer.
    pub(crate) fn whole(buffer: &Buffer) -> Copied<'_> {
        Copied { buffer, offset: 0, bytes: buffer.bytes() }
    }
}

/// Records commands, and submits them. Between [`Recorder::begin`] and [`Recorder::submit`] it takes commands.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a backend has one")]
pub(crate) enum Recorder {
    Vulkan(vulkan_recorder::Recorder),
    Wgpu(wgpu_recorder::Recorder),
}

/// Commands that were submitted.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and boxes would be allocated")]
pub(crate) enum Submission {
    Vulkan(vulkan_recorder::Submission),
    Wgpu(wgpu_recorder::Submission),
}

impl Recorder {
    /// The Vulkan recorder where the device has one and it was not turned off, else wgpu's.
    pub(crate) fn new(gpu: &Gpu) -> Recorder {
        let vulkan = gpu.vulkan_recorder.then(|| vulkan_recorder::Recorder::new(gpu)).flatten();
        vulkan.map_or_else(|| Recorder::Wgpu(wgpu_recorder::Recorder::default()), Recorder::Vulkan)
    }

    /// Whether it needs pipelines and bindings of its own, and writes take effect in the order of commands. wgpu's writes
    /// take effect before all kernels of their submission.
    pub(crate) fn is_vulkan(&self) -> bool {
        matches!(self, Recorder::Vulkan(_))
    }

    /// Begins to record commands. `after_wgpu`: wgpu was given work since the last submission.
    pub(crate) fn begin(&mut self, gpu: &Gpu, after_wgpu: bool) -> Result<(), GpuError> {
        match self {
            Recorder::Vulkan(recorder) => recorder.begin(gpu, after_wgpu),
            Recorder::Wgpu(recorder) => recorder.begin(gpu),
        }
    }

    /// Overwrites words of a buffer from an offset in bytes. `follows`: since the last command other than a write, the buffer
    /// was written to, but not these words, so that they need not wait for it.
    pub(crate) fn write(
        &mut self,
        gpu: &Gpu,
        buffer: &Buffer,
        offset: u64,
        words: &[u32],
        follows: bool,
    ) -> Result<(), GpuError> {
        match self {
            Recorder::Vulkan(recorder) => recorder.write(buffer, offset, words, follows),
            Recorder::Wgpu(_) => gpu.write_at(buffer, offset, bytemuck::cast_slice(words)),
        }
    }

    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<(), GpuError> {
        match self {
            Recorder::Vulkan(recorder) => recorder.dispatch(gpu, dispatch),
            Recorder::Wgpu(recorder) => recorder.dispatch(gpu, dispatch),
        }
    }

    /// Copies these to the host, one after the other, so that it can read them while the commands after them run. Only the
    /// Vulkan recorder can.
    pub(crate) fn mark(&mut self, gpu: &Gpu, copied: &[Copied<'_>]) -> Result<(), GpuError> {
        match self {
            Recorder::Vulkan(recorder) => recorder.mark(gpu, copied),
            Recorder::Wgpu(_) => Err(GpuError::internal("wgpu's recorder has no marks")),
        }
    }

    /// Submits the commands; `copied` is copied to the host, one after the other. Nothing is copied behind a mark.
    pub(crate) fn submit(&mut self, gpu: &Gpu, copied: &[Copied<'_>]) -> Result<Submission, GpuError> {
        Ok(match self {
            Recorder::Vulkan(recorder) => Submission::Vulkan(recorder.submit(gpu, copied)?),
            Recorder::Wgpu(recorder) => Submission::Wgpu(recorder.submit(gpu, copied)?),
        })
    }

    /// Whether a submission has completed, after waiting for it at most this long.
    pub(crate) fn is_done(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        wait: Duration,
    ) -> Result<bool, GpuError> {
        match (self, submission) {
            (Recorder::Vulkan(recorder), Submission::Vulkan(submission)) => {
                recorder.is_done(gpu, submission, wait)
            }
            (Recorder::Wgpu(recorder), Submission::Wgpu(submission)) => {
                recorder.is_done(gpu, submission, wait)
            }
            _ => Err(foreign()),
        }
    }

    /// Whether the results of a submission can be read, after waiting for them at most this long.
    pub(crate) fn has_results(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        wait: Duration,
    ) -> Result<bool, GpuError> {
        match (self, submission) {
            (Recorder::Vulkan(recorder), Submission::Vulkan(submission)) => {
                recorder.has_results(gpu, submission, wait)
            }
            (recorder, submission) => recorder.is_done(gpu, submission, wait),
        }
    }

    /// Replaces `words` by what a submission has copied to the host before its mark, which was reached. `false`: it has no
    /// mark.
    pub(crate) fn read_marked(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        words: &mut Vec<u32>,
    ) -> Result<bool, GpuError> {
        match (self, submission) {
            (Recorder::Vulkan(recorder), Submission::Vulkan(submission)) => {
                recorder.read_marked(gpu, submission, words)
            }
            _ => Ok(false),
        }
    }

    /// Replaces `words` by what a submission that has completed has copied to the host.
    pub(crate) fn finish(
        &mut self,
        gpu: &Gpu,
        submission: Submission,
        words: &mut Vec<u32>,
    ) -> Result<(), GpuError> {
        match (self, submission) {
            (Recorder::Vulkan(recorder), Submission::Vulkan(submission)) => {
                recorder.finish(gpu, submission, words)
            }
            (Recorder::Wgpu(recorder), Submission::Wgpu(submission)) => recorder.finish(submission, words),
            _ => Err(foreign()),
        }
    }
}

/// A backend has only one recorder.
fn foreign() -> GpuError {
    GpuError::internal("a submission was recorded by another recorder")
}

/// Replaces `words` by the contents of mapped memory.
pub(crate) fn read_words(bytes: &[u8], words: &mut Vec<u32>) {
    words.clear();
    words.extend(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
}
