use gyrus_kernels::Sampler;

use crate::Error;
use crate::engine::{Chunk, DecodeSequence, KvSequence, LogitRows};
use crate::in_flight::GenerationId;
use crate::model::Model;

/// The tokens of a sequence and its part of the KV cache, which holds a prefix of them.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) kv: KvSequence,
    pub(crate) tokens: Vec<u32>,
}

impl Sequence {
    /// The number of cached tokens.
    pub(crate) fn cached(&self) -> usize {
        self.kv.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.kv.truncate(len);
    }

    /// Drops the last token from the cache, because its logits are needed.
    pub(crate) fn uncache_last(&mut self) {
        self.kv.truncate(self.tokens.len().saturating_sub(1));
    }

    /// Prefills all tokens but the last, chunk by chunk.
    pub(crate) fn prefill_all_but_last(&mut self, model: &Model) -> Result<(), Error> {
        while self.kv.len() + 1 < self.tokens.len() {
            let at = self.kv.len();
            let end = (self.tokens.len() - 1).min(at + model.chunk());
            let tokens = &self.tokens[at..end];
            let chunk = Chunk { sequence: &mut self.kv, tokens, logits: LogitRows::None };
            model.engine().forward(&mut [chunk])?;
        }
        Ok(())
    }

    /// Prefills the next chunk. After the last chunk it calls `done` with the logits of the last token and all tokens,
    /// and returns the result.
    pub(crate) fn prefill_chunk<T>(
        &mut self,
        model: &Model,
        done: impl FnOnce(&[f32], &[u32]) -> T,
    ) -> Result<Option<T>, Error> {
        let at = self.kv.len();
        let end = self.tokens.len().min(at + model.chunk());
        let last = end == self.tokens.len();
        let logits = if last { LogitRows::Last } else { LogitRows::None };
        let chunk = Chunk { sequence: &mut self.kv, tokens: &self.tokens[at..end], logits };
        let mut engine = model.engine();
        let logits = engine.forward(&mut [chunk])?;
        Ok(last.then(|| done(logits, &self.tokens)))
    }

    /// Decodes the next token, sampled on the device. `None` if the backend does not support the sampler, or if more
    /// than the last token is uncached. The caller needs at most `remaining` tokens.
    pub(crate) fn sample_on_device(
        &mut self,
        model: &Model,
        generation: GenerationId,
        sampler: &Sampler,
        remaining: usize,
        sampled: &mut Vec<u32>,
    ) -> Result<Option<u32>, Error> {
        if self.kv.len() + 1 != self.tokens.len() {
            return Ok(None);
        }
        let sequence = DecodeSequence { sequence: &mut self.kv, tokens: &mut self.tokens, sampler };
        let done = model.engine().sample_on_device(generation, &mut [sequence], remaining, sampled)?;
        Ok(if done { sampled.first().copied() } else { None })
    }
}
