use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gyrus_audio::{HOP, LogMel, MelFilters, SAMPLE_RATE, Waveform, speech_spans};
use gyrus_cpu::Pool;
use gyrus_formats::{Access, Checkpoint};
use gyrus_kernels::{Backend, KvSize, Precision};
use gyrus_tensor::DType;

use super::engine::{Engine, kv_size};
use super::request::SpeechRequest;
use super::rules::Rules;
use super::stream::{Context, FRAMES_PER_SECOND, Stream};
use super::tokens::Tokens;
use super::transcript::{Segment, Transcript};
use crate::Error;
use crate::arch::whisper::{self, WhisperConfig, WhisperPlan};
use crate::device::{Device, DeviceInfo};
use crate::loader::{LoadedBackend, Loader};
use crate::model::Options;

/// The most hypotheses of a window: beams, or samples.
pub const MOST_HYPOTHESES: usize = 8;

/// The most bytes of keys and values of windows, unless one window takes more.
const MOST_CROSS_BYTES: usize = 1 << 30;

/// Steps after which the text of a window in progress is shown.
const PARTIAL_STEPS: usize = 8;

/// How a speech model is loaded.
#[derive(Debug, Clone)]
pub struct SpeechOptions {
    /// The device to load onto.
    pub device: Device,
    /// The precision of the kernels and the KV cache.
    pub precision: Precision,
    /// CPU threads. The default is one for each core that this process may use.
    pub threads: Option<usize>,
    /// The most windows that are decoded at once.
    pub windows: usize,
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
            windows: 8,
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
    /// Opens and loads a Whisper model: a GGML file of whisper.cpp, or a SafeTensors folder.
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
        checkpoint.ggml().is_some() || checkpoint.config().is_some_and(whisper)
    }

    /// The device that it runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.shared.device
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
    /// the transcripts have what was decoded so far.
    pub fn transcribe_all(
        &self,
        audio: &[&Waveform],
        request: &SpeechRequest,
        event: &mut dyn FnMut(SpeechEvent<'_>) -> bool,
    ) -> Result<Vec<Transcript>, Error> {
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
        let files: Result<Vec<File>, Error> =
            audio.iter().map(|audio| self.streams(audio, request)).collect();
        let files = files?;
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.reset();
        let mut run =
            Run { context: &context, engine: &mut engine, files, event, windows: shared.windows, steps: 0 };
        run.run()?;
        let files = std::mem::take(&mut run.files);
        let transcript = |(file, audio): (File, &&Waveform)| Transcript {
            language: shared.tokens.code(file.language.unwrap_or(shared.tokens.start + 1)).to_owned(),
            duration: audio.seconds(),
            segments: file.streams.into_iter().flat_map(|stream| stream.segments).collect(),
        };
        Ok(files.into_iter().zip(audio).map(transcript).collect())
    }

    /// The spectrogram that the encoder reads, `[frames, bands]` for a window, and the encoder's output `[positions, width]`:
    /// to compare with other programs.
    pub fn encode(&self, audio: &Waveform) -> Result<(Vec<f32>, Vec<f32>), Error> {
        let shared = &*self.shared;
        let mel = LogMel::new(audio.samples(), &shared.filters, shared.threads);
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

    /// The parts of a recording that are decoded on their own.
    fn streams(&self, audio: &Waveform, request: &SpeechRequest) -> Result<File, Error> {
        let shared = &*self.shared;
        let mel = Arc::new(LogMel::new(audio.samples(), &shared.filters, shared.threads));
        let prompt =
            match request.initial_prompt.as_deref().map(str::trim).filter(|prompt| !prompt.is_empty()) {
                Some(prompt) => shared.tokens.encode(&format!(" {prompt}"))?,
                None => Vec::new(),
            };
        let parts = match request.voice_activity {
            false => std::iter::once(0..mel.frames()).collect(),
            true => parts(audio, shared.config.window_frames()),
        };
        let stream = |frames| Stream::new(Arc::clone(&mel), frames, prompt.clone());
        let streams: Vec<Stream> = parts.into_iter().map(stream).collect();
        Ok(File { streams, language: None, head: 0, emitted: 0 })
    }
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

/// A recording in progress.
struct File {
    streams: Vec<Stream>,
    language: Option<u32>,
    /// The first part that is not done.
    head: usize,
    /// Segments of it that were told.
    emitted: usize,
}

/// Recordings that are decoded side by side.
struct Run<'a> {
    context: &'a Context<'a>,
    engine: &'a mut Engine,
    files: Vec<File>,
    event: &'a mut dyn FnMut(SpeechEvent<'_>) -> bool,
    /// The most parts at once.
    windows: usize,
    steps: usize,
}

