//! Arguments of `gyrus transcribe`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gyrus::Device;
use gyrus::audio::{Pcm, PcmFormat};
use gyrus::speech::{SpeechRequest, Task, is_language};

use crate::options::PrecisionArg;

#[derive(Debug, Args)]
pub(crate) struct TranscribeArgs {
    /// Audio files: WAV, FLAC, MP3, Ogg Vorbis or M4A; - is stdin
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// A Whisper model: a GGML file of whisper.cpp, a GGUF file, a SafeTensors folder or a catalogue name
    #[arg(short, long, value_name = "MODEL", default_value = "whisper-base.en")]
    pub(crate) model: OsString,

    /// The language that is spoken, by code or name [default: detected]
    #[arg(short, long, value_name = "LANGUAGE", value_parser = language)]
    pub(crate) language: Option<String>,

    /// What to write
    #[arg(long, value_enum, default_value_t = TaskArg::Transcribe)]
    pub(crate) task: TaskArg,

    /// What has times
    #[arg(long, value_enum, default_value_t = TimestampsArg::Segment)]
    pub(crate) timestamps: TimestampsArg,

    /// Beams of the search; 1 is greedy
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) beam: u8,

    /// The temperature to decode at; later ones are tried while the text is implausible. Several are separated by commas
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "0,0.2,0.4,0.6,0.8,1", value_parser = temperature)]
    pub(crate) temperature: Vec<f32>,

    /// Decode at the first temperature only, whatever the text
    #[arg(long)]
    pub(crate) no_fallback: bool,

    /// A text that comes before: names and terms in their spelling
    #[arg(long, value_name = "TEXT")]
    pub(crate) initial_prompt: Option<String>,

    /// Do not give the text of a window to the next one as a prompt
    #[arg(long)]
    pub(crate) no_previous_text: bool,

    /// Allow tokens of sounds and speakers, such as brackets and notes
    #[arg(long)]
    pub(crate) non_speech: bool,

    /// Leave out parts without speech, by their energy, and decode the others side by side
    #[arg(long)]
    pub(crate) vad: bool,

    /// Format of the result
    #[arg(short, long, value_enum, default_value_t = FormatArg::Txt)]
    pub(crate) format: FormatArg,

    /// Write a file for each recording into this folder instead of stdout
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// The files are raw samples: encoding, rate and channels, such as s16:16000:1. Encodings are u8, s16, s24, s32, f32
    /// and f64, little-endian
    #[arg(long, value_name = "PCM", value_parser = pcm)]
    pub(crate) raw: Option<PcmFormat>,

    /// Print the text of windows in progress on stderr
    #[arg(long)]
    pub(crate) partial: bool,

    /// CPU threads [default: one per core]
    #[arg(long, env = "GYRUS_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) threads: Option<u16>,

    /// Device: auto, cpu, gpu, or gpu:NAME with a part of a GPU's name
    #[arg(long, env = "GYRUS_DEVICE", value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,

    /// Arithmetic
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fast)]
    pub(crate) precision: PrecisionArg,

    /// Print the transcript only
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaskArg {
    /// What is said
    Transcribe,
    /// A translation to English
    Translate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimestampsArg {
    /// Nothing
    None,
    /// Segments
    Segment,
    /// Words; JSON has segments, too
    Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// A line for each segment, as soon as it is known
    Txt,
    /// All that is known
    Json,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Tab-separated values, times in milliseconds
    Tsv,
}

impl FormatArg {
    /// The extension of a file.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            FormatArg::Txt => "txt",
            FormatArg::Json => "json",
            FormatArg::Srt => "srt",
            FormatArg::Vtt => "vtt",
            FormatArg::Tsv => "tsv",
        }
    }
}

impl TranscribeArgs {
    /// What the flags ask for.
    pub(crate) fn request(&self) -> SpeechRequest {
        let defaults = SpeechRequest::default();
        let first = self.temperature.iter().copied().take(1).collect();
        SpeechRequest {
            language: self.language.clone(),
            task: match self.task {
                TaskArg::Transcribe => Task::Transcribe,
                TaskArg::Translate => Task::Translate,
            },
            timestamps: self.timestamps != TimestampsArg::None,
            words: self.timestamps == TimestampsArg::Word,
            beams: usize::from(self.beam),
            temperatures: if self.no_fallback { first } else { self.temperature.clone() },
            previous_text: !self.no_previous_text,
            initial_prompt: self.initial_prompt.clone(),
            suppress_non_speech: !self.non_speech,
            voice_activity: self.vad,
            ..defaults
        }
    }
}

fn language(text: &str) -> Result<String, String> {
    match is_language(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("'{text}' is no language of Whisper, such as de or German")),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| format!("'{text}' is no number from 0 to 2"))
}

fn pcm(text: &str) -> Result<PcmFormat, String> {
    let expected = || format!("'{text}' is not ENCODING:RATE:CHANNELS, such as s16:16000:1");
    let parts: Vec<&str> = text.split(':').collect();
    let [encoding, rate, channels] = parts[..] else { return Err(expected()) };
    let pcm = match encoding {
        "u8" => Pcm::U8,
        "s16" => Pcm::S16,
        "s24" => Pcm::S24,
        "s32" => Pcm::S32,
        "f32" => Pcm::F32,
        "f64" => Pcm::F64,
        _ => return Err(expected()),
    };
    let rate = rate.parse().map_err(|_| expected())?;
    let channels = channels.parse().map_err(|_| expected())?;
    Ok(PcmFormat { pcm, rate, channels })
}
