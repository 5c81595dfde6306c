use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gyrus_constrain::{Constraint, Source};
use gyrus_cpu::{MAX_ROWS, Pool};
use gyrus_formats::{Access, Checkpoint};
use gyrus_kernels::{Backend, Breakers, KvSize, Plan, Precision, Profile, Sampler, Trial, Workload};
use gyrus_tensor::DType;
use gyrus_text::Tokenizer;

use crate::Error;
use crate::answer::Answer;
use crate::arch::{self, Config};
use crate::breakers::{BreakerCache, DEFAULT_BREAKERS};
use crate::chat::ChatFormat;
use crate::constraints::{Constraints, Trigger};
use crate::context::ContextChoice;
use crate::device::{Device, DeviceInfo};
use crate::loader::{LoadedBackend, Loader};
use crate::prompt::PreparedPrompt;
use crate::quantized;
use crate::request::Request;
use crate::sampling::Sampling;
use crate::saved::{self, Fingerprint};
use crate::serving::{
    CHECKPOINT_INTERVAL, Core, Counters, Driver, Handle, MAX_WAITING_EVENTS, Rebuild, Scheduler, Settings,
    Statistics,
};
use crate::session::Session;
use crate::speech::Transcriber;
use crate::tokenizer;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device to load onto.
    pub device: Device,
    /// The precision of the kernels and the KV cache.
    pub precision: Precision,
    /// The context of a session in tokens. The default is the model's maximum context if memory allows it.
    pub context: Option<usize>,
    /// The number of sessions that the KV cache holds with a full context each. Where memory limits it, it still has windows
    /// and recurrent states for so many, if they leave enough tokens.
    pub sessions: usize,
    /// The most sequences that are computed at once. Others wait. The default is [`MAX_SEQUENCES`](crate::MAX_SEQUENCES).
    pub parallel: Option<usize>,
    /// Bytes of the KV cache, which all sessions share; instead of a full context for each session.
    pub kv_memory: Option<u64>,
    /// Bytes that weights and the default KV cache may take together. The default is all free memory. A KV cache whose size
    /// is set by `context` or `kv_memory` may be larger.
    pub memory: Option<u64>,
    /// Whether sessions share the KV cache of common prefixes of their tokens. It is on by default.
    pub prefix_cache: bool,
    /// Whether a cached prefix is used only if it has the bits that the session would compute itself. On a GPU in
    /// [`Precision::Fast`] tokens that were generated have other roundings than tokens of a prompt, so that a
    /// conversation that is sent again is computed again. It is off by default.
    pub strict_prefixes: bool,
    /// The most requests that wait; further ones are refused.
    pub queue: usize,
    /// CPU threads. The default is one for each core that this process may use.
    pub threads: Option<usize>,
    /// The prefill chunk size in tokens.
    pub chunk: usize,
    /// The most decode steps in flight on a GPU, up to 64. More steps keep the GPU busy; fewer waste less work at a
    /// stop. Slow steps lower the limit. The output does not depend on it.
    pub steps_in_flight: usize,
    /// The most bytes of GPU memory to use. The default is all free memory.
    pub gpu_memory: Option<u64>,
    /// The folder of the GPU pipeline cache, which makes the next start faster, and of the results of [`Model::tune`].
    /// By default nothing is cached.
    pub pipelines: Option<PathBuf>,
    /// How [`Model::open`] reads the model's files. The default is a memory map.
    pub access: Access,
    /// The block format that matrices of floats are quantised to while they are loaded. Vectors, and weights that are
    /// quantised in the file, are loaded as they are.
    pub quantize: Option<DType>,
    /// Whether sessions are saved to files or loaded from them, for which all bytes of the model's files are hashed while
    /// it is loaded. It is off by default.
    pub session_files: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: Device::Cpu,
            precision: Precision::Fast,
            context: None,
            sessions: 1,
            parallel: None,
            kv_memory: None,
            memory: None,
            prefix_cache: true,
            strict_prefixes: false,
            queue: 4096,
            threads: None,
            chunk: 512,
            steps_in_flight: 32,
            gpu_memory: None,
            pipelines: None,
            access: Access::Map,
            quantize: None,
            session_files: false,
        }
    }
}

