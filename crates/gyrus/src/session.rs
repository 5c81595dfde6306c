use gyrus_kernels::{Counts, Sampler};
use gyrus_text::Special;

use crate::Error;
use crate::engine::{Drawn, Run, Sequence, Step, Wanted};
use crate::generation::Generation;
use crate::model::Model;
use crate::request::{Prompt, Request};

/// Rows that give logits in one batch: a row of logits is as wide as the vocabulary.
const SCORED_ROWS: usize = 32;

/// Texts that can be continued at once.
const TOGETHER: usize = 16;

/// One text and its place in the cache.
///
/// The text is [`Session::tokens`]. After a stop it is exactly what was emitted, and going on gives what
/// an uninterrupted run would have given.
pub struct Session {
    model: Model,
    text: Text,
}

/// A text and what the cache holds of it: a beginning, at most all of it.
#[derive(Debug)]
pub(crate) struct Text {
    sequence: Sequence,
    pub(crate) tokens: Vec<u32>,
}

impl Text {
    /// Positions the cache holds.
    pub(crate) fn cached(&self) -> usize {
        self.sequence.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.sequence.truncate(len);
    }

    /// Leaves the last token out of the cache, since the logits behind it are needed.
    pub(crate) fn uncache_last(&mut self) {
        self.sequence.truncate(self.tokens.len().saturating_sub(1));
    }

    /// Computes all that the cache lacks but the last token.
    fn catch_up(&mut self, model: &Model) -> Result<(), Error> {
        while self.sequence.len() + 1 < self.tokens.len() {
            let at = self.sequence.len();
            let end = (self.tokens.len() - 1).min(at + model.chunk());
            let tokens = &self.tokens[at..end];
            let step = Step { sequence: &mut self.sequence, tokens, wanted: Wanted::None };
            model.engine().forward(&mut [step])?;
        }
        Ok(())
    }

    /// Computes the next piece of what the cache lacks. With the last piece it passes the logits behind
    /// the text, and the text, to `done` and returns its result.
    pub(crate) fn advance<T>(
        &mut self,
        model: &Model,
        done: impl FnOnce(&[f32], &[u32]) -> T,
    ) -> Result<Option<T>, Error> {
        let at = self.sequence.len();
        let end = self.tokens.len().min(at + model.chunk());
        let last = end == self.tokens.len();
        let wanted = if last { Wanted::Last } else { Wanted::None };
        let step = Step { sequence: &mut self.sequence, tokens: &self.tokens[at..end], wanted };
        let mut engine = model.engine();
        let logits = engine.forward(&mut [step])?;
        Ok(last.then(|| done(logits, &self.tokens)))
    }
}

impl Text {
    /// The next token, drawn where the model computes; `None` if it cannot draw by this sampler, or more than the
    /// last token is to be computed. At most `most` tokens more will be asked for.
    pub(crate) fn draw(
        &mut self,
        model: &Model,
        run: Run,
        sampler: &Sampler,
        most: usize,
        drawn: &mut Vec<u32>,
    ) -> Result<Option<u32>, Error> {
        if self.sequence.len() + 1 != self.tokens.len() {
            return Ok(None);
        }
        let text = Drawn { sequence: &mut self.sequence, tokens: &mut self.tokens, sampler };
        let done = model.engine().draw(run, &mut [text], most, drawn)?;
        Ok(if done { drawn.first().copied() } else { None })
    }
}

impl Session {
    pub(crate) fn new(model: Model) -> Session {
        let sequence = Sequence::with_capacity(model.context().tokens);
        Session { model, text: Text { sequence, tokens: Vec::new() } }
    }

