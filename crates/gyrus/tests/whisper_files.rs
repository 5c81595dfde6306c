//! Whisper models in GGUF: the transcripts of the same weights in a folder. And files of any kind that are refused by name.

mod whisper_gguf;

use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest};
use gyrus::{Error, Model, Options, Precision, Transcriber};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::DType;
use gyrus_testkit::{repository, tempfile};
use whisper_gguf::WhisperGguf;

fn folder() -> std::path::PathBuf {
    repository().join("tests/data/whisper")
}

fn speech() -> Waveform {
    let bytes = std::fs::read(repository().join("tests/data/audio/speech.wav")).unwrap();
    Waveform::decode(bytes, &Limits::default()).unwrap()
}

fn options(precision: Precision) -> SpeechOptions {
    SpeechOptions { precision, threads: Some(2), ..SpeechOptions::default() }
}

fn open(file: &WhisperGguf, precision: Precision) -> Result<Transcriber, Error> {
    let checkpoint = Checkpoint::from_gguf("tiny.gguf", Bytes::Owned(file.bytes())).unwrap();
    assert!(Transcriber::recognises(&checkpoint));
    Transcriber::load(checkpoint, &options(precision), |_, _| {})
}

/// Random weights give implausible text, which is accepted here.
fn request() -> SpeechRequest {
    SpeechRequest {
        language: Some("en".to_owned()),
        timestamps: false,
        temperatures: vec![0.5],
        no_speech_limit: None,
        probability_limit: None,
        compression_limit: None,
        initial_prompt: Some("the here".to_owned()),
        ..SpeechRequest::default()
    }
}

#[test]
fn a_gguf_file_has_the_transcripts_of_the_same_weights_in_a_folder() {
    let mut few = WhisperGguf::tiny();
    // What shapes say may be missing, and keys may lack the architecture.
    few.numbers = [("encoder.attention.head_count", 2), ("attention.head_count", 4)]
        .map(|(key, heads)| (key.to_owned(), heads))
        .into();
    few.strings.remove("tokenizer.ggml.model");
    // A bias of a convolution is a column, as in whisper.cpp's files.
    few.tensors.get_mut("encoder.conv1.bias").unwrap().1.push(1);
    for precision in [Precision::Exact, Precision::Fast] {
        let whole = Transcriber::open(&folder(), &options(precision)).unwrap();
        let expected = whole.transcribe(&speech(), &request()).unwrap();
        assert!(!expected.text().is_empty());
        for file in [&WhisperGguf::tiny(), &few] {
            let found = open(file, precision).unwrap();
            assert!(found.is_multilingual());
            assert!(found.encode(&speech()).unwrap() == whole.encode(&speech()).unwrap(), "{precision:?}");
            assert_eq!(found.transcribe(&speech(), &request()).unwrap(), expected, "{precision:?}");
            let words = SpeechRequest { words: true, ..request() };
            let words = found.transcribe(&speech(), &words).unwrap();
            assert!(words.segments.iter().any(|segment| !segment.words.is_empty()));
        }
    }
}

#[test]
fn a_gguf_file_may_have_its_own_mel_filters() {
    let mut file = WhisperGguf::tiny();
    let silent = (DType::F32, vec![80, 201], vec![0; 80 * 201 * 4]);
    file.tensors.insert("mel_filters".to_owned(), silent);
    let (features, _) = open(&file, Precision::Exact).unwrap().encode(&speech()).unwrap();
    assert!(features.iter().all(|value| *value == features[0]));
}

