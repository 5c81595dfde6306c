use std::path::Path;

use gyrus_formats::Checkpoint;
use gyrus_kernels::Plan;
use gyrus_text::Special;

use super::embedder::quantize;
use super::engine::{Engine, GoesOn, Tokens};
use super::{gguf_settings, prompts, sentence_transformers};
use crate::arch::encoder::{self, EncoderTask};
use crate::arch::{self, Head};
use crate::device::DeviceInfo;
use crate::model::Options;
use crate::{Error, quantized};

/// A model that computes how relevant documents are to a query. All threads can share it.
///
/// It is a cross-encoder, which reads query and document as a pair and has one label, or a language model that answers yes
/// or no.
pub struct Reranker {
    engine: Engine,
    kind: Kind,
    architecture: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A classifier of pairs with one label. Its score is a logit.
    CrossEncoder {
        /// Whether the tokens of query and document have different types.
        typed: bool,
    },
    /// A language model: the difference of the logits of these tokens.
    Tokens { yes: u32, no: u32 },
    /// A language model with a classifier of two labels, yes and no.
    Labels,
}

/// How documents are compared with a query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RerankOptions {
    /// Whether a document that is too long is shortened. If not, it is an error.
    pub truncate: bool,
    /// What a language model is told to look for, instead of its default. A cross-encoder takes none.
    pub instruction: Option<String>,
}

/// How relevant a document is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// The document's index.
    pub index: usize,
    /// From 0 to 1: the sigmoid of the logit.
    pub score: f32,
    /// The model's logit.
    pub logit: f32,
}

impl Reranker {
    /// Opens and loads a model: a GGUF file or a folder in Hugging Face's layout.
    pub fn open(path: &Path, options: &Options) -> Result<Reranker, Error> {
        Reranker::load(Checkpoint::open_with(path, options.access)?, options, &|_, _| {})
    }

