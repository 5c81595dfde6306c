//! A load against a server that speaks OpenAI's API: the same requests as against the library, over HTTP.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gyrus::Cancel;
use serde_json::{Value, json};
use ureq::Agent;

use super::client::{self, Clients, Failure, Served};
use super::load::Load;
use super::random::Arrivals;
use super::report::{Measured, Report, Subject};
use crate::cli::{BenchArgs, ServeArgs};
use crate::foreign;
use crate::interrupt::{Interrupted, on_ctrl_c};
use crate::progress::Progress;
use crate::usage::usage;

/// Token ids are drawn below this if the server does not tell the size of its vocabulary. All but toy models have more.
const VOCABULARY: usize = 30_000;
const CONNECT: Duration = Duration::from_secs(10);

/// A server, and the model that is measured there.
struct Server {
    agent: Agent,
    url: String,
    model: String,
    key: Option<String>,
    vocabulary: usize,
}

pub(super) fn run(args: &BenchArgs, asked: &ServeArgs, url: &str) -> Result<()> {
    if asked.join.is_some() || args.subject.synthetic.is_some() {
        return Err(usage("--join and --synthetic measure the library, not a server"));
    }
    let load = Load::draw(asked)?;
    let wanted = args.subject.model.as_ref().map(|model| model.to_string_lossy().into_owned());
    let mut server = Server::find(url, wanted.clone())?;
    let cancel = on_ctrl_c();
    if !args.no_warmup {
        let start = Instant::now();
        let warm = server.request(&[1, 2, 3], 2, (0, false), (start, Duration::ZERO), &cancel);
        if let Some(failure) = warm.failure {
            bail!("{url}: {}", failure.message);
        }
        // A server may know the vocabulary of a model that is loaded only.
        server = Server::find(url, wanted)?;
    }
    let progress = (!args.report.quiet).then(|| Progress::new("serving"));
    let (done, all) = (AtomicU64::new(0), load.requests.len() as u64);
    let ended = || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(progress) = &progress {
            progress.set(done, all);
        }
    };
    let in_turn = asked.rate == Arrivals::OneAfterAnother;
    let clients = Clients { concurrency: asked.concurrency.into(), in_turn, cancel: &cancel, ended: &ended };
    let one = |index: usize, start, arrival| {
        let ids = load.prompt(index, server.vocabulary);
        let tokens = load.requests[index].output;
        server.request(&ids, tokens, (index, args.sampled), (start, arrival), &cancel)
    };
    let served = client::serve(&load, clients, &one)?;
    drop(progress);
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    let measured =
        Measured { args: asked, load: &load, sampled: args.sampled, prefix_cache: None, counts: None };
    let report = Report::new(Subject::remote(&server.model, url), &served, &measured);
    super::print(args, &report, &served)
}

impl Server {
    /// Asks a server for its models.
    fn find(url: &str, wanted: Option<String>) -> Result<Server> {
        let config = Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT));
        let agent: Agent =
            config.max_idle_connections(1024).max_idle_connections_per_host(1024).build().into();
        let key = ["GYRUS_API_KEY", "OPENAI_API_KEY"].iter().find_map(|name| std::env::var(name).ok());
        let key = key.filter(|key| !key.is_empty());
        let url = url.strip_suffix("/v1").unwrap_or(url).to_owned();
        let mut request = agent.get(format!("{url}/v1/models"));
        if let Some(key) = &key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().with_context(|| url.clone())?;
        let text = response.body_mut().read_to_string().with_context(|| url.clone())?;
        if response.status() != 200 {
            bail!("{url}/v1/models: {} {}", response.status(), foreign::one_line(&text, 200));
        }
        let list: Value = serde_json::from_str(&text).with_context(|| format!("{url}/v1/models"))?;
        let models = list["data"].as_array().context("the server lists no models")?;
        let found = match &wanted {
            Some(name) => models.iter().find(|model| model["id"] == name.as_str()),
            None => models.first(),
        };
        let found = found
            .ok_or_else(|| anyhow!("the server has no model {}", wanted.as_deref().unwrap_or("at all")))?;
        let model = found["id"].as_str().context("the server's model has no name")?.to_owned();
        let told = found["meta"]["n_vocab"].as_u64().map(|n| n as usize);
        let vocabulary = told.map_or(VOCABULARY, |n| n.min(VOCABULARY)).max(1);
        Ok(Server { agent, url, model, key, vocabulary })
    }

    /// Sends a request and notes when its tokens come.
    fn request(
        &self,
        ids: &[u32],
        tokens: usize,
        (index, sampled): (usize, bool),
        (start, arrival): (Instant, Duration),
        cancel: &Cancel,
    ) -> Served {
        let mut served = Served { arrival, ..Served::default() };
        let mut body = json!({ "model": self.model, "prompt": ids, "max_tokens": tokens, "stream": true,
            "ignore_eos": true, "seed": index, "temperature": 0.0 });
        if sampled {
            for (name, value) in [("temperature", json!(0.8)), ("top_k", json!(40)), ("top_p", json!(0.95))] {
                body[name] = value;
            }
        }
        let failure = self.stream(&body, cancel, |_| served.tokens.push(start.elapsed()));
        served.failure = failure
            .unwrap_or_else(|error| Some(Failure { kind: "connection", message: format!("{error:#}") }));
        served.end = start.elapsed();
        served
    }

    /// Reads the events of an answer. Each that is a piece of the completion counts as a token.
    fn stream(
        &self,
        body: &Value,
        cancel: &Cancel,
        mut token: impl FnMut(&Value),
    ) -> Result<Option<Failure>> {
        let mut request = self.agent.post(format!("{}/v1/completions", self.url));
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body.to_string().as_bytes())?;
        if response.status() != 200 {
            let kind = if response.status() == 429 { "queue full" } else { "refused" };
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let message = format!("{} {}", response.status(), foreign::one_line(&text, 200));
            return Ok(Some(Failure { kind, message }));
        }
        let reader = BufReader::new(response.into_body().into_reader());
        let mut finish = None;
        for line in reader.lines() {
            let line = line?;
            if cancel.is_cancelled() {
                return Ok(Some(Failure { kind: "cancelled", message: "cancelled".to_owned() }));
            }
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
            let event: Value = serde_json::from_str(data)?;
            if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
                let message = foreign::one_line(&error.to_string(), 200);
                return Ok(Some(Failure { kind: "failed", message }));
            }
            let choice = &event["choices"][0];
            match choice["finish_reason"].as_str() {
                Some(reason) => {
                    finish = Some(reason.to_owned());
                    if choice["text"].as_str().is_some_and(|text| !text.is_empty()) {
                        token(choice);
                    }
                }
                None if choice.is_object() => token(choice),
                None => {}
            }
        }
        Ok(match finish.as_deref() {
            Some("length") => None,
            Some(reason) => Some(Failure {
                kind: "stopped early",
                message: format!("stopped early: {}", foreign::one_line(reason, 40)),
            }),
            None => Some(Failure { kind: "cut off", message: "the answer was cut off".to_owned() }),
        })
    }
}
