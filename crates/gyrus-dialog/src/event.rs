//! What a model's output consists of.

/// A part of a model's output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A tool call.
    Call(Call),
    /// The text of a call that cannot be read. It is a part of the answer.
    Malformed {
        /// The text with its markers.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Event {
    /// Joins neighbouring events of text of the same kind: how text is cut does not matter then.
    pub fn joined(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut joined: Vec<Event> = Vec::new();
        for event in events {
            match (joined.last_mut(), event) {
                (Some(Event::Content(all)), Event::Content(text)) => all.push_str(&text),
                (Some(Event::Reasoning(all)), Event::Reasoning(text)) => all.push_str(&text),
                (_, event) => joined.push(event),
            }
        }
        joined
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// A JSON object, as the model wrote it where its format is JSON.
    pub arguments: String,
    /// The id that the model gave the call, in formats that have one.
    pub id: Option<String>,
}
