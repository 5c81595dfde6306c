//! Who writes commands down and hands them to a device: wgpu, or [`direct`], which is quicker and allocates nothing.

use gyrus_kernels::call::{SELECT_EMITTED, SELECT_ROWS};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::{vulkan_recorder, wgpu_recorder};

/// Bytes of the ring that tokens come back in.
pub(crate) const RING: u64 = 4 * (SELECT_EMITTED * SELECT_ROWS) as u64;

#[derive(Debug)]
pub(crate) enum Recorder {
    Vulkan(vulkan_recorder::Recorder),
    Wgpu(wgpu_recorder::Recorder),
}

/// Commands that are being written down.
#[allow(clippy::large_enum_variant, reason = "there are few, and boxes would be allocated")]
pub(crate) enum Recording<'r> {
    Vulkan(vulkan_recorder::Recording<'r>),
    Wgpu(wgpu_recorder::Recording<'r>),
}

/// Commands that were handed over.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and boxes would be allocated")]
pub(crate) enum Flight {
    Vulkan(vulkan_recorder::Flight),
    Wgpu(wgpu_recorder::Flight),
}

impl Recorder {
    /// The quickest that a device has, of those that it was opened for.
    pub(crate) fn new(gpu: &Gpu) -> Recorder {
        let direct = gpu.vulkan_recorder.then(|| vulkan_recorder::Recorder::new(gpu)).flatten();
        direct.map_or_else(|| Recorder::Wgpu(wgpu_recorder::Recorder::default()), Recorder::Vulkan)
    }

    /// Whether kernels are to be bound for it, beside what wgpu binds.
    pub(crate) fn is_vulkan(&self) -> bool {
        matches!(self, Recorder::Vulkan(_))
    }

    /// Begins to write commands down. `after_others`: wgpu was told something since the last time.
    pub(crate) fn begin(&mut self, gpu: &Gpu, after_others: bool) -> Result<Recording<'_>, GpuError> {
        Ok(match self {
            Recorder::Vulkan(recorder) => Recording::Vulkan(recorder.begin(gpu, after_others)?),
            Recorder::Wgpu(recorder) => Recording::Wgpu(recorder.begin(gpu)?),
        })
    }

    /// Waits for a flight, and hands its tokens over if they are wanted.
    pub(crate) fn land(
        &mut self,
        gpu: &Gpu,
        flight: Flight,
        wanted: Option<&mut Vec<u32>>,
    ) -> Result<(), GpuError> {
        match (self, flight) {
            (Recorder::Vulkan(recorder), Flight::Vulkan(flight)) => recorder.land(gpu, flight, wanted),
            (Recorder::Wgpu(recorder), Flight::Wgpu(flight)) => recorder.land(gpu, flight, wanted),
            // A backend has one recorder as long as it lives.
            _ => Err(GpuError::internal("a submission was recorded by another recorder")),
        }
    }
}

impl Recording<'_> {
    /// Overwrites words of a buffer from an offset in bytes. It comes before any kernel.
    pub(crate) fn write(
        &mut self,
        gpu: &Gpu,
        buffer: &Buffer,
        offset: u64,
        words: &[u32],
    ) -> Result<(), GpuError> {
        match self {
            Recording::Vulkan(recording) => recording.write(buffer, offset, words),
            // wgpu writes before it runs what is submitted next.
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

    /// Hands the commands over; the words of `emitted`, if any, come back with them.
    pub(crate) fn submit(self, gpu: &Gpu, emitted: Option<&Buffer>) -> Result<Flight, GpuError> {
        Ok(match self {
            Recording::Vulkan(recording) => Flight::Vulkan(recording.submit(gpu, emitted)?),
            Recording::Wgpu(recording) => Flight::Wgpu(recording.submit(gpu, emitted)?),
        })
    }
}

/// The words that a device has left in memory, instead of those that were there.
pub(crate) fn read_words(bytes: &[u8], words: &mut Vec<u32>) {
    words.clear();
    words.extend(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
}
