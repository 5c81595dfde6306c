//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

mod blocks;

use axum::response::Response;
use gyrus::constrain::Source;
use gyrus::tools::{ToolChoice, Tools};
use serde_json::{Value, json};

use self::blocks::MessageStream;
use crate::encoding;
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::messages::{messages, text_of};
use crate::routes::Call;
use crate::running::start;
use crate::stream::{collect, respond};
use crate::wanted::{Wanted, WantedPrompt};

/// Fields that would change the answer.
const REFUSED: &[&str] = &["mcp_servers", "container", "context_management"];

/// Fields that change nothing about it.
const IGNORED: &[&str] =
    &["metadata", "service_tier", "inference_geo", "cache_control", "anthropic_version", "betas"];

/// The request of a body, and whether it streams. `counts`: its tokens are only to be counted.
pub(crate) fn parse(body: &[u8], counts: bool) -> Result<(Wanted, bool), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let mut list = Vec::new();
    match fields.take("system") {
        None => {}
        Some(Value::String(text)) => list.push(json!({ "role": "system", "content": text })),
        Some(Value::Array(parts)) => {
            list.push(json!({ "role": "system", "content": text_of(&parts, "system")? }));
        }
        Some(_) => return Err(fields.wrong("system", "it must be a string or a list of text blocks")),
    }
    let asked = fields.list("messages")?.ok_or_else(|| fields.wrong("messages", "it is missing"))?;
    if asked.is_empty() {
        return Err(fields.wrong("messages", "there are no messages"));
    }
    if asked.last().is_some_and(|last| last["role"] == "assistant") {
        let message = "the last message must be the user's: the start of an answer cannot be given";
        return Err(fields.wrong("messages", message));
    }
    for (at, message) in asked.into_iter().enumerate() {
        translate(message, &format!("messages[{at}]"), &mut list)?;
    }
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(messages(list, "messages")?));
    wanted.take_stops(&mut fields, "stop_sequences")?;
    let stops = std::mem::take(&mut wanted.stop);
    wanted.take_common(&mut fields)?;
    wanted.stop.extend(stops);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    wanted.max_tokens = fields.count("max_tokens")?;
    if wanted.max_tokens.is_none() && !counts {
        return Err(fields.wrong("max_tokens", "it is missing"));
    }
    take_tools(&mut wanted, &mut fields)?;
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.string("type")?.unwrap_or_default();
        wanted.reasoning = match kind.as_str() {
            "enabled" | "adaptive" => Some(true),
            "disabled" => Some(false),
            _ => return Err(thinking.wrong("type", "it must be enabled, adaptive or disabled")),
        };
        // Reasoning is limited by `max_tokens` only.
        thinking.count("budget_tokens")?;
        if thinking.string("display")?.is_some_and(|display| display != "summarized") {
            return Err(thinking
                .wrong("display", "it must be summarized")
                .with_code("unsupported_parameter"));
        }
        thinking.finish()?;
    }
    wanted.take_variables(&mut fields)?;
    take_output(&mut wanted, &mut fields)?;
    fields.refuse(REFUSED)?;
    fields.ignore(IGNORED);
    fields.finish()?;
    Ok((wanted, stream))
}

/// Takes `output_config`, and `output_format`, the older name of its format.
fn take_output(wanted: &mut Wanted, fields: &mut Fields) -> Result<(), Failure> {
    if let Some(mut output) = fields.object("output_config")? {
        if let Some(format) = output.object("format")? {
            set_format(wanted, format)?;
        }
        if let Some(effort) = output.string("effort")? {
            wanted.variables.insert("reasoning_effort".to_owned(), Value::from(effort));
        }
        output.finish()?;
    }
    fields.object("output_format")?.map_or(Ok(()), |format| set_format(wanted, format))
}

/// Constrains the answer to a schema.
fn set_format(wanted: &mut Wanted, mut format: Fields) -> Result<(), Failure> {
    if format.string("type")?.as_deref() != Some("json_schema") {
        return Err(format.wrong("type", "it must be json_schema"));
    }
    let schema = format.require("schema")?;
    let path = format.path("schema");
    format.finish()?;
    wanted.constrain(Source::Schema(schema.to_string()), &path)
}

