//! The tiny random Whisper of the test data: compared with transformers, between formats, and with itself in other batches.

use gyrus_audio::{Limits, LogMel, MelFilters, Waveform};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_kernels::Precision;
use gyrus_tensor::{DType, dequantize};
use gyrus_testkit::{npy, repository};

use super::engine::{Engine, Sequence, kv_size};
use super::passes::Step;
use super::{SpeechEvent, SpeechOptions, SpeechRequest, Transcriber};
use crate::arch::whisper::{self, WhisperConfig};
use crate::loader::Loader;
use crate::model::Options;
use crate::{Device, Error, Model};

const END: u32 = 261;
/// What transformers was given: start, language, task, no timestamps, text.
const TOKENS: [u32; 8] = [END + 1, END + 2, END + 6, END + 10, 258, 72, 101, 260];
const VOCAB: usize = END as usize + 11 + 1501;

fn folder() -> std::path::PathBuf {
    repository().join("tests/data/whisper")
}

pub(super) fn speech() -> Waveform {
    let bytes = std::fs::read(repository().join("tests/data/audio/speech.wav")).unwrap();
    Waveform::decode(bytes, &Limits::default()).unwrap()
}

fn engine(checkpoint: Checkpoint, precision: Precision, device: &Device) -> Engine {
    let config = WhisperConfig::read(&checkpoint).unwrap();
    let quantize = (precision == Precision::Fast).then_some(DType::Q8_0);
    let plan = whisper::build(&checkpoint, &config, precision, quantize).unwrap();
    let kv = kv_size(&config, 2, 3, 4);
    let device = device.clone();
    let options = Options { device, precision, quantize, threads: Some(2), ..Options::default() };
    let checkpoint = std::sync::Arc::new(checkpoint);
    let loader = Loader {
        checkpoint: &checkpoint,
        plan: &plan.plan,
        max_context: config.text_context,
        options: &options,
        progress: &|_, _| {},
        fixed: std::slice::from_ref(&kv),
    };
    let backend = loader.load().unwrap().backend;
    Engine::new(backend, config, &plan, &kv, 2)
}

fn tiny(precision: Precision) -> Engine {
    engine(Checkpoint::open(&folder()).unwrap(), precision, &Device::Cpu)
}

/// The logits of each token after the first three, one pass each.
fn logits(engine: &mut Engine, window: &super::engine::Encoded) -> Vec<f32> {
    let mut sequence = Sequence::new(TOKENS[..4].to_vec());
    let mut all = Vec::new();
    for next in 4..=TOKENS.len() {
        let step = Step { sequence: &mut sequence, window, also: None };
        all.extend(engine.forward(&mut [step]).unwrap());
        sequence.tokens.extend(TOKENS.get(next));
    }
    engine.drop_sequence(sequence);
    all
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    gyrus_testkit::distance(a, b)
}

#[test]
fn spectrogram_encoder_and_logits_are_those_of_transformers() {
    let read = |name: &str| npy::read_f32(&folder().join(name)).values;
    let mel = LogMel::new(speech().samples(), &MelFilters::slaney(80), 1).unwrap().window(0, 96);
    let far = difference(&mel, &read("mel.npy"));
    assert!(far < 1e-4, "spectrogram: {far}");
    for (precision, device, least, most) in [
        (Precision::Exact, Device::Cpu, 0.999_999, 1e-3),
        (Precision::Exact, Device::Reference, 0.999_999, 1e-3),
        (Precision::Fast, Device::Cpu, 0.999, 0.3),
    ] {
        let mut engine = engine(Checkpoint::open(&folder()).unwrap(), precision, &device);
        let (windows, encoded) = engine.encode(std::slice::from_ref(&mel), true).unwrap();
        let found = cosine(&encoded, &read("encoded.npy"));
        assert!(found > least, "encoder, {precision:?} {device}: {found}");
        let (logits, expected) = (logits(&mut engine, &windows[0]), read("logits.npy"));
        let (found, far) = (cosine(&logits, &expected), difference(&logits, &expected));
        assert!(found > least && far < most, "logits, {precision:?} {device}: {found}, {far}");
    }
}

