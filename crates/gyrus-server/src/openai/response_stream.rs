//! The events of a response: items that open, grow and close.

use gyrus::{Event, Model, StopReason};
use serde_json::{Map, Value, json};

use crate::collected::Counts;
use crate::failure::{Failure, Wire};
use crate::random;
use crate::stream::{Format, sse};

/// A response that streams.
pub(super) struct ResponseStream {
    id: String,
    created: u64,
    model: String,
    /// The request's own fields, which its response repeats.
    echo: Map<String, Value>,
    /// Items that are complete, then the one that grows.
    output: Vec<Value>,
    open: Option<Open>,
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
    pub(super) fn new(model: &str, echo: Map<String, Value>) -> ResponseStream {
        ResponseStream {
            id: random::id("resp_"),
            created: random::now(),
            model: model.to_owned(),
            echo,
            output: Vec::new(),
            open: None,
            sequence: 0,
            status: "in_progress",
            incomplete: None,
            error: None,
            counts: Counts::default(),
        }
    }

    /// The response as it is now.
    pub(super) fn response(&self) -> Value {
        let usage = (self.status != "in_progress").then(|| {
            json!({
                "input_tokens": self.counts.prompt,
                "input_tokens_details": { "cached_tokens": self.counts.cached },
                "output_tokens": self.counts.generated,
                "output_tokens_details": { "reasoning_tokens": self.counts.reasoning },
                "total_tokens": self.counts.prompt + self.counts.generated,
            })
        });
        let mut response = json!({
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
        });
        if let Some(response) = response.as_object_mut() {
            response.extend(self.echo.clone());
        }
        response
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
            Open::Text => json!({ "type": "output_text", "text": "", "annotations": [] }),
            Open::Reasoning => json!({ "type": "reasoning_text", "text": "" }),
        };
        self.output[index]["content"] = json!([part.clone()]);
        let event = json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "part": part });
        self.send("response.content_part.added", event, out);
        self.open = Some(kind);
    }

    fn grow(&mut self, kind: Open, text: &str, out: &mut Vec<u8>) {
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
            event["logprobs"] = json!([]);
        }
        self.send(name, event, out);
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
            event["logprobs"] = json!([]);
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
            let response = self.response();
            self.send(kind, json!({ "response": response }), out);
        }
    }

    fn event(&mut self, event: &Event<'_>, _: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Text { text, .. } => self.grow(Open::Text, text, out),
            Event::Reasoning { text, .. } => self.grow(Open::Reasoning, text, out),
            Event::ToolCall { call, .. } => self.call(call, out),
            Event::Stop { reason, usage, .. } => {
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
        let response = self.response();
        self.send(kind, json!({ "response": response }), out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        self.status = "failed";
        let code = failure.code.unwrap_or("server_error");
        self.error = Some(json!({ "code": code, "message": failure.message }));
        let response = self.response();
        self.send("response.failed", json!({ "response": response }), out);
        let mut error = failure.to_json(Wire::OpenAi)["error"].take();
        error["code"] = code.into();
        self.send("error", error, out);
    }
}
