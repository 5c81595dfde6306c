//! `gyrus run`: one prompt, one answer.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use gyrus::{Message, Model, Precision, Prompt, Request, Session, StopReason};
use gyrus_formats::FormatError;

use crate::answer::{self, Answer, Shown};
use crate::catalogue::DEFAULT;
use crate::chat::History;
use crate::cli::{Output, RunArgs};
use crate::decoding::Decoding;
use crate::load::load_opened;
use crate::pieces::Pieces;
use crate::resolve::{Missing, looks_like_model};
use crate::samplers::with_breakers;
use crate::screen::Screen;
use crate::session_file::SessionFile;
use crate::source::Source;
use crate::usage::usage;
use crate::{cache, context_shift, diagnostics, interrupt, json};

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
    options.session_files = args.session.is_some();
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
    let Resumed { mut session, history, file } = Resumed::new(&model, args)?;
    let (prompt, history) = match history {
        Some(mut history) => {
            history.ask(&prompt);
            (Prompt::Messages(history.messages().to_vec()), Some(history))
        }
        None => (prepare(&model, &prompt, args)?, None),
    };
    let request_is_text = matches!(prompt, Prompt::Text(_));
    let cancel = interrupt::on_ctrl_c();
    let mut request = Request::new(prompt)
        .sampler(args.sampler.sampler(model.sampling()))
        .choices(usize::from(args.choices))
        .stop_at_repetition(!args.raw && !args.sampler.allow_repetition)
        .cancel(cancel);
    if let Some(most) = args.max_tokens {
        request = request.max_tokens(most);
    }
    if args.context_shift {
        let keep = match request_is_text {
            true => 1,
            false => context_shift::kept(&model, &decoding, args.system.as_deref())?,
        };
        request = request.context_shift(keep);
    }
    if let Some(n) = args.logprobs {
        request = request.top_logprobs(usize::from(n));
    }
    let request = decoding.apply(with_breakers(request, &args.sampler.more.dry_sequence_breaker));
    let answers = answer(&mut session, request, &decoding, args)?;
    if let Some(file) = file {
        let mut history = history;
        if let (Some(history), Some(answer)) = (&mut history, answers.first()) {
            history.answer(answer);
        }
        file.save(&session, history.as_ref())?;
    }
    if answers.iter().any(|answer| answer.reason == Some(StopReason::Cancelled)) {
        return Err(interrupt::Interrupted.into());
    }
    Ok(())
}

/// The session that an answer continues, and its conversation if a file keeps one.
struct Resumed {
    session: Session,
    history: Option<History>,
    file: Option<SessionFile>,
}

impl Resumed {
    fn new(model: &Model, args: &RunArgs) -> Result<Resumed> {
        let Some(path) = &args.session else {
            return Ok(Resumed { session: model.session(), history: None, file: None });
        };
        let file = SessionFile::new(path);
        let is_text = is_text(model, args)?;
        let (session, history) = match file.load(model)? {
            Some((_, None)) if !is_text => {
                bail!("{}: it is the session of a text; --raw continues it", file.name())
            }
            Some((_, Some(_))) if is_text => {
                bail!("{}: it is the session of a conversation, which --raw cannot continue", file.name())
            }
            Some((session, history)) => {
                file.check_system(history.as_ref(), args.system.as_deref())?;
                (session, history)
            }
            None => (model.session(), (!is_text).then(|| History::new(args.system.as_deref()))),
        };
        Ok(Resumed { session, history, file: Some(file) })
    }
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

/// Whether the prompt is a text to complete: the model has no chat template, or `--raw` is set.
fn is_text(model: &Model, args: &RunArgs) -> Result<bool> {
    let is_text = args.raw || (!model.has_chat_template() && args.decoding.needs_template().is_none());
    if is_text && args.system.is_some() {
        bail!("--system needs a model with a chat template");
    }
    Ok(is_text)
}

/// Applies the model's chat template to the prompt, if it has one, unless `--raw` is set.
fn prepare(model: &Model, prompt: &str, args: &RunArgs) -> Result<Prompt> {
    if is_text(model, args)? {
        return Ok(Prompt::Text(prompt.to_owned()));
    }
    let system = args.system.as_deref().map(Message::system);
    Ok(Prompt::Messages(system.into_iter().chain([Message::user(prompt)]).collect()))
}

/// The prompt as token ids.
pub(crate) fn prompt_ids(model: &Model, prompt: &str, args: &RunArgs) -> Result<Vec<u32>> {
    Ok(model.prompt_tokens(&Request::new(prepare(model, prompt, args)?))?)
}

fn answer(
    session: &mut Session,
    request: Request,
    decoding: &Decoding,
    args: &RunArgs,
) -> Result<Vec<Answer>> {
    let mut out = Screen::stdout();
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
    Ok(answers)
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
