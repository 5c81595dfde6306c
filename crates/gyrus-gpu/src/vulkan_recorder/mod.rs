//! Steps that are recorded past wgpu, where it speaks to Vulkan.
//!
//! wgpu looks after every command anew: which buffers it touches, what must be done before, what must be kept until it
//! has run. That takes several microseconds a kernel and memory on the host. Of a step all this is known when its
//! kernels are bound, so that [`Recorder`] writes down the commands themselves, in memory that is used again and again.
//!
//! What wgpu does not see, it cannot keep apart. Hence:
//!
//! - Buffers are wgpu's. They were cleared when they were made ([`Gpu::buffer`]): wgpu clears a buffer before what it
//!   takes for its first use, and that would be after kernels that it does not know of.
//! - What wgpu was told before, it submits before ([`Recorder::begin`] with `after_others`), to the same queue; the
//!   first commands here wait for it, and the last commands make what they wrote visible to whatever comes behind.
//! - Nothing is freed while commands use it: a [`Flight`] is landed before its backend changes or drops anything.

mod bound;

use std::sync::Arc;

use ash::vk;
use wgpu::BufferUsages;
use wgpu::hal::{self, CommandEncoder as _, Device as _};

pub(crate) use bound::{Bound, Compiled};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::recorder::{RING, read_words};

type Vulkan = hal::api::Vulkan;

/// The most bytes that one command can bring along.
const MOST_INLINE: usize = 65_536;

/// Whatever a command can do to memory.
const EVERYTHING: vk::AccessFlags =
    vk::AccessFlags::from_raw(vk::AccessFlags::MEMORY_READ.as_raw() | vk::AccessFlags::MEMORY_WRITE.as_raw());

/// Writes commands down, and hands them to the queue.
pub(crate) struct Recorder {
    /// Keeps what the handles below are of.
    device: wgpu::Device,
    raw: Arc<ash::Device>,
    queue: vk::Queue,
    idle: Vec<Flight>,
    hazards: Hazards,
}

/// Commands that were handed over, and where their tokens come back.
pub(crate) struct Flight {
    raw: Arc<ash::Device>,
    encoder: hal::vulkan::CommandEncoder,
    /// Those that run, or ran, until they are landed.
    commands: Option<hal::vulkan::CommandBuffer>,
    landed: vk::Fence,
    tokens: Buffer,
}

/// Commands that are being written down.
pub(crate) struct Recording<'r> {
    recorder: &'r mut Recorder,
    flight: Flight,
    raw: vk::CommandBuffer,
}

/// Buffers that commands have touched since the last of them that waited for those before.
#[derive(Debug, Default)]
struct Hazards {
    read: Vec<vk::Buffer>,
    written: Vec<vk::Buffer>,
}

impl Hazards {
    /// Whether commands on these buffers must wait for those before; if so, those are forgotten.
    fn wait(&mut self, read: &[vk::Buffer], written: &[vk::Buffer]) -> bool {
        let wait = read.iter().any(|buffer| self.written.contains(buffer))
            || written.iter().any(|buffer| self.written.contains(buffer) || self.read.contains(buffer));
        if wait {
            self.forget();
        }
        self.read.extend_from_slice(read);
        self.written.extend_from_slice(written);
        wait
    }

    fn forget(&mut self) {
        self.read.clear();
        self.written.clear();
    }
}

impl Recorder {
    /// For a device that is reached through Vulkan.
    pub(crate) fn new(gpu: &Gpu) -> Option<Recorder> {
        // SAFETY: the handles are those of a device that lives as long as `device`, which is kept beside them.
        let (raw, queue) = unsafe {
            let device = gpu.device.as_hal::<Vulkan>()?;
            (Arc::new(device.raw_device().clone()), gpu.queue.as_hal::<Vulkan>()?.as_raw())
        };
        let device = gpu.device.clone();
        Some(Recorder { device, raw, queue, idle: Vec::new(), hazards: Hazards::default() })
    }

