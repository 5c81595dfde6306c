//! `gyrus transcribe`: the text of recordings.

mod recordings;
mod transcripts;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gyrus::audio::Waveform;
use gyrus::speech::{SpeechEvent, SpeechOptions};
use gyrus::{Access, Cancel, Precision, Transcriber};

use crate::cli::{FormatArg, TranscribeArgs};
use crate::environment::Environment;
use crate::options::PrecisionArg;
use crate::progress::Progress;
use crate::source::Source;
use crate::usage::usage;
use crate::{cache, diagnostics, foreign, interrupt};
use transcripts::{Transcripts, output_name};

pub(crate) fn run(args: &TranscribeArgs) -> Result<()> {
    let several = args.files.len() > 1;
    let is_text = matches!(args.format, FormatArg::Txt | FormatArg::Json);
    if several && !is_text && args.output.is_none() {
        let extension = args.format.extension();
        return Err(usage(format!(
            "several recordings need --output DIR in this format: one file cannot hold their {extension}"
        )));
    }
    if args.output.is_some() {
        check_names(args)?;
    }
    let start = Instant::now();
    let bytes: Result<Vec<u64>> = args.files.iter().map(|file| recordings::check(file)).collect();
    let mut work = Work::new(args, bytes?);
    // The first recording is decoded before a model is downloaded; the others when a window is free.
    let Some(first) = work.next() else { return work.end() };
    let source = Source::resolve(Some(&args.model))?;
    let transcriber = load(&source, args)?;
    work.progress = (!args.quiet).then(|| Progress::of_audio("transcribing"));
    let cancel = interrupt::on_ctrl_c();
    work.cancel = Some(cancel.clone());
    // Recordings are asked for between events, not during one.
    let work = RefCell::new(work);
    let rest = std::iter::from_fn(|| work.borrow_mut().next());
    let run =
        transcriber.transcribe_each(std::iter::once(first).chain(rest), &args.request(), &mut |event| {
            work.borrow_mut().take(event).is_ok() && !cancel.is_cancelled()
        });
    let mut work = work.into_inner();
    work.progress = None;
    run?;
    if work.problem.is_some() {
        return work.end();
    }
    // What there is of the others ends within a recording: it is not written as if it were whole.
    if cancel.is_cancelled() {
        return Err(interrupt::Interrupted.into());
    }
    if !args.quiet {
        let (seconds, took) = (work.transcribed, start.elapsed().as_secs_f64());
        let rate = seconds / took.max(1e-3);
        diagnostics::aside(format!(
            "{seconds:.1} s of audio in {took:.2} s, {rate:.1} times as fast as it was spoken"
        ));
    }
    work.end()
}

/// Recordings in progress, and what became of the others.
struct Work<'a> {
    args: &'a TranscribeArgs,
    /// The size of each file.
    bytes: Vec<u64>,
    /// Files that were read, or failed.
    read: usize,
    read_bytes: u64,
    /// The file of each recording that is transcribed.
    begun: Vec<usize>,
    /// Seconds of those recordings, and how far each is decoded.
    seconds: f64,
    positions: Vec<f64>,
    /// Seconds of recordings that have ended.
    transcribed: f64,
    transcripts: Transcripts<'a>,
    progress: Option<Progress>,
    cancel: Option<Cancel>,
    /// Files that cannot be read or transcribed.
    failed: usize,
    /// What ends the command.
    problem: Option<anyhow::Error>,
}

/// The work ends: [`Work::problem`] says why.
struct Ends;

impl<'a> Work<'a> {
    fn new(args: &'a TranscribeArgs, bytes: Vec<u64>) -> Work<'a> {
        Work {
            args,
            bytes,
            read: 0,
            read_bytes: 0,
            begun: Vec::new(),
            seconds: 0.0,
            positions: Vec::new(),
            transcribed: 0.0,
            transcripts: Transcripts::new(args),
            progress: None,
            cancel: None,
            failed: 0,
            problem: None,
        }
    }

    /// Reads the next recording that can be read.
    fn next(&mut self) -> Option<Waveform> {
        while self.problem.is_none() && !self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            let file = self.read;
            let path = self.args.files.get(file)?;
            self.read += 1;
            self.read_bytes += self.bytes[file];
            match recordings::read(path, self.args) {
                Ok(recording) => {
                    self.begun.push(file);
                    self.positions.push(0.0);
                    self.seconds += recording.seconds();
                    return Some(recording);
                }
                Err(error) => self.fail(file, error),
            }
        }
        None
    }

