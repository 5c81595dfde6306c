//! The input of a template: messages, tools, documents.

use serde_json::Value as Json;

use super::error::TemplateError;

/// A validated conversation.
///
/// Messages keep all fields and their order, because templates print both.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Conversation {
    messages: Vec<Json>,
    /// The functions the model may call, as JSON schemas.
    pub tools: Option<Vec<Json>>,
    /// Documents that the model may use.
    pub documents: Option<Vec<Json>>,
}

impl Conversation {
    /// Validates messages: objects with a `role`, and a `content` that is a string, null, absent, or a list of parts.
    ///
    /// # Errors
    /// [`TemplateError::Conversation`] naming the message by its index.
    pub fn new(messages: Vec<Json>) -> Result<Conversation, TemplateError> {
        for (i, message) in messages.iter().enumerate() {
            check_message(message, &format!("messages[{i}]"))?;
        }
        Ok(Conversation { messages, tools: None, documents: None })
    }

    /// Parses a conversation: an array of messages, or an object with `messages` and optionally `tools` and
    /// `documents`.
    ///
    /// # Errors
    /// [`TemplateError::Json`] with line and column if the text is not JSON, [`TemplateError::Conversation`]
    /// with the path of the invalid value.
    pub fn from_json(text: &str) -> Result<Conversation, TemplateError> {
        match parse(text)? {
            Json::Array(messages) => Conversation::new(messages),
            Json::Object(mut fields) => {
                let messages = fields.remove("messages");
                let messages = messages.ok_or_else(|| wrong("the top level", "has no \"messages\""))?;
                let Json::Array(messages) = messages else {
                    return Err(wrong("messages", &format!("is {}, expected an array", kind(&messages))));
                };
                let mut conversation = Conversation::new(messages)?;
                conversation.tools = objects(fields.remove("tools"), "tools")?;
                conversation.documents = objects(fields.remove("documents"), "documents")?;
                Ok(conversation)
            }
            other => {
                Err(wrong("the top level", &format!("is {}, expected an array of messages", kind(&other))))
            }
        }
    }

    /// Adds tools from a JSON array of schemas.
    ///
    /// # Errors
    /// As [`from_json`](Conversation::from_json).
    pub fn with_tools_json(mut self, text: &str) -> Result<Conversation, TemplateError> {
        self.tools = objects(Some(parse(text)?), "tools")?;
        Ok(self)
    }

    /// The messages.
    pub fn messages(&self) -> &[Json] {
        &self.messages
    }
}

fn parse(text: &str) -> Result<Json, TemplateError> {
    // Some editors write a byte order mark at the start of a file.
    serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|error| TemplateError::Json {
        line: error.line(),
        column: error.column(),
        message: error.to_string().split(" at line ").next().unwrap_or_default().to_string(),
    })
}

fn wrong(path: &str, message: &str) -> TemplateError {
    TemplateError::Conversation { path: path.into(), message: message.into() }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn objects(value: Option<Json>, path: &str) -> Result<Option<Vec<Json>>, TemplateError> {
    match value {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(items)) => match items.iter().position(|item| !item.is_object()) {
            Some(i) => {
                Err(wrong(&format!("{path}[{i}]"), &format!("is {}, expected an object", kind(&items[i]))))
            }
            None => Ok(Some(items)),
        },
        Some(other) => Err(wrong(path, &format!("is {}, expected an array", kind(&other)))),
    }
}

fn check_message(message: &Json, path: &str) -> Result<(), TemplateError> {
    let Json::Object(fields) = message else {
        return Err(wrong(path, &format!("is {}, expected an object", kind(message))));
    };
    match fields.get("role") {
        Some(Json::String(_)) => {}
        Some(other) => {
            return Err(wrong(&format!("{path}.role"), &format!("is {}, expected a string", kind(other))));
        }
        None => return Err(wrong(path, "has no \"role\"")),
    }
    match fields.get("content") {
        None | Some(Json::Null | Json::String(_)) => Ok(()),
        Some(Json::Array(parts)) => {
            match parts.iter().position(|part| !part.is_object() && !part.is_string()) {
                Some(i) => Err(wrong(
                    &format!("{path}.content[{i}]"),
                    &format!("is {}, expected an object or a string", kind(&parts[i])),
                )),
                None => Ok(()),
            }
        }
        Some(other) => Err(wrong(
            &format!("{path}.content"),
            &format!("is {}, expected a string, null, or an array of parts", kind(other)),
        )),
    }
}

/// The message with its reasoning under both names that templates use: `reasoning_content` and, in older ones,
/// `thinking`.
pub(super) fn with_reasoning(message: &Json) -> Json {
    let Json::Object(fields) = message else { return message.clone() };
    let given = ["reasoning_content", "thinking", "reasoning"]
        .into_iter()
        .find_map(|name| fields.get(name).filter(|value| !value.is_null()));
    let Some(reasoning) = given.cloned() else { return message.clone() };
    let mut named = serde_json::Map::new();
    named.insert("thinking".into(), reasoning.clone());
    for (name, value) in fields {
        named.insert(name.clone(), value.clone());
    }
    named.insert("reasoning_content".into(), reasoning);
    Json::Object(named)
}
