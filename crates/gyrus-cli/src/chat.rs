//! `gyrus chat`: a conversation with a model.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gyrus::text::template::Conversation;
use gyrus::{Cancel, ChatFormat, Precision, Prompt, Request, Sampler, Sampling, Session, StopReason};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::answer;
use crate::cli::ChatArgs;
use crate::interrupt;
use crate::load::load;
use crate::source::Source;
use crate::text::{BAD, FAINT, NAME};

const HELP: &str = "\
/help            this list
/reset           forget the conversation
/system TEXT     begin anew with these instructions; without TEXT show them
/save FILE       write the conversation to a file
/load FILE       go on with a conversation from a file
/exit            leave, as does Ctrl-D
Ctrl-C stops an answer and keeps what was said.";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    // Flags that cannot be are said before a model is loaded.
    args.sampler.sampler(&Sampling::default())?;
    let source = Source::resolve(args.model.as_deref())?;
    let model = load(&source, &args.model_options.options(Precision::Fast), args.quiet)?;
    let format = model.chat_format()?;
    if let Some(name) = format.fallback() {
        anstream::eprintln!("the model carries no chat template, using the {name} form");
    }
    let chat = Chat {
        session: model.session(),
        format,
        sampler: args.sampler.sampler(model.sampling())?,
        stop_at_repetition: !args.sampler.allow_repetition,
        max_tokens: args.max_tokens,
        messages: Vec::new(),
        quiet: args.quiet,
        cancel: interrupt::on_ctrl_c(),
    };
    chat.run(args.system.as_deref())
}

struct Chat {
    session: Session,
    format: ChatFormat,
    sampler: Sampler,
    stop_at_repetition: bool,
    max_tokens: Option<usize>,
    /// Role and content, as the template takes them.
    messages: Vec<Value>,
    quiet: bool,
    cancel: Cancel,
}

enum Turn {
    Go,
    Leave,
}

impl Chat {
    fn run(mut self, system: Option<&str>) -> Result<()> {
        self.begin(system);
        let mut editor = Editor::new();
        let mut failed = false;
        if editor.is_interactive() && !self.quiet {
            anstream::eprintln!(
                "{}/help lists what else can be typed here{}",
                FAINT.render(),
                FAINT.render_reset()
            );
        }
        while let Some(line) = editor.line()? {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let turn = match line.strip_prefix('/') {
                Some(command) => self.command(command),
                None => self.say(line).map(|()| Turn::Go),
            };
            match turn {
                Ok(Turn::Go) => {}
                Ok(Turn::Leave) => break,
                // A reader that is gone will not come back; any other trouble ends one turn.
                Err(error) if crate::is_broken_pipe(&error) => return Err(error),
                Err(error) => {
                    anstream::eprintln!("{}error:{} {error:#}", BAD.render(), BAD.render_reset());
                    failed = true;
                }
            }
        }
        editor.save();
        // A person has seen it; a script must be told.
        anyhow::ensure!(!failed || editor.is_interactive(), "a turn failed");
        Ok(())
    }

    fn begin(&mut self, system: Option<&str>) {
        self.messages.clear();
        self.session.reset();
        if let Some(text) = system {
            self.messages.push(json!({ "role": "system", "content": text }));
        }
    }

