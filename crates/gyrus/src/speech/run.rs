//! Recordings that are decoded side by side.

use super::engine::Engine;
use super::stream::{Context, FRAMES_PER_SECOND, Stream};
use super::tokens::Tokens;
use super::transcriber::SpeechEvent;
use super::transcript::Transcript;
use crate::Error;

/// Steps after which the text of a window in progress is shown.
const PARTIAL_STEPS: usize = 8;

/// A recording in progress.
pub(super) struct File {
    pub(super) streams: Vec<Stream>,
    /// Seconds of audio.
    duration: f64,
    language: Option<u32>,
    /// The first part that is not done.
    head: usize,
    /// Segments of it that were told.
    emitted: usize,
}

impl File {
    /// With these parts.
    pub(super) fn new(streams: Vec<Stream>, duration: f64) -> File {
        File { streams, duration, language: None, head: 0, emitted: 0 }
    }

    /// What was decoded so far.
    pub(super) fn into_transcript(self, tokens: &Tokens) -> Transcript {
        Transcript {
            language: tokens.code(self.language.unwrap_or(tokens.start + 1)).to_owned(),
            duration: self.duration,
            segments: self.streams.into_iter().flat_map(|stream| stream.segments).collect(),
        }
    }

    /// Parts that may run at once: the first alone until the language is known.
    fn open_parts(&self, detects: bool) -> usize {
        let open = self.streams.iter().filter(|stream| !stream.is_done()).count();
        if detects && self.language.is_none() { open.min(1) } else { open }
    }
}

/// Why a pass failed, and the number of the recording if it is the fault of one.
struct Failure {
    file: Option<usize>,
    error: Box<Error>,
}

