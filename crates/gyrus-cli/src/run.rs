//! `gyrus run`: one prompt, one answer.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use gyrus::text::template::Conversation;
use gyrus::{Model, Precision, Prompt, Request, Sampling, StopReason};
use serde_json::json;

use crate::answer;
use crate::cli::{Output, RunArgs};
use crate::interrupt;
use crate::load::load;
use crate::source::Source;
use crate::text::FAINT;

const NO_PROMPT: &str =
    "no prompt: give it as an argument or through a pipe (gyrus chat is for conversations)";

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (model, prompt) = split(args);
    // Flags that cannot be are said before a model is loaded.
    args.sampler.sampler(&Sampling::default())?;
    if model.is_none() && prompt.is_none() && std::io::stdin().is_terminal() {
        bail!(NO_PROMPT);
    }
    // A model that is not there is said before anything is waited for on stdin.
    let source = Source::resolve(model.as_deref())?;
    let prompt = match prompt {
        Some(prompt) => prompt,
        None => read_prompt()?,
    };
    let mut options = args.model_options.options(Precision::Fast);
    if args.verify {
        options.precision = Precision::Fast;
    }
    let model = load(&source, &options, args.quiet)?;
    if args.verify {
        return crate::verify::run(&source, &options, &model, &prompt, args);
    }
    let prompt = prepare(&model, &prompt, args)?;
    let cancel = interrupt::on_ctrl_c();
    let mut request = Request::new(prompt)
        .sampler(args.sampler.sampler(model.sampling())?)
        .stop(args.stop.clone())
        .stop_at_repetition(!args.raw && !args.sampler.allow_repetition)
        .cancel(cancel);
    if let Some(most) = args.max_tokens {
        request = request.max_tokens(most);
    }
    answer(&model, request, args)
}

/// Which of the positional arguments are the model and the prompt: a single one is a model if it looks
/// like one.
fn split(args: &RunArgs) -> (Option<String>, Option<String>) {
    match (&args.first, &args.second) {
        (Some(model), Some(prompt)) => (Some(model.clone()), Some(prompt.clone())),
        (Some(one), None) if crate::resolve::looks_like_model(one) => (Some(one.clone()), None),
        (Some(one), None) => (None, Some(one.clone())),
        (None, _) => (None, None),
    }
}

fn read_prompt() -> Result<String> {
    if std::io::stdin().is_terminal() {
        bail!(NO_PROMPT);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("stdin")?;
    String::from_utf8(bytes).context("the prompt on stdin is not UTF-8")
}

/// Puts the prompt into the model's own form of conversation, if it has one and that is wanted.
fn prepare(model: &Model, prompt: &str, args: &RunArgs) -> Result<Prompt> {
    if args.raw || !model.has_chat_template() {
        if args.system.is_some() {
            bail!("--system needs a model with a chat template, and not --raw");
        }
        return Ok(Prompt::Text(prompt.to_owned()));
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    messages.push(json!({ "role": "user", "content": prompt }));
    let conversation = Conversation::new(messages)?;
    let tokenizer = model.tokenizer().context("the model has no tokenizer")?;
    Ok(Prompt::Whole(model.chat_format()?.tokens(&conversation, tokenizer, true, |_| None)?))
}

/// The prompt as token ids.
pub(crate) fn prompt_ids(model: &Model, prompt: &str, args: &RunArgs) -> Result<Vec<u32>> {
    let mut session = model.session();
    let request = Request::new(prepare(model, prompt, args)?).max_tokens(0);
    drop(session.generate(request)?);
    Ok(session.tokens().to_vec())
}

fn answer(model: &Model, request: Request, args: &RunArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut session = model.session();
    let answer = answer::draw(session.generate(request)?, args.quiet, |text| {
        if args.output == Output::Text {
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    match args.output {
        Output::Text => writeln!(out)?,
        Output::Ids => {
            let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
            writeln!(out, "{}", ids.join(" "))?;
        }
        Output::Json => {
            let usage = &answer.usage;
            let document = json!({
                "text": answer.text,
                "ids": answer.ids,
                "stop": answer.reason_name(),
                "prompt_tokens": usage.prompt_tokens,
                "generated_tokens": usage.generated_tokens,
                "prompt_tokens_per_second": usage.prompt_speed(),
                "tokens_per_second": usage.decode_speed(),
            });
            writeln!(out, "{document}")?;
        }
    }
    if !args.quiet {
        anstream::eprintln!("{}{}{}", FAINT.render(), answer.statistics(), FAINT.render_reset());
    }
    if answer.reason == StopReason::Cancelled {
        return Err(interrupt::Interrupted.into());
    }
    Ok(())
}
