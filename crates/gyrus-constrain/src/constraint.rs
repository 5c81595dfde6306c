//! Constraints: compiled once for a vocabulary, started for each sequence.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;

use crate::limits::first_line;
use crate::trigger::Trigger;
use crate::work::Work;
use crate::{Error, State, Vocabulary, gbnf, lark, regex, schema, template};

/// What text must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Any JSON value.
    Json,
    /// Any JSON object.
    JsonObject,
    /// JSON that a JSON Schema describes: draft 2020-12, or an older one that `$schema` names.
    Schema(String),
    /// Text that a regular expression matches as a whole, in the syntax of Rust's crate `regex`.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// Texts and JSON in a fixed frame, such as tool calls.
    Template(template::Part),
}

impl Source {
    /// What errors call it.
    pub fn language(&self) -> &'static str {
        match self {
            Source::Json | Source::JsonObject | Source::Schema(_) => "JSON schema",
            Source::Regex(_) => "regex",
            Source::Lark(_) => "Lark",
            Source::Gbnf(_) => "GBNF",
            Source::Template(_) => "template",
        }
    }
}

/// A compiled constraint. Cheap to clone; [`Constraint::start`] gives a sequence its own [`State`].
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Vocabulary,
    prototype: Arc<Matcher>,
    trigger: Option<Arc<Trigger>>,
}

impl Constraint {
    pub(crate) fn new(vocabulary: &Vocabulary, source: &Source) -> Result<Constraint, Error> {
        let (limits, running) = (&vocabulary.inner().limits, &vocabulary.inner().running);
        let permit = running.enter(limits.compilations, limits.compile_time).ok_or_else(|| {
            let reason = "no other compilation has ended in time".to_owned();
            limits.exceeded("compilations", limits.compilations, reason)
        })?;
        // The engine recurses over chains of references and lists of properties, so it needs a deep stack. Its work is
        // counted, and a clock bounds ours. A thread that is late ends by itself, and keeps its permit until then.
        let (send, receive) = mpsc::channel();
        let (own, text) = (vocabulary.clone(), source.clone());
        let run = move || {
            let _permit = permit;
            drop(send.send(prototype(&own, &text)));
        };
        let thread = std::thread::Builder::new().name("constraint".into()).stack_size(STACK_BYTES);
        let language = source.language();
        thread
            .spawn(run)
            .map_err(|error| Error::Unsupported { language, reason: format!("no thread: {error}") })?;
        let compiled = receive.recv_timeout(limits.compile_time).map_err(|error| match error {
            RecvTimeoutError::Timeout => limits.late(),
            RecvTimeoutError::Disconnected => {
                Error::Unsupported { language, reason: "the engine failed".into() }
            }
        })?;
        Ok(Constraint { vocabulary: vocabulary.clone(), prototype: Arc::new(compiled?), trigger: None })
    }

    /// The same constraint, for the text that follows the first occurrence of `trigger`, such as `</think>`.
    ///
    /// Before it, a mask forbids only end tokens, unused ids, and tokens that go on behind the trigger in a way that
    /// the constraint does not allow. White space behind the trigger in the same token is allowed.
    pub fn after(&self, trigger: &str) -> Constraint {
        self.after_header(trigger, "")
    }

    /// As [`Constraint::after`], of a trigger in two parts: behind `begin` only `end` may follow. For headers that models write
    /// in several forms, of which one is the trigger.
    pub fn after_header(&self, begin: &str, end: &str) -> Constraint {
        let trigger = Trigger::new(begin, end, &self.vocabulary, &self.prototype);
        Constraint { trigger: trigger.map(Arc::new), ..self.clone() }
    }

    /// The state of a new sequence.
    pub fn start(&self) -> State {
        State::new(self.vocabulary.clone(), self.prototype.deep_clone(), self.trigger.clone())
    }

    /// The vocabulary that it was compiled for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }
}

/// Stack of the thread that compiles: twice what unoptimised code needs for the longest chain of the default limits.
const STACK_BYTES: usize = 128 << 20;

fn prototype(vocabulary: &Vocabulary, source: &Source) -> Result<Matcher, Error> {
    let inner = vocabulary.inner();
    let (limits, language) = (&inner.limits, source.language());
    let work = &Work::new(limits);
    let grammar = match source {
        Source::Json => TopLevelGrammar::from_json_schema(schema::any()),
        Source::JsonObject => TopLevelGrammar::from_json_schema(schema::object()),
        Source::Schema(text) => TopLevelGrammar::from_json_schema(schema::prepare_text(text, work)?),
        Source::Regex(text) => TopLevelGrammar::from_lark(regex::to_lark(text, limits)?),
        Source::Lark(text) => {
            lark::check(text, limits)?;
            TopLevelGrammar::from_lark(text.clone())
        }
        Source::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text, work)?),
        Source::Template(part) => {
            TopLevelGrammar::from_lark(template::to_lark(part, inner.factory.tok_env().tok_trie(), work)?)
        }
    };
    let refused = |message: &str| limits.named(message).unwrap_or_else(|| explain(language, source, message));
    let parser = inner.factory.create_parser(grammar).map_err(|error| refused(&format!("{error:#}")))?;
    let mut prototype = Matcher::new(Ok(parser));
    // The first mask shows whether any text is possible, and its states are shared by all sequences.
    prototype.compute_mask_or_eos().map_err(|error| {
        let reason = first_line(&error.to_string()).replace("NoExtensionBias", "no token can come first");
        limits.step(&reason).unwrap_or(Error::Unsatisfiable { language, reason })
    })?;
    Ok(prototype)
}

/// An engine's message as an error of ours.
fn explain(language: &'static str, source: &Source, message: &str) -> Error {
    if let Some(reason) = message.split("Unsatisfiable schema: ").nth(1) {
        return Error::Unsatisfiable { language, reason: first_line(reason) };
    }
    if let Some(error) = schema::explain(message) {
        return error;
    }
    // Errors of Lark begin with `at line(column): `.
    if let (Source::Lark(_), Some((place, reason))) = (source, message.split_once("): ")) {
        let (line, column) = place
            .rsplit_once(['\n', ' '])
            .map_or(place, |(_, last)| last)
            .split_once('(')
            .unwrap_or_default();
        if let (Ok(line), Ok(column)) = (line.parse(), column.parse()) {
            return Error::Syntax { language, line, column, message: first_line(reason) };
        }
    }
    Error::Unsupported { language, reason: message.lines().take(3).collect::<Vec<_>>().join(" ") }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint")
            .field("vocabulary", &self.vocabulary)
            .field("trigger", &self.trigger)
            .finish()
    }
}
