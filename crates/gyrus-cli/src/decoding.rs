//! Flags of what an answer must look like: constraints, stop strings, tools, reasoning.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use gyrus::constrain::Source;
use gyrus::tools::{ToolChoice, Tools};
use gyrus::{Model, Options, Request, Speculation};

use crate::foreign;
use crate::load::load;
use crate::source;
use crate::usage::usage;

/// The most bytes of a schema, grammar or tools file: those of the engine's own limit.
const MAX_BYTES: u64 = 1 << 20;

/// The texts that an answer may be.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer options")]
pub(crate) struct ConstraintArgs {
    /// Answer with JSON that this JSON Schema describes; - reads it from stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grammar", "regex"])]
    json_schema: Option<PathBuf>,

    /// Answer with text of this grammar: GBNF, or Lark if the file's name ends in .lark; - reads GBNF from stdin
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    grammar: Option<PathBuf>,

    /// Answer with text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
}

impl ConstraintArgs {
    /// The constraint, and what errors call it.
    pub(crate) fn read(&self) -> Result<Option<(String, Source)>> {
        Ok(match (&self.json_schema, &self.grammar, &self.regex) {
            (Some(path), ..) => Some((name(path), Source::Schema(read(path)?))),
            (_, Some(path), _) if path.extension().is_some_and(|end| end == "lark") => {
                Some((name(path), Source::Lark(read(path)?)))
            }
            (_, Some(path), _) => Some((name(path), Source::Gbnf(read(path)?))),
            (.., Some(regex)) => Some(("--regex".to_owned(), Source::Regex(regex.clone()))),
            _ => None,
        })
    }
}

/// What an answer must look like.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer options")]
pub(crate) struct DecodingArgs {
    #[command(flatten)]
    constraint: ConstraintArgs,

    /// Stop string: generation stops before it; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Tools that the model may call: a JSON list as in chat requests. Calls are printed as JSON, one to a line
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Which tools to call: auto, none, required, or the name of one. Required calls keep to the tools' schemas
    #[arg(long, value_name = "CHOICE", requires = "tools")]
    pub(crate) tool_choice: Option<String>,

    /// Guess tokens that the prompt or the answer has had before, and verify several in one pass. The answer is the same
    #[arg(long)]
    pub(crate) speculate: bool,

    /// A smaller model of the same vocabulary that guesses tokens, too; implies --speculate
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<OsString>,

    /// Switch reasoning on or off, if the model's chat template can [default: the template's own]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(crate) think: Option<Switch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// The flags with the contents of their files.
#[derive(Debug, Clone)]
pub(crate) struct Decoding {
    constraint: Option<(String, Source)>,
    stop: Vec<String>,
    tools: Option<(String, Tools)>,
    tool_choice: ToolChoice,
    reasoning: Option<bool>,
    speculation: Option<Speculation>,
}

impl DecodingArgs {
    /// Whether a file is read from stdin, so that the prompt cannot be.
    pub(crate) fn reads_stdin(&self) -> bool {
        [&self.constraint.json_schema, &self.constraint.grammar]
            .into_iter()
            .flatten()
            .any(|path| path == Path::new("-"))
    }

    /// Whether a flag needs a chat template, and which.
    pub(crate) fn needs_template(&self) -> Option<&'static str> {
        let flags = [("--tools", self.tools.is_some()), ("--think", self.think.is_some())];
        flags.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> Result<Decoding> {
        let constraint = self.constraint.read()?;
        let tools = match &self.tools {
            Some(path) => Some((name(path), Tools::from_json(&read(path)?).with_context(|| name(path))?)),
            None => None,
        };
        let tool_choice = match self.tool_choice.as_deref() {
            None | Some("auto") => ToolChoice::Auto,
            Some("none") => ToolChoice::None,
            Some("required") => ToolChoice::Required,
            Some(name) => ToolChoice::Named(name.to_owned()),
        };
        let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if must_call && constraint.is_some() {
            return Err(usage("--tool-choice with a call that must be made excludes other constraints"));
        }
        let reasoning = self.think.map(|switch| switch == Switch::On);
        let (stop, speculation) = (self.stop.clone(), self.speculate.then_some(Speculation::Lookup));
        Ok(Decoding { constraint, stop, tools, tool_choice, reasoning, speculation })
    }
}

impl Decoding {
    /// Whether reasoning is switched on or off; `None` for the template's own.
    pub(crate) fn reasoning(&self) -> Option<bool> {
        self.reasoning
    }

    pub(crate) fn set_reasoning(&mut self, enabled: Option<bool>) {
        self.reasoning = enabled;
    }

    /// Adds the flags to a request.
    pub(crate) fn apply(&self, request: Request) -> Request {
        let mut request = request.stop(self.stop.clone()).tool_choice(self.tool_choice.clone());
        if let Some((_, source)) = &self.constraint {
            request = request.constraint(source.clone());
        }
        if let Some((_, tools)) = &self.tools {
            request = request.tools(tools.clone());
        }
        if let Some(speculation) = &self.speculation {
            request = request.speculation(speculation.clone());
        }
        match self.reasoning {
            Some(enabled) => request.reasoning(enabled),
            None => request,
        }
    }

    /// Loads the draft model of a model that was loaded with these options, if there is one.
    pub(crate) fn load_draft(
        &mut self,
        args: &DecodingArgs,
        model: &Model,
        options: &Options,
        quiet: bool,
    ) -> Result<()> {
        let Some(name) = &args.draft else { return Ok(()) };
        let source = source::Source::resolve(Some(name)).context("--draft")?;
        let draft = load(&source, options, quiet).context("--draft")?;
        self.speculation = Some(Speculation::model(model, draft).context("--draft")?);
        Ok(())
    }

    /// The error of a request with the name of the file that it is about.
    pub(crate) fn explain(&self, error: gyrus::Error) -> anyhow::Error {
        let about = match &error {
            gyrus::Error::Constraint(_) | gyrus::Error::Constrained { .. } => {
                self.constraint.as_ref().map(|(name, _)| name).or(self.tools.as_ref().map(|(name, _)| name))
            }
            gyrus::Error::Tools(_) => self.tools.as_ref().map(|(name, _)| name),
            _ => None,
        };
        let about = about.cloned();
        match about {
            Some(name) => anyhow::Error::from(error).context(name),
            None => error.into(),
        }
    }
}

/// What errors call a file.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { foreign::path(path).to_string() }
}

fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES + 1;
    if path == Path::new("-") {
        if std::io::stdin().is_terminal() {
            return Err(usage("- reads from stdin, which is a terminal: name a file, or pipe one in"));
        }
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).context("stdin")?;
    } else {
        let file = std::fs::File::open(path).with_context(|| name(path))?;
        file.take(limit).read_to_end(&mut bytes).with_context(|| name(path))?;
    }
    anyhow::ensure!(bytes.len() as u64 <= MAX_BYTES, "{}: more than {MAX_BYTES} bytes", name(path));
    String::from_utf8(bytes).with_context(|| format!("{}: not UTF-8", name(path)))
}