/// Whisper tiny: one in 25 frames of the spectrogram, and one in 50 rows of what the encoder makes of it, are those that
/// openai-whisper computes (`scripts/oracle/openai_whisper.py`).
#[test]
fn real_speech_is_encoded_as_by_openai_whisper() {
    let Some(path) = gyrus_testkit::further_model("ggml-tiny.bin") else { return };
    let Some(audio) = gyrus_testkit::data("audio/jfk.wav") else { return };
    let read = |name: &str| npy::read_f32(&folder().join(name)).values;
    let one_in = |values: &[f32], rows: usize, each: usize| -> Vec<f32> {
        values.chunks_exact(values.len() / rows).step_by(each).flatten().copied().collect()
    };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let config = WhisperConfig::read(&checkpoint).unwrap();
    let filters = super::transcriber::filters(&checkpoint, &config).unwrap();
    let audio = Waveform::decode(std::fs::read(audio).unwrap(), &Limits::default()).unwrap();
    let mel = LogMel::new(audio.samples(), &filters, 2).unwrap().window(0, 3000);
    let far = difference(&one_in(&mel, 3000, 25), &read("jfk_mel.npy"));
    assert!(far < 1e-4, "spectrogram: {far}");
    for (precision, least) in [(Precision::Exact, 0.999_999), (Precision::Fast, 0.999)] {
        let mut engine = engine(Checkpoint::open(&path).unwrap(), precision, &Device::Cpu);
        let (_, encoded) = engine.encode(std::slice::from_ref(&mel), true).unwrap();
        let found = cosine(&one_in(&encoded, 1500, 50), &read("jfk_encoded.npy"));
        assert!(found > least, "{precision:?}: {found}");
    }
}

/// The same tensors under OpenAI's names in the container of whisper.cpp.
fn as_ggml() -> Vec<u8> {
    let checkpoint = Checkpoint::open(&folder()).unwrap();
    let mut out = b"lmgg".to_vec();
    let put = |out: &mut Vec<u8>, number: usize| out.extend((number as i32).to_le_bytes());
    // The hidden widths of this format are four times the width, and all heads are equal in number: not here. So the header
    // is that of a model of its own, and only its tensors are compared.
    for number in [VOCAB, 48, 32, 2, 2, 64, 32, 4, 2, 80, 1] {
        put(&mut out, number);
    }
    put(&mut out, 80);
    put(&mut out, 201);
    out.extend(std::iter::repeat_n(0, 80 * 201 * 4));
    put(&mut out, END as usize);
    let texts: Vec<Vec<u8>> = (0..=255u8)
        .map(|byte| vec![byte])
        .chain([" t", "he", " the", "re", " there"].map(|t| t.into()))
        .collect();
    for text in &texts {
        put(&mut out, text.len());
        out.extend(text);
    }
    for tensor in checkpoint.tensors() {
        let name = tensor.name.trim_start_matches("model.");
        let dims = tensor.shape.dims();
        put(&mut out, dims.len());
        put(&mut out, name.len());
        put(&mut out, 1);
        dims.iter().rev().for_each(|dim| put(&mut out, *dim));
        out.extend(name.as_bytes());
        out.extend(tensor.data);
    }
    out
}

