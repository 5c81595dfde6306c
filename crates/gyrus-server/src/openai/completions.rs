//! `/v1/completions`.

use axum::response::Response;
use gyrus::{Event, Model};
use serde_json::{Value, json};

use super::chat::Style;
use super::{IGNORED, PREDICTION, finish_reason, logprobs, take_choices, take_limit, take_stream, usage};
use crate::collected::{Collected, Counts, Token};
use crate::failure::{Failure, Wire, json_response};
use crate::fields::Fields;
use crate::infill::Infill;
use crate::random;
use crate::routes::Call;
use crate::running::start_all;
use crate::stream::{Format, respond, sse};
use crate::wanted::{Wanted, WantedPrompt};

/// The most prompts of a request.
const MOST_PROMPTS: usize = 64;

/// The prompts of a request and all else that it wants of each.
pub(crate) fn parse(body: &[u8]) -> Result<(Vec<Wanted>, Style), Failure> {
    let mut fields = Fields::parse(body)?;
    let mut prompts = prompts(&mut fields)?;
    if let Some(suffix) = fields.string("suffix")?.filter(|text| !text.is_empty()) {
        prompts = prompts.into_iter().map(|prompt| before(prompt, &suffix)).collect::<Result<_, _>>()?;
    }
    let mut prompts = prompts.into_iter();
    let first = prompts.next().ok_or_else(|| Failure::field("prompt", "there is no prompt"))?;
    let mut wanted = Wanted::new(fields.string("model")?.unwrap_or_default(), first);
    let (stream, include_usage) = take_stream(&mut fields)?;
    wanted.take_common(&mut fields)?;
    wanted.choices = take_choices(&mut fields)?;
    // The documented default; an unlimited completion of plain text would only end with the context.
    wanted.max_tokens = Some(take_limit(&mut fields, "max_tokens")?.unwrap_or(16));
    wanted.logprobs = match fields.take("logprobs") {
        None | Some(Value::Bool(false)) => None,
        Some(value) => match value.as_u64() {
            Some(n @ 0..=20) => Some(n as usize),
            _ => return Err(Failure::field("logprobs", "it must be a whole number from 0 to 20")),
        },
    };
    if fields.integer("best_of", 1, 128)?.is_some_and(|best| best as usize > wanted.choices) {
        return Err(
            Failure::field("best_of", "it is not supported beyond n").with_code("unsupported_parameter")
        );
    }
    fields.refuse(&["echo"])?;
    fields.ignore(IGNORED);
    fields.ignore(PREDICTION);
    fields.finish()?;
    let style = Style { stream, include_usage, logprobs: wanted.logprobs.is_some() };
    let mut all = vec![wanted];
    for prompt in prompts {
        all.push(Wanted { prompt, ..all[0].clone() });
    }
    if all.len() > 1 && style.stream {
        return Err(Failure::field("stream", "several prompts cannot stream"));
    }
    Ok((all, style))
}

/// A string, token ids, or a list of either.
fn prompts(fields: &mut Fields) -> Result<Vec<WantedPrompt>, Failure> {
    let wrong = || Failure::field("prompt", "it must be a string, a list of token ids, or a list of these");
    match &fields.take("prompt") {
        None => Err(Failure::field("prompt", "it is missing")),
        Some(Value::Array(list)) if list.len() > MOST_PROMPTS && !list[0].is_number() => Err(Failure::field(
            "prompt",
            format!("it has {} prompts, at most {MOST_PROMPTS} are allowed", list.len()),
        )),
        Some(Value::Array(list)) if list.first().is_some_and(|first| !first.is_number()) => {
            list.iter().map(|entry| prompt(entry).ok_or_else(wrong)).collect()
        }
        Some(entry) => Ok(vec![prompt(entry).ok_or_else(wrong)?]),
    }
}

