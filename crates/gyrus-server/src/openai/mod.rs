//! OpenAI's API.

pub(crate) mod audio;
pub(crate) mod chat;
mod chunk;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod events;
pub(crate) mod logprobs;
pub(crate) mod models;
mod response_stream;
pub(crate) mod responses;

use gyrus::StopReason;
use gyrus::constrain::Source;
use gyrus::tools::{Call as ToolCall, ToolChoice, Tools};
use serde_json::{Value, json};

use crate::collected::Counts;
use crate::failure::Failure;
use crate::fields::Fields;
use crate::random;
use crate::wanted::Wanted;

/// Fields that change nothing about an answer.
const IGNORED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Text that the answer may repeat: it would only make it faster. Requests of `/v1/responses` have no such field.
const PREDICTION: &[&str] = &["prediction"];

/// Takes `verbosity`. No template knows it, so that only the default can be had.
fn take_verbosity(fields: &mut Fields) -> Result<(), Failure> {
    match fields.string("verbosity")?.as_deref() {
        None | Some("medium") => Ok(()),
        Some(_) => {
            let message = "only \"medium\" is supported, and the answer would depend on it";
            Err(fields.wrong("verbosity", message).with_code("unsupported_parameter"))
        }
    }
}

/// Takes a limit of tokens. Some clients write -1 for none.
fn take_limit(fields: &mut Fields, name: &str) -> Result<Option<usize>, Failure> {
    let limit = fields.integer(name, -1, i64::from(u32::MAX))?;
    Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
}

/// Takes `n`, the number of choices.
fn take_choices(fields: &mut Fields) -> Result<usize, Failure> {
    Ok(fields.integer("n", 1, 128)?.unwrap_or(1) as usize)
}

/// Takes `stream` and `stream_options`: whether to stream, and whether the usage comes at the end.
fn take_stream(fields: &mut Fields) -> Result<(bool, bool), Failure> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        include_usage = options.boolean("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    Ok((stream, include_usage))
}

/// Fields of a response format that change nothing about an answer: every constraint is strict.
const DESCRIPTIONS: &[&str] = &["name", "description", "strict"];

/// Sets the constraint of a response format, that of a chat or that of a response.
fn set_format(wanted: &mut Wanted, mut format: Fields, path: &str) -> Result<(), Failure> {
    let kind = format.string("type")?.unwrap_or_default();
    format.ignore(DESCRIPTIONS);
    let source = match kind.as_str() {
        "text" => None,
        "json_object" => Some(match format.take("schema") {
            Some(schema) => Source::Schema(schema.to_string()),
            None => Source::JsonObject,
        }),
        "json_schema" => {
            // A chat wraps the schema, a response does not.
            let schema = match format.object("json_schema")? {
                Some(mut inner) => {
                    let schema = inner.require("schema")?;
                    inner.ignore(DESCRIPTIONS);
                    inner.finish()?;
                    schema
                }
                None => format.require("schema")?,
            };
            Some(Source::Schema(schema.to_string()))
        }
        "regex" => Some(Source::Regex(required_string(&mut format, "pattern")?)),
        "grammar" => Some(Source::Gbnf(required_string(&mut format, "grammar")?)),
        _ => return Err(format.wrong("type", "it must be text, json_object, json_schema, regex or grammar")),
    };
    // A schema in a field of another name would be lost, and the answer be any.
    format.finish()?;
    source.map_or(Ok(()), |source| wanted.constrain(source, path))
}

fn required_string(fields: &mut Fields, name: &str) -> Result<String, Failure> {
    fields.string(name)?.ok_or_else(|| fields.wrong(name, "it is missing"))
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
fn take_tools(wanted: &mut Wanted, fields: &mut Fields) -> Result<(), Failure> {
    if let Some(tools) = fields.take("tools") {
        wanted.tools =
            Some(Tools::from_value(&tools).map_err(|error| Failure::field("tools", error.to_string()))?);
    }
    if let Some(choice) = fields.take("tool_choice") {
        wanted.tool_choice = tool_choice(&choice).ok_or_else(|| {
            fields.wrong("tool_choice", "it must be none, auto, required, or name a function")
        })?;
        let needs = matches!(wanted.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if needs && wanted.tools.as_ref().is_none_or(Tools::is_empty) {
            return Err(fields.wrong("tool_choice", "there are no tools to choose from"));
        }
    }
    wanted.parallel_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(())
}

fn tool_choice(choice: &Value) -> Option<ToolChoice> {
    match choice {
        Value::String(word) => match word.as_str() {
            "none" => Some(ToolChoice::None),
            "auto" => Some(ToolChoice::Auto),
            "required" | "any" => Some(ToolChoice::Required),
            _ => None,
        },
        Value::Object(map) => {
            let named =
                map.get("function").and_then(|function| function.get("name")).or_else(|| map.get("name"));
            named.and_then(Value::as_str).map(|name| ToolChoice::Named(name.to_owned()))
        }
        _ => None,
    }
}

/// Why an answer ended.
pub(crate) fn finish_reason(reason: &StopReason, has_calls: bool) -> &'static str {
    match reason {
        StopReason::MaxTokens | StopReason::ContextFull => "length",
        _ if has_calls => "tool_calls",
        _ => "stop",
    }
}

/// The usage of a chat or a completion.
pub(crate) fn usage(counts: &Counts) -> Value {
    json!({
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
        "prompt_tokens_details": { "cached_tokens": counts.cached },
        "completion_tokens_details": { "reasoning_tokens": counts.reasoning },
    })
}

/// A tool call as a chat has it.
pub(crate) fn tool_call(call: &ToolCall) -> Value {
    let id = call.id.clone().unwrap_or_else(|| random::id("call_"));
    json!({ "id": id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}
