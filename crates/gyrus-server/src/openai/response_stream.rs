//! The events of a response: items that open, grow and close.

use gyrus::{Event, Model, StopReason};
use serde_json::{Value, json};

use super::logprobs;
use crate::collected::{Counts, Pending, Token};
use crate::failure::{Failure, Wire, to_json};
use crate::random;
use crate::stream::{Format, sse, sse_with};

/// A response that streams.
pub(super) struct ResponseStream {
    id: String,
    created: u64,
    model: String,
    /// Members of the response that repeat the request's own, as JSON without braces.
    echo: Vec<u8>,
    /// Items that are complete, then the one that grows.
    output: Vec<Value>,
    open: Option<Open>,
    /// Tokens whose text has not come yet, if their log-probabilities were asked for.
    pending: Option<Pending>,
    sequence: u64,
    status: &'static str,
    incomplete: Option<&'static str>,
    error: Option<Value>,
    counts: Counts,
}

/// An item that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Reasoning,
}

impl ResponseStream {
    pub(super) fn new(model: &str, echo: Vec<u8>, has_logprobs: bool) -> ResponseStream {
        ResponseStream {
            id: random::id("resp_"),
            created: random::now(),
            model: model.to_owned(),
            echo,
            output: Vec::new(),
            open: None,
            pending: has_logprobs.then(Pending::default),
            sequence: 0,
            status: "in_progress",
            incomplete: None,
            error: None,
            counts: Counts::default(),
        }
    }

