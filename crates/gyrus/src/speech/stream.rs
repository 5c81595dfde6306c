//! One part of a recording that is decoded window by window.

use std::sync::Arc;

use gyrus_audio::LogMel;

use super::alignment::{TimedWord, Word};
use super::engine::{Encoded, Engine, Sequence};
use super::loops;
use super::passes::Step;
use super::quality::compression_ratio;
use super::request::SpeechRequest;
use super::rules::Rules;
use super::search::{Extension, Search, Strategy};
use super::segments::{self, Cut, Ending, FRAMES_PER_TIMESTAMP};
use super::tokens::{Task, Tokens};
use super::transcript::Segment;
use super::words::{align, fit_words};
use crate::Error;
use crate::arch::whisper::WhisperConfig;
use gyrus_formats::Checkpoint;

/// Frames of a second.
pub(super) const FRAMES_PER_SECOND: f64 = 100.0;
/// A rest of fewer frames at the end has no word in it.
const LEAST_FRAMES: usize = 10;
/// The end of a recording is decoded without a prompt if it is shorter, in frames: a prompt would outweigh it.
const LEAST_PROMPTED: usize = 500;
/// A text ends with a timestamp that is this near, in frames, to the end of the recording.
const NEAR_END: usize = 10;
/// After a window of a higher temperature its text is no prompt of the next.
const MOST_PROMPTING_TEMPERATURE: f32 = 0.5;

/// What all streams of a request share.
pub(super) struct Context<'a> {
    pub(super) tokens: &'a Tokens,
    pub(super) request: &'a SpeechRequest,
    pub(super) rules: &'a Rules,
    pub(super) checkpoint: &'a Checkpoint,
    /// The token of the requested language.
    pub(super) language: Option<u32>,
}

/// A part of a recording, from a frame to another.
pub(super) struct Stream {
    mel: Arc<LogMel>,
    start: usize,
    end: usize,
    seek: usize,
    /// Tokens of earlier windows, and the initial prompt.
    history: Vec<u32>,
    pub(super) segments: Vec<Segment>,
    window: Option<Window>,
    /// The token of its language, once it is known.
    pub(super) language: Option<u32>,
}

/// A window in progress.
pub(super) struct Window {
    pub(super) encoded: Encoded,
    /// The encoder's rows, if words are aligned.
    pub(super) rows: Vec<f32>,
    /// Frames of the recording in it.
    pub(super) frames: usize,
    /// The timestamp that ends a text, if the recording ends in this window.
    last_time: Option<u32>,
    work: Work,
    sequences: Vec<Sequence>,
    no_speech: f64,
}

/// The text of a window that is taken, for better or worse.
struct Accepted {
    tokens: Vec<u32>,
    ending: Ending,
    temperature: f32,
    compression_ratio: f64,
    mean_log_probability: f64,
    /// Whether it passed all checks; after the last temperature a text is taken that did not.
    is_plausible: bool,
}

enum Work {
    /// The first token is followed by a language.
    Detect,
    /// Which of the temperatures is tried, and where in the prompt the text's start is.
    Decode { attempt: usize, start_at: usize, search: Search },
}

impl Stream {
    pub(super) fn new(mel: Arc<LogMel>, frames: std::ops::Range<usize>, history: Vec<u32>) -> Stream {
        let std::ops::Range { start, end } = frames;
        Stream { mel, start, end, seek: start, history, segments: Vec::new(), window: None, language: None }
    }

    /// Whether everything is decoded.
    pub(super) fn is_done(&self) -> bool {
        self.window.is_none() && self.seek + LEAST_FRAMES > self.end
    }

    /// Whether a window is in progress.
    pub(super) fn is_active(&self) -> bool {
        self.window.is_some()
    }

    pub(super) fn needs_window(&self) -> bool {
        self.window.is_none() && !self.is_done()
    }

    /// How far it is decoded, in frames of the recording.
    pub(super) fn position(&self) -> usize {
        self.seek.min(self.end)
    }

