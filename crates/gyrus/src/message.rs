use serde_json::{Value, json};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Role, content, tool calls: as chat templates take them.
    pub json: Value,
    /// The tokens of the content, if the model generated them. They replace the encoded text wherever the template
    /// prints the content unchanged, as far as they spell it, so that the next prompt begins with the tokens that are in
    /// the KV cache.
    pub ids: Option<Vec<u32>>,
}

impl Message {
    /// A message of a role.
    pub fn new(role: &str, content: &str) -> Message {
        Message::from(json!({ "role": role, "content": content }))
    }

    /// A message of the user.
    pub fn user(content: &str) -> Message {
        Message::new("user", content)
    }

    /// A system message.
    pub fn system(content: &str) -> Message {
        Message::new("system", content)
    }

    /// An answer of the model.
    pub fn assistant(content: &str, ids: Option<Vec<u32>>) -> Message {
        Message { ids, ..Message::new("assistant", content) }
    }

    pub(crate) fn role(&self) -> &str {
        self.json["role"].as_str().unwrap_or_default()
    }
}

impl From<Value> for Message {
    fn from(json: Value) -> Message {
        Message { json, ids: None }
    }
}
