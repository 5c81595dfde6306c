//! Sequences over a backend: who owns which cache blocks, and how rows become a batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gyrus_kernels::{Backend, BackendError, Batch, Counts, Instruments, KV_BLOCK, Plan, Precision, Sampler};

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
    ahead: Ahead,
}

/// Steps that run ahead of their reader.
#[derive(Debug, Default)]
struct Ahead {
    /// Whose they are.
    run: Option<Run>,
    /// How many there may be now: few at first, so that the first token is early and a stop wastes little.
    now: usize,
    /// How many there may be at most.
    most: usize,
    /// How long tokens were waited for, and how many: what a step takes, if it is the device that takes its time.
    waited: Duration,
    read: u32,
}

/// How far steps may be ahead in time: what a stop may waste, and whoever comes next may have to wait for.
const AHEAD: Duration = Duration::from_millis(64);

impl Ahead {
    /// How many steps may be in flight now, if so many more tokens are wanted.
    fn wanted(&self, most: usize) -> usize {
        let step = self.waited.as_nanos() / u128::from(self.read.max(1));
        let in_time = usize::try_from(AHEAD.as_nanos() / step.max(1)).unwrap_or(usize::MAX);
        self.now.min(self.most).min(most.max(1)).min(in_time.max(2))
    }
}

/// One generation, among all of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run(u64);

impl Run {
    pub(crate) fn new() -> Run {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Run(NEXT.fetch_add(1, Ordering::Relaxed))
    }
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
pub(crate) trait Part {
    fn sequence(&self) -> &Sequence;
    fn sequence_mut(&mut self) -> &mut Sequence;
    fn tokens(&self) -> &[u32];
    fn wanted(&self) -> Wanted;
}

/// Rows as they are told.
pub(crate) struct Step<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) tokens: &'a [u32],
    pub(crate) wanted: Wanted,
}

/// A text whose next token the backend draws.
pub(crate) struct Drawn<'a> {
    pub(crate) sequence: &'a mut Sequence,
    /// All of it.
    pub(crate) tokens: &'a mut Vec<u32>,
    pub(crate) sampler: &'a Sampler,
}

impl Part for Step<'_> {
    fn sequence(&self) -> &Sequence {
        self.sequence
    }

    fn sequence_mut(&mut self) -> &mut Sequence {
        self.sequence
    }

    fn tokens(&self) -> &[u32] {
        self.tokens
    }

    fn wanted(&self) -> Wanted {
        self.wanted
    }
}

/// Its last token, for the one behind it.
impl Part for Drawn<'_> {
    fn sequence(&self) -> &Sequence {
        self.sequence
    }

    fn sequence_mut(&mut self) -> &mut Sequence {
        self.sequence
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens[self.tokens.len().saturating_sub(1)..]
    }

    fn wanted(&self) -> Wanted {
        Wanted::Last
    }
}

impl Engine {
    pub(crate) fn new(backend: Box<dyn Backend>, steps_in_flight: usize) -> Engine {
        let blocks = backend.kv_blocks() as u32;
        Engine {
            free: (0..blocks).rev().collect(),
            backend,
            tokens: Vec::new(),
            positions: Vec::new(),
            sequences: Vec::new(),
            wanted: Vec::new(),
            ahead: Ahead { most: steps_in_flight.max(1), ..Ahead::default() },
        }
    }

