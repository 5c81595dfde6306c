//! WAV files: RIFF, RF64 and BW64 containers of PCM, floats and G.711.

use crate::AudioError;
use crate::pcm::{Pcm, PcmFormat};

const TAG_PCM: u16 = 1;
const TAG_FLOAT: u16 = 3;
const TAG_A_LAW: u16 = 6;
const TAG_MU_LAW: u16 = 7;
const TAG_EXTENSIBLE: u16 = 0xfffe;

/// A length of a data chunk that says "until the end", as programs that write to a pipe put it.
const UNKNOWN_LENGTH: u32 = u32::MAX;

/// Whether the bytes are those of a WAV file.
pub(crate) fn is_wav(bytes: &[u8]) -> bool {
    let container = bytes.get(..4);
    container.is_some_and(|id| [b"RIFF", b"RF64", b"BW64"].iter().any(|known| id == *known))
        && bytes.get(8..12) == Some(b"WAVE")
}

/// The layout of the samples, and their bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<(PcmFormat, &[u8]), AudioError> {
    let fail = |problem: String, at: usize| Err(AudioError::Wav { problem, at });
    let (mut at, mut format, mut long_data) = (12usize, None, None);
    while let Some(header) = bytes.get(at..at.saturating_add(8)) {
        let (id, length) = (&header[..4], u32_at(header, 4));
        let body_at = at + 8;
        let left = &bytes[body_at..];
        if id == b"data" {
            let Some(format) = format else {
                return fail("the samples come before their format".to_owned(), at);
            };
            return samples(format, left, length, long_data).map(|samples| (format, samples));
        }
        let Some(body) = left.get(..length as usize) else {
            let name = id.escape_ascii();
            let problem = format!("chunk '{name}' of {length} bytes, of which {} are left", left.len());
            return fail(problem, at);
        };
        match id {
            b"fmt " => format = Some(read_format(body, body_at)?),
            // RF64 has lengths of 64 bits here: of the file, then of the samples.
            b"ds64" if body.len() >= 16 => long_data = Some(u64_at(body, 8)),
            _ => {}
        }
        // Chunks begin at even offsets.
        at = body_at + length as usize + (length as usize & 1);
    }
    let missing = if format.is_some() { "no 'data' chunk" } else { "no 'fmt ' chunk" };
    fail(missing.to_owned(), bytes.len())
}

/// The bytes of the samples: as many as declared, or all that are left if the writer did not know.
fn samples(format: PcmFormat, left: &[u8], length: u32, long_data: Option<u64>) -> Result<&[u8], AudioError> {
    let length = match (length, long_data) {
        (UNKNOWN_LENGTH, Some(length)) => length,
        (UNKNOWN_LENGTH, None) => left.len() as u64,
        // A header that was never completed.
        (0, _) => left.len() as u64,
        (length, _) => u64::from(length),
    };
    let held = usize::try_from(length).ok().and_then(|length| left.get(..length));
    held.ok_or_else(|| {
        let seconds = |bytes: u64| {
            let rate = format.frame_bytes() as u64 * u64::from(format.rate);
            format!("{bytes} bytes of samples ({:.1} s)", bytes as f64 / rate.max(1) as f64)
        };
        AudioError::Truncated { declared: seconds(length), held: seconds(left.len() as u64) }
    })
}

fn read_format(body: &[u8], at: usize) -> Result<PcmFormat, AudioError> {
    if body.len() < 16 {
        return Err(AudioError::Wav { problem: format!("a format of {} bytes", body.len()), at });
    }
    let (channels, rate) = (u16_at(body, 2), u32_at(body, 4));
    let (align, bits) = (u16_at(body, 12), u16_at(body, 14));
    let tag = match u16_at(body, 0) {
        // The first two bytes of the sub-format's GUID are its tag.
        TAG_EXTENSIBLE if body.len() >= 26 => u16_at(body, 24),
        tag => tag,
    };
    // Samples of 12 or 20 bits lie in the upper bits of whole bytes.
    let bytes = bits.div_ceil(8);
    let pcm = match (tag, bytes) {
        (TAG_PCM, 1) => Pcm::U8,
        (TAG_PCM, 2) => Pcm::S16,
        (TAG_PCM, 3) => Pcm::S24,
        (TAG_PCM, 4) => Pcm::S32,
        (TAG_FLOAT, 4) => Pcm::F32,
        (TAG_FLOAT, 8) => Pcm::F64,
        (TAG_A_LAW, 1) => Pcm::ALaw,
        (TAG_MU_LAW, 1) => Pcm::MuLaw,
        (TAG_PCM | TAG_FLOAT, _) => return Err(AudioError::Encoding(format!("WAV samples of {bits} bits"))),
        _ => return Err(AudioError::Encoding(format!("WAV samples of format {tag:#06x}"))),
    };
    let format = PcmFormat { pcm, rate, channels: usize::from(channels) };
    format.check()?;
    if usize::from(align) != format.frame_bytes() {
        let problem = format!("{align} bytes in a sample of {channels} channels of {bits} bits");
        return Err(AudioError::Wav { problem, at: at + 12 });
    }
    Ok(format)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
