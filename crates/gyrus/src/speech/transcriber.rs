use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gyrus_audio::{AudioError, BINS, HOP, LogMel, MelFilters, SAMPLE_RATE, Waveform, speech_spans};
use gyrus_cpu::Pool;
use gyrus_formats::{Access, Checkpoint};
use gyrus_kernels::Precision;
use gyrus_tensor::{DType, dequantize};

use super::engine::Engine;
use super::load::{Loaded, load};
use super::request::SpeechRequest;
use super::rules::Rules;
use super::run::{File, Run};
use super::stream::{Context, Stream, most_prompt_tokens};
use super::tokens::Tokens;
use super::transcript::{Segment, Transcript};
use crate::Error;
use crate::arch::whisper::{MEL_FILTERS, WhisperConfig, is_whisper};
use crate::device::{Device, DeviceInfo};

/// The most hypotheses of a window: beams, or samples.
pub const MOST_HYPOTHESES: usize = 8;

/// The bytes of a prompt that are divided into tokens. Tokens of Whisper have up to 128 bytes, and prompts at most 223 tokens.
const MOST_PROMPT_BYTES: usize = 1 << 16;

/// How a speech model is loaded.
#[derive(Debug, Clone)]
pub struct SpeechOptions {
    /// The device to load onto.
    pub device: Device,
    /// The precision of the kernels and the KV cache.
    pub precision: Precision,
    /// CPU threads. The default is one for each core that this process may use.
    pub threads: Option<usize>,
    /// The most windows that are decoded at once, up to 64. The default is 16 on a GPU, 8 elsewhere; there are fewer if the
    /// KV cache would take too much memory.
    pub windows: Option<usize>,
    /// The block format that matrices of floats are quantised to while they are loaded. The default is Q8_0 on the CPU in
    /// [`Precision::Fast`], and none elsewhere.
    pub quantize: Option<DType>,
    /// The most bytes of GPU memory to use. The default is all free memory.
    pub gpu_memory: Option<u64>,
    /// The folder of the GPU pipeline cache. By default nothing is cached.
    pub pipelines: Option<PathBuf>,
    /// How the model's files are read. The default is a memory map.
    pub access: Access,
}

impl Default for SpeechOptions {
    fn default() -> SpeechOptions {
        SpeechOptions {
            device: Device::Cpu,
            precision: Precision::Fast,
            threads: None,
            windows: None,
            quantize: None,
            gpu_memory: None,
            pipelines: None,
            access: Access::Map,
        }
    }
}

/// What happens while recordings are transcribed. `file` is the index of the recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpeechEvent<'a> {
    /// The language was detected.
    Language {
        /// The recording.
        file: usize,
        /// Its code.
        code: &'static str,
    },
    /// The text so far of a window, which may still change.
    Partial {
        /// The recording.
        file: usize,
        /// The text.
        text: &'a str,
    },
    /// A segment that will not change. Segments of a recording come in order.
    Segment {
        /// The recording.
        file: usize,
        /// The segment.
        segment: &'a Segment,
    },
    /// How far a recording is decoded.
    Progress {
        /// The recording.
        file: usize,
        /// Seconds of audio.
        seconds: f64,
    },
    /// A recording has ended, after all else that is told of it. [`Transcriber::transcribe_each`] alone tells it.
    Done {
        /// The recording.
        file: usize,
        /// Its transcript, or why it has none.
        result: Result<Transcript, Error>,
    },
}

/// A loaded Whisper model. Clones are cheap and share the weights; calls from several threads wait for each other.
#[derive(Clone)]
pub struct Transcriber {
    shared: Arc<Shared>,
}

struct Shared {
    checkpoint: Arc<Checkpoint>,
    config: WhisperConfig,
    tokens: Tokens,
    filters: MelFilters,
    device: DeviceInfo,
    threads: usize,
    windows: usize,
    bytes: u64,
    engine: Mutex<Engine>,
}

