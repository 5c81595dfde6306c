//! Transcriptions and translations in OpenAI's form.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::client::{Reply, receive, send};
use common::{TestSource, config, start_with};
use gyrus::Transcriber;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest, Task};
use gyrus_server::Config;
use serde_json::Value;

fn speech() -> Vec<u8> {
    std::fs::read(gyrus_testkit::repository().join("tests/data/audio/speech.wav")).unwrap()
}

fn form(address: SocketAddr, path: &str, file: Option<&[u8]>, fields: &[(&str, &str)]) -> Reply {
    let mut body = Vec::new();
    let mut part = |name: &str, content: &[u8]| {
        body.extend(format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n").as_bytes());
        body.extend(content);
        body.extend(b"\r\n");
    };
    fields.iter().for_each(|(name, value)| part(name, value.as_bytes()));
    if let Some(file) = file {
        part("file", file);
    }
    body.extend(b"--edge--\r\n");
    let kind = ("Content-Type", "multipart/form-data; boundary=edge");
    receive(send(address, "POST", path, &[kind], &body))
}

#[test]
fn transcripts_equal_the_library_in_every_format() {
    let Some(source) = TestSource::tales() else { return };
    let path = gyrus_testkit::repository().join("tests/data/whisper");
    let transcriber = Transcriber::open(&path, &SpeechOptions::default()).unwrap();
    let audio = Waveform::decode(speech(), &Limits::default()).unwrap();
    let of = |task, words| {
        let language = Some("en".to_owned());
        let request =
            SpeechRequest { language, task, words, temperatures: vec![0.5], ..SpeechRequest::default() };
        transcriber.transcribe(&audio, &request).unwrap()
    };
    let want = of(Task::Transcribe, false);
    let server = start_with(config(), source);
    let common = [("model", "whisper"), ("language", "en"), ("temperature", "0.5")];
    let ask = |path: &str, more: &[(&str, &str)]| {
        let reply = form(server.address, path, Some(&speech()), &[&common[..], more].concat());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
    };
    let path = "/v1/audio/transcriptions";
    assert_eq!(ask(path, &[]).json(), serde_json::json!({ "text": want.text() }));
    assert_eq!(ask(path, &[("response_format", "text")]).text(), format!("{}\n", want.text()));
    assert_eq!(ask(path, &[("response_format", "srt")]).text(), want.to_srt());
    assert_eq!(ask(path, &[("response_format", "vtt")]).text(), want.to_vtt());
    let more = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let verbose = ask(path, &more).json();
    assert_eq!(verbose["segments"], of(Task::Transcribe, true).to_json()["segments"]);
    assert_eq!((&verbose["task"], &verbose["language"]), (&"transcribe".into(), &"en".into()));
    let translated = of(Task::Translate, false).text();
    assert_eq!(ask("/v1/audio/translations", &[]).json()["text"], translated);

    let streamed = ask(path, &[("stream", "true")]);
    let events: Vec<Value> =
        streamed.events().iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas.trim(), want.text());
    let times = |of: &Value| serde_json::json!([of["start"], of["end"]]);
    let (deltas, segments) = (&events[..events.len() - 1], want.to_json()["segments"].clone());
    let told: Vec<Value> = segments.as_array().unwrap().iter().map(times).collect();
    assert!(!told.is_empty() && deltas.iter().all(|event| event["duration"] == 1.5));
    assert_eq!(deltas.iter().map(times).collect::<Vec<_>>(), told);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["text"]), (&"transcript.text.done".into(), &want.text().into()));
    assert_eq!((&last["language"], &last["duration"]), (&"en".into(), &1.5.into()));
}