    /// Writes the response as it is now.
    pub(super) fn write_response(&self, out: &mut Vec<u8>) {
        let usage = (self.status != "in_progress").then(|| {
            json!({
                "input_tokens": self.counts.prompt,
                "input_tokens_details": { "cached_tokens": self.counts.cached },
                "output_tokens": self.counts.generated,
                "output_tokens_details": { "reasoning_tokens": self.counts.reasoning },
                "total_tokens": self.counts.prompt + self.counts.generated,
            })
        });
        let own = to_json(&json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": self.status,
            "error": self.error,
            "incomplete_details": self.incomplete.map(|reason| json!({ "reason": reason })),
            "model": self.model,
            "output": self.output,
            "usage": usage,
            // Nothing is stored, so nothing can be continued.
            "previous_response_id": null,
            "store": false,
        }));
        out.extend_from_slice(own.strip_suffix(b"}").unwrap_or_default());
        out.push(b',');
        out.extend_from_slice(&self.echo);
        out.push(b'}');
    }

    /// Sends an event that has the whole response.
    fn send_response(&mut self, kind: &str, out: &mut Vec<u8>) {
        sse_with(out, Some(kind), |out| {
            out.extend_from_slice(b"{\"response\":");
            self.write_response(out);
            let rest = format!(",\"type\":\"{kind}\",\"sequence_number\":{}}}", self.sequence);
            out.extend_from_slice(rest.as_bytes());
        });
        self.sequence += 1;
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        sse(out, Some(kind), &event);
    }

    /// The index of the last item.
    fn last(&self) -> usize {
        self.output.len().saturating_sub(1)
    }

    /// Opens an item and its part, unless one of this kind is open.
    fn open(&mut self, kind: Open, out: &mut Vec<u8>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(out);
        let item = match kind {
            Open::Text => json!({ "id": random::id("msg_"), "type": "message", "role": "assistant",
                "status": "in_progress", "content": [] }),
            Open::Reasoning => json!({ "id": random::id("rs_"), "type": "reasoning", "status": "in_progress",
                "summary": [], "content": [] }),
        };
        self.output.push(item.clone());
        let index = self.last();
        self.send("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        let part = match kind {
            Open::Text => json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] }),
            Open::Reasoning => json!({ "type": "reasoning_text", "text": "" }),
        };
        self.output[index]["content"] = json!([part.clone()]);
        let event = json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "part": part });
        self.send("response.content_part.added", event, out);
        self.open = Some(kind);
    }

    /// Adds text, and for text of a message the log-probabilities of its tokens.
    fn grow(&mut self, kind: Open, text: &str, logprobs: Vec<Value>, out: &mut Vec<u8>) {
        self.open(kind, out);
        let index = self.last();
        let part = &mut self.output[index]["content"][0]["text"];
        if let Value::String(all) = part {
            all.push_str(text);
        }
        let name = match kind {
            Open::Text => "response.output_text.delta",
            Open::Reasoning => "response.reasoning_text.delta",
        };
        let mut event = json!({ "item_id": self.output[index]["id"], "output_index": index, "content_index": 0, "delta": text });
        if kind == Open::Text {
            self.add_logprobs(&logprobs);
            event["logprobs"] = logprobs.into();
        }
        self.send(name, event, out);
    }

    /// Adds log-probabilities to the text that is open.
    fn add_logprobs(&mut self, logprobs: &[Value]) {
        let index = self.last();
        if let Some(Value::Array(all)) = self.output[index]["content"][0].get_mut("logprobs") {
            all.extend_from_slice(logprobs);
        }
    }

    /// Closes the item that is open.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(kind) = self.open.take() else { return };
        let index = self.last();
        self.output[index]["status"] = "completed".into();
        let item = self.output[index].clone();
        let part = &item["content"][0];
        let name = match kind {
            Open::Text => "response.output_text.done",
            Open::Reasoning => "response.reasoning_text.done",
        };
        let mut event =
            json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "text": part["text"] });
        if kind == Open::Text {
            event["logprobs"] = part["logprobs"].clone();
        }
        self.send(name, event, out);
        let event = json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "part": part });
        self.send("response.content_part.done", event, out);
        self.send("response.output_item.done", json!({ "output_index": index, "item": item }), out);
    }

    fn call(&mut self, call: &gyrus::tools::Call, out: &mut Vec<u8>) {
        self.close(out);
        let id = random::id("fc_");
        let call_id = call.id.clone().unwrap_or_else(|| random::id("call_"));
        let item = |arguments: &str, status: &str| {
            json!({ "id": id, "type": "function_call", "call_id": call_id, "name": call.name,
                "arguments": arguments, "status": status })
        };
        let index = self.output.len();
        let added = json!({ "output_index": index, "item": item("", "in_progress") });
        self.send("response.output_item.added", added, out);
        let delta = json!({ "item_id": id, "output_index": index, "delta": call.arguments });
        self.send("response.function_call_arguments.delta", delta, out);
        let done =
            json!({ "item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments });
        self.send("response.function_call_arguments.done", done, out);
        let whole = item(&call.arguments, "completed");
        self.send("response.output_item.done", json!({ "output_index": index, "item": whole }), out);
        self.output.push(whole);
    }
}

impl Format for ResponseStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            self.send_response(kind, out);
        }
    }

    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>) {
        let of = |tokens: Vec<Token>| -> Vec<Value> {
            tokens.iter().map(|token| logprobs::of_chat(model, token)).collect()
        };
        match event {
            Event::Token { id, logprob, top, .. } => {
                if let Some(pending) = &mut self.pending {
                    pending.push(Token { id: *id, logprob: *logprob, top: top.to_vec() });
                }
            }
            Event::Text { text, .. } => {
                let tokens = self.pending.as_mut().map(Pending::take_text).unwrap_or_default();
                self.grow(Open::Text, text, of(tokens), out);
            }
            Event::Reasoning { text, .. } => {
                self.pending.iter_mut().for_each(Pending::hide);
                self.grow(Open::Reasoning, text, Vec::new(), out);
            }
            Event::ToolCall { call, .. } => {
                self.pending.iter_mut().for_each(Pending::hide);
                self.call(call, out);
            }
            Event::Stop { reason, usage, .. } => {
                let last = of(self.pending.as_mut().map(Pending::take_last).unwrap_or_default());
                if self.open == Some(Open::Text) {
                    self.add_logprobs(&last);
                }
                self.counts.add(usage);
                if matches!(reason, StopReason::MaxTokens | StopReason::ContextFull) {
                    self.incomplete = Some("max_output_tokens");
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.output.is_empty() {
            // An answer without a word is a message too.
            self.open(Open::Text, out);
        }
        self.close(out);
        self.status = if self.incomplete.is_some() { "incomplete" } else { "completed" };
        let kind = if self.incomplete.is_some() { "response.incomplete" } else { "response.completed" };
        self.send_response(kind, out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        self.status = "failed";
        let code = failure.code.unwrap_or("server_error");
        self.error = Some(json!({ "code": code, "message": failure.message }));
        self.send_response("response.failed", out);
        let mut error = failure.to_json(Wire::OpenAi)["error"].take();
        error["code"] = code.into();
        self.send("error", error, out);
    }
}
