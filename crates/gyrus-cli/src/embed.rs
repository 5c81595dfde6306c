//! `gyrus embed`: vectors of texts.

use std::fs;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gyrus::{EmbedOptions, EmbedPrompt, Embedder, Precision};

use crate::cli::{EmbedArgs, VectorFormat};
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::source::Source;
use crate::{diagnostics, foreign, npy};

/// Texts that are computed between two reports of progress.
const SLICE: usize = 128;

/// The largest file that can be a text.
const MOST_BYTES: u64 = 64 << 20;

pub(crate) fn run(args: &EmbedArgs) -> Result<()> {
    let (texts, names) = match &args.files {
        Some(folder) => read_folder(folder)?,
        None if args.texts.is_empty() => (lines(io::stdin().lock())?, Vec::new()),
        None => (args.texts.clone(), Vec::new()),
    };
    if texts.is_empty() {
        bail!("there is no text to embed");
    }
    let embedder = load(args)?;
    let prompt = match (&args.prompt, &args.prompt_text) {
        (Some(name), _) => EmbedPrompt::Named(name.clone()),
        (None, Some(text)) => EmbedPrompt::Text(text.clone()),
        (None, None) => EmbedPrompt::Default,
    };
    let options = EmbedOptions {
        prompt,
        truncate: args.truncate,
        dimensions: args.dimensions,
        normalize: args.normalize,
    };
    let start = Instant::now();
    let progress = Progress::new("embedding");
    let (mut values, mut tokens) = (Vec::new(), 0);
    let mut dimensions = 0;
    for (slice, texts_of_slice) in texts.chunks(SLICE).enumerate() {
        let done = slice * SLICE;
        if !args.quiet {
            progress.set(done as u64, texts.len() as u64);
        }
        let found = embedder.embed(texts_of_slice, &options).map_err(|error| named(error, done, &names))?;
        values.extend(found.values);
        tokens += found.tokens;
        dimensions = found.dimensions;
    }
    drop(progress);
    write(args, &values, texts.len(), dimensions)?;
    if !names.is_empty() {
        let mut out = BufWriter::new(io::stdout().lock());
        for name in &names {
            writeln!(out, "{}", foreign::path(name))?;
        }
        out.flush()?;
    }
    if !args.quiet {
        let seconds = start.elapsed().as_secs_f64();
        diagnostics::aside(format!(
            "{} texts, {tokens} tokens in {seconds:.2} s: {:.0} texts/s, {:.0} tokens/s",
            texts.len(),
            texts.len() as f64 / seconds,
            tokens as f64 / seconds
        ));
    }
    Ok(())
}

fn load(args: &EmbedArgs) -> Result<Embedder> {
    let options = args.model_options.options(Precision::Fast);
    let source = Source::resolve(Some(&args.model))?;
    let checkpoint = source.open(options.access)?;
    let start = Instant::now();
    let progress = Progress::new("loading");
    let report = |done, total| {
        if !args.quiet {
            progress.set(done, total);
        }
    };
    let embedder = Embedder::load(checkpoint, &options, args.pooling, &report)?;
    drop(progress);
    if !args.quiet {
        diagnostics::aside(format!(
            "{} · {} · {} · {} dimensions, {} pooling, up to {} tokens · loaded in {:.2} s",
            foreign::one_line(source.name(), 80),
            foreign::one_line(embedder.architecture(), 40),
            foreign::one_line(&embedder.device().to_string(), 240),
            embedder.dimensions(),
            embedder.pooling().name(),
            embedder.max_tokens(),
            start.elapsed().as_secs_f64(),
        ));
    }
    Ok(embedder)
}

/// Names the text of an error: its number among all, or its file.
fn named(error: gyrus::Error, done: usize, names: &[PathBuf]) -> anyhow::Error {
    use gyrus::Error;
    let advice = "--truncate shortens it";
    // What the errors of the engine say, without its "text N".
    let (error, of_file) = match error {
        Error::TextTooLong { index, tokens, most } => (
            Error::TextTooLong { index: done + index, tokens, most },
            format!("{tokens} tokens, at most {most} are possible; {advice}"),
        ),
        Error::NoTokens { index } => (Error::NoTokens { index: done + index }, "it has no tokens".to_owned()),
        Error::TextNotFinite { index, precision } => (
            Error::TextNotFinite { index: done + index, precision },
            "the model computed NaN or infinity in it".to_owned(),
        ),
        error => return error.into(),
    };
    let (Error::TextTooLong { index, .. } | Error::NoTokens { index } | Error::TextNotFinite { index, .. }) =
        &error
    else {
        return error.into();
    };
    match names.get(*index) {
        Some(path) => anyhow::anyhow!("{}: {of_file}", foreign::path(path)),
        None if matches!(error, Error::TextTooLong { .. }) => anyhow::anyhow!("{error}; {advice}"),
        None => error.into(),
    }
}

