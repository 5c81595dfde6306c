use std::path::Path;

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Plan, Precision};
use gyrus_tensor::DType;

use super::engine::{Engine, GoesOn, Tokens};
use super::pooling::{self, Pooling};
use super::settings::Settings;
use crate::arch::encoder::{self, EncoderTask, Quantized};
use crate::arch::{self, Head};
use crate::device::DeviceInfo;
use crate::model::Options;
use crate::{Error, quantized};

/// A model that computes embeddings of texts. All threads can share it.
///
/// ```no_run
/// use gyrus::{EmbedOptions, Embedder, Options};
///
/// let embedder = Embedder::open("all-MiniLM-L6-v2".as_ref(), &Options::default())?;
/// let embeddings = embedder.embed(&["a cat", "a kitten", "a bridge"], &EmbedOptions::default())?;
/// let vectors: Vec<&[f32]> = embeddings.vectors().collect();
/// # Ok::<(), gyrus::Error>(())
/// ```
pub struct Embedder {
    engine: Engine,
    settings: Settings,
    pooling: Pooling,
    architecture: String,
}

/// What is put before each text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Prompt {
    /// The model's default prompt, if it has one.
    #[default]
    Default,
    /// Nothing.
    None,
    /// The model's prompt of this name, such as `query` or `document`.
    Named(String),
    /// This text.
    Text(String),
}

/// What an embedding is made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EmbedOptions {
    /// What is put before each text.
    pub prompt: Prompt,
    /// Whether a text that is too long is shortened. If not, it is an error.
    pub truncate: bool,
    /// How many of the first elements of each vector are kept, for models that were trained for it (Matryoshka). A vector
    /// that has length 1 is scaled to length 1 again.
    pub dimensions: Option<usize>,
    /// Whether vectors are scaled to length 1. The default is what the model's files say.
    pub normalize: Option<bool>,
}

/// Vectors of texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Embeddings {
    /// Elements of a vector.
    pub dimensions: usize,
    /// All vectors, one after the other.
    pub values: Vec<f32>,
    /// Tokens of all texts.
    pub tokens: usize,
}

impl Embeddings {
    /// The vector of each text.
    pub fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }
}

impl Embedder {
    /// Opens and loads a model: a GGUF file, or a folder in Hugging Face's layout with the files of sentence-transformers.
    ///
    /// In [`Precision::Fast`] an encoder's matrices of floats are quantised to int8 while they are loaded, but for the
    /// projections to values; [`Options::quantize`] names another type for all.
    pub fn open(path: &Path, options: &Options) -> Result<Embedder, Error> {
        Embedder::load(Checkpoint::open_with(path, options.access)?, options, None, &|_, _| {})
    }

