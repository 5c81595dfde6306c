//! `/v1/chat/completions`.

use axum::response::Response;
use serde_json::{Value, json};

use super::chunk::ChatStream;
use super::logprobs;
use super::{
    IGNORED, PREDICTION, finish_reason, set_format, take_choices, take_limit, take_stream, take_tools,
    take_verbosity, tool_call, usage,
};
use crate::collected::{Choice, Collected};
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::messages::messages;
use crate::random;
use crate::routes::Call;
use crate::running::{Running, start};
use crate::stream::respond;
use crate::wanted::{Wanted, WantedPrompt};

/// What a client wants of the form of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
}

/// Fields that would change the answer.
const REFUSED: &[&str] =
    &["functions", "function_call", "audio", "web_search_options", "continue_final_message"];

/// The request of a body.
pub(crate) fn parse(body: &[u8]) -> Result<(Wanted, Style), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let list = fields.list("messages")?.ok_or_else(|| Failure::field("messages", "it is missing"))?;
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(messages(list, "messages")?));
    let (stream, include_usage) = take_stream(&mut fields)?;
    wanted.take_common(&mut fields)?;
    wanted.choices = take_choices(&mut fields)?;
    let limit = take_limit(&mut fields, "max_tokens")?;
    wanted.max_tokens = take_limit(&mut fields, "max_completion_tokens")?.or(limit);
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, 20)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(Failure::field("top_logprobs", "it needs logprobs: true"));
    }
    wanted.logprobs = logprobs.then(|| top.unwrap_or(0) as usize);
    if let Some(format) = fields.object("response_format")? {
        set_format(&mut wanted, format, "response_format")?;
    }
    take_tools(&mut wanted, &mut fields)?;
    wanted.take_variables(&mut fields)?;
    if let Some(modalities) = fields.strings("modalities", 8)?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(Failure::field("modalities", "answers are text only"));
    }
    take_verbosity(&mut fields)?;
    if fields.boolean("add_generation_prompt")? == Some(false) {
        let failure = fields.wrong("add_generation_prompt", "an answer always begins a message of its own");
        return Err(failure.with_code("unsupported_parameter"));
    }
    fields.refuse(REFUSED)?;
    fields.ignore(IGNORED);
    fields.ignore(PREDICTION);
    fields.ignore(&["reasoning_format"]);
    fields.finish()?;
    Ok((wanted, Style { stream, include_usage, logprobs }))
}

/// Answers a conversation.
pub(crate) async fn create(call: Call) -> Result<Response, Failure> {
    let (wanted, style) = parse(&call.body)?;
    let choices = wanted.choices;
    let mut running = start(&call.state, &call.caller, wanted).await?;
    if style.stream {
        let format = ChatStream::new(running.name(), choices, style);
        return Ok(respond(running, format));
    }
    let collected = Collected::wait(&mut running, choices).await?;
    Ok(json_response(&completion(&running, &collected, style)))
}

fn completion(running: &Running, collected: &Collected, style: Style) -> Value {
    let choices = collected.choices.iter().enumerate().map(|(index, choice)| {
        let has_calls = !choice.calls.is_empty();
        let reason = choice.stop.as_ref().map(|stop| finish_reason(stop, has_calls));
        let logprobs = style.logprobs.then(|| {
            let tokens = choice.tokens.iter().map(|token| logprobs::of_chat(running.model(), token));
            json!({ "content": tokens.collect::<Vec<_>>(), "refusal": null })
        });
        json!({ "index": index, "message": message(choice), "logprobs": logprobs, "finish_reason": reason })
    });
    let counts = collected.usage();
    json!({
        "id": random::id("chatcmpl-"),
        "object": "chat.completion",
        "created": random::now(),
        "model": running.name(),
        "choices": choices.collect::<Vec<_>>(),
        "usage": usage(&counts),
        "timings": counts.timings(),
    })
}

