//! `tokenizer_config.json` and `special_tokens_map.json`: the roles of special tokens, and the chat template.

use serde_json::Value;

use super::node::Node;
use super::{Files, parse};
use crate::data::{SpecialIds, TokenizerData};
use crate::error::TokenizerError;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

type Slot = fn(&mut SpecialIds) -> &mut Option<u32>;

const ROLES: [(&str, Slot); 7] = [
    ("bos_token", |ids| &mut ids.bos),
    ("eos_token", |ids| &mut ids.eos),
    ("unk_token", |ids| &mut ids.unk),
    ("sep_token", |ids| &mut ids.sep),
    ("pad_token", |ids| &mut ids.pad),
    ("cls_token", |ids| &mut ids.cls),
    ("mask_token", |ids| &mut ids.mask),
];

/// The chat template of a `tokenizer_config.json`; of several, the one called `default`.
pub fn chat_template(config: &[u8]) -> Result<Option<String>, TokenizerError> {
    let config: Value = parse(CONFIG, config)?;
    let Some(template) = Node::new(CONFIG, "$", &config).get("chat_template") else { return Ok(None) };
    if let Some(text) = template.value().as_str() {
        return Ok(Some(text.to_owned()));
    }
    for named in template.elements()? {
        if named.require("name")?.text()? == "default" {
            return Ok(Some(named.require("template")?.text()?.to_owned()));
        }
    }
    Ok(None)
}

/// Fills in the ids of special tokens, and which of them are added to a text.
pub(super) fn apply(files: &Files<'_>, data: &mut TokenizerData) -> Result<(), TokenizerError> {
    // The configuration comes first: what it sets stays.
    for (file, bytes) in [(CONFIG, files.config), (MAP, files.special_tokens_map)] {
        let Some(bytes) = bytes else { continue };
        let value: Value = parse(file, bytes)?;
        let node = Node::new(file, "$", &value);
        for (key, slot) in ROLES {
            let Some(token) = node.get(key) else { continue };
            let text = token.get("content").unwrap_or(token).text()?;
            // A token that the vocabulary lacks is never used.
            let id = data.tokens.iter().position(|token| token == text);
            let slot = slot(&mut data.ids);
            *slot = slot.or(id.map(|id| id as u32));
        }
        let TokenizerData { prefix, suffix, ids, .. } = data;
        set(&node, "add_bos_token", "bos", ids.bos, prefix, |prefix, id| prefix.insert(0, id))?;
        set(&node, "add_eos_token", "eos", ids.eos, suffix, Vec::push)?;
    }
    Ok(())
}

/// Adds a token to a list or removes it, if the configuration says so. `transformers` does the same.
fn set(
    config: &Node<'_>,
    flag: &'static str,
    name: &'static str,
    id: Option<u32>,
    tokens: &mut Vec<u32>,
    add: fn(&mut Vec<u32>, u32),
) -> Result<(), TokenizerError> {
    let Some(value) = config.get(flag) else { return Ok(()) };
    let value = value.value().as_bool().ok_or_else(|| value.fail("it must be true or false"))?;
    match id {
        None if value => return Err(TokenizerError::NoId { flag, name }),
        Some(id) if value && !tokens.contains(&id) => add(tokens, id),
        Some(id) if !value => tokens.retain(|&token| token != id),
        _ => {}
    }
    Ok(())
}
