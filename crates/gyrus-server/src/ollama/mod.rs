//! Ollama's API: `/api/chat` and `/api/generate`; the rest is in the modules.

pub(crate) mod embed;
mod lines;
pub(crate) mod manage;
pub(crate) mod pull;

use axum::response::Response;
use gyrus::constrain::Source;
use gyrus::tools::Tools;
use serde_json::{Value, json};

use self::lines::{Lines, Shape, ended};
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::infill::Infill;
use crate::keep_alive::KeepAlive;
use crate::messages::messages;
use crate::routes::Call;
use crate::running::start;
use crate::stream::{Format, respond};
use crate::wanted::{Wanted, WantedPrompt};

/// Options that say how a model is loaded or computed, which the server decides.
const IGNORED_OPTIONS: &[&str] = &[
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
    "vocab_only",
    "penalize_newline",
    "f16_kv",
];

/// The request of a chat, and whether it streams. `None` if it has no messages: the model is only loaded.
pub(crate) fn parse_chat(body: &[u8]) -> Result<Asked, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.ok_or_else(|| fields.wrong("model", "it is missing"))?;
    let mut list = fields.list("messages")?.unwrap_or_default();
    let is_empty = list.is_empty();
    for (at, message) in list.iter_mut().enumerate() {
        let path = format!("messages[{at}]");
        check_images(message.get("images"), &format!("{path}.images"))?;
        if let Some(map) = message.as_object_mut() {
            map.shift_remove("images");
            if let Some(thinking) = map.shift_remove("thinking").filter(Value::is_string) {
                map.insert("reasoning_content".to_owned(), thinking);
            }
        }
    }
    let list = if is_empty { Vec::new() } else { messages(list, "messages")? };
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(list));
    if let Some(tools) = fields.take("tools") {
        wanted.tools =
            Some(Tools::from_value(&tools).map_err(|error| Failure::field("tools", error.to_string()))?);
    }
    finish(wanted, fields, is_empty, Shape::Chat)
}

/// The request of a generation.
pub(crate) fn parse_generate(body: &[u8]) -> Result<Asked, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.ok_or_else(|| fields.wrong("model", "it is missing"))?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.filter(|text| !text.is_empty());
    let suffix = fields.string("suffix")?.filter(|text| !text.is_empty());
    let is_raw = fields.boolean("raw")?.unwrap_or(false);
    let images = fields.take("images");
    check_images(images.as_ref(), "images")?;
    fields.refuse(&["template", "context"])?;
    let is_empty = prompt.is_empty() && suffix.is_none();
    if system.is_some() && (is_raw || suffix.is_some()) {
        let other = if is_raw { "raw" } else { "suffix" };
        let message = format!("with {other} the prompt is no conversation, in which there is a place for it");
        return Err(fields.wrong("system", message).with_code("unsupported_parameter"));
    }
    let prompt = match (suffix, is_raw) {
        (Some(suffix), _) => WantedPrompt::Infill(Infill { prefix: prompt, suffix, ..Infill::default() }),
        (None, true) => WantedPrompt::Text(prompt),
        (None, false) => {
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            WantedPrompt::Messages(system.into_iter().chain([user]).collect())
        }
    };
    finish(Wanted::new(model, prompt), fields, is_empty, Shape::Generate)
}

/// A request of Ollama's API.
#[derive(Debug)]
pub(crate) struct Asked {
    wanted: Wanted,
    stream: bool,
    /// It asks for nothing but the model to be loaded, or unloaded.
    is_empty: bool,
    shape: Shape,
}

