//! Speech to text with Whisper.
//!
//! A recording becomes a spectrogram, which is encoded in windows of 30 s. A decoder writes the text of a window. Everything
//! that decides what the decoder writes (rules, searches, segments, times of words) works on logits and tokens alone.

mod alignment;
#[cfg(test)]
mod each_tests;
mod engine;
mod languages;
mod load;
mod loops;
mod passes;
mod quality;
mod request;
mod rules;
mod run;
mod search;
mod segments;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;
mod transcriber;
mod transcript;
mod words;

pub use alignment::Word;
pub use languages::is_language;
pub use request::SpeechRequest;
pub use tokens::Task;
pub use transcriber::{MOST_HYPOTHESES, SpeechEvent, SpeechOptions, Transcriber};
pub use transcript::{Segment, Transcript};
