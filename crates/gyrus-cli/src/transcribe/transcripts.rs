//! Where transcripts go: stdout in the order of the recordings, or a file for each.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use gyrus::speech::{Segment, Transcript};

use crate::cli::{FormatArg, TimestampsArg, TranscribeArgs};
use crate::foreign;
use crate::output::OutputFile;

/// Writes the transcript of each recording as it ends.
pub(super) struct Transcripts<'a> {
    args: &'a TranscribeArgs,
    terminal: Output,
    /// For stdout: those that ended before an earlier recording. `None` is one that failed.
    waiting: BTreeMap<usize, Option<Transcript>>,
    /// Recordings that were written to stdout.
    written: usize,
}

impl<'a> Transcripts<'a> {
    pub(super) fn new(args: &'a TranscribeArgs) -> Transcripts<'a> {
        let terminal = Output { out: std::io::stdout(), escapes: std::io::stdout().is_terminal() };
        Transcripts { args, terminal, waiting: BTreeMap::new(), written: 0 }
    }

    /// Whether segments are written as they settle: text of one recording on stdout.
    pub(super) fn streams(&self) -> bool {
        self.args.format == FormatArg::Txt && self.args.output.is_none() && self.args.files.len() == 1
    }

    /// Writes a segment to stdout.
    pub(super) fn segment(&mut self, segment: &Segment) -> Result<()> {
        self.terminal.write(&lines(segment, self.args.timestamps))
    }

    /// Takes the transcript of a recording; `None` of one that failed.
    pub(super) fn done(&mut self, recording: usize, transcript: Option<Transcript>) -> Result<()> {
        let args = self.args;
        if let Some(folder) = &args.output {
            let write = |transcript| write_file(folder, &args.files[recording], &transcript, args);
            return transcript.map_or(Ok(()), write);
        }
        self.waiting.insert(recording, transcript);
        while let Some(transcript) = self.waiting.remove(&self.written) {
            let file = &args.files[self.written];
            self.written += 1;
            if let Some(transcript) = transcript.filter(|_| !self.streams()) {
                self.terminal.transcript(file, &transcript, args, args.files.len() > 1)?;
            }
        }
        Ok(())
    }
}

/// The name of a recording's transcript.
pub(super) fn output_name(file: &Path, format: FormatArg) -> OsString {
    let mut name = match file.file_stem() {
        Some(stem) if file.as_os_str() != "-" => stem.to_owned(),
        _ => "stdin".into(),
    };
    name.push(".");
    name.push(format.extension());
    name
}

/// The text of a file. JSON has segments and words; the other formats have one or the other.
fn rendered(transcript: &Transcript, args: &TranscribeArgs) -> String {
    let by_words;
    let transcript = match (args.timestamps, args.format) {
        (TimestampsArg::Word, FormatArg::Srt | FormatArg::Vtt | FormatArg::Tsv) => {
            by_words = transcript.by_words();
            &by_words
        }
        _ => transcript,
    };
    match args.format {
        FormatArg::Txt => transcript.segments.iter().map(|segment| lines(segment, args.timestamps)).collect(),
        FormatArg::Json => format!("{}\n", transcript.to_json()),
        FormatArg::Srt => transcript.to_srt(),
        FormatArg::Vtt => transcript.to_vtt(),
        FormatArg::Tsv => transcript.to_tsv(),
    }
}

/// A segment as text: a line, or a line for each word with its times in seconds.
fn lines(segment: &Segment, timestamps: TimestampsArg) -> String {
    match timestamps {
        TimestampsArg::Word => {
            let words = segment.by_words();
            words
                .iter()
                .map(|word| format!("{:.2}\t{:.2}\t{}\n", word.start, word.end, word.line()))
                .collect()
        }
        _ => format!("{}\n", segment.line()),
    }
}

/// Writes `DIR/NAME.FORMAT`.
fn write_file(folder: &Path, file: &Path, transcript: &Transcript, args: &TranscribeArgs) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| foreign::path(folder))?;
    OutputFile::write(&folder.join(output_name(file, args.format)), rendered(transcript, args))
}

/// Stdout. On a terminal, text of a model cannot move the cursor or change colours.
struct Output {
    out: std::io::Stdout,
    escapes: bool,
}

impl Output {
    fn write(&mut self, text: &str) -> Result<()> {
        let mut out = self.out.lock();
        match self.escapes {
            true => {
                for line in text.split_inclusive('\n') {
                    let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
                    let acts = |c: char| foreign::acts(c) && c != '\t';
                    let shown: String = line
                        .chars()
                        .map(|c| if acts(c) { c.escape_default().to_string() } else { c.into() })
                        .collect();
                    write!(out, "{shown}{end}")?;
                }
            }
            false => out.write_all(text.as_bytes())?,
        }
        out.flush()?;
        Ok(())
    }

    fn transcript(
        &mut self,
        file: &Path,
        transcript: &Transcript,
        args: &TranscribeArgs,
        several: bool,
    ) -> Result<()> {
        match args.format {
            FormatArg::Txt => {
                self.write(&format!("# {}\n", foreign::path(file)))?;
                self.write(&rendered(transcript, args))
            }
            FormatArg::Json if several => {
                let mut object = transcript.to_json();
                object["file"] = file.to_string_lossy().into();
                self.write(&format!("{object}\n"))
            }
            _ => self.write(&rendered(transcript, args)),
        }
    }
}
