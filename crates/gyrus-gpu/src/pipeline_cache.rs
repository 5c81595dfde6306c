//! Compiled pipelines kept on disk, where the API can: a driver takes seconds for what it then reads back in
//! no time.
//!
//! A file belongs to one adapter with one version of its driver and of this crate, and has a head of our own
//! with a checksum: what is damaged or foreign never reaches the driver, and is not an error. Nor is it one if
//! nothing can be written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gyrus_kernels::shader::Rungs;
use wgpu::{AdapterInfo, ErrorFilter, PipelineCacheDescriptor};

/// What a file begins with; then the checksum of the rest.
const MAGIC: &[u8; 8] = b"gyruspc1";
const HEAD: usize = 16;
/// A file beyond this is begun anew: a cache only ever grows, whatever became of the kernels in it.
const LARGEST: u64 = 64 << 20;

/// The cache of a device, and where it is kept.
#[derive(Debug)]
pub(crate) struct PipelineCache {
    pub(crate) cache: wgpu::PipelineCache,
    path: PathBuf,
    /// The checksum of what the file holds.
    stored: AtomicU64,
    /// Whether a pipeline was compiled that may not be in the file.
    grown: AtomicBool,
}

impl PipelineCache {
    /// The cache of a device that has the feature, with what `folder` holds for it.
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
        // SAFETY: the data was written by `PipelineCache::store`, which had it from `PipelineCache::get_data`: it lies under
        // our head, its checksum is right, and its name is that of this adapter and driver. wgpu and the driver
        // compare it with the adapter once more.
        #[allow(unsafe_code)]
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        if pollster::block_on(scope.pop()).is_some() {
            return None;
        }
        let stored = AtomicU64::new(data.as_deref().map_or(0, checksum));
        Some(PipelineCache { cache, path, stored, grown: AtomicBool::new(false) })
    }

    /// Notes that something was compiled.
    pub(crate) fn grew(&self) {
        self.grown.store(true, Ordering::Relaxed);
    }

    /// Writes what there is now, if it is more than the file has. A folder that cannot be written costs
    /// time at the next start and nothing else.
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

/// A name that no other adapter, driver or version shares; `None` where the API keeps nothing.
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

/// The name of the file of what was found to be quick on an adapter with this driver.
pub(crate) fn tuning_name(info: &AdapterInfo) -> String {
    let whose = format!("{} {} {} {}", info.name, info.driver, info.driver_info, info.backend);
    let plain: String = info
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    format!("{plain}_{:016x}.tuning", checksum(whose.as_bytes()))
}

/// What a file holds, if it is whole and ours.
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

/// Written beside its place and moved there, so that no reader finds half of it.
fn write(path: &Path, data: &[u8], sum: u64) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Another process may be writing the same file.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written =
        fs::write(&part, [MAGIC, &sum.to_le_bytes(), data].concat()).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// FNV-1a: it is damage that must be noticed, not malice. Who can write here can write anywhere the user can.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_not_read() {
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
        // No folder can be made where a file is.
        assert!(write(&path.join("below.bin"), &data, 0).is_err());
    }
}