/// Recordings that are decoded side by side. As many are held as have work for all windows.
pub(super) struct Run<'a> {
    context: &'a Context<'a>,
    engine: &'a mut Engine,
    /// Gives the recording of this number, if there is one.
    next: &'a mut dyn FnMut(usize) -> Option<Result<File, Error>>,
    /// Recordings that `next` gave.
    begun: usize,
    is_last: bool,
    /// Those in progress, with their numbers.
    files: Vec<(usize, File)>,
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
        next: &'a mut dyn FnMut(usize) -> Option<Result<File, Error>>,
        event: &'a mut dyn FnMut(SpeechEvent<'_>) -> bool,
        windows: usize,
    ) -> Run<'a> {
        Run { context, engine, next, begun: 0, is_last: false, files: Vec::new(), event, windows, steps: 0 }
    }

    /// The recordings that did not end, with their numbers.
    pub(super) fn into_files(self) -> Vec<(usize, File)> {
        self.files
    }

    /// Decodes until all recordings have ended or the listener stops.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        while self.fill() && !self.files.is_empty() {
            let goes_on = match self.encode().and_then(|()| self.step()) {
                Ok(()) => self.tell() && self.finish(),
                Err(Failure { file: Some(number), error }) => self.fail(number, *error),
                Err(Failure { file: None, error }) => return Err(*error),
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn detects(&self) -> bool {
        self.context.tokens.is_multilingual && self.context.language.is_none()
    }

    /// Begins recordings while windows are free. Returns whether to go on.
    fn fill(&mut self) -> bool {
        let detects = self.detects();
        let used =
            |files: &[(usize, File)]| files.iter().map(|(_, file)| file.open_parts(detects)).sum::<usize>();
        while !self.is_last && used(&self.files) < self.windows {
            let number = self.begun;
            match (self.next)(number) {
                None => self.is_last = true,
                Some(file) => {
                    self.begun += 1;
                    let goes_on = match file {
                        Ok(file) => {
                            self.files.push((number, file));
                            // A recording without any part has ended.
                            self.finish()
                        }
                        Err(error) => (self.event)(SpeechEvent::Done { file: number, result: Err(error) }),
                    };
                    if !goes_on {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Lets go of recordings of which everything was told, and gives their transcripts.
    fn finish(&mut self) -> bool {
        let tokens = self.context.tokens;
        while let Some(at) = self.files.iter().position(|(_, file)| file.head == file.streams.len()) {
            let (number, file) = self.files.remove(at);
            let result = Ok(file.into_transcript(tokens));
            if !(self.event)(SpeechEvent::Done { file: number, result }) {
                return false;
            }
        }
        true
    }

    /// Lets go of a recording that cannot be decoded; the others go on.
    fn fail(&mut self, number: usize, error: Error) -> bool {
        if let Some(at) = self.files.iter().position(|(other, _)| *other == number) {
            let (_, mut file) = self.files.remove(at);
            file.streams.iter_mut().for_each(|stream| stream.abandon(self.engine));
        }
        (self.event)(SpeechEvent::Done { file: number, result: Err(error) })
    }

    /// Begins windows of as many parts as run at once. Until the language of a recording is known, its first part runs
    /// alone.
    fn encode(&mut self) -> Result<(), Failure> {
        let detects = self.detects();
        let (context, engine) = (self.context, &mut *self.engine);
        let all = self.files.iter().flat_map(|(_, file)| &file.streams);
        let mut left = self.windows.saturating_sub(all.filter(|stream| stream.is_active()).count());
        let mut ready: Vec<(usize, &mut Stream)> = Vec::new();
        for (number, file) in &mut self.files {
            let (known, most) = (file.language, file.open_parts(detects));
            let waiting = file.streams.iter_mut().filter(|stream| !stream.is_done()).take(most);
            for stream in waiting.filter(|stream| stream.needs_window()).take(left) {
                left -= 1;
                stream.language = stream.language.or(known);
                ready.push((*number, stream));
            }
        }
        let frames = engine.config.window_frames();
        let output = context.request.words;
        for streams in ready.chunks_mut(engine.most_windows()) {
            let features: Vec<Vec<f32>> = streams.iter().map(|(_, stream)| stream.features(frames)).collect();
            let (encoded, rows) = engine.encode(&features, output).map_err(|error| {
                let found = engine.at_fault(&error).and_then(|n| streams.get(n));
                let place = found.map(|(number, stream)| (*number, stream.position()));
                failure(engine, place, error)
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
    fn step(&mut self) -> Result<(), Failure> {
        let vocab = self.engine.vocab();
        let all = self.files.iter().flat_map(|(_, file)| &file.streams);
        let counts: Vec<usize> = all.map(Stream::logit_rows).collect();
        let (mut steps, mut places) = (Vec::new(), Vec::new());
        for (number, file) in &mut self.files {
            for stream in &mut file.streams {
                let position = stream.position();
                stream.steps(&mut steps);
                places.resize(steps.len(), (*number, position));
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        let logits = self.engine.forward(&mut steps);
        drop(steps);
        let logits = logits.map_err(|error| {
            let place = self.engine.at_fault(&error).and_then(|n| places.get(n));
            failure(self.engine, place.copied(), error)
        })?;
        let mut rows = logits.chunks_exact(vocab);
        let (context, engine) = (self.context, &mut *self.engine);
        let mut result = Ok(());
        let all = self.files.iter_mut();
        let all = all.flat_map(|(number, file)| file.streams.iter_mut().map(|stream| (*number, stream)));
        for ((number, stream), count) in all.zip(counts) {
            if count > 0 {
                let own: Vec<f32> = rows.by_ref().take(count).flatten().copied().collect();
                let position = stream.position();
                // The rows of the others are computed, and not computed again.
                if let Err(error) = stream.take(context, engine, own) {
                    let place = engine.at_fault(&error).map(|_| (number, position));
                    result = result.and(Err(failure(engine, place, error)));
                }
            }
        }
        self.steps += 1;
        result
    }

    /// Tells what has settled. Returns whether to go on: the listener may stop everything, and hears nothing after that.
    fn tell(&mut self) -> bool {
        let tell = &mut *self.event;
        for (index, file) in &mut self.files {
            let index = *index;
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

/// The failure of a pass. What the device found is said of the recording's place: the first token of a row that is all NaN
/// would look like a choice.
fn failure(engine: &Engine, place: Option<(usize, usize)>, error: Error) -> Failure {
    match place {
        Some((index, position)) => {
            let seconds = position as f64 / FRAMES_PER_SECOND;
            let error = Error::RecordingNotFinite { index, seconds, precision: engine.precision() };
            Failure { file: Some(index), error: Box::new(error) }
        }
        None => Failure { file: None, error: Box::new(error) },
    }
}