    /// Loads an opened checkpoint, with this pooling instead of that of its files, and reports the progress: bytes of
    /// weights loaded so far, and in total.
    pub fn load(
        checkpoint: Checkpoint,
        options: &Options,
        pooling: Option<Pooling>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Embedder, Error> {
        options.quantize.map_or(Ok(()), quantized::check)?;
        let settings = Settings::read(&checkpoint)?;
        let pooling = pooling.or(settings.pooling);
        let mut options = options.clone();
        let (plan, context, architecture, pooling) = if encoder::is_encoder(&checkpoint) {
            let task = EncoderTask::Embed;
            let quantize = quantize(&options);
            options.quantize = quantize.products;
            let (config, plan) = encoder::build(&checkpoint, task, options.precision, quantize)?;
            // The mean is what sentence-transformers computes for encoders without settings.
            (plan, config.context, config.architecture, pooling.unwrap_or(Pooling::Mean))
        } else {
            let build = || arch::build_with(&checkpoint, Head::Hidden, options.precision, options.quantize);
            let (config, plan) = build()?;
            let Some(pooling) = pooling else {
                return Err(Error::WrongKind {
                    found: config.architecture,
                    what: "a language model without settings for embeddings",
                    instead: "a model with modules.json or a pooling type, or name the pooling",
                });
            };
            (plan, config.context, config.architecture, pooling)
        };
        let max_tokens = settings.max_tokens.map_or(context, |tokens| tokens.min(context));
        let engine = Engine::load(checkpoint, plan, max_tokens, &options, progress)?;
        Ok(Embedder { engine, settings, pooling, architecture })
    }

    /// The vectors of texts. Each is computed from its own text alone, bit for bit, whatever the others are.
    pub fn embed(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<Embeddings, Error> {
        self.embed_while(texts, options, &|_| true)
    }

    /// Like [`Embedder::embed`], but it can be stopped: `goes_on` is called before each text is encoded, with 0, and before each
    /// pass, with the tokens of the pass. Where it returns false, the work ends with [`Error::Stopped`].
    pub fn embed_while(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
        goes_on: &dyn Fn(usize) -> bool,
    ) -> Result<Embeddings, Error> {
        let dimensions = self.checked_dimensions(options)?;
        let prompt = self.prompt(&options.prompt)?;
        let mut all = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            if !goes_on(0) {
                return Err(Error::Stopped);
            }
            all.push(self.tokens(prompt, text.as_ref(), index, options.truncate)?);
        }
        self.embed_tokens(&all, self.skipped(prompt), dimensions, options.normalize, goes_on)
    }

    /// The vectors of texts as tokens, special tokens included. Prompts are not added, and nothing is truncated.
    pub fn embed_ids(&self, texts: &[Vec<u32>], options: &EmbedOptions) -> Result<Embeddings, Error> {
        self.embed_ids_while(texts, options, &|_| true)
    }

    /// Like [`Embedder::embed_ids`], but it can be stopped before each pass, as [`Embedder::embed_while`] can.
    pub fn embed_ids_while(
        &self,
        texts: &[Vec<u32>],
        options: &EmbedOptions,
        goes_on: &dyn Fn(usize) -> bool,
    ) -> Result<Embeddings, Error> {
        let vocab = self.engine.plan().vocab;
        let mut all = Vec::with_capacity(texts.len());
        for (index, ids) in texts.iter().enumerate() {
            if let Some(id) = ids.iter().copied().find(|id| *id as usize >= vocab) {
                return Err(Error::TokenId { id, vocab });
            }
            if ids.is_empty() {
                return Err(Error::NoTokens { index });
            }
            let mut ids = ids.clone();
            self.engine.shorten(&mut ids, 0, index, false)?;
            all.push(Tokens { ids, types: Vec::new() });
        }
        let dimensions = self.checked_dimensions(options)?;
        self.embed_tokens(&all, 0, dimensions, options.normalize, goes_on)
    }

    /// Elements of the vectors that are asked for.
    fn checked_dimensions(&self, options: &EmbedOptions) -> Result<usize, Error> {
        let width = self.engine.width();
        let dimensions = options.dimensions.unwrap_or(width);
        match (1..=width).contains(&dimensions) {
            true => Ok(dimensions),
            false => {
                let what =
                    format!("{dimensions} dimensions: the model has {width}, and at least 1 is needed");
                Err(Error::Request(what))
            }
        }
    }

    fn tokens(&self, prompt: &str, text: &str, index: usize, truncate: bool) -> Result<Tokens, Error> {
        match prompt.is_empty() {
            true => self.engine.tokens(text, index, truncate),
            false => self.engine.tokens(&format!("{prompt}{text}"), index, truncate),
        }
    }

    fn embed_tokens(
        &self,
        texts: &[Tokens],
        skipped: usize,
        dimensions: usize,
        normalize: Option<bool>,
        goes_on: GoesOn<'_>,
    ) -> Result<Embeddings, Error> {
        let width = self.engine.width();
        let normalize = normalize.unwrap_or(self.settings.normalize);
        let mut values = Vec::with_capacity(texts.len() * dimensions);
        self.engine.run(
            texts,
            |count| self.pooling.rows(count),
            goes_on,
            |_, rows| {
                let mut vector = match self.pooling {
                    Pooling::Mean => pooling::mean(rows, width, skipped),
                    Pooling::First | Pooling::Last => rows.to_vec(),
                };
                vector.truncate(dimensions);
                if normalize {
                    pooling::normalize(&mut vector);
                }
                values.extend(vector);
            },
        )?;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        Ok(Embeddings { dimensions, values, tokens })
    }

    /// The text of a prompt.
    fn prompt<'a>(&'a self, prompt: &'a Prompt) -> Result<&'a str, Error> {
        match prompt {
            Prompt::None => Ok(""),
            Prompt::Text(text) => Ok(text),
            Prompt::Default => Ok(self.settings.default_prompt.as_deref().unwrap_or("")),
            Prompt::Named(name) => match self.settings.prompts.get(name) {
                Some(text) => Ok(text),
                None => {
                    let known: Vec<&str> = self.settings.prompts.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    let name = name.escape_debug();
                    let known = known.escape_debug();
                    Err(Error::Request(format!("the model has no prompt '{name}'; there are: {known}")))
                }
            },
        }
    }

    /// How many of the first rows a mean leaves out: those of the prompt, if the model's files say so.
    fn skipped(&self, prompt: &str) -> usize {
        if self.settings.include_prompt || prompt.is_empty() {
            return 0;
        }
        let (prefix, _) = self.engine.tokenizer.added();
        let ids = self.engine.tokenizer.encode(prompt, gyrus_text::Special::Literal, false);
        prefix.len() + ids.len()
    }

    /// Elements of a vector.
    pub fn dimensions(&self) -> usize {
        self.engine.width()
    }

    /// The most tokens of a text, special tokens included: as many as the model and a pass of its device take.
    pub fn max_tokens(&self) -> usize {
        self.engine.max_tokens
    }

    /// Tokens of a text, with its prompt and special tokens.
    pub fn count_tokens(&self, text: &str) -> usize {
        let (prefix, suffix) = self.engine.tokenizer.added();
        prefix.len()
            + suffix.len()
            + self.engine.tokenizer.encode(text, gyrus_text::Special::Literal, false).len()
    }

    /// How rows become a vector.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// The names of the model's prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.settings.prompts.keys().map(String::as_str)
    }

    /// The architecture's name in the file.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The device that it runs on.
    pub fn device(&self) -> &DeviceInfo {
        &self.engine.device
    }

    /// The forward pass as a list of operations.
    pub fn plan(&self) -> &Plan {
        self.engine.plan()
    }

    /// Bytes of weights and KV cache.
    pub fn bytes(&self) -> u64 {
        self.engine.bytes()
    }
}

/// The types that an encoder's matrices are quantised to while they are loaded. The options name one for all; in
/// [`Precision::Fast`] the default is int8 for all but the projections to values. The f16 tiles of a GPU
/// are as fast with the file's floats.
pub(super) fn quantize(options: &Options) -> Quantized {
    let on_cpu = !options.device.is_gpu();
    let automatic = (options.precision == Precision::Fast && on_cpu).then_some(DType::Q8_0);
    Quantized { products: options.quantize.or(automatic), values: options.quantize }
}
