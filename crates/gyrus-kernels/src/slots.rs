//! Slots: how a backend decodes many sequences at once, with steps in flight.
//!
//! A sequence that runs has a slot. Its prompt is computed in chunks; then it decodes: each step computes one row per
//! decoding slot and samples its next token on the device, so that steps are submitted before the tokens of earlier steps
//! are known.
//!
//! **Advance or hold.** A decoding slot has an input token at a position. A step computes the row and samples a token for
//! the next position. The slot *advances* to that token if
//!
//! - it has not ended: it sampled none of its end tokens, and its logits were finite,
//! - the next position is below its limit: the sequence may be that long, and has a block for it,
//! - its mask for the next position has arrived, if it is constrained.
//!
//! Otherwise it *holds*: the step emits [`Outcome::Held`], and the next step computes the same row again, which writes the
//! same keys and values. Rows of other slots are not affected.
//!
//! **State.** Layers of Gated DeltaNet keep a state that is not addressed by position, so that computing a row again is
//! not idempotent by itself. A chunk names the record it reads and the one it writes. A decoding slot has two records: the
//! state before position `p` is in record `p mod 2`. A step at `p` reads that and writes the other, so that a slot that
//! holds computes the same again. A backend that is not [asynchronous](Limits::asynchronous) computes no row of a slot that
//! holds; there both may be the same record.
//!
//! **Samplers.** An [asynchronous](Limits::asynchronous) backend draws with [plain](Sampler::is_plain) samplers on the
//! device. With others it draws on the host when a step lands: the slot's row is computed, the step holds it on the device,
//! and the host draws from its logits. The token is the step's outcome, and the next submission computes its row. Steps
//! that were in flight meanwhile compute the same row again and hold it. So such a slot advances once for each submission
//! that was made after its last token had landed. Other slots are not affected.
//!
//! **Drafts.** A slot that does not decode can have a [draft](Slots::draft): guesses of its next tokens. One pass computes the
//! rows of its last token and of all guesses, as generated rows, and samples a token from each as a step at that position
//! would: by the draw of its position, with the penalties of the tokens before it, and under its own mask. So the token of
//! the first row is that of a step, and the token of each later row too, if all guesses before it are right. The caller
//! compares them. Rows of wrong guesses leave keys and values behind the end of the sequence, where they are overwritten
//! before anything reads them.
//!
//! **Masks.** Only the sampling of a row needs its mask, not the row itself. [`Slots::compute_ahead`] computes the rows of the
//! next step as soon as those of the last one have their tokens. So the token lands while its row is computed, its mask is
//! found meanwhile, and the step that is submitted then has only to sample. A slot that begins in that step holds once, so
//! that the rows of the others are not computed again.
//!
//! **Order.** Calls take effect in the order in which they are made. So the blocks of a closed slot can be given to another
//! sequence at once. A slot may advance in a step in flight where it would have held without a later [`Slots::extend`] or
//! [`Slots::mask`].

use std::time::Duration;

use crate::backend::BackendError;
use crate::delta::Records;
use crate::sampler::Sampler;

/// The most alternatives to a token whose log-probabilities a slot can ask for.
pub const MAX_TOP: usize = 20;

/// End tokens of a slot that the backend recognises. Others end a sequence when the caller sees them.
pub const MAX_ENDS: usize = 8;

/// The most slots of a backend: sequences that it runs at once.
pub const MAX_SLOTS: usize = 128;

/// What a backend can run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Slots.
    pub slots: usize,
    /// Rows of all chunks of a submission together.
    pub rows: usize,
    /// Rows with logits of all chunks of a submission together.
    pub logit_rows: usize,
    /// Steps in flight.
    pub steps: usize,
    /// Rows of all drafts of a submission together. Slots of plans with a state have no drafts: a state cannot be taken
    /// back.
    pub draft_rows: usize,
    /// Whether submissions run while the caller goes on. If not, more than one step at a time only delays its token.
    pub asynchronous: bool,
    /// Whether rows of a prompt and generated rows are computed with different roundings. If so, the same tokens give
    /// other bits in the cache when they were read as a prompt than when they were generated.
    pub kinds_differ: bool,
}

