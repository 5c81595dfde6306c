//! Records steps in flight with wgpu, on every API.

use wgpu::{BufferUsages, CommandEncoder, ComputePass, MapMode, PollType, QuerySet, SubmissionIndex};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::recorder::{RING, read_words};

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Readback buffers of tokens that are not in use.
    idle: Vec<Buffer>,
}

/// Submitted commands, and the readback buffer of their tokens if they have any.
#[derive(Debug)]
pub(crate) struct Submission {
    submission: SubmissionIndex,
    tokens: Option<Buffer>,
}

/// Commands that are being recorded.
pub(crate) struct Recording<'r> {
    recorder: &'r mut Recorder,
    encoder: CommandEncoder,
    pass: ComputePass<'static>,
    queries: Option<QuerySet>,
}

impl Recorder {
    pub(crate) fn begin(&mut self, gpu: &Gpu) -> Result<Recording<'_>, GpuError> {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let (pass, queries) = gpu.begin_pass(&mut encoder);
        let pass = pass.forget_lifetime();
        gpu.take_error()?;
        Ok(Recording { recorder: self, encoder, pass, queries })
    }

    /// Waits for a submission, and reads its tokens if they are wanted.
    pub(crate) fn wait(
        &mut self,
        gpu: &Gpu,
        submission: Submission,
        wanted: Option<&mut Vec<u32>>,
    ) -> Result<(), GpuError> {
        let Some(buffer) = submission.tokens else { return Ok(()) };
        if let Some(tokens) = wanted {
            let wait = PollType::Wait { submission_index: Some(submission.submission), timeout: None };
            let polled = gpu.device.poll(wait);
            gpu.take_error()?;
            polled.map_err(|error| GpuError::Lost { reason: error.to_string() })?;
            let mapped =
                buffer.inner.get_mapped_range(..).map_err(|error| GpuError::internal(error.to_string()))?;
            read_words(&mapped, tokens);
        }
        buffer.inner.unmap();
        self.idle.push(buffer);
        Ok(())
    }
}

impl Recording<'_> {
    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, dispatch: &Dispatch) {
        dispatch.record(&mut self.pass);
    }

    /// Submits the commands; the contents of `emitted`, if given, are copied to the host.
    pub(crate) fn submit(self, gpu: &Gpu, emitted: Option<&Buffer>) -> Result<Submission, GpuError> {
        let Recording { recorder, mut encoder, pass, queries } = self;
        drop(pass);
        gpu.end_pass(&mut encoder, queries)?;
        let mut tokens = None;
        if let Some(emitted) = emitted {
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            let buffer = recorder.idle.pop().map_or_else(|| gpu.create(RING, usage), Ok)?;
            encoder.copy_buffer_to_buffer(&emitted.inner, 0, &buffer.inner, 0, RING);
            tokens = Some(buffer);
        }
        let submission = gpu.queue.submit([encoder.finish()]);
        if let Some(buffer) = &tokens {
            buffer.inner.slice(..).map_async(MapMode::Read, |_| {});
        }
        gpu.take_error()?;
        Ok(Submission { submission, tokens })
    }
}
