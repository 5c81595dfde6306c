//! Chat templates: render a conversation to the prompt format that a model was trained on.
//!
//! A chat template is a Jinja program for the environment of transformers: Jinja2 in an immutable sandbox with
//! `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now` and a `tojson` that does not escape
//! HTML. This module implements that environment. Its output equals Python's, byte for byte. It limits the work, depth
//! and output of a template, because a template comes from an untrusted file.
//!
//! [`ChatTemplate`] is a parsed template, [`Conversation`] its main input, [`Inputs`] all its inputs, and [`fallback`]
//! the template for a model without one.
//!
//! ```
//! use gyrus_text::template::{ChatTemplate, Conversation, Inputs};
//!
//! let template = ChatTemplate::new(
//!     "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}\n{% endfor %}",
//! )?;
//! let conversation = Conversation::from_json(r#"[{"role": "user", "content": " Hello "}]"#)?;
//! assert_eq!(template.render(&Inputs::new(&conversation))?, "<user>Hello\n");
//! # Ok::<(), gyrus_text::template::TemplateError>(())
//! ```

mod ast;
mod budget;
mod call;
mod checks;
mod clock;
mod conversation;
mod dict;
mod error;
mod eval;
mod fallback;
mod filters;
mod format;
mod interp;
mod json;
mod lexer;
mod methods;
mod ops;
mod parse_expr;
mod parser;
mod print;
mod python;
mod rendered;
mod sequences;
mod string_methods;
mod text;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value as Json};

pub use budget::Limits;
pub use clock::DateTime;
pub use conversation::Conversation;
pub use error::{Limit, Position, TemplateError};
pub use fallback::{Fallback, fallback};
pub use rendered::{Rendered, Source};

use error::{Fault, Outcome};
use text::{Origin, Text};
use value::Value;

/// Real templates have tens of kilobytes.
const MAX_SOURCE: usize = 4 << 20;

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    /// The source with normalised line ends; positions refer to it.
    source: String,
    body: Vec<ast::Stmt>,
    limits: Limits,
}

/// All inputs of a template.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inputs<'c> {
    /// Messages, tools and documents.
    pub conversation: &'c Conversation,
    /// Whether to append the start of an assistant message.
    pub add_generation_prompt: bool,
    /// Special tokens by their variable names, such as `bos_token`.
    pub special_tokens: BTreeMap<String, String>,
    /// More variables, such as `enable_thinking`. They take precedence over special tokens.
    pub variables: Map<String, Json>,
    /// The time for `strftime_now`; the default is the current time in UTC. Without a clock, calling it is an error.
    pub now: Option<DateTime>,
}

impl<'c> Inputs<'c> {
    /// A conversation without other inputs.
    pub fn new(conversation: &'c Conversation) -> Inputs<'c> {
        Inputs {
            conversation,
            add_generation_prompt: false,
            special_tokens: BTreeMap::new(),
            variables: Map::new(),
            now: None,
        }
    }
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with line and column, or [`TemplateError::Limit`] if the template
    /// nests too deeply or is larger than 4 MiB.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(Fault::limit(Limit::Source, MAX_SOURCE as u64).locate(""));
        }
        let source = lexer::normalise(source);
        match lexer::tokens(&source).and_then(parser::parse) {
            Ok(body) => Ok(ChatTemplate { source, body, limits: Limits::default() }),
            Err(fault) => Err(fault.locate(&source)),
        }
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> ChatTemplate {
        self.limits = limits;
        self
    }

    /// Renders the conversation.
    ///
    /// A message's reasoning is visible as `reasoning_content` and `thinking`, whether the message has
    /// `reasoning_content`, `thinking` or `reasoning`.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] if the template rejects the conversation, [`TemplateError::Render`] if one of
    /// its operations fails, [`TemplateError::Limit`] if it exceeds a limit; each with line and column.
    /// [`TemplateError::Conversation`] if an input nests too deeply.
    pub fn render(&self, inputs: &Inputs<'_>) -> Result<String, TemplateError> {
        Ok(self.render_parts(inputs)?.text().to_owned())
    }

