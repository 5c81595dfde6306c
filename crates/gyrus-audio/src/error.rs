/// Why audio could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// There are no bytes.
    #[error("the file is empty")]
    NoBytes,
    /// There are no samples.
    #[error("the audio has no samples")]
    NoSamples,
    /// No decoder knows the content.
    #[error(
        "not audio that can be read (it begins with \"{begins}\"); WAV, FLAC, MP3, Ogg Vorbis and M4A can"
    )]
    Unrecognised {
        /// Its first bytes, escaped.
        begins: String,
    },
    /// A chunk or field of a WAV file is malformed.
    #[error("malformed WAV file: {problem} at byte {at}")]
    Wav {
        /// What is wrong.
        problem: String,
        /// Where.
        at: usize,
    },
    /// An encoding of samples that is not supported.
    #[error("{0} are not supported")]
    Encoding(String),
    /// The file declares more audio than it holds.
    #[error("the file is truncated: it declares {declared}, and holds {held}")]
    Truncated {
        /// What it declares, with its unit.
        declared: String,
        /// What it holds, with its unit.
        held: String,
    },
    /// The sample rate is zero or beyond what audio has.
    #[error("a sample rate of {0} Hz, which must be from {least} to {most}", least = crate::resample::RATES.start(), most = crate::resample::RATES.end())]
    Rate(u32),
    /// The number of channels is zero or beyond what audio has.
    #[error("{0} channels; from 1 to 64 are possible")]
    Channels(usize),
    /// A sample that is NaN or infinite.
    #[error("the sample at {seconds:.3} s is {value}, not a finite number")]
    NotFinite {
        /// Where.
        seconds: f64,
        /// The sample.
        value: f32,
    },
    /// Samples whose energy is no finite number.
    #[error("the samples at {seconds:.2} s are too large for a spectrogram: audio is within ±1")]
    Spectrogram {
        /// Where.
        seconds: f64,
    },
    /// More audio than the caller allows.
    #[error("the audio is longer than {seconds:.0} s, which is the limit")]
    TooLong {
        /// The limit.
        seconds: f64,
    },
    /// The decoder of a compressed format found malformed data.
    #[error("malformed {format} data: {problem}")]
    Malformed {
        /// The format.
        format: &'static str,
        /// The decoder's message, escaped.
        problem: String,
    },
    /// The caller has stopped the decoding.
    #[error("the decoding was stopped before its end")]
    Stopped,
    /// Raw samples end within a sample.
    #[error("{bytes} bytes of raw samples are no multiple of {frame}, the bytes of a sample of all channels")]
    PartialSample {
        /// Bytes there are.
        bytes: usize,
        /// Bytes of a sample of all channels.
        frame: usize,
    },
}
