//! The encoder and the decoder of a model, with the blocks of their KV cache.

use gyrus_formats::Checkpoint;
use gyrus_kernels::observe::{OpResult, Seen};
use gyrus_kernels::{Backend, BackendError, Batch, Inputs, KV_BLOCK, KvSize, Precision, RowKind};
use gyrus_tensor::dequantize;

use super::alignment::Attention;
use crate::Error;
use crate::arch::whisper::{CROSS_GROUP, ENCODER_GROUP, SELF_GROUP, WhisperConfig, WhisperPlan};

/// Blocks of the KV cache that are handed out and given back. A block that several sequences share is never written to.
struct BlockPool {
    free: Vec<u32>,
    users: Vec<u32>,
}

impl BlockPool {
    fn new(blocks: usize) -> BlockPool {
        BlockPool { free: (0..blocks as u32).rev().collect(), users: vec![0; blocks] }
    }

    fn take(&mut self) -> Result<u32, Error> {
        let needed = self.users.len() + 1;
        let block = self.free.pop().ok_or(Error::CacheFull { needed, free: self.users.len() })?;
        self.users[block as usize] = 1;
        Ok(block)
    }

    fn share(&mut self, block: u32) {
        self.users[block as usize] += 1;
    }

    fn give_back(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.users[block as usize] -= 1;
            if self.users[block as usize] == 0 {
                self.free.push(block);
            }
        }
    }
}

/// A window whose encoder's keys and values are in the cache.
#[derive(Debug)]
pub(super) struct Encoded {
    blocks: Vec<u32>,
}

/// A sequence of the decoder: its tokens, and how many of them are computed.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    computed: usize,
    blocks: Vec<u32>,
}

impl Sequence {
    pub(super) fn new(tokens: Vec<u32>) -> Sequence {
        Sequence { tokens, ..Sequence::default() }
    }
}

/// A sequence to compute: the window that it attends to, and the positions of its tokens, not yet computed, whose logits are
/// wanted beside those of the last one.
pub(super) struct Step<'a> {
    pub(super) sequence: &'a mut Sequence,
    pub(super) window: &'a Encoded,
    pub(super) also: Option<usize>,
}

/// Runs windows and sequences.
pub(super) struct Engine {
    backend: Box<dyn Backend>,
    pub(super) config: WhisperConfig,
    cross_queries: Vec<usize>,
    /// The keys' matrix of each alignment head, `[head_dim, width]`, made when words are aligned.
    cross_keys: Vec<String>,
    key_heads: Vec<Vec<f32>>,
    encoder_blocks: Vec<u32>,
    cross: BlockPool,
    own: BlockPool,
    /// Windows that are encoded in one pass.
    most_windows: usize,
    rows: Rows,
}

/// The slices of a batch, which are kept from one to the next.
#[derive(Default)]
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    logits: Vec<u32>,
}

impl Rows {
    fn clear(&mut self) {
        for list in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.logits] {
            list.clear();
        }
    }
}

/// The size of the cache for this many windows at once with `sequences` each.
pub(super) fn kv_size(config: &WhisperConfig, at_once: usize, windows: usize, sequences: usize) -> KvSize {
    let audio = config.audio_context.div_ceil(KV_BLOCK);
    let text = config.text_context.div_ceil(KV_BLOCK);
    let mut blocks = vec![0; 3];
    blocks[ENCODER_GROUP] = audio * at_once;
    blocks[CROSS_GROUP] = audio * windows;
    blocks[SELF_GROUP] = text * windows * sequences;
    KvSize { positions: config.audio_context.max(config.text_context), blocks, records: 0 }
}

