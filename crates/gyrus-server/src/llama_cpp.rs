//! The routes of llama.cpp's server that clients use.

mod line_limits;

use std::time::Instant;

use axum::response::Response;
use gyrus::{Event, Model, StopReason};
use serde_json::{Value, json};

use self::line_limits::LineLimits;
use crate::collected::{Counts, Token, token_text};
use crate::encoding::{self, decode, encode};
use crate::failure::{Failure, Wire, json_response};
use crate::fields::Fields;
use crate::infill::{Infill, take_extra};
use crate::messages::messages;
use crate::openai::completions::prompt;
use crate::routes::Call;
use crate::running::start;
use crate::stream::{Format, collect, respond, sse};
use crate::wanted::{Wanted, WantedPrompt};

/// Fields that change nothing about an answer. The time for a prompt is one that llama.cpp does not use either.
const IGNORED: &[&str] = &["return_tokens", "timings_per_token", "return_progress", "t_max_prompt_ms"];

/// Fields that would change the answer.
const REFUSED: &[&str] = &["image_data", "lora", "multimodal_data", "post_sampling_probs"];

/// The most fields that a response can be asked for.
const MOST_FIELDS: usize = 64;

/// What a client wants of the form of its completion.
#[derive(Debug)]
pub(crate) struct Style {
    stream: bool,
    limits: LineLimits,
    /// The only fields of the response that are wanted, as paths such as `timings/prompt_n`; all if there are none.
    fields: Vec<String>,
}

/// The request of a completion, and how it is answered.
pub(crate) fn parse_completion(body: &[u8]) -> Result<(Wanted, Style), Failure> {
    let mut fields = Fields::parse(body)?;
    let value = fields.require("prompt")?;
    let prompt =
        prompt(&value).ok_or_else(|| fields.wrong("prompt", "it must be a string or a list of token ids"))?;
    finish(fields, prompt)
}

/// The request of a gap in code.
pub(crate) fn parse_infill(body: &[u8]) -> Result<(Wanted, Style), Failure> {
    let mut fields = Fields::parse(body)?;
    let prefix =
        fields.string("input_prefix")?.ok_or_else(|| fields.wrong("input_prefix", "it is missing"))?;
    let suffix =
        fields.string("input_suffix")?.ok_or_else(|| fields.wrong("input_suffix", "it is missing"))?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let extra = take_extra(&mut fields)?;
    finish(fields, WantedPrompt::Infill(Infill { prefix, suffix, prompt, extra }))
}

fn finish(mut fields: Fields, prompt: WantedPrompt) -> Result<(Wanted, Style), Failure> {
    let mut wanted = Wanted::new(fields.string("model")?.unwrap_or_default(), prompt);
    wanted.take_common(&mut fields)?;
    let limit = fields.integer("n_predict", -2, i64::from(u32::MAX))?;
    let other = fields.integer("max_tokens", -1, i64::from(u32::MAX))?;
    wanted.max_tokens = limit.or(other).and_then(|limit| usize::try_from(limit).ok());
    wanted.logprobs = fields.integer("n_probs", 0, 20)?.filter(|n| *n > 0).map(|n| n as usize);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let limits = LineLimits::take(&mut fields)?;
    wanted.cancel = Some(limits.cancel());
    let wanted_fields = fields.strings("response_fields", MOST_FIELDS)?.unwrap_or_default();
    fields.refuse(REFUSED)?;
    fields.ignore(IGNORED);
    fields.finish()?;
    Ok((wanted, Style { stream, limits, fields: wanted_fields }))
}

/// `/completion`.
pub(crate) async fn completion(call: Call) -> Result<Response, Failure> {
    let (wanted, style) = parse_completion(&call.body)?;
    complete(call, wanted, style).await
}

/// `/infill`.
pub(crate) async fn infill(call: Call) -> Result<Response, Failure> {
    let (wanted, style) = parse_infill(&call.body)?;
    complete(call, wanted, style).await
}

async fn complete(call: Call, wanted: Wanted, style: Style) -> Result<Response, Failure> {
    let with_probabilities = wanted.logprobs.is_some();
    let mut running = start(&call.state, &call.caller, wanted).await?;
    let stream = style.stream;
    let mut format = CompletionStream {
        name: running.name().to_owned(),
        with_probabilities,
        style,
        text: String::new(),
        tokens: Vec::new(),
        last: Value::Null,
    };
    if stream {
        return Ok(respond(running, format));
    }
    collect(&mut running, &mut format).await?;
    Ok(json_response(&format.whole(running.model())))
}

