//! Shapes of encoders, which `gyrus bench` measures by themselves.

/// The dimensions of an encoder, and of the decoder that attends to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "encoders are measured on GPUs"))]
pub(crate) struct EncoderDims {
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) ffn: usize,
    pub(crate) vocab: usize,
    pub(crate) speech: Option<SpeechDims>,
}

/// What a speech recogniser has besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "encoders are measured on GPUs"))]
pub(crate) struct SpeechDims {
    /// Elements of a frame of the spectrogram.
    pub(crate) mels: usize,
    pub(crate) decoder_layers: usize,
}

/// Encoders by name.
pub(super) const ENCODERS: &[(&str, EncoderDims)] = &[
    ("whisper-tiny", speech([384, 4, 6, 1536, 51_865], 80, 4)),
    ("whisper-base", speech([512, 6, 8, 2048, 51_865], 80, 6)),
    ("whisper-large-v3", speech([1280, 32, 20, 5120, 51_866], 128, 32)),
    ("whisper-large-v3-turbo", speech([1280, 32, 20, 5120, 51_866], 128, 4)),
    ("minilm", text([384, 6, 12, 1536, 30_522])),
    ("bert-base", text([768, 12, 12, 3072, 30_522])),
    ("xlm-r-large", text([1024, 24, 16, 4096, 250_002])),
];

const fn text([width, layers, heads, ffn, vocab]: [usize; 5]) -> EncoderDims {
    EncoderDims { width, layers, heads, ffn, vocab, speech: None }
}

const fn speech(dims: [usize; 5], mels: usize, decoder_layers: usize) -> EncoderDims {
    EncoderDims { speech: Some(SpeechDims { mels, decoder_layers }), ..text(dims) }
}