impl Engine {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        config: WhisperConfig,
        plan: &WhisperPlan,
        kv: &KvSize,
        most_windows: usize,
    ) -> Engine {
        Engine {
            backend,
            config,
            cross_queries: plan.cross_queries.clone(),
            cross_keys: plan.cross_keys.clone(),
            key_heads: Vec::new(),
            encoder_blocks: (0..kv.blocks[ENCODER_GROUP] as u32).collect(),
            cross: BlockPool::new(kv.blocks[CROSS_GROUP]),
            own: BlockPool::new(kv.blocks[SELF_GROUP]),
            most_windows,
            rows: Rows::default(),
        }
    }

    /// Forgets all windows and sequences, also those of a call that failed.
    pub(super) fn reset(&mut self) {
        self.cross = BlockPool::new(self.cross.users.len());
        self.own = BlockPool::new(self.own.users.len());
    }

    /// Windows that one pass encodes.
    pub(super) fn most_windows(&self) -> usize {
        self.most_windows
    }

    pub(super) fn precision(&self) -> Precision {
        self.backend.plan().precision
    }

    pub(super) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Encodes windows of `[frames, mels]` each. If `output` is wanted, also returns the encoder's rows.
    pub(super) fn encode(
        &mut self,
        windows: &[Vec<f32>],
        output: bool,
    ) -> Result<(Vec<Encoded>, Vec<f32>), Error> {
        let positions = self.config.audio_context;
        let of_window = positions.div_ceil(KV_BLOCK);
        let mut all: Vec<Encoded> = Vec::new();
        for _ in windows {
            let blocks: Result<Vec<u32>, Error> = (0..of_window).map(|_| self.cross.take()).collect();
            match blocks {
                Ok(blocks) => all.push(Encoded { blocks }),
                Err(error) => {
                    all.into_iter().for_each(|window| self.forget(window));
                    return Err(error);
                }
            }
        }
        let rows = &mut self.rows;
        rows.clear();
        for window in 0..windows.len() as u32 {
            rows.positions.extend(0..positions as u32);
            rows.sequences.extend(std::iter::repeat_n(window, positions));
        }
        rows.tokens.resize(rows.positions.len(), 0);
        if output {
            rows.logits.extend(0..rows.positions.len() as u32);
        }
        let features = windows.concat();
        let mut tables: Vec<&[u32]> = Vec::new();
        let mut extents = Vec::new();
        for (own, window) in self.encoder_blocks.chunks_exact(of_window).zip(&all) {
            tables.extend([own, &window.blocks[..], &[]]);
            extents.extend([positions as u32, positions as u32, 0]);
        }
        let lengths = vec![positions as u32; windows.len()];
        let batch = Batch {
            tokens: &rows.tokens,
            positions: &rows.positions,
            sequences: &rows.sequences,
            kind: RowKind::Prompt,
            logits: &rows.logits,
            tables: &tables,
            lengths: &lengths,
            records: &[],
            inputs: Inputs { extents: &extents, types: &[], features: &features },
        };
        let encoded = self.backend.encode(&batch).map(<[f32]>::to_vec);
        match encoded {
            Ok(output) => Ok((all, output)),
            Err(error) => {
                all.into_iter().for_each(|window| self.forget(window));
                Err(error.into())
            }
        }
    }

    /// Which window or step of the last pass an error is about, if it is a row that is not finite.
    pub(super) fn at_fault(&self, error: &Error) -> Option<usize> {
        let Error::Backend(error) = error else { return None };
        let BackendError::NotFinite { row } = **error else { return None };
        self.rows.sequences.get(row).map(|sequence| *sequence as usize)
    }

    /// Gives the blocks of a window back.
    pub(super) fn forget(&mut self, window: Encoded) {
        self.cross.give_back(&window.blocks);
    }

    /// Gives the blocks of a sequence back.
    pub(super) fn drop_sequence(&mut self, sequence: Sequence) {
        self.own.give_back(&sequence.blocks);
    }

    /// A sequence with the tokens of another. They share whole blocks; the tokens after them are computed again.
    pub(super) fn fork(&mut self, from: &Sequence) -> Sequence {
        let whole = from.computed / KV_BLOCK;
        let blocks = from.blocks[..whole].to_vec();
        blocks.iter().for_each(|block| self.own.share(*block));
        Sequence { tokens: from.tokens.clone(), computed: whole * KV_BLOCK, blocks }
    }

    /// Computes the tokens of sequences that are not computed yet, and returns the wanted logits in order.
    pub(super) fn forward(&mut self, steps: &mut [Step<'_>]) -> Result<&[f32], Error> {
        self.prepare(steps)?;
        let Engine { backend, rows, config, .. } = self;
        let bound = Bound::new(steps, config);
        let logits = backend.forward(&bound.batch(rows, &bound.tables()))?;
        steps.iter_mut().for_each(|step| step.sequence.computed = step.sequence.tokens.len());
        Ok(logits)
    }

    /// Collects the rows of steps, and gives their sequences the blocks they need.
    fn prepare(&mut self, steps: &mut [Step<'_>]) -> Result<(), Error> {
        let rows = &mut self.rows;
        rows.clear();
        for (n, step) in steps.iter_mut().enumerate() {
            let Sequence { tokens, computed, blocks } = &mut *step.sequence;
            if tokens.len() > self.config.text_context {
                let (tokens, context) = (tokens.len(), self.config.text_context);
                return Err(Error::PromptTooLong { tokens, context });
            }
            while blocks.len() * KV_BLOCK < tokens.len() {
                blocks.push(self.own.take()?);
            }
            for position in *computed..tokens.len() {
                if position + 1 == tokens.len() || step.also == Some(position) {
                    rows.logits.push(rows.tokens.len() as u32);
                }
                rows.tokens.push(tokens[position]);
                rows.positions.push(position as u32);
                rows.sequences.push(n as u32);
            }
        }
        Ok(())
    }

    /// The attention of all tokens of a sequence to a window, by the heads that follow the speech, over its first
    /// `positions`; and the logits of all tokens. `encoded` is the window's output of the encoder.
    pub(super) fn attention(
        &mut self,
        window: &Encoded,
        encoded: &[f32],
        positions: usize,
        tokens: Vec<u32>,
        checkpoint: &Checkpoint,
    ) -> Result<(Attention, Vec<f32>), Error> {
        self.load_key_heads(checkpoint)?;
        let count = tokens.len();
        let mut sequence = Sequence::new(tokens);
        let mut queries: Vec<Vec<f32>> = vec![Vec::new(); self.config.text_layers];
        let mut logits = Vec::new();
        let result = self.observe(window, &mut sequence, &mut queries, &mut logits);
        self.drop_sequence(sequence);
        result?;
        let (width, heads) = (self.config.width, self.config.text_heads);
        let dim = width / heads;
        let scale = (dim as f32).sqrt().recip();
        let mut attention = Attention::new(count, positions, self.key_heads.len());
        let mut weights = Vec::new();
        for ((layer, head), matrix) in self.config.alignment_heads.iter().zip(&self.key_heads) {
            let keys: Vec<f32> = (0..positions)
                .flat_map(|p| {
                    matrix.chunks_exact(width).map(move |row| dot(row, &encoded[p * width..][..width]))
                })
                .collect();
            weights.clear();
            for row in 0..count {
                let query = &queries[*layer][row * width + head * dim..][..dim];
                let first = weights.len();
                weights.extend(keys.chunks_exact(dim).map(|key| dot(query, key) * scale));
                softmax(&mut weights[first..]);
            }
            attention.add(&mut weights);
        }
        Ok((attention, logits))
    }

    /// Runs a sequence and keeps the queries of each layer to the encoder's rows, and all logits.
    fn observe(
        &mut self,
        window: &Encoded,
        sequence: &mut Sequence,
        queries: &mut [Vec<f32>],
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let mut steps = [Step { sequence, window, also: None }];
        self.prepare(&mut steps)?;
        self.rows.logits = (0..self.rows.tokens.len() as u32).collect();
        let Engine { backend, rows, config, cross_queries, .. } = self;
        let bound = Bound::new(&steps, config);
        let result = backend.plan().result();
        backend.observe(&bound.batch(rows, &bound.tables()), &mut |seen| {
            let Seen::Values(values) = seen.seen else { return false };
            match seen.result {
                OpResult::Queries => {
                    if let Some(layer) = cross_queries.iter().position(|op| *op == seen.op) {
                        queries[layer] = values.to_vec();
                    }
                }
                OpResult::Buffer(id) if id == result => *logits = values.to_vec(),
                _ => {}
            }
            false
        })?;
        match queries.iter().any(Vec::is_empty) || logits.is_empty() {
            true => Err(Error::Unsupported("aligning words on this device".to_owned())),
            false => Ok(()),
        }
    }

    /// The rows of the keys' matrices that belong to alignment heads.
    fn load_key_heads(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        if !self.key_heads.is_empty() {
            return Ok(());
        }
        let (width, dim) = (self.config.width, self.config.width / self.config.text_heads);
        let (mut all, mut held) = (vec![0.0; width * width], None);
        let mut heads = Vec::new();
        for (layer, head) in &self.config.alignment_heads {
            // Heads of one layer are neighbours in most lists.
            if held != Some(layer) {
                let name = &self.cross_keys[*layer];
                let tensor = checkpoint.tensor(name).ok_or_else(|| Error::MissingTensor(name.clone()))?;
                dequantize(tensor.dtype, tensor.data, &mut all)
                    .map_err(|source| Error::Tensor { name: name.clone(), source })?;
                held = Some(layer);
            }
            heads.push(all[head * dim * width..(head + 1) * dim * width].to_vec());
        }
        self.key_heads = heads;
        Ok(())
    }
}

/// What a batch borrows from its steps.
struct Bound<'a> {
    /// The own blocks and the window's blocks of each sequence.
    blocks: Vec<(&'a [u32], &'a [u32])>,
    extents: Vec<u32>,
    lengths: Vec<u32>,
    kind: RowKind,
}