impl Run<'_> {
    fn run(&mut self) -> Result<(), Error> {
        while self.files.iter().any(|file| file.streams.iter().any(|stream| !stream.is_done())) {
            self.encode()?;
            self.step()?;
            if !self.tell() {
                break;
            }
        }
        self.tell();
        Ok(())
    }

    /// Begins windows of as many parts as run at once. Until the language of a recording is known, its first part runs
    /// alone.
    fn encode(&mut self) -> Result<(), Error> {
        let (context, engine) = (self.context, &mut *self.engine);
        let detects = context.tokens.is_multilingual && context.language.is_none();
        let mut left = self.windows;
        let mut ready: Vec<&mut Stream> = Vec::new();
        for file in &mut self.files {
            let known = file.language;
            let most = if detects && known.is_none() { 1 } else { usize::MAX };
            for stream in file.streams.iter_mut().filter(|stream| !stream.is_done()).take(most) {
                if left == 0 {
                    break;
                }
                left -= 1;
                if stream.needs_window() {
                    stream.language = stream.language.or(known);
                    ready.push(stream);
                }
            }
        }
        let frames = engine.config.window_frames();
        let output = context.request.words;
        for streams in ready.chunks_mut(engine.most_windows()) {
            let features: Vec<Vec<f32>> = streams.iter().map(|stream| stream.features(frames)).collect();
            let (encoded, rows) = engine.encode(&features, output)?;
            let of_window = rows.len() / streams.len();
            for (n, (stream, encoded)) in streams.iter_mut().zip(encoded).enumerate() {
                let rows = rows[n * of_window..(n + 1) * of_window].to_vec();
                stream.begin(context, engine, encoded, rows);
            }
        }
        Ok(())
    }

    /// Computes a token of every hypothesis of every part.
    fn step(&mut self) -> Result<(), Error> {
        let vocab = self.engine.vocab();
        let all = || self.files.iter().flat_map(|file| &file.streams);
        let counts: Vec<usize> = all().map(Stream::logit_rows).collect();
        let mut steps = Vec::new();
        for stream in self.files.iter_mut().flat_map(|file| &mut file.streams) {
            stream.steps(&mut steps);
        }
        if steps.is_empty() {
            return Ok(());
        }
        let logits = self.engine.forward(&mut steps)?.to_vec();
        drop(steps);
        let mut rows = logits.chunks_exact(vocab);
        let (context, engine) = (self.context, &mut *self.engine);
        for (stream, count) in self.files.iter_mut().flat_map(|file| &mut file.streams).zip(counts) {
            if count > 0 {
                let own: Vec<f32> = rows.by_ref().take(count).flatten().copied().collect();
                stream.take(context, engine, own)?;
            }
        }
        self.steps += 1;
        Ok(())
    }

    /// Tells what has settled. Returns whether to go on.
    fn tell(&mut self) -> bool {
        let mut goes_on = true;
        for (index, file) in self.files.iter_mut().enumerate() {
            let mut tell = |event: SpeechEvent<'_>| goes_on &= (self.event)(event);
            if file.language.is_none()
                && let Some(token) = file.streams.iter().find_map(|stream| stream.language)
            {
                file.language = Some(token);
                if self.context.language.is_none() {
                    tell(SpeechEvent::Language { file: index, code: self.context.tokens.code(token) });
                }
            }
            while let Some(head) = file.streams.get(file.head) {
                for segment in &head.segments[file.emitted..] {
                    tell(SpeechEvent::Segment { file: index, segment });
                    let seconds = head.position() as f64 / FRAMES_PER_SECOND;
                    tell(SpeechEvent::Progress { file: index, seconds });
                }
                file.emitted = head.segments.len();
                if !head.is_done() {
                    if self.steps.is_multiple_of(PARTIAL_STEPS)
                        && let Some(text) = head.partial(self.context.tokens)
                    {
                        tell(SpeechEvent::Partial { file: index, text: &text });
                    }
                    break;
                }
                let seconds = head.position() as f64 / FRAMES_PER_SECOND;
                tell(SpeechEvent::Progress { file: index, seconds });
                file.head += 1;
                file.emitted = 0;
            }
        }
        goes_on
    }
}

