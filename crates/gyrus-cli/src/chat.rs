//! `gyrus chat`: a conversation with a model.

mod history;
mod input;

use std::path::Path;

use anyhow::{Context, Result};
use gyrus::text::template::Conversation;
use gyrus::{Cancel, Message, Precision, Prompt, Request, Sampler, Session};

use crate::answer::{self, Answer};
use crate::cli::{ChatArgs, OnFull};
use crate::decoding::Decoding;
use crate::diagnostics;
use crate::foreign;
use crate::interrupt;
use crate::load::load;
use crate::output::OutputFile;
use crate::pieces::Pieces;
use crate::screen;
use crate::source::Source;
use crate::usage::usage;
use crate::wrap::{self, Wrap};
use history::History;
use input::{Input, Lines};

const HELP: &str = "\
/help            this list
/reset           forget the conversation
/system TEXT     start over with this system prompt; without TEXT show it
/save FILE       write the conversation to a file
/load FILE       continue a conversation from a file
/exit            quit, as does Ctrl-D
Ctrl-C stops an answer and keeps the part that was generated.";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    if args.decoding.reads_stdin() {
        return Err(usage("stdin has the conversation: name a file for the schema or grammar"));
    }
    let mut decoding = args.decoding.read()?;
    let source = Source::resolve(args.model.as_deref())?;
    let options = args.model_options.options(Precision::Fast);
    let model = load(&source, &options, args.quiet)?;
    decoding.load_draft(&args.decoding, &model, &options, args.quiet)?;
    let format = model.chat_format()?;
    if let Some(name) = format.fallback().filter(|_| !args.quiet) {
        diagnostics::note(format!("the model has no chat template, using the {name} template"));
    }
    let chat = Chat {
        session: model.session(),
        sampler: args.sampler.sampler(model.sampling()),
        decoding,
        stop_at_repetition: !args.sampler.allow_repetition,
        max_tokens: args.max_tokens,
        on_full: args.on_full,
        told_full: false,
        history: History::new(args.system.as_deref()),
        quiet: args.quiet,
        cancel: interrupt::on_ctrl_c(),
    };
    chat.run()
}

struct Chat {
    session: Session,
    sampler: Sampler,
    decoding: Decoding,
    stop_at_repetition: bool,
    max_tokens: Option<usize>,
    on_full: OnFull,
    /// Whether the user was told that old messages are dropped.
    told_full: bool,
    history: History,
    quiet: bool,
    cancel: Cancel,
}

enum Turn {
    Go,
    Leave,
}

impl Chat {
    fn run(mut self) -> Result<()> {
        let mut lines = Lines::new();
        let mut failed = false;
        if lines.is_interactive() {
            self.note("/help lists the commands");
        }
        loop {
            let turn = match lines.next()? {
                Input::End => break,
                Input::Refused(error) => Err(error),
                Input::Line(line) => self.turn(line.trim()),
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
        lines.save();
        // A user has seen the error; a script sees the exit code.
        anyhow::ensure!(!failed || lines.is_interactive(), "a turn failed");
        Ok(())
    }

    fn turn(&mut self, line: &str) -> Result<Turn> {
        match line.strip_prefix('/') {
            Some(command) => self.command(command),
            None if line.is_empty() => Ok(Turn::Go),
            None => self.say(line).map(|()| Turn::Go),
        }
    }

    /// Starts over.
    fn begin(&mut self, history: History) {
        self.history = history;
        self.told_full = false;
        self.session.reset();
    }

    fn command(&mut self, command: &str) -> Result<Turn> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help" | "?", _) => diagnostics::lines(HELP),
            ("exit" | "quit" | "bye", _) => return Ok(Turn::Leave),
            ("reset", _) => self.begin(History::new(self.history.system())),
            ("system", "") => diagnostics::lines(self.history.system().unwrap_or("no system prompt")),
            ("system", text) => self.begin(History::new(Some(text))),
            ("save" | "load", "") => anyhow::bail!("/{name} needs the name of a file"),
            ("save", file) => self.save(Path::new(file))?,
            ("load", file) => self.load(Path::new(file))?,
            _ => anyhow::bail!("unknown command /{name}; /help lists the commands"),
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
        self.history.ask(text);
        let answered = self.prompt().and_then(|prompt| self.answer(prompt));
        match answered {
            Ok(answer) => {
                self.history.answer(&answer);
                Ok(())
            }
            Err(error) => {
                self.history.take_back();
                Err(error)
            }
        }
    }

    /// The conversation, as much of it as fits into the context.
    fn prompt(&mut self) -> Result<Vec<Message>> {
        let model = self.session.model();
        let context = model.context().tokens;
        let fitted = self.history.fit(context, self.max_tokens, self.on_full, |messages| {
            Ok(model.prompt_tokens(&self.decoding.apply(Request::messages(messages)))?.len())
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
            .sampler(self.sampler.clone())
            .stop_at_repetition(self.stop_at_repetition)
            .cancel(self.cancel.clone());
        if let Some(most) = self.max_tokens {
            request = request.max_tokens(most);
        }
        let mut out = Wrap::new(std::io::stdout().lock(), wrap::terminal_width());
        let mut pieces = Pieces::new(self.quiet);
        let request = self.decoding.apply(request);
        let generation = self.session.generate(request).map_err(|error| self.decoding.explain(error))?;
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
        let messages: Vec<_> = self.history.all().collect();
        let text = serde_json::to_string_pretty(&messages)?;
        OutputFile::write(path, text + "\n")?;
        self.note(&format!("saved {} messages to {}", messages.len(), foreign::path(path)));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let conversation = Conversation::from_json(&text).with_context(|| path.display().to_string())?;
        self.begin(History::from(conversation.messages().to_vec()));
        self.note(&format!("{} messages from {}", self.history.all().len(), foreign::path(path)));
        Ok(())
    }
}
