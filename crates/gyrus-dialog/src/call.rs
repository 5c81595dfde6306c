//! Calls from their JSON.

use serde_json::Value;

use crate::json::{self, members};
use crate::{Call, Tools};

/// A call from an object with a name and arguments, under any of the names that models use for them.
pub(crate) fn from_object(text: &str, tools: &Tools) -> Result<Call, String> {
    json::check(text)?;
    let members = members(text).ok_or("the call is not an object")?;
    let find = |names: &[&str]| {
        members.iter().find(|(key, _)| names.contains(&key.as_str())).map(|(_, value)| *value)
    };
    // `{"type": "function", "function": {…}}`, or a name in place of the object.
    if let Some(inner) = find(&["function"]).filter(|inner| inner.starts_with('{')) {
        return from_object(inner, tools);
    }
    let string = |text: &str| serde_json::from_str::<String>(text).ok();
    let name = find(&["name", "tool_name", "function"]).and_then(string).ok_or("the call has no name")?;
    let id = find(&["id", "tool_call_id"]).and_then(string);
    new(name, find(&["arguments", "parameters", "args"]).unwrap_or("{}"), id, tools)
}

/// A call with arguments that are an object, or a string with an object.
pub(crate) fn new(name: String, arguments: &str, id: Option<String>, tools: &Tools) -> Result<Call, String> {
    if tools.get(&name).is_none() {
        return Err(format!("there is no tool {name:?}"));
    }
    let arguments = arguments.trim();
    json::check(arguments)?;
    let inner = serde_json::from_str::<String>(arguments).ok();
    let arguments =
        inner.unwrap_or_else(|| if arguments == "null" { "{}".into() } else { arguments.to_owned() });
    if !arguments.starts_with('{') {
        return Err("the arguments are not an object".into());
    }
    json::check(&arguments)?;
    Ok(Call { name, arguments, id })
}

/// The JSON of a parameter that a model wrote as plain text: a string if the tool's schema says so, else JSON if it is.
pub(crate) fn parameter(tools: &Tools, tool: &str, name: &str, text: &str) -> Value {
    let schema = tools.get(tool).and_then(|tool| tool.parameters.get("properties")?.get(name));
    let is_string = schema.is_some_and(|schema| schema.get("type") == Some(&Value::from("string")));
    match serde_json::from_str(text) {
        Ok(value) if !is_string => value,
        _ => Value::from(text),
    }
}
