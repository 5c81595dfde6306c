//! Records steps in flight as Vulkan commands, on wgpu's device and in its buffers.
//!
//! wgpu tracks every command: which buffers it uses, which barriers it needs, what must live until it has run. That takes
//! several microseconds a kernel and allocates on the host. For a step all this is known when its kernels are bound, so
//! [`Recorder`] records the commands directly, in memory that is reused.
//!
//! wgpu does not know of these commands and cannot synchronise with them. Therefore:
//!
//! - Buffers are cleared when they are created ([`Gpu::buffer`]). Otherwise wgpu would clear a buffer before the first use
//!   that it sees, which may come after kernels recorded here.
//! - Earlier work of wgpu is submitted first, to the same queue ([`Recorder::begin`] with `after_wgpu`). The first command
//!   here is a barrier after it, and the last makes all writes visible to later commands.
//! - Nothing is freed while commands use it: a backend waits for its [`Submission`]s before it changes or drops anything.

mod bound;
mod stamps;
mod submission;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;
use wgpu::BufferUsages;
use wgpu::hal::{self, CommandEncoder as _, Device as _};

pub(crate) use bound::{Bound, Compiled};
pub(crate) use submission::Submission;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::recorder::{Copied, RING, read_words};

type Vulkan = hal::api::Vulkan;

/// The most bytes of one vkCmdUpdateBuffer.
const MAX_UPDATE: usize = 65_536;

/// Usages of buffers that results are read back through.
const READBACK: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::COPY_DST);

/// All accesses to memory.
const ALL_ACCESS: vk::AccessFlags =
    vk::AccessFlags::from_raw(vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw());

/// Records commands and submits them to the queue.
pub(crate) struct Recorder {
    /// Keeps the device of the handles below alive.
    device: wgpu::Device,
    raw: Arc<ash::Device>,
    queue: vk::Queue,
    /// Submissions that can be used again, with capacity for all that were created.
    idle: Vec<Submission>,
    created: usize,
    /// What is being recorded.
    open: Option<Recording>,
    hazards: Hazards,
}

/// Commands that are being recorded.
struct Recording {
    submission: Submission,
    raw: vk::CommandBuffer,
}

/// Buffers that commands have read and written since the last barrier.
#[derive(Debug, Default)]
struct Hazards {
    read: Vec<vk::Buffer>,
    written: Vec<vk::Buffer>,
}

impl Hazards {
    /// Whether a command on these buffers needs a barrier before it. If so, earlier commands are forgotten.
    fn needs_barrier(&mut self, read: &[vk::Buffer], written: &[vk::Buffer]) -> bool {
        let needed = read.iter().any(|buffer| self.written.contains(buffer))
            || written.iter().any(|buffer| self.written.contains(buffer) || self.read.contains(buffer));
        if needed {
            self.forget();
        }
        self.read.extend_from_slice(read);
        self.written.extend_from_slice(written);
        needed
    }

    fn forget(&mut self) {
        self.read.clear();
        self.written.clear();
    }
}

impl Recorder {
    /// A recorder, if wgpu uses Vulkan for this device.
    pub(crate) fn new(gpu: &Gpu) -> Option<Recorder> {
        // SAFETY: the handles are those of `device`, which is stored beside them.
        let (raw, queue) = unsafe {
            let device = gpu.device.as_hal::<Vulkan>()?;
            (Arc::new(device.raw_device().clone()), gpu.queue.as_hal::<Vulkan>()?.as_raw())
        };
        let device = gpu.device.clone();
        let hazards = Hazards::default();
        Some(Recorder { device, raw, queue, idle: Vec::new(), created: 0, open: None, hazards })
    }