impl Transcriber {
    /// Opens and loads a Whisper model: a GGML file of whisper.cpp, a GGUF file, or a SafeTensors folder.
    pub fn open(path: &Path, options: &SpeechOptions) -> Result<Transcriber, Error> {
        Transcriber::load(Checkpoint::open_with(path, options.access)?, options, |_, _| {})
    }

    /// Loads an opened checkpoint, and reports the progress: bytes of weights loaded so far, and in total.
    pub fn load(
        checkpoint: Checkpoint,
        options: &SpeechOptions,
        progress: impl Fn(u64, u64),
    ) -> Result<Transcriber, Error> {
        let config = WhisperConfig::read(&checkpoint)?;
        let tokens = Tokens::read(&checkpoint, config.vocab)?;
        let filters = filters(&checkpoint, &config)?;
        let checkpoint = Arc::new(checkpoint);
        let loaded = load(&checkpoint, &config, options, &progress)?;
        let threads = options.threads.unwrap_or_else(Pool::available_threads);
        let Loaded { backend, device, plan, kv, at_once, windows } = loaded;
        let weights = plan.plan.weights.iter().map(|spec| spec.dtype.bytes_of(&spec.shape).unwrap_or(0));
        let groups = plan.plan.kv.iter().zip(&kv.blocks);
        let cache = groups.map(|(group, blocks)| group.bytes_per_block(options.precision) * blocks);
        let bytes = weights.chain(cache).map(|bytes| bytes as u64).sum();
        let engine = Mutex::new(Engine::new(backend, config.clone(), &plan, &kv, at_once));
        let shared = Shared { checkpoint, config, tokens, filters, device, threads, windows, bytes, engine };
        Ok(Transcriber { shared: Arc::new(shared) })
    }

    /// Whether a checkpoint is a speech model.
    pub fn recognises(checkpoint: &Checkpoint) -> bool {
        let whisper = |config: &serde_json::Value| config["model_type"] == "whisper";
        checkpoint.ggml().is_some()
            || checkpoint.gguf().is_some_and(is_whisper)
            || checkpoint.config().is_some_and(whisper)
    }