/// What a row is. It decides which kernels compute it, whatever else is in the batch, so that a sequence's results do not
/// depend on other sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowKind {
    /// A token of a prompt.
    #[default]
    Prompt,
    /// A token that was generated, or the last one of a prompt, from whose logits the first token is sampled.
    Generated,
}

/// The rows of a chunk whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogitRows {
    /// None of them.
    #[default]
    None,
    /// The last one.
    Last,
    /// All of them.
    All,
}

/// Tokens of one sequence to compute: a part of its prompt, or generated tokens whose keys and values were dropped.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// The position of the first token. Earlier positions are in the cache, or in earlier chunks.
    pub position: u32,
    /// The tokens.
    pub tokens: &'a [u32],
    /// What they are.
    pub kind: RowKind,
    /// Which logits are wanted.
    pub logits: LogitRows,
    /// The state before the chunk and after it; absent for plans without state. Later chunks of the slot in a submission
    /// follow it directly, read what it writes, and write the same record.
    pub records: Option<Records>,
}

impl Chunk<'_> {
    /// Whether chunks name records of a pool of this many, or none if there is no pool: each slot's chunks follow each
    /// other in one record, and no slot writes a record that another reads or writes.
    pub fn have_sound_records(chunks: &[Chunk<'_>], pool: Option<usize>) -> bool {
        let Some(pool) = pool else { return chunks.iter().all(|chunk| chunk.records.is_none()) };
        let mut firsts: Vec<Records> = Vec::with_capacity(chunks.len());
        for (i, chunk) in chunks.iter().enumerate() {
            let Some(records) = chunk.records else { return false };
            let earlier = chunks[..i].iter().rposition(|other| other.slot == chunk.slot);
            match earlier {
                None => firsts.push(records),
                Some(at) => {
                    let before = chunks[at].records;
                    let follows = at + 1 == i
                        && before
                            .is_some_and(|before| records == Records { from: Some(before.to), ..before });
                    if !follows {
                        return false;
                    }
                }
            }
        }
        Records::are_sound(&firsts, pool)
    }
}

/// A submission: chunks first, then decode steps of all slots that decode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work<'a> {
    /// Chunks. A slot may have several in a row, of different kinds.
    pub chunks: &'a [Chunk<'a>],
    /// Decode steps that run among the kernels of the chunks, so that sequences do not wait for all of them. Slots that
    /// were started since the last submission take no part in them. They land before the chunks. With a
    /// [gap](Slots::set_gap) there may be fewer.
    pub between: usize,
    /// Decode steps after the chunks.
    pub steps: usize,
}

/// How a slot decodes.
#[derive(Debug, Clone, Copy)]
pub struct Decode<'a> {
    /// All tokens of the sequence. The last one is the input of the next step; those before it are in the cache, or in
    /// chunks that come before the step.
    pub tokens: &'a [u32],
    /// The slot advances while the next position is below this. Blocks must cover it.
    pub limit: u32,
    /// How tokens are sampled. The draw for position `p` has the number `p`.
    pub sampler: &'a Sampler,
    /// Tokens at which the slot ends. The token is emitted. [`MAX_ENDS`] of them are recognised.
    pub ends: &'a [u32],
    /// Whether the log-probability of each token is wanted, and of how many of the most likely tokens, at most
    /// [`MAX_TOP`]. They are of the logits before penalties, masks and temperature.
    pub logprobs: Option<usize>,
    /// Whether the slot holds until [`Slots::mask`] has given the allowed tokens of the next position.
    pub masked: bool,
    /// The records of the slot's state: that before position `p` is in number `p mod 2`. The one of the last token's
    /// position has been written, or is by chunks that come before the step. Plans without state do not read them.
    pub records: [u32; 2],
}

