//! A server on a thread, and a client that shows everything.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod client;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use gyrus::speech::SpeechOptions;
use gyrus::{Embedder, Model, Options, Reranker, Transcriber};
use gyrus_server::{Config, Details, Listed, Pulled, Purpose, Served, Server, Source, SourceError};
use tokio::sync::oneshot;

/// The models of tests: one of the repository under several names.
pub(crate) struct TestSource {
    pub(crate) path: PathBuf,
    pub(crate) loads: Arc<AtomicUsize>,
    pub(crate) options: Options,
    /// How long it takes to load a model, at least.
    pub(crate) load_time: Duration,
}

/// A small encoder of the repository.
pub(crate) fn fixture(name: &str) -> PathBuf {
    gyrus_testkit::repository().join("tests/data/encoders").join(name)
}

/// Bytes that a test model is said to need before it is loaded.
pub(crate) const MEMORY: u64 = 8 << 20;

impl TestSource {
    /// The test model, if its file is there.
    pub(crate) fn tales() -> Option<TestSource> {
        let path = gyrus_testkit::data("tales/tales-7m-q8_0.gguf")?;
        let options = Options { sessions: 8, context: Some(512), threads: Some(2), ..Options::default() };
        Some(TestSource { path, loads: Arc::default(), options, load_time: Duration::ZERO })
    }

    /// Another model of the test data.
    pub(crate) fn of(name: &str) -> Option<TestSource> {
        Some(TestSource { path: gyrus_testkit::data(name)?, ..TestSource::tales()? })
    }

    /// The test model with another chat template, in a folder.
    pub(crate) fn with_template(template: &str, folder: &std::path::Path) -> Option<TestSource> {
        let source = gyrus_testkit::data("tales/model.safetensors")?;
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(source.with_file_name(name), folder.join(name)).unwrap();
        }
        std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
        Some(TestSource { path: folder.to_owned(), ..TestSource::tales()? })
    }

    pub(crate) fn model(&self) -> Model {
        Model::open(&self.path, &self.options).unwrap()
    }
}

impl Source for TestSource {
    fn list(&self) -> Vec<Listed> {
        let one = |name: &str, is_present: bool| Listed {
            name: name.to_owned(),
            bytes: 7_533_216,
            memory: MEMORY,
            is_present,
            ..Listed::default()
        };
        let names = [
            ("tales", true),
            ("second", true),
            ("broken", true),
            ("bert", true),
            ("ranker", true),
            ("whisper", true),
        ];
        let mut all: Vec<Listed> = names.map(|(name, is_present)| one(name, is_present)).to_vec();
        all.push(one("remote", false));
        all
    }

    fn load(&self, name: &str, memory: Option<u64>) -> Result<Served, SourceError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.load_time);
        if name == "broken" {
            return Err(SourceError::new("the file is damaged"));
        }
        let open = || -> Result<Served, gyrus::Error> {
            Ok(match name {
                "bert" => Served::Embedder(Arc::new(Embedder::open(&fixture("bert"), &self.options)?)),
                "ranker" => {
                    Served::Reranker(Arc::new(Reranker::open(&fixture("bert-reranker"), &self.options)?))
                }
                "whisper" => {
                    let path = gyrus_testkit::repository().join("tests/data/whisper");
                    Served::Transcriber(Transcriber::open(&path, &SpeechOptions::default())?)
                }
                _ => Model::open(&self.path, &Options { memory, ..self.options.clone() })?.into(),
            })
        };
        open().map_err(|error| SourceError::new(error.to_string()))
    }

    fn details(&self, name: &str) -> Details {
        if name != "tales" {
            let purpose = (name == "whisper").then_some(Purpose::Transcripts);
            return Details { purpose, ..Details::default() };
        }
        Details {
            format: "gguf".to_owned(),
            family: "llama".to_owned(),
            parameters: 7_000_000,
            quantization: "Q8_0".to_owned(),
            digest: Some("ab".repeat(32)),
            purpose: None,
        }
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulled) -> bool) -> Result<(), SourceError> {
        for done in 1..=4 {
            if !progress(Pulled { done: done * 25, total: Some(100) }) {
                return Err(SourceError::new("stopped"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(SourceError::new(format!("{name} cannot be had here")))
    }
}

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Settings of tests: a free port, short times.
pub(crate) fn config() -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        drain: Duration::from_secs(20),
        header_timeout: Duration::from_secs(5),
        threads: 2,
        ..Config::default()
    }
}

/// Starts a server. `None` if the test data is not there.
pub(crate) fn start(config: Config) -> Option<Running> {
    Some(start_with(config, TestSource::tales()?))
}

pub(crate) fn start_with(config: Config, source: TestSource) -> Running {
    start_preloading(config, source, &[])
}

/// Starts a server that loads models at once.
pub(crate) fn start_preloading(config: Config, source: TestSource, preload: &[&str]) -> Running {
    let preload = preload.iter().map(|name| (*name).to_owned()).collect();
    let (send, address) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let server = Server::new(config, Arc::new(source)).unwrap();
    let thread = std::thread::spawn(move || {
        let stopped = async {
            let _ = stopped.await;
        };
        server.run(preload, stopped, |address| send.send(address).unwrap()).unwrap();
    });
    Running { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
}

impl Running {
    /// Tells the server to stop. It drains meanwhile.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until the server has stopped.
    pub(crate) fn wait(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bytes of memory that this process has in use.
pub(crate) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}