    /// The device that it runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.shared.device
    }

    /// The most windows that are decoded at once.
    pub fn windows(&self) -> usize {
        self.shared.windows
    }

    /// Bytes of weights and of the KV cache.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes
    }

    /// The most tokens of a window's prompt and text.
    pub fn max_tokens(&self) -> usize {
        self.shared.config.text_context
    }

    /// Whether it knows other languages than English.
    pub fn is_multilingual(&self) -> bool {
        self.shared.tokens.is_multilingual
    }

    /// Transcribes one recording.
    pub fn transcribe(&self, audio: &Waveform, request: &SpeechRequest) -> Result<Transcript, Error> {
        let mut all = self.transcribe_all(&[audio], request, &mut |_| true)?;
        Ok(all.pop().unwrap_or_default())
    }

    /// Transcribes several recordings side by side. What happens is told to `event`, which returns whether to go on; if not,
    /// it is not called again, and the transcripts have what was decoded so far. An error of one recording ends all.
    pub fn transcribe_all(
        &self,
        audio: &[&Waveform],
        request: &SpeechRequest,
        event: &mut dyn FnMut(SpeechEvent<'_>) -> bool,
    ) -> Result<Vec<Transcript>, Error> {
        let tokens = &self.shared.tokens;
        let unknown = |audio: &&Waveform| Transcript {
            language: tokens.code(tokens.start + 1).to_owned(),
            duration: audio.seconds(),
            segments: Vec::new(),
        };
        let mut found: Vec<Transcript> = audio.iter().map(unknown).collect();
        let mut failed = None;
        let unfinished = self.decode(audio.iter().copied(), request, &mut |happened| match happened {
            SpeechEvent::Done { file, result: Ok(transcript) } => {
                found[file] = transcript;
                true
            }
            SpeechEvent::Done { result: Err(error), .. } => {
                failed = Some(error);
                false
            }
            happened => event(happened),
        })?;
        for (number, file) in unfinished {
            found[number] = file.into_transcript(tokens);
        }
        failed.map_or(Ok(found), Err)
    }

    /// Transcribes recordings that come one after the other, side by side: the next one is taken when a window is free, and its
    /// samples are dropped when it has a spectrogram. So [`SpeechOptions::windows`] bounds what is held, not the number of
    /// recordings. `file` in events counts those that came. Each ends with [`SpeechEvent::Done`]; a recording that cannot
    /// be transcribed does not end the others. If `event` returns false, it is not called again.
    pub fn transcribe_each(
        &self,
        recordings: impl IntoIterator<Item = Waveform>,
        request: &SpeechRequest,
        event: &mut dyn FnMut(SpeechEvent<'_>) -> bool,
    ) -> Result<(), Error> {
        self.decode(recordings.into_iter(), request, event).map(drop)
    }

    /// Decodes recordings as they come. Returns those that did not end, with their numbers.
    fn decode<W: Borrow<Waveform>>(
        &self,
        mut recordings: impl Iterator<Item = W>,
        request: &SpeechRequest,
        event: &mut dyn FnMut(SpeechEvent<'_>) -> bool,
    ) -> Result<Vec<(usize, File)>, Error> {
        let shared = &*self.shared;
        let language = self.check(request)?;
        let non_speech = if request.suppress_non_speech { shared.tokens.non_speech() } else { Vec::new() };
        let rules = Rules::new(&shared.tokens, request.timestamps, true, &non_speech);
        let context = Context {
            tokens: &shared.tokens,
            request,
            rules: &rules,
            checkpoint: &shared.checkpoint,
            language,
        };
        let prompt = self.prompt(request)?;
        let mut next = |number: usize| {
            recordings.next().map(|audio| self.file(number, audio.borrow(), request, &prompt))
        };
        // The spectrogram of the first is computed while another call may decode.
        let mut first = Some(next(0));
        let mut next = |number: usize| match first.take() {
            Some(first) => first,
            None => next(number),
        };
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.reset();
        let mut run = Run::new(&context, &mut engine, &mut next, event, shared.windows);
        run.run()?;
        Ok(run.into_files())
    }

    /// The spectrogram that the encoder reads, `[frames, bands]` for a window, and the encoder's output `[positions, width]`:
    /// to compare with other programs.
    pub fn encode(&self, audio: &Waveform) -> Result<(Vec<f32>, Vec<f32>), Error> {
        let shared = &*self.shared;
        let mel = self.spectrogram(0, audio)?;
        let features = mel.window(0, shared.config.window_frames());
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.reset();
        let (_, rows) = engine.encode(std::slice::from_ref(&features), true)?;
        Ok((features, rows))
    }

    /// Checks a request, and finds the token of its language.
    fn check(&self, request: &SpeechRequest) -> Result<Option<u32>, Error> {
        let tokens = &self.shared.tokens;
        let fail = |problem: String| Err(Error::Request(problem));
        for (name, value) in [("beams", request.beams), ("samples", request.samples)] {
            if !(1..=MOST_HYPOTHESES).contains(&value) {
                return fail(format!("{value} {name}; from 1 to {MOST_HYPOTHESES} are possible"));
            }
        }
        if request.temperatures.is_empty() {
            return fail("no temperature to decode at".to_owned());
        }
        if let Some(bad) = request.temperatures.iter().find(|t| !(0.0..=2.0).contains(*t)) {
            return fail(format!("a temperature of {bad}; from 0 to 2 are possible"));
        }
        if !(0.1..=10.0).contains(&request.patience) {
            return fail(format!("a patience of {}; from 0.1 to 10 are possible", request.patience));
        }
        let language = request.language.as_deref().map(|language| tokens.language(language)).transpose()?;
        if !tokens.is_multilingual {
            if request.task == super::Task::Translate {
                return fail("the model knows English only and cannot translate".to_owned());
            }
            if language.is_some_and(|token| tokens.code(token) != "en") {
                return fail("the model knows English only".to_owned());
            }
        }
        Ok(language)
    }

    /// The spectrogram of a recording.
    fn spectrogram(&self, index: usize, audio: &Waveform) -> Result<LogMel, Error> {
        LogMel::new(audio.samples(), &self.shared.filters, self.shared.threads).map_err(|error| {
            let seconds = match error {
                AudioError::Spectrogram { seconds } => seconds,
                _ => 0.0,
            };
            Error::Recording { index, seconds, problem: error.to_string() }
        })
    }

    /// The last tokens of the text before a recording, as many as a window's prompt has.
    pub(super) fn prompt(&self, request: &SpeechRequest) -> Result<Vec<u32>, Error> {
        let text = request.initial_prompt.as_deref().map(str::trim).unwrap_or_default();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let shared = &*self.shared;
        let text = last_bytes(text, MOST_PROMPT_BYTES).trim_start();
        let mut tokens = shared.tokens.encode(&format!(" {text}"))?;
        let most = most_prompt_tokens(&shared.config);
        Ok(tokens.split_off(tokens.len().saturating_sub(most)))
    }

    /// A recording, with the parts of it that are decoded on their own.
    fn file(
        &self,
        index: usize,
        audio: &Waveform,
        request: &SpeechRequest,
        prompt: &[u32],
    ) -> Result<File, Error> {
        let shared = &*self.shared;
        let mel = Arc::new(self.spectrogram(index, audio)?);
        let parts = match request.voice_activity {
            false => std::iter::once(0..mel.frames()).collect(),
            true => parts(audio, shared.config.window_frames()),
        };
        let stream = |frames| Stream::new(Arc::clone(&mel), frames, prompt.to_vec());
        let streams: Vec<Stream> = parts.into_iter().map(stream).collect();
        Ok(File::new(streams, audio.seconds()))
    }
}

/// The end of a text: at most this many bytes, whole characters.
fn last_bytes(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// Parts with speech, joined up to the length of a window.
fn parts(audio: &Waveform, window: usize) -> Vec<std::ops::Range<usize>> {
    let mut parts: Vec<std::ops::Range<usize>> = Vec::new();
    for span in speech_spans(audio.samples()) {
        let (start, end) = (span.start / HOP, span.end.div_ceil(HOP));
        match parts.last_mut() {
            Some(last) if end - last.start <= window => last.end = end,
            _ => parts.push(start..end),
        }
    }
    parts
}

/// The filters of a GGML or GGUF file, or those that transformers computes.
pub(super) fn filters(checkpoint: &Checkpoint, config: &WhisperConfig) -> Result<MelFilters, Error> {
    debug_assert_eq!(SAMPLE_RATE, 16_000);
    let tensor = checkpoint.gguf().and_then(|_| checkpoint.tensor(MEL_FILTERS));
    let (bands, bins, weights) = match (checkpoint.ggml(), tensor) {
        (Some(file), _) => file.filters(),
        (None, Some(tensor)) => {
            let &[bands, bins] = tensor.shape.dims() else {
                let (name, found) = (MEL_FILTERS.to_owned(), tensor.shape.to_string());
                return Err(Error::TensorShape { name, found, expected: "bands × frequencies".to_owned() });
            };
            // Filters of another size are refused below, and not read before.
            let fits = (bands, bins) == (config.mels, BINS);
            let mut weights = vec![0.0; if fits { bands * bins } else { 0 }];
            if fits {
                dequantize(tensor.dtype, tensor.data, &mut weights)
                    .map_err(|source| Error::Tensor { name: MEL_FILTERS.to_owned(), source })?;
            }
            (bands, bins, weights)
        }
        (None, None) => return Ok(MelFilters::slaney(config.mels)),
    };
    if bands != config.mels {
        let expected = format!("but the encoder reads {} bands", config.mels);
        return Err(Error::Dimension { name: "number of mel filters", value: bands as u64, expected });
    }
    MelFilters::new(bands, bins, &weights).map_err(|error| Error::Setting(error.to_string()))
}
