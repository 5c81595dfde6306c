use crate::pcm::PcmFormat;
use crate::resample::{Resampler, to_16_khz};
use crate::{AudioError, SAMPLE_RATE, codecs, wav};

/// What the caller allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The longest audio in seconds. A small compressed file can hold hours of silence.
    pub seconds: f64,
}

impl Default for Limits {
    /// Six hours, which take 1.4 GB of samples at 16 kHz.
    fn default() -> Limits {
        Limits { seconds: 6.0 * 3600.0 }
    }
}

/// Mono audio at 16 kHz. All samples are finite, and there is at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Waveform {
    samples: Vec<f32>,
    damaged: usize,
}

impl Waveform {
    /// Decodes a file: WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC, ALAC). The format is detected from the content. Channels are
    /// averaged.
    pub fn decode(bytes: Vec<u8>, limits: &Limits) -> Result<Waveform, AudioError> {
        Waveform::decode_while(bytes, limits, &mut || true)
    }

    /// As [`Waveform::decode`], for as long as `goes_on` returns true. It is called before each packet, which is a fraction of a
    /// second of audio, or before each second of samples that are not compressed.
    pub fn decode_while(
        bytes: Vec<u8>,
        limits: &Limits,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Waveform, AudioError> {
        if bytes.is_empty() {
            return Err(AudioError::NoBytes);
        }
        if wav::is_wav(&bytes) {
            let (format, samples) = wav::parse(&bytes)?;
            return Waveform::from_pcm_within(samples, &format, limits, goes_on);
        }
        let decoded = codecs::decode(bytes, limits, goes_on)?;
        Waveform::checked(decoded.samples, decoded.damaged)
    }

    /// Raw samples without a header.
    pub fn from_pcm(bytes: &[u8], format: &PcmFormat, limits: &Limits) -> Result<Waveform, AudioError> {
        format.check()?;
        let frame = format.frame_bytes();
        if !bytes.len().is_multiple_of(frame) {
            return Err(AudioError::PartialSample { bytes: bytes.len(), frame });
        }
        Waveform::from_pcm_within(bytes, format, limits, &mut || true)
    }

    fn from_pcm_within(
        bytes: &[u8],
        format: &PcmFormat,
        limits: &Limits,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Waveform, AudioError> {
        let frame = format.frame_bytes();
        let count = bytes.len() / frame;
        if count == 0 {
            return Err(AudioError::NoSamples);
        }
        let mut resampler = Resampler::new(format.rate)?;
        if count as f64 > limits.seconds * f64::from(format.rate) {
            return Err(AudioError::TooLong { seconds: limits.seconds });
        }
        let (mut samples, mut taken) = (Vec::new(), 0);
        for second in bytes.chunks(frame * format.rate as usize) {
            if !goes_on() {
                return Err(AudioError::Stopped);
            }
            let mixed = format.mixed(second);
            check_finite(&mixed, taken, format.rate)?;
            resampler.push(&mixed, &mut samples);
            taken += mixed.len();
        }
        resampler.finish(&mut samples);
        Waveform::checked(samples, 0)
    }

    /// Mono samples at any rate.
    pub fn from_samples(samples: &[f32], rate: u32) -> Result<Waveform, AudioError> {
        if samples.is_empty() {
            return Err(AudioError::NoSamples);
        }
        check_finite(samples, 0, rate)?;
        Waveform::checked(to_16_khz(samples, rate)?, 0)
    }

    /// Samples at 16 kHz of finite samples. Those near the limits of f32 may still overflow in the filter.
    fn checked(samples: Vec<f32>, damaged: usize) -> Result<Waveform, AudioError> {
        if samples.is_empty() {
            return Err(AudioError::NoSamples);
        }
        check_finite(&samples, 0, SAMPLE_RATE)?;
        Ok(Waveform { samples, damaged })
    }

    /// The samples.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Its length.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(SAMPLE_RATE)
    }

    /// Packets that could not be decoded, for which there is silence.
    pub fn damaged_packets(&self) -> usize {
        self.damaged
    }
}

/// Checks samples, the first of which is sample `first` of the recording.
pub(crate) fn check_finite(samples: &[f32], first: usize, rate: u32) -> Result<(), AudioError> {
    match samples.iter().position(|x| !x.is_finite()) {
        Some(at) => {
            let seconds = (first + at) as f64 / f64::from(rate.max(1));
            Err(AudioError::NotFinite { seconds, value: samples[at] })
        }
        None => Ok(()),
    }
}
