//! Recordings of the command line, which are read one after the other.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use gyrus::audio::{Limits, Waveform};

use crate::cli::TranscribeArgs;
use crate::{diagnostics, foreign};

/// The longest recording: a day.
const LIMITS: Limits = Limits { seconds: 24.0 * 3600.0 };
/// The most bytes of a file: half a day of stereo at 48 kHz in 32 bits.
const MOST_FILE_BYTES: u64 = 16 << 30;
/// The most bytes of stdin, a pipe or a device, whose length is not known before: 18 hours at 16 kHz in 16 bits.
const MOST_STREAM_BYTES: u64 = 2 << 30;

/// Finds what is wrong with a recording without decoding it. Returns its bytes, as far as they are known.
pub(super) fn check(path: &Path) -> Result<u64> {
    let named = || foreign::path(path);
    if path.as_os_str() == "-" {
        return Ok(0);
    }
    let metadata = std::fs::metadata(path).with_context(named)?;
    checked(&metadata).with_context(named)?;
    // A pipe is opened once: its writer ends when nobody reads.
    if metadata.is_file() {
        File::open(path).with_context(named)?;
    }
    Ok(metadata.len())
}

/// The most bytes that are read of a file. A folder and a larger file are errors.
fn checked(metadata: &Metadata) -> Result<u64> {
    if metadata.is_dir() {
        bail!("is a folder, not an audio file");
    }
    let most = if metadata.is_file() { MOST_FILE_BYTES } else { MOST_STREAM_BYTES };
    match metadata.len() > most {
        true => Err(too_large(most)),
        false => Ok(most),
    }
}

/// Reads and decodes a recording.
pub(super) fn read(path: &Path, args: &TranscribeArgs) -> Result<Waveform> {
    let named = || foreign::path(path);
    let bytes = if path.as_os_str() == "-" {
        read_within(&mut std::io::stdin().lock(), MOST_STREAM_BYTES).with_context(named)?
    } else {
        let file = File::open(path).with_context(named)?;
        let metadata = file.metadata().with_context(named)?;
        let most = checked(&metadata).with_context(named)?;
        read_within(&mut &file, most).with_context(named)?
    };
    let decoded = match &args.raw {
        Some(format) => Waveform::from_pcm(&bytes, format, &LIMITS),
        None => Waveform::decode(bytes, &LIMITS),
    };
    let decoded = decoded.with_context(named)?;
    if decoded.damaged_packets() > 0 && !args.quiet {
        let count = decoded.damaged_packets();
        diagnostics::about(named(), format!("{count} packets are damaged and were replaced by silence"));
    }
    Ok(decoded)
}

/// All that can be read, which is an error beyond this many bytes.
fn read_within(input: &mut dyn Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(too_large(most)),
        false => Ok(bytes),
    }
}

fn too_large(most: u64) -> anyhow::Error {
    anyhow!("has more than {} GiB, the most that is read", most >> 30)
}
