//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use gyrus::audio::{AudioError, Limits, Waveform};
use gyrus::speech::{SpeechEvent, SpeechRequest, Task, Transcript};
use serde_json::json;
use tokio::sync::oneshot;

use super::events;
use crate::embeddings::wrong_kind;
use crate::failure::{Failure, Kind, Wire, json_response};
use crate::models::{Lease, Served};
use crate::multipart;
use crate::routes::Call;
use crate::work::{Progress, run};

/// The longest recording.
const LIMITS: Limits = Limits { seconds: 4.0 * 3600.0 };

/// What is said.
pub(crate) async fn transcribe(call: Call) -> Result<Response, Failure> {
    create(call, Task::Transcribe).await
}

/// What is said, in English.
pub(crate) async fn translate(call: Call) -> Result<Response, Failure> {
    create(call, Task::Translate).await
}

/// How the text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    VerboseJson,
}

/// The fields of a form.
pub(crate) struct Form {
    model: String,
    file: Bytes,
    format: Format,
    stream: bool,
    request: SpeechRequest,
}

impl Form {
    pub(crate) fn parse(body: &Bytes, task: Task) -> Result<Form, Failure> {
        let (mut model, mut file, mut format, mut stream) = (String::new(), None, Format::Json, false);
        let mut request = SpeechRequest { task, ..SpeechRequest::default() };
        for part in multipart::parse(body)? {
            if part.name == "file" {
                file = Some(part.content);
                continue;
            }
            let text = String::from_utf8(part.content.to_vec())
                .map_err(|_| Failure::field(part.name.as_str(), "it is not UTF-8"))?;
            let refused = |problem: &str| Failure::field(part.name.as_str(), problem);
            let wrong = |problem: &str| Err(refused(problem));
            match part.name.as_str() {
                "model" => model = text,
                "language" if text.is_empty() => {}
                "language" => request.language = Some(text),
                "prompt" => request.initial_prompt = Some(text),
                "temperature" => match text.parse::<f32>() {
                    // 0 means the temperatures that are tried in turn.
                    Ok(0.0) => {}
                    Ok(value) => request.temperatures = vec![value],
                    Err(_) => return wrong("it must be a number"),
                },
                "response_format" => {
                    format = match text.as_str() {
                        "json" => Format::Json,
                        "text" => Format::Text,
                        "srt" => Format::Srt,
                        "vtt" => Format::Vtt,
                        "verbose_json" => Format::VerboseJson,
                        _ => return wrong("it must be json, text, srt, vtt or verbose_json"),
                    };
                }
                "timestamp_granularities[]" | "timestamp_granularities" => match text.as_str() {
                    "word" => request.words = true,
                    "segment" => {}
                    _ => return wrong("it must be word or segment"),
                },
                "stream" => stream = truth(&text).ok_or_else(|| refused("it must be true or false"))?,
                "vad" => {
                    request.voice_activity =
                        truth(&text).ok_or_else(|| refused("it must be true or false"))?
                }
                _ => return wrong("there is no such field"),
            }
        }
        let file = file.ok_or_else(|| Failure::field("file", "it is missing"))?;
        if stream && format != Format::Json {
            return Err(Failure::field("response_format", "it must be json for an answer that streams"));
        }
        Ok(Form { model, file, format, stream, request })
    }
}

/// A word for true or false, as clients in several languages write them into forms.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" | "" => Some(false),
        _ => None,
    }
}

async fn create(call: Call, task: Task) -> Result<Response, Failure> {
    let form = Form::parse(&call.body, task)?;
    let Form { model, file, format, stream, request } = form;
    if stream {
        return streamed(call, model, file, request).await;
    }
    let work = move |lease: &Lease, progress: &Progress| {
        let transcript = listen(lease, progress, &file, &request, &mut |_, _| true)?;
        Ok(match format {
            Format::Json => json_response(&json!({ "text": transcript.text() })),
            Format::VerboseJson => json_response(&verbose(&transcript, task)),
            Format::Text => plain(format!("{}\n", transcript.text()), "text/plain; charset=utf-8"),
            Format::Srt => plain(transcript.to_srt(), "application/x-subrip; charset=utf-8"),
            Format::Vtt => plain(transcript.to_vtt(), "text/vtt; charset=utf-8"),
        })
    };
    run(&call, &model, None, work).await
}

