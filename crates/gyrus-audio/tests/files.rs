//! Files of every format, and malformed ones.

use gyrus_audio::{AudioError, Limits, Pcm, PcmFormat, Waveform};
use gyrus_testkit::repository;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("tests/data/audio").join(name)).unwrap()
}

fn decode(bytes: Vec<u8>) -> Result<Waveform, AudioError> {
    Waveform::decode(bytes, &Limits::default())
}

/// How far the second of two recordings begins after the first where they are most alike, up to 100 ms, and their
/// correlation there.
fn likeness(a: &[f32], b: &[f32]) -> (usize, f64) {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum() };
    let of = |delay: usize| {
        let b = &b[delay..];
        let n = a.len().min(b.len());
        dot(&a[..n], &b[..n]) / (dot(&a[..n], &a[..n]) * dot(&b[..n], &b[..n])).sqrt()
    };
    (0..1_600).map(|delay| (delay, of(delay))).max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap()
}

#[test]
fn every_format_gives_the_same_recording() {
    let wav = decode(file("speech.wav")).unwrap();
    assert_eq!(wav.samples().len(), 24_000);
    for (name, least) in
        [("speech.flac", 0.999_999), ("speech.mp3", 0.98), ("speech.ogg", 0.98), ("speech.m4a", 0.98)]
    {
        let found = decode(file(name)).unwrap();
        // Encoders fill their last frame.
        assert!((0.0..0.04).contains(&(found.seconds() - 1.5)), "{name}: {} s", found.seconds());
        assert_eq!(found.damaged_packets(), 0, "{name}");
        let (late, likeness) = likeness(wav.samples(), found.samples());
        assert!(likeness > least, "{name}: {likeness}");
        assert!(late <= 1, "{name}: {late} samples late");
    }
    assert_eq!(decode(file("speech.flac")).unwrap(), wav);
}

/// The M4A with another list of edits; its own begins at 1,024 of 44,100 a second.
fn with_edits(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = file("speech.m4a");
    let at = bytes.windows(4).position(|name| name == b"elst").unwrap() + 4;
    change(&mut bytes[at - 8..at + 20]);
    bytes
}

#[test]
fn the_delay_of_an_encoder_is_left_out_if_it_may_be_one() {
    let whole = decode(file("speech.m4a")).unwrap().samples().len();
    let samples = |bytes: Vec<u8>| decode(bytes).unwrap().samples().len();
    let begin = |time: i32| with_edits(|edits| edits[20..24].copy_from_slice(&time.to_be_bytes()));
    let all = samples(begin(0));
    // 1,024 samples at 44.1 kHz.
    assert!((371..=372).contains(&(all - whole)), "{all} with the delay, {whole} without");
    assert_eq!(samples(begin(1024)), whole);
    assert_eq!(all - samples(begin(44_100)), 16_000);
    // A cut, a pause, a time after the end of the recording, and lists that are no lists.
    for none in [44_101, -1, i32::MIN, i32::MAX] {
        assert_eq!(samples(begin(none)), all, "{none}");
    }
    assert_eq!(samples(with_edits(|edits| edits[12..16].fill(0))), all);
    assert_eq!(samples(with_edits(|edits| edits[8] = 1)), all);

    // The tag of iTunes, in a file without edits.
    let tagged = |text: &str| {
        let mut bytes = with_edits(|edits| edits[4..8].copy_from_slice(b"free"));
        let at = bytes.windows(4).position(|name| name == b"moov").unwrap() - 4;
        let mut tag = b"\0\0\0\x20name\0\0\0\0iTunSMPB".to_vec();
        tag.extend((16 + text.len() as u32).to_be_bytes());
        tag.extend(b"data\0\0\0\x01\0\0\0\0");
        tag.extend(text.as_bytes());
        let old = bytes.windows(4).rposition(|name| name == b"udta").unwrap();
        bytes[old..old + 4].copy_from_slice(b"free");
        let mut tags = (8 + tag.len() as u32).to_be_bytes().to_vec();
        tags.extend(b"udta");
        tags.extend(tag);
        let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) + tags.len() as u32;
        bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        bytes.extend(tags);
        samples(bytes)
    };
    assert_eq!(tagged(" 00000000 00000400 00000266 0000000000010266"), whole);
    for none in [" 00000000 0000AC45 00000000", " 00000000 later", " 00000000", ""] {
        assert_eq!(tagged(none), all, "{none}");
    }
}

/// A WAV file with this format, declared length of the samples, and samples.
fn wav(tag: u16, channels: u16, rate: u32, bits: u16, declared: u32, data: &[u8]) -> Vec<u8> {
    let align = channels * bits.div_ceil(8);
    let mut out = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    out.extend(tag.to_le_bytes());
    out.extend(channels.to_le_bytes());
    out.extend(rate.to_le_bytes());
    out.extend((rate * u32::from(align)).to_le_bytes());
    out.extend(align.to_le_bytes());
    out.extend(bits.to_le_bytes());
    out.extend(b"data");
    out.extend(declared.to_le_bytes());
    out.extend(data);
    out
}

fn message(bytes: Vec<u8>) -> String {
    decode(bytes).unwrap_err().to_string()
}

