//! Files of the cache folder: their names, and how they are replaced.

use std::fs;
use std::io;
use std::path::Path;

use wgpu::AdapterInfo;

/// The name of an adapter's file: it is unique to the adapter and the version of its driver.
pub(crate) fn adapter_file(info: &AdapterInfo, extension: &str) -> String {
    let whose = format!("{} {} {} {}", info.name, info.driver, info.driver_info, info.backend);
    let plain: String = info
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    format!("{plain}_{:016x}.{extension}", checksum(whose.as_bytes()))
}

/// Writes a temporary file and renames it, so that no reader finds half of it.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Another process may be writing the same file.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, contents).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// FNV-1a. It detects damage, not malice: whoever can write this folder has the user's rights.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