/// The gap between a prompt and what comes after it.
fn before(prompt: WantedPrompt, suffix: &str) -> Result<WantedPrompt, Failure> {
    let WantedPrompt::Text(prefix) = prompt else {
        return Err(Failure::field("suffix", "it needs a prompt of text"));
    };
    Ok(WantedPrompt::Infill(Infill { prefix, suffix: suffix.to_owned(), ..Infill::default() }))
}

/// A string or token ids.
pub(crate) fn prompt(value: &Value) -> Option<WantedPrompt> {
    match value {
        Value::String(text) => Some(WantedPrompt::Text(text.clone())),
        Value::Array(ids) => {
            let ids: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
            ids.map(WantedPrompt::Ids)
        }
        _ => None,
    }
}

/// Completes prompts.
pub(crate) async fn create(call: Call) -> Result<Response, Failure> {
    let (all, style) = parse(&call.body)?;
    let n = all.first().map_or(1, |wanted| wanted.choices);
    let mut running = start_all(&call.state, &call.caller, all).await?;
    if style.stream {
        let Some(running) = running.pop() else { return Err(Failure::field("prompt", "there is no prompt")) };
        let format = CompletionStream::new(running.name(), n, style);
        return Ok(respond(running, format));
    }
    let name = running.first().map_or(String::new(), |running| running.name().to_owned());
    let (mut prompt, mut cached, mut generated) = (0, 0, 0);
    let mut choices = Vec::new();
    let collected = Collected::wait_all(&mut running, n).await?;
    for (running, collected) in running.iter().zip(collected) {
        let counts = collected.usage();
        (prompt, cached, generated) =
            (prompt + counts.prompt, cached + counts.cached, generated + counts.generated);
        for choice in collected.choices {
            let mut offset = 0;
            let logprobs =
                style.logprobs.then(|| logprobs::of_completion(running.model(), &choice.tokens, &mut offset));
            let reason = choice.stop.as_ref().map(|stop| finish_reason(stop, false));
            choices.push(json!({ "index": choices.len(), "text": choice.text, "logprobs": logprobs,
                "finish_reason": reason }));
        }
    }
    Ok(json_response(&json!({
        "id": random::id("cmpl-"),
        "object": "text_completion",
        "created": random::now(),
        "model": name,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": { "cached_tokens": cached },
        },
    })))
}

/// A completion that streams.
struct CompletionStream {
    id: String,
    created: u64,
    model: String,
    style: Style,
    /// Tokens of each choice whose text has not come yet, and the length of its text.
    choices: Vec<(Vec<Token>, usize)>,
    counts: Counts,
}

impl CompletionStream {
    fn new(model: &str, choices: usize, style: Style) -> CompletionStream {
        CompletionStream {
            id: random::id("cmpl-"),
            created: random::now(),
            model: model.to_owned(),
            style,
            choices: vec![(Vec::new(), 0); choices],
            counts: Counts::default(),
        }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>, out: &mut Vec<u8>) {
        let mut chunk = json!({ "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.model, "choices": choices });
        if self.style.include_usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        sse(out, None, &chunk);
    }

    fn piece(&mut self, index: usize, text: &str, model: &Model, reason: Option<&str>, out: &mut Vec<u8>) {
        let (tokens, offset) = &mut self.choices[index];
        let tokens = std::mem::take(tokens);
        let logprobs = (self.style.logprobs && !tokens.is_empty())
            .then(|| logprobs::of_completion(model, &tokens, offset));
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.chunk(json!([choice]), None, out);
    }
}

impl Format for CompletionStream {
    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>) {
        match event {
            Event::Token { choice, id, logprob, top } if self.style.logprobs => {
                self.choices[*choice].0.push(Token { id: *id, logprob: *logprob, top: top.to_vec() });
            }
            Event::Text { choice, text } => self.piece(*choice, text, model, None, out),
            Event::Stop { choice, reason, usage } => {
                self.counts.add(usage);
                self.piece(*choice, "", model, Some(finish_reason(reason, false)), out);
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.style.include_usage {
            self.chunk(json!([]), Some(usage(&self.counts)), out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        sse(out, None, &failure.to_json(Wire::OpenAi));
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
