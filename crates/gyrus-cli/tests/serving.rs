//! `gyrus serve`: the examples of the README, settings, signals, and a load over HTTP.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{gyrus, refused};
use gyrus_testkit::{Need, data, repository, skip, tempfile};
use serde_json::Value;

/// A server that is killed when it is dropped.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    /// Starts `gyrus serve` on a free port, with the test model under the name of the README's.
    fn start(flags: &[&str]) -> Option<Serving> {
        let model = data("tales/tales-7m-q8_0.gguf")?;
        let named = format!("smollm2-135m={}", model.display());
        Some(Serving::run(&[&[named.as_str()], flags].concat()))
    }

    /// Starts `gyrus serve` on a free port.
    fn run(arguments: &[&str]) -> Serving {
        let mut child = gyrus()
            .args(["serve", "--listen", "127.0.0.1:0", "--device", "cpu", "--ctx", "512"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut all = String::new();
        let url = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the server ended:\n{all}");
            all.push_str(&line);
            if let Some((_, url)) = line.split_once("serving at ") {
                break url.split("/v1").next().unwrap().to_owned();
            }
        };
        // The log goes on; nobody reads it, and the pipe must not fill up.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Serving { child, url }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn wait(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < Duration::from_secs(30), "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands with `curl` of the README.
fn examples() -> Vec<String> {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let blocks = readme.split("```").skip(1).step_by(2).map(|block| block.trim().to_owned());
    blocks.filter(|block| block.starts_with("curl")).collect()
}

fn shell(command: &str) -> Option<String> {
    if Command::new("curl").arg("--version").output().is_err() {
        skip(Need::Extra, "curl is not there");
        return None;
    }
    let output = Command::new("sh").args(["-c", command]).env("NO_PROXY", "*").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn examples_of_the_readme_run() {
    let Some(server) = Serving::start(&[]) else { return };
    let examples = examples();
    assert!(examples.len() >= 5, "{examples:?}");
    for example in examples {
        let command = example.replace("http://127.0.0.1:8080", &server.url).replacen(
            "curl",
            "curl -sS --fail-with-body",
            1,
        );
        let Some(text) = shell(&command) else { return };
        match &example {
            example if example.contains("/v1/models") => {
                assert!(text.contains("\"id\":\"smollm2-135m\""), "{text}");
            }
            example if example.contains("\"stream\": true") => {
                let pieces = text.lines().filter_map(|line| line.strip_prefix("data: {"));
                let pieces = pieces.map(|json| serde_json::from_str::<Value>(&format!("{{{json}")).unwrap());
                let whole: String = pieces
                    .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
                    .collect();
                let found: Value = serde_json::from_str(&whole).unwrap();
                assert!(["red", "blue"].contains(&found["name"].as_str().unwrap()), "{whole}");
            }
            example if example.contains("/v1/chat/completions") => {
                let value: Value = serde_json::from_str(&text).unwrap();
                assert!(!value["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{text}");
            }
            example if example.contains("/v1/messages") => {
                let value: Value = serde_json::from_str(&text).unwrap();
                assert!(!value["content"][0]["text"].as_str().unwrap().is_empty(), "{text}");
            }
            _ => {
                let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
                assert_eq!(last["done"], true, "{text}");
            }
        }
    }
}

/// Random weights write text with the vocabulary of a file, whose size the shape takes.
#[test]
fn a_synthetic_model_streams_text() {
    let Some(vocabulary) = data("tales/tales-7m-q8_0.gguf") else { return };
    let shape = "dim=64,layers=1,heads=2,kv=1,ffn=96,vocab=40:q8_0";
    let path = vocabulary.to_str().unwrap();
    let server = Serving::run(&["--synthetic", shape, "--vocabulary", path]);
    let ask = format!(
        "curl -sS --fail-with-body {}/v1/chat/completions -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \
         \"max_tokens\": 30, \"ignore_eos\": true, \"stream\": true, \"stream_options\": {{\"include_usage\": true}}}}'",
        server.url
    );
    let Some(streamed) = shell(&ask) else { return };
    let chunks: Vec<Value> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|json| serde_json::from_str(&format!("{{{json}")).unwrap())
        .collect();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(text.len() > 20 && chunks.len() > 10, "{streamed}");
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 30, "{streamed}");
    let Some(models) = shell(&format!("curl -sS {}/v1/models", server.url)) else { return };
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["id"], shape);
    let tokens = gyrus::Model::open(&vocabulary, &gyrus::Options::default()).unwrap().plan().vocab;
    assert_eq!(models["data"][0]["meta"]["n_vocab"], tokens);

    let alone = refused(&["serve", "--synthetic", shape], 2);
    assert!(alone.contains("--vocabulary"), "{alone}");
    let readme = repository().join("README.md");
    let wrong = refused(&["serve", "--synthetic", shape, "--vocabulary", readme.to_str().unwrap()], 1);
    assert!(wrong.contains("README.md"), "{wrong}");
}

#[cfg(unix)]
#[test]
fn a_server_drains_after_sigterm_and_starts_again_after_a_kill() {
    let Some(mut server) = Serving::start(&["--drain", "20"]) else { return };
    let ask = format!(
        "curl -sS --fail-with-body {}/v1/completions -d '{{\"prompt\": \"Once\", \"max_tokens\": 450, \"n\": 4, \"ignore_eos\": true}}'",
        server.url
    );
    if shell(&format!("curl -sS --fail-with-body {}/health/live", server.url)).is_none() {
        return;
    }
    let running = std::thread::spawn(move || shell(&ask).unwrap());
    let started = Instant::now();
    while !shell(&format!("curl -sS {}/v1/metrics", server.url)).unwrap().contains("\"in_flight\":4") {
        assert!(started.elapsed() < Duration::from_secs(20), "the request does not start");
    }
    server.signal("TERM");
    let answer: Value = serde_json::from_str(&running.join().unwrap()).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 1800, "a running request is answered");
    assert_eq!(server.wait(), Some(0));
    let mut killed = Serving::start(&[]).unwrap();
    killed.signal("KILL");
    assert_eq!(killed.wait(), None);
    // How fast is a matter of a measurement; nothing may be waited for, such as a lock that the killed one held.
    let fastest = (0..3).map(|_| {
        let started = Instant::now();
        let again = Serving::start(&[]).unwrap();
        while !shell(&format!("curl -sS {}/health/ready", again.url)).unwrap().contains("ok") {
            assert!(started.elapsed() < Duration::from_secs(20), "it is not ready");
        }
        started.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_secs(5), "{fastest:?} until it is ready again");
}

/// The log of a server with these flags that was asked something secret, line by line.
#[cfg(unix)]
fn log_of(flags: &[&str]) -> Option<String> {
    use std::io::Write;
    let model = data("tales/tales-7m-q8_0.gguf")?;
    let mut child = gyrus()
        .args(["serve", "--listen", "127.0.0.1:0", "--device", "cpu", "--ctx", "512", "--log", "json"])
        .args(flags)
        .arg(&model)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    // The listening line has the address; the server ends when it is dropped, also if it never comes.
    let mut server = Serving { child, url: String::new() };
    let mut log = String::new();
    while server.url.is_empty() {
        let before = log.len();
        assert!(lines.read_line(&mut log).unwrap() > 0, "the server ended:\n{log}");
        let line: Value =
            serde_json::from_str(&log[before..]).unwrap_or_else(|error| panic!("{error}: {log}"));
        server.url = line["address"].as_str().unwrap_or_default().to_owned();
    }
    for (path, body) in [
        ("/v1/completions", r#"{"prompt": "The word is zanzibar", "max_tokens": 2}"#),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "zanzibar\n{\"x"}], "max_tokens": 2}"#,
        ),
        ("/v1/completions", r#"{"prompt": "zanzibar", "max_tokens": "zanzibar"}"#),
    ] {
        let mut stream = std::net::TcpStream::connect(&server.url).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") || body.contains("\"max_tokens\": \"z"), "{answer}");
    }
    server.signal("TERM");
    lines.read_to_string(&mut log).unwrap();
    assert_eq!(server.wait(), Some(0));
    Some(log)
}

