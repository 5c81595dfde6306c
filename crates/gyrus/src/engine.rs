//! Sequences over a backend: who owns which cache blocks, and how rows become a batch.

use gyrus_kernels::{Backend, Batch, KV_BLOCK, Plan};

use crate::Error;

/// The most sequences in one batch; their tables are gathered on the stack.
pub(crate) const MAX_SEQUENCES: usize = 64;

/// A backend with its cache handed out block by block.
pub(crate) struct Engine {
    backend: Box<dyn Backend>,
    /// Blocks nobody uses; the last is given first.
    free: Vec<u32>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    wanted: Vec<u32>,
}

/// A text's place in the cache.
///
/// Its blocks go back through [`Engine::release`]; a sequence that is dropped without it keeps them, so
/// only [`crate::Session`], which releases in its own `Drop`, holds one.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    blocks: Vec<u32>,
    /// Positions the cache holds.
    len: usize,
    /// Positions it may come to hold, fixed while the cache holds any: see [`Batch::lengths`].
    reach: u32,
}

impl Sequence {
    /// An empty text with room for the table of this many positions.
    pub(crate) fn with_capacity(positions: usize) -> Sequence {
        Sequence { blocks: Vec::with_capacity(positions.div_ceil(KV_BLOCK)), ..Sequence::default() }
    }

    /// Positions the cache holds.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Forgets positions from `len` on. Their blocks stay, for what comes instead.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Says how long the text may become. Keys are forgotten if the model turns those of texts that long at
    /// other speeds, so that an answer depends on what was asked for and not on what went before.
    pub(crate) fn reach(&mut self, plan: &Plan, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let class = |reach: u32| plan.ropes.iter().map(move |rope| rope.length_class(reach as usize));
        if !class(length).eq(class(self.reach)) {
            self.len = 0;
        }
        if self.len == 0 {
            self.reach = length;
        }
    }
}

/// Which rows of a step give logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    None,
    Last,
    All,
}

/// Rows of one sequence in a batch.
pub(crate) struct Step<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) tokens: &'a [u32],
    pub(crate) wanted: Wanted,
}

impl Engine {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Engine {
        let blocks = backend.kv_blocks() as u32;
        Engine {
            free: (0..blocks).rev().collect(),
            backend,
            tokens: Vec::new(),
            positions: Vec::new(),
            sequences: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Gives a sequence's blocks back.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        self.free.append(&mut sequence.blocks);
        sequence.len = 0;
    }

    /// Runs all steps as one batch and returns the wanted logits, `[rows wanted, vocab]` in order.
    ///
    /// If it fails, no sequence has grown.
    pub(crate) fn forward(&mut self, steps: &mut [Step<'_>]) -> Result<&[f32], Error> {
        assert!(steps.len() <= MAX_SEQUENCES, "the callers here run one sequence at a time");
        for step in &mut *steps {
            self.reserve(step.sequence, step.tokens.len())?;
        }
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.wanted] {
            rows.clear();
        }
        for (n, step) in steps.iter().enumerate() {
            let first = self.tokens.len();
            for (i, &token) in step.tokens.iter().enumerate() {
                self.tokens.push(token);
                self.positions.push((step.sequence.len + i) as u32);
                self.sequences.push(n as u32);
            }
            let rows = first as u32..self.tokens.len() as u32;
            match step.wanted {
                Wanted::None => {}
                Wanted::Last => self.wanted.extend(rows.last()),
                Wanted::All => self.wanted.extend(rows),
            }
        }
        let mut tables: [&[u32]; MAX_SEQUENCES] = [&[]; MAX_SEQUENCES];
        let mut lengths = [0; MAX_SEQUENCES];
        for ((table, length), step) in tables.iter_mut().zip(&mut lengths).zip(steps.iter()) {
            *table = &step.sequence.blocks;
            *length = step.sequence.reach;
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            logits: &self.wanted,
            tables: &tables[..steps.len()],
            lengths: &lengths[..steps.len()],
        };
        let logits = self.backend.forward(&batch)?;
        for step in steps {
            step.sequence.len += step.tokens.len();
        }
        Ok(logits)
    }

    /// Makes sure that a sequence has blocks for `more` positions.
    fn reserve(&mut self, sequence: &mut Sequence, more: usize) -> Result<(), Error> {
        let blocks = (sequence.len + more).div_ceil(KV_BLOCK);
        let needed = blocks.saturating_sub(sequence.blocks.len());
        if needed > self.free.len() {
            return Err(Error::CacheFull { needed, free: self.free.len() });
        }
        sequence.blocks.extend(self.free.drain(self.free.len() - needed..));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Options, Precision};
    use gyrus_testkit::data;

    fn bits(logits: &[f32]) -> Vec<u32> {
        logits.iter().map(|l| l.to_bits()).collect()
    }

    /// Prompts of several sequences and single steps of others in one batch give each row what it gets
    /// alone, bit for bit.
    #[test]
    fn sequences_in_one_batch_are_as_if_alone() {
        let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
        for precision in [Precision::Exact, Precision::Fast] {
            let options = Options { precision, sessions: 8, ..Options::default() };
            let model = Model::open(&path, &options).unwrap();
            let vocab = model.plan().vocab;
            let mut engine = model.engine();
            let text = |n: usize, seed: usize| -> Vec<u32> {
                (0..n).map(|i| ((i * 97 + seed * 389 + 3) % vocab) as u32).collect()
            };
            // Two sequences that already hold something, two that begin.
            let (before, now) = ([text(50, 1), text(3, 2), text(0, 3), text(0, 4)], [1, 1, 70, 2]);
            let mut alone = Vec::new();
            let mut together: Vec<Sequence> = Vec::new();
            for (n, before) in before.iter().enumerate() {
                for kept in [false, true] {
                    let mut sequence = Sequence::default();
                    if !before.is_empty() {
                        let wanted = Wanted::None;
                        engine
                            .forward(&mut [Step { sequence: &mut sequence, tokens: before, wanted }])
                            .unwrap();
                    }
                    if kept {
                        together.push(sequence);
                        continue;
                    }
                    let tokens = text(now[n], 10 + n);
                    let step = Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last };
                    alone.extend(bits(engine.forward(&mut [step]).unwrap()));
                    engine.release(&mut sequence);
                }
            }
            let tokens: Vec<Vec<u32>> = now.iter().enumerate().map(|(n, &len)| text(len, 10 + n)).collect();
            let mut steps: Vec<Step<'_>> = together
                .iter_mut()
                .zip(&tokens)
                .map(|(sequence, tokens)| Step { sequence, tokens, wanted: Wanted::Last })
                .collect();
            assert_eq!(bits(engine.forward(&mut steps).unwrap()), alone, "{precision:?}");
        }
    }
}
