//! `gyrus chat`: a conversation with a model.

mod branches;
mod commands;
mod history;
mod input;
mod marks;
mod settings;

use std::path::Path;

use anyhow::{Context, Result, bail};
use gyrus::text::template::Conversation;
use gyrus::{Cancel, Message, Model, Precision, Prompt, Request};

use crate::answer::{self, Answer};
use crate::cli::{ChatArgs, OnFull};
use crate::context_shift;
use crate::diagnostics;
use crate::foreign;
use crate::interrupt;
use crate::load::load;
use crate::output::OutputFile;
use crate::pieces::Pieces;
use crate::samplers::with_breakers;
use crate::screen;
use crate::session_file::SessionFile;
use crate::source::Source;
use crate::usage::usage;
use crate::wrap::{self, Wrap};
use branches::{Branches, Talk};
pub(crate) use history::History;
use input::{Input, Lines};
use settings::Settings;

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    if args.decoding.reads_stdin() {
        return Err(usage("stdin has the conversation: name a file for the schema or grammar"));
    }
    let mut decoding = args.decoding.read()?;
    let source = Source::resolve(args.model.as_deref())?;
    let mut options = args.model_options.options(Precision::Fast);
    options.session_files = args.session.is_some();
    let model = load(&source, &options, args.quiet)?;
    decoding.load_draft(&args.decoding, &model, &options, args.quiet)?;
    let format = model.chat_format()?;
    if let Some(name) = format.fallback().filter(|_| !args.quiet) {
        diagnostics::note(format!("the model has no chat template, using the {name} template"));
    }
    let (file, talk) = begin(&model, args)?;
    let chat = Chat {
        talk,
        branches: Branches::new(),
        settings: Settings {
            sampler: args.sampler.sampler(model.sampling()),
            decoding,
            max_tokens: args.max_tokens,
            dry_breakers: args.sampler.more.dry_sequence_breaker.clone(),
        },
        stop_at_repetition: !args.sampler.allow_repetition,
        on_full: args.on_full,
        context_shift: args.context_shift,
        told_full: false,
        file,
        quiet: args.quiet,
        cancel: interrupt::on_ctrl_c(),
    };
    chat.run(Lines::new(!args.no_history))
}

/// The conversation of `--session`, or a new one.
fn begin(model: &Model, args: &ChatArgs) -> Result<(Option<SessionFile>, Talk)> {
    let new = || Talk { session: model.session(), history: History::new(args.system.as_deref()) };
    let Some(path) = &args.session else { return Ok((None, new())) };
    let file = SessionFile::new(path);
    let talk = match file.load(model)? {
        None => new(),
        Some((_, None)) => bail!("{}: it is the session of a text, not of a conversation", file.name()),
        Some((session, Some(history))) => {
            file.check_system(Some(&history), args.system.as_deref())?;
            if !args.quiet {
                let (messages, tokens) = (history.all().len(), session.tokens().len());
                let name = file.name();
                diagnostics::aside(format!("{messages} messages, {tokens} tokens from {name}"));
            }
            Talk { session, history }
        }
    };
    Ok((Some(file), talk))
}

struct Chat {
    talk: Talk,
    branches: Branches,
    settings: Settings,
    stop_at_repetition: bool,
    on_full: OnFull,
    context_shift: bool,
    /// Whether the user was told that old messages are dropped.
    told_full: bool,
    /// Where the session is saved at the end.
    file: Option<SessionFile>,
    quiet: bool,
    cancel: Cancel,
}

enum Turn {
    Go,
    Leave,
}

impl Chat {
    fn run(mut self, mut lines: Lines) -> Result<()> {
        let mut failed = false;
        if lines.is_interactive() {
            self.note("/help lists the commands");
        }
        loop {
            let turn = match lines.next()? {
                Input::End => break,
                Input::Refused(error) => Err(error),
                Input::Text(text) => self.turn(&text),
            };
            match turn {
                Ok(Turn::Go) => {}
                Ok(Turn::Leave) => break,
                // A closed pipe stays closed; any other error ends one turn.
                Err(error) if crate::is_broken_pipe(&error) => return Err(error),
                Err(error) => {
                    diagnostics::error(&error);
                    failed = true;
                }
            }
        }
        if let Some(file) = &self.file {
            file.save(&self.talk.session, Some(&self.talk.history))?;
            self.note(&format!("saved {} tokens to {}", self.talk.session.tokens().len(), file.name()));
        }
        // A user has seen the error; a script sees the exit code.
        anyhow::ensure!(!failed || lines.is_interactive(), "a turn failed");
        Ok(())
    }

    fn turn(&mut self, text: &str) -> Result<Turn> {
        let message = marks::unmarked(text);
        match message.strip_prefix('/').filter(|_| !marks::is_block(text)) {
            Some(command) => self.command(command),
            None if message.is_empty() => Ok(Turn::Go),
            None => self.say(&message).map(|()| Turn::Go),
        }
    }

    /// Starts over.
    fn begin(&mut self, history: History) {
        self.talk.history = history;
        self.told_full = false;
        self.talk.session.reset();
    }

