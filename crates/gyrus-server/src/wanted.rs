//! What a client wants, whatever wire format it speaks.

use std::time::Duration;

use gyrus::constrain::Source;
use gyrus::text::Special;
use gyrus::tools::{ToolChoice, Tools};
use gyrus::{Cancel, Message, Model, Prompt, Request, Speculation};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::fields::Fields;
use crate::infill::Infill;
use crate::keep_alive::KeepAlive;
use crate::sampling::SamplerFields;

/// A generation that a client wants.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// The name of the model; empty for the default one.
    pub(crate) model: String,
    pub(crate) prompt: WantedPrompt,
    /// Whether the texts of control tokens in a prompt that is text become control tokens.
    pub(crate) parse_special: bool,
    pub(crate) sampling: SamplerFields,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_end: bool,
    pub(crate) choices: usize,
    pub(crate) logprobs: Option<usize>,
    pub(crate) constraint: Option<Source>,
    pub(crate) tools: Option<Tools>,
    pub(crate) tool_choice: ToolChoice,
    pub(crate) parallel_calls: bool,
    pub(crate) reasoning: Option<bool>,
    pub(crate) variables: Map<String, Value>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) priority: i32,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether tokens are guessed and verified several at once. The answer is the same.
    pub(crate) speculate: bool,
    /// The name of a smaller model that guesses, too.
    pub(crate) draft_model: Option<String>,
    /// Texts that DRY's repetitions do not reach over.
    pub(crate) dry_breakers: Option<Vec<String>>,
    /// Stops the engine when it is set.
    pub(crate) cancel: Option<Cancel>,
}

#[derive(Debug, Clone)]
pub(crate) enum WantedPrompt {
    /// Messages as chat templates take them.
    Messages(Vec<Value>),
    Text(String),
    Ids(Vec<u32>),
    /// A gap in code.
    Infill(Infill),
}

/// The lowest priority of a request.
pub(crate) const LOWEST_PRIORITY: i32 = -1000;
/// The highest one.
pub(crate) const HIGHEST_PRIORITY: i32 = 1000;
/// The most stop strings of a request.
const MOST_STOPS: usize = 64;
/// The most bytes of a stop string.
const LONGEST_STOP: usize = 4096;
/// The most breakers of a request, as the engine has it.
const MOST_BREAKERS: usize = 64;

impl Wanted {
    /// A generation with everything as it is by default.
    pub(crate) fn new(model: String, prompt: WantedPrompt) -> Wanted {
        Wanted {
            model,
            prompt,
            parse_special: true,
            sampling: SamplerFields::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            choices: 1,
            logprobs: None,
            constraint: None,
            tools: None,
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            reasoning: None,
            variables: Map::new(),
            time_limit: None,
            priority: 0,
            keep_alive: None,
            speculate: false,
            draft_model: None,
            dry_breakers: None,
            cancel: None,
        }
    }

    /// Takes the fields that all formats write alike: sampling, stops, and the extensions of this server.
    pub(crate) fn take_common(&mut self, fields: &mut Fields) -> Result<(), Failure> {
        self.sampling = SamplerFields::take(fields)?;
        if let Some(parse) = fields.boolean("parse_special")? {
            if parse && matches!(self.prompt, WantedPrompt::Messages(_)) {
                let message = "text of messages never becomes control tokens";
                return Err(fields.wrong("parse_special", message).with_code("unsupported_parameter"));
            }
            self.parse_special = parse;
        }
        if let Some(stop) = fields.strings("stop", MOST_STOPS)? {
            self.stop = check_stops(fields, "stop", stop)?;
        }
        self.ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
        self.take_constraint(fields)?;
        if let Some(seconds) = fields.number("timeout")? {
            let valid = |seconds: &f64| *seconds > 0.0 && *seconds <= 86_400.0;
            let seconds = Some(seconds).filter(valid);
            let seconds = seconds
                .ok_or_else(|| fields.wrong("timeout", "it must be seconds, above 0 and at most 86400"))?;
            self.time_limit = Some(Duration::from_secs_f64(seconds));
        }
        let priority = fields.integer("priority", LOWEST_PRIORITY.into(), HIGHEST_PRIORITY.into())?;
        self.priority = priority.unwrap_or(0) as i32;
        if let Some(value) = fields.take("keep_alive") {
            self.keep_alive =
                Some(KeepAlive::from_json(&value).map_err(|why| fields.wrong("keep_alive", why))?);
        }
        self.speculate = fields.boolean("speculate")?.unwrap_or(false);
        self.draft_model = fields.string("draft_model")?.filter(|name| !name.is_empty());
        self.dry_breakers = fields.strings("dry_sequence_breakers", MOST_BREAKERS)?;
        // The cache of prefixes is shared by all requests of a key; there is nothing to switch per request.
        fields.ignore(&["cache_prompt", "id_slot", "n_keep", "slot_id", "n_probs_sum"]);
        Ok(())
    }

