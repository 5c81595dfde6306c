//! `gyrus tokenize` and `gyrus detokenize`: run a model's tokenizer alone.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use gyrus::text::{Special, Tokenizer};
use gyrus_formats::Checkpoint;

use crate::cli::{DetokenizeArgs, TokenizeArgs};
use crate::screen::Screen;
use crate::source;

pub(crate) fn tokenize(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = tokenizer(&args.model)?;
    let text = read(args.file.as_deref())?;
    let special = if args.special { Special::Parse } else { Special::Literal };
    let mut ids = Vec::new();
    tokenizer.encode_bytes_into(&text, special, args.special, &mut ids);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &ids).map_err(std::io::Error::from)?;
    } else {
        for (n, id) in ids.iter().enumerate() {
            write!(out, "{}{id}", if n == 0 { "" } else { " " })?;
        }
    }
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

pub(crate) fn detokenize(args: &DetokenizeArgs) -> Result<()> {
    let tokenizer = tokenizer(&args.model)?;
    let text = String::from_utf8(read(args.file.as_deref())?).context("the ids are not text")?;
    let ids = parse_ids(&text)?;
    check_ids(&ids, tokenizer.vocab_size())?;
    // Bytes, not text: the ids may end within a character.
    Ok(Screen::stdout().bytes(&tokenizer.decode_bytes(&ids, args.special))?)
}

/// Ids separated by white space or commas, with or without brackets.
pub(crate) fn parse_ids(text: &str) -> Result<Vec<u32>> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'));
    let mut ids = Vec::new();
    for word in words.filter(|w| !w.is_empty()) {
        let shown = crate::foreign::one_line(word, 40);
        ids.push(word.parse().with_context(|| format!("'{shown}' is not a token id"))?);
    }
    Ok(ids)
}

/// Whether all ids are of a vocabulary.
pub(crate) fn check_ids(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => bail!("token id {id} is beyond the vocabulary of {vocab}"),
        None => Ok(()),
    }
}

/// The tokenizer of the model that an argument names.
pub(crate) fn tokenizer(model: &OsStr) -> Result<Tokenizer> {
    let checkpoint: Checkpoint = source::open(model)?;
    gyrus::tokenizer::read(&checkpoint)?.with_context(|| source::no_tokenizer(model))
}

/// A file's bytes, or what comes in on stdin.
pub(crate) fn read(file: Option<&Path>) -> Result<Vec<u8>> {
    match file {
        Some(path) => std::fs::read(path).with_context(|| path.display().to_string()),
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("stdin")?;
            Ok(bytes)
        }
    }
}