#[test]
fn bad_audio_is_an_error_that_says_what_is_wrong() {
    assert_eq!(message(Vec::new()), "the file is empty");
    assert_eq!(message(wav(1, 1, 16_000, 16, 0, &[])), "the audio has no samples");
    // A hundred hours are declared.
    assert_eq!(
        message(wav(1, 1, 5_000, 16, 3_600_000_000, &[0; 20_000])),
        "the file is truncated: it declares 3600000000 bytes of samples (360000.0 s), and holds 20000 bytes of samples (2.0 s)"
    );
    let nan = [0.5f32, f32::NAN].map(f32::to_le_bytes).concat();
    assert_eq!(message(wav(3, 1, 16_000, 32, 8, &nan)), "the sample at 0.000 s is NaN, not a finite number");
    let huge = 1e300f64.to_le_bytes();
    assert_eq!(message(wav(3, 1, 16_000, 64, 8, &huge)), "the sample at 0.000 s is inf, not a finite number");
    assert_eq!(message(wav(1, 0, 16_000, 16, 2, &[0; 2])), "0 channels; from 1 to 64 are possible");
    assert_eq!(
        message(wav(1, 1, 0, 16, 2, &[0; 2])),
        "a sample rate of 0 Hz, which must be from 1000 to 768000"
    );
    assert_eq!(message(wav(1, 1, 16_000, 40, 5, &[0; 5])), "WAV samples of 40 bits are not supported");
    assert_eq!(message(wav(17, 1, 16_000, 4, 5, &[0; 5])), "WAV samples of format 0x0011 are not supported");
    assert_eq!(
        message(b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f".to_vec()),
        "malformed WAV file: chunk 'junk' of 2147483647 bytes, of which 0 are left at byte 12"
    );
    assert_eq!(
        message(b"RIFF\0\0\0\0WAVEdata\x02\0\0\0\0\0".to_vec()),
        "malformed WAV file: the samples come before their format at byte 12"
    );
    assert_eq!(message(b"RIFF\0\0\0\0WAVE".to_vec()), "malformed WAV file: no 'fmt ' chunk at byte 12");
    assert_eq!(
        message(b"\x1b[31mwords, not sound".repeat(64)),
        "not audio that can be read (it begins with \"\\x1b[31mwords, not \"); WAV, FLAC, MP3, Ogg Vorbis and M4A can"
    );
    let long = wav(1, 1, 16_000, 16, 64_000, &[0; 64_000]);
    let short = Waveform::decode(long, &Limits { seconds: 1.0 });
    assert_eq!(short.unwrap_err().to_string(), "the audio is longer than 1 s, which is the limit");
}

#[test]
fn a_length_that_the_writer_did_not_know_means_all_that_is_there() {
    for declared in [0, u32::MAX] {
        assert_eq!(decode(wav(1, 1, 16_000, 16, declared, &[1; 400])).unwrap().samples().len(), 200);
    }
}

#[test]
fn truncated_files_are_errors_or_shorter_and_never_panics() {
    let mut flac = file("speech.flac");
    flac.truncate(flac.len() / 3);
    let error = decode(flac).unwrap_err().to_string();
    assert!(error.starts_with("the file is truncated: it declares 1.5 s, and holds 0."), "{error}");
    for name in ["speech.wav", "speech.flac", "speech.mp3", "speech.ogg", "speech.m4a"] {
        let whole = file(name);
        for part in 1..40 {
            let mut bytes = whole.clone();
            bytes.truncate(whole.len() * part / 40);
            let _ = decode(bytes);
        }
        // One byte changed at a time.
        for n in 0..120 {
            let mut bytes = whole.clone();
            let at = n * 37 % whole.len().min(4_000);
            bytes[at] ^= 1 << (n % 8);
            let _ = decode(bytes);
        }
    }
}

#[test]
fn raw_samples_have_the_format_that_the_caller_says() {
    let format = PcmFormat { pcm: Pcm::S16, rate: 8_000, channels: 2 };
    let limits = Limits::default();
    let found = Waveform::from_pcm(&[0; 4 * 8_000], &format, &limits).unwrap();
    assert_eq!(found.samples().len(), 16_000);
    let error = Waveform::from_pcm(&[0; 6], &format, &limits).unwrap_err().to_string();
    assert_eq!(error, "6 bytes of raw samples are no multiple of 4, the bytes of a sample of all channels");
}

#[test]
fn decoding_ends_where_the_caller_wants() {
    for name in ["speech.wav", "speech.flac", "speech.mp3", "speech.ogg", "speech.m4a"] {
        let mut calls = 0;
        let stopped = Waveform::decode_while(file(name), &Limits::default(), &mut || {
            calls += 1;
            calls < 2
        });
        assert_eq!((stopped, calls), (Err(AudioError::Stopped), 2), "{name}");
        let whole = Waveform::decode_while(file(name), &Limits::default(), &mut || true);
        assert_eq!(whole, decode(file(name)), "{name}");
    }
}

#[test]
fn long_recordings_are_converted_second_by_second() {
    let samples: Vec<u8> =
        (0..100_000i32).flat_map(|n| ((n % 1_009 * 31 - 15_000) as i16).to_le_bytes()).collect();
    let found = decode(wav(1, 1, 22_050, 16, 200_000, &samples)).unwrap();
    let floats: Vec<f32> = samples
        .chunks_exact(2)
        .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0)
        .collect();
    assert_eq!(found, Waveform::from_samples(&floats, 22_050).unwrap());
}