/// Guesses of the tokens that follow those of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// The sequence's tokens, then the guesses.
    pub tokens: &'a [u32],
    /// How many of them are guesses.
    pub guesses: usize,
    /// How tokens are sampled. The draw for position `p` has the number `p`.
    pub sampler: &'a Sampler,
    /// As in [`Decode::logprobs`].
    pub logprobs: Option<usize>,
    /// The allowed tokens of each row, as in [`Slots::mask`], one row after the other; empty without masks.
    pub masks: &'a [u32],
}

impl<'a> Draft<'a> {
    /// Rows that it takes: those of the last known token and of the guesses.
    pub fn rows(&self) -> usize {
        self.guesses + 1
    }

    /// The position of its first row.
    pub fn position(&self) -> Option<usize> {
        self.tokens.len().checked_sub(self.guesses + 1)
    }

    /// The mask of a row over this many words, if it has masks.
    pub fn mask(&self, row: usize, words: usize) -> Option<&'a [u32]> {
        self.masks.get(row * words..(row + 1) * words)
    }

    /// Whether a slot with blocks for this many positions can compute it.
    pub fn is_sound(&self, vocab: usize, positions: usize) -> bool {
        let words = vocab.div_ceil(32);
        // The last word may have bits beyond the vocabulary.
        let in_vocab = |index: usize| match vocab - 32 * index {
            bits @ ..32 => (1 << bits) - 1,
            _ => u32::MAX,
        };
        let allows = |mask: &[u32]| mask.iter().enumerate().any(|(index, word)| word & in_vocab(index) != 0);
        self.position().is_some()
            && self.tokens.len() <= positions
            && self.tokens.iter().all(|&token| (token as usize) < vocab)
            && self.logprobs.is_none_or(|top| top <= MAX_TOP)
            && (self.masks.is_empty() || self.masks.len() == self.rows() * words)
            && self.masks.chunks_exact(words.max(1)).all(allows)
    }
}

/// What a step did with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Outcome {
    /// The slot holds, or does not decode.
    #[default]
    Held,
    /// The slot advanced to this token.
    Token {
        /// The token.
        id: u32,
        /// The natural logarithm of its probability; NaN if it was not asked for.
        logprob: f32,
        /// Mirostat's state after it; NaN for samplers without.
        mu: f32,
    },
    /// The logits are not finite. The slot has ended.
    NotFinite,
}

/// A completed part of a submission. Parts complete in the order of submission: each step between chunks, the chunks, the
/// drafts, each step after them.
#[derive(Debug, Clone, Copy)]
pub enum Landed<'a> {
    /// All chunks of a submission.
    Chunks {
        /// The submission.
        submission: u64,
        /// The wanted logits, `[rows, vocab]` in the order of the chunks. The caller checks whether they are finite.
        logits: &'a [f32],
    },
    /// All drafts of a submission.
    Drafts {
        /// The submission.
        submission: u64,
        /// What was sampled from each row, in the order of the drafts and their rows. No row holds.
        outcomes: &'a [Outcome],
        /// The most likely tokens of the rows of drafts that asked for them.
        top: TopTokens<'a>,
    },
    /// One step.
    Step {
        /// The submission.
        submission: u64,
        /// One for each slot that the backend computed; later slots held.
        outcomes: &'a [Outcome],
        /// The most likely tokens of the slots that asked for them.
        top: TopTokens<'a>,
    },
}

/// The most likely tokens of each slot, or of each row of drafts, the most likely first.
#[derive(Debug, Clone, Copy, Default)]
pub struct TopTokens<'a> {
    /// `[slots, MAX_TOP]` of token and log-probability; empty if no slot asked for any.
    pub entries: &'a [(u32, f32)],
}

impl<'a> TopTokens<'a> {
    /// The `n` most likely tokens of a slot.
    pub fn of(&self, slot: usize, n: usize) -> &'a [(u32, f32)] {
        let first = slot * MAX_TOP;
        self.entries.get(first..first + n.min(MAX_TOP)).unwrap_or(&[])
    }
}

