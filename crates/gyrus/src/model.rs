use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gyrus_cpu::MAX_ROWS;
use gyrus_formats::{Access, Checkpoint};
use gyrus_kernels::{Plan, Precision, Profile, Trial, Workload};
use gyrus_text::Tokenizer;

use crate::Error;
use crate::arch::{self, Config};
use crate::chat::ChatFormat;
use crate::context::ContextChoice;
use crate::device::Device;
use crate::engine::Engine;
use crate::place::{Loading, Place, Placed};
use crate::sampling::Sampling;
use crate::session::Session;
use crate::tokenizer;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it computes.
    pub device: Device,
    /// What it computes with.
    pub precision: Precision,
    /// Tokens a session can hold; by default the model's own context if memory allows.
    pub context: Option<usize>,
    /// Sessions that can be open at once with a full context each.
    pub sessions: usize,
    /// Threads to compute with; by default one for each core this process may use.
    pub threads: Option<usize>,
    /// Prompt tokens computed at once.
    pub chunk: usize,
    /// Steps that a GPU may be ahead of whoever reads its tokens, up to 64: more keep it busy, fewer waste less at a
    /// stop. Of slow steps there are fewer. What comes out does not depend on it.
    pub steps_in_flight: usize,
    /// Bytes of a GPU's memory to use at most; by default all that is free.
    pub gpu_memory: Option<u64>,
    /// A folder to keep compiled GPU pipelines in, so that the next start is quicker, and what [`Model::tune`] found;
    /// by default neither is kept.
    pub pipelines: Option<PathBuf>,
    /// How [`Model::open`] reads the model's files; by default they are mapped.
    pub access: Access,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: Device::Cpu,
            precision: Precision::Fast,
            context: None,
            sessions: 1,
            threads: None,
            chunk: 512,
            steps_in_flight: 32,
            gpu_memory: None,
            pipelines: None,
            access: Access::Map,
        }
    }
}

/// A loaded model. Clones share it.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    plan: Plan,
    place: Place,
    context: ContextChoice,
    chunk: usize,
    tokenizer: Option<Tokenizer>,
    template: Option<String>,
    sampling: Sampling,
    engine: Mutex<Engine>,
}

impl Model {
    /// Opens and loads a GGUF or SafeTensors model.
    ///
    /// In [`Precision::Exact`] the CPU computes with the weights in the mapped file. Another process that shortens the
    /// file ends this one with SIGBUS, and one that writes to it changes the weights; [`Access::Read`] takes a copy
    /// instead. In [`Precision::Fast`] and on a GPU the same holds while the model is loaded.
    pub fn open(path: &Path, options: &Options) -> Result<Model, Error> {
        Model::load(Checkpoint::open_with(path, options.access)?, options)
    }

    /// Loads an opened checkpoint.
    pub fn load(checkpoint: Checkpoint, options: &Options) -> Result<Model, Error> {
        Model::load_with(checkpoint, options, |_, _| {})
    }

    /// As [`Model::load`], and says how far it is: bytes of weights done, and all there are.
    pub fn load_with(
        checkpoint: Checkpoint,
        options: &Options,
        progress: impl Fn(u64, u64),
    ) -> Result<Model, Error> {
        let (config, plan) = arch::build(&checkpoint, options.precision)?;
        let (tokenizer, template) = match checkpoint.gguf() {
            Some(metadata) => {
                let template = tokenizer::template_source(metadata)?.map(str::to_owned);
                (tokenizer::from_gguf(metadata)?, template)
            }
            None => (None, None),
        };
        if let Some(tokenizer) = &tokenizer
            && tokenizer.vocab_size() > plan.vocab
        {
            return Err(Error::Dimension {
                name: "vocabulary",
                value: tokenizer.vocab_size() as u64,
                expected: format!("the embedding has rows for {} tokens only", plan.vocab),
            });
        }
        let sampling = Sampling::read(&checkpoint)?;
        let checkpoint = Arc::new(checkpoint);
        let loading = Loading {
            checkpoint: &checkpoint,
            plan: &plan,
            longest: config.context,
            options,
            progress: &progress,
        };
        let Placed { backend, place, context } = loading.place()?;
        let engine = Mutex::new(Engine::new(backend, options.steps_in_flight));
        let chunk = options.chunk.clamp(1, MAX_ROWS);
        let shared = Shared { config, plan, place, context, chunk, tokenizer, template, sampling, engine };
        Ok(Model { shared: Arc::new(shared) })
    }

    /// Begins a text.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The model's numbers.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The forward pass as a table.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// The context in force.
    pub fn context(&self) -> ContextChoice {
        self.shared.context
    }

    /// Where it computes.
    pub fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Threads it computes with: none but the caller's on a GPU.
    pub fn threads(&self) -> usize {
        match self.shared.place {
            Place::Cpu { threads, .. } => threads,
            Place::Gpu { .. } => 1,
        }
    }

    /// The tokenizer, if the model carries one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_ref()
    }

    /// The sampling settings that the model carries.
    pub fn sampling(&self) -> &Sampling {
        &self.shared.sampling
    }

    /// Whether the model carries a chat template, as models that answer instructions do.
    pub fn has_chat_template(&self) -> bool {
        self.shared.template.is_some()
    }

    /// The form of its conversations.
    pub fn chat_format(&self) -> Result<ChatFormat, Error> {
        let tokenizer = self.tokenizer().ok_or(Error::NoTokenizer)?;
        Ok(ChatFormat::new(self.shared.template.as_deref(), tokenizer)?)
    }

    /// Where the time goes that a workload takes behind `depth` tokens. `None` where the model computes on a device that
    /// is not looked into.
    pub fn profile(&self, workload: Workload, depth: usize) -> Result<Option<Profile>, Error> {
        self.engine()
            .instruments()
            .map(|instruments| instruments.profile(workload, depth))
            .transpose()
            .map_err(Error::from)
    }

    /// Tries forms of kernels for this model's shapes and keeps the quickest; `trial` hears of each. `false` where the
    /// model computes on a device that has nothing to choose.
    pub fn tune(&self, trial: &mut dyn FnMut(&Trial)) -> Result<bool, Error> {
        match self.engine().instruments() {
            Some(instruments) => Ok(instruments.tune(trial).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// Whether the two share everything.
    pub(crate) fn is(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn chunk(&self) -> usize {
        self.shared.chunk
    }

    /// The engine, for one batch. A thread that panicked while it held the engine left no sequence
    /// half-grown and no op undone that a next batch relies on, so it is used on.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