    /// The spectrogram of its next window.
    pub(super) fn features(&self, count: usize) -> Vec<f32> {
        self.mel.window_until(self.seek, count, self.end)
    }

    /// Begins a window that was encoded.
    pub(super) fn begin(&mut self, context: &Context<'_>, engine: &Engine, encoded: Encoded, rows: Vec<f32>) {
        let left = self.end - self.seek;
        if self.seek > self.start && left <= LEAST_PROMPTED {
            self.history.clear();
        }
        let frames = left.min(engine.config.window_frames());
        // Not the first timestamp, at which a text begins.
        let last_time = left.saturating_sub(NEAR_END).div_ceil(FRAMES_PER_TIMESTAMP).max(1);
        let last_time = context.tokens.first_timestamp + u32::try_from(last_time).unwrap_or(u32::MAX >> 1);
        let last_time = context.request.timestamps.then_some(last_time);
        let detect = context.tokens.is_multilingual && self.language.or(context.language).is_none();
        self.language = self.language.or(context.language);
        let (work, sequences) = (Work::Detect, Vec::new());
        let mut window = Window { encoded, rows, frames, last_time, work, sequences, no_speech: 0.0 };
        match detect {
            true => window.sequences.push(Sequence::new(vec![context.tokens.start])),
            false => window.decode(context, engine, &self.history, self.language, 0),
        }
        self.window = Some(window);
    }

