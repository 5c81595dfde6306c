//! Compressed formats through `symphonia`.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::audio::{AudioBufferRef, Signal};
use symphonia::core::codecs::{CODEC_TYPE_MP3, CODEC_TYPE_NULL, DecoderOptions};
use symphonia::core::conv::IntoSample;
use symphonia::core::errors::Error;
use symphonia::core::formats::FormatOptions;
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::{Limit, MetadataOptions};
use symphonia::core::probe::Hint;

use crate::pcm::check_channels;
use crate::{AudioError, Limits};

/// The most bytes of tags and pictures that are read.
const MOST_METADATA: usize = 1 << 20;

/// Mono samples of a file.
pub(crate) struct Decoded {
    pub(crate) samples: Vec<f32>,
    pub(crate) rate: u32,
    pub(crate) damaged: usize,
}

/// Decodes the first audio track.
///
/// The decoders are another project's. Should one panic on malformed data, that is an error of this file only.
pub(crate) fn decode(bytes: Vec<u8>, limits: &Limits) -> Result<Decoded, AudioError> {
    let format = name_of(&bytes);
    let begins = bytes[..bytes.len().min(16)].escape_ascii().to_string();
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_track(bytes, format, begins, limits)));
    decoded.unwrap_or_else(|_| Err(malformed(format, "the decoder failed")))
}

fn decode_track(
    bytes: Vec<u8>,
    format: &'static str,
    begins: String,
    limits: &Limits,
) -> Result<Decoded, AudioError> {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let metadata = MetadataOptions {
        limit_metadata_bytes: Limit::Maximum(MOST_METADATA),
        limit_visual_bytes: Limit::Maximum(MOST_METADATA),
    };
    let probe = symphonia::default::get_probe();
    let probed = probe.format(&Hint::new(), stream, &FormatOptions::default(), &metadata);
    let mut reader = match probed {
        Ok(probed) => probed.format,
        Err(Error::Unsupported(_)) => return Err(AudioError::Unrecognised { begins }),
        Err(Error::IoError(_)) if format == UNKNOWN => return Err(AudioError::Unrecognised { begins }),
        Err(error) => return Err(malformed(format, error)),
    };
    let track = reader.tracks().iter().find(|track| track.codec_params.codec != CODEC_TYPE_NULL);
    let Some(track) = track else { return Err(malformed(format, "there is no audio track")) };
    let (id, parameters) = (track.id, track.codec_params.clone());
    let declared = parameters.n_frames.filter(|_| parameters.codec != CODEC_TYPE_MP3);
    let mut decoder = symphonia::default::get_codecs()
        .make(&parameters, &DecoderOptions::default())
        .map_err(|error| malformed(format, error))?;

    let mut out = Decoded { samples: Vec::new(), rate: parameters.sample_rate.unwrap_or(0), damaged: 0 };
    let mut packets = 0usize;
    loop {
        let packet = match reader.next_packet() {
            Ok(packet) => packet,
            Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(Error::ResetRequired) => {
                return Err(AudioError::Encoding("several streams one after another in a file".to_owned()));
            }
            Err(error) => return Err(malformed(format, error)),
        };
        if packet.track_id() != id {
            continue;
        }
        packets += 1;
        match decoder.decode(&packet) {
            Ok(buffer) => {
                let spec = buffer.spec();
                if out.rate != spec.rate {
                    // Some formats declare the rate in their packets only.
                    if !out.samples.is_empty() {
                        let rates = format!("sample rates that change ({} Hz, {} Hz)", out.rate, spec.rate);
                        return Err(AudioError::Encoding(rates));
                    }
                    out.rate = spec.rate;
                }
                check_channels(spec.channels.count())?;
                mix(&buffer, &mut out.samples);
            }
            // A damaged packet does not end the file: it becomes silence of its declared length, within reason.
            Err(Error::DecodeError(_)) => {
                out.damaged += 1;
                let silence = packet.dur().min(1 << 16) as usize;
                out.samples.resize(out.samples.len() + silence, 0.0);
            }
            Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(malformed(format, error)),
        }
        if out.samples.len() as f64 > limits.seconds * f64::from(out.rate.max(1)) {
            return Err(AudioError::TooLong { seconds: limits.seconds });
        }
    }
    if out.damaged * 2 > packets {
        let problem = format!("{} of {packets} packets cannot be decoded", out.damaged);
        return Err(malformed(format, problem));
    }
    // A second is more than any padding that encoders declare.
    match declared.filter(|&declared| declared > out.samples.len() as u64 + u64::from(out.rate)) {
        Some(declared) => {
            let seconds = |count: u64| format!("{:.1} s", count as f64 / f64::from(out.rate.max(1)));
            let (declared, held) = (seconds(declared), seconds(out.samples.len() as u64));
            Err(AudioError::Truncated { declared, held })
        }
        None => Ok(out),
    }
}

/// Appends the mean of the channels.
fn mix(buffer: &AudioBufferRef<'_>, out: &mut Vec<f32>) {
    macro_rules! mixed {
        ($buffer:expr) => {{
            let (channels, frames) = ($buffer.spec().channels.count(), $buffer.frames());
            let (start, scale) = (out.len(), 1.0 / channels as f32);
            out.resize(start + frames, 0.0);
            for channel in 0..channels {
                for (out, &sample) in out[start..].iter_mut().zip($buffer.chan(channel)) {
                    let sample: f32 = sample.into_sample();
                    *out += sample * scale;
                }
            }
        }};
    }
    match buffer {
        AudioBufferRef::U8(buffer) => mixed!(buffer),
        AudioBufferRef::U16(buffer) => mixed!(buffer),
        AudioBufferRef::U24(buffer) => mixed!(buffer),
        AudioBufferRef::U32(buffer) => mixed!(buffer),
        AudioBufferRef::S8(buffer) => mixed!(buffer),
        AudioBufferRef::S16(buffer) => mixed!(buffer),
        AudioBufferRef::S24(buffer) => mixed!(buffer),
        AudioBufferRef::S32(buffer) => mixed!(buffer),
        AudioBufferRef::F32(buffer) => mixed!(buffer),
        AudioBufferRef::F64(buffer) => mixed!(buffer),
    }
}

const UNKNOWN: &str = "audio";

/// The format that the first bytes name, for messages.
fn name_of(bytes: &[u8]) -> &'static str {
    match bytes {
        [b'f', b'L', b'a', b'C', ..] => "FLAC",
        [b'O', b'g', b'g', b'S', ..] => "Ogg",
        [b'I', b'D', b'3', ..] | [0xff, 0xe0..=0xff, ..] => "MP3",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "M4A",
        _ => UNKNOWN,
    }
}

fn malformed(format: &'static str, problem: impl std::fmt::Display) -> AudioError {
    AudioError::Malformed { format, problem: problem.to_string().escape_debug().to_string() }
}
