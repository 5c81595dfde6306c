//! `gyrus transcribe`: the text of recordings.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{Segment, SpeechEvent, SpeechOptions, Transcript};
use gyrus::{Access, Precision, Transcriber};

use crate::cli::{FormatArg, TimestampsArg, TranscribeArgs};
use crate::environment::Environment;
use crate::options::PrecisionArg;
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::source::Source;
use crate::usage::usage;
use crate::{cache, diagnostics, foreign, interrupt};

/// The longest recording: a day.
const LIMITS: Limits = Limits { seconds: 24.0 * 3600.0 };
/// The most bytes of a file: half a day of stereo at 48 kHz in 32 bits.
const MOST_FILE_BYTES: u64 = 16 << 30;
/// The most bytes of stdin, a pipe or a device, whose length is not known before: 18 hours at 16 kHz in 16 bits.
const MOST_STREAM_BYTES: u64 = 2 << 30;

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
    // Recordings are read first: a wrong path is found before a model is downloaded.
    let recordings: Result<Vec<Waveform>> = args.files.iter().map(|file| read(file, args)).collect();
    let recordings = recordings?;
    let source = Source::resolve(Some(&args.model))?;
    let transcriber = load(&source, args)?;
    let seconds: f64 = recordings.iter().map(Waveform::seconds).sum();

    let mut terminal = Output { out: std::io::stdout(), escapes: std::io::stdout().is_terminal() };
    let streams = args.format == FormatArg::Txt && args.output.is_none() && !several;
    let progress = (!args.quiet).then(|| Progress::of_audio("transcribing"));
    let cancel = interrupt::on_ctrl_c();
    let mut done = vec![0.0; recordings.len()];
    let mut failed = None;
    let audio: Vec<&Waveform> = recordings.iter().collect();
    let transcripts = transcriber.transcribe_all(&audio, &args.request(), &mut |event| {
        match event {
            SpeechEvent::Segment { segment, .. } if streams => {
                if let Err(error) = terminal.write(&lines(segment, args.timestamps)) {
                    failed = Some(error);
                    return false;
                }
            }
            SpeechEvent::Partial { text, .. } if args.partial => {
                diagnostics::aside(foreign::one_line(text.trim(), 200));
            }
            SpeechEvent::Language { file, code } if !args.quiet => {
                diagnostics::about(foreign::path(&args.files[file]), format!("the language is {code}"));
            }
            SpeechEvent::Progress { file, seconds: at } => {
                done[file] = at;
                if let Some(progress) = &progress {
                    progress.set(done.iter().sum::<f64>() as u64, seconds as u64);
                }
            }
            _ => {}
        }
        !cancel.is_cancelled()
    });
    drop(progress);
    let transcripts = transcripts.map_err(|error| match &error {
        gyrus::Error::Recording { index, .. } | gyrus::Error::RecordingNotFinite { index, .. } => {
            let named = args.files.get(*index).map(|file| foreign::path(file));
            anyhow::Error::from(error).context(named.unwrap_or_default())
        }
        _ => error.into(),
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    // What there is ends within a recording: it is not written as if it were whole.
    if cancel.is_cancelled() {
        return Err(interrupt::Interrupted.into());
    }
    for (file, transcript) in args.files.iter().zip(&transcripts) {
        match &args.output {
            Some(folder) => write_file(folder, file, transcript, args)?,
            None if streams => {}
            None => terminal.transcript(file, transcript, args, several)?,
        }
    }
    if !args.quiet {
        let took = start.elapsed().as_secs_f64();
        let rate = seconds / took.max(1e-3);
        diagnostics::aside(format!(
            "{seconds:.1} s of audio in {took:.2} s, {rate:.1} times as fast as it was spoken"
        ));
    }
    Ok(())
}

/// Reads and decodes a recording.
fn read(path: &Path, args: &TranscribeArgs) -> Result<Waveform> {
    let named = || foreign::path(path);
    let bytes = if path.as_os_str() == "-" {
        read_within(&mut std::io::stdin().lock(), MOST_STREAM_BYTES).with_context(named)?
    } else {
        let file = File::open(path).with_context(named)?;
        let metadata = file.metadata().with_context(named)?;
        if metadata.is_dir() {
            bail!("{}: is a folder, not an audio file", named());
        }
        let most = if metadata.is_file() { MOST_FILE_BYTES } else { MOST_STREAM_BYTES };
        if metadata.len() > most {
            return Err(too_large(most)).with_context(named);
        }
        read_within(&mut &file, most).with_context(named)?
    };
    let decoded = match &args.raw {
        Some(format) => Waveform::from_pcm(&bytes, format, &LIMITS),
        None => Waveform::decode(bytes, &LIMITS),
    };
    let decoded = decoded.with_context(named)?;
    if decoded.damaged_packets() > 0 && !args.quiet {
        let count = decoded.damaged_packets();
        diagnostics::about(named(), format!("{count} packets are damaged and were replaced by silence"));
    }
    Ok(decoded)
}

/// All that can be read, which is an error beyond this many bytes.
fn read_within(input: &mut dyn Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(too_large(most)),
        false => Ok(bytes),
    }
}

fn too_large(most: u64) -> anyhow::Error {
    anyhow!("has more than {} GiB, the most that is read", most >> 30)
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

/// The name of a recording's transcript.
fn output_name(file: &Path, format: FormatArg) -> OsString {
    let mut name = match file.file_stem() {
        Some(stem) if file.as_os_str() != "-" => stem.to_owned(),
        _ => "stdin".into(),
    };
    name.push(".");
    name.push(format.extension());
    name
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
