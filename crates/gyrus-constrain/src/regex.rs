//! Regular expressions.

use regex_syntax::ast::{self, Ast, ClassSetItem, Visitor};
use regex_syntax::hir::translate::Translator;

use crate::limits::SORTED_PER_UNIT;
use crate::{Error, Limits};

const LANGUAGE: &str = "regex";

/// The grammar of a text that the expression matches as a whole, in Lark.
pub(crate) fn to_lark(text: &str, limits: &Limits) -> Result<String, Error> {
    Ok(format!("start: /{}/", checked(text, limits)?))
}

/// An expression that parses, for use between slashes in Lark.
pub(crate) fn checked(text: &str, limits: &Limits) -> Result<String, Error> {
    let refused = |fault| match fault {
        Fault::At(offset, message) => Error::syntax(LANGUAGE, text, offset, message),
        Fault::Limit(error) => error,
    };
    let ast = parsed(text, limits).map_err(refused)?;
    ast::visit(&ast, Assertions { end: text.len() }).map_err(refused)?;
    Ok(llguidance::regex_to_lark(text, ""))
}

/// Why an expression is refused.
pub(crate) enum Fault {
    /// A byte of its text, and what is wrong there.
    At(usize, String),
    Limit(Error),
}

/// Parses an expression as the engine does.
pub(crate) fn parsed(text: &str, limits: &Limits) -> Result<Ast, Fault> {
    limits.check_source(text).map_err(Fault::Limit)?;
    let depth = u32::try_from(limits.depth).unwrap_or(u32::MAX);
    let ast = ast::parse::ParserBuilder::new().nest_limit(depth).build().parse(text).map_err(|error| {
        let offset = error.span().start.offset;
        let too_deep = limits.check_depth_at(usize::MAX, text, offset);
        match (error.kind(), too_deep) {
            (ast::ErrorKind::NestLimitExceeded(_), Err(limit)) => Fault::Limit(limit),
            (kind, _) => Fault::At(offset, kind.to_string()),
        }
    })?;
    ast::visit(&ast, Costs { limits, work: 0, class: 0 }).map_err(Fault::Limit)?;
    // The names of classes are known only to the second half of the parser.
    match Translator::new().translate(text, &ast) {
        Ok(_) => Ok(ast),
        Err(error) => Err(Fault::At(error.span().start.offset, error.kind().to_string())),
    }
}

/// Refuses assertions that the engine lacks, with their place.
struct Assertions {
    /// The length of the text.
    end: usize,
}

impl Visitor for Assertions {
    type Output = ();
    type Err = Fault;

    fn finish(self) -> Result<(), Fault> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Fault> {
        let Ast::Assertion(assertion) = ast else { return Ok(()) };
        let span = &assertion.span;
        let what = match assertion.kind {
            // The whole text is matched, so anchors at its ends change nothing; the engine allows no others.
            ast::AssertionKind::StartLine | ast::AssertionKind::StartText if span.start.offset == 0 => {
                return Ok(());
            }
            ast::AssertionKind::EndLine | ast::AssertionKind::EndText if span.end.offset == self.end => {
                return Ok(());
            }
            ast::AssertionKind::WordBoundary | ast::AssertionKind::NotWordBoundary => "a word boundary",
            _ => "an anchor inside the expression",
        };
        Err(Fault::At(span.start.offset, format!("{what} is not supported")))
    }
}

/// Ranges of characters in a large Unicode class, such as `\w`.
const UNICODE_RANGES: u64 = 800;

/// Refuses counts of repetitions that are too large, and classes that take the engine's parser too long.
struct Costs<'a> {
    limits: &'a Limits,
    work: u64,
    /// Ranges of the class in brackets so far.
    class: u64,
}

impl Costs<'_> {
    /// Counts ranges. The parser sorts those of a class in brackets again with each one.
    fn ranges(&mut self, ranges: u64) -> Result<(), Error> {
        self.class += ranges;
        self.work += ranges + self.class / SORTED_PER_UNIT;
        if self.work <= self.limits.compile_work {
            return Ok(());
        }
        let reason = "the classes of the regex have too many ranges of characters".to_owned();
        Err(self.limits.exceeded("compile_work", self.limits.compile_work as usize, reason))
    }
}

impl Visitor for Costs<'_> {
    type Output = ();
    type Err = Error;

    fn finish(self) -> Result<(), Error> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Error> {
        self.class = 0;
        match ast {
            Ast::ClassUnicode(_) | Ast::ClassPerl(_) => self.ranges(UNICODE_RANGES),
            Ast::Repetition(repetition) => match repetition.op.kind {
                ast::RepetitionKind::Range(
                    ast::RepetitionRange::Exactly(count)
                    | ast::RepetitionRange::AtLeast(count)
                    | ast::RepetitionRange::Bounded(_, count),
                ) => self.limits.check_repetition(u64::from(count), "a count of the regex"),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Error> {
        match item {
            ClassSetItem::Unicode(_) | ClassSetItem::Perl(_) => self.ranges(UNICODE_RANGES),
            _ => self.ranges(1),
        }
    }
}
