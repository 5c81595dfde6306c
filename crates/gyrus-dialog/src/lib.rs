//! Content, reasoning and tool calls in a model's output.
//!
//! A [`Format`] is how a family of models writes reasoning and tool calls; [`Format::detect`] finds it from the text of a
//! chat template. A [`Parser`] splits the output into [`Event`]s as it streams. The events do not depend on how the text
//! was cut into chunks. A call that cannot be read comes out as text with a reason.
//!
//! [`grammar`] gives the constraint that a `tool_choice` asks for, and [`tool_prompt`] the instructions for models whose
//! template knows no tools. The crate knows nothing of templates' syntax, tokens, models or HTTP.
//!
//! ```
//! use gyrus_dialog::{Event, Format, Parser, Tools};
//!
//! let tools = Tools::from_json(r#"[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}]"#)?;
//! let mut parser = Parser::new(Format::detect("… <tool_call> …"), Some(tools), false);
//! let mut events = parser.push("Let me see. <tool_c");
//! events.extend(parser.push("all>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
//! events.extend(parser.finish());
//! assert_eq!(events[0], Event::Content("Let me see.".into()));
//! let Event::Call(call) = &events[1] else { panic!() };
//! assert_eq!((call.name.as_str(), call.arguments.as_str()), ("add", r#"{"a": 1}"#));
//! # Ok::<(), gyrus_dialog::Error>(())
//! ```

#![forbid(unsafe_code)]

mod call;
mod choice;
mod error;
mod event;
mod format;
mod formats;
mod json;
mod marked;
mod parser;
mod prompt;
mod scan;
mod tools;

pub use choice::{ToolChoice, grammar};
pub use error::Error;
pub use event::{Call, Event};
pub use format::Format;
pub use parser::Parser;
pub use prompt::{knows_tools, tool_prompt};
pub use tools::{Tool, Tools};