    /// The sequences to compute.
    pub(super) fn steps<'s>(&'s mut self, steps: &mut Vec<Step<'s>>) {
        let Some(Window { encoded, sequences, work, .. }) = &mut self.window else { return };
        for sequence in sequences {
            let also = match work {
                // The first row of a window tells whether it has speech.
                Work::Decode { start_at, search, .. } if search.is_at_start() => Some(*start_at),
                _ => None,
            };
            steps.push(Step { sequence, window: encoded, also });
        }
    }

    /// Rows of logits that its steps give.
    pub(super) fn logit_rows(&self) -> usize {
        let Some(window) = &self.window else { return 0 };
        match &window.work {
            Work::Decode { start_at, search, .. } if search.is_at_start() => {
                // The start is the last row if nothing follows it.
                let last = window.sequences.first().map_or(0, |sequence| sequence.tokens.len() - 1);
                if *start_at == last { 1 } else { 2 }
            }
            _ => window.sequences.len(),
        }
    }

    /// Takes the logits of its steps, `[rows, vocab]`.
    pub(super) fn take(
        &mut self,
        context: &Context<'_>,
        engine: &mut Engine,
        mut logits: Vec<f32>,
    ) -> Result<(), Error> {
        let vocab = engine.vocab();
        let Some(window) = &mut self.window else { return Ok(()) };
        let search = match &mut window.work {
            Work::Detect => {
                let range = context.tokens.language_tokens();
                let best = range.max_by(|a, b| {
                    // Of equals the first.
                    logits[*a as usize].total_cmp(&logits[*b as usize]).then(b.cmp(a))
                });
                self.language = best;
                window.release(engine);
                window.decode(context, engine, &self.history, self.language, 0);
                return Ok(());
            }
            Work::Decode { search, .. } => search,
        };
        if search.is_at_start() {
            window.no_speech = probability(&logits[..vocab], context.tokens.no_speech());
            if logits.len() > vocab {
                logits.drain(..vocab);
            }
        }
        let extensions = search.advance(context.rules, &mut logits, vocab);
        if search.is_done() {
            window.release(engine);
            return self.finish_attempt(context, engine);
        }
        window.extend(engine, &extensions);
        Ok(())
    }

    /// The text so far of the window in progress.
    pub(super) fn partial(&self, tokens: &Tokens) -> Option<String> {
        match &self.window.as_ref()?.work {
            Work::Decode { search, .. } => Some(tokens.text(&search.live().first()?.tokens)),
            Work::Detect => None,
        }
    }

    /// Gives up the window in progress.
    pub(super) fn abandon(&mut self, engine: &mut Engine) {
        if let Some(mut window) = self.window.take() {
            window.release(engine);
            engine.forget(window.encoded);
        }
    }

    /// Accepts the text of an attempt, or tries the next temperature.
    fn finish_attempt(&mut self, context: &Context<'_>, engine: &mut Engine) -> Result<(), Error> {
        let Some(mut window) = self.window.take() else { return Ok(()) };
        let work = std::mem::replace(&mut window.work, Work::Detect);
        let Work::Decode { attempt, start_at, search } = work else { return Ok(()) };
        let (request, tokens) = (context.request, context.tokens);
        let best = search.best();
        let text = tokens.text(&best.tokens);
        let ratio = compression_ratio(text.trim());
        let mean = best.mean();
        let improbable = request.probability_limit.is_some_and(|limit| mean < limit);
        let silent = request.no_speech_limit.is_some_and(|limit| window.no_speech > limit);
        let repeats = request.compression_limit.is_some_and(|limit| ratio > limit);
        let stuck = best.is_cut && loops::is_stuck(tokens, &best.tokens);
        let fails = repeats || stuck;
        // A prompt is the usual reason why a text repeats itself.
        let prompted = start_at > 0;
        let again = if fails && prompted { attempt } else { attempt + 1 };
        if (fails || improbable) && !(silent && improbable) && again < request.temperatures.len() {
            if fails {
                self.history.clear();
            }
            window.decode(context, engine, &self.history, self.language, again);
            self.window = Some(window);
            return Ok(());
        }
        let frames = window.frames;
        let plausible = request.probability_limit.is_some_and(|limit| mean > limit);
        if silent && !plausible {
            engine.forget(window.encoded);
            self.seek += frames;
            return Ok(());
        }
        let ending = match (best.is_cut, best.is_at_end) {
            (true, _) if !stuck => Ending::Cut,
            (true, _) | (_, true) => Ending::Last,
            _ => Ending::Complete,
        };
        let kept = if stuck { loops::without_loop(tokens, &best.tokens) } else { &best.tokens };
        let accepted = Accepted {
            tokens: kept.to_vec(),
            ending,
            temperature: request.temperatures.get(attempt).copied().unwrap_or(0.0),
            compression_ratio: ratio,
            is_plausible: !fails && !improbable,
            mean_log_probability: mean,
        };
        self.accept(context, engine, window, &accepted)
    }

    /// Adds the segments of a window and moves on.
    fn accept(
        &mut self,
        context: &Context<'_>,
        engine: &mut Engine,
        window: Window,
        accepted: &Accepted,
    ) -> Result<(), Error> {
        let cuts = segments::cut(context.tokens, &accepted.tokens, window.frames, accepted.ending);
        let offset = self.seek as f64 / FRAMES_PER_SECOND;
        let has_text = |cut: &&Cut| !context.tokens.text(&cut.tokens).trim().is_empty();
        let with_text: Vec<&Cut> = cuts.segments.iter().filter(has_text).collect();
        let words = match context.request.words && !with_text.is_empty() {
            true => align(context, engine, &window, &with_text, self.language),
            false => Ok(Vec::new()),
        };
        engine.forget(window.encoded);
        let mut words = words?.into_iter();
        let seconds =
            |timestamp: usize| offset + (timestamp * FRAMES_PER_TIMESTAMP) as f64 / FRAMES_PER_SECOND;
        for cut in with_text {
            let own = words.next().unwrap_or_default().into_iter();
            let shifted =
                |TimedWord { word, .. }| Word { start: word.start + offset, end: word.end + offset, ..word };
            let mut own: Vec<Word> = own.map(shifted).collect();
            let (mut start, mut end) = (seconds(cut.start), seconds(cut.end));
            fit_words(&mut own, &mut start, &mut end);
            self.segments.push(Segment {
                start,
                end,
                text: context.tokens.text(&cut.tokens),
                tokens: cut.tokens.clone(),
                words: own,
                seek: self.seek,
                temperature: accepted.temperature,
                mean_log_probability: accepted.mean_log_probability,
                compression_ratio: accepted.compression_ratio,
                no_speech_probability: window.no_speech,
            });
            self.history.extend(&cut.tokens);
        }
        self.history.extend(cuts.next);
        // A text that repeats itself makes the next one do so, too.
        let prompts = accepted.is_plausible && accepted.temperature <= MOST_PROMPTING_TEMPERATURE;
        if !context.request.previous_text || !prompts {
            self.history.clear();
        }
        self.seek += cuts.advance.max(1);
        Ok(())
    }
}

