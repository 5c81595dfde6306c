//! `/v1/responses`: text, tools, and events while they come. Nothing is stored.

use axum::response::Response;
use serde_json::{Value, json};

use super::response_stream::ResponseStream;
use super::{IGNORED, set_format, take_limit, take_tools, take_verbosity};
use crate::failure::{Failure, json_bytes, to_json};
use crate::fields::{Fields, aside};
use crate::messages::{message, text_of};
use crate::routes::Call;
use crate::running::start;
use crate::stream::{collect, respond};
use crate::wanted::{Wanted, WantedPrompt};

/// Fields that would change the answer.
const REFUSED: &[&str] = &["previous_response_id", "conversation", "background", "prompt", "max_tool_calls"];

/// What `include` may ask for. Reasoning comes as text, so that nothing of it is encrypted.
const INCLUDED: [&str; 2] = [LOGPROBS, "reasoning.encrypted_content"];
const LOGPROBS: &str = "message.output_text.logprobs";

/// The most pairs of `metadata`, and the most characters of a name and of a value.
const METADATA: (usize, usize, usize) = (16, 64, 512);

/// Checks `metadata`, as OpenAI's API does: every response repeats it.
fn check_metadata(fields: &Fields) -> Result<(), Failure> {
    let (pairs, name, value) = METADATA;
    let map = match fields.peek("metadata") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(fields.wrong("metadata", "it must be an object")),
    };
    if map.len() > pairs {
        return Err(
            fields.wrong("metadata", format!("it has {} pairs, at most {pairs} are allowed", map.len()))
        );
    }
    let is_longer = |text: &str, most: usize| text.chars().nth(most).is_some();
    for (key, text) in map {
        let shown: String = key.chars().take(name).collect();
        let path = format!("metadata.{shown}");
        if is_longer(key, name) {
            return Err(Failure::field(path, format!("a name has at most {name} characters")));
        }
        match text {
            Value::String(text) if is_longer(text, value) => {
                return Err(Failure::field(path, format!("a value has at most {value} characters")));
            }
            Value::String(_) => {}
            _ => return Err(Failure::field(path, "it must be a string")),
        }
    }
    Ok(())
}

/// Fields of the request that its response repeats, and what stands there if they are absent. `null` stands for what the model
/// or the server decides. They are members of a JSON object, written: a stream keeps them to its end, and values take up to a
/// hundred times the memory.
fn echo(fields: &Fields) -> Vec<u8> {
    let repeated = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("parallel_tool_calls", true.into()),
        ("temperature", Value::Null),
        ("top_p", Value::Null),
        ("top_logprobs", 0.into()),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("text", json!({ "format": { "type": "text" } })),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("truncation", "disabled".into()),
        ("metadata", json!({})),
    ];
    let mut members = Vec::new();
    for (name, absent) in &repeated {
        let value = fields.peek(name).filter(|value| !value.is_null()).unwrap_or(absent);
        if !members.is_empty() {
            members.push(b',');
        }
        // The names are plain words.
        members.extend_from_slice(format!("\"{name}\":").as_bytes());
        members.extend(to_json(value));
    }
    members.shrink_to_fit();
    members
}

/// The request of a body, whether it streams, and the members of its response that repeat it.
pub(crate) fn parse(body: &[u8]) -> Result<(Wanted, bool, Vec<u8>), Failure> {
    let mut fields = Fields::parse(body)?;
    check_metadata(&fields)?;
    let echo = aside(body.len(), || echo(&fields));
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
                let path = format!("input[{at}]");
                if let Some(item) = translate(item, &path)? {
                    add(&mut list, message(item, &path)?);
                }
            }
        }
        _ => return Err(fields.wrong("input", "it must be a string or a list of items")),
    }
    if list.is_empty() {
        return Err(fields.wrong("input", "there are no messages"));
    }
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(list));
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
    let include = fields.strings("include", 16)?.unwrap_or_default();
    if include.iter().any(|part| !INCLUDED.contains(&part.as_str())) {
        return Err(fields.wrong("include", format!("it may have {}", INCLUDED.join(" and "))));
    }
    let has_logprobs = include.iter().any(|part| part == LOGPROBS);
    let top = fields.integer("top_logprobs", 0, 20)?.unwrap_or(0);
    if top > 0 && !has_logprobs {
        return Err(fields.wrong("top_logprobs", format!("it needs include: [\"{LOGPROBS}\"]")));
    }
    wanted.logprobs = has_logprobs.then_some(top as usize);
    fields.refuse(REFUSED)?;
    fields.ignore(IGNORED);
    fields.ignore(&["stream_options"]);
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