fn finish(mut wanted: Wanted, mut fields: Fields, is_empty: bool, shape: Shape) -> Result<Asked, Failure> {
    let stream = fields.boolean("stream")?.unwrap_or(true);
    match fields.take("format") {
        None => {}
        Some(Value::String(kind)) if kind.is_empty() => {}
        Some(Value::String(kind)) if kind == "json" => wanted.constrain(Source::JsonObject, "format")?,
        Some(schema @ Value::Object(_)) => wanted.constrain(Source::Schema(schema.to_string()), "format")?,
        Some(_) => return Err(fields.wrong("format", "it must be \"json\" or a JSON schema")),
    }
    match fields.take("think") {
        None => {}
        Some(Value::Bool(thinks)) => wanted.reasoning = Some(thinks),
        Some(Value::String(effort)) => {
            wanted.reasoning = Some(true);
            wanted.variables.insert("reasoning_effort".to_owned(), Value::from(effort));
        }
        Some(_) => return Err(fields.wrong("think", "it must be true, false or an effort")),
    }
    if let Some(value) = fields.take("keep_alive") {
        wanted.keep_alive =
            Some(KeepAlive::from_json(&value).map_err(|why| fields.wrong("keep_alive", why))?);
    }
    let keep_alive = wanted.keep_alive;
    if let Some(mut options) = fields.object("options")? {
        wanted.take_common(&mut options)?;
        let limit = options.integer("num_predict", -2, i64::from(u32::MAX))?;
        wanted.max_tokens = limit.and_then(|limit| usize::try_from(limit).ok());
        options.ignore(IGNORED_OPTIONS);
        options.finish()?;
    }
    wanted.keep_alive = keep_alive.or(wanted.keep_alive);
    let with_logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, 20)?.unwrap_or(0);
    if top > 0 && !with_logprobs {
        return Err(fields.wrong("top_logprobs", "it needs logprobs: true"));
    }
    wanted.logprobs = with_logprobs.then_some(top as usize);
    fields.refuse(&["_debug_render_only"])?;
    fields.ignore(&["truncate", "shift"]);
    fields.finish()?;
    Ok(Asked { wanted, stream, is_empty, shape })
}

fn check_images(images: Option<&Value>, path: &str) -> Result<(), Failure> {
    match images.and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
        true => Err(Failure::field(path, "images are not supported: the models take text only")),
        false => Ok(()),
    }
}

/// `/api/chat`.
pub(crate) async fn chat(call: Call) -> Result<Response, Failure> {
    let asked = parse_chat(&call.body)?;
    answer(call, asked).await
}

/// `/api/generate`.
pub(crate) async fn generate(call: Call) -> Result<Response, Failure> {
    let asked = parse_generate(&call.body)?;
    answer(call, asked).await
}

async fn answer(call: Call, asked: Asked) -> Result<Response, Failure> {
    let Asked { wanted, stream, is_empty, shape } = asked;
    if is_empty {
        return load(&call, &wanted, shape).await;
    }
    let with_logprobs = wanted.logprobs.is_some();
    let mut running = start(&call.state, &call.caller, wanted).await?;
    let mut format = Lines::new(running.name(), shape, stream, with_logprobs);
    if stream {
        return Ok(respond(running, format));
    }
    let model = running.model().clone();
    let mut pieces = Vec::new();
    std::future::poll_fn(|context| {
        loop {
            match running.poll_event(context) {
                std::task::Poll::Pending => return std::task::Poll::Pending,
                std::task::Poll::Ready(Err(failure)) => return std::task::Poll::Ready(Err(failure)),
                std::task::Poll::Ready(Ok(None)) => return std::task::Poll::Ready(Ok(())),
                std::task::Poll::Ready(Ok(Some(event))) => format.event(&event, &model, &mut pieces),
            }
        }
    })
    .await?;
    Ok(json_response(&format.whole(&model)))
}

/// Loads the model, or unloads it if it is to stay for no time.
async fn load(call: &Call, wanted: &Wanted, shape: Shape) -> Result<Response, Failure> {
    let listed = call.state.find(&call.caller, &wanted.model).await?;
    let is_over = wanted.keep_alive == Some(KeepAlive::For(std::time::Duration::ZERO));
    if is_over {
        call.state.check_managed()?;
        call.state.models.unload(&listed.name).await;
    } else {
        let lease = call.state.lease(&call.caller, &listed).await?;
        drop(lease.keep_alive(call.state.kept(wanted.keep_alive)));
    }
    Ok(json_response(&ended(&listed.name, shape, if is_over { "unload" } else { "load" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_is_refused() {
        for other in [json!({ "raw": true }), json!({ "suffix": "b" })] {
            let mut body = json!({ "model": "m", "prompt": "a", "system": "Be brief." });
            body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            let error = parse_generate(body.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("system"), "{body}");
            body["system"] = "".into();
            assert!(parse_generate(body.to_string().as_bytes()).is_ok());
        }
    }
}