/// A loaded model. Clones are cheap and share the weights.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    plan: Arc<Plan>,
    device: DeviceInfo,
    context: ContextChoice,
    tokenizer: Option<Arc<Tokenizer>>,
    constraints: Constraints,
    breakers: BreakerCache,
    chat: OnceLock<Arc<ChatFormat>>,
    template: Option<String>,
    sampling: Sampling,
    /// For session files.
    fingerprint: Option<Fingerprint>,
    quantize: Option<DType>,
    handle: Arc<Handle>,
}

impl Model {
    /// Opens and loads a GGUF or SafeTensors model.
    ///
    /// In [`Precision::Exact`] the CPU reads the weights from the memory-mapped file. If another process truncates the
    /// file, this process gets a SIGBUS; if it writes to the file, the weights change. [`Access::Read`] copies the file
    /// instead. In [`Precision::Fast`] and on a GPU the same holds until the model is loaded.
    pub fn open(path: &Path, options: &Options) -> Result<Model, Error> {
        Model::load(Checkpoint::open_with(path, options.access)?, options)
    }

    /// Loads an opened checkpoint.
    pub fn load(checkpoint: Checkpoint, options: &Options) -> Result<Model, Error> {
        Model::load_with(checkpoint, options, |_, _| {})
    }

    /// As [`Model::load`], and reports the progress: bytes of weights loaded so far, and in total.
    pub fn load_with(
        checkpoint: Checkpoint,
        options: &Options,
        progress: impl Fn(u64, u64),
    ) -> Result<Model, Error> {
        options.quantize.map_or(Ok(()), quantized::check)?;
        if Transcriber::recognises(&checkpoint) {
            return Err(Error::WrongKind {
                found: "whisper".to_owned(),
                what: "a speech model",
                instead: "gyrus transcribe and Transcriber run it",
            });
        }
        let (config, plan) = arch::build(&checkpoint, options.precision, options.quantize)?;
        let tokenizer = tokenizer::read(&checkpoint)?;
        let template = tokenizer::template_source(&checkpoint)?;
        if let Some(tokenizer) = &tokenizer
            && tokenizer.vocab_size() > plan.vocab
        {
            return Err(Error::Dimension {
                name: "vocabulary size",
                value: tokenizer.vocab_size() as u64,
                expected: format!("but the embedding matrix has only {} rows", plan.vocab),
            });
        }
        let sampling = Sampling::read(&checkpoint)?;
        let threads = options.threads.unwrap_or_else(Pool::available_threads);
        let fingerprint = options.session_files.then(|| Fingerprint::of(&checkpoint, threads)).transpose()?;
        let checkpoint = Arc::new(checkpoint);
        let loader = Loader {
            checkpoint: &checkpoint,
            plan: &plan,
            max_context: config.context,
            options,
            progress: &progress,
            fixed: &[],
        };
        let LoadedBackend { backend, device, context, kv } = loader.load()?;
        let settings = Settings {
            checkpoint_interval: CHECKPOINT_INTERVAL,
            running: options.parallel.unwrap_or(usize::MAX).max(1),
            unread_events: MAX_WAITING_EVENTS,
            chunk: options.chunk.clamp(1, MAX_ROWS),
            steps_in_flight: options.steps_in_flight,
            queue: options.queue,
            prefix_cache: options.prefix_cache,
            strict: options.strict_prefixes,
        };
        let plan = Arc::new(plan);
        let rebuild = rebuild(&checkpoint, &plan, config.context, options, &device, kv);
        let counters = Arc::new(Counters::default());
        let core = Core::new(backend, Arc::clone(&plan), settings, Arc::clone(&counters), rebuild);
        let handle = Arc::new(Handle::new(core, counters));
        let shared = Shared {
            config,
            plan,
            device,
            context,
            tokenizer: tokenizer.map(Arc::new),
            constraints: Constraints::default(),
            breakers: BreakerCache::default(),
            chat: OnceLock::new(),
            template,
            sampling,
            fingerprint,
            quantize: options.quantize,
            handle,
        };
        Ok(Model { shared: Arc::new(shared) })
    }

