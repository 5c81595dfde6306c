//! Records steps in flight with wgpu, on every API.

use std::time::Duration;

use wgpu::{BufferUsages, MapMode, PollError, PollType, SubmissionIndex};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::{Dispatch, Recorded};
use crate::error::GpuError;
use crate::recorder::{Copied, RING, read_words};

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Readback buffers that are not in use.
    idle: Vec<Buffer>,
    /// Kernels of the submission that is being recorded.
    open: Option<Vec<Recorded>>,
}

/// Submitted commands, and the readback buffer of their results if they have any, with the bytes of the results.
#[derive(Debug)]
pub(crate) struct Submission {
    submission: SubmissionIndex,
    readback: Option<(Buffer, u64)>,
}

impl Recorder {
    pub(crate) fn begin(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.take_error()?;
        self.open = Some(Vec::new());
        Ok(())
    }

    /// Whether a submission has completed, after waiting for it at most this long.
    pub(crate) fn is_done(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        wait: Duration,
    ) -> Result<bool, GpuError> {
        let submission_index = Some(submission.submission.clone());
        let polled = gpu.device.poll(PollType::Wait { submission_index, timeout: Some(wait) });
        gpu.take_error()?;
        match polled {
            Ok(_) => Ok(true),
            Err(PollError::Timeout) => Ok(false),
            Err(error) => Err(GpuError::Lost { reason: error.to_string() }),
        }
    }

    /// Reads the results of a submission that has completed.
    pub(crate) fn finish(&mut self, submission: Submission, words: &mut Vec<u32>) -> Result<(), GpuError> {
        words.clear();
        let Some((buffer, bytes)) = submission.readback else { return Ok(()) };
        let mapped =
            buffer.inner.get_mapped_range(..bytes).map_err(|error| GpuError::internal(error.to_string()))?;
        read_words(&mapped, words);
        drop(mapped);
        buffer.inner.unmap();
        self.idle.push(buffer);
        Ok(())
    }

    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<(), GpuError> {
        let open = self.open.as_mut().ok_or_else(closed)?;
        open.push(dispatch.recorded(gpu)?);
        Ok(())
    }

    /// Submits the commands; `copied` is copied to the host, one after the other.
    pub(crate) fn submit(&mut self, gpu: &Gpu, copied: &[Copied<'_>]) -> Result<Submission, GpuError> {
        let kernels = self.open.take().ok_or_else(closed)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let (mut pass, queries) = gpu.begin_pass(&mut encoder);
        kernels.iter().for_each(|kernel| kernel.record(&mut pass));
        drop(pass);
        gpu.end_pass(&mut encoder, queries)?;
        let mut readback = None;
        if !copied.is_empty() {
            let bytes = copied.iter().map(|copied| copied.bytes).sum();
            let buffer = match self.idle.pop() {
                Some(buffer) if buffer.bytes() >= bytes => buffer,
                _ => gpu.create(bytes.max(RING), BufferUsages::MAP_READ | BufferUsages::COPY_DST)?,
            };
            let mut offset = 0;
            for from in copied {
                let (to, bytes) = (&buffer.inner, from.bytes);
                encoder.copy_buffer_to_buffer(&from.buffer.inner, from.offset, to, offset, bytes);
                offset += bytes;
            }
            readback = Some((buffer, bytes));
        }
        let submission = gpu.queue.submit([encoder.finish()]);
        if let Some((buffer, bytes)) = &readback {
            buffer.inner.slice(..*bytes).map_async(MapMode::Read, |_| {});
        }
        gpu.take_error()?;
        Ok(Submission { submission, readback })
    }
}

fn closed() -> GpuError {
    GpuError::internal("no commands are being recorded")
}