/// Adds a message. What the assistant said and called in one turn are items of their own, and one message to a model: templates
/// write the end of a turn after each message, and some refuse two of the same role.
fn add(list: &mut Vec<Value>, mut message: Value) {
    let last = list.last_mut().filter(|last| last["role"] == "assistant" && message["role"] == "assistant");
    let Some(last) = last else { return list.push(message) };
    let text = match (last["content"].as_str(), message["content"].as_str()) {
        (Some(first), Some(second)) if !first.is_empty() && !second.is_empty() => {
            format!("{first}\n{second}")
        }
        (first, second) => [first, second].into_iter().flatten().collect(),
    };
    last["content"] = text.into();
    if let Some(Value::Array(mut calls)) = message.get_mut("tool_calls").map(Value::take) {
        match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(all) => all.append(&mut calls),
            None => last["tool_calls"] = calls.into(),
        }
    }
}

/// The message of an input item; none for an item that says nothing to the model.
fn translate(item: Value, path: &str) -> Result<Option<Value>, Failure> {
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
    let has_logprobs = wanted.logprobs.is_some();
    let mut running = start(&call.state, &call.caller, wanted).await?;
    let mut format = ResponseStream::new(running.name(), echo, has_logprobs);
    if stream {
        return Ok(respond(running, format));
    }
    collect(&mut running, &mut format).await?;
    let mut response = Vec::new();
    format.write_response(&mut response);
    Ok(json_bytes(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &Value) -> Result<(Wanted, bool, Vec<u8>), Failure> {
        parse(body.to_string().as_bytes())
    }

    fn messages_of(input: Value) -> Vec<Value> {
        let (wanted, ..) = parsed(&json!({ "input": input })).unwrap();
        let WantedPrompt::Messages(messages) = wanted.prompt else { panic!("no messages") };
        messages
    }

    #[test]
    fn what_is_repeated_takes_the_memory_of_its_text() {
        let mut body = json!({ "input": "a", "instructions": "é\n", "tool_choice": "auto",
            "text": { "format": { "type": "json_schema", "schema": { "enum": vec![0; 100_000] } } } });
        let (_, _, echo) = parsed(&body).unwrap();
        assert!(echo.capacity() < body.to_string().len() + 1000, "{}", echo.capacity());
        let repeated: Value = serde_json::from_slice(&[b"{", &echo[..], b"}"].concat()).unwrap();
        assert_eq!((&repeated["text"], &repeated["instructions"]), (&body["text"], &body["instructions"]));
        assert_eq!((&repeated["tools"], &repeated["metadata"]), (&json!([]), &json!({})));
        let of = |count: usize| (0..count).map(|n| (n.to_string(), "v")).collect::<Value>();
        for (metadata, field) in [
            (json!([0]), "metadata".to_owned()),
            (of(17), "metadata".to_owned()),
            (json!({ "a": 1 }), "metadata.a".to_owned()),
            (json!({ "a": "é".repeat(513) }), "metadata.a".to_owned()),
            (json!({ "é".repeat(65): "b" }), format!("metadata.{}", "é".repeat(64))),
        ] {
            body["metadata"] = metadata;
            assert_eq!(parsed(&body).unwrap_err().param, Some(field));
        }
        for metadata in [of(16), json!({ "é".repeat(64): "é".repeat(512) }), Value::Null] {
            body["metadata"] = metadata;
            parsed(&body).unwrap();
        }
    }

    #[test]
    fn what_the_assistant_says_and_calls_is_one_message() {
        let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{\"x\": 1}" });
        let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "y" });
        let said = json!({ "type": "message", "role": "assistant",
            "content": [{ "type": "output_text", "text": "I look." }] });
        let reasoning = json!({ "type": "reasoning", "summary": [] });
        let input = json!([
            { "role": "user", "content": "Weather?" }, reasoning, said, call("1"), reasoning, call("2"),
            output("1"), output("2"), call("3"), output("3"), said, said, { "role": "user", "content": "And?" },
        ]);
        let found = messages_of(input);
        let roles: Vec<&str> = found.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]);
        let ids = |message: &Value| -> Vec<Value> {
            message["tool_calls"].as_array().unwrap().iter().map(|call| call["id"].clone()).collect()
        };
        assert_eq!((&found[1]["content"], ids(&found[1])), (&json!("I look."), vec![json!("1"), json!("2")]));
        assert_eq!(found[1]["tool_calls"][1]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!((&found[4]["content"], ids(&found[4])), (&json!(""), vec![json!("3")]));
        assert_eq!((&found[6]["content"], found[6].get("tool_calls")), (&json!("I look.\nI look."), None));
    }

    #[test]
    fn errors_name_the_item() {
        let input =
            json!([{ "type": "reasoning" }, { "role": "user", "content": [{ "type": "input_image" }] }]);
        let error = parsed(&json!({ "instructions": "a", "input": input })).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[1].content[0]"));
        assert_eq!(parsed(&json!({ "input": [] })).unwrap_err().param.as_deref(), Some("input"));
        parsed(&json!({ "input": "a", "prompt_cache_retention": "24h", "safety_identifier": "b" })).unwrap();
    }
}
