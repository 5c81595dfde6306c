//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechEvent, SpeechRequest, Task, Transcript};
use http_body::Frame;
use serde_json::json;
use tokio::sync::mpsc;

use crate::embeddings::{run, wrong_kind};
use crate::failure::{Failure, Wire, json_response};
use crate::models::{Lease, Served};
use crate::multipart;
use crate::routes::Call;
use crate::stream::sse;

/// The longest recording.
const LIMITS: Limits = Limits { seconds: 4.0 * 3600.0 };
/// Events that wait for a slow client before the decoder waits, too.
const EVENTS: usize = 64;

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
struct Form {
    model: String,
    file: Bytes,
    format: Format,
    stream: bool,
    request: SpeechRequest,
}

impl Form {
    fn parse(body: &Bytes, task: Task) -> Result<Form, Failure> {
        let (mut model, mut file, mut format, mut stream) = (String::new(), None, Format::Json, false);
        let mut request = SpeechRequest { task, ..SpeechRequest::default() };
        for part in multipart::parse(body)? {
            if part.name == "file" {
                file = Some(part.content);
                continue;
            }
            let text = String::from_utf8(part.content.to_vec())
                .map_err(|_| Failure::field(part.name.as_str(), "it is not UTF-8"))?;
            let wrong = |problem: &str| Err(Failure::field(part.name.as_str(), problem));
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
                "stream" => stream = text == "true",
                "vad" => request.voice_activity = text == "true",
                _ => return wrong("there is no such field"),
            }
        }
        let file = file.ok_or_else(|| Failure::field("file", "it is missing"))?;
        Ok(Form { model, file, format, stream, request })
    }
}

async fn create(call: Call, task: Task) -> Result<Response, Failure> {
    let form = Form::parse(&call.body, task)?;
    let Form { model, file, format, stream, request } = form;
    if stream {
        return streamed(call, model, file, request).await;
    }
    let transcript =
        run(&call, &model, None, move |lease| listen(lease, &file, &request, &mut |_| true)).await?;
    Ok(match format {
        Format::Json => json_response(&json!({ "text": transcript.text() })),
        Format::VerboseJson => json_response(&verbose(&transcript, task)),
        Format::Text => plain(format!("{}\n", transcript.text()), "text/plain; charset=utf-8"),
        Format::Srt => plain(transcript.to_srt(), "application/x-subrip; charset=utf-8"),
        Format::Vtt => plain(transcript.to_vtt(), "text/vtt; charset=utf-8"),
    })
}

/// Decodes a file and transcribes it.
fn listen(
    lease: &Lease,
    file: &Bytes,
    request: &SpeechRequest,
    event: &mut dyn FnMut(SpeechEvent<'_>) -> bool,
) -> Result<Transcript, Failure> {
    let Served::Transcriber(transcriber) = lease.served() else {
        return Err(wrong_kind(lease, "transcripts"));
    };
    let audio = Waveform::decode(file.to_vec(), &LIMITS)
        .map_err(|error| Failure::field("file", error.to_string()))?;
    let mut all = transcriber.transcribe_all(&[&audio], request, event)?;
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

/// Server-sent events: a delta for each segment that has settled, then the whole text. A client that goes away ends the work.
async fn streamed(
    call: Call,
    model: String,
    file: Bytes,
    request: SpeechRequest,
) -> Result<Response, Failure> {
    let (sender, receiver) = mpsc::channel::<Bytes>(EVENTS);
    let write = |data: serde_json::Value| {
        let mut out = Vec::new();
        sse(&mut out, None, &data);
        Bytes::from(out)
    };
    tokio::spawn(async move {
        let deltas = sender.clone();
        let done = run(&call, &model, None, move |lease| {
            listen(lease, &file, &request, &mut |event| match event {
                SpeechEvent::Segment { segment, .. } => {
                    let delta = json!({ "type": "transcript.text.delta", "delta": segment.text });
                    deltas.blocking_send(write(delta)).is_ok()
                }
                _ => !deltas.is_closed(),
            })
        });
        let last = match done.await {
            Ok(transcript) => json!({ "type": "transcript.text.done", "text": transcript.text() }),
            Err(failure) => {
                let mut error = failure.to_json(Wire::OpenAi);
                error["type"] = "error".into();
                error
            }
        };
        // A client that has gone does not read it.
        let _ = sender.send(write(last)).await;
    });
    let mut response = Response::new(Body::new(Events(receiver)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// A body of events as they come.
struct Events(mpsc::Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
