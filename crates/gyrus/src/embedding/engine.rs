//! Runs the rows of many texts in one pass.

use std::sync::{Arc, Mutex, PoisonError};

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Backend, BackendError, Batch, Inputs, KV_BLOCK, KvSize, Plan, RowKind};
use gyrus_text::{Special, Tokenizer};

use crate::device::DeviceInfo;
use crate::loader::{LoadedBackend, Loader};
use crate::model::Options;
use crate::{Error, tokenizer};

/// Rows of a pass. Matrix products gain nothing from more.
const PASS_ROWS: usize = 1024;

/// A text as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// The type of each token; empty if all are 0.
    pub(super) types: Vec<u32>,
}

/// Is asked before each text is encoded, with 0, and before each pass, with the tokens of the pass. It returns whether to go
/// on.
pub(super) type GoesOn<'a> = &'a dyn Fn(usize) -> bool;

/// A model that computes whole texts, and its tokenizer. All threads can share it; passes run one after the other.
pub(super) struct Engine {
    plan: Arc<Plan>,
    backend: Mutex<Box<dyn Backend>>,
    pub(super) tokenizer: Tokenizer,
    pub(super) device: DeviceInfo,
    /// The most tokens of a text: those that the model was made for, or those of the device's largest pass, since no text is
    /// divided.
    pub(super) max_tokens: usize,
    /// Blocks of the KV cache.
    blocks: usize,
    /// Rows of a pass of several texts.
    pass_rows: usize,
    /// Whether the batch has extents: rows attend to positions after their own.
    has_extents: bool,
}