    fn command(&mut self, command: &str) -> Result<Turn> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help" | "?", _) => diagnostics::lines(commands::HELP),
            ("exit" | "quit" | "bye", _) => return Ok(Turn::Leave),
            ("reset", _) => self.begin(History::new(self.talk.history.system())),
            ("system", "") => diagnostics::lines(self.talk.history.system().unwrap_or("no system prompt")),
            ("system", text) => self.begin(History::new(Some(text))),
            ("regen", "") => self.answer_again()?,
            ("undo", "") => match self.talk.history.undo() {
                Some(message) => {
                    let text = message.json["content"].as_str().unwrap_or_default();
                    self.note(&format!("removed: {}", foreign::one_line(text, 60)));
                }
                None => bail!("there is no message to remove"),
            },
            ("regen" | "undo", _) => bail!("/{name} takes nothing"),
            ("branch", "") => diagnostics::lines(&self.branches.list(&self.talk)),
            ("branch", name) => {
                let is_new = self.branches.switch(name, &mut self.talk)?;
                let what = if is_new { "a new branch" } else { "branch" };
                let count = self.talk.history.all().len();
                self.note(&format!("{what} {}, {count} messages", foreign::one_line(name, 40)));
            }
            ("set", "") => diagnostics::lines(&self.settings.list()),
            ("set", change) => {
                let (name, value) = change.split_once([' ', '=']).unwrap_or((change, ""));
                self.settings.change(name.trim(), value.trim())?;
            }
            ("save" | "load", "") => bail!("/{name} needs the name of a file"),
            ("save", file) => self.save(Path::new(file))?,
            ("load", file) => self.load(Path::new(file))?,
            _ => bail!("unknown command /{name}; /help lists the commands"),
        }
        Ok(Turn::Go)
    }

    /// A note on stderr, unless quiet.
    fn note(&self, text: &str) {
        if !self.quiet {
            diagnostics::aside(text);
        }
    }

    /// One turn: the user's message, then the answer. If there is no answer, the message is removed, so that it can be
    /// sent again.
    fn say(&mut self, text: &str) -> Result<()> {
        self.talk.history.ask(text);
        let answered = self.reply();
        if answered.is_err() {
            self.talk.history.take_back();
        }
        answered
    }

    /// Answers the last message once more. The next seed samples other tokens. If that fails, the answer stays.
    fn answer_again(&mut self) -> Result<()> {
        let before = self.talk.history.clone();
        if !self.talk.history.take_answer() {
            bail!("there is no answer yet");
        }
        let seed = &mut self.settings.sampler.seed;
        *seed = seed.wrapping_add(1);
        if self.settings.sampler.is_greedy() {
            self.note("at temperature 0 the answer is the same; /set temp changes it");
        }
        let answered = self.reply();
        if answered.is_err() {
            self.talk.history = before;
        }
        answered
    }

    /// Answers the last message.
    fn reply(&mut self) -> Result<()> {
        let prompt = self.prompt()?;
        let answer = self.answer(prompt)?;
        self.talk.history.answer(&answer);
        Ok(())
    }

    /// The conversation, as much of it as fits into the context.
    fn prompt(&mut self) -> Result<Vec<Message>> {
        let Talk { session, history } = &mut self.talk;
        let (model, settings) = (session.model(), &self.settings);
        let context = model.context().tokens;
        let fitted = history.fit(context, settings.max_tokens, self.on_full, |messages| {
            Ok(model.prompt_tokens(&settings.decoding.apply(Request::messages(messages)))?.len())
        })?;
        if fitted.dropped > 0 && !self.told_full {
            self.told_full = true;
            self.note(&format!(
                "the context of {context} tokens is full: the oldest messages are dropped from the prompt, {} so far \
                 (--on-full stop makes this an error)",
                fitted.dropped
            ));
        }
        Ok(fitted.messages)
    }

    fn answer(&mut self, prompt: Vec<Message>) -> Result<Answer> {
        self.cancel.reset();
        let mut request = Request::new(Prompt::Messages(prompt))
            .sampler(self.settings.sampler.clone())
            .stop_at_repetition(self.stop_at_repetition)
            .cancel(self.cancel.clone());
        if self.context_shift {
            let (system, decoding) = (self.talk.history.system(), &self.settings.decoding);
            request =
                request.context_shift(context_shift::kept(self.talk.session.model(), decoding, system)?);
        }
        if let Some(most) = self.settings.max_tokens {
            request = request.max_tokens(most);
        }
        request = with_breakers(request, &self.settings.dry_breakers);
        let mut out = Wrap::new(std::io::stdout().lock(), wrap::terminal_width());
        let mut pieces = Pieces::new(self.quiet);
        let decoding = &self.settings.decoding;
        let generation = self.talk.session.generate(decoding.apply(request));
        let generation = generation.map_err(|error| decoding.explain(error))?;
        let generated = answer::generate(generation, self.quiet, |piece| {
            pieces.show(piece, |text| Ok(out.push(&screen::shown(text))?))
        });
        pieces.end()?;
        // Text held back for wrapping belongs to the answer even if that failed.
        out.finish()?;
        let answer = generated?.into_iter().next().context("internal error: no answer")?;
        // A Ctrl-C during the answer has been handled.
        self.cancel.reset();
        self.note(&answer.statistics());
        Ok(answer)
    }

    fn save(&self, path: &Path) -> Result<()> {
        let messages: Vec<_> = self.talk.history.all().collect();
        let text = serde_json::to_string_pretty(&messages)?;
        OutputFile::write(path, text + "\n")?;
        self.note(&format!("saved {} messages to {}", messages.len(), foreign::path(path)));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let conversation = Conversation::from_json(&text).with_context(|| path.display().to_string())?;
        self.begin(History::from(conversation.messages().to_vec()));
        self.note(&format!("{} messages from {}", self.talk.history.all().len(), foreign::path(path)));
        Ok(())
    }
}
