//! Answers of Ollama's API: lines of JSON.

use std::time::Instant;

use gyrus::{Event, Model, StopReason, Usage};
use serde_json::{Value, json};

use crate::collected::{Pending, Token};
use crate::failure::{Failure, Wire};
use crate::openai::logprobs;
use crate::stream::{Format, json_line};
use crate::time::timestamp;

/// Which of the two routes an answer is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Generate,
}

/// An answer in lines, or as a whole.
pub(super) struct Lines {
    model: String,
    shape: Shape,
    stream: bool,
    started: Instant,
    text: String,
    thinking: String,
    calls: Vec<Value>,
    /// Tokens whose text has not come yet, if their log-probabilities are wanted.
    pending: Option<Pending>,
    /// Tokens of text that are not sent yet.
    tokens: Vec<Token>,
    done: Option<(&'static str, Usage)>,
}

/// A line that only says that the model was loaded or unloaded.
pub(super) fn ended(model: &str, shape: Shape, reason: &str) -> Value {
    let mut line = line(model, shape, "", "", &[]);
    line["done"] = true.into();
    line["done_reason"] = reason.into();
    line
}

fn line(model: &str, shape: Shape, text: &str, thinking: &str, calls: &[Value]) -> Value {
    let mut line = json!({ "model": model, "created_at": timestamp(), "done": false });
    let part = match shape {
        Shape::Chat => {
            line["message"] = json!({ "role": "assistant", "content": text });
            &mut line["message"]
        }
        Shape::Generate => {
            line["response"] = text.into();
            &mut line
        }
    };
    if !thinking.is_empty() {
        part["thinking"] = thinking.into();
    }
    if !calls.is_empty() {
        part["tool_calls"] = calls.into();
    }
    line
}

impl Lines {
    pub(super) fn new(model: &str, shape: Shape, stream: bool, with_logprobs: bool) -> Lines {
        Lines {
            model: model.to_owned(),
            shape,
            stream,
            started: Instant::now(),
            text: String::new(),
            thinking: String::new(),
            calls: Vec::new(),
            pending: with_logprobs.then(Pending::default),
            tokens: Vec::new(),
            done: None,
        }
    }

    /// The whole answer.
    pub(super) fn whole(&mut self, model: &Model) -> Value {
        let mut whole = line(&self.model, self.shape, &self.text, &self.thinking, &self.calls);
        self.add_logprobs(&mut whole, model);
        self.finish(&mut whole);
        whole
    }

    fn finish(&self, line: &mut Value) {
        let Some((reason, usage)) = &self.done else { return };
        let total = self.started.elapsed();
        for (name, value) in [
            ("done", Value::from(true)),
            ("done_reason", Value::from(*reason)),
            ("total_duration", Value::from(total.as_nanos() as u64)),
            ("load_duration", Value::from(usage.queue_time.as_nanos() as u64)),
            ("prompt_eval_count", Value::from(usage.prompt_tokens)),
            ("prompt_eval_duration", Value::from(usage.prompt_time.as_nanos() as u64)),
            ("eval_count", Value::from(usage.generated_tokens)),
            ("eval_duration", Value::from(usage.decode_time.as_nanos() as u64)),
        ] {
            line[name] = value;
        }
    }

    /// Adds the log-probabilities of the text's tokens that have come, in the form of OpenAI's chats.
    fn add_logprobs(&mut self, line: &mut Value, model: &Model) {
        if !self.tokens.is_empty() {
            line["logprobs"] = self.tokens.drain(..).map(|token| logprobs::of_chat(model, &token)).collect();
        }
    }

    /// The tokens that have come wrote reasoning or a call.
    fn hide(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.hide();
        }
    }

    fn part(&mut self, text: &str, thinking: &str, calls: &[Value], model: &Model, out: &mut Vec<u8>) {
        if self.stream {
            let mut line = line(&self.model, self.shape, text, thinking, calls);
            self.add_logprobs(&mut line, model);
            json_line(out, &line);
        } else {
            self.text.push_str(text);
            self.thinking.push_str(thinking);
            self.calls.extend_from_slice(calls);
        }
    }
}

impl Format for Lines {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Token { id, logprob, top, .. } => {
                if let Some(pending) = &mut self.pending {
                    pending.push(Token { id: *id, logprob: *logprob, top: top.to_vec() });
                }
            }
            Event::Text { text, .. } => {
                if let Some(pending) = &mut self.pending {
                    self.tokens.append(&mut pending.take_text());
                }
                self.part(text, "", &[], model, out);
            }
            Event::Reasoning { text, .. } => {
                self.hide();
                self.part("", text, &[], model, out);
            }
            Event::ToolCall { call, .. } => {
                self.hide();
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let call = json!({ "function": { "name": call.name, "arguments": arguments } });
                self.part("", "", &[call], model, out);
            }
            Event::Stop { reason, usage, .. } => {
                let reason = match reason {
                    StopReason::MaxTokens | StopReason::ContextFull => "length",
                    _ => "stop",
                };
                // Those of an end token, after which no text comes.
                if let Some(pending) = &mut self.pending {
                    self.tokens.append(&mut pending.take_last());
                }
                if self.stream && !self.tokens.is_empty() {
                    self.part("", "", &[], model, out);
                }
                self.done = Some((reason, *usage));
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let mut last = line(&self.model, self.shape, "", "", &[]);
        self.finish(&mut last);
        json_line(out, &last);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        json_line(out, &failure.to_json(Wire::Ollama));
    }

    fn sign_of_life(&self) -> &'static [u8] {
        // Lines have no comments.
        b""
    }
}
