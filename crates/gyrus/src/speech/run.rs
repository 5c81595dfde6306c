//! Recordings that are decoded side by side.

use super::engine::Engine;
use super::stream::{Context, FRAMES_PER_SECOND, Stream};
use super::transcriber::SpeechEvent;
use crate::Error;

/// Steps after which the text of a window in progress is shown.
const PARTIAL_STEPS: usize = 8;

/// A recording in progress.
pub(super) struct File {
    pub(super) streams: Vec<Stream>,
    pub(super) language: Option<u32>,
    /// The first part that is not done.
    head: usize,
    /// Segments of it that were told.
    emitted: usize,
}

impl File {
    /// With these parts.
    pub(super) fn new(streams: Vec<Stream>) -> File {
        File { streams, language: None, head: 0, emitted: 0 }
    }
}

/// Recordings that are decoded side by side.
pub(super) struct Run<'a> {
    context: &'a Context<'a>,
    engine: &'a mut Engine,
    files: Vec<File>,
    event: &'a mut dyn FnMut(SpeechEvent<'_>) -> bool,
    /// The most parts at once.
    windows: usize,
    steps: usize,
}

impl<'a> Run<'a> {
    /// With at most this many parts at once.
    pub(super) fn new(
        context: &'a Context<'a>,
        engine: &'a mut Engine,
        files: Vec<File>,
        event: &'a mut dyn FnMut(SpeechEvent<'_>) -> bool,
        windows: usize,
    ) -> Run<'a> {
        Run { context, engine, files, event, windows, steps: 0 }
    }

    /// The recordings, with what was decoded of them.
    pub(super) fn into_files(self) -> Vec<File> {
        self.files
    }

    pub(super) fn run(&mut self) -> Result<(), Error> {
        while self.files.iter().any(|file| file.streams.iter().any(|stream| !stream.is_done())) {
            self.encode()?;
            self.step()?;
            if !self.tell() {
                return Ok(());
            }
        }
        // Recordings without any part have ended, too.
        self.tell();
        Ok(())
    }

    /// Begins windows of as many parts as run at once. Until the language of a recording is known, its first part runs
    /// alone.
    fn encode(&mut self) -> Result<(), Error> {
        let (context, engine) = (self.context, &mut *self.engine);
        let detects = context.tokens.is_multilingual && context.language.is_none();
        let active = self.files.iter().flat_map(|file| &file.streams).filter(|stream| stream.is_active());
        let mut left = self.windows.saturating_sub(active.count());
        let mut ready: Vec<(usize, &mut Stream)> = Vec::new();
        for (index, file) in self.files.iter_mut().enumerate() {
            let known = file.language;
            let most = if detects && known.is_none() { 1 } else { usize::MAX };
            let waiting = file.streams.iter_mut().filter(|stream| !stream.is_done()).take(most);
            for stream in waiting.filter(|stream| stream.needs_window()).take(left) {
                left -= 1;
                stream.language = stream.language.or(known);
                ready.push((index, stream));
            }
        }
        let frames = engine.config.window_frames();
        let output = context.request.words;
        for streams in ready.chunks_mut(engine.most_windows()) {
            let features: Vec<Vec<f32>> = streams.iter().map(|(_, stream)| stream.features(frames)).collect();
            let (encoded, rows) = engine.encode(&features, output).map_err(|error| {
                let found = engine.at_fault(&error).and_then(|n| streams.get(n));
                found.map_or(error, |(index, stream)| not_finite_at(engine, *index, stream.position()))
            })?;
            let of_window = rows.len() / streams.len();
            for (n, ((_, stream), encoded)) in streams.iter_mut().zip(encoded).enumerate() {
                let rows = rows[n * of_window..(n + 1) * of_window].to_vec();
                stream.begin(context, engine, encoded, rows);
            }
        }
        Ok(())
    }

    /// Computes a token of every hypothesis of every part.
    fn step(&mut self) -> Result<(), Error> {
        let vocab = self.engine.vocab();
        let all = || self.files.iter().flat_map(|file| &file.streams);
        let counts: Vec<usize> = all().map(Stream::logit_rows).collect();
        let (mut steps, mut places) = (Vec::new(), Vec::new());
        for (index, file) in self.files.iter_mut().enumerate() {
            for stream in &mut file.streams {
                let position = stream.position();
                stream.steps(&mut steps);
                places.resize(steps.len(), (index, position));
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        let logits = self.engine.forward(&mut steps);
        drop(steps);
        let logits = logits.map_err(|error| {
            let found = self.engine.at_fault(&error).and_then(|n| places.get(n));
            found.map_or(error, |(index, position)| not_finite_at(self.engine, *index, *position))
        })?;
        let mut rows = logits.chunks_exact(vocab);
        let (context, engine) = (self.context, &mut *self.engine);
        let streams =
            (0..).zip(&mut self.files).flat_map(|(n, file)| file.streams.iter_mut().map(move |s| (n, s)));
        for ((index, stream), count) in streams.zip(counts) {
            if count > 0 {
                let own: Vec<f32> = rows.by_ref().take(count).flatten().copied().collect();
                let position = stream.position();
                // Words are aligned by a pass of their own.
                stream.take(context, engine, own).map_err(|error| match engine.at_fault(&error) {
                    Some(_) => not_finite_at(engine, index, position),
                    None => error,
                })?;
            }
        }
        self.steps += 1;
        Ok(())
    }

    /// Tells what has settled. Returns whether to go on: the listener may stop everything, and hears nothing after that.
    fn tell(&mut self) -> bool {
        let tell = &mut *self.event;
        for (index, file) in self.files.iter_mut().enumerate() {
            let progress = |head: &Stream| {
                let seconds = head.position() as f64 / FRAMES_PER_SECOND;
                SpeechEvent::Progress { file: index, seconds }
            };
            if file.language.is_none()
                && let Some(token) = file.streams.iter().find_map(|stream| stream.language)
            {
                file.language = Some(token);
                let code = self.context.tokens.code(token);
                if self.context.language.is_none() && !tell(SpeechEvent::Language { file: index, code }) {
                    return false;
                }
            }
            while let Some(head) = file.streams.get(file.head) {
                for segment in &head.segments[file.emitted..] {
                    if !(tell(SpeechEvent::Segment { file: index, segment }) && tell(progress(head))) {
                        return false;
                    }
                }
                file.emitted = head.segments.len();
                if !head.is_done() {
                    if self.steps.is_multiple_of(PARTIAL_STEPS)
                        && let Some(text) = head.partial(self.context.tokens)
                        && !tell(SpeechEvent::Partial { file: index, text: &text })
                    {
                        return false;
                    }
                    break;
                }
                if !tell(progress(head)) {
                    return false;
                }
                file.head += 1;
                file.emitted = 0;
            }
        }
        true
    }
}

/// What the device found: the first token of a row that is all NaN would look like a choice.
fn not_finite_at(engine: &Engine, index: usize, position: usize) -> Error {
    let seconds = position as f64 / FRAMES_PER_SECOND;
    Error::RecordingNotFinite { index, seconds, precision: engine.precision() }
}