    /// The sampler of a request, with DRY's sequence breakers as tokens.
    pub(crate) fn sampler(&self, request: &Request) -> Result<Sampler, Error> {
        request.sampler.validate_for(self.plan().vocab)?;
        let mut sampler = request.sampler.clone();
        let is_set = *sampler.dry.breakers != Breakers::default() && request.dry_breakers.is_none();
        if !sampler.dry.is_active() || is_set {
            return Ok(sampler);
        }
        let defaults = || DEFAULT_BREAKERS.map(str::to_owned).to_vec();
        let strings = request.dry_breakers.clone().unwrap_or_else(defaults);
        match self.tokenizer() {
            Some(tokenizer) => sampler.dry.breakers = self.shared.breakers.get(tokenizer, &strings)?,
            None if request.dry_breakers.is_some() => return Err(Error::NoTokenizer),
            None => {}
        }
        Ok(sampler)
    }

    /// Creates an empty session.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// Starts a generation that owns its session, so that it can be sent to another thread or awaited. The prompt must not
    /// continue a session.
    pub fn answer(&self, request: Request) -> Result<Answer, Error> {
        let mut session = self.session();
        let choices = session.start(request)?;
        Ok(Answer::new(session, choices))
    }

    /// Loads a session that [`Session::save`] has written, and what was attached to it, from a file of this many bytes. It
    /// goes on with the bits that it was saved with.
    ///
    /// A file that is damaged, of another model, or computed in another way is an error that says so. The model must have
    /// been loaded with [`Options::session_files`].
    pub fn load_session(&self, input: &mut dyn Read, bytes: u64) -> Result<(Session, Vec<u8>), Error> {
        let id = self.handle().sequence();
        let (tokens, attachment) = saved::load(self, id, input, bytes)?;
        Ok((Session::restored(self.clone(), id, tokens), attachment))
    }

    /// The model's hyperparameters.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The forward pass as a list of operations.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// The context of a session, and why it was chosen.
    pub fn context(&self) -> ContextChoice {
        self.shared.context
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        let weights = self.shared.plan.weights.iter();
        weights.map(|spec| spec.dtype.bytes_of(&spec.shape).unwrap_or(0) as u64).sum()
    }

