use std::io::Write;
use std::sync::Arc;

use gyrus_constrain::Source;
use gyrus_dialog::{ToolChoice, grammar};

use crate::Error;
use crate::choice::Choice;
use crate::constraints::{ConstraintOf, Trigger};
use crate::generation::{Choices, Generation};
use crate::model::Model;
use crate::prompt::{Dialog, PreparedPrompt};
use crate::request::{MAX_CHOICES, MAX_TRIGGER, Request};
use crate::saved;
use crate::serving::{Command, EventQueue, Job, JobEvent, SequenceId, Task, unsound_shift};

/// One sequence of tokens and its part of the KV cache.
///
/// [`Session::tokens`] holds the sequence. After a stop it holds exactly the prompts and the emitted tokens. Continuing
/// from there gives the same tokens as an uninterrupted generation.
///
/// Sessions of one model run together: each gets the tokens that it would get alone.
pub struct Session {
    model: Model,
    id: SequenceId,
    /// Whether the scheduler knows the sequence.
    is_known: bool,
    tokens: Vec<u32>,
}

impl Session {
    pub(crate) fn new(model: Model) -> Session {
        let id = model.handle().sequence();
        Session { model, id, is_known: false, tokens: Vec::new() }
    }

    /// A session whose sequence the scheduler has.
    pub(crate) fn restored(model: Model, id: SequenceId, tokens: Vec<u32>) -> Session {
        Session { model, id, is_known: true, tokens }
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> SequenceId {
        self.id
    }

    /// Another session with the same tokens. It shares the blocks of the KV cache that are complete; a last one that is
    /// not, and a recurrent state, are copied. Nothing is computed again.
    pub fn fork(&self) -> Result<Session, Error> {
        let id = self.model.handle().sequence();
        if self.is_known {
            self.model.exclusively(|backend, scheduler| {
                Ok(scheduler.fork(self.id, id, &self.tokens, backend)?)
            })?;
        }
        Ok(Session { model: self.model.clone(), id, is_known: self.is_known, tokens: self.tokens.clone() })
    }

    /// Writes the session to a file: its tokens, its part of the KV cache, its recurrent state, and `attachment`, of which
    /// it knows nothing. [`Model::load_session`] reads it. The model must have been loaded with
    /// [`Options::session_files`](crate::Options::session_files).
    ///
    /// What the cache no longer has is computed again when the loaded session goes on.
    pub fn save(&self, out: &mut dyn Write, attachment: &[u8]) -> Result<(), Error> {
        saved::save(&self.model, self.id, &self.tokens, out, attachment)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn tokens_mut(&mut self) -> &mut Vec<u32> {
        &mut self.tokens
    }

    /// The tokens so far: prompts and completions.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Removes all tokens and frees their KV-cache blocks.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.close();
    }

    /// Keeps the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    /// Replaces the tokens. The KV cache of the common prefix is reused.
    pub fn set_tokens(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check_ids(tokens)?;
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends the request's prompt and generates a completion. Nothing is computed before the first
    /// [`Generation::next`], unless a [`Driver`](crate::Driver) runs.
    ///
    /// A prompt that exceeds the context is an error and leaves the tokens unchanged.
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>, Error> {
        let choices = self.start(request)?;
        Ok(Generation::new(&mut self.tokens, choices))
    }

    /// Appends the request's prompt and starts its jobs.
    pub(crate) fn start(&mut self, mut request: Request) -> Result<Choices, Error> {
        request.sampler = self.model.sampler(&request)?;
        let request = &request;
        if !(1..=MAX_CHOICES).contains(&request.choices) {
            let n = request.choices;
            return Err(Error::Request(format!("{n} choices: a request has 1 to {MAX_CHOICES}")));
        }
        self.check_shift(request)?;
        let prompt = PreparedPrompt::new(&self.model, request, self.tokens.is_empty())?;
        self.check_ids(&prompt.ids)?;
        let constraint = self.constraint(request, prompt.dialog.as_ref())?;
        let before = if prompt.is_whole { 0 } else { self.tokens.len() };
        let tokens = before + prompt.ids.len();
        if tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        self.check_length(tokens)?;
        self.tokens.truncate(before);
        self.tokens.extend_from_slice(&prompt.ids);
        self.is_known = true;
        let Session { model, id, tokens, .. } = self;
        let choices = (0..request.choices).map(|choice| {
            let id = if choice == 0 { *id } else { model.handle().sequence() };
            let dialog = prompt.dialog.clone();
            let constraint = constraint.as_ref().map(ConstraintOf::start);
            Choice::start(model, id, tokens, (request, choice), dialog, constraint)
        });
        let choices = Choices::new(model, choices.collect());
        let remaining = model.context().tokens.saturating_sub(tokens.len());
        // Capacity for the whole completion, so that steady decoding does not allocate.
        tokens.reserve(request.max_tokens.map_or(remaining, |n| n.min(remaining)));
        Ok(choices)
    }

    /// The constraint that a request or its choice of tools asks for.
    fn constraint(&self, request: &Request, dialog: Option<&Dialog>) -> Result<Option<ConstraintOf>, Error> {
        let after = dialog.filter(|dialog| dialog.reasons);
        let mut calls = None;
        if let Some(Dialog { format, tools: Some(tools), .. }) = dialog {
            let (choice, parallel) = (&request.tool_choice, request.parallel_calls);
            calls = grammar(*format, tools, choice, parallel, after.is_some())?;
        }
        let reasoning_end = |dialog: &Dialog| Trigger::Text(dialog.format.reasoning_end().to_owned());
        let (source, trigger) = match (calls, &request.constraint) {
            (Some(_), Some(_)) => {
                let both = "a constraint and a tool call that must be made exclude each other";
                return Err(Error::Request(both.into()));
            }
            (Some(calls), None) => (Source::Template(calls), after.map(reasoning_end)),
            (None, Some(source)) => {
                let trigger = match (&request.constraint_after, after) {
                    (Some(text), _) if text.len() > MAX_TRIGGER => {
                        let bytes = text.len();
                        return Err(Error::Request(format!(
                            "the text before the constraint has {bytes} bytes: at most {MAX_TRIGGER} are allowed"
                        )));
                    }
                    (Some(text), _) => Some(Trigger::Text(text.clone())),
                    (None, after) => after.map(|dialog| match dialog.format.answer_header() {
                        Some((begin, end)) => Trigger::Header(begin, end),
                        None => reasoning_end(dialog),
                    }),
                };
                (source.clone(), trigger)
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(ConstraintOf::new(&source, self.model.compile(&source, trigger)?)))
    }

    /// Whether the request's context can be shifted, if it asks for that.
    fn check_shift(&self, request: &Request) -> Result<(), Error> {
        let Some(keep) = request.context_shift else { return Ok(()) };
        let context = self.model.context().tokens;
        let must_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let why = match unsound_shift(self.model.plan()) {
            Some(why) => format!("the model has {why}"),
            None if request.choices > 1 => "there are several choices".to_owned(),
            None if request.constraint.is_some() || must_call => "there is a constraint".to_owned(),
            None if keep > context / 2 => format!("{keep} tokens to keep are more than half of {context}"),
            None => return Ok(()),
        };
        Err(Error::Request(format!("the context cannot be shifted: {why}")))
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocab = self.model.plan().vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(Error::TokenId { id, vocab }),
            None => Ok(()),
        }
    }

    fn check_length(&self, tokens: usize) -> Result<(), Error> {
        let context = self.model.context().tokens;
        if tokens > context { Err(Error::PromptTooLong { tokens, context }) } else { Ok(()) }
    }

    /// Appends token ids and prefills them, including the logits of the last one. No token is sampled, so the sequence
    /// may fill the context. On an error the tokens are unchanged.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<(), Error> {
        self.check_ids(ids)?;
        let before = self.tokens.len();
        self.check_length(before + ids.len())?;
        if ids.is_empty() {
            return Ok(());
        }
        self.tokens.extend_from_slice(ids);
        let done = self.run(Task::Prefill, |_, _| ());
        if done.is_err() {
            self.tokens.truncate(before);
        }
        done
    }

    /// Replaces the tokens by `ids` and computes the logits of every position. `visit` gets the position and its
    /// logits, `[vocab]`.
    pub fn score(&mut self, ids: &[u32], visit: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        self.check_ids(ids)?;
        self.check_length(ids.len())?;
        self.reset();
        if ids.is_empty() {
            return Ok(());
        }
        self.tokens.extend_from_slice(ids);
        self.run(Task::Score, visit)
    }

    /// Runs a job that samples no tokens. `visit` gets positions and their logits.
    fn run(&mut self, task: Task, mut visit: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        let events = Arc::new(EventQueue::new());
        let job = Job {
            tokens: self.tokens.clone(),
            max_len: self.tokens.len(),
            task,
            client: 0,
            priority: 0,
            deadline: None,
            tenant: 0,
            events: Arc::clone(&events),
        };
        self.is_known = true;
        let handle = self.model.handle();
        handle.start(self.id, job);
        let vocab = self.model.plan().vocab.max(1);
        loop {
            match handle.next(&events) {
                JobEvent::Logits { first, logits } => {
                    let rows = logits.chunks_exact(vocab).enumerate();
                    rows.for_each(|(row, logits)| visit(first + row, logits));
                }
                JobEvent::Done(_) => return Ok(()),
                JobEvent::Failed(error) => return Err(error),
                JobEvent::Admitted { .. } | JobEvent::Progress { .. } | JobEvent::Token { .. } => {}
            }
        }
    }

    /// Frees the blocks of the sequence.
    fn close(&mut self) {
        if std::mem::take(&mut self.is_known) {
            self.model.handle().send(Command::Close(self.id));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::{data, tempfile};

    use super::*;
    use crate::{Message, Options};

    /// Behind reasoning, the constraint of gpt-oss waits for the header of the answer and not for the end of a message.
    #[test]
    fn a_constraint_on_channels_waits_for_the_header_of_the_answer() {
        let Some(source) = data("tales/model.safetensors") else { return };
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(source.with_file_name(name), folder.path().join(name)).unwrap();
        }
        let template = "{{ messages[0].content }}<|end|><|start|>assistant{# <|channel|> <|message|> #}";
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let model = Model::open(folder.path(), &Options { context: Some(64), ..Options::default() }).unwrap();
        let colour = Source::Schema(r#"{"enum": ["red"]}"#.into());
        let request = Request::messages([Message::user("A colour?")]).reasoning(true).constraint(colour);
        let prompt = PreparedPrompt::new(&model, &request, true).unwrap();
        let constraint = model.session().constraint(&request, prompt.dialog.as_ref()).unwrap().unwrap();
        let mut state = constraint.start();
        let tokenizer = model.tokenizer().unwrap();
        let mut write = |text: &str| -> Vec<String> {
            for id in tokenizer.encode(text, gyrus_text::Special::Parse, false) {
                state.commit(id).unwrap();
            }
            let mut words = vec![0; tokenizer.vocab_size().div_ceil(32)];
            state.mask(&mut words).unwrap();
            let allowed = |id: &u32| words[*id as usize / 32] >> (id % 32) & 1 == 1;
            let ids = (0..tokenizer.vocab_size() as u32).filter(allowed);
            ids.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).collect()
        };
        assert!(write("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>").len() > 1000);
        assert!(write("final").iter().all(|token| "<|message|>".starts_with(&**token)));
        assert!(write("<|message|>").iter().all(|token| "\"red\"".starts_with(&**token)));
    }
}
