//! GBNF, the grammars of llama.cpp, translated to Lark.
//!
//! GBNF has characters; the engine has lexemes, of which it takes the longest that matches. A grammar without recursion is
//! one regular expression, and so one lexeme. In others, the largest regular parts become lexemes. Two lexemes conflict if
//! the text of one could go on as the other where the grammar could go on with something else; then the longest match would
//! lose a text that the grammar has. Such lexemes are split until none conflict. At the end stand single characters,
//! which never conflict, so the translation is exact.

mod ast;
mod check;
mod conflict;
mod follow;
mod lark;
mod lexemes;
mod parser;
mod positions;
mod simplify;
#[cfg(test)]
mod tests;

use crate::Error;
use crate::work::Work;

/// What errors call it.
const LANGUAGE: &str = "GBNF";

/// The grammar in Lark.
pub(crate) fn to_lark(text: &str, work: &Work<'_>) -> Result<String, Error> {
    work.limits.check_source(text)?;
    let grammar = parser::parse(text, work.limits)?;
    check::check(&grammar, text, work)?;
    let grammar = simplify::simplify(grammar, work)?;
    lexemes::to_lark(&grammar, work)
}