impl Engine {
    /// Loads a plan whose texts have at most this many tokens.
    pub(super) fn load(
        checkpoint: Checkpoint,
        plan: Plan,
        max_tokens: usize,
        options: &Options,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Engine, Error> {
        let tokenizer = tokenizer::read(&checkpoint)?.ok_or(Error::NoTokenizer)?;
        if tokenizer.vocab_size() > plan.vocab {
            return Err(Error::Dimension {
                name: "vocabulary size",
                value: tokenizer.vocab_size() as u64,
                expected: format!("but the embedding matrix has only {} rows", plan.vocab),
            });
        }
        if !plan.delta.is_empty() {
            return Err(Error::Unsupported("an embedding model with recurrent layers".to_owned()));
        }
        let max_tokens = options.context.map_or(max_tokens, |context| context.min(max_tokens)).max(1);
        // A text has up to a block more than its rows need.
        let blocks = (2 * PASS_ROWS / KV_BLOCK).max(max_tokens.div_ceil(KV_BLOCK));
        let kv = KvSize { positions: blocks * KV_BLOCK, blocks: vec![blocks; plan.kv.len()], records: 0 };
        let checkpoint = Arc::new(checkpoint);
        let loader = Loader {
            checkpoint: &checkpoint,
            plan: &plan,
            max_context: max_tokens,
            options,
            progress,
            fixed: &[kv],
        };
        let LoadedBackend { backend, device, .. } = loader.load()?;
        let has_extents = plan.demands(&plan.forward).extents;
        let most_rows = backend.batch_rows();
        let (max_tokens, pass_rows) = (max_tokens.min(most_rows), PASS_ROWS.min(most_rows));
        let plan = Arc::new(plan);
        let backend = Mutex::new(backend);
        Ok(Engine { plan, backend, tokenizer, device, max_tokens, blocks, pass_rows, has_extents })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of weights and KV cache.
    pub(super) fn bytes(&self) -> u64 {
        let weights = self.plan.weights.iter();
        let weights: u64 = weights.map(|spec| spec.dtype.bytes_of(&spec.shape).unwrap_or(0) as u64).sum();
        let blocks = self.plan.kv.iter().map(|group| group.bytes_per_block(self.plan.precision) as u64);
        weights + blocks.sum::<u64>() * self.blocks as u64
    }

    /// Elements of a row of results.
    pub(super) fn width(&self) -> usize {
        self.plan.buffer(self.plan.result()).width
    }

    /// The tokens of a text, with those that the tokenizer adds. Too long a text is an error, unless it is to be truncated;
    /// `index` names it.
    pub(super) fn tokens(&self, text: &str, index: usize, truncate: bool) -> Result<Tokens, Error> {
        let mut ids = self.tokenizer.encode(text, Special::Literal, false);
        let (prefix, suffix) = self.tokenizer.added();
        let added = prefix.len() + suffix.len();
        self.shorten(&mut ids, added, index, truncate)?;
        ids.splice(0..0, prefix.iter().copied());
        ids.extend_from_slice(suffix);
        if ids.is_empty() {
            return Err(Error::NoTokens { index });
        }
        Ok(Tokens { ids, types: Vec::new() })
    }

    /// Shortens tokens to what the model takes beside `added` others, if that was asked for.
    pub(super) fn shorten(
        &self,
        ids: &mut Vec<u32>,
        added: usize,
        index: usize,
        truncate: bool,
    ) -> Result<(), Error> {
        let most = self.max_tokens;
        if ids.len() + added > most {
            if !truncate {
                return Err(Error::TextTooLong { index, tokens: ids.len() + added, most });
            }
            ids.truncate(most.saturating_sub(added));
        }
        Ok(())
    }

    /// Computes texts in passes of many, and calls `found` with the index of each and the results of the rows that `wanted`
    /// gives for its number of tokens.
    pub(super) fn run(
        &self,
        texts: &[Tokens],
        wanted: impl Fn(usize) -> std::ops::Range<usize>,
        goes_on: GoesOn<'_>,
        mut found: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let mut first = 0;
        while first < texts.len() {
            let (mut end, mut rows, mut blocks) = (first, 0, 0);
            while let Some(text) = texts.get(end) {
                let (more, more_blocks) = (text.ids.len(), text.ids.len().div_ceil(KV_BLOCK));
                if end > first && (rows + more > self.pass_rows || blocks + more_blocks > self.blocks) {
                    break;
                }
                rows += more;
                blocks += more_blocks;
                end += 1;
            }
            if !goes_on(rows) {
                return Err(Error::Stopped);
            }
            self.pass(&texts[first..end], first, &wanted, &mut found)?;
            first = end;
        }
        Ok(())
    }

    /// One pass.
    fn pass(
        &self,
        texts: &[Tokens],
        index: usize,
        wanted: &impl Fn(usize) -> std::ops::Range<usize>,
        found: &mut impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let groups = self.plan.kv.len();
        let has_types = texts.iter().any(|text| !text.types.is_empty());
        let (mut ids, mut types, mut positions, mut sequences) = (vec![], vec![], vec![], vec![]);
        let (mut blocks, mut rows, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let mut next_block = 0u32;
        for (sequence, text) in texts.iter().enumerate() {
            let count = text.ids.len();
            let first = ids.len();
            rows.extend(wanted(count).map(|row| (first + row) as u32));
            ids.extend_from_slice(&text.ids);
            if has_types {
                types.extend((0..count).map(|row| text.types.get(row).copied().unwrap_or(0)));
            }
            positions.extend(0..count as u32);
            sequences.extend(std::iter::repeat_n(sequence as u32, count));
            lengths.push(count as u32);
            let last = next_block + count.div_ceil(KV_BLOCK) as u32;
            blocks.push((next_block..last).collect::<Vec<u32>>());
            next_block = last;
        }
        let tables: Vec<&[u32]> = blocks.iter().flat_map(|table| vec![&table[..]; groups]).collect();
        let extents: Vec<u32> = match self.has_extents {
            true => lengths.iter().flat_map(|length| vec![*length; groups]).collect(),
            false => Vec::new(),
        };
        let limits: Vec<u32> = vec![self.max_tokens as u32; texts.len()];
        let batch = Batch {
            tokens: &ids,
            positions: &positions,
            sequences: &sequences,
            kind: RowKind::Prompt,
            logits: &rows,
            tables: &tables,
            lengths: &limits,
            records: &[],
            inputs: Inputs { extents: &extents, types: &types, features: &[] },
        };
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let results = match backend.forward(&batch) {
            Ok(results) => results,
            Err(BackendError::NotFinite { row }) => {
                let text = sequences.get(row).map_or(0, |sequence| *sequence as usize);
                let precision = self.plan.precision;
                return Err(Error::TextNotFinite { index: index + text, precision });
            }
            Err(error) => return Err(error.into()),
        };
        let (mut at, width) = (0, self.width());
        for (i, text) in texts.iter().enumerate() {
            let elems = wanted(text.ids.len()).len() * width;
            found(index + i, &results[at..at + elems]);
            at += elems;
        }
        Ok(())
    }
}