/// The fields of a response that are wanted, under their paths. Those that there are not are left out.
fn only(response: Value, fields: &[String]) -> Value {
    if fields.is_empty() {
        return response;
    }
    let find = |path: &String| {
        let value = path.split('/').try_fold(&response, |value, name| value.get(name))?;
        Some((path.clone(), value.clone()))
    };
    Value::Object(fields.iter().filter_map(find).collect())
}

/// The log-probabilities of tokens, as llama.cpp writes them.
fn probabilities_of(model: &Model, tokens: &[Token]) -> Value {
    let one = |id: u32, logprob: f32| {
        let (token, bytes) = token_text(model, id);
        json!({ "id": id, "token": token, "bytes": bytes, "logprob": logprob.max(-9999.0) })
    };
    let all = tokens.iter().map(|token| {
        let mut value = one(token.id, token.logprob.unwrap_or(f32::NEG_INFINITY));
        value["top_logprobs"] = token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
        value
    });
    all.collect()
}

fn ended(name: &str, text: &str, stop: Option<&StopReason>, counts: &Counts) -> Value {
    let (kind, word) = match stop {
        Some(StopReason::EndToken(_)) => ("eos", ""),
        Some(StopReason::StopString(word)) => ("word", word.as_str()),
        Some(StopReason::MaxTokens | StopReason::ContextFull) => ("limit", ""),
        _ => ("none", ""),
    };
    json!({
        "content": text,
        "stop": true,
        "model": name,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_predicted": counts.generated,
        "tokens_evaluated": counts.prompt,
        "tokens_cached": counts.cached,
        "truncated": stop == Some(&StopReason::ContextFull),
        "timings": counts.timings(),
    })
}

/// A completion that streams, or is added up for a client that wants it as a whole.
struct CompletionStream {
    name: String,
    with_probabilities: bool,
    style: Style,
    /// The text that is not sent yet: all of it for an answer as a whole.
    text: String,
    /// Tokens that are not sent yet.
    tokens: Vec<Token>,
    /// What is sent at the end.
    last: Value,
}

impl CompletionStream {
    /// Adds text. It is sent if the answer streams, with the probabilities of the tokens that have come.
    fn add(&mut self, text: &str, model: &Model, out: &mut Vec<u8>) {
        self.text.push_str(text);
        if self.style.stream && !self.text.is_empty() {
            let mut piece = json!({ "content": std::mem::take(&mut self.text), "stop": false });
            self.take_probabilities(model, &mut piece);
            sse(out, None, &piece);
        }
    }

    fn take_probabilities(&mut self, model: &Model, piece: &mut Value) {
        if self.with_probabilities && !self.tokens.is_empty() {
            piece["completion_probabilities"] = probabilities_of(model, &std::mem::take(&mut self.tokens));
        }
    }

    /// The whole answer.
    fn whole(mut self, model: &Model) -> Value {
        let mut whole = std::mem::take(&mut self.last);
        whole["content"] = std::mem::take(&mut self.text).into();
        whole["tokens"] = self.tokens.iter().map(|token| token.id).collect();
        if self.with_probabilities {
            whole["completion_probabilities"] = probabilities_of(model, &self.tokens);
        }
        only(whole, &self.style.fields)
    }
}

impl Format for CompletionStream {
    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Token { id, logprob, top, .. } if self.with_probabilities || !self.style.stream => {
                self.tokens.push(Token { id: *id, logprob: *logprob, top: top.to_vec() });
            }
            Event::Text { text, .. } => {
                let text = self.style.limits.pass(text, Instant::now());
                self.add(&text, model, out);
            }
            Event::Stop { reason, usage, .. } => {
                let rest = self.style.limits.rest();
                self.add(&rest, model, out);
                let mut counts = Counts::default();
                counts.add(usage);
                // Limits of lines are limits like that of tokens.
                let limited = Some(&StopReason::MaxTokens).filter(|_| self.style.limits.is_over());
                let mut last = ended(&self.name, "", limited.or(Some(reason)), &counts);
                if self.style.stream {
                    self.take_probabilities(model, &mut last);
                }
                self.last = last;
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.style.stream {
            sse(out, None, &only(std::mem::take(&mut self.last), &self.style.fields));
        }
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        sse(out, None, &failure.to_json(Wire::LlamaCpp));
    }
}