    /// Begins to write commands down. `after_others`: wgpu was told something since the last time.
    pub(crate) fn begin(&mut self, gpu: &Gpu, after_others: bool) -> Result<Recording<'_>, GpuError> {
        if after_others {
            gpu.queue.submit([]);
        }
        gpu.trouble()?;
        let mut flight = match self.idle.pop() {
            Some(flight) => flight,
            None => self.flight(gpu)?,
        };
        // SAFETY: what was recorded last has run to its end and was reset.
        let begun = unsafe { flight.encoder.begin_encoding(None) };
        begun.map_err(|error| refused(gpu, &error))?;
        // SAFETY: the handle is used while it is recorded and until it has run, and then no more.
        let raw = unsafe { flight.encoder.raw_handle() };
        self.hazards.forget();
        let recording = Recording { recorder: self, flight, raw };
        if after_others {
            let all = vk::PipelineStageFlags::ALL_COMMANDS;
            recording.barrier(all, all, EVERYTHING, EVERYTHING);
        }
        Ok(recording)
    }

    fn flight(&self, gpu: &Gpu) -> Result<Flight, GpuError> {
        let tokens = gpu.create(RING, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        // SAFETY: both are of the device that is kept; the fence is destroyed by `Flight::drop`, the encoder by itself.
        unsafe {
            let (Some(device), Some(queue)) = (self.device.as_hal::<Vulkan>(), gpu.queue.as_hal::<Vulkan>())
            else {
                return Err(gone());
            };
            let encoder = device
                .create_command_encoder(&hal::CommandEncoderDescriptor { label: None, queue: &*queue })
                .map_err(|error| refused(gpu, &error))?;
            let landed = self
                .raw
                .create_fence(&vk::FenceCreateInfo::default(), None)
                .map_err(|error| failed(gpu, error))?;
            let raw = Arc::clone(&self.raw);
            Ok(Flight { raw, encoder, commands: None, landed, tokens })
        }
    }

    /// Waits for a flight, and hands its tokens over if they are wanted.
    pub(crate) fn land(
        &mut self,
        gpu: &Gpu,
        mut flight: Flight,
        wanted: Option<&mut Vec<u32>>,
    ) -> Result<(), GpuError> {
        flight.wait().map_err(|error| failed(gpu, error))?;
        gpu.trouble()?;
        if let Some(tokens) = wanted {
            self.read(gpu, &flight, tokens)?;
        }
        self.idle.push(flight);
        Ok(())
    }

    fn read(&self, gpu: &Gpu, flight: &Flight, tokens: &mut Vec<u32>) -> Result<(), GpuError> {
        // SAFETY: the buffer can be mapped, wgpu is never asked to, and what filled it is done.
        unsafe {
            let (Some(device), Some(buffer)) =
                (self.device.as_hal::<Vulkan>(), flight.tokens.inner.as_hal::<Vulkan>())
            else {
                return Err(gone());
            };
            let mapping = device.map_buffer(&buffer, 0..RING).map_err(|error| refused(gpu, &error))?;
            if !mapping.is_coherent {
                device.invalidate_mapped_ranges(&buffer, std::iter::once(0..RING));
            }
            let bytes = std::slice::from_raw_parts(mapping.ptr.as_ptr(), RING as usize);
            read_words(bytes, tokens);
            device.unmap_buffer(&buffer);
        }
        Ok(())
    }
}

impl Recording<'_> {
    /// Overwrites words of a buffer from an offset in bytes.
    pub(crate) fn write(&mut self, buffer: &Buffer, offset: u64, words: &[u32]) -> Result<(), GpuError> {
        let raw = handle(buffer)?;
        self.after(&[], &[raw]);
        for (number, words) in words.chunks(MOST_INLINE / 4).enumerate() {
            let offset = offset + (number * MOST_INLINE) as u64;
            // SAFETY: the caller's words are within the buffer, at whole words, and copied by the call.
            unsafe {
                self.recorder.raw.cmd_update_buffer(self.raw, raw, offset, bytemuck::cast_slice(words));
            }
        }
        Ok(())
    }

    /// Runs a kernel.
    pub(crate) fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<(), GpuError> {
        let bound = dispatch.bound(gpu)?;
        self.after(bound.read(), bound.written());
        bound.record(&mut self.flight.encoder, dispatch.immediates(), dispatch.groups);
        Ok(())
    }

    /// Hands the commands over; the words of `emitted`, if any, come back with them.
    pub(crate) fn submit(mut self, gpu: &Gpu, emitted: Option<&Buffer>) -> Result<Flight, GpuError> {
        if let Some(emitted) = emitted {
            let (from, to) = (handle(emitted)?, handle(&self.flight.tokens)?);
            self.after(&[from], &[]);
            let region = vk::BufferCopy { src_offset: 0, dst_offset: 0, size: RING.min(emitted.bytes()) };
            // SAFETY: both buffers are as large as the region, and made for copies.
            unsafe { self.recorder.raw.cmd_copy_buffer(self.raw, from, to, &[region]) };
        }
        // Whoever comes next, and the host, sees what was done here.
        let stages = vk::PipelineStageFlags::ALL_COMMANDS;
        self.barrier(
            stages,
            stages | vk::PipelineStageFlags::HOST,
            vk::AccessFlags::MEMORY_WRITE,
            EVERYTHING | vk::AccessFlags::HOST_READ,
        );
        let Recording { recorder, mut flight, raw } = self;
        // SAFETY: all commands are recorded; the queue is used by nobody else meanwhile, since this has the backend that
        // has the device to itself. What the commands use is kept until they are landed.
        unsafe {
            let commands = flight.encoder.end_encoding().map_err(|error| refused(gpu, &error))?;
            let submission = vk::SubmitInfo::default().command_buffers(std::slice::from_ref(&raw));
            recorder
                .raw
                .queue_submit(recorder.queue, &[submission], flight.landed)
                .map_err(|error| failed(gpu, error))?;
            flight.commands = Some(commands);
        }
        Ok(flight)
    }

    /// Has what follows wait for what it depends on.
    fn after(&mut self, read: &[vk::Buffer], written: &[vk::Buffer]) {
        if self.recorder.hazards.wait(read, written) {
            let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
            let written = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
            let read =
                vk::AccessFlags::SHADER_READ | vk::AccessFlags::UNIFORM_READ | vk::AccessFlags::TRANSFER_READ;
            self.barrier(stages, stages, written, written | read);
        }
    }

    fn barrier(
        &self,
        before: vk::PipelineStageFlags,
        after: vk::PipelineStageFlags,
        done: vk::AccessFlags,
        seen: vk::AccessFlags,
    ) {
        let memory = vk::MemoryBarrier::default().src_access_mask(done).dst_access_mask(seen);
        // SAFETY: the commands are being recorded, and the stages are a compute queue's.
        unsafe {
            self.recorder.raw.cmd_pipeline_barrier(
                self.raw,
                before,
                after,
                vk::DependencyFlags::empty(),
                &[memory],
                &[],
                &[],
            );
        }
    }
}