/// Decodes a file and transcribes it, for as long as somebody waits for it and `event` returns true. `event` also gets the
/// seconds of the recording.
fn listen(
    lease: &Lease,
    progress: &Progress,
    file: &Bytes,
    request: &SpeechRequest,
    event: &mut dyn FnMut(SpeechEvent<'_>, f64) -> bool,
) -> Result<Transcript, Failure> {
    let Served::Transcriber(transcriber) = lease.served() else {
        return Err(wrong_kind(lease, "transcripts"));
    };
    let audio = Waveform::decode_while(file.to_vec(), &LIMITS, &mut || progress.goes_on());
    let audio = audio.map_err(|error| match error {
        AudioError::Stopped => gyrus::Error::Stopped.into(),
        error => Failure::field("file", error.to_string()),
    })?;
    let mut watched = |happened: SpeechEvent<'_>| {
        if let SpeechEvent::Segment { segment, .. } = &happened {
            progress.wrote(segment.tokens.len());
        }
        progress.goes_on() && event(happened, audio.seconds())
    };
    let mut all = transcriber.transcribe_all(&[&audio], request, &mut watched)?;
    Ok(all.pop().unwrap_or_default())
}

fn verbose(transcript: &Transcript, task: Task) -> serde_json::Value {
    let mut object = transcript.to_json();
    object["task"] = match task {
        Task::Transcribe => "transcribe".into(),
        Task::Translate => "translate".into(),
    };
    let words: Vec<_> =
        transcript.segments.iter().flat_map(|segment| &segment.words).map(|word| word.to_json()).collect();
    if !words.is_empty() {
        object["words"] = words.into();
    }
    object
}

fn plain(text: String, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Server-sent events: a delta with its times for each segment that has settled, then the whole text. They begin with the first sign that
/// the file is transcribed, so that what is wrong with a request is a status. A client that goes away ends the work.
async fn streamed(
    call: Call,
    model: String,
    file: Bytes,
    request: SpeechRequest,
) -> Result<Response, Failure> {
    let (sender, events) = events::channel();
    let (begin, begun) = oneshot::channel();
    let deltas = sender.clone();
    let listen = move |lease: &Lease, progress: &Progress| {
        let (mut begin, mut is_late) = (Some(begin), false);
        let transcript = listen(lease, progress, &file, &request, &mut |event, duration| {
            if let Some(begin) = begin.take() {
                let _ = begin.send(());
            }
            if let SpeechEvent::Segment { segment, .. } = event {
                let delta = json!({
                    "type": "transcript.text.delta",
                    "delta": segment.text,
                    "start": rounded(segment.start),
                    "end": rounded(segment.end),
                    "duration": rounded(duration),
                });
                is_late = !deltas.send(&delta);
            }
            !is_late
        })?;
        match is_late {
            true => Err(Failure::new(Kind::Timeout, "the client takes the events too slowly")),
            false => Ok(transcript),
        }
    };
    let mut work = Box::pin(async move { run(&call, &model, None, listen).await });
    let done = tokio::select! {
        done = &mut work => Some(done?),
        Ok(()) = begun => None,
    };
    match done {
        Some(transcript) => drop(sender.send_last(&last(Ok(transcript)))),
        None => drop(tokio::spawn(async move {
            let done = tokio::select! {
                done = work => done,
                () = sender.closed() => return,
            };
            sender.send_last(&last(done));
        })),
    }
    Ok(events.response())
}

/// The last event.
fn last(done: Result<Transcript, Failure>) -> serde_json::Value {
    match done {
        Ok(transcript) => json!({
            "type": "transcript.text.done",
            "text": transcript.text(),
            "language": transcript.language,
            "duration": rounded(transcript.duration),
        }),
        Err(failure) => {
            let mut error = failure.to_json(Wire::OpenAi);
            error["type"] = "error".into();
            error
        }
    }
}

/// Seconds in whole milliseconds.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