/// The request of tokens of a body: the model, the text, and whether special tokens are parsed and added.
pub(crate) fn parse_tokenize(body: &[u8]) -> Result<(String, String, bool, bool), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let text = fields.string("content")?.ok_or_else(|| fields.wrong("content", "it is missing"))?;
    let add_special = fields.boolean("add_special")?.unwrap_or(false);
    let special = fields.boolean("parse_special")?.unwrap_or(true);
    fields.refuse(&["with_pieces"])?;
    fields.finish()?;
    Ok((model, text, special, add_special))
}

/// `/tokenize`.
pub(crate) async fn tokenize(call: Call) -> Result<Response, Failure> {
    let (model, text, special, add_special) = parse_tokenize(&call.body)?;
    let tokens = encode(&call, &model, text, special, add_special).await?;
    Ok(json_response(&json!({ "tokens": tokens })))
}

/// The request of a text of a body: the model and the tokens.
pub(crate) fn parse_detokenize(body: &[u8]) -> Result<(String, Vec<u32>), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let value = fields.require("tokens")?;
    let Some(WantedPrompt::Ids(ids)) = prompt(&value) else {
        return Err(fields.wrong("tokens", "it must be a list of token ids"));
    };
    fields.finish()?;
    Ok((model, ids))
}

/// `/detokenize`.
pub(crate) async fn detokenize(call: Call) -> Result<Response, Failure> {
    let (model, ids) = parse_detokenize(&call.body)?;
    let text = decode(&call, &model, ids).await?;
    Ok(json_response(&json!({ "content": text })))
}

/// The request of a prompt of a body.
pub(crate) fn parse_template(body: &[u8]) -> Result<Wanted, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let list = fields.list("messages")?.ok_or_else(|| fields.wrong("messages", "it is missing"))?;
    let mut wanted = Wanted::new(model, WantedPrompt::Messages(messages(list, "messages")?));
    if let Some(tools) = fields.take("tools") {
        let tools = gyrus::tools::Tools::from_value(&tools);
        wanted.tools = Some(tools.map_err(|error| fields.wrong("tools", error.to_string()))?);
    }
    wanted.take_variables(&mut fields)?;
    fields.finish()?;
    Ok(wanted)
}

/// `/apply-template`.
pub(crate) async fn apply_template(call: Call) -> Result<Response, Failure> {
    let text = encoding::prompt(&call, parse_template(&call.body)?).await?;
    Ok(json_response(&json!({ "prompt": text })))
}

/// `/props`: the default model, which is loaded for it.
pub(crate) async fn props(call: Call) -> Result<Response, Failure> {
    let listed = call.state.find(&call.caller, "").await?;
    let lease = call.state.lease(&call.caller, &listed).await?;
    let model = lease.model();
    let sampler = crate::sampling::SamplerFields::default().sampler(model.sampling());
    let settings = json!({
        "n_ctx": model.context().tokens,
        "params": {
            "temperature": sampler.temperature,
            "top_k": sampler.top_k,
            "top_p": sampler.top_p,
            "min_p": sampler.min_p,
            "repeat_penalty": sampler.repetition_penalty,
            "repeat_last_n": sampler.penalty_window,
        },
    });
    let template = model.chat_format().ok().map(|format| format.source().to_owned());
    let text =
        |id: Option<u32>| id.and_then(|id| model.tokenizer()?.token_text(id)).unwrap_or_default().to_owned();
    let tokenizer = model.tokenizer();
    Ok(json_response(&json!({
        "default_generation_settings": settings,
        "total_slots": call.state.config.parallel,
        "model_alias": lease.name(),
        "model_path": lease.name(),
        "chat_template": template.unwrap_or_default(),
        "bos_token": text(tokenizer.and_then(|tokenizer| tokenizer.bos())),
        "eos_token": text(tokenizer.and_then(|tokenizer| tokenizer.eos())),
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("gyrus ", env!("CARGO_PKG_VERSION")),
    })))
}

/// `/slots`: as many as sequences run at once. Which of them runs which request is not told.
pub(crate) async fn slots(call: Call) -> Result<Response, Failure> {
    let mut slots = Vec::new();
    for now in call.state.now(&call.caller) {
        for number in 0..call.state.config.parallel as u64 {
            let is_processing = number < now.statistics.running;
            slots.push(json!({
                "id": slots.len(),
                "model": now.model,
                "n_ctx": now.context,
                "is_processing": is_processing,
            }));
        }
    }
    Ok(json_response(&slots))
}
