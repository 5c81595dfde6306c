//! The pipeline cache of the Vulkan recorder.

use std::path::Path;

use gyrus_kernels::shader::Rungs;
use wgpu::AdapterInfo;
use wgpu::hal::{self, Device as _};

use super::Vulkan;
use crate::pipeline_cache::CacheFile;

/// Bytes before the UUID in the header of Vulkan's data: its size, version, vendor and device.
const BEFORE_UUID: usize = 16;

/// A Vulkan pipeline cache, and its file.
pub(crate) struct CompiledCache {
    /// The device that created the cache, which is taken out only to be destroyed.
    device: wgpu::Device,
    cache: Option<hal::vulkan::PipelineCache>,
    file: CacheFile,
}

impl CompiledCache {
    /// The cache of a device, with the contents of its file in `folder`; `None` if wgpu does not use Vulkan for it.
    pub(crate) fn open(
        device: &wgpu::Device,
        info: &AdapterInfo,
        rungs: Rungs,
        folder: &Path,
    ) -> Option<CompiledCache> {
        // SAFETY: the data was written by `CompiledCache::store` and comes from the driver: header and checksum are right,
        // the file's name is that of this adapter and driver, and the UUID is compared here. `CompiledCache::drop`
        // destroys the cache.
        unsafe {
            let raw = device.as_hal::<Vulkan>()?;
            let (file, data) = CacheFile::open(folder, info, rungs, "vulkan")?;
            let uuid = raw.pipeline_cache_validation_key()?;
            let data =
                data.filter(|data| data.get(BEFORE_UUID..).is_some_and(|data| data.starts_with(&uuid)));
            let descriptor = hal::PipelineCacheDescriptor { label: None, data: data.as_deref() };
            let cache = raw.create_pipeline_cache(&descriptor).ok()?;
            Some(CompiledCache { device: device.clone(), cache: Some(cache), file })
        }
    }

    /// The cache, to compile a pipeline with.
    pub(super) fn cache(&self) -> Option<&hal::vulkan::PipelineCache> {
        self.cache.as_ref()
    }

    /// Notes that a pipeline was compiled.
    pub(super) fn grew(&self) {
        self.file.grew();
    }

    /// Writes the file if the cache has grown.
    pub(crate) fn store(&self) {
        // SAFETY: the cache was created by this device.
        self.file.store(|| unsafe {
            let device = self.device.as_hal::<Vulkan>()?;
            self.cache.as_ref().and_then(|cache| device.pipeline_cache_get_data(cache))
        });
    }
}

impl Drop for CompiledCache {
    fn drop(&mut self) {
        // SAFETY: it was created by this device and is destroyed once. Pipelines do not need it after they are compiled.
        unsafe {
            if let (Some(device), Some(cache)) = (self.device.as_hal::<Vulkan>(), self.cache.take()) {
                device.destroy_pipeline_cache(cache);
            }
        }
    }
}

impl std::fmt::Debug for CompiledCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledCache({:?})", self.file)
    }
}