#[test]
fn a_ggml_file_has_the_tensors_and_tokens_that_were_written() {
    let file = Checkpoint::from_ggml("tiny.bin", Bytes::Owned(as_ggml())).unwrap();
    let folder = Checkpoint::open(&folder()).unwrap();
    assert_eq!(file.tensors().count(), folder.tensors().count());
    for tensor in folder.tensors() {
        let found = file.tensor(tensor.name.trim_start_matches("model.")).unwrap();
        assert_eq!((found.data, found.shape), (tensor.data, tensor.shape), "{}", tensor.name);
        let mut values = vec![0.0; found.shape.elems()];
        dequantize(found.dtype, found.data, &mut values).unwrap();
    }
    let of = |checkpoint| super::tokens::Tokens::read(checkpoint, VOCAB).unwrap();
    let (a, b) = (of(&file), of(&folder));
    assert_eq!(
        (a.end, a.first_timestamp, a.encode(" the there!").unwrap()),
        (b.end, b.first_timestamp, b.encode(" the there!").unwrap())
    );
    assert_eq!(a.text(&[260, 33]), " there!");
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    for precision in [Precision::Exact, Precision::Fast] {
        let mut engine = tiny(precision);
        let mel = LogMel::new(speech().samples(), &MelFilters::slaney(80), 1).unwrap();
        let windows = [mel.window(0, 96), mel.window(30, 96)];
        let (alone, rows) = engine.encode(&windows[..1], true).unwrap();
        let expected = logits(&mut engine, &alone[0]);
        let (both, together) = engine.encode(&windows, true).unwrap();
        assert_eq!(rows, together[..rows.len()], "{precision:?}");
        // Two sequences of two windows, and a fork that computes its tail again.
        let mut first = Sequence::new(TOKENS.to_vec());
        let mut second = Sequence::new(TOKENS[..5].to_vec());
        let mut steps = [
            Step { sequence: &mut second, window: &both[1], also: None },
            Step { sequence: &mut first, window: &both[0], also: Some(3) },
        ];
        let found = engine.forward(&mut steps).unwrap();
        assert_eq!(found[VOCAB..2 * VOCAB], expected[..VOCAB], "{precision:?}");
        assert_eq!(found[2 * VOCAB..], expected[4 * VOCAB..], "{precision:?}");
        let mut fork = engine.fork(&first);
        fork.tokens.truncate(TOKENS.len());
        let step = Step { sequence: &mut fork, window: &both[0], also: None };
        assert_eq!(engine.forward(&mut [step]).unwrap(), expected[4 * VOCAB..], "{precision:?}");
    }
}

pub(super) fn transcriber(options: SpeechOptions) -> Transcriber {
    Transcriber::open(&folder(), &SpeechOptions { threads: Some(2), ..options }).unwrap()
}