    /// What looks into the backend's speed. Whatever was in flight is not, afterwards.
    pub(crate) fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        self.ahead.run = None;
        self.backend.instruments()
    }

    /// Gives a sequence's blocks back. Steps that still run on them are done before anybody's later ones.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        self.ahead.run = None;
        self.free.append(&mut sequence.blocks);
        sequence.len = 0;
    }

    /// Runs all steps as one batch and returns the wanted logits, `[rows wanted, vocab]` in order.
    ///
    /// If it fails, no sequence has grown.
    pub(crate) fn forward(&mut self, steps: &mut [impl Part]) -> Result<&[f32], Error> {
        assert!(steps.len() <= MAX_SEQUENCES, "the callers here run one sequence at a time");
        self.ahead.run = None;
        for step in &mut *steps {
            let more = step.tokens().len();
            self.reserve(step.sequence_mut(), more)?;
        }
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.wanted] {
            rows.clear();
        }
        for (n, step) in steps.iter().enumerate() {
            let first = self.tokens.len();
            for (i, &token) in step.tokens().iter().enumerate() {
                self.tokens.push(token);
                self.positions.push((step.sequence().len + i) as u32);
                self.sequences.push(n as u32);
            }
            let rows = first as u32..self.tokens.len() as u32;
            match step.wanted() {
                Wanted::None => {}
                Wanted::Last => self.wanted.extend(rows.last()),
                Wanted::All => self.wanted.extend(rows),
            }
        }
        let mut tables: [&[u32]; MAX_SEQUENCES] = [&[]; MAX_SEQUENCES];
        let mut lengths = [0; MAX_SEQUENCES];
        for ((table, length), step) in tables.iter_mut().zip(&mut lengths).zip(steps.iter()) {
            *table = &step.sequence().blocks;
            *length = step.sequence().reach;
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            logits: &self.wanted,
            tables: &tables[..steps.len()],
            lengths: &lengths[..steps.len()],
        };
        let precision = self.backend.plan().precision;
        let logits = self.backend.forward(&batch).map_err(|error| {
            at_position(error, precision, |row| self.positions.get(row).map(|position| *position as usize))
        })?;
        for step in steps {
            let more = step.tokens().len();
            step.sequence_mut().len += more;
        }
        Ok(logits)
    }

    /// The token behind each text, whose last token alone is not in the cache, drawn by the backend, which may be some
    /// steps ahead by now; at most `most` more tokens will be asked for. The tokens replace those in `drawn`.
    ///
    /// `false` if the backend draws no tokens, or not by these samplers: then nothing has happened.
    pub(crate) fn draw(
        &mut self,
        run: Run,
        texts: &mut [Drawn<'_>],
        most: usize,
        drawn: &mut Vec<u32>,
    ) -> Result<bool, Error> {
        if self.ahead.run != Some(run) && !self.begin(run, texts)? {
            return Ok(false);
        }
        let done = self.advance(texts, most, drawn);
        if done.is_err() {
            self.ahead.run = None;
        }
        done.map(|()| true)
    }

    /// As [`Engine::draw`], with tokens drawn here from the backend's logits.
    pub(crate) fn draw_here(
        &mut self,
        texts: &mut [Drawn<'_>],
        drawn: &mut Vec<u32>,
        counts: &mut Counts,
        candidates: &mut Vec<(f32, u32)>,
    ) -> Result<(), Error> {
        let vocab = self.backend.plan().vocab;
        let logits = self.forward(texts)?;
        drawn.clear();
        for (text, logits) in texts.iter().zip(logits.chunks_exact(vocab)) {
            text.sampler.count(text.tokens, counts);
            drawn.push(text.sampler.draw(logits, counts, text.tokens.len() as u64, candidates));
        }
        Ok(())
    }

    fn begin(&mut self, run: Run, texts: &mut [Drawn<'_>]) -> Result<bool, Error> {
        if self.backend.chain().is_none() || texts.len() > MAX_SEQUENCES {
            return Ok(false);
        }
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.wanted] {
            rows.clear();
        }
        for (n, text) in texts.iter_mut().enumerate() {
            let Some((last, before)) = text.tokens.split_last() else { return Ok(false) };
            if before.len() != text.sequence.len {
                return Ok(false);
            }
            self.reserve(text.sequence, 1)?;
            self.tokens.push(*last);
            self.positions.push(before.len() as u32);
            self.sequences.push(n as u32);
            self.wanted.push(n as u32);
        }
        let (mut tables, mut lengths) = ([&[] as &[u32]; MAX_SEQUENCES], [0; MAX_SEQUENCES]);
        let mut samplers = Vec::with_capacity(texts.len());
        let mut tokens = Vec::with_capacity(texts.len());
        for (n, text) in texts.iter().enumerate() {
            tables[n] = &text.sequence.blocks;
            lengths[n] = text.sequence.reach;
            samplers.push(text.sampler);
            tokens.push(text.tokens.as_slice());
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            logits: &self.wanted,
            tables: &tables[..texts.len()],
            lengths: &lengths[..texts.len()],
        };
        let Some(chain) = self.backend.chain() else { return Ok(false) };
        self.ahead.run = None;
        if !chain.begin(&batch, &samplers, &tokens)? {
            return Ok(false);
        }
        let most = self.ahead.most.min(chain.most());
        self.ahead = Ahead { run: Some(run), now: 2, most, ..Ahead::default() };
        Ok(true)
    }

    fn advance(&mut self, texts: &mut [Drawn<'_>], most: usize, drawn: &mut Vec<u32>) -> Result<(), Error> {
        let flying = self.backend.chain().map_or(0, |chain| chain.in_flight());
        let wanted = self.ahead.wanted(most);
        // A quarter of them at a time: the rest keeps a device busy while they are recorded, and a submission for each
        // step would have it wait between them.
        let some = (wanted / 4).clamp(1, 8);
        if flying == 0 || flying + some <= wanted {
            let mut more = wanted - flying;
            for text in &mut *texts {
                // Blocks that are left for this text bound how far it can be ahead.
                let room = (text.sequence.blocks.len() + self.free.len()) * KV_BLOCK;
                more =
                    more.min(room.saturating_sub(text.sequence.len + flying)).max(usize::from(flying == 0));
                self.reserve(text.sequence, flying + more)?;
            }
            let mut tables = [&[] as &[u32]; MAX_SEQUENCES];
            for (table, text) in tables.iter_mut().zip(texts.iter()) {
                *table = &text.sequence.blocks;
            }
            if let Some(chain) = self.backend.chain() {
                while more > 0 {
                    let some = some.min(more);
                    chain.submit(some, &tables[..texts.len()])?;
                    more -= some;
                }
            }
            self.ahead.now = (2 * self.ahead.now).min(self.ahead.most);
        }
        drawn.clear();
        let asked = Instant::now();
        let precision = self.backend.plan().precision;
        if let Some(chain) = self.backend.chain() {
            let next = chain.next();
            drawn.extend_from_slice(next.map_err(|error| {
                at_position(error, precision, |row| texts.get(row).map(|text| text.sequence.len))
            })?);
        }
        self.ahead.waited += asked.elapsed();
        self.ahead.read += 1;
        for text in texts {
            text.sequence.len += 1;
        }
        Ok(())
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

/// A backend's error with the position of the row that it names.
fn at_position(
    error: BackendError,
    precision: Precision,
    position: impl Fn(usize) -> Option<usize>,
) -> Error {
    match error {
        BackendError::NotFinite { row } => match position(row) {
            Some(position) => Error::NotFinite { position, precision },
            None => Error::Backend(error),
        },
        other => Error::Backend(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Options};
    use gyrus_testkit::data;

    fn bits(logits: &[f32]) -> Vec<u32> {
        logits.iter().map(|l| l.to_bits()).collect()
    }

    /// As many steps in flight as are asked for, unless they are slow.
    #[test]
    fn slow_steps_are_few_ahead() {
        let ahead = |step: u64, read: u32| Ahead {
            now: 32,
            most: 32,
            waited: read * Duration::from_millis(step),
            read,
            ..Ahead::default()
        };
        assert_eq!(ahead(0, 0).wanted(100), 32);
        assert_eq!(ahead(0, 50).wanted(100), 32);
        assert_eq!(ahead(2, 50).wanted(100), 32);
        assert_eq!(ahead(20, 50).wanted(100), 3);
        assert_eq!(ahead(500, 3).wanted(100), 2);
        assert_eq!(ahead(500, 3).wanted(1), 1);
        assert_eq!(ahead(0, 0).wanted(0), 1);
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
