//! A cache of compiled pipelines on disk, where the API supports it: drivers take seconds to compile them.
//!
//! A file belongs to one adapter with one version of its driver and of this crate. It begins with a header and a checksum,
//! so that a damaged or foreign file never reaches the driver. Such a file is ignored, and so is a folder that cannot be
//! written. The Vulkan recorder relies on the cache that drivers keep themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gyrus_kernels::shader::Rungs;
use wgpu::{AdapterInfo, ErrorFilter, PipelineCacheDescriptor};

use crate::cache_file::{checksum, replace};

/// The first bytes of a file. The checksum of the rest follows.
const MAGIC: &[u8; 8] = b"gyruspc1";
const HEAD: usize = 16;
/// A larger file is ignored and replaced: a cache only grows, also by kernels that are no longer used.
const LARGEST: u64 = 64 << 20;

/// wgpu's pipeline cache of a device, and its file.
#[derive(Debug)]
pub(crate) struct PipelineCache {
    pub(crate) cache: wgpu::PipelineCache,
    path: PathBuf,
    /// The checksum of the file's contents.
    stored: AtomicU64,
    /// Whether a pipeline was compiled since the file was written.
    grown: AtomicBool,
}

impl PipelineCache {
    /// The cache of a device that has the feature, with the contents of its file in `folder`.
    pub(crate) fn open(
        device: &wgpu::Device,
        info: &AdapterInfo,
        rungs: Rungs,
        folder: &Path,
    ) -> Option<PipelineCache> {
        let path = folder.join(file_name(info, rungs)?);
        let data = read(&path);
        let descriptor = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        let scope = device.push_error_scope(ErrorFilter::Validation);
        // SAFETY: the data was written by `PipelineCache::store` and comes from `wgpu::PipelineCache::get_data`: header
        // and checksum are right, and the file's name is that of this adapter and driver. wgpu and the driver compare it
        // with the adapter again.
        #[allow(unsafe_code)]
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        if pollster::block_on(scope.pop()).is_some() {
            return None;
        }
        let stored = AtomicU64::new(data.as_deref().map_or(0, checksum));
        Some(PipelineCache { cache, path, stored, grown: AtomicBool::new(false) })
    }

    /// Notes that a pipeline was compiled.
    pub(crate) fn grew(&self) {
        self.grown.store(true, Ordering::Relaxed);
    }

    /// Writes the file if the cache has grown. If the folder cannot be written, the next start compiles again.
    pub(crate) fn store(&self) {
        if !self.grown.swap(false, Ordering::Relaxed) {
            return;
        }
        let Some(data) = self.cache.get_data() else { return };
        let sum = checksum(&data);
        if self.stored.swap(sum, Ordering::Relaxed) != sum {
            let _ = write(&self.path, &data, sum);
        }
    }
}

/// A file name that is unique to adapter, driver and version; `None` if the API has no pipeline cache.
fn file_name(info: &AdapterInfo, rungs: Rungs) -> Option<String> {
    let key = wgpu::util::pipeline_cache_key(info)?;
    let whose = format!(
        "{} {} {} {} {rungs:?} {}",
        info.name,
        info.driver,
        info.driver_info,
        info.backend,
        env!("CARGO_PKG_VERSION"),
    );
    Some(format!("{key}_{:016x}.bin", checksum(whose.as_bytes())))
}

/// The contents of a file without its header, if it is valid.
fn read(path: &Path) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() > LARGEST {
        return None;
    }
    let mut bytes = fs::read(path).ok()?;
    let head: &[u8; HEAD] = bytes.first_chunk()?;
    let (magic, sum) = head.split_at(8);
    let sum = u64::from_le_bytes(sum.try_into().ok()?);
    if magic != MAGIC || bytes.len() == HEAD || checksum(&bytes[HEAD..]) != sum {
        return None;
    }
    Some(bytes.split_off(HEAD))
}

fn write(path: &Path, data: &[u8], sum: u64) -> io::Result<()> {
    replace(path, &[MAGIC, &sum.to_le_bytes(), data].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_ignored() {
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("new/cache.bin");
        assert_eq!(read(&path), None);
        let data: Vec<u8> = (0..200).collect();
        write(&path, &data, checksum(&data)).unwrap();
        assert_eq!(read(&path), Some(data.clone()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let whole = fs::read(&path).unwrap();
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 16;
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(&path), None, "byte {byte}");
            fs::write(&path, &whole[..byte]).unwrap();
            assert_eq!(read(&path), None, "cut at {byte}");
        }
        // A newer write replaces whatever is there.
        write(&path, &data[..9], checksum(&data[..9])).unwrap();
        assert_eq!(read(&path), Some(data[..9].to_vec()));
        // A folder cannot be created where a file is.
        assert!(write(&path.join("below.bin"), &data, 0).is_err());
    }
}
