use wgpu::{BufferDescriptor, BufferUsages, ErrorFilter, MapMode};

use crate::device::{Gpu, explained};
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

    /// Memory for `bytes`, all zero.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, GpuError> {
        let most = self.largest_buffer();
        if bytes > most {
            return Err(GpuError::Limit { what: "a buffer".to_owned(), wanted: bytes, most });
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.create(bytes, usage)?;
        // Otherwise wgpu clears it before what it takes for its first use, and some uses it does not see.
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(&buffer.inner, 0, None);
        self.queue.submit([encoder.finish()]);
        self.trouble()?;
        Ok(buffer)
    }

    /// Memory with these contents.
    pub fn upload(&self, contents: &[u8]) -> Result<Buffer, GpuError> {
        let buffer = self.buffer(contents.len() as u64)?;
        self.write(&buffer, contents)?;
        Ok(buffer)
    }

    /// Overwrites the beginning of a buffer, before what is submitted next.
    pub fn write(&self, buffer: &Buffer, contents: &[u8]) -> Result<(), GpuError> {
        let (whole, rest) = contents.split_at(contents.len() / 4 * 4);
        self.queue.write_buffer(&buffer.inner, 0, whole);
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.queue.write_buffer(&buffer.inner, whole.len() as u64, &word);
        }
        self.trouble()
    }

    /// Overwrites a part of a buffer that begins and ends at words, before what is submitted next.
    pub(crate) fn write_at(&self, buffer: &Buffer, offset: u64, words: &[u8]) -> Result<(), GpuError> {
        self.queue.write_buffer(&buffer.inner, offset, words);
        self.trouble()
    }

    /// Sends what was written, and waits until it is there.
    pub(crate) fn flush(&self) -> Result<(), GpuError> {
        self.queue.submit([]);
        self.wait()
    }

    /// The contents of a buffer, once all that was submitted is done.
    pub fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GpuError> {
        let size = buffer.inner.size();
        let staging = self.create(size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffer.inner, 0, &staging.inner, 0, size);
        self.queue.submit([encoder.finish()]);
        staging.inner.slice(..).map_async(MapMode::Read, |_| {});
        self.wait()?;
        let mapped =
            staging.inner.get_mapped_range(..).map_err(|error| GpuError::internal(error.to_string()))?;
        Ok(mapped[..buffer.bytes as usize].to_vec())
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
        self.trouble()?;
        match (full, refused) {
            (Some(_), _) => Err(GpuError::OutOfMemory { bytes: Some(bytes) }),
            (None, Some(error)) => Err(explained(&error)),
            (None, None) => Ok(Buffer { inner, bytes }),
        }
    }
}
