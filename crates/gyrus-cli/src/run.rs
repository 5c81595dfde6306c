//! `gyrus run`: one prompt, one answer.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use gyrus::{Message, Model, Precision, Prompt, Request, StopReason};
use gyrus_formats::FormatError;

use crate::answer::{self, Answer, Shown};
use crate::catalogue::DEFAULT;
use crate::cli::{Output, RunArgs};
use crate::decoding::Decoding;
use crate::load::load_opened;
use crate::pieces::Pieces;
use crate::resolve::{Missing, looks_like_model};
use crate::screen::Screen;
use crate::source::Source;
use crate::usage::usage;
use crate::{cache, diagnostics, interrupt, json};

const NO_PROMPT: &str = "no prompt: give it as an argument or on stdin (gyrus chat starts a conversation)";

/// Added to the error if an argument was taken for a model and is none.
const HINT: &str = "to give this as a prompt, name a model before it, such as";

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if args.raw && args.system.is_some() {
        return Err(usage("--system needs a chat template, which --raw and `complete` do not apply"));
    }
    if let Some(flag) = args.decoding.needs_template().filter(|_| args.raw) {
        return Err(usage(format!("{flag} needs a chat template, which --raw and `complete` do not apply")));
    }
    if args.logprobs.is_some() && args.output != Output::Json {
        return Err(usage("--logprobs needs --output json"));
    }
    let (model, prompt) = split(args)?;
    if prompt.is_none() && args.decoding.reads_stdin() {
        return Err(usage(
            "stdin has the schema or grammar: give the prompt as an argument, behind the model",
        ));
    }
    let mut decoding = args.decoding.read()?;
    if model.is_none() && prompt.is_none() && std::io::stdin().is_terminal() {
        return Err(usage(NO_PROMPT));
    }
    let mut options = args.model_options.options(Precision::Fast);
    if args.verify {
        options.precision = Precision::Fast;
    }
    // A wrong model is an error before stdin is read.
    let opened = Source::resolve(model).and_then(|source| Ok((source.open(options.access)?, source)));
    let (checkpoint, source) = opened.map_err(|error| match model {
        Some(word) if prompt.is_none() && may_be_prompt(word, &error) => {
            anyhow!("{error:#}; {HINT} {DEFAULT}")
        }
        _ => error,
    })?;
    let prompt = match prompt {
        Some(prompt) => prompt.to_owned(),
        None => read_prompt()?,
    };
    let model = load_opened(checkpoint, source.name(), &options, args.quiet)?;
    decoding.load_draft(&args.decoding, &model, &options, args.quiet)?;
    if args.verify {
        return crate::verify::run(&source, &options, &model, &prompt, args);
    }
    let prompt = prepare(&model, &prompt, args)?;
    let cancel = interrupt::on_ctrl_c();
    let mut request = Request::new(prompt)
        .sampler(args.sampler.sampler(model.sampling()))
        .choices(usize::from(args.choices))
        .stop_at_repetition(!args.raw && !args.sampler.allow_repetition)
        .cancel(cancel);
    if let Some(most) = args.max_tokens {
        request = request.max_tokens(most);
    }
    if let Some(n) = args.logprobs {
        request = request.top_logprobs(usize::from(n));
    }
    answer(&model, decoding.apply(request), &decoding, args)
}

/// The model and the prompt among the positional arguments. A single argument is a model if it looks like one.
fn split(args: &RunArgs) -> Result<(Option<&OsStr>, Option<&str>)> {
    match (&args.first, &args.second) {
        (Some(model), Some(prompt)) => Ok((Some(model), Some(prompt))),
        (Some(one), None) if looks_like_model(one) => Ok((Some(one), None)),
        (Some(one), None) => Ok((None, Some(one.to_str().context("the prompt is not UTF-8")?))),
        (None, _) => Ok((None, None)),
    }
}

/// Whether an argument that was taken for a model could be a prompt, given the error: there is no such file, or the
/// file has neither the name nor the content of a model.
fn may_be_prompt(word: &OsStr, error: &anyhow::Error) -> bool {
    let named_as_model = word.to_str().is_some_and(cache::is_model);
    error.is::<Missing>() || (error.is::<FormatError>() && !named_as_model)
}

fn read_prompt() -> Result<String> {
    if std::io::stdin().is_terminal() {
        return Err(usage(NO_PROMPT));
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("stdin")?;
    String::from_utf8(bytes).context("the prompt on stdin is not UTF-8")
}

/// Applies the model's chat template to the prompt, if it has one, unless `--raw` is set.
fn prepare(model: &Model, prompt: &str, args: &RunArgs) -> Result<Prompt> {
    if args.raw || (!model.has_chat_template() && args.decoding.needs_template().is_none()) {
        if args.system.is_some() {
            bail!("--system needs a model with a chat template");
        }
        return Ok(Prompt::Text(prompt.to_owned()));
    }
    let system = args.system.as_deref().map(Message::system);
    Ok(Prompt::Messages(system.into_iter().chain([Message::user(prompt)]).collect()))
}

/// The prompt as token ids.
pub(crate) fn prompt_ids(model: &Model, prompt: &str, args: &RunArgs) -> Result<Vec<u32>> {
    Ok(model.prompt_tokens(&Request::new(prepare(model, prompt, args)?))?)
}

fn answer(model: &Model, request: Request, decoding: &Decoding, args: &RunArgs) -> Result<()> {
    let mut out = Screen::stdout();
    let mut session = model.session();
    let mut pieces = Pieces::new(args.quiet);
    let generation = session.generate(request).map_err(|error| decoding.explain(error))?;
    let answers = answer::generate(generation, args.quiet, |piece| {
        if args.output != Output::Text {
            return Ok(());
        }
        pieces.show(piece, |text| Ok(out.text(text)?))
    });
    pieces.end()?;
    let answers = answers.map_err(|error| match error.downcast::<gyrus::Error>() {
        Ok(error) => decoding.explain(error),
        Err(error) => error,
    })?;
    for (number, answer) in answers.iter().enumerate() {
        print(&mut out, answer, number, args)?;
    }
    if !args.quiet {
        answers.iter().for_each(|answer| diagnostics::aside(answer.statistics()));
    }
    if answers.iter().any(|answer| answer.reason == Some(StopReason::Cancelled)) {
        return Err(interrupt::Interrupted.into());
    }
    Ok(())
}

/// Prints what was not printed while the answer was decoded.
fn print(out: &mut Screen, answer: &Answer, number: usize, args: &RunArgs) -> Result<()> {
    match args.output {
        Output::Text if number == 0 => writeln!(out)?,
        Output::Text => {
            writeln!(out)?;
            let mut pieces = Pieces::new(args.quiet);
            if !answer.text.is_empty() {
                pieces.show(Shown::Text(&answer.text), |text| Ok(out.text(text)?))?;
            }
            for call in &answer.calls {
                pieces.show(Shown::Call(call), |text| Ok(out.text(text)?))?;
            }
            writeln!(out)?;
        }
        Output::Ids => {
            let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
            writeln!(out, "{}", ids.join(" "))?;
        }
        Output::Json => json::line(out, &answer.to_json())?,
    }
    Ok(())
}
