use gyrus_kernels::{Counts, Sampler};
use gyrus_text::Special;

use crate::Error;
use crate::engine::{Chunk, DecodeSequence, KvSequence, LogitRows};
use crate::generation::Generation;
use crate::in_flight::GenerationId;
use crate::model::Model;
use crate::request::{Prompt, Request};
use crate::sequence::Sequence;

/// The most rows of logits in one batch of [`Session::score`]. Each row is as wide as the vocabulary.
const SCORED_ROWS: usize = 32;

/// The most sessions that decode in one batch.
const MAX_SESSIONS: usize = 16;

/// One sequence of tokens and its KV cache.
///
/// [`Session::tokens`] holds the sequence. After a stop it holds exactly the prompts and the emitted tokens. Continuing
/// from there gives the same tokens as an uninterrupted generation.
pub struct Session {
    model: Model,
    sequence: Sequence,
}

impl Session {
    pub(crate) fn new(model: Model) -> Session {
        let kv = KvSequence::with_capacity(model.context().tokens);
        Session { model, sequence: Sequence { kv, tokens: Vec::new() } }
    }

    /// Decodes `tokens` tokens of several sessions in one batch, each with its own sampler. One pass over the weights
    /// serves all sessions, so the throughput is many times that of one session. After each step `visit` gets one token
    /// for each session; decoding ends when it returns `false`.
    ///
    /// Each session gets the same tokens as it would alone. There are at most 16 sessions, all of the same model, and
    /// none of them is empty.
    pub fn decode_together(
        sessions: &mut [Session],
        samplers: &[Sampler],
        tokens: usize,
        mut visit: impl FnMut(&[u32]) -> bool,
    ) -> Result<(), Error> {
        let Some(first) = sessions.first() else { return Ok(()) };
        let model = first.model.clone();
        if sessions.len() > MAX_SESSIONS {
            return Err(Error::TooManySessions { sessions: sessions.len(), max: MAX_SESSIONS });
        }
        if samplers.len() != sessions.len() {
            return Err(Error::SamplerCount { sessions: sessions.len(), samplers: samplers.len() });
        }
        let context = model.context().tokens;
        for (index, (session, sampler)) in sessions.iter_mut().zip(samplers).enumerate() {
            sampler.validate()?;
            if !session.model.is(&model) {
                return Err(Error::DifferentModels { session: index });
            }
            let (len, max_len) = (session.sequence.tokens.len(), session.sequence.tokens.len() + tokens);
            if len == 0 {
                return Err(Error::EmptyPrompt);
            }
            if max_len > context {
                return Err(Error::PromptTooLong { tokens: max_len, context });
            }
            session.sequence.kv.set_max_len(model.plan(), max_len);
            session.sequence.uncache_last();
            session.sequence.prefill_all_but_last(&model)?;
            session.sequence.tokens.reserve(tokens);
        }
        let generation = GenerationId::new();
        let (mut sampled, mut counts, mut candidates) = (Vec::new(), Counts::new(), Vec::new());
        let mut sequences: Vec<DecodeSequence<'_>> = sessions
            .iter_mut()
            .zip(samplers)
            .map(|(session, sampler)| {
                let Sequence { kv, tokens } = &mut session.sequence;
                DecodeSequence { sequence: kv, tokens, sampler }
            })
            .collect();
        for step in 0..tokens {
            let mut engine = model.engine();
            if !engine.sample_on_device(generation, &mut sequences, tokens - step, &mut sampled)? {
                engine.sample_on_host(&mut sequences, &mut sampled, &mut counts, &mut candidates)?;
            }
            drop(engine);
            for (sequence, token) in sequences.iter_mut().zip(&sampled) {
                sequence.tokens.push(*token);
            }
            if !visit(&sampled) {
                break;
            }
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokens so far: prompts and completions.
    pub fn tokens(&self) -> &[u32] {
        &self.sequence.tokens
    }

    /// Removes all tokens and frees their KV-cache blocks.
    pub fn reset(&mut self) {
        self.sequence.truncate(0);
        self.model.engine().release(&mut self.sequence.kv);
    }

    /// Keeps the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.sequence.truncate(len);
    }

    /// Replaces the tokens. The KV cache of the common prefix is reused.
    pub fn set_tokens(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check_ids(tokens)?;
        let shared = self.sequence.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.sequence.truncate(shared);
        self.sequence.tokens.extend_from_slice(&tokens[shared..]);
        Ok(())
    }

    /// Appends the request's prompt and generates a completion. Nothing is computed before the first
    /// [`Generation::next`].
    ///
    /// A prompt that exceeds the context is an error and leaves the tokens unchanged.
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>, Error> {
        request.sampler.validate()?;
        let context = self.model.context().tokens;
        let new = self.encode(&request.prompt)?;
        let before = if matches!(request.prompt, Prompt::Whole(_)) { 0 } else { self.sequence.tokens.len() };
        let tokens = before + new.len();
        if tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        match request.prompt {
            Prompt::Whole(_) => self.set_tokens(&new)?,
            _ => self.sequence.tokens.extend_from_slice(&new),
        }
        let remaining = context - tokens;
        let max_len = tokens + request.max_tokens.map_or(remaining, |n| n.min(remaining));
        self.sequence.kv.set_max_len(self.model.plan(), max_len);
        self.sequence.uncache_last();
        Ok(Generation::new(&self.model, &mut self.sequence, request))
    }

    fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        let tokenizer = || self.model.tokenizer().ok_or(Error::NoTokenizer);
        let ids = match prompt {
            Prompt::Continue => Vec::new(),
            Prompt::Ids(ids) | Prompt::Whole(ids) => ids.clone(),
            // The BOS token belongs at the start of a sequence only.
            Prompt::Text(text) => {
                tokenizer()?.encode(text, Special::Literal, self.sequence.tokens.is_empty())
            }
        };
        self.check_ids(&ids)?;
        Ok(ids)
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocab = self.model.plan().vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(Error::TokenId { id, vocab }),
            None => Ok(()),
        }
    }

    /// Appends token ids and prefills them, including the logits of the last one. No token is sampled, so the sequence
    /// may fill the context. On an error the tokens are unchanged.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<(), Error> {
        self.check_ids(ids)?;
        let (before, context) = (self.sequence.tokens.len(), self.model.context().tokens);
        let tokens = before + ids.len();
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        self.sequence.tokens.extend_from_slice(ids);
        self.sequence.kv.set_max_len(self.model.plan(), tokens);
        while self.sequence.cached() < tokens {
            if let Err(error) = self.sequence.prefill_chunk(&self.model, |_, _| ()) {
                self.sequence.truncate(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replaces the tokens by `ids` and computes the logits of every position. `visit` gets the position and its
    /// logits, `[vocab]`.
    pub fn score(&mut self, ids: &[u32], mut visit: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        self.check_ids(ids)?;
        let (tokens, context) = (ids.len(), self.model.context().tokens);
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        self.reset();
        self.sequence.kv.set_max_len(self.model.plan(), tokens);
        let vocab = self.model.plan().vocab;
        for tokens in ids.chunks(self.model.chunk().min(SCORED_ROWS)) {
            let first = self.sequence.tokens.len();
            let chunk = Chunk { sequence: &mut self.sequence.kv, tokens, logits: LogitRows::All };
            // The copy lets go of the engine's lock before the caller's code runs.
            let logits = self.model.engine().forward(&mut [chunk])?.to_vec();
            self.sequence.tokens.extend_from_slice(tokens);
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                visit(first + i, row);
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.engine().release(&mut self.sequence.kv);
    }
}