/// Turns a message with blocks into messages of a chat: results of tools are messages of their own.
fn translate(message: Value, path: &str, list: &mut Vec<Value>) -> Result<(), Failure> {
    let role = message["role"].as_str().unwrap_or_default();
    if !matches!(role, "user" | "assistant") {
        return Err(Failure::field(format!("{path}.role"), "it must be user or assistant"));
    }
    let blocks = match &message["content"] {
        Value::String(text) => {
            list.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => {
            return Err(Failure::field(format!("{path}.content"), "it must be a string or a list of blocks"));
        }
    };
    let (mut texts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for (at, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{at}]");
        match block["type"].as_str().unwrap_or_default() {
            "tool_use" => {
                let function = json!({ "name": block["name"], "arguments": block["input"] });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            "tool_result" => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    Value::Array(parts) => text_of(parts, &format!("{path}.content"))?,
                    _ => {
                        return Err(Failure::field(
                            format!("{path}.content"),
                            "it must be text or a list of blocks",
                        ));
                    }
                };
                // Templates have no field for it, so that the text must say so.
                let content = match &block["is_error"] {
                    Value::Null | Value::Bool(false) => content,
                    Value::Bool(true) => format!("Error: {content}"),
                    _ => return Err(Failure::field(format!("{path}.is_error"), "it must be true or false")),
                };
                list.push(
                    json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }),
                );
            }
            "thinking" => reasoning.push_str(block["thinking"].as_str().unwrap_or_default()),
            "redacted_thinking" => {}
            _ => texts.push(text_of(std::slice::from_ref(block), &path)?),
        }
    }
    if texts.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let mut translated = json!({ "role": role, "content": texts.join("\n") });
    if !calls.is_empty() {
        translated["tool_calls"] = Value::from(calls);
    }
    if !reasoning.is_empty() {
        translated["reasoning_content"] = reasoning.into();
    }
    list.push(translated);
    Ok(())
}

fn take_tools(wanted: &mut Wanted, fields: &mut Fields) -> Result<(), Failure> {
    if let Some(tools) = fields.list("tools")? {
        let mut functions = Vec::new();
        for (at, tool) in tools.into_iter().enumerate() {
            if tool.get("type").is_some_and(|kind| kind != "custom" && !kind.is_null()) {
                return Err(Failure::field(format!("tools[{at}].type"), "there are no built-in tools"));
            }
            functions.push(json!({ "type": "function", "function": { "name": tool["name"],
                "description": tool["description"], "parameters": tool["input_schema"] } }));
        }
        let tools = Tools::from_value(&Value::from(functions));
        wanted.tools = Some(tools.map_err(|error| Failure::field("tools", error.to_string()))?);
    }
    if let Some(mut choice) = fields.object("tool_choice")? {
        let kind = choice.string("type")?.unwrap_or_default();
        wanted.tool_choice = match kind.as_str() {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => {
                let name = choice.string("name")?;
                ToolChoice::Named(name.ok_or_else(|| choice.wrong("name", "it is missing"))?)
            }
            _ => return Err(choice.wrong("type", "it must be auto, any, tool or none")),
        };
        wanted.parallel_calls = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
        choice.finish()?;
        let needs = matches!(wanted.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if needs && wanted.tools.as_ref().is_none_or(Tools::is_empty) {
            return Err(Failure::field("tool_choice", "there are no tools to choose from"));
        }
    }
    Ok(())
}

/// Answers a conversation.
pub(crate) async fn create(call: Call) -> Result<Response, Failure> {
    let (wanted, stream) = parse(&call.body, false)?;
    let mut running = start(&call.state, &call.caller, wanted).await?;
    let mut format = MessageStream::new(running.name());
    if stream {
        return Ok(respond(running, format));
    }
    collect(&mut running, &mut format).await?;
    Ok(json_response(&format.message()))
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(call: Call) -> Result<Response, Failure> {
    let (wanted, _) = parse(&call.body, true)?;
    let tokens = encoding::count(&call, wanted).await?;
    Ok(json_response(&json!({ "input_tokens": tokens })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_answers_are_constraints() {
        let with = |more: Value| {
            let mut body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "hi" }], "inference_geo": "eu" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            parse(body.to_string().as_bytes(), false).map(|(wanted, _)| wanted)
        };
        let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
        for more in [
            json!({ "output_config": { "format": format, "effort": "low" } }),
            json!({ "output_format": format, "output_config": { "effort": "low" } }),
        ] {
            let wanted = with(more).unwrap();
            let Some(Source::Schema(schema)) = wanted.constraint else { panic!("no schema") };
            assert_eq!(schema, "{\"type\":\"object\"}");
            assert_eq!(wanted.variables["reasoning_effort"], "low");
        }
        assert!(with(json!({})).unwrap().constraint.is_none());
        for (more, field) in [
            (
                json!({ "output_config": { "format": format }, "output_format": format }),
                "output_format.schema",
            ),
            (json!({ "output_config": { "format": { "type": "text" } } }), "output_config.format.type"),
            (
                json!({ "output_config": { "format": { "type": "json_schema" } } }),
                "output_config.format.schema",
            ),
            (json!({ "output_config": { "verbosity": "low" } }), "output_config.verbosity"),
            (
                json!({ "output_format": { "type": "json_schema", "schema": {}, "name": "x" } }),
                "output_format.name",
            ),
        ] {
            assert_eq!(with(more).unwrap_err().param.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_tool_that_failed_says_so() {
        let results = |is_error: Value| {
            let block = json!({ "type": "tool_result", "tool_use_id": "1", "content": "no such city",
                "is_error": is_error });
            let mut list = Vec::new();
            translate(json!({ "role": "user", "content": [block] }), "messages[0]", &mut list).map(|()| list)
        };
        assert_eq!(results(json!(true)).unwrap()[0]["content"], "Error: no such city");
        for none in [json!(false), Value::Null] {
            assert_eq!(results(none).unwrap()[0]["content"], "no such city");
        }
        let error = results(json!("yes")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content[0].is_error"));
    }
}