#[cfg(unix)]
#[test]
fn prompts_are_logged_only_if_asked_for() {
    let Some(plain) = log_of(&[]) else { return };
    assert!(!plain.contains("zanzibar"), "{plain}");
    let asked = log_of(&["--log-prompts"]).unwrap();
    for log in [&plain, &asked] {
        let lines: Vec<Value> = log
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        let responses = lines.iter().filter(|line| line["message"] == "request");
        assert_eq!(
            responses.map(|line| line["status"].as_u64().unwrap()).collect::<Vec<_>>(),
            [200, 200, 400]
        );
        assert_eq!(lines.iter().filter(|line| line["message"] == "finished").count(), 2, "{log}");
    }
    let prompts: Vec<Value> = asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let prompts: Vec<&Value> = prompts.iter().filter(|line| line["message"] == "prompt").collect();
    assert_eq!(prompts.len(), 2, "{asked}");
    assert_eq!(prompts[0]["text"], "The word is zanzibar");
    assert!(prompts[1]["messages"].as_str().unwrap().contains("zanzibar"), "{asked}");
}

#[test]
fn settings_are_checked() {
    let Some(model) = data("tales/tales-7m-q8_0.gguf") else { return };
    let model = model.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, format!("model = ['chat={model}']\nlisten = '127.0.0.1:0'\nqueue = 3\n")).unwrap();
    let output = gyrus().args(["serve", "--config", path, "--check"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && text.contains("the settings are sound") && text.contains("chat"),
        "{text}"
    );
    let speech = repository().join("tests/data/whisper");
    let output =
        gyrus().arg("serve").arg(&speech).args(["--listen", "127.0.0.1:0", "--check"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(&file, "quue = 3\n").unwrap();
    let text = refused(&["serve", model, "--config", path, "--check"], 2);
    assert!(text.contains("quue"), "{text}");
    let text = refused(&["serve", model, "--listen", "0.0.0.0:0", "--check"], 1);
    assert!(text.contains("--insecure"), "{text}");
    let text = refused(&["serve", model, "--keys", path, "--check"], 1);
    assert!(text.contains("server.toml"), "{text}");
    let keys = folder.path().join("keys.toml");
    let key = "[[key]]\nname = 'editor'\nkey = 'sk-0123456789abcdef'\nmodels = ['gpt', 'smal']\n";
    std::fs::write(&keys, key).unwrap();
    let named = format!("small={model}");
    let flags = ["serve", &named, "--alias", "gpt=small", "--keys", keys.to_str().unwrap(), "--check"];
    let text = refused(&flags, 1);
    assert!(text.contains("\"editor\"") && text.contains("\"smal\""), "{text}");
    std::fs::write(&keys, key.replace("'smal'", "'small'")).unwrap();
    let output = gyrus().args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = refused(&["serve", model, "--alias", "gpt=nothing", "--check"], 1);
    assert!(text.contains("nothing"), "{text}");
    let text = refused(&["serve", model, "--parallel", "129", "--check"], 2);
    assert!(text.contains("--parallel") && text.contains("1..=128"), "{text}");
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, "GGUF").unwrap();
    let text = refused(&["serve", broken.to_str().unwrap(), "--check"], 1);
    assert!(text.contains("broken"), "{text}");
}

#[test]
fn a_load_is_measured_over_http() {
    let Some(server) = Serving::start(&["--parallel", "4"]) else { return };
    let output = gyrus()
        .args(["bench", "smollm2-135m", "--serve", &server.url, "--requests", "6", "--prompt-length", "8"])
        .args(["--output-length", "5", "-q", "-o", "json"])
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["finished"], &report["requests"]), (&Value::from(6), &Value::from(6)), "{text}");
    assert!(report["generated_tokens"].as_u64().unwrap() > 6 && report["kv_cache"].is_null(), "{text}");
}

#[test]
fn https_is_served_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] =
        ["cert.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-keyout", &key, "-out", &certificate])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skip(Need::Extra, "openssl is not there to make a certificate");
    }
    let wrong = refused(&["serve", "tales-7m", "--check", "--tls-certificate", &key, "--tls-key", &key], 1);
    assert!(wrong.contains("TLS") && wrong.contains("key.pem"), "{wrong}");
    let flags = ["--tls-certificate", certificate.as_str(), "--tls-key", key.as_str()];
    let Some(server) = Serving::start(&flags) else { return };
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let Some(text) = shell(&format!("curl -sS --fail-with-body --insecure {}/health/live", server.url))
    else {
        return;
    };
    assert!(text.contains("ok"), "{text}");
}
