use crate::pcm::PcmFormat;
use crate::resample::to_16_khz;
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
        if bytes.is_empty() {
            return Err(AudioError::NoBytes);
        }
        if wav::is_wav(&bytes) {
            let (format, samples) = wav::parse(&bytes)?;
            return Waveform::from_pcm_within(samples, &format, limits);
        }
        let decoded = codecs::decode(bytes, limits)?;
        Waveform::checked(decoded.samples, decoded.damaged)
    }

    /// Raw samples without a header.
    pub fn from_pcm(bytes: &[u8], format: &PcmFormat, limits: &Limits) -> Result<Waveform, AudioError> {
        format.check()?;
        let frame = format.frame_bytes();
        if !bytes.len().is_multiple_of(frame) {
            return Err(AudioError::PartialSample { bytes: bytes.len(), frame });
        }
        Waveform::from_pcm_within(bytes, format, limits)
    }

    fn from_pcm_within(bytes: &[u8], format: &PcmFormat, limits: &Limits) -> Result<Waveform, AudioError> {
        let count = bytes.len() / format.frame_bytes();
        if count as f64 > limits.seconds * f64::from(format.rate) && format.rate > 0 {
            return Err(AudioError::TooLong { seconds: limits.seconds });
        }
        Waveform::from_samples(&format.mixed(bytes), format.rate)
    }

    /// Mono samples at any rate.
    pub fn from_samples(samples: &[f32], rate: u32) -> Result<Waveform, AudioError> {
        if samples.is_empty() {
            return Err(AudioError::NoSamples);
        }
        if let Some(at) = samples.iter().position(|x| !x.is_finite()) {
            let seconds = at as f64 / f64::from(rate.max(1));
            return Err(AudioError::NotFinite { seconds, value: samples[at] });
        }
        Waveform::checked(to_16_khz(samples, rate)?, 0)
    }

    /// Samples at 16 kHz of finite samples. Those near the limits of f32 may still overflow in the filter.
    fn checked(samples: Vec<f32>, damaged: usize) -> Result<Waveform, AudioError> {
        match samples.iter().position(|x| !x.is_finite()) {
            _ if samples.is_empty() => Err(AudioError::NoSamples),
            Some(at) => {
                let seconds = at as f64 / f64::from(SAMPLE_RATE);
                Err(AudioError::NotFinite { seconds, value: samples[at] })
            }
            None => Ok(Waveform { samples, damaged }),
        }
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
