//! Bounds on the time and memory of a constraint.

use std::time::Duration;

use llguidance::api::ParserLimits;

use crate::Error;

/// Bounds on what a constraint may cost. Each names itself in [`Error::Limit`] when it is exceeded.
///
/// The engine counts its work, so that the same constraint exceeds a limit on every machine or on none; `compile_time`
/// is a net below that.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a grammar, schema or regular expression.
    pub source_bytes: usize,
    /// Nesting of groups, brackets and sub-schemas.
    pub depth: usize,
    /// Sub-schemas of a JSON schema after references were resolved.
    pub schemas: usize,
    /// Properties of one object of a JSON schema.
    pub properties: usize,
    /// The largest count of a repetition, such as `{1000}` or `maxItems`.
    pub repetition: usize,
    /// Rules of a GBNF grammar.
    pub rules: usize,
    /// Groups and rules of a GBNF or Lark grammar that are inside one another, along the references from the first rule.
    pub chain: usize,
    /// Symbols of the compiled grammar.
    pub grammar_size: usize,
    /// Work of building the first lexer state, of comparing the lexemes of a GBNF grammar, and of large classes of characters;
    /// about 50,000 a millisecond.
    pub compile_work: u64,
    /// Time to compile a constraint.
    pub compile_time: Duration,
    /// Compilations of a vocabulary that run at once. Those beyond wait, at most for `compile_time`. One whose time is
    /// over counts until the engine has stopped.
    pub compilations: usize,
    /// Work of the lexer for one mask; about 14,000 a millisecond.
    pub lexer_work: u64,
    /// Parser items made for one mask; about 20,000 a millisecond.
    pub parser_items: usize,
    /// Parser items of one position: how ambiguous a text may be.
    pub ambiguity: usize,
    /// Lexer states of one constraint; 1 to 2 KiB each.
    pub lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            source_bytes: 1 << 20,
            depth: 64,
            schemas: 20_000,
            properties: 1_000,
            repetition: 10_000,
            rules: 4_000,
            chain: 16_000,
            grammar_size: 300_000,
            compile_work: 2_000_000,
            compile_time: Duration::from_secs(10),
            compilations: 4,
            lexer_work: 300_000,
            parser_items: 60_000,
            ambiguity: 5_000,
            lexer_states: 60_000,
        }
    }
}

impl Limits {
    /// Refuses a text that is too long.
    pub(crate) fn check_source(&self, text: &str) -> Result<(), Error> {
        if text.len() <= self.source_bytes {
            return Ok(());
        }
        Err(self.exceeded("source_bytes", self.source_bytes, format!("the text has {} bytes", text.len())))
    }

    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), Error> {
        if depth <= self.depth {
            return Ok(());
        }
        Err(self.exceeded("depth", self.depth, "brackets or sub-schemas are nested more deeply".to_owned()))
    }

    /// Refuses nesting that is too deep at a byte of `text`.
    pub(crate) fn check_depth_at(&self, depth: usize, text: &str, offset: usize) -> Result<(), Error> {
        if depth <= self.depth {
            return Ok(());
        }
        let (line, column) = Error::place(text, offset);
        Err(self.exceeded("depth", self.depth, format!("line {line}, column {column} is nested more deeply")))
    }

    /// Refuses a class of characters at a byte of `text` that takes the engine's parser too long.
    pub(crate) fn check_class(&self, ranges: u64, text: &str, offset: usize) -> Result<(), Error> {
        if ranges.saturating_mul(ranges) / (2 * SORTED_PER_UNIT) <= self.compile_work {
            return Ok(());
        }
        let (line, column) = Error::place(text, offset);
        let reason = format!("the class at line {line}, column {column} has {ranges} ranges");
        Err(self.exceeded("compile_work", self.compile_work as usize, reason))
    }

    pub(crate) fn check_repetition(&self, count: u64, what: &str) -> Result<(), Error> {
        if count <= self.repetition as u64 {
            return Ok(());
        }
        Err(self.exceeded("repetition", self.repetition, format!("{what} is {count}")))
    }

    pub(crate) fn exceeded(&self, limit: &'static str, allowed: usize, reason: String) -> Error {
        Error::Limit { limit, allowed: allowed as u64, reason }
    }

    /// A compilation has taken too long.
    pub(crate) fn late(&self) -> Error {
        let allowed = self.compile_time.as_millis() as usize;
        self.exceeded("compile_time", allowed, "the compilation takes more milliseconds".to_owned())
    }

    pub(crate) fn engine(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: self.ambiguity,
            initial_lexer_fuel: self.compile_work,
            step_lexer_fuel: self.lexer_work,
            step_max_items: self.parser_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.grammar_size,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }

    /// The limit that stopped the compilation, from the engine's message.
    pub(crate) fn named(&self, message: &str) -> Option<Error> {
        let limit = |name, allowed| Some(self.exceeded(name, allowed, first_line(message)));
        let has = |part: &str| message.contains(part);
        if has("grammar size (number of symbols)") {
            limit("grammar_size", self.grammar_size)
        } else if has("initial lexer configuration") || has("lexer precomputation failed") || has("fuel") {
            limit("compile_work", self.compile_work as usize)
        } else if has("grammar.symbols.len()") {
            // An assertion of the engine, which numbers symbols with 16 bits.
            let reason = "the grammar has more symbols than the engine can number, 65,525".to_owned();
            Some(self.exceeded("grammar_size", self.grammar_size, reason))
        } else if has("too deeply nested") || has("maximum number of nested") {
            limit("depth", self.depth)
        } else if has("schema too large") || has("stack level exceeded") {
            limit("schemas", self.schemas)
        } else {
            None
        }
    }

    /// The limit that stopped a step, from the engine's message.
    pub(crate) fn step(&self, message: &str) -> Option<Error> {
        let limit = |name, allowed| Some(self.exceeded(name, allowed, first_line(message)));
        let has = |part: &str| message.contains(part);
        if has("too many states") {
            limit("lexer_states", self.lexer_states)
        } else if has("too many expressions") || has("lexer error") {
            limit("lexer_work", self.lexer_work as usize)
        } else if has("Current row has") {
            limit("ambiguity", self.ambiguity)
        } else if has("items limit") || has("Too many items") {
            limit("parser_items", self.parser_items)
        } else {
            None
        }
    }
}

/// Ranges of a class of characters that the parser of regular expressions passes over in the time of a unit of
/// [`Limits::compile_work`]. It sorts them again with each one.
pub(crate) const SORTED_PER_UNIT: u64 = 100;

/// The first line of an engine's message, without its state.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim_end_matches("; stopping").to_owned()
}