/// The filters of a GGML file, or those that transformers computes.
fn filters(checkpoint: &Checkpoint, config: &WhisperConfig) -> Result<MelFilters, Error> {
    debug_assert_eq!(SAMPLE_RATE, 16_000);
    let Some(file) = checkpoint.ggml() else { return Ok(MelFilters::slaney(config.mels)) };
    let (bands, bins, weights) = file.filters();
    if bands != config.mels {
        let expected = format!("but the encoder reads {} bands", config.mels);
        return Err(Error::Dimension { name: "number of mel filters", value: bands as u64, expected });
    }
    MelFilters::new(bands, bins, &weights).map_err(|error| Error::Setting(error.to_string()))
}

/// A model on its device.
struct Loaded {
    backend: Box<dyn Backend>,
    device: DeviceInfo,
    plan: WhisperPlan,
    kv: KvSize,
    at_once: usize,
    windows: usize,
}

/// Windows that a GPU encodes in one pass. A CPU is busy with one.
#[cfg(feature = "gpu")]
const GPU_WINDOWS: usize = 8;

fn load(
    checkpoint: &Arc<Checkpoint>,
    config: &WhisperConfig,
    options: &SpeechOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<Loaded, Error> {
    let place = |place: Place| place.load(checkpoint, config, options, progress);
    match &options.device {
        Device::Cpu => place(Place::Cpu(None)),
        Device::Reference => place(Place::Reference),
        #[cfg(not(feature = "gpu"))]
        Device::Auto => place(Place::Cpu(Some("this build has no GPU support".to_owned()))),
        #[cfg(feature = "gpu")]
        Device::Auto if !gyrus_gpu::may_have_gpu() => place(Place::Cpu(Some("no GPU was found".to_owned()))),
        #[cfg(feature = "gpu")]
        Device::Auto => match place(Place::Gpu(None)) {
            Err(Error::Gpu(error)) => place(Place::Cpu(Some(error.in_short()))),
            loaded => loaded,
        },
        #[cfg(feature = "gpu")]
        Device::Gpu(adapter) => place(Place::Gpu(adapter.clone())),
    }
}

enum Place {
    /// With the reason why it is not a GPU.
    Cpu(Option<String>),
    Reference,
    #[cfg(feature = "gpu")]
    Gpu(Option<String>),
}

impl Place {
    fn load(
        self,
        checkpoint: &Arc<Checkpoint>,
        config: &WhisperConfig,
        options: &SpeechOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Loaded, Error> {
        let fast_cpu = matches!(self, Place::Cpu(_)) && options.precision == Precision::Fast;
        let quantize = options.quantize.or(fast_cpu.then_some(DType::Q8_0));
        quantize.map_or(Ok(()), crate::quantized::check)?;
        let plan = whisper::build(checkpoint, config, options.precision, quantize)?;
        let positions = config.audio_context.next_multiple_of(gyrus_kernels::KV_BLOCK);
        let of_window = positions * 2 * config.text_layers * config.width * 4;
        let windows = options.windows.clamp(1, (MOST_CROSS_BYTES / of_window).max(1));
        let at_once = match self {
            #[cfg(feature = "gpu")]
            Place::Gpu(_) => GPU_WINDOWS.min(windows),
            _ => 1,
        };
        let kv = kv_size(config, at_once, windows, MOST_HYPOTHESES);
        let (device, reason) = match self {
            Place::Cpu(reason) => (Device::Cpu, reason),
            Place::Reference => (Device::Reference, None),
            #[cfg(feature = "gpu")]
            Place::Gpu(adapter) => (Device::Gpu(adapter), None),
        };
        let model_options = Options {
            device,
            precision: options.precision,
            threads: options.threads,
            quantize,
            gpu_memory: options.gpu_memory,
            pipelines: options.pipelines.clone(),
            ..Options::default()
        };
        let loader = Loader {
            checkpoint,
            plan: &plan.plan,
            max_context: config.text_context,
            options: &model_options,
            progress,
            fixed: Some(kv.clone()),
        };
        let LoadedBackend { backend, mut device, .. } = loader.load()?;
        if let DeviceInfo::Cpu { fallback_reason, .. } = &mut device {
            *fallback_reason = reason;
        }
        Ok(Loaded { backend, device, plan, kv, at_once, windows })
    }
}
