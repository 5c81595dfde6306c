//! Compressed formats through `symphonia`.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::audio::{AudioBufferRef, Signal};
use symphonia::core::codecs::{
    CODEC_TYPE_MP3, CODEC_TYPE_NULL, CODEC_TYPE_VORBIS, CodecParameters, DecoderOptions,
};
use symphonia::core::conv::IntoSample;
use symphonia::core::errors::Error;
use symphonia::core::io::MediaSourceStream;

use crate::containers::{Container, check_vorbis_setup};
use crate::pcm::check_channels;
use crate::resample::Resampler;
use crate::waveform::check_finite;
use crate::{AudioError, Limits, SAMPLE_RATE};

/// Numbers of frames that stand for "unknown".
const UNKNOWN_FRAMES: [u64; 2] = [u32::MAX as u64, u64::MAX];
/// Seconds by which a file may hold less than it declares: more than any padding that encoders declare.
const SLACK: f64 = 1.0;

/// Mono samples of a file at 16 kHz.
pub(crate) struct Decoded {
    pub(crate) samples: Vec<f32>,
    pub(crate) damaged: usize,
}

/// Decodes the first audio track.
///
/// The decoders are another project's, and only between packets can they be stopped. Should one panic on malformed data, that is an error of this file only.
pub(crate) fn decode(
    mut bytes: Vec<u8>,
    limits: &Limits,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Decoded, AudioError> {
    let begins = bytes[..bytes.len().min(16)].escape_ascii().to_string();
    let (container, delay) = Container::prepare(&mut bytes)?;
    let out = Output::new(limits, delay);
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_track(bytes, container, begins, out, goes_on)));
    decoded.unwrap_or_else(|_| Err(malformed(container.name(), "the decoder failed")))
}

fn decode_track(
    bytes: Vec<u8>,
    container: Container,
    begins: String,
    mut out: Output<'_>,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Decoded, AudioError> {
    let format = container.name();
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let mut reader = match container.open(stream) {
        Ok(reader) => reader,
        Err(_) if container == Container::Unknown => return Err(AudioError::Unrecognised { begins }),
        Err(error) => return Err(malformed(format, error)),
    };
    let track = reader.tracks().iter().find(|track| track.codec_params.codec != CODEC_TYPE_NULL);
    let Some(track) = track else { return Err(malformed(format, "there is no audio track")) };
    let (id, parameters) = (track.id, track.codec_params.clone());
    if parameters.codec == CODEC_TYPE_VORBIS {
        check_vorbis_setup(parameters.extra_data.as_deref().unwrap_or(&[]))?;
    }
    let mut decoder = symphonia::default::get_codecs()
        .make(&parameters, &DecoderOptions::default())
        .map_err(|error| malformed(format, error))?;

    // Files with rates that their field cannot hold declare zero.
    if let Some(rate) = parameters.sample_rate.filter(|rate| *rate > 0) {
        // The tag of an MP3 has 12 bits of the encoder's delay, to which that of all decoders is added.
        if let (CODEC_TYPE_MP3, Some(delay)) = (parameters.codec, parameters.delay) {
            out.delay = f64::from(delay) / f64::from(rate);
        }
        out.set_rate(rate)?;
    }
    let (mut packets, mut damaged) = (0usize, 0usize);
    loop {
        if !goes_on() {
            return Err(AudioError::Stopped);
        }
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
                check_channels(spec.channels.count())?;
                out.set_rate(spec.rate)?;
                out.take(|mixed| mix(&buffer, mixed))?;
            }
            // A damaged packet does not end the file: it becomes silence of its declared length, within reason.
            Err(Error::DecodeError(_)) => {
                damaged += 1;
                let silence = packet.dur().min(1 << 16) as usize;
                out.take(|mixed| mixed.resize(silence, 0.0))?;
            }
            Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(malformed(format, error)),
        }
    }
    if damaged * 2 > packets {
        return Err(malformed(format, format!("{damaged} of {packets} packets cannot be decoded")));
    }
    let held = out.seconds();
    match declared_seconds(&parameters).filter(|declared| *declared > held + SLACK) {
        Some(declared) => {
            let (declared, held) = (format!("{declared:.1} s"), format!("{held:.1} s"));
            Err(AudioError::Truncated { declared, held })
        }
        None => Ok(Decoded { samples: out.finish(), damaged }),
    }
}

/// The length that a track declares. That of an MP3 is an estimate.
fn declared_seconds(parameters: &CodecParameters) -> Option<f64> {
    let frames = parameters.n_frames.filter(|frames| !UNKNOWN_FRAMES.contains(frames))?;
    if parameters.codec == CODEC_TYPE_MP3 {
        return None;
    }
    // The unit of time of an M4A is not that of its samples.
    let frame = match (parameters.time_base, parameters.sample_rate) {
        (Some(base), _) => f64::from(base.numer) / f64::from(base.denom.max(1)),
        (None, rate) => f64::from(rate?.max(1)).recip(),
    };
    Some(frames as f64 * frame)
}

/// Samples of a track, which are converted as they come: memory is bounded by the limit of seconds at 16 kHz.
struct Output<'a> {
    limits: &'a Limits,
    rate: u32,
    resampler: Option<Resampler>,
    samples: Vec<f32>,
    /// Seconds before the recording begins.
    delay: f64,
    /// Samples of them that are still to come, at the track's rate.
    left_out: usize,
    /// Samples that were taken at the track's rate, with those that were left out.
    taken: usize,
    /// The samples of a packet.
    mixed: Vec<f32>,
}

impl Output<'_> {
    fn new(limits: &Limits, delay: f64) -> Output<'_> {
        let (samples, mixed) = (Vec::new(), Vec::new());
        Output { limits, rate: 0, resampler: None, samples, delay, left_out: 0, taken: 0, mixed }
    }

    /// Some formats declare the rate in their packets only.
    fn set_rate(&mut self, rate: u32) -> Result<(), AudioError> {
        if self.rate == rate {
            return Ok(());
        }
        if self.taken > 0 {
            let rates = format!("sample rates that change ({} Hz, {rate} Hz)", self.rate);
            return Err(AudioError::Encoding(rates));
        }
        self.resampler = Some(Resampler::new(rate)?);
        self.rate = rate;
        self.left_out = (self.delay * f64::from(rate)).round() as usize;
        Ok(())
    }

    /// Takes the samples that are written to an empty list.
    fn take(&mut self, write: impl FnOnce(&mut Vec<f32>)) -> Result<(), AudioError> {
        self.mixed.clear();
        write(&mut self.mixed);
        check_finite(&self.mixed, self.taken, self.rate)?;
        let Some(resampler) = &mut self.resampler else { return Err(AudioError::Rate(self.rate)) };
        let first = self.left_out.min(self.mixed.len());
        self.left_out -= first;
        resampler.push(&self.mixed[first..], &mut self.samples);
        self.taken += self.mixed.len();
        let most = self.limits.seconds;
        match self.seconds() > most || self.samples.len() as f64 > most * f64::from(SAMPLE_RATE) {
            true => Err(AudioError::TooLong { seconds: most }),
            false => Ok(()),
        }
    }

    fn seconds(&self) -> f64 {
        self.taken as f64 / f64::from(self.rate.max(1))
    }

    fn finish(mut self) -> Vec<f32> {
        if let Some(resampler) = &mut self.resampler {
            resampler.finish(&mut self.samples);
        }
        self.samples
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

fn malformed(format: &'static str, problem: impl std::fmt::Display) -> AudioError {
    AudioError::Malformed { format, problem: problem.to_string().escape_debug().to_string() }
}