    /// As [`render`](ChatTemplate::render), with the source of each part of the text.
    ///
    /// The template's text is its literals, the special tokens, and the usual role names, from which some templates
    /// build control tokens (`<|user|>`). All other inputs are data, keys and values alike. Numbers have no source:
    /// they count as the template's text.
    ///
    /// # Errors
    /// As [`render`](ChatTemplate::render).
    pub fn render_parts(&self, inputs: &Inputs<'_>) -> Result<Rendered, TemplateError> {
        let globals = globals(inputs)?;
        let now = inputs.now.or_else(DateTime::now_utc);
        let text = interp::Interp::new(self.limits, now, globals)
            .render(&self.body)
            .map_err(|fault| fault.locate(&self.source))?;
        let length = |message: &Json| message.get("content").and_then(Json::as_str).map(str::len);
        Ok(Rendered::new(text, inputs.conversation.messages().iter().map(length).collect()))
    }
}

/// The roles in published templates. The program chooses a role, not a participant, and none of these words is or
/// contains a control token.
const ROLES: &[&str] = &[
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "environment",
    "observation",
    "model",
];

fn globals(inputs: &Inputs<'_>) -> Result<HashMap<Arc<str>, Value>, TemplateError> {
    let mut globals: HashMap<Arc<str>, Value> = HashMap::new();
    for (name, token) in &inputs.special_tokens {
        globals.insert(name.as_str().into(), Value::literal(token.as_str()));
    }
    for (name, json) in &inputs.variables {
        globals.insert(name.as_str().into(), plain(json, name)?);
    }
    let conversation = inputs.conversation;
    let messages = conversation.messages().iter().enumerate();
    let messages = messages.map(|(i, json)| message(&conversation::with_reasoning(json), i));
    let list = |items: &Option<Vec<Json>>, path: &str| match items {
        Some(items) => plain_list(items.iter().map(|item| convert(item, 1)), path),
        None => Ok(Value::None),
    };
    globals.insert("messages".into(), plain_list(messages, "messages")?);
    globals.insert("tools".into(), list(&conversation.tools, "tools")?);
    globals.insert("documents".into(), list(&conversation.documents, "documents")?);
    globals.insert("add_generation_prompt".into(), Value::Bool(inputs.add_generation_prompt));
    Ok(globals)
}

fn plain_list(items: impl Iterator<Item = Outcome<Value>>, path: &str) -> Result<Value, TemplateError> {
    items.collect::<Outcome<_>>().and_then(Value::list).map_err(|_| too_deep(path))
}

/// A message whose role, if it is a usual one, counts as the template's text, and whose content is marked as content.
fn message(json: &Json, index: usize) -> Outcome<Value> {
    let Json::Object(fields) = json else { return convert(json, 1) };
    let mut dict = dict::Dict::new([])?;
    for (key, value) in fields {
        let value = match (key.as_str(), value) {
            ("role", Json::String(role)) if ROLES.contains(&role.as_str()) => Value::literal(role.as_str()),
            ("content", Json::String(text)) => match u32::try_from(index) {
                Ok(message) => Value::Str(Text::new(text.as_str(), Origin::Content { message, start: 0 })),
                Err(_) => convert(value, 2)?,
            },
            _ => convert(value, 2)?,
        };
        dict.insert(data(key), value)?;
    }
    Ok(Value::Dict(dict.into()))
}

fn data(text: &str) -> Value {
    Value::Str(Text::new(text, Origin::Data))
}

fn plain(json: &Json, path: &str) -> Result<Value, TemplateError> {
    convert(json, 0).map_err(|_| too_deep(path))
}

fn too_deep(path: &str) -> TemplateError {
    let message = format!("nests deeper than {} levels", value::MAX_VALUE_DEPTH);
    TemplateError::Conversation { path: path.into(), message }
}

fn convert(json: &Json, level: u16) -> Outcome<Value> {
    if level > value::MAX_VALUE_DEPTH {
        return Err(Fault::limit(Limit::Depth, u64::from(value::MAX_VALUE_DEPTH)));
    }
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::Int(int.into()),
            (_, Some(int)) => Value::Int(int.into()),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => data(text),
        Json::Array(items) => {
            Value::list(items.iter().map(|item| convert(item, level + 1)).collect::<Outcome<_>>()?)?
        }
        Json::Object(entries) => {
            let mut dict = dict::Dict::new([])?;
            for (key, value) in entries {
                dict.insert(data(key), convert(value, level + 1)?)?;
            }
            Value::Dict(dict.into())
        }
    })
}