    /// Takes what happened to a recording.
    fn take(&mut self, event: SpeechEvent<'_>) -> Result<(), Ends> {
        match event {
            SpeechEvent::Segment { segment, .. } if self.transcripts.streams() => {
                self.problem = self.transcripts.segment(segment).err();
            }
            SpeechEvent::Partial { text, .. } if self.args.partial => {
                diagnostics::aside(foreign::one_line(text.trim(), 200));
            }
            SpeechEvent::Language { file, code } if !self.args.quiet => {
                let path = &self.args.files[self.begun[file]];
                diagnostics::about(foreign::path(path), format!("the language is {code}"));
            }
            SpeechEvent::Progress { file, seconds } => {
                self.positions[file] = seconds;
                if let Some(progress) = &self.progress {
                    progress.set(self.positions.iter().sum::<f64>() as u64, self.expected() as u64);
                }
            }
            SpeechEvent::Done { file, result } => {
                let file = self.begun[file];
                match result {
                    Ok(transcript) => {
                        self.transcribed += transcript.duration;
                        self.problem = self.transcripts.done(file, Some(transcript)).err();
                    }
                    Err(error) => {
                        let path = foreign::path(&self.args.files[file]);
                        self.fail(file, anyhow::Error::from(error).context(path));
                    }
                }
            }
            _ => {}
        }
        if self.problem.is_some() { Err(Ends) } else { Ok(()) }
    }

    /// Seconds of all recordings. Those that were not read are taken to have as many for each byte as the others.
    fn expected(&self) -> f64 {
        // Stdin and pipes have a length only when they have been read.
        if self.read_bytes == 0 {
            return self.seconds;
        }
        let all: u64 = self.bytes.iter().sum();
        self.seconds * (all as f64 / self.read_bytes as f64).max(1.0)
    }

    /// A file that cannot be read or transcribed. Others are transcribed all the same.
    fn fail(&mut self, file: usize, error: anyhow::Error) {
        self.failed += 1;
        if self.args.files.len() == 1 {
            self.problem = Some(error);
            return;
        }
        diagnostics::error(&error);
        self.problem = self.transcripts.done(file, None).err();
    }

    /// The result of the command.
    fn end(self) -> Result<()> {
        match (self.problem, self.failed) {
            (Some(problem), _) => Err(problem),
            (None, 0) => Ok(()),
            (None, failed) => bail!("{failed} of {} recordings were not transcribed", self.args.files.len()),
        }
    }
}

/// Recordings of different folders or formats may have one name.
fn check_names(args: &TranscribeArgs) -> Result<()> {
    let mut names: HashMap<OsString, &Path> = HashMap::new();
    for file in &args.files {
        let name = output_name(file, args.format);
        let shown = foreign::path(Path::new(&name));
        if let Some(other) = names.insert(name, file) {
            let (a, b) = (foreign::path(other), foreign::path(file));
            return Err(usage(format!("{a} and {b} would both be written to {shown}")));
        }
    }
    Ok(())
}

fn load(source: &Source, args: &TranscribeArgs) -> Result<Transcriber> {
    let options = SpeechOptions {
        device: args.device.clone(),
        precision: match args.precision {
            PrecisionArg::Exact => Precision::Exact,
            PrecisionArg::Fast => Precision::Fast,
        },
        threads: args.threads.map(usize::from),
        pipelines: cache::pipelines(&Environment::of_process()),
        ..SpeechOptions::default()
    };
    let checkpoint = source.open(Access::Map)?;
    let start = Instant::now();
    let progress = (!args.quiet).then(|| Progress::new("loading"));
    let transcriber = Transcriber::load(checkpoint, &options, |done, total| {
        if let Some(progress) = &progress {
            progress.set(done, total);
        }
    });
    drop(progress);
    let name = foreign::one_line(source.name(), 80);
    let transcriber = transcriber.with_context(|| name.clone())?;
    if !args.quiet {
        let device = foreign::one_line(&transcriber.device().to_string(), 240);
        diagnostics::aside(format!("{name} · {device} · loaded in {:.2} s", start.elapsed().as_secs_f64()));
    }
    Ok(transcriber)
}