/// The tiny model with NaN in an element of a tensor.
pub(super) fn damaged(tensor: &str, element: usize) -> Transcriber {
    let mut bytes = std::fs::read(folder().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let at = json[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let dtype = json[tensor]["dtype"].as_str().unwrap();
    let nan: &[u8] = if dtype == "F32" { &[0, 0, 0xc0, 0x7f] } else { &[0xff, 0x7f] };
    bytes[8 + header + at + element * nan.len()..][..nan.len()].copy_from_slice(nan);
    // The name leads to the tokenizer beside the file.
    let name = folder().join("model.safetensors");
    let config = std::fs::read(folder().join("config.json")).unwrap();
    let damaged = Checkpoint::from_safetensors(name.to_str().unwrap(), Bytes::Owned(bytes), &config).unwrap();
    Transcriber::load(damaged, &SpeechOptions { threads: Some(2), ..SpeechOptions::default() }, |_, _| {})
        .unwrap()
}

pub(super) fn long_request() -> SpeechRequest {
    // Random weights give implausible text, which is accepted here.
    let none = None;
    SpeechRequest {
        language: Some("en".to_owned()),
        temperatures: vec![0.0],
        no_speech_limit: none,
        probability_limit: none,
        compression_limit: none,
        ..SpeechRequest::default()
    }
}

#[test]
fn recordings_side_by_side_have_the_transcripts_of_each_alone() {
    let transcriber = transcriber(SpeechOptions::default());
    let long = speech();
    let short = Waveform::from_samples(&long.samples()[..14_000], 16_000).unwrap();
    for (beams, timestamps) in [(1, false), (3, false), (1, true), (3, true)] {
        let request = SpeechRequest { beams, timestamps, ..long_request() };
        let alone: Vec<_> =
            [&long, &short].map(|audio| transcriber.transcribe(audio, &request).unwrap()).into();
        // Random weights may begin at a time after the end, where nothing is said.
        assert!(timestamps || !alone[0].segments.is_empty());
        let together = transcriber.transcribe_all(&[&long, &short], &request, &mut |_| true).unwrap();
        assert_eq!(together, alone, "{beams} beams");
    }
}

#[test]
fn words_lie_within_the_recording_and_spell_the_segments() {
    let transcriber = transcriber(SpeechOptions { precision: Precision::Exact, ..SpeechOptions::default() });
    let request = SpeechRequest { words: true, timestamps: false, ..long_request() };
    let found = transcriber.transcribe(&speech(), &request).unwrap();
    let words = || found.segments.iter().flat_map(|segment| &segment.words);
    assert!(words().count() > 0);
    for word in words() {
        assert!(word.start <= word.end && word.end <= 1.6, "{word:?}");
        assert!((0.0..=1.0).contains(&word.probability));
    }
    for segment in &found.segments {
        let spelled: String = segment.words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(spelled, segment.text);
    }
}

#[test]
fn a_caller_can_stop_and_hears_nothing_after_that() {
    let transcriber = transcriber(SpeechOptions::default());
    // A segment for each of several windows.
    let request = SpeechRequest { timestamps: false, ..long_request() };
    let whole = transcriber.transcribe(&speech(), &request).unwrap();
    assert!(whole.segments.len() > 1);
    let (mut seen, mut later) = (Vec::new(), 0);
    let stopped = transcriber.transcribe_all(&[&speech(), &speech()], &request, &mut |event| {
        later += usize::from(!seen.is_empty());
        match event {
            SpeechEvent::Segment { file, segment } => {
                seen.push((file, segment.clone()));
                false
            }
            _ => true,
        }
    });
    assert_eq!(seen, [(0, whole.segments[0].clone())]);
    assert_eq!(later, 0, "events after the end");
    let stopped = stopped.unwrap();
    assert_eq!(stopped[0].segments, whole.segments[..1]);
    assert!(stopped[1].segments.len() < whole.segments.len());
}

#[test]
fn silence_has_no_text_with_voice_activity() {
    let transcriber = transcriber(SpeechOptions::default());
    let silence = Waveform::from_samples(&vec![0.0; 48_000], 16_000).unwrap();
    let request = SpeechRequest { voice_activity: true, ..long_request() };
    let found = transcriber.transcribe(&silence, &request).unwrap();
    assert_eq!((found.text(), found.duration), (String::new(), 3.0));
}

#[test]
fn a_long_prompt_is_cut_to_what_a_window_takes_before_it_is_copied() {
    let transcriber = transcriber(SpeechOptions::default());
    let with = |text: &str| SpeechRequest { initial_prompt: Some(text.to_owned()), ..long_request() };
    let end = "here there ".repeat(8_000);
    let long = format!("{}{end}", "é then ".repeat(500_000));
    let found = transcriber.prompt(&with(&long)).unwrap();
    // Half of 64 positions, one of which begins the prompt.
    assert_eq!(found.len(), 31);
    assert_eq!(found, transcriber.prompt(&with(&end)).unwrap());
    assert!(transcriber.prompt(&with(" \n ")).unwrap().is_empty());
    assert_eq!(transcriber.prompt(&with(" there")).unwrap(), [260]);
    // The cut may fall within a character.
    assert_eq!(transcriber.prompt(&with(&"é".repeat(100_001))).unwrap().len(), 31);
}

/// Bursts of noise of half a second between pauses of a second.
fn bursts(count: usize) -> Waveform {
    let mut state = 3u32;
    let mut noise = |amplitude: f32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * amplitude
    };
    let amplitude = |n: usize| if n % 24_000 >= 16_000 { 0.3 } else { 0.003 };
    let samples: Vec<f32> = (0..(count * 24_000 + 16_000)).map(|n| noise(amplitude(n))).collect();
    Waveform::from_samples(&samples, 16_000).unwrap()
}

#[test]
fn parts_of_several_recordings_wait_for_windows() {
    let transcriber = transcriber(SpeechOptions { windows: Some(2), ..SpeechOptions::default() });
    let request = SpeechRequest { language: None, voice_activity: true, ..long_request() };
    let (many, few) = (bursts(5), bursts(2));
    let alone: Vec<_> = [&many, &few].map(|audio| transcriber.transcribe(audio, &request).unwrap()).into();
    let together = transcriber.transcribe_all(&[&many, &few], &request, &mut |_| true).unwrap();
    assert_eq!(together, alone);
}

#[test]
fn values_that_are_not_finite_are_errors_that_name_the_recording() {
    let whole = transcriber(SpeechOptions::default());
    let mut samples = speech().samples().to_vec();
    samples[8_000..8_400].fill(1e20);
    let loud = Waveform::from_samples(&samples, 16_000).unwrap();
    let error = whole.transcribe_all(&[&speech(), &loud], &long_request(), &mut |_| true).unwrap_err();
    let expected =
        "recording 2 at 0.49 s: the samples at 0.49 s are too large for a spectrogram: audio is within ±1";
    assert_eq!(error.to_string(), expected);
    // The norm before the logits.
    let damaged = damaged("model.decoder.layer_norm.bias", 0);
    let error = damaged.transcribe(&speech(), &long_request()).unwrap_err().to_string();
    assert_eq!(error, "recording 1 at 0.00 s: the model computed NaN or infinity in fast precision");
}

#[test]
fn a_cache_beyond_the_memory_is_refused_before_it_is_reserved() {
    let checkpoint = std::sync::Arc::new(Checkpoint::open(&folder()).unwrap());
    let config = WhisperConfig::read(&checkpoint).unwrap();
    let plan = whisper::build(&checkpoint, &config, Precision::Exact, None).unwrap();
    for device in [Device::Cpu, Device::Reference] {
        let loader = Loader {
            checkpoint: &checkpoint,
            plan: &plan.plan,
            max_context: config.text_context,
            options: &Options { device, precision: Precision::Exact, ..Options::default() },
            progress: &|_, _| {},
            fixed: &[kv_size(&config, 1, 1 << 32, 8)],
        };
        let error = loader.load().err().unwrap();
        assert!(matches!(error, Error::CacheMemory { .. }), "{error}");
    }
}

#[test]
fn wrong_requests_and_models_are_named() {
    let transcriber = transcriber(SpeechOptions::default());
    let error = |request: SpeechRequest| transcriber.transcribe(&speech(), &request).unwrap_err().to_string();
    let request = || long_request();
    assert_eq!(error(SpeechRequest { beams: 9, ..request() }), "9 beams; from 1 to 8 are possible");
    assert_eq!(error(SpeechRequest { temperatures: vec![], ..request() }), "no temperature to decode at");
    assert_eq!(
        error(SpeechRequest { temperatures: vec![f32::NAN], ..request() }),
        "a temperature of NaN; from 0 to 2 are possible"
    );
    let language = Some("ru".to_owned());
    assert_eq!(error(SpeechRequest { language, ..request() }), "the model knows no language 'ru'");
    let llama = repository().join("tests/data/tiny/llama");
    let wrong = Transcriber::open(&llama, &SpeechOptions::default()).err().unwrap();
    assert_eq!(
        wrong.to_string(),
        "'llama' is no speech model that can be read: a Whisper model in a GGML or GGUF file or a SafeTensors folder is needed"
    );
    let wrong = Model::open(&folder(), &Options::default()).err().unwrap();
    assert!(matches!(&wrong, Error::WrongKind { .. }), "{wrong}");
    assert_eq!(wrong.to_string(), "'whisper' is a speech model: gyrus transcribe and Transcriber run it");
}
