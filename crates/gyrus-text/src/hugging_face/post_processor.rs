//! The `post_processor` part: the tokens before and after a text.

use super::node::Node;
use crate::error::TokenizerError;

const SUPPORTED: &str = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing";

/// The most tokens that are added to a text.
const MAX_TOKENS: usize = 64;

type Tokens = (Vec<u32>, Vec<u32>);

/// The tokens that are added before and after a single text.
pub(super) fn read(node: &Node<'_>, id_of: &dyn Fn(&str) -> Option<u32>) -> Result<Tokens, TokenizerError> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    add(node, id_of, &mut prefix, &mut suffix)?;
    if prefix.len() + suffix.len() > MAX_TOKENS {
        return Err(node.fail(format!("it adds more than {MAX_TOKENS} tokens")));
    }
    Ok((prefix, suffix))
}

fn add(
    node: &Node<'_>,
    id_of: &dyn Fn(&str) -> Option<u32>,
    prefix: &mut Vec<u32>,
    suffix: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    if node.value().is_null() {
        return Ok(());
    }
    let kind = node.require("type")?;
    let (before, after) = match kind.text()? {
        // It only concerns the positions of tokens in the text.
        "ByteLevel" => return Ok(()),
        "Sequence" => {
            let all = node.require("processors")?;
            return all.elements()?.try_for_each(|step| add(&step, id_of, prefix, suffix));
        }
        "TemplateProcessing" => template(node, id_of)?,
        "BertProcessing" | "RobertaProcessing" => {
            let token = |key| {
                let pair = node.require(key)?;
                let mut pair = pair.elements()?.skip(1);
                let id =
                    pair.next().ok_or_else(|| node.fail(format!("{key:?} must be a token and its id")))?;
                Ok(vec![id.id()?])
            };
            (token("cls")?, token("sep")?)
        }
        _ => return Err(kind.unsupported(SUPPORTED)),
    };
    // A later step adds its tokens outside those of an earlier one.
    prefix.splice(0..0, before);
    suffix.extend(after);
    Ok(())
}

fn template(node: &Node<'_>, id_of: &dyn Fn(&str) -> Option<u32>) -> Result<Tokens, TokenizerError> {
    let tokens = node.get("special_tokens");
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    let mut texts = 0;
    let single = node.require("single")?;
    for piece in single.elements()? {
        if piece.get("Sequence").is_some() {
            texts += 1;
            continue;
        }
        let name = piece.require("SpecialToken")?.require("id")?;
        let text = name.text()?;
        let out = if texts == 0 { &mut prefix } else { &mut suffix };
        match tokens.as_ref().and_then(|tokens| tokens.get(text)) {
            Some(token) => {
                for id in token.require("ids")?.elements()? {
                    out.push(id.id()?);
                }
            }
            None => out.push(id_of(text).ok_or_else(|| name.fail(format!("token {text:?} is not defined")))?),
        }
    }
    if texts != 1 {
        return Err(single.fail(format!("it must contain the text once, not {texts} times")));
    }
    Ok((prefix, suffix))
}
