//! A message of Anthropic's API: blocks that open, grow and close.

use gyrus::{Event, Model, StopReason};
use serde_json::{Value, json};

use crate::collected::Counts;
use crate::failure::{Failure, Wire};
use crate::random;
use crate::stream::{Format, sse};

/// A message that streams.
pub(super) struct MessageStream {
    id: String,
    model: String,
    /// Blocks that are complete, then the one that grows.
    content: Vec<Value>,
    open: Option<Open>,
    has_started: bool,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    counts: Counts,
}

/// A block that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
}

impl MessageStream {
    pub(super) fn new(model: &str) -> MessageStream {
        MessageStream {
            id: random::id("msg_"),
            model: model.to_owned(),
            content: Vec::new(),
            open: None,
            has_started: false,
            stop_reason: None,
            stop_sequence: None,
            counts: Counts::default(),
        }
    }

    /// The message as it is now.
    pub(super) fn message(&self) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": self.usage(),
        })
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.counts.prompt - self.counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.counts.cached,
            "output_tokens": self.counts.generated,
        })
    }

    fn send(&self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        sse(out, Some(kind), &event);
    }

    /// The first event waits for the prompt, whose tokens it counts.
    fn start(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_started, true) {
            let message = self.message();
            self.send("message_start", json!({ "message": message }), out);
        }
    }

    fn last(&self) -> usize {
        self.content.len().saturating_sub(1)
    }

    fn grow(&mut self, kind: Open, text: &str, out: &mut Vec<u8>) {
        self.start(out);
        let (block, field, delta) = match kind {
            Open::Text => (json!({ "type": "text", "text": "" }), "text", "text_delta"),
            Open::Thinking => {
                (json!({ "type": "thinking", "thinking": "", "signature": "" }), "thinking", "thinking_delta")
            }
        };
        if self.open != Some(kind) {
            self.close(out);
            self.content.push(block.clone());
            self.open = Some(kind);
            let event = json!({ "index": self.last(), "content_block": block });
            self.send("content_block_start", event, out);
        }
        let index = self.last();
        if let Value::String(all) = &mut self.content[index][field] {
            all.push_str(text);
        }
        let mut grown = json!({ "type": delta });
        grown[field] = text.into();
        self.send("content_block_delta", json!({ "index": index, "delta": grown }), out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            self.send("content_block_stop", json!({ "index": self.last() }), out);
        }
    }

    fn call(&mut self, call: &gyrus::tools::Call, out: &mut Vec<u8>) {
        self.start(out);
        self.close(out);
        let id = call.id.clone().unwrap_or_else(|| random::id("toolu_"));
        let index = self.content.len();
        let block = |input: Value| json!({ "type": "tool_use", "id": id, "name": call.name, "input": input });
        let event = json!({ "index": index, "content_block": block(json!({})) });
        self.send("content_block_start", event, out);
        let delta = json!({ "type": "input_json_delta", "partial_json": call.arguments });
        self.send("content_block_delta", json!({ "index": index, "delta": delta }), out);
        self.send("content_block_stop", json!({ "index": index }), out);
        // Arguments of a call were checked to be an object.
        self.content.push(block(serde_json::from_str(&call.arguments).unwrap_or_default()));
        self.stop_reason = Some("tool_use");
    }
}

impl Format for MessageStream {
    fn event(&mut self, event: &Event<'_>, _: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Prompt { tokens, cached, .. } => {
                (self.counts.prompt, self.counts.cached) = (*tokens, *cached);
                self.start(out);
            }
            Event::Text { text, .. } => self.grow(Open::Text, text, out),
            Event::Reasoning { text, .. } => self.grow(Open::Thinking, text, out),
            Event::ToolCall { call, .. } => self.call(call, out),
            Event::Stop { reason, usage, .. } => {
                self.counts.add(usage);
                let of_stop = match reason {
                    StopReason::MaxTokens | StopReason::ContextFull => "max_tokens",
                    StopReason::StopString(stop) => {
                        self.stop_sequence = Some(stop.clone());
                        "stop_sequence"
                    }
                    _ => "end_turn",
                };
                let of_calls = self.stop_reason.filter(|_| of_stop == "end_turn");
                self.stop_reason = of_calls.or(Some(of_stop));
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.start(out);
        self.close(out);
        let delta = json!({ "stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence });
        let usage = self.usage();
        self.send("message_delta", json!({ "delta": delta, "usage": usage }), out);
        self.send("message_stop", json!({}), out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        sse(out, Some("error"), &failure.to_json(Wire::Anthropic));
    }

    fn sign_of_life(&self) -> &'static [u8] {
        b"event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }
}