impl Flight {
    /// Waits until its commands have run, if there are any, and makes it ready for others.
    fn wait(&mut self) -> Result<(), vk::Result> {
        let Some(commands) = self.commands.take() else { return Ok(()) };
        // SAFETY: the commands were submitted with this fence, once, and nobody has waited for it; behind it they are done
        // and can be reset, as they can be if the device is lost.
        unsafe {
            let done = loop {
                match self.raw.wait_for_fences(&[self.landed], true, u64::MAX) {
                    // They may still run, and what they use must not go before them.
                    Err(error) if error != vk::Result::ERROR_DEVICE_LOST => std::thread::yield_now(),
                    done => break done,
                }
            };
            self.encoder.reset_all(std::iter::once(commands));
            done?;
            self.raw.reset_fences(&[self.landed])
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // A device that is lost says so to whoever uses it next.
        let _ = self.wait();
        // SAFETY: nothing waits for it or signals it any more.
        unsafe { self.raw.destroy_fence(self.landed, None) };
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} idle)", self.idle.len())
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight({:?})", self.landed)
    }
}

/// Vulkan's name of a buffer.
fn handle(buffer: &Buffer) -> Result<vk::Buffer, GpuError> {
    // SAFETY: nobody destroys the buffer by its handle, and handles are used while the buffer lives.
    unsafe { buffer.inner.as_hal::<Vulkan>().map(|buffer| buffer.raw_handle()) }.ok_or_else(gone)
}

fn gone() -> GpuError {
    GpuError::Lost { reason: "it was closed".to_owned() }
}

fn refused(gpu: &Gpu, error: &hal::DeviceError) -> GpuError {
    match error {
        hal::DeviceError::Lost => gpu.lose(&error.to_string()),
        hal::DeviceError::OutOfMemory => GpuError::OutOfMemory { bytes: None },
        other => GpuError::Refused { reason: other.to_string() },
    }
}

fn failed(gpu: &Gpu, error: vk::Result) -> GpuError {
    match error {
        vk::Result::ERROR_DEVICE_LOST => gpu.lose(&error.to_string()),
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

    /// Reads go side by side; whoever reads what was written, or writes what was read or written, waits.
    #[test]
    fn commands_wait_for_what_they_depend_on() {
        let [a, b, c] = [1, 2, 3].map(Buffer::from_raw);
        let mut hazards = Hazards::default();
        assert!(!hazards.wait(&[a, b], &[c]), "nothing before");
        assert!(!hazards.wait(&[a, b], &[]), "both read");
        assert!(hazards.wait(&[c], &[]), "reads what was written");
        assert!(!hazards.wait(&[c], &[a]), "read before the last that waited");
        assert!(hazards.wait(&[], &[c]), "writes what was read");
        assert!(hazards.wait(&[], &[c]), "writes what was written");
        hazards.forget();
        assert!(!hazards.wait(&[c], &[a]), "forgotten");
    }
}
