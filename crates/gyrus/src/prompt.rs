//! From a request's prompt to tokens.

use gyrus_dialog::{Format, ToolChoice, Tools, knows_tools, tool_prompt};
use gyrus_text::Special;
use gyrus_text::template::Conversation;
use serde_json::{Map, Value};

use crate::Error;
use crate::message::Message;
use crate::model::Model;
use crate::request::{Prompt, Request};

/// The tokens of a prompt, and how the output is to be read.
#[derive(Debug)]
pub(crate) struct PreparedPrompt {
    pub(crate) ids: Vec<u32>,
    /// Whether they replace the session's tokens.
    pub(crate) is_whole: bool,
    pub(crate) dialog: Option<Dialog>,
}

/// How the answer to messages is written.
#[derive(Debug, Clone)]
pub(crate) struct Dialog {
    pub(crate) format: Format,
    pub(crate) tools: Option<Tools>,
    /// Whether the answer begins inside the reasoning.
    pub(crate) in_reasoning: bool,
    /// Whether reasoning comes first, so that a constraint begins behind it.
    pub(crate) reasons: bool,
    /// The header of the answer's text, if the prompt ends with it.
    pub(crate) header: Option<String>,
}

/// Variables by which chat templates switch reasoning on and off.
const REASONING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];

/// The variable of chat templates that says how much to reason.
const EFFORT_VARIABLE: &str = "reasoning_effort";

impl PreparedPrompt {
    /// `is_start`: no tokens come before the prompt.
    pub(crate) fn new(model: &Model, request: &Request, is_start: bool) -> Result<PreparedPrompt, Error> {
        let tokenizer = || model.tokenizer().ok_or(Error::NoTokenizer);
        let is_dialog = matches!(request.prompt, Prompt::Messages(_));
        if !is_dialog && request.tools.is_some() {
            return Err(Error::Request("tools need a prompt of messages".into()));
        }
        let (ids, dialog) = match &request.prompt {
            Prompt::Continue => (Vec::new(), None),
            Prompt::Ids(ids) | Prompt::Whole(ids) => (ids.clone(), None),
            // The BOS token belongs at the start of a sequence only.
            Prompt::Text(text) => (tokenizer()?.encode(text, Special::Literal, is_start), None),
            Prompt::Messages(messages) => {
                let (ids, dialog) = render(model, request, messages)?;
                (ids, Some(dialog))
            }
        };
        let is_whole = is_dialog || matches!(request.prompt, Prompt::Whole(_));
        Ok(PreparedPrompt { ids, is_whole, dialog })
    }
}

/// Applies the chat template.
fn render(model: &Model, request: &Request, messages: &[Message]) -> Result<(Vec<u32>, Dialog), Error> {
    let tokenizer = model.tokenizer().ok_or(Error::NoTokenizer)?;
    let chat = model.chat_format()?;
    let tools = request.tools.clone().filter(|_| request.tool_choice != ToolChoice::None);
    let is_known = knows_tools(chat.source());
    let detected = Format::detect(chat.source());
    // A model that was told of its tools in the system message calls them as it was told.
    let format = if tools.is_some() && !is_known { Format::Generic } else { detected };
    let mut messages: Vec<Message> = messages.to_vec();
    if let (Some(tools), false) = (&tools, is_known) {
        add_to_system(&mut messages, &tool_prompt(tools));
    }
    let mut conversation = Conversation::new(messages.iter().map(|message| message.json.clone()).collect())?;
    conversation.tools = tools.as_ref().filter(|_| is_known).map(Tools::to_json);
    let mut variables = Map::new();
    if let Some(reasons) = request.reasoning {
        variables.extend(REASONING_VARIABLES.map(|name| (name.to_owned(), Value::from(reasons))));
    }
    variables.extend(request.variables.clone());
    let (mut ids, text) = chat.prompt(&conversation, tokenizer, true, &variables, |message| {
        messages.get(message).and_then(|message| message.ids.as_deref())
    })?;
    let mut in_reasoning = format.begins_in_reasoning(&text);
    if in_reasoning && request.reasoning == Some(false) {
        // The template always begins with reasoning: it is ended at once.
        let before = if text.ends_with('\n') { "\n" } else { "\n\n" };
        let end = format!("{before}{}\n\n", format.reasoning_end());
        tokenizer.encode_into(&end, Special::Parse, false, &mut ids);
        in_reasoning = false;
    }
    let knows_reasoning = chat.source().contains(format.reasoning_end());
    let asked = match request.reasoning {
        Some(reasons) => reasons,
        None => {
            let effort = request.variables.get(EFFORT_VARIABLE);
            effort.is_some_and(|effort| effort != "none") && chat.source().contains(EFFORT_VARIABLE)
        }
    };
    let reasons = in_reasoning || (asked && knows_reasoning);
    let mut header = format.answer_header().map(|(begin, end)| format!("{begin}{end}"));
    if let Some(text_of_header) = header.as_deref().filter(|header| !text.trim_end().ends_with(header)) {
        // A constraint that begins at once would forbid the header, so it is a part of the prompt.
        if request.constraint.is_some() && request.constraint_after.is_none() && !reasons {
            tokenizer.encode_into(text_of_header, Special::Parse, false, &mut ids);
        } else {
            header = None;
        }
    }
    Ok((ids, Dialog { format, tools, in_reasoning, reasons, header }))
}

/// Appends a section to the system message, which is added if there is none.
fn add_to_system(messages: &mut Vec<Message>, section: &str) {
    match messages.first_mut().filter(|first| first.role() == "system") {
        Some(Message { json, .. }) if json["content"].is_string() => {
            let content = json["content"].as_str().unwrap_or_default();
            json["content"] = Value::from(format!("{content}\n\n{section}"));
        }
        _ => messages.insert(0, Message::system(section)),
    }
}
