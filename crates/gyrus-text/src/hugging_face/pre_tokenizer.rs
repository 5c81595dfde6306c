//! The `pre_tokenizer` part.

use super::node::Node;
use crate::data::{Behavior, Pattern, PreTokenizer, Prepend};
use crate::error::TokenizerError;
use crate::pretokenizer::{Scanner, known_regex};

const SUPPORTED: &str = "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, \
                         Split, Whitespace, WhitespaceSplit";

/// Appends the steps of a pre-tokenizer.
pub(super) fn read(node: &Node<'_>, steps: &mut Vec<PreTokenizer>) -> Result<(), TokenizerError> {
    if node.value().is_null() {
        return Ok(());
    }
    let split = |pattern, behavior, invert| PreTokenizer::Split { pattern, behavior, invert };
    let kind = node.require("type")?;
    let step = match kind.text()? {
        "Sequence" => {
            return node.require("pretokenizers")?.elements()?.try_for_each(|step| read(&step, steps));
        }
        "BertPreTokenizer" => {
            steps.extend(PreTokenizer::bert());
            return Ok(());
        }
        "ByteLevel" => {
            if node.flag("add_prefix_space", true)? {
                steps.push(PreTokenizer::PrefixSpace);
            }
            if node.flag("use_regex", true)? {
                steps.push(PreTokenizer::isolated(Scanner::GPT2));
            }
            PreTokenizer::ByteAlphabet
        }
        "Split" => split(
            pattern(&node.require("pattern")?)?,
            behavior(&node.require("behavior")?)?,
            node.flag("invert", false)?,
        ),
        "Metaspace" => metaspace(node)?,
        "Whitespace" => split(Pattern::Regex(r"\w+|[^\w\s]+".into()), Behavior::Removed, true),
        "WhitespaceSplit" => split(Pattern::Whitespace, Behavior::Removed, false),
        "Punctuation" => {
            let behavior = node.get("behavior").map_or(Ok(Behavior::Isolated), |node| behavior(&node))?;
            split(Pattern::Punctuation, behavior, false)
        }
        "Digits" => {
            let single = node.flag("individual_digits", false)?;
            split(Pattern::Number, if single { Behavior::Isolated } else { Behavior::Contiguous }, false)
        }
        "CharDelimiterSplit" => {
            let delimiter = character(&node.require("delimiter")?)?;
            split(Pattern::Literal(delimiter.into()), Behavior::Removed, false)
        }
        _ => return Err(kind.unsupported(SUPPORTED)),
    };
    steps.push(step);
    Ok(())
}

/// A pattern: a text, or a regular expression. Those of published tokenizers have scanners, which are faster.
pub(super) fn pattern(node: &Node<'_>) -> Result<Pattern, TokenizerError> {
    if let Some(text) = node.get("String") {
        return Ok(Pattern::Literal(text.text()?.to_owned()));
    }
    let Some(regex) = node.get("Regex") else { return Err(node.unsupported("String, Regex")) };
    let regex = regex.text()?;
    Ok(known_regex(regex).map_or_else(|| Pattern::Regex(regex.to_owned()), Pattern::Scanner))
}

fn behavior(node: &Node<'_>) -> Result<Behavior, TokenizerError> {
    Ok(match node.text()? {
        "Removed" => Behavior::Removed,
        "Isolated" => Behavior::Isolated,
        "MergedWithPrevious" => Behavior::MergedWithPrevious,
        "MergedWithNext" => Behavior::MergedWithNext,
        "Contiguous" => Behavior::Contiguous,
        _ => {
            return Err(node.unsupported("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous"));
        }
    })
}

fn character(node: &Node<'_>) -> Result<char, TokenizerError> {
    let mut chars = node.text()?.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(node.fail("it must be one character")),
    }
}

fn metaspace(node: &Node<'_>) -> Result<PreTokenizer, TokenizerError> {
    let replacement = node.get("replacement").map_or(Ok('\u{2581}'), |node| character(&node))?;
    Ok(PreTokenizer::Metaspace { replacement, prepend: prepend(node)?, split: node.flag("split", true)? })
}

/// Where a metaspace adds its prefix. Old files have a flag instead.
pub(super) fn prepend(node: &Node<'_>) -> Result<Prepend, TokenizerError> {
    let Some(scheme) = node.get("prepend_scheme") else {
        return Ok(if node.flag("add_prefix_space", true)? { Prepend::Always } else { Prepend::Never });
    };
    Ok(match scheme.text()? {
        "always" => Prepend::Always,
        "first" => Prepend::First,
        "never" => Prepend::Never,
        _ => return Err(scheme.unsupported("always, first, never")),
    })
}
