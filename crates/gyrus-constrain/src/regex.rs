//! Regular expressions.

use regex_syntax::ast;

use crate::{Error, Limits};

const LANGUAGE: &str = "regex";

/// The grammar of a text that the expression matches as a whole, in Lark.
pub(crate) fn to_lark(text: &str, limits: &Limits) -> Result<String, Error> {
    Ok(format!("start: /{}/", checked(text, limits)?))
}

/// An expression that parses, for use between slashes in Lark.
pub(crate) fn checked(text: &str, limits: &Limits) -> Result<String, Error> {
    limits.check_source(text)?;
    let parsed = ast::parse::ParserBuilder::new().nest_limit(limits.depth as u32).build().parse(text);
    match parsed {
        Ok(ast) => check(&ast, text, limits)?,
        Err(error) => match error.kind() {
            ast::ErrorKind::NestLimitExceeded(_) => limits.check_depth(usize::MAX)?,
            kind => return Err(Error::syntax(LANGUAGE, text, error.span().start.offset, kind.to_string())),
        },
    }
    Ok(llguidance::regex_to_lark(text, ""))
}

/// Refuses what the engine lacks, with its place, and counts of repetitions that are too large.
fn check(ast: &ast::Ast, text: &str, limits: &Limits) -> Result<(), Error> {
    let refuse =
        |offset, what: &str| Err(Error::syntax(LANGUAGE, text, offset, format!("{what} is not supported")));
    match ast {
        ast::Ast::Assertion(assertion) => match assertion.kind {
            // The whole text is matched, so anchors at its ends change nothing; the engine allows no others.
            ast::AssertionKind::StartLine | ast::AssertionKind::StartText
                if assertion.span.start.offset == 0 =>
            {
                Ok(())
            }
            ast::AssertionKind::EndLine | ast::AssertionKind::EndText
                if assertion.span.end.offset == text.len() =>
            {
                Ok(())
            }
            ast::AssertionKind::WordBoundary | ast::AssertionKind::NotWordBoundary => {
                refuse(assertion.span.start.offset, "a word boundary")
            }
            _ => refuse(assertion.span.start.offset, "an anchor inside the expression"),
        },
        ast::Ast::Repetition(repetition) => {
            if let ast::RepetitionKind::Range(range) = &repetition.op.kind {
                let count = match *range {
                    ast::RepetitionRange::Exactly(n) | ast::RepetitionRange::AtLeast(n) => n,
                    ast::RepetitionRange::Bounded(_, n) => n,
                };
                limits.check_repetition(u64::from(count), "a count of the regex")?;
            }
            check(&repetition.ast, text, limits)
        }
        ast::Ast::Group(group) => check(&group.ast, text, limits),
        ast::Ast::Alternation(all) => all.asts.iter().try_for_each(|ast| check(ast, text, limits)),
        ast::Ast::Concat(all) => all.asts.iter().try_for_each(|ast| check(ast, text, limits)),
        _ => Ok(()),
    }
}