fn write(args: &EmbedArgs, values: &[f32], rows: usize, columns: usize) -> Result<()> {
    let is_npy = args.out.as_ref().is_some_and(|path| path.extension().is_some_and(|end| end == "npy"));
    let format = args.format.unwrap_or(if is_npy { VectorFormat::Npy } else { VectorFormat::Json });
    match &args.out {
        Some(path) => {
            let mut file = OutputFile::create(path)?;
            write_to(&mut file, format, values, rows, columns).with_context(|| foreign::path(path))?;
            file.finish()
        }
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write_to(&mut out, format, values, rows, columns)?;
            Ok(out.flush()?)
        }
    }
}

fn write_to(
    out: &mut impl Write,
    format: VectorFormat,
    values: &[f32],
    rows: usize,
    columns: usize,
) -> io::Result<()> {
    let vectors = values.chunks_exact(columns.max(1));
    match format {
        VectorFormat::Npy => {
            npy::header(out, rows, columns)?;
            npy::values(out, values)
        }
        VectorFormat::Json => {
            let vectors: Vec<&[f32]> = vectors.collect();
            serde_json::to_writer(&mut *out, &vectors)?;
            writeln!(out)
        }
        VectorFormat::Text => {
            for vector in vectors {
                let words: Vec<String> = vector.iter().map(f32::to_string).collect();
                writeln!(out, "{}", words.join(" "))?;
            }
            Ok(())
        }
    }
}

/// The lines of a stream that are not empty.
fn lines(input: impl BufRead) -> Result<Vec<String>> {
    Ok(numbered_lines(input)?.into_iter().map(|(_, line)| line).collect())
}

/// The lines of a stream that are not empty, each with its index among all lines.
pub(crate) fn numbered_lines(input: impl BufRead) -> Result<Vec<(usize, String)>> {
    let mut lines = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line.with_context(|| format!("line {}", index + 1))?;
        if !line.trim().is_empty() {
            lines.push((index, line));
        }
    }
    Ok(lines)
}

/// The text files of a folder and of those in it, in the order of their paths. Others are named on stderr.
fn read_folder(folder: &Path) -> Result<(Vec<String>, Vec<PathBuf>)> {
    let mut paths = Vec::new();
    collect(folder, &mut paths)?;
    paths.sort();
    let (mut texts, mut names) = (Vec::new(), Vec::new());
    for path in paths {
        let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if size > MOST_BYTES {
            diagnostics::note(format!("{}: skipped, it has {size} bytes", foreign::path(&path)));
            continue;
        }
        let bytes = fs::read(&path).with_context(|| foreign::path(&path))?;
        match String::from_utf8(bytes) {
            Ok(text) if !text.trim().is_empty() => {
                texts.push(text);
                names.push(path);
            }
            Ok(_) => diagnostics::note(format!("{}: skipped, it is empty", foreign::path(&path))),
            Err(_) => diagnostics::note(format!("{}: skipped, it is no text", foreign::path(&path))),
        }
    }
    Ok((texts, names))
}

/// The files of a folder and of those in it. Links are not followed.
fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| foreign::path(folder))?;
    for entry in entries {
        let entry = entry.with_context(|| foreign::path(folder))?;
        let kind = entry.file_type().with_context(|| foreign::path(&entry.path()))?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        match kind.is_dir() {
            true if !is_hidden => collect(&entry.path(), paths)?,
            false if kind.is_file() && !is_hidden => paths.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_text_among_all_or_its_file() {
        let files = [PathBuf::from("a.txt"), PathBuf::from("b.txt"), PathBuf::from("c.txt")];
        for (error, of_text, of_file) in [
            (gyrus::Error::NoTokens { index: 1 }, "text 3 has no tokens", "c.txt: it has no tokens"),
            (
                gyrus::Error::TextNotFinite { index: 1, precision: Precision::Fast },
                "the model computed NaN or infinity in text 3 in fast precision",
                "c.txt: the model computed NaN or infinity in it",
            ),
        ] {
            let copy = match &error {
                gyrus::Error::NoTokens { index } => gyrus::Error::NoTokens { index: *index },
                _ => gyrus::Error::TextNotFinite { index: 1, precision: Precision::Fast },
            };
            assert_eq!(named(error, 1, &[]).to_string(), of_text);
            assert_eq!(named(copy, 1, &files).to_string(), of_file);
        }
        let long = gyrus::Error::TextTooLong { index: 1, tokens: 9, most: 8 };
        assert_eq!(
            named(long, 1, &files).to_string(),
            "c.txt: 9 tokens, at most 8 are possible; --truncate shortens it"
        );
    }

    #[test]
    fn lines_keep_their_numbers() {
        let lines = numbered_lines(&b"one\n\n  \nfour\n"[..]).unwrap();
        assert_eq!(lines, [(0, "one".to_owned()), (3, "four".to_owned())]);
    }
}