    /// Begins to record commands. `after_wgpu`: wgpu was given work since the last submission.
    pub(crate) fn begin(&mut self, gpu: &Gpu, after_wgpu: bool) -> Result<(), GpuError> {
        if after_wgpu {
            gpu.queue.submit([]);
        }
        gpu.take_error()?;
        let mut submission = match self.idle.pop() {
            Some(submission) => submission,
            None => {
                self.created += 1;
                self.idle.reserve(self.created);
                self.submission(gpu)?
            }
        };
        // SAFETY: the encoder's last commands have completed and were reset.
        let begun = unsafe { submission.encoder.begin_encoding(None) };
        begun.map_err(|error| refused(gpu, &error))?;
        // SAFETY: the handle is not used after the commands have completed.
        let raw = unsafe { submission.encoder.raw_handle() };
        self.hazards.forget();
        submission.begin_stamps(raw, gpu.busy.is_on()).map_err(|error| failed(gpu, error))?;
        self.open = Some(Recording { submission, raw });
        if after_wgpu {
            let all = vk::PipelineStageFlags::ALL_COMMANDS;
            self.barrier(raw, all, all, ALL_ACCESS, ALL_ACCESS);
        }
        Ok(())
    }

    fn submission(&self, gpu: &Gpu) -> Result<Submission, GpuError> {
        let readback = gpu.create(RING, READBACK)?;
        // SAFETY: both belong to the stored device. `Submission::drop` destroys the fence; the encoder destroys itself.
        unsafe {
            let (Some(device), Some(queue)) = (self.device.as_hal::<Vulkan>(), gpu.queue.as_hal::<Vulkan>())
            else {
                return Err(gone());
            };
            let encoder = device
                .create_command_encoder(&hal::CommandEncoderDescriptor { label: None, queue: &*queue })
                .map_err(|error| refused(gpu, &error))?;
            let done = self
                .raw
                .create_fence(&vk::FenceCreateInfo::default(), None)
                .map_err(|error| failed(gpu, error))?;
            Ok(Submission {
                raw: Arc::clone(&self.raw),
                encoder: ManuallyDrop::new(encoder),
                commands: None,
                done,
                patience: gpu.patience(),
                readback,
                copied: 0,
                mark: None,
                is_marked: false,
                stamps: None,
                stamped: false,
            })
        }
    }

    /// Whether a submission has completed, after waiting for it at most this long.
    pub(crate) fn is_done(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        wait: Duration,
    ) -> Result<bool, GpuError> {
        let is_new = submission.commands.is_some();
        let done = submission.wait(wait).map_err(|error| failed(gpu, error))?;
        gpu.take_error()?;
        if done
            && is_new
            && let Some(interval) = submission.stamps().map_err(|error| failed(gpu, error))?
        {
            gpu.busy.add(interval);
        }
        Ok(done)
    }

    /// Whether the results of a submission can be read, after waiting for them at most this long.
    pub(crate) fn has_results(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        wait: Duration,
    ) -> Result<bool, GpuError> {
        if !submission.is_marked {
            return self.is_done(gpu, submission, wait);
        }
        let done = submission.wait_for_results(wait).map_err(|error| failed(gpu, error))?;
        gpu.take_error()?;
        Ok(done)
    }

    /// Reads the results before the mark of a submission, which was reached. `false`: it has no mark.
    pub(crate) fn read_marked(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        words: &mut Vec<u32>,
    ) -> Result<bool, GpuError> {
        if !std::mem::take(&mut submission.is_marked) {
            return Ok(false);
        }
        words.clear();
        self.read(gpu, submission, words)?;
        submission.copied = 0;
        Ok(true)
    }

    /// Reads the results of a submission that has completed.
    pub(crate) fn finish(
        &mut self,
        gpu: &Gpu,
        mut submission: Submission,
        words: &mut Vec<u32>,
    ) -> Result<(), GpuError> {
        words.clear();
        if submission.copied > 0 {
            self.read(gpu, &submission, words)?;
        }
        // Results before a mark may be discarded without having been read.
        submission.is_marked = false;
        self.idle.push(submission);
        Ok(())
    }

    fn read(&self, gpu: &Gpu, submission: &Submission, words: &mut Vec<u32>) -> Result<(), GpuError> {
        let bytes = submission.copied;
        // SAFETY: the buffer is mappable, wgpu never maps it, and the copies to it have completed.
        unsafe {
            let (Some(device), Some(buffer)) =
                (self.device.as_hal::<Vulkan>(), submission.readback.inner.as_hal::<Vulkan>())
            else {
                return Err(gone());
            };
            let mapping = device.map_buffer(&buffer, 0..bytes).map_err(|error| refused(gpu, &error))?;
            if !mapping.is_coherent {
                device.invalidate_mapped_ranges(&buffer, std::iter::once(0..bytes));
            }
            let mapped = std::slice::from_raw_parts(mapping.ptr.as_ptr(), bytes as usize);
            read_words(mapped, words);
            device.unmap_buffer(&buffer);
        }
        Ok(())
    }