impl Window {
    /// Begins to decode at one of the temperatures.
    fn decode(
        &mut self,
        context: &Context<'_>,
        engine: &Engine,
        history: &[u32],
        language: Option<u32>,
        attempt: usize,
    ) {
        let Context { tokens, request, .. } = context;
        let half = engine.config.text_context / 2;
        let mut prompt = Vec::new();
        if !history.is_empty() {
            prompt.push(tokens.previous());
            prompt.extend(&history[history.len().saturating_sub(most_prompt_tokens(&engine.config))..]);
        }
        let start_at = prompt.len();
        prompt.extend(start_tokens(tokens, request.task, language));
        if !request.timestamps {
            prompt.push(tokens.no_timestamps());
        }
        let temperature = request.temperatures.get(attempt).copied().unwrap_or(0.0);
        let strategy = match (temperature > 0.0, request.beams) {
            (true, _) => {
                let seed = request.seed ^ ((attempt as u64) << 32);
                Strategy::Sample { count: request.samples.max(1), temperature, seed }
            }
            (false, ..=1) => Strategy::Greedy,
            (false, width) => Strategy::Beam { width, patience: request.patience },
        };
        let most = half.min(engine.config.text_context.saturating_sub(prompt.len() + 1)).max(1);
        let search = Search::new(strategy, tokens.end, most).until(self.last_time);
        self.sequences = vec![Sequence::new(prompt)];
        self.work = Work::Decode { attempt, start_at, search };
    }

    /// Gives the blocks of all sequences back.
    fn release(&mut self, engine: &mut Engine) {
        self.sequences.drain(..).for_each(|sequence| engine.drop_sequence(sequence));
    }

    /// Replaces the sequences by their extensions.
    fn extend(&mut self, engine: &mut Engine, extensions: &[Extension]) {
        let mut old: Vec<Option<Sequence>> = self.sequences.drain(..).map(Some).collect();
        for (n, Extension { parent, token }) in extensions.iter().enumerate() {
            let is_last = extensions[n + 1..].iter().all(|later| later.parent != *parent);
            let from = &mut old[*parent];
            let next = if is_last { from.take() } else { from.as_ref().map(|from| engine.fork(from)) };
            if let Some(mut next) = next {
                next.tokens.push(*token);
                self.sequences.push(next);
            }
        }
        old.into_iter().flatten().for_each(|sequence| engine.drop_sequence(sequence));
    }
}

/// The most tokens of earlier text in a prompt: half of the context, with the token that begins them.
pub(super) fn most_prompt_tokens(config: &WhisperConfig) -> usize {
    (config.text_context / 2).saturating_sub(1)
}

/// The tokens that begin a text.
pub(super) fn start_tokens(tokens: &Tokens, task: Task, language: Option<u32>) -> Vec<u32> {
    let mut start = vec![tokens.start];
    if tokens.is_multilingual {
        start.push(language.unwrap_or(tokens.language_tokens().start));
        start.push(match task {
            Task::Transcribe => tokens.transcribe(),
            Task::Translate => tokens.translate(),
        });
    }
    start
}

/// The probability of a token.
pub(super) fn probability(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
    logits.get(token as usize).map_or(0.0, |logit| f64::from((logit - largest).exp()) / sum)
}
