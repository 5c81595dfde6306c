//! `/v1/responses`: text, tools, and events while they come. Nothing is stored.

use axum::response::Response;
use serde_json::{Map, Value, json};

use super::response_stream::ResponseStream;
use super::{set_format, take_limit, take_tools, take_verbosity};
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::messages::{messages, text_of};
use crate::routes::Call;
use crate::running::start;
use crate::stream::{collect, respond};
use crate::wanted::{Wanted, WantedPrompt};

/// Fields that would change the answer.
const REFUSED: &[&str] =
    &["previous_response_id", "conversation", "background", "prompt", "top_logprobs", "max_tool_calls"];

/// Fields that change nothing about it.
const IGNORED: &[&str] =
    &["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "stream_options"];

/// Fields of the request that its response repeats, and what stands there if they are absent. `null` stands for what the model
/// or the server decides.
fn echo(fields: &Fields) -> Map<String, Value> {
    let repeated = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("parallel_tool_calls", true.into()),
        ("temperature", Value::Null),
        ("top_p", Value::Null),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("text", json!({ "format": { "type": "text" } })),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("truncation", "disabled".into()),
        ("metadata", json!({})),
    ];
    let value = |name: &str| fields.peek(name).filter(|value| !value.is_null()).cloned();
    repeated.into_iter().map(|(name, absent)| (name.to_owned(), value(name).unwrap_or(absent))).collect()
}

/// The request of a body, whether it streams, and the fields that its response repeats.
pub(crate) fn parse(body: &[u8]) -> Result<(Wanted, bool, Map<String, Value>), Failure> {
    let mut fields = Fields::parse(body)?;
    let echo = echo(&fields);
    let model = fields.string("model")?.unwrap_or_default();
    let instructions = fields.string("instructions")?;
    let mut list = Vec::new();
    if let Some(text) = &instructions {
        list.push(json!({ "role": "system", "content": text }));
    }
    match fields.require("input")? {
        Value::String(text) => list.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for (at, item) in items.into_iter().enumerate() {
                list.extend(message(item, &format!("input[{at}]"))?);
            }
        }
        _ => return Err(fields.wrong("input", "it must be a string or a list of items")),
    }
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(messages(list, "input")?));
    let stream = fields.boolean("stream")?.unwrap_or(false);
    wanted.take_common(&mut fields)?;
    wanted.max_tokens = take_limit(&mut fields, "max_output_tokens")?;
    if let Some(mut text) = fields.object("text")? {
        if let Some(format) = text.object("format")? {
            set_format(&mut wanted, format, "text.format")?;
        }
        take_verbosity(&mut text)?;
        text.finish()?;
    }
    check_tools(&fields)?;
    take_tools(&mut wanted, &mut fields)?;
    if let Some(mut reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.string("effort")? {
            match effort.as_str() {
                "none" => wanted.reasoning = Some(false),
                _ => drop(wanted.variables.insert("reasoning_effort".to_owned(), Value::from(effort))),
            }
        }
        reasoning.ignore(&["summary", "generate_summary"]);
        reasoning.finish()?;
    }
    if fields.string("truncation")?.is_some_and(|how| how != "disabled") {
        return Err(fields
            .wrong("truncation", "only \"disabled\" is supported")
            .with_code("unsupported_parameter"));
    }
    if let Some(include) = fields.strings("include", 16)?
        && include.iter().any(|part| part != "reasoning.encrypted_content")
    {
        return Err(fields.wrong("include", "there is nothing more to include"));
    }
    fields.refuse(REFUSED)?;
    fields.ignore(IGNORED);
    fields.finish()?;
    Ok((wanted, stream, echo))
}

/// Tools other than functions are run by a server that has them.
fn check_tools(fields: &Fields) -> Result<(), Failure> {
    let tools = fields.peek("tools").and_then(Value::as_array);
    for (at, tool) in tools.into_iter().flatten().enumerate() {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            let shown: String = kind.chars().take(40).collect();
            return Err(Failure::field(
                format!("tools[{at}].type"),
                format!("there is no built-in tool {shown:?}"),
            ));
        }
    }
    Ok(())
}

/// The message of an input item; none for an item that says nothing to the model.
fn message(item: Value, path: &str) -> Result<Option<Value>, Failure> {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
    let text = |name: &str| {
        let value = item.get(name).and_then(Value::as_str).map(str::to_owned);
        value.ok_or_else(|| Failure::field(format!("{path}.{name}"), "it must be a string"))
    };
    match kind {
        "message" => Ok(Some(json!({ "role": item["role"], "content": item["content"] }))),
        "function_call" => {
            let function = json!({ "name": text("name")?, "arguments": text("arguments")? });
            let call = json!({ "id": text("call_id")?, "type": "function", "function": function });
            Ok(Some(json!({ "role": "assistant", "content": null, "tool_calls": [call] })))
        }
        "function_call_output" => {
            let output = match item.get("output") {
                Some(Value::Array(parts)) => text_of(parts, &format!("{path}.output"))?,
                _ => text("output")?,
            };
            Ok(Some(json!({ "role": "tool", "tool_call_id": text("call_id")?, "content": output })))
        }
        // A model gets its own reasoning in its template's way only, which the item does not have.
        "reasoning" => Ok(None),
        other => {
            let shown: String = other.chars().take(40).collect();
            Err(Failure::field(format!("{path}.type"), format!("items of type {shown:?} are not supported")))
        }
    }
}

/// Answers an input.
pub(crate) async fn create(call: Call) -> Result<Response, Failure> {
    let (wanted, stream, echo) = parse(&call.body)?;
    let mut running = start(&call.state, &call.caller, wanted).await?;
    let mut format = ResponseStream::new(running.name(), echo);
    if stream {
        return Ok(respond(running, format));
    }
    collect(&mut running, &mut format).await?;
    Ok(json_response(&format.response()))
}
