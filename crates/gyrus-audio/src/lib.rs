//! Audio files from untrusted sources as 16 kHz mono samples, log-mel spectrograms, and voice activity.
//!
//! [`Waveform::decode`] reads WAV, FLAC, MP3, Ogg Vorbis and M4A, mixes the channels and resamples. [`LogMel`] is the
//! spectrogram that Whisper's encoder reads. [`speech_spans`] finds where somebody may speak.
//!
//! Memory is bounded by the data that is there, never by a length that a file declares.
//!
//! This crate knows samples and frames. It knows nothing of models, names of files or devices.
//!
//! ```
//! use gyrus_audio::{LogMel, MelFilters, Waveform};
//!
//! let tone: Vec<f32> = (0..16_000).map(|n| (n as f32 * 0.1).sin()).collect();
//! let audio = Waveform::from_samples(&tone, 16_000)?;
//! let mel = LogMel::new(audio.samples(), &MelFilters::slaney(80), 1)?;
//! assert_eq!(mel.window(0, 3000).len(), 3000 * 80);
//! # Ok::<(), gyrus_audio::AudioError>(())
//! ```

#![forbid(unsafe_code)]

mod codecs;
mod containers;
mod error;
mod filters;
mod mel;
mod pcm;
mod resample;
mod vad;
mod wav;
mod waveform;

pub use error::AudioError;
pub use filters::{FilterError, MelFilters};
pub use mel::LogMel;
pub use pcm::{Pcm, PcmFormat};
pub use vad::{Span, speech_spans};
pub use waveform::{Limits, Waveform};

/// Samples in a second of a [`Waveform`].
pub const SAMPLE_RATE: u32 = 16_000;

/// Samples between the centres of two frames of a spectrogram: 10 ms.
pub const HOP: usize = 160;

/// Samples of the Fourier transform of a frame: 25 ms.
pub const FRAME: usize = 400;

/// Frequencies of a frame, from 0 to half the sample rate.
pub const BINS: usize = FRAME / 2 + 1;
