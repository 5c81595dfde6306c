use std::ops::Range;

use wgpu::{BufferDescriptor, BufferUsages, ErrorFilter, MapMode};

use crate::device::{Gpu, wgpu_error};
use crate::error::GpuError;

/// Memory on a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Buffer {
    pub(crate) inner: wgpu::Buffer,
    bytes: u64,
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Gpu {
    /// The most bytes of one buffer.
    pub fn largest_buffer(&self) -> u64 {
        self.limits.max_buffer_size.min(self.limits.max_storage_buffer_binding_size)
    }

    /// A buffer of `bytes` zeros.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, GpuError> {
        let most = self.largest_buffer();
        if bytes > most {
            return Err(GpuError::Limit { what: "a buffer".to_owned(), wanted: bytes, most });
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.create(bytes, usage)?;
        // Otherwise wgpu would clear it before the first use that it sees, which may come after commands of the Vulkan
        // recorder.
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(&buffer.inner, 0, None);
        self.queue.submit([encoder.finish()]);
        self.take_error()?;
        Ok(buffer)
    }

    /// A buffer with these contents.
    pub fn upload(&self, contents: &[u8]) -> Result<Buffer, GpuError> {
        let buffer = self.buffer(contents.len() as u64)?;
        self.write(&buffer, contents)?;
        Ok(buffer)
    }

    /// Overwrites the beginning of a buffer, before the next submission.
    pub fn write(&self, buffer: &Buffer, contents: &[u8]) -> Result<(), GpuError> {
        let (whole, rest) = contents.split_at(contents.len() / 4 * 4);
        self.queue.write_buffer(&buffer.inner, 0, whole);
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.queue.write_buffer(&buffer.inner, whole.len() as u64, &word);
        }
        self.take_error()
    }

    /// Overwrites whole words of a buffer, before the next submission.
    pub(crate) fn write_at(&self, buffer: &Buffer, offset: u64, words: &[u8]) -> Result<(), GpuError> {
        self.queue.write_buffer(&buffer.inner, offset, words);
        self.take_error()
    }

    /// Submits pending writes, and waits for them.
    pub(crate) fn flush(&self) -> Result<(), GpuError> {
        self.queue.submit([]);
        self.wait()
    }

    /// The contents of a buffer, after all submissions are done.
    pub fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        self.read_part(buffer, 0..buffer.bytes)
    }

    /// Some bytes of a buffer, after all submissions are done. The range begins at a word.
    pub(crate) fn read_part(&self, buffer: &Buffer, range: Range<u64>) -> Result<Vec<u8>, GpuError> {
        let bytes = range.end - range.start;
        let staging = self.create(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let size = bytes.next_multiple_of(4);
        encoder.copy_buffer_to_buffer(&buffer.inner, range.start, &staging.inner, 0, size);
        self.queue.submit([encoder.finish()]);
        staging.inner.slice(..).map_async(MapMode::Read, |_| {});
        self.wait()?;
        let mapped =
            staging.inner.get_mapped_range(..).map_err(|error| GpuError::internal(error.to_string()))?;
        Ok(mapped[..bytes as usize].to_vec())
    }

    pub(crate) fn create(&self, bytes: u64, usage: BufferUsages) -> Result<Buffer, GpuError> {
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let size = bytes.max(16).next_multiple_of(16);
        let inner = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        });
        let refused = pollster::block_on(validation.pop());
        let full = pollster::block_on(memory.pop());
        self.take_error()?;
        match (full, refused) {
            (Some(_), _) => Err(GpuError::OutOfMemory { bytes: Some(bytes) }),
            (None, Some(error)) => Err(wgpu_error(&error)),
            (None, None) => Ok(Buffer { inner, bytes }),
        }
    }
}
