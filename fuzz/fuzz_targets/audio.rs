#![no_main]
//! Audio files of all formats: an error or finite samples, within the bytes' own bounds.

use gyrus_audio::{Limits, Waveform};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { seconds: 60.0 };
    if let Ok(audio) = Waveform::decode(bytes.to_vec(), &limits) {
        assert!(!audio.samples().is_empty());
        assert!(audio.samples().iter().all(|sample| sample.is_finite()));
    }
});
