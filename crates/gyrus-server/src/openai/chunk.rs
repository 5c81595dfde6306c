//! Chunks of a chat completion that streams.

use gyrus::{Event, Model};
use serde::Serialize;
use serde_json::{Value, json};

use super::chat::Style;
use super::{finish_reason, logprobs, tool_call, usage};
use crate::collected::{Counts, Pending, Token};
use crate::failure::{Failure, Wire};
use crate::random;
use crate::stream::{Format, sse};

/// A chat completion that streams.
pub(super) struct ChatStream {
    id: String,
    created: u64,
    model: String,
    style: Style,
    choices: Vec<ChoiceState>,
    counts: Counts,
}

#[derive(Default)]
struct ChoiceState {
    calls: usize,
    pending: Pending,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<&'a Value>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize, Default)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Value; 1]>,
}

impl ChatStream {
    pub(super) fn new(model: &str, choices: usize, style: Style) -> ChatStream {
        let mut all = Vec::new();
        all.resize_with(choices, ChoiceState::default);
        ChatStream {
            id: random::id("chatcmpl-"),
            created: random::now(),
            model: model.to_owned(),
            style,
            choices: all,
            counts: Counts::default(),
        }
    }

    fn chunk(
        &self,
        choices: &[ChunkChoice<'_>],
        usage: Option<&Value>,
        timings: Option<&Value>,
        out: &mut Vec<u8>,
    ) {
        let null = Value::Null;
        // A client that asked for the usage expects the field in every chunk.
        let usage = usage.or(self.style.include_usage.then_some(&null));
        let (id, created, model) = (&self.id, self.created, &self.model);
        let object = "chat.completion.chunk";
        sse(out, None, &Chunk { id, object, created, model, choices, usage, timings });
    }

    fn delta(&self, index: usize, delta: Delta<'_>, logprobs: Option<Value>, out: &mut Vec<u8>) {
        self.chunk(&[ChunkChoice { index, delta, logprobs, finish_reason: None }], None, None, out);
    }
}

/// The log-probabilities of a piece of text, if it has any.
fn of_tokens(model: &Model, tokens: &[Token]) -> Option<Value> {
    let all = || tokens.iter().map(|token| logprobs::of_chat(model, token)).collect::<Vec<_>>();
    (!tokens.is_empty()).then(|| json!({ "content": all(), "refusal": null }))
}

impl Format for ChatStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            self.delta(index, delta, None, out);
        }
    }

    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Token { choice, id, logprob, top } if self.style.logprobs => {
                let token = Token { id: *id, logprob: *logprob, top: top.to_vec() };
                self.choices[*choice].pending.push(token);
            }
            Event::Text { choice, text } => {
                let logprobs = of_tokens(model, &self.choices[*choice].pending.take_text());
                self.delta(*choice, Delta { content: Some(text), ..Delta::default() }, logprobs, out);
            }
            Event::Reasoning { choice, text } => {
                self.choices[*choice].pending.hide();
                self.delta(*choice, Delta { reasoning_content: Some(text), ..Delta::default() }, None, out);
            }
            Event::ToolCall { choice, call } => {
                let mut value = tool_call(call);
                value["index"] = self.choices[*choice].calls.into();
                self.choices[*choice].calls += 1;
                self.choices[*choice].pending.hide();
                self.delta(*choice, Delta { tool_calls: Some([value]), ..Delta::default() }, None, out);
            }
            Event::Stop { choice, reason, usage } => {
                self.counts.add(usage);
                let finish_reason = Some(finish_reason(reason, self.choices[*choice].calls > 0));
                let logprobs = of_tokens(model, &self.choices[*choice].pending.take_last());
                let last = ChunkChoice { index: *choice, delta: Delta::default(), logprobs, finish_reason };
                let timings = (*choice == 0).then(|| self.counts.timings());
                self.chunk(&[last], None, timings.as_ref(), out);
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.style.include_usage {
            let usage = usage(&self.counts);
            self.chunk(&[], Some(&usage), None, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        sse(out, None, &failure.to_json(Wire::OpenAi));
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
