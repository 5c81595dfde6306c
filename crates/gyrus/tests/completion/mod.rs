//! A request that runs to its end.

use gyrus::tools::{Call, Tools};
use gyrus::{Error, Event, Model, Request, StopReason};

/// What a choice has given.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Completion {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) reason: Option<StopReason>,
}

/// Runs a request in a session of its own, and returns its choices.
pub(crate) fn run(model: &Model, request: Request) -> Result<Vec<Completion>, Error> {
    let mut session = model.session();
    let mut generation = session.generate(request)?;
    let mut all: Vec<Completion> = Vec::new();
    while let Some(event) = generation.next()? {
        let (Event::PrefillProgress { choice, .. }
        | Event::Prompt { choice, .. }
        | Event::Token { choice, .. }
        | Event::Text { choice, .. }
        | Event::Reasoning { choice, .. }
        | Event::ToolCall { choice, .. }
        | Event::Stop { choice, .. }) = event
        else {
            continue;
        };
        all.resize(all.len().max(choice + 1), Completion::default());
        let one = &mut all[choice];
        match event {
            Event::Token { id, .. } => one.ids.push(id),
            Event::Text { text, .. } => one.text.push_str(text),
            Event::Reasoning { text, .. } => one.reasoning.push_str(text),
            Event::ToolCall { call, .. } => one.calls.push(call.clone()),
            Event::Stop { reason, .. } => one.reason = Some(reason),
            _ => {}
        }
    }
    Ok(all)
}

pub(crate) fn tools() -> Tools {
    let text = r#"[{"type":"function","function":{"name":"weather","description":"The weather in a city.","parameters":
        {"type":"object","properties":{"city":{"type":"string","maxLength":10},"days":{"type":"integer","minimum":1,
        "maximum":9}},"required":["city","days"],"additionalProperties":false}}}]"#;
    Tools::from_json(text).unwrap()
}