/// A stream begins when the file is transcribed. What is wrong before is a status, as without a stream.
#[test]
fn what_is_wrong_with_a_stream_is_a_status() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_with(config(), source);
    let (path, speech) = ("/v1/audio/transcriptions", speech());
    let whisper = ("model", "whisper");
    for (file, fields, status, part) in [
        (&speech[..], vec![("model", "nothing"), ("stream", "true")], 404, "there is no model"),
        (b"words", vec![whisper, ("stream", "True")], 400, "not audio"),
        (&speech, vec![whisper, ("stream", "1"), ("language", "xx")], 400, "no language 'xx'"),
        (&speech, vec![("model", "tales"), ("stream", "yes")], 400, "no transcripts"),
        (&speech, vec![whisper, ("stream", "maybe")], 400, "stream: it must be true or false"),
        (&speech, vec![whisper, ("vad", "maybe")], 400, "vad: it must be true or false"),
        (&speech, vec![whisper, ("stream", "true"), ("response_format", "srt")], 400, "response_format: "),
    ] {
        let reply = form(server.address, path, Some(file), &fields);
        assert_eq!(reply.status, status, "{fields:?}: {}", reply.text());
        assert!(reply.text().contains(part), "{fields:?}: {}", reply.text());
    }
    let fields = [whisper, ("language", "en"), ("temperature", "0.5"), ("stream", "False")];
    let whole = form(server.address, path, Some(&speech), &fields).json()["text"].clone();
    assert!(whole.is_string());
    let fields = [whisper, ("language", "en"), ("temperature", "0.5"), ("stream", "True")];
    let streamed = form(server.address, path, Some(&speech), &fields);
    let last: Value = serde_json::from_str(&streamed.events().last().unwrap().1).unwrap();
    assert_eq!((&last["type"], &last["text"]), (&"transcript.text.done".into(), &whole));
    let metrics = common::client::get(server.address, "/v1/metrics").json();
    let counts = &metrics["models"]["whisper"];
    assert!(counts["total_completion_tokens"].as_u64().unwrap() > 0, "{counts}");
}

#[test]
fn what_is_wrong_with_a_form_is_said() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_with(config(), source);
    let whisper = ("model", "whisper");
    let speech = speech();
    for (file, fields, part) in [
        (None, vec![whisper], "file: it is missing"),
        (Some(&b"words"[..]), vec![whisper], "file: not audio that can be read"),
        (Some(&speech[..100]), vec![whisper], "file: the file is truncated"),
        (Some(&speech[..]), vec![("model", "tales")], "tales generates text, no transcripts"),
        (Some(&speech[..]), vec![whisper, ("language", "xx")], "the model knows no language 'xx'"),
        (Some(&speech[..]), vec![whisper, ("response_format", "pdf")], "response_format: it must be json"),
        (Some(&speech[..]), vec![whisper, ("temperature", "hot")], "temperature: it must be a number"),
        (Some(&speech[..]), vec![whisper, ("colour", "red")], "colour: there is no such field"),
    ] {
        let reply = form(server.address, "/v1/audio/transcriptions", file, &fields);
        assert_eq!(reply.status, 400, "{fields:?}: {}", reply.text());
        assert!(reply.text().contains(part), "{fields:?}: {}", reply.text());
    }
    let reply =
        receive(send(server.address, "POST", "/v1/audio/transcriptions", &[], b"{\"model\": \"whisper\"}"));
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("no multipart/form-data"), "{}", reply.text());
}

/// A WAV file of floats, mono at 16 kHz.
fn floats(samples: &[f32]) -> Vec<u8> {
    let mut out = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x03\0\x01\0".to_vec();
    out.extend([16_000u32, 64_000].map(u32::to_le_bytes).concat());
    out.extend(b"\x04\0\x20\0data");
    out.extend((4 * samples.len() as u32).to_le_bytes());
    out.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    out
}

#[test]
fn samples_that_are_too_large_are_the_clients_fault() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_with(config(), source);
    let fields = [("model", "whisper"), ("language", "en")];
    for stream in ["false", "true"] {
        let fields = [&fields[..], &[("stream", stream)]].concat();
        let loud = floats(&[1e20; 16_000]);
        let reply = form(server.address, "/v1/audio/transcriptions", Some(&loud), &fields);
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], "file");
        assert!(reply.text().contains("too large for a spectrogram"), "{}", reply.text());
    }
}

/// Decoding half an hour of MP3 takes longer than the request may, and ends with it.
#[test]
fn decoding_has_the_time_limit_of_the_request() {
    let Some(source) = TestSource::tales() else { return };
    let request_timeout = Duration::from_millis(300);
    let server = start_with(Config { request_timeout, ..config() }, source);
    let mp3 = std::fs::read(gyrus_testkit::repository().join("tests/data/audio/speech.mp3")).unwrap();
    let long = mp3.repeat(1200);
    // The first request may spend its time on loading.
    for _ in 0..2 {
        let reply = form(server.address, "/v1/audio/transcriptions", Some(&long), &[("model", "whisper")]);
        assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (408, Some("timeout_error")));
        let started = Instant::now();
        while common::client::get(server.address, "/v1/metrics").json()["in_flight"] != 0 {
            assert!(started.elapsed() < Duration::from_secs(4), "it is decoded to the end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
