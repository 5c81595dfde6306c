//! Messages of a conversation: from the forms of OpenAI's API to what chat templates take.

use serde_json::{Value, json};

use crate::failure::Failure;

/// Checks messages and brings them into the form of chat templates: content as text, arguments of calls as objects.
pub(crate) fn messages(list: Vec<Value>, field: &str) -> Result<Vec<Value>, Failure> {
    if list.is_empty() {
        return Err(Failure::field(field, "there are no messages"));
    }
    list.into_iter().enumerate().map(|(at, one)| message(one, &format!("{field}[{at}]"))).collect()
}

/// The same of one message. `path` is where it is in the request.
pub(crate) fn message(mut message: Value, path: &str) -> Result<Value, Failure> {
    let Some(map) = message.as_object_mut() else {
        return Err(Failure::field(path, "a message must be an object"));
    };
    let role = match map.get("role").and_then(Value::as_str) {
        // The newer name of the system's role. Templates know the older one.
        Some("developer") => "system".to_owned(),
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        Some("function") => "tool".to_owned(),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            return Err(Failure::field(format!("{path}.role"), format!("there is no role {shown:?}")));
        }
        None => return Err(Failure::field(format!("{path}.role"), "it is missing")),
    };
    map.insert("role".to_owned(), Value::from(role.as_str()));
    let content = match map.remove("content") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => Some(text_of(&parts, &format!("{path}.content"))?),
        Some(_) => {
            return Err(Failure::field(format!("{path}.content"), "it must be a string or a list of parts"));
        }
    };
    let mut calls = map.remove("tool_calls").filter(|calls| !calls.is_null());
    // The older name of a single call. Templates know the list.
    if let Some(function) = map.remove("function_call").filter(|call| !call.is_null()) {
        let path = format!("{path}.function_call");
        if calls.is_some() {
            return Err(Failure::field(path, "the message has tool_calls already"));
        }
        if !function.is_object() {
            return Err(Failure::field(path, "it must be an object"));
        }
        calls = Some(json!([{ "type": "function", "function": function }]));
    }
    if let Some(calls) = &mut calls {
        let path = format!("{path}.tool_calls");
        let list = calls.as_array_mut().ok_or_else(|| Failure::field(&path, "it must be a list"))?;
        list.iter_mut().enumerate().try_for_each(|(at, one)| call(one, &format!("{path}[{at}]")))?;
    }
    if content.is_none() && (calls.is_none() || role != "assistant") {
        return Err(Failure::field(format!("{path}.content"), "it is missing"));
    }
    map.insert("content".to_owned(), Value::from(content.unwrap_or_default()));
    if let Some(calls) = calls.filter(|calls| calls.as_array().is_some_and(|list| !list.is_empty())) {
        map.insert("tool_calls".to_owned(), calls);
    }
    Ok(message)
}

/// The text of a list of parts. Images and sound are refused by name.
pub(crate) fn text_of(parts: &[Value], path: &str) -> Result<String, Failure> {
    let mut texts = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
        match kind {
            "text" | "input_text" | "output_text" => {
                let text = part.get("text").and_then(Value::as_str);
                texts
                    .push(text.ok_or_else(|| Failure::field(format!("{path}.text"), "it must be a string"))?);
            }
            "refusal" => texts.push(part.get("refusal").and_then(Value::as_str).unwrap_or_default()),
            "image_url" | "input_image" | "image" | "input_audio" | "audio" | "video_url" | "file"
            | "input_file" | "document" => {
                let message = format!("{kind} parts are not supported: the models take text only");
                return Err(Failure::field(path, message).with_code("unsupported_content"));
            }
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(Failure::field(path, format!("there are no parts of type {shown:?}")));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// Templates print the arguments of a call as JSON, so that a string would be quoted twice.
fn call(call: &mut Value, path: &str) -> Result<(), Failure> {
    let function = if call.get("function").is_some() { &mut call["function"] } else { call };
    let Some(function) = function.as_object_mut() else {
        return Err(Failure::field(path, "a tool call must be an object with a function"));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(Failure::field(format!("{path}.function.name"), "it must be a string"));
    }
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Value::Object(object),
            // What a model wrote wrongly stays as it was.
            _ => Value::from(text.as_str()),
        },
        Some(object @ Value::Object(_)) => object.clone(),
        Some(_) => {
            return Err(Failure::field(
                format!("{path}.function.arguments"),
                "it must be a string with JSON",
            ));
        }
    };
    function.insert("arguments".to_owned(), arguments);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_and_arguments_are_objects() {
        let list = json!([
            { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": null, "tool_calls":
                [{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } }] },
        ]);
        let Value::Array(list) = list else { unreachable!() };
        let found = messages(list, "messages").unwrap();
        assert_eq!(found[0], json!({ "role": "system", "content": "a\nb" }));
        assert_eq!(found[1]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!(found[1]["content"], "");
    }

    #[test]
    fn function_calls_are_tool_calls() {
        let old = json!({ "role": "assistant", "content": "I look.",
            "function_call": { "name": "f", "arguments": "{\"x\": 1}" } });
        let found = messages(vec![old.clone()], "m").unwrap();
        let function = json!({ "name": "f", "arguments": { "x": 1 } });
        assert_eq!(found[0]["tool_calls"], json!([{ "type": "function", "function": function }]));
        assert_eq!((found[0].get("function_call"), &found[0]["content"]), (None, &json!("I look.")));
        let mut both = old;
        both["tool_calls"] = json!([{ "function": { "name": "f" } }]);
        let error = messages(vec![both], "m").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("m[0].function_call"));
    }

    #[test]
    fn errors_name_the_place() {
        for (message, place) in [
            (
                json!({ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }),
                "m[0].content[0]",
            ),
            (json!({ "role": "user", "content": [{ "type": "input_audio" }] }), "m[0].content[0]"),
            (json!({ "role": "narrator", "content": "" }), "m[0].role"),
            (json!({ "role": "user" }), "m[0].content"),
            (json!({ "content": "x" }), "m[0].role"),
            (json!("x"), "m[0]"),
            (
                json!({ "role": "assistant", "tool_calls": [{ "function": {} }] }),
                "m[0].tool_calls[0].function.name",
            ),
        ] {
            assert_eq!(messages(vec![message], "m").unwrap_err().param.as_deref(), Some(place));
        }
    }
}