#[test]
fn what_a_gguf_file_lacks_or_contradicts_is_named() {
    type Change = fn(&mut WhisperGguf);
    let changes: [(Change, &str); 13] = [
        (
            |file| drop(file.tensors.remove("encoder.conv1.weight")),
            "tensor 'encoder.conv1.weight' is missing",
        ),
        (
            |file| drop(file.tensors.remove("decoder.blocks.1.cross_attn.query.weight")),
            "tensor 'decoder.blocks.1.cross_attn.query.weight' is missing",
        ),
        (
            |file| file.tensors.get_mut("encoder.conv1.weight").unwrap().1 = vec![32, 240],
            "tensor 'encoder.conv1.weight' has shape 32 × 240, expected 3 dimensions",
        ),
        (
            |file| _ = file.numbers.remove("whisper.attention.head_count"),
            "key 'whisper.attention.head_count' is missing",
        ),
        (
            |file| _ = file.numbers.insert("whisper.attention.head_count".to_owned(), 5),
            "decoder heads is 5, which does not divide the width of 32",
        ),
        (
            |file| _ = file.numbers.insert("whisper.encoder.block_count".to_owned(), 3),
            "encoder layers is 2, but 'whisper.encoder.block_count' is 3",
        ),
        (
            |file| _ = file.numbers.insert("whisper.vocab_size".to_owned(), 51_865),
            "vocabulary size is 1773, but 'whisper.vocab_size' is 51865",
        ),
        (|file| file.tokens = None, "key 'tokenizer.ggml.tokens' is missing"),
        (
            |file| file.tokens.as_mut().unwrap().truncate(100),
            "vocabulary size is 1773, which leaves 164 languages beside 100 tokens of text",
        ),
        (
            |file| file.tokens.as_mut().unwrap()[256] = " t".to_owned(),
            "tokenizer.ggml.tokens: token 256, ' t', has a character that no byte is spelled as",
        ),
        (
            |file| drop(file.strings.insert("tokenizer.ggml.model".to_owned(), "llama".to_owned())),
            "tokenizer 'llama' of Whisper is not supported",
        ),
        (
            |file| {
                drop(file.tensors.insert("mel_filters".to_owned(), (DType::F32, vec![40, 1], vec![0; 160])))
            },
            "number of mel filters is 40, but the encoder reads 80 bands",
        ),
        (
            |file| drop(file.tensors.insert("adapter".to_owned(), (DType::F32, vec![1], vec![0; 4]))),
            "tensor 'adapter' is not used by this architecture: the model has a feature that is not supported",
        ),
    ];
    for (change, expected) in changes {
        let mut file = WhisperGguf::tiny();
        change(&mut file);
        let error = open(&file, Precision::Exact).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some(expected));
    }
}

#[test]
fn a_gguf_of_speech_is_no_language_model() {
    let checkpoint = Checkpoint::from_gguf("tiny.gguf", Bytes::Owned(WhisperGguf::tiny().bytes())).unwrap();
    let error = Model::load(checkpoint, &Options::default()).err().unwrap();
    assert_eq!(error.to_string(), "'whisper' is a speech model: gyrus transcribe and Transcriber run it");
}

/// A list of heads decides how much memory and time the alignment of words takes.
#[test]
fn alignment_heads_exist_and_are_listed_once() {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(folder().join(name), copy.path().join(name)).unwrap();
    }
    let open = |heads: &str| {
        let text = format!("{{\"alignment_heads\": {heads}}}");
        std::fs::write(copy.path().join("generation_config.json"), text).unwrap();
        Transcriber::open(copy.path(), &options(Precision::Fast)).err().map(|error| error.to_string())
    };
    let refused = |head: &str| Some(format!("generation_config.json: alignment head {head}"));
    assert_eq!(open("[[1, 3], [0, 0], [0, 3]]"), None);
    assert_eq!(open("[[1, 3], [0, 0], [1, 3]]"), refused("3 of layer 1 is listed twice"));
    assert_eq!(open("[[0, 4]]"), refused("4 of layer 0 does not exist"));
    assert_eq!(open("[[2, 0]]"), refused("0 of layer 2 does not exist"));
    let many = format!("[[0, 0]{}]", ", [0, 0]".repeat(1_000_000));
    assert_eq!(open(&many), refused("0 of layer 0 is listed twice"));
}
