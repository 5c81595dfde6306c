//! The prompt of a gap in code, with pieces of other files before it.

use gyrus::Model;
use gyrus::text::Special::Literal;
use gyrus::text::Tokenizer;
use serde_json::Value;

use crate::failure::Failure;
use crate::fields::Fields;

/// The most pieces of other files.
const MOST_PIECES: usize = 1024;
/// What stands between pieces where a model has no token for it, as in llama.cpp.
const BETWEEN: &str = "\n\n--- snippet ---\n\n";
/// The name of the repository and of the file with the gap, which clients do not tell, as in llama.cpp.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";

/// The code before and after a gap, for models that have tokens for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Infill {
    pub(crate) prefix: String,
    pub(crate) suffix: String,
    /// The beginning of what is to fill the gap.
    pub(crate) prompt: String,
    /// Pieces of other files, the least important first.
    pub(crate) extra: Vec<Piece>,
}

/// A piece of another file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    name: String,
    text: String,
}

/// Takes `input_extra`: objects with a text and the name of its file.
pub(crate) fn take_extra(fields: &mut Fields) -> Result<Vec<Piece>, Failure> {
    let list = fields.list("input_extra")?.unwrap_or_default();
    if list.len() > MOST_PIECES {
        let message = format!("it has {} entries, at most {MOST_PIECES} are allowed", list.len());
        return Err(fields.wrong("input_extra", message));
    }
    list.into_iter().enumerate().map(|(at, value)| piece(value, &format!("input_extra[{at}]"))).collect()
}

fn piece(value: Value, path: &str) -> Result<Piece, Failure> {
    let mut fields = Fields::of(value, path)?;
    let text = fields.string("text")?.ok_or_else(|| fields.wrong("text", "it is missing"))?;
    let name = fields.string("filename")?.unwrap_or_else(|| "tmp".to_owned());
    // When an editor saw it.
    fields.ignore(&["time"]);
    fields.finish()?;
    Ok(Piece { name, text })
}

impl Infill {
    /// The tokens: pieces of other files, then prefix and suffix behind their markers, then the marker of the middle. Of the
    /// pieces, the last ones are kept that leave room in the context for the rest and for the answer.
    pub(crate) fn tokens(&self, model: &Model, max_tokens: Option<usize>) -> Result<Vec<u32>, Failure> {
        let tokenizer = model.tokenizer().ok_or(gyrus::Error::NoTokenizer)?;
        let special = tokenizer.special_ids();
        let (Some(before), Some(after), Some(middle)) =
            (special.fim_prefix, special.fim_suffix, special.fim_middle)
        else {
            return Err(Failure::field("model", "it has no tokens to fill in the middle with"));
        };
        let mut gap = Vec::new();
        for (marker, text) in [(before, &self.prefix), (after, &self.suffix), (middle, &self.prompt)] {
            gap.push(marker);
            tokenizer.encode_into(text, Literal, false, &mut gap);
        }
        let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        let extra = self.extra_tokens(tokenizer);
        let taken = ids.len() + gap.len() + max_tokens.unwrap_or(0).max(1);
        let room = model.context().tokens.saturating_sub(taken);
        ids.extend(&extra[extra.len().saturating_sub(room)..]);
        ids.extend(gap);
        Ok(ids)
    }

    /// The tokens of the pieces: in the form of a repository if the model has tokens for that.
    fn extra_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut ids = Vec::new();
        if self.extra.is_empty() {
            return ids;
        }
        let special = tokenizer.special_ids();
        let mut add = |marker: Option<u32>, text: &str| {
            ids.extend(marker);
            tokenizer.encode_into(text, Literal, false, &mut ids);
        };
        if let Some(repository) = special.fim_repo {
            add(Some(repository), REPOSITORY);
        }
        for piece in &self.extra {
            match special.fim_separator {
                Some(separator) => add(Some(separator), &format!("{}\n", piece.name)),
                None => add(None, BETWEEN),
            }
            add(None, &piece.text);
        }
        if let Some(separator) = special.fim_separator {
            add(Some(separator), FILE);
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_checked() {
        let of = |body: &str| take_extra(&mut Fields::parse(body.as_bytes()).unwrap());
        let named = |name: &str, text: &str| Piece { name: name.to_owned(), text: text.to_owned() };
        let body = r#"{"input_extra": [{"text": "a", "filename": "b.rs", "time": 1.5}, {"text": "c"}]}"#;
        assert_eq!(of(body).unwrap(), [named("b.rs", "a"), named("tmp", "c")]);
        assert_eq!(of("{}").unwrap(), []);
        for (body, place) in [
            (r#"{"input_extra": {}}"#, "input_extra"),
            (r#"{"input_extra": ["a"]}"#, "input_extra[0]"),
            (r#"{"input_extra": [{"filename": "a"}]}"#, "input_extra[0].text"),
            (r#"{"input_extra": [{"text": "a", "path": "b"}]}"#, "input_extra[0].path"),
        ] {
            assert_eq!(of(body).unwrap_err().param.as_deref(), Some(place), "{body}");
        }
    }
}