    /// Loads an opened checkpoint, and reports the progress: bytes of weights loaded so far, and in total.
    pub fn load(
        checkpoint: Checkpoint,
        options: &Options,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Reranker, Error> {
        options.quantize.map_or(Ok(()), quantized::check)?;
        if encoder::is_encoder(&checkpoint) {
            return Reranker::cross_encoder(checkpoint, options, progress);
        }
        let Some(kind) = decoder_kind(&checkpoint)? else {
            let (config, _) = arch::build(&checkpoint, options.precision, options.quantize)?;
            return Err(Error::WrongKind {
                found: config.architecture,
                what: "a language model that is no reranker",
                instead: "a cross-encoder, or a model whose name or modules.json says that it is a reranker",
            });
        };
        let head = if kind == Kind::Labels { Head::Labels } else { Head::Answer };
        let (config, plan) = arch::build_with(&checkpoint, head, options.precision, options.quantize)?;
        let engine = Engine::load(checkpoint, plan, config.context, options, progress)?;
        let kind = match kind {
            Kind::Tokens { .. } | Kind::Labels => kind.with_tokens(&engine)?,
            kind => kind,
        };
        Ok(Reranker { engine, kind, architecture: config.architecture })
    }

    fn cross_encoder(
        checkpoint: Checkpoint,
        options: &Options,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Reranker, Error> {
        if checkpoint.config().is_some_and(|config| config["classifier_pooling"] == "mean") {
            return Err(Error::Unsupported(
                "a classifier of the mean of rows ('classifier_pooling')".to_owned(),
            ));
        }
        let quantize = quantize(options);
        let options = &Options { quantize: quantize.products, ..options.clone() };
        let built = encoder::build(&checkpoint, EncoderTask::Classify, options.precision, quantize);
        let (config, plan) = match built {
            Err(Error::MissingTensor(name)) if name.starts_with("classifier") || name.starts_with("cls") => {
                let (config, _) =
                    encoder::build(&checkpoint, EncoderTask::Embed, options.precision, quantize)?;
                return Err(Error::WrongKind {
                    found: config.architecture,
                    what: "an encoder without a classifier",
                    instead: "it computes embeddings; a reranker has a classifier",
                });
            }
            built => built?,
        };
        let labels = plan.buffer(plan.result()).width;
        if labels != 1 {
            return Err(Error::Unsupported(format!("a classifier of {labels} labels as a reranker")));
        }
        let typed = has_types(&checkpoint)?;
        let engine = Engine::load(checkpoint, plan, config.context, options, progress)?;
        if engine.tokenizer.pair().is_none() {
            return Err(Error::Unsupported("a reranker whose tokenizer takes no pairs".to_owned()));
        }
        Ok(Reranker { engine, kind: Kind::CrossEncoder { typed }, architecture: config.architecture })
    }

    /// The relevance of each document to the query, in the order of documents.
    pub fn scores(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
    ) -> Result<Vec<Ranked>, Error> {
        self.scores_while(query, documents, options, &|_| true)
    }

    fn scores_while(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
        goes_on: GoesOn<'_>,
    ) -> Result<Vec<Ranked>, Error> {
        match self.kind {
            Kind::CrossEncoder { .. } if options.instruction.is_some() => {
                let what =
                    "an instruction: the model is a cross-encoder, which reads query and document alone";
                return Err(Error::Request(what.to_owned()));
            }
            Kind::CrossEncoder { .. } => {}
            _ => self.check_question(query, options)?,
        }
        let mut texts = Vec::with_capacity(documents.len());
        for (index, document) in documents.iter().enumerate() {
            if !goes_on(0) {
                return Err(Error::Stopped);
            }
            texts.push(match self.kind {
                Kind::CrossEncoder { typed } => {
                    self.pair(query, document.as_ref(), index, typed, options.truncate)?
                }
                _ => self.question(query, document.as_ref(), index, options)?,
            });
        }
        let mut ranked = Vec::with_capacity(texts.len());
        let wanted = |count: usize| match self.kind {
            Kind::CrossEncoder { .. } => 0..1,
            _ => count - 1..count,
        };
        self.engine.run(&texts, wanted, goes_on, |index, result| {
            let logit = match self.kind {
                Kind::CrossEncoder { .. } => result[0],
                Kind::Tokens { yes, no } => result[yes as usize] - result[no as usize],
                Kind::Labels => result[0] - result[1],
            };
            let score = (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32;
            ranked.push(Ranked { index, score, logit });
        })?;
        Ok(ranked)
    }

    /// The documents in the order of their relevance, the most relevant first; of equal ones the first.
    pub fn rank(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
    ) -> Result<Vec<Ranked>, Error> {
        self.rank_while(query, documents, options, &|_| true)
    }

    /// Like [`Reranker::rank`], but it can be stopped: `goes_on` is called before each document is encoded, with 0, and before
    /// each pass, with the tokens of the pass. Where it returns false, the work ends with [`Error::Stopped`].
    pub fn rank_while(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
        goes_on: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Ranked>, Error> {
        let mut ranked = self.scores_while(query, documents, options, goes_on)?;
        ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.index.cmp(&b.index)));
        Ok(ranked)
    }

    /// Query and document as a pair. If it is too long, the document is shortened.
    fn pair(
        &self,
        query: &str,
        document: &str,
        index: usize,
        typed: bool,
        truncate: bool,
    ) -> Result<Tokens, Error> {
        let tokenizer = &self.engine.tokenizer;
        let Some(pair) = tokenizer.pair() else { return Err(Error::NoTokenizer) };
        let query = tokenizer.encode(query, Special::Literal, false);
        let mut document = tokenizer.encode(document, Special::Literal, false);
        let added = pair.prefix.len() + query.len() + pair.between.len() + pair.suffix.len();
        self.check_query(added)?;
        self.engine.shorten(&mut document, added, index, truncate)?;
        let mut ids = pair.prefix.clone();
        ids.extend(query);
        ids.extend(&pair.between);
        let first = ids.len();
        ids.extend(document);
        ids.extend(&pair.suffix);
        let types = match pair.types {
            [0, 0] => Vec::new(),
            _ if !typed => Vec::new(),
            [a, b] => (0..ids.len()).map(|at| if at < first { a } else { b }).collect(),
        };
        Ok(Tokens { ids, types })
    }

    /// Refuses a query that, with all that is around it, leaves no room for a document: all documents would get one score.
    fn check_query(&self, tokens: usize) -> Result<(), Error> {
        let most = self.engine.max_tokens;
        if tokens >= most {
            let what =
                format!("the query has {tokens} tokens with those around it, fewer than {most} are possible");
            return Err(Error::Request(what));
        }
        Ok(())
    }

    /// Checks the part of a question that is before its document.
    fn check_question(&self, query: &str, options: &RerankOptions) -> Result<(), Error> {
        let tokenizer = &self.engine.tokenizer;
        let instruction = options.instruction.as_deref().unwrap_or(prompts::INSTRUCTION);
        let count = |text: &str, special| tokenizer.encode(text, special, false).len();
        self.check_query(
            count(prompts::BEFORE, Special::Parse)
                + count(&prompts::question(instruction, query), Special::Literal)
                + count(prompts::AFTER, Special::Parse),
        )
    }

    /// The question whether a document is relevant, as a language model's prompt.
    fn question(
        &self,
        query: &str,
        document: &str,
        index: usize,
        options: &RerankOptions,
    ) -> Result<Tokens, Error> {
        let tokenizer = &self.engine.tokenizer;
        let instruction = options.instruction.as_deref().unwrap_or(prompts::INSTRUCTION);
        let mut ids = tokenizer.encode(prompts::BEFORE, Special::Parse, false);
        let text = prompts::question(instruction, query) + document;
        let mut body = tokenizer.encode(&text, Special::Literal, false);
        let after = tokenizer.encode(prompts::AFTER, Special::Parse, false);
        self.engine.shorten(&mut body, ids.len() + after.len(), index, options.truncate)?;
        ids.extend(body);
        ids.extend(after);
        Ok(Tokens { ids, types: Vec::new() })
    }

    /// The most tokens of query and document together, special tokens included: as many as the model and a pass of its device
    /// take.
    pub fn max_tokens(&self) -> usize {
        self.engine.max_tokens
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

impl Kind {
    /// Finds the tokens of the answers, where the files do not name them.
    fn with_tokens(self, engine: &Engine) -> Result<Kind, Error> {
        let Kind::Tokens { yes, no } = self else { return Ok(self) };
        let find = |id: u32, text: &str| match id {
            u32::MAX => engine.tokenizer.id_of(text).ok_or_else(|| {
                Error::Unsupported(format!("a reranker whose vocabulary has no token '{text}'"))
            }),
            id if (id as usize) < engine.plan().vocab => Ok(id),
            id => Err(Error::TokenId { id, vocab: engine.plan().vocab }),
        };
        Ok(Kind::Tokens { yes: find(yes, "yes")?, no: find(no, "no")? })
    }
}

/// What kind of reranker a language model is, if its file says that it is one. Tokens that it does not name are
/// [`u32::MAX`].
pub(super) fn decoder_kind(model: &Checkpoint) -> Result<Option<Kind>, Error> {
    let by_name = Kind::Tokens { yes: u32::MAX, no: u32::MAX };
    if let Some(metadata) = model.gguf() {
        if gguf_settings::pooling_type(metadata)? == Some(gguf_settings::RANK) {
            return Ok(Some(Kind::Labels));
        }
        let name = metadata.get::<&str>("general.name")?.unwrap_or("");
        return Ok(is_reranker(name).then_some(by_name));
    }
    for (kind, folder) in sentence_transformers::modules(model)?.unwrap_or_default() {
        if kind != "LogitScore" {
            continue;
        }
        let config = sentence_transformers::config(model, &folder)?.unwrap_or_default();
        let id = |key: &str| config[key].as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX);
        return Ok(Some(Kind::Tokens { yes: id("true_token_id"), no: id("false_token_id") }));
    }
    let named = model.config().and_then(|config| config["_name_or_path"].as_str()).unwrap_or("");
    let folder = model.path();
    let folder = if folder.is_dir() { Some(folder) } else { folder.parent() };
    let folder = folder.and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    Ok((is_reranker(named) || is_reranker(folder)).then_some(by_name))
}

/// Whether a tokenizer gives types to the texts of a pair. It does unless its file names its results without them.
fn has_types(model: &Checkpoint) -> Result<bool, Error> {
    let config = sentence_transformers::json(model, "tokenizer_config.json")?.unwrap_or_default();
    let Some(names) = config["model_input_names"].as_array() else { return Ok(true) };
    Ok(names.iter().any(|name| name == "token_type_ids"))
}

fn is_reranker(name: &str) -> bool {
    name.to_ascii_lowercase().contains("reranker")
}