    /// Continues several texts at once, each by its own sampler and by `tokens` tokens, reading the weights once for
    /// all: many times as many tokens as one text gets in the same time. `visit` gets each step's tokens, one for each
    /// session, and says whether to go on.
    ///
    /// What each text gets is what it would get alone. All sessions must be of one model, at most 16, each with
    /// something to continue.
    pub fn write_together(
        sessions: &mut [Session],
        samplers: &[Sampler],
        tokens: usize,
        mut visit: impl FnMut(&[u32]) -> bool,
    ) -> Result<(), Error> {
        let Some(first) = sessions.first() else { return Ok(()) };
        let model = first.model.clone();
        if sessions.len() > TOGETHER || samplers.len() != sessions.len() {
            return Err(Error::Together { sessions: sessions.len(), most: TOGETHER });
        }
        let context = model.context().tokens;
        for (session, sampler) in sessions.iter_mut().zip(samplers) {
            sampler.validate()?;
            if !session.model.is(&model) {
                return Err(Error::Together { sessions: 1, most: TOGETHER });
            }
            let (len, reach) = (session.text.tokens.len(), session.text.tokens.len() + tokens);
            if len == 0 {
                return Err(Error::EmptyPrompt);
            }
            if reach > context {
                return Err(Error::PromptTooLong { tokens: reach, context });
            }
            session.text.sequence.reach(model.plan(), reach);
            session.text.uncache_last();
            session.text.catch_up(&model)?;
            session.text.tokens.reserve(tokens);
        }
        let run = Run::new();
        let (mut drawn, mut counts, mut candidates) = (Vec::new(), Counts::new(), Vec::new());
        let mut texts: Vec<Drawn<'_>> = sessions
            .iter_mut()
            .zip(samplers)
            .map(|(session, sampler)| {
                let Text { sequence, tokens } = &mut session.text;
                Drawn { sequence, tokens, sampler }
            })
            .collect();
        for step in 0..tokens {
            let mut engine = model.engine();
            if !engine.draw(run, &mut texts, tokens - step, &mut drawn)? {
                engine.draw_here(&mut texts, &mut drawn, &mut counts, &mut candidates)?;
            }
            drop(engine);
            for (text, token) in texts.iter_mut().zip(&drawn) {
                text.tokens.push(*token);
            }
            if !visit(&drawn) {
                break;
            }
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The text so far, prompts and answers.
    pub fn tokens(&self) -> &[u32] {
        &self.text.tokens
    }

    /// Forgets the text and gives its part of the cache back.
    pub fn reset(&mut self) {
        self.text.truncate(0);
        self.model.engine().release(&mut self.text.sequence);
    }

    /// Keeps the first `len` tokens of the text.
    pub fn truncate(&mut self, len: usize) {
        self.text.truncate(len);
    }

    /// Makes the text `tokens`. The part it shares with the present text is not computed again.
    pub fn set_tokens(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check_ids(tokens)?;
        let shared = self.text.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.text.truncate(shared);
        self.text.tokens.extend_from_slice(&tokens[shared..]);
        Ok(())
    }

    /// Continues the text. Nothing is computed before the first [`Generation::next`].
    ///
    /// A prompt that does not fit the context is refused, and the text stays as it was.
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>, Error> {
        request.sampler.validate()?;
        let context = self.model.context().tokens;
        let new = self.encode(&request.prompt)?;
        let before = if matches!(request.prompt, Prompt::Whole(_)) { 0 } else { self.text.tokens.len() };
        let tokens = before + new.len();
        if tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        match request.prompt {
            Prompt::Whole(_) => self.set_tokens(&new)?,
            _ => self.text.tokens.extend_from_slice(&new),
        }
        let most = context - tokens;
        let reach = tokens + request.max_tokens.map_or(most, |n| n.min(most));
        self.text.sequence.reach(self.model.plan(), reach);
        self.text.uncache_last();
        Ok(Generation::new(&self.model, &mut self.text, request))
    }

    fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        let tokenizer = || self.model.tokenizer().ok_or(Error::NoTokenizer);
        let ids = match prompt {
            Prompt::Continue => Vec::new(),
            Prompt::Ids(ids) | Prompt::Whole(ids) => ids.clone(),
            // The begin token belongs at the start of a text only.
            Prompt::Text(text) => tokenizer()?.encode(text, Special::Literal, self.text.tokens.is_empty()),
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

    /// Appends ids and computes them, with the logits of the last one. No token is sampled, so the sequence may fill the
    /// context. If it fails, the tokens stay as they were.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<(), Error> {
        self.check_ids(ids)?;
        let (before, context) = (self.text.tokens.len(), self.model.context().tokens);
        let tokens = before + ids.len();
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        self.text.tokens.extend_from_slice(ids);
        self.text.sequence.reach(self.model.plan(), tokens);
        while self.text.cached() < tokens {
            if let Err(error) = self.text.advance(&self.model, |_, _| ()) {
                self.text.truncate(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes the text `ids` and computes the logits behind every one of them. `visit` gets the position
    /// and the logits, `[vocab]`.
    pub fn score(&mut self, ids: &[u32], mut visit: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        self.check_ids(ids)?;
        let (tokens, context) = (ids.len(), self.model.context().tokens);
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        self.reset();
        self.text.sequence.reach(self.model.plan(), tokens);
        let vocab = self.model.plan().vocab;
        for piece in ids.chunks(self.model.chunk().min(SCORED_ROWS)) {
            let first = self.text.tokens.len();
            let step = Step { sequence: &mut self.text.sequence, tokens: piece, wanted: Wanted::All };
            // Copied, so that the engine is free while the caller looks at them.
            let logits = self.model.engine().forward(&mut [step])?.to_vec();
            self.text.tokens.extend_from_slice(piece);
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                visit(first + i, row);
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.engine().release(&mut self.text.sequence);
    }
}