fn message(choice: &Choice) -> Value {
    let has_calls = !choice.calls.is_empty();
    // Content is null beside calls, as clients expect, unless the model said something too.
    let content = Some(&choice.text).filter(|text| !has_calls || !text.is_empty());
    let mut message = json!({ "role": "assistant", "content": content });
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = choice.reasoning.as_str().into();
    }
    if has_calls {
        message["tool_calls"] = choice.calls.iter().map(tool_call).collect();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: Value) -> String {
        parse(body.to_string().as_bytes()).unwrap_err().param.unwrap_or_default()
    }

    #[test]
    fn response_formats_lose_no_schema() {
        let with = |format: Value| {
            let messages = json!([{ "role": "user", "content": "hi" }]);
            json!({ "messages": messages, "response_format": format })
        };
        let schema = json!({ "type": "object" });
        for (format, field) in [
            (json!({ "type": "json_object", "json_schema": { "schema": schema } }), "json_schema"),
            (json!({ "type": "json_object", "shema": schema }), "shema"),
            (json!({ "type": "text", "schema": schema }), "schema"),
            (
                json!({ "type": "json_schema", "json_schema": { "schema": schema }, "schema": schema }),
                "schema",
            ),
            (
                json!({ "type": "json_schema", "json_schema": { "schema": schema, "stict": true } }),
                "json_schema.stict",
            ),
            (json!({ "type": "json_schema", "json_schema": { "shema": schema } }), "json_schema.schema"),
            (json!({ "type": "json_schema" }), "schema"),
            (json!({ "type": "regex", "pattern": "a", "flags": "i" }), "flags"),
            (json!({ "type": "grammar", "grammar": "root ::= \"a\"", "syntax": "lark" }), "syntax"),
        ] {
            assert_eq!(refused(with(format)), format!("response_format.{field}"));
        }
        let named = json!({ "name": "a", "description": "b", "strict": true, "schema": schema });
        for format in [
            json!({ "type": "json_schema", "json_schema": named }),
            json!({ "type": "json_schema", "name": "a", "strict": false, "schema": schema }),
            json!({ "type": "json_object", "schema": schema }),
            json!({ "type": "json_object" }),
            json!({ "type": "text" }),
        ] {
            let is_text = format["type"] == "text";
            let (wanted, _) = parse(with(format).to_string().as_bytes()).unwrap();
            assert_eq!(wanted.constraint.is_none(), is_text);
        }
    }

    #[test]
    fn fields_are_refused_by_name() {
        let with = |field: &str, value: Value| {
            let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
            body[field] = value;
            body
        };
        for (field, value) in [
            ("logit_bias", json!({ "a": -100 })),
            ("functions", json!([{}])),
            ("modalities", json!(["text", "audio"])),
            ("n", json!(0)),
            ("n", json!(1000)),
            ("top_logprobs", json!(3)),
            ("temperature", json!("hot")),
            ("stop", json!([1])),
            ("timeout", json!(0)),
            ("temprature", json!(1)),
            ("tool_choice", json!("required")),
            ("tools", json!([{ "type": "function" }])),
            ("stream_options", json!([])),
            ("verbosity", json!("low")),
            ("add_generation_prompt", json!(false)),
        ] {
            assert_eq!(refused(with(field, value)), field);
        }
        assert_eq!(refused(with("response_format", json!({ "type": "xml" }))), "response_format.type");
        assert_eq!(refused(with("stream_options", json!({ "x": 1 }))), "stream_options.x");
        assert_eq!(refused(json!({})), "messages");
        assert_eq!(refused(json!({ "messages": [] })), "messages");
        for (field, value) in [
            ("user", json!("somebody")),
            ("verbosity", json!("medium")),
            ("verbosity", Value::Null),
            ("add_generation_prompt", json!(true)),
        ] {
            assert!(parse(with(field, value).to_string().as_bytes()).is_ok(), "{field}");
        }
    }
}
