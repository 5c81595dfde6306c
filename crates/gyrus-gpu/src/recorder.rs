//! Recorders of steps in flight: wgpu, or Vulkan commands, which are faster to record and allocate nothing.

use gyrus_kernels::call::{SELECT_EMITTED, SELECT_ROWS};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::{vulkan_recorder, wgpu_recorder};

/// Bytes of the ring of sampled tokens.
pub(crate) const RING: u64 = 4 * (SELECT_EMITTED * SELECT_ROWS) as u64;

#[derive(Debug)]
pub(crate) enum Recorder {
    Vulkan(vulkan_recorder::Recorder),
    Wgpu(wgpu_recorder::Recorder),
}

/// Commands that are being recorded.
#[allow(clippy::large_enum_variant, reason = "there are few, and boxes would be allocated")]
pub(crate) enum Recording<'r> {
    Vulkan(vulkan_recorder::Recording<'r>),
    Wgpu(wgpu_recorder::Recording<'r>),
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

    /// Whether it needs pipelines and bindings of its own.
    pub(crate) fn is_vulkan(&self) -> bool {
        matches!(self, Recorder::Vulkan(_))
    }

    /// Begins to record commands. `after_wgpu`: wgpu was given work since the last submission.
    pub(crate) fn begin(&mut self, gpu: &Gpu, after_wgpu: bool) -> Result<Recording<'_>, GpuError> {
        Ok(match self {
            Recorder::Vulkan(recorder) => Recording::Vulkan(recorder.begin(gpu, after_wgpu)?),
            Recorder::Wgpu(recorder) => Recording::Wgpu(recorder.begin(gpu)?),
        })
    }

    /// Waits for a submission, and reads its tokens if they are wanted.
    pub(crate) fn wait(
        &mut self,
        gpu: &Gpu,
        submission: Submission,
        wanted: Option<&mut Vec<u32>>,
    ) -> Result<(), GpuError> {
        match (self, submission) {
            (Recorder::Vulkan(recorder), Submission::Vulkan(submission)) => {
                recorder.wait(gpu, submission, wanted)
            }
            (Recorder::Wgpu(recorder), Submission::Wgpu(submission)) => {
                recorder.wait(gpu, submission, wanted)
            }
            // A backend has only one recorder.
            _ => Err(GpuError::internal("a submission was recorded by another recorder")),
        }
    }
}

impl Recording<'_> {
    /// Overwrites words of a buffer from an offset in bytes, before any kernel.
    pub(crate) fn write(
        &mut self,
        gpu: &Gpu,
        buffer: &Buffer,
        offset: u64,
        words: &[u32],
    ) -> Result<(), GpuError> {
        match self {
            Recording::Vulkan(recording) => recording.write(buffer, offset, words),
            // wgpu writes before the next submission runs.
            Recording::Wgpu(_) => gpu.write_at(buffer, offset, bytemuck::cast_slice(words)),
        }
    }

    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<(), GpuError> {
        match self {
            Recording::Vulkan(recording) => recording.dispatch(gpu, dispatch),
            Recording::Wgpu(recording) => {
                recording.dispatch(dispatch);
                Ok(())
            }
        }
    }

    /// Submits the commands; the contents of `emitted`, if given, are copied to the host.
    pub(crate) fn submit(self, gpu: &Gpu, emitted: Option<&Buffer>) -> Result<Submission, GpuError> {
        Ok(match self {
            Recording::Vulkan(recording) => Submission::Vulkan(recording.submit(gpu, emitted)?),
            Recording::Wgpu(recording) => Submission::Wgpu(recording.submit(gpu, emitted)?),
        })
    }
}

/// Replaces `words` by the contents of mapped memory.
pub(crate) fn read_words(bytes: &[u8], words: &mut Vec<u32>) {
    words.clear();
    words.extend(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
}