impl<'a> Bound<'a> {
    fn new(steps: &'a [Step<'_>], config: &WhisperConfig) -> Bound<'a> {
        let blocks = steps.iter().map(|step| (&step.sequence.blocks[..], &step.window.blocks[..]));
        let one = |step: &Step<'_>| step.sequence.computed + 1 == step.sequence.tokens.len();
        Bound {
            blocks: blocks.collect(),
            extents: steps.iter().flat_map(|_| [0, config.audio_context as u32, 0]).collect(),
            lengths: vec![config.text_context as u32; steps.len()],
            kind: if steps.iter().all(one) { RowKind::Generated } else { RowKind::Prompt },
        }
    }

    /// The block tables of each sequence by group.
    fn tables(&self) -> Vec<&'a [u32]> {
        self.blocks.iter().flat_map(|(own, window)| [&[][..], *window, *own]).collect()
    }

    fn batch<'b>(&'b self, rows: &'b Rows, tables: &'b [&'b [u32]]) -> Batch<'b> {
        Batch {
            tokens: &rows.tokens,
            positions: &rows.positions,
            sequences: &rows.sequences,
            kind: self.kind,
            logits: &rows.logits,
            tables,
            lengths: &self.lengths,
            records: &[],
            inputs: Inputs { extents: &self.extents, types: &[], features: &[] },
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}