    fn command(&mut self, command: &str) -> Result<Turn> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help" | "?", _) => self.tell(HELP)?,
            ("exit" | "quit" | "bye", _) => return Ok(Turn::Leave),
            ("reset", _) => {
                let system = self.system().map(str::to_owned);
                self.begin(system.as_deref());
            }
            ("system", "") => self.tell(self.system().unwrap_or("no instructions"))?,
            ("system", text) => self.begin(Some(text)),
            ("save" | "load", "") => anyhow::bail!("/{name} needs the name of a file"),
            ("save", file) => self.save(Path::new(file))?,
            ("load", file) => self.load(Path::new(file))?,
            _ => anyhow::bail!("/{name} is not known, /help lists what is"),
        }
        Ok(Turn::Go)
    }

    fn tell(&self, text: &str) -> Result<()> {
        Ok(writeln!(std::io::stdout().lock(), "{text}")?)
    }

    fn system(&self) -> Option<&str> {
        let first = self.messages.first()?;
        (first["role"] == "system").then(|| first["content"].as_str())?
    }

    /// One turn: the user's words, then the model's. If there is no answer, the user's words are taken back,
    /// so that they can be said again.
    fn say(&mut self, text: &str) -> Result<()> {
        self.messages.push(json!({ "role": "user", "content": text }));
        let answered = self.answer();
        match &answered {
            Ok(answer) => self.messages.push(json!({ "role": "assistant", "content": answer })),
            Err(_) => drop(self.messages.pop()),
        }
        answered.map(|_| ())
    }

    fn answer(&mut self) -> Result<String> {
        let conversation = Conversation::new(self.messages.clone())?;
        let model = self.session.model();
        let tokenizer = model.tokenizer().context("the model has no tokenizer")?;
        let prompt = Prompt::Whole(self.format.tokens(&conversation, tokenizer, true, |_| None)?);
        self.cancel.reset();
        let mut request = Request::new(prompt)
            .sampler(self.sampler.clone())
            .stop_at_repetition(self.stop_at_repetition)
            .cancel(self.cancel.clone());
        if let Some(most) = self.max_tokens {
            request = request.max_tokens(most);
        }
        let mut out = std::io::stdout().lock();
        let generation = self.session.generate(request)?;
        let answer = answer::draw(generation, self.quiet, |text| {
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        })?;
        writeln!(out)?;
        drop(out);
        // A switch thrown during the answer has done its work.
        self.cancel.reset();
        if !self.quiet || answer.reason == StopReason::ContextFull {
            anstream::eprintln!("{}{}{}", FAINT.render(), answer.statistics(), FAINT.render_reset());
        }
        Ok(answer.text)
    }

    fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.messages)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
        self.tell(&format!("saved {} messages to {}", self.messages.len(), path.display()))
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let conversation = Conversation::from_json(&text).with_context(|| path.display().to_string())?;
        self.messages = conversation.messages().to_vec();
        self.tell(&format!("{} messages from {}", self.messages.len(), path.display()))
    }
}

/// Lines from the user: with editing and history on a terminal, plain from a pipe.
struct Editor {
    terminal: Option<rustyline::DefaultEditor>,
    history: Option<PathBuf>,
}

impl Editor {
    fn new() -> Editor {
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let mut terminal = interactive.then(rustyline::DefaultEditor::new).and_then(Result::ok);
        let history = crate::environment::Environment::of_process()
            .cache()
            .ok()
            .map(|folder| folder.join("history.txt"));
        if let (Some(editor), Some(path)) = (&mut terminal, &history) {
            // No history yet is the usual first time.
            let _ = editor.load_history(path);
        }
        Editor { terminal, history }
    }

    fn is_interactive(&self) -> bool {
        self.terminal.is_some()
    }

    /// The next line; `None` at the end of input. Ctrl-C on an empty prompt only clears the line.
    fn line(&mut self) -> Result<Option<String>> {
        let Some(editor) = &mut self.terminal else {
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line).context("stdin")?;
            return Ok((read > 0).then_some(line));
        };
        // The editor writes to the terminal itself, so the choice about colour is made here.
        let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        let style = if colour { NAME } else { anstyle::Style::new() };
        let prompt = format!("{}>{} ", style.render(), style.render_reset());
        loop {
            match editor.readline(&prompt) {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error).context("the terminal"),
            }
        }
    }

    fn save(&mut self) {
        if let (Some(editor), Some(path)) = (&mut self.terminal, &self.history) {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let _ = editor.save_history(path);
        }
    }
}
