//! The encoder and the decoder of a model, with the blocks of their KV cache.

use gyrus_formats::Checkpoint;
use gyrus_kernels::observe::{OpResult, Seen};
use gyrus_kernels::{Backend, BackendError, Batch, Inputs, KV_BLOCK, KvSize, Precision, RowKind};
use gyrus_tensor::dequantize;

use super::alignment::Attention;
use super::passes::{Bound, Pass, Rows, Step};
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
    pub(super) blocks: Vec<u32>,
}

/// A sequence of the decoder: its tokens, and how many of them are computed.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    pub(super) computed: usize,
    pub(super) blocks: Vec<u32>,
}

impl Sequence {
    pub(super) fn new(tokens: Vec<u32>) -> Sequence {
        Sequence { tokens, ..Sequence::default() }
    }
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
        rows.sources.extend(0..windows.len());
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
        self.rows.source(row)
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

    /// Computes the tokens of sequences that are not computed yet, and returns the wanted logits in order, `[rows, vocab]`.
    pub(super) fn forward(&mut self, steps: &mut [Step<'_>]) -> Result<Vec<f32>, Error> {
        self.take_blocks(steps)?;
        let Engine { backend, rows, config, .. } = self;
        let width = config.vocab;
        let mut ends = Vec::with_capacity(steps.len());
        for step in &*steps {
            ends.push(ends.last().copied().unwrap_or(0) + step.logit_rows() * width);
        }
        let mut logits = vec![0.0; ends.last().copied().unwrap_or(0)];
        for pass in Pass::divide(steps, backend.batch_sequences(), backend.batch_rows()) {
            rows.collect(steps, &pass);
            let bound = Bound::new(steps, &pass, config);
            let mut found = backend.forward(&bound.batch(rows))?;
            for &n in &pass.steps {
                let own = steps[n].logit_rows() * width;
                let (of_step, rest) = found.split_at(own);
                logits[ends[n] - own..ends[n]].copy_from_slice(of_step);
                found = rest;
            }
        }
        steps.iter_mut().for_each(|step| step.sequence.computed = step.sequence.tokens.len());
        Ok(logits)
    }

    /// Gives the sequences of steps the blocks they need.
    fn take_blocks(&mut self, steps: &mut [Step<'_>]) -> Result<(), Error> {
        for step in steps {
            let Sequence { tokens, blocks, .. } = &mut *step.sequence;
            if tokens.len() > self.config.text_context {
                let (tokens, context) = (tokens.len(), self.config.text_context);
                return Err(Error::PromptTooLong { tokens, context });
            }
            while blocks.len() * KV_BLOCK < tokens.len() {
                blocks.push(self.own.take()?);
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
        let result = self.observe(window, &mut sequence, &mut queries);
        self.drop_sequence(sequence);
        let logits = result?;
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

    /// Runs a sequence and keeps the queries of each layer to the encoder's rows. Returns the logits of all its rows.
    fn observe(
        &mut self,
        window: &Encoded,
        sequence: &mut Sequence,
        queries: &mut [Vec<f32>],
    ) -> Result<Vec<f32>, Error> {
        let mut steps = [Step { sequence, window, also: None }];
        self.take_blocks(&mut steps)?;
        let Engine { backend, rows, config, cross_queries, .. } = self;
        let pass = Pass::of_one(&steps[0]);
        rows.collect(&steps, &pass);
        // Devices show the logits of few rows, so they are computed by a pass that is not observed.
        rows.logits.clear();
        let bound = Bound::new(&steps, &pass, config);
        backend.observe(&bound.batch(rows), &mut |seen| {
            if let (OpResult::Queries, Seen::Values(values)) = (seen.result, seen.seen)
                && let Some(layer) = cross_queries.iter().position(|op| *op == seen.op)
            {
                queries[layer] = values.to_vec();
            }
            false
        })?;
        if queries.iter().any(Vec::is_empty) {
            return Err(Error::Unsupported("aligning words on this device".to_owned()));
        }
        rows.logits.extend(0..rows.tokens.len() as u32);
        Ok(backend.forward(&bound.batch(rows))?.to_vec())
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

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}