    /// Overwrites words of a buffer from an offset in bytes. `follows`: since the last command other than a write, the buffer
    /// was written to, but not these words.
    pub(crate) fn write(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        words: &[u32],
        follows: bool,
    ) -> Result<(), GpuError> {
        let commands = self.commands()?;
        let raw = handle(buffer)?;
        match follows {
            // What comes later waits for it, whether or not another write has needed a barrier.
            true => self.hazards.written.push(raw),
            false => self.synchronize(commands, &[], &[raw]),
        }
        for (number, words) in words.chunks(MAX_UPDATE / 4).enumerate() {
            let offset = offset + (number * MAX_UPDATE) as u64;
            // SAFETY: the caller's words are within the buffer and aligned, and the call copies them.
            unsafe { self.raw.cmd_update_buffer(commands, raw, offset, bytemuck::cast_slice(words)) };
        }
        Ok(())
    }

    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<(), GpuError> {
        let commands = self.commands()?;
        let bound = dispatch.bound(gpu)?;
        self.synchronize(commands, bound.read(), bound.written());
        if let Some(open) = &mut self.open {
            bound.record(&mut open.submission.encoder, dispatch.immediates(), dispatch.groups);
        }
        Ok(())
    }

    /// Copies these to the host, one after the other. The host can read them while the commands after them run.
    pub(crate) fn mark(&mut self, gpu: &Gpu, copied: &[Copied<'_>]) -> Result<(), GpuError> {
        let Some(Recording { mut submission, raw }) = self.open.take() else { return Err(closed()) };
        self.copy(gpu, &mut submission, raw, copied)?;
        let mark = submission.reset_mark().map_err(|error| failed(gpu, error))?;
        // SAFETY: the commands are being recorded, and the event is not used by others.
        unsafe { self.raw.cmd_set_event(raw, mark, vk::PipelineStageFlags::ALL_COMMANDS) };
        submission.is_marked = true;
        self.open = Some(Recording { submission, raw });
        Ok(())
    }

    /// Submits the commands; `copied` is copied to the host, one after the other. Nothing is copied behind a mark.
    pub(crate) fn submit(&mut self, gpu: &Gpu, copied: &[Copied<'_>]) -> Result<Submission, GpuError> {
        let Some(Recording { mut submission, raw }) = self.open.take() else { return Err(closed()) };
        match submission.is_marked {
            true => self.synchronize_all(raw),
            false => self.copy(gpu, &mut submission, raw, copied)?,
        }
        submission.end_stamps(raw);
        // SAFETY: all commands are recorded. Nothing else uses the queue meanwhile, since the backend owns the device and
        // is borrowed here. What the commands use lives until they are waited for.
        unsafe {
            let commands = submission.encoder.end_encoding().map_err(|error| refused(gpu, &error))?;
            let info = vk::SubmitInfo::default().command_buffers(std::slice::from_ref(&raw));
            self.raw
                .queue_submit(self.queue, &[info], submission.done)
                .map_err(|error| failed(gpu, error))?;
            submission.commands = Some(commands);
        }
        Ok(submission)
    }

    /// Records copies to the buffer that the host reads. Later commands and the host see them and all writes before them.
    fn copy(
        &mut self,
        gpu: &Gpu,
        submission: &mut Submission,
        raw: vk::CommandBuffer,
        copied: &[Copied<'_>],
    ) -> Result<(), GpuError> {
        submission.copied = copied.iter().map(|copied| copied.bytes).sum();
        if submission.readback.bytes() < submission.copied {
            submission.readback = gpu.create(submission.copied, READBACK)?;
        }
        let mut offset = 0;
        for Copied { buffer, offset: first, bytes } in copied {
            let (from, to) = (handle(buffer)?, handle(&submission.readback)?);
            self.synchronize(raw, &[from], &[]);
            let region = vk::BufferCopy { src_offset: *first, dst_offset: offset, size: *bytes };
            // SAFETY: both buffers are at least as large as the region and have copy usages.
            unsafe { self.raw.cmd_copy_buffer(raw, from, to, &[region]) };
            offset += bytes;
        }
        self.synchronize_all(raw);
        Ok(())
    }

    /// Later commands and the host see all writes.
    fn synchronize_all(&mut self, raw: vk::CommandBuffer) {
        let stages = vk::PipelineStageFlags::ALL_COMMANDS;
        self.barrier(
            raw,
            stages,
            stages | vk::PipelineStageFlags::HOST,
            vk::AccessFlags::MEMORY_WRITE,
            ALL_ACCESS | vk::AccessFlags::HOST_READ,
        );
        self.hazards.forget();
    }

    /// The commands that are being recorded.
    fn commands(&self) -> Result<vk::CommandBuffer, GpuError> {
        self.open.as_ref().map(|open| open.raw).ok_or_else(closed)
    }

    /// Records a barrier if the next command, on these buffers, depends on earlier ones.
    fn synchronize(&mut self, commands: vk::CommandBuffer, read: &[vk::Buffer], written: &[vk::Buffer]) {
        if self.hazards.needs_barrier(read, written) {
            let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
            let written = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
            let read =
                vk::AccessFlags::SHADER_READ | vk::AccessFlags::UNIFORM_READ | vk::AccessFlags::TRANSFER_READ;
            self.barrier(commands, stages, stages, written, written | read);
        }
    }

    fn barrier(
        &self,
        commands: vk::CommandBuffer,
        before: vk::PipelineStageFlags,
        after: vk::PipelineStageFlags,
        done: vk::AccessFlags,
        seen: vk::AccessFlags,
    ) {
        let memory = vk::MemoryBarrier::default().src_access_mask(done).dst_access_mask(seen);
        let no_flags = vk::DependencyFlags::empty();
        // SAFETY: the commands are being recorded, and the stages are a compute queue's.
        unsafe { self.raw.cmd_pipeline_barrier(commands, before, after, no_flags, &[memory], &[], &[]) };
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} idle)", self.idle.len())
    }
}

/// The Vulkan handle of a buffer.
fn handle(buffer: &Buffer) -> Result<vk::Buffer, GpuError> {
    // SAFETY: the handle is not used to destroy the buffer, and not after the buffer is dropped.
    unsafe { buffer.inner.as_hal::<Vulkan>().map(|buffer| buffer.raw_handle()) }.ok_or_else(gone)
}

fn closed() -> GpuError {
    GpuError::internal("no commands are being recorded")
}

fn gone() -> GpuError {
    GpuError::Lost { reason: "it was closed".to_owned() }
}

fn refused(gpu: &Gpu, error: &hal::DeviceError) -> GpuError {
    match error {
        hal::DeviceError::Lost => gpu.set_lost(&error.to_string()),
        hal::DeviceError::OutOfMemory => GpuError::OutOfMemory { bytes: None },
        other => GpuError::Refused { reason: other.to_string() },
    }
}

fn failed(gpu: &Gpu, error: vk::Result) -> GpuError {
    match error {
        vk::Result::ERROR_DEVICE_LOST => gpu.set_lost(&error.to_string()),
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            GpuError::OutOfMemory { bytes: None }
        }
        other => GpuError::Refused { reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use ash::vk::{Buffer, Handle};

    use super::Hazards;

    /// Reads need no barrier between them. A read after a write does, and a write after a read or write.
    #[test]
    fn barriers_come_before_dependent_commands() {
        let [a, b, c] = [1, 2, 3].map(Buffer::from_raw);
        let mut hazards = Hazards::default();
        assert!(!hazards.needs_barrier(&[a, b], &[c]), "first command");
        assert!(!hazards.needs_barrier(&[a, b], &[]), "both only read");
        assert!(hazards.needs_barrier(&[c], &[]), "read after write");
        assert!(!hazards.needs_barrier(&[c], &[a]), "its read came before the barrier");
        assert!(hazards.needs_barrier(&[], &[c]), "write after read");
        assert!(hazards.needs_barrier(&[], &[c]), "write after write");
        hazards.forget();
        assert!(!hazards.needs_barrier(&[c], &[a]), "new recording");
    }
}