/// The slots of a backend.
///
/// A caller's mistake (a slot that does not exist or was not opened, a position without a block, a token beyond the
/// vocabulary) is [`BackendError::UnsoundBatch`], and nothing was submitted. Other errors are the device's: the slots'
/// state is lost, and so is the cache.
pub trait Slots {
    /// What can run at once.
    fn limits(&self) -> Limits;

    /// Gives a slot to a sequence. It has no blocks and does not decode. `length` is the length that the sequence may
    /// reach: see [`Batch::lengths`](crate::Batch::lengths).
    fn open(&mut self, slot: usize, length: u32) -> Result<(), BackendError>;

    /// Sets the block tables of a slot, one per KV group, all of the same length, and the limit of its decoding. Entries
    /// that it had before are the same as before. If the tables are shorter than before, later entries are forgotten.
    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError>;

    /// Begins to decode with the next step that is submitted.
    fn start(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError>;

    /// The tokens that a masked slot may sample for a position: bit `i % 32` of word `i / 32` for token `i`.
    fn mask(&mut self, slot: usize, position: u32, allowed: &[u32]) -> Result<(), BackendError>;

    /// Ends the decoding of a slot, which keeps its blocks and can have chunks and drafts, or be started again. Steps in
    /// flight still compute its row.
    fn stop(&mut self, slot: usize) -> Result<(), BackendError>;

    /// Verifies guesses of a slot's next tokens with the next submission, which has no chunks. The slot has blocks for all
    /// rows, does not decode, and has no other draft. All drafts together have at most [`Limits::draft_rows`] rows.
    fn draft(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError>;

    /// Copies a record of the state, or zeros if there is none, in the order of submissions: what was submitted before
    /// writes it first, what is submitted later reads the copy. A sequence of one token begins with a record of zeros.
    fn copy_state(&mut self, from: Option<u32>, to: u32) -> Result<(), BackendError>;

    /// Takes a slot from its sequence. Steps in flight still compute its row.
    fn close(&mut self, slot: usize);

    /// Submits chunks and steps, and returns the number of the submission: one more than that of the last.
    ///
    /// It may return before they have run. Steps in flight must not exceed [`Limits::steps`]. A backend that is not
    /// [asynchronous](Limits::asynchronous) may compute chunks with steps between them in [`Slots::poll`], a part with
    /// each call, and what is left of them in the next `submit`. Another one may record them so.
    fn submit(&mut self, work: &Work<'_>) -> Result<u64, BackendError>;

    /// Begins to compute the rows of the next step. Tokens do not depend on it: it lets a mask that comes before the rows
    /// are complete take effect without delay. Returns whether rows are computed; a backend that computes when work is
    /// submitted does nothing. One that was asked after the last submission may begin with them in the next one.
    fn compute_ahead(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Whether everything that was submitted has run, so that a device has nothing to do.
    fn is_idle(&mut self) -> Result<bool, BackendError> {
        Ok(true)
    }

    /// The time from the end of a step to the end of the next one that a backend that is not
    /// [asynchronous](Limits::asynchronous) keeps to among chunks that are submitted later: it ends a part of their kernels
    /// when the time of a step is left. Without a gap, parts are equal shares of the kernels' time. Other backends ignore it.
    fn set_gap(&mut self, _gap: Option<Duration>) {}

    /// The next completed part of a submission, in order. It waits for it at most this long, if it does not compute it
    /// itself; `None` if the time is over or nothing is in flight.
    fn poll(&mut self, wait: Duration) -> Result<Option<Landed<'_>>, BackendError>;

    /// Whether parts of the last submission are left, which [`Slots::poll`] records when the device needs them. They come
    /// before everything that is submitted later, so a caller that has nothing urgent waits for them.
    fn is_recording(&self) -> bool {
        false
    }

    /// Discards everything in flight and closes all slots. The contents of the cache stay.
    fn reset(&mut self);
}