    /// Takes `grammar`, `regex` and `json_schema`.
    fn take_constraint(&mut self, fields: &mut Fields) -> Result<(), Failure> {
        if let Some(text) = fields.string("grammar")?.filter(|text| !text.is_empty()) {
            self.constrain(Source::Gbnf(text), "grammar")?;
        }
        if let Some(text) = fields.string("regex")? {
            self.constrain(Source::Regex(text), "regex")?;
        }
        if let Some(schema) = fields.take("json_schema") {
            self.constrain(Source::Schema(schema.to_string()), "json_schema")?;
        }
        Ok(())
    }

    /// Sets the constraint, of which there can be one.
    pub(crate) fn constrain(&mut self, source: Source, field: &str) -> Result<(), Failure> {
        match self.constraint.replace(source) {
            None => Ok(()),
            Some(_) => Err(Failure::field(field, "another field constrains the answer already")),
        }
    }

    /// Takes variables of the chat template. Those that switch reasoning also do so where the template has no switch.
    pub(crate) fn take_variables(&mut self, fields: &mut Fields) -> Result<(), Failure> {
        self.variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
        for name in ["enable_thinking", "thinking"] {
            self.reasoning = self.reasoning.or(self.variables.get(name).and_then(Value::as_bool));
        }
        if let Some(effort) = fields.string("reasoning_effort")? {
            match effort.as_str() {
                "none" => self.reasoning = Some(false),
                _ => drop(self.variables.insert("reasoning_effort".to_owned(), Value::from(effort))),
            }
        }
        Ok(())
    }

    /// Takes stop strings of a field with another name.
    pub(crate) fn take_stops(&mut self, fields: &mut Fields, name: &str) -> Result<(), Failure> {
        if let Some(stop) = fields.strings(name, MOST_STOPS)? {
            self.stop = check_stops(fields, name, stop)?;
        }
        Ok(())
    }

    /// The request of the engine.
    pub(crate) fn request(self, model: &Model, longest: Option<usize>) -> Result<Request, Failure> {
        let sampler = self.sampling.sampler(model.sampling());
        let max_tokens = self.max_tokens.or(longest);
        let mut request = Request::new(self.prompt.prompt(model, max_tokens, self.parse_special)?)
            .sampler(sampler)
            .stop(self.stop)
            .ignore_end(self.ignore_end)
            .choices(self.choices)
            .priority(self.priority)
            .parallel_calls(self.parallel_calls)
            .tool_choice(self.tool_choice);
        if let Some(tokens) = max_tokens {
            request = request.max_tokens(tokens);
        }
        if let Some(n) = self.logprobs {
            request = request.top_logprobs(n);
        }
        if let Some(source) = self.constraint {
            request = request.constraint(source);
        }
        if let Some(tools) = self.tools.filter(|tools| !tools.is_empty()) {
            request = request.tools(tools);
        }
        if let Some(reasoning) = self.reasoning {
            request = request.reasoning(reasoning);
        }
        for (name, value) in self.variables {
            request = request.variable(name, value);
        }
        if let Some(limit) = self.time_limit {
            request = request.time_limit(limit);
        }
        if self.speculate {
            request = request.speculation(Speculation::Lookup);
        }
        if let Some(texts) = self.dry_breakers {
            request = request.dry_breakers(texts);
        }
        if let Some(cancel) = self.cancel {
            request = request.cancel(cancel);
        }
        Ok(request)
    }
}

impl WantedPrompt {
    fn prompt(
        self,
        model: &Model,
        max_tokens: Option<usize>,
        parse_special: bool,
    ) -> Result<Prompt, Failure> {
        Ok(match self {
            WantedPrompt::Messages(messages) => {
                Prompt::Messages(messages.into_iter().map(Message::from).collect())
            }
            WantedPrompt::Text(text) if parse_special => Prompt::Ids(special_tokens(model, &text)?),
            WantedPrompt::Text(text) => Prompt::Text(text),
            WantedPrompt::Ids(ids) => Prompt::Ids(ids),
            WantedPrompt::Infill(infill) => Prompt::Ids(infill.tokens(model, max_tokens)?),
        })
    }
}

/// The tokens of a text in which control tokens are written as text, as chat templates write them. If that begins with the BOS
/// token, no second one comes before it.
fn special_tokens(model: &Model, text: &str) -> Result<Vec<u32>, Failure> {
    let tokenizer = model.tokenizer().ok_or(gyrus::Error::NoTokenizer)?;
    let mut ids = tokenizer.encode(text, Special::Parse, true);
    if let (Some(bos), [first, second, ..]) = (tokenizer.bos(), ids.as_slice())
        && tokenizer.adds_bos()
        && [*first, *second] == [bos; 2]
    {
        ids.remove(0);
    }
    Ok(ids)
}

fn check_stops(fields: &Fields, name: &str, stop: Vec<String>) -> Result<Vec<String>, Failure> {
    match stop.iter().any(|stop| stop.len() > LONGEST_STOP) {
        true => Err(fields.wrong(name, format!("a stop string has at most {LONGEST_STOP} bytes"))),
        false => Ok(stop),
    }
}