    /// The device that it runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.shared.device
    }

    /// CPU threads that compute. On a GPU and in the reference it is 1, the caller's own thread.
    pub fn threads(&self) -> usize {
        match self.shared.device {
            DeviceInfo::Cpu { threads, .. } => threads,
            DeviceInfo::Gpu { .. } | DeviceInfo::Reference => 1,
        }
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_deref()
    }

    /// The default sampling parameters in the model's files.
    pub fn sampling(&self) -> &Sampling {
        &self.shared.sampling
    }

    /// Whether the model has a chat template. Instruction-tuned models do.
    pub fn has_chat_template(&self) -> bool {
        self.shared.template.is_some()
    }

    /// The chat format: the model's chat template, or a fallback chosen by its vocabulary.
    pub fn chat_format(&self) -> Result<Arc<ChatFormat>, Error> {
        if let Some(format) = self.shared.chat.get() {
            return Ok(Arc::clone(format));
        }
        let tokenizer = self.tokenizer().ok_or(Error::NoTokenizer)?;
        let format = Arc::new(ChatFormat::new(self.shared.template.as_deref(), tokenizer)?);
        Ok(Arc::clone(self.shared.chat.get_or_init(|| format)))
    }

    /// The tokens of a request's prompt in an empty session.
    pub fn prompt_tokens(&self, request: &Request) -> Result<Vec<u32>, Error> {
        Ok(PreparedPrompt::new(self, request, true)?.ids)
    }

    /// Compiles the constraint of a request, or finds it among those that were compiled lately. It begins behind the
    /// trigger, if there is one.
    pub(crate) fn compile(&self, source: &Source, trigger: Option<Trigger>) -> Result<Constraint, Error> {
        let tokenizer = self.shared.tokenizer.as_ref().ok_or(Error::NoTokenizer)?;
        self.shared.constraints.compile(tokenizer, source, trigger)
    }

    /// Starts a thread that runs the model's scheduler until the [`Driver`] is dropped. Without one, whoever waits for an
    /// event of a [`Generation`](crate::Generation) runs it.
    pub fn drive(&self) -> Result<Driver, Error> {
        Driver::spawn(Arc::clone(&self.shared.handle)).map_err(Error::Thread)
    }

    /// What has been computed since the model was loaded.
    pub fn statistics(&self) -> Statistics {
        self.shared.handle.statistics()
    }

    /// Profiles a workload at a context depth of `depth` tokens: the time of each kernel. `None` if the device does not
    /// support profiling. It uses blocks of the KV cache that no session uses.
    pub fn profile(&self, workload: Workload, depth: usize) -> Result<Option<Profile>, Error> {
        self.exclusively(|backend, scheduler| {
            let free = scheduler.free_blocks();
            let free: Vec<&[u32]> = free.iter().map(Vec::as_slice).collect();
            let profile = backend.instruments().map(|all| all.profile(workload, depth, &free));
            Ok(profile.transpose()?)
        })
    }

    /// Measures kernel variants for this model's shapes and selects the fastest. `trial` is called for each
    /// measurement. `false` if the device has no variants to tune. It uses blocks of the KV cache that no session uses.
    pub fn tune(&self, trial: &mut dyn FnMut(&Trial)) -> Result<bool, Error> {
        self.exclusively(|backend, scheduler| {
            let free = scheduler.free_blocks();
            let free: Vec<&[u32]> = free.iter().map(Vec::as_slice).collect();
            match backend.instruments() {
                Some(instruments) => Ok(instruments.tune(&free, trial).map(|()| true)?),
                None => Ok(false),
            }
        })
    }

    /// Runs `work` and returns its result with the time in which the GPU was busy meanwhile: from the beginning to the end
    /// of each submission, by the GPU's clock. `None` on a CPU, and on a GPU without timestamps. Work of other threads on
    /// this model counts too.
    pub fn busy_time<T, E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(T, Option<Duration>), E> {
        let started = self.exclusively(|backend, _| {
            Ok(backend.instruments().is_some_and(|instruments| instruments.start_busy()))
        })?;
        let result = work();
        let busy = self.exclusively(|backend, _| match backend.instruments() {
            Some(instruments) if started => Ok(instruments.end_busy()?),
            _ => Ok(None),
        });
        Ok((result?, busy?))
    }

    /// Closes the device, as if it was lost: for tests of what happens then.
    #[doc(hidden)]
    pub fn close_device(&self) {
        let close = |backend: &mut dyn Backend, _: &mut Scheduler| {
            if let Some(instruments) = backend.instruments() {
                instruments.close_device();
            }
            Ok(())
        };
        // A device that is lost already needs no closing.
        let _ = self.exclusively(close);
    }

    /// Runs `work` with the backend while nothing is in flight.
    pub(crate) fn exclusively<T>(
        &self,
        work: impl FnOnce(&mut dyn Backend, &mut Scheduler) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.shared.handle.exclusively(work)
    }

    /// Whether both are clones of one loaded model.
    pub(crate) fn is(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.shared.tokenizer.clone()
    }

    pub(crate) fn fingerprint(&self) -> Option<&Fingerprint> {
        self.shared.fingerprint.as_ref()
    }

    pub(crate) fn quantize(&self) -> Option<DType> {
        self.shared.quantize
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    pub(crate) fn shared_handle(&self) -> Arc<Handle> {
        Arc::clone(&self.shared.handle)
    }
}

/// Opens the device again after it was lost. A GPU needs the weights once more, for which the file stays mapped.
fn rebuild(
    checkpoint: &Arc<Checkpoint>,
    plan: &Arc<Plan>,
    max_context: usize,
    options: &Options,
    device: &DeviceInfo,
    kv: KvSize,
) -> Rebuild {
    #[cfg(feature = "gpu")]
    if let (DeviceInfo::Gpu { name, .. }, Access::Map) = (device, options.access) {
        let (checkpoint, plan) = (Arc::clone(checkpoint), Arc::clone(plan));
        let (options, name) = (options.clone(), name.clone());
        return Box::new(move || {
            let loader = Loader {
                checkpoint: &checkpoint,
                plan: &plan,
                max_context,
                options: &options,
                progress: &|_, _| {},
                fixed: &[],
            };
            loader.reload_on_gpu(Some(&name), kv.clone())
        });
    }
    let _ = (checkpoint, plan, max_context, options, kv);
    let device = device.to_string();
    Box::new(move || Err(Error::DeviceGone(device.clone())))
}
