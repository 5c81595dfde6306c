//! A server on a thread, and a client that shows everything.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod client;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use gyrus::{Model, Options};
use gyrus_server::{Config, Listed, Pulled, Server, Source, SourceError};
use tokio::sync::oneshot;

/// The models of tests: one of the repository under several names.
pub(crate) struct TestSource {
    path: PathBuf,
    pub(crate) loads: Arc<AtomicUsize>,
    pub(crate) options: Options,
}

/// Bytes that a test model is said to need before it is loaded.
pub(crate) const MEMORY: u64 = 8 << 20;

impl TestSource {
    /// The test model, if its file is there.
    pub(crate) fn tales() -> Option<TestSource> {
        let path = gyrus_testkit::data("tales/tales-7m-q8_0.gguf")?;
        let options = Options { sessions: 8, context: Some(512), threads: Some(2), ..Options::default() };
        Some(TestSource { path, loads: Arc::default(), options })
    }

    /// Another model of the test data.
    pub(crate) fn of(name: &str) -> Option<TestSource> {
        Some(TestSource { path: gyrus_testkit::data(name)?, ..TestSource::tales()? })
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
        vec![one("tales", true), one("second", true), one("broken", true), one("remote", false)]
    }

    fn load(&self, name: &str) -> Result<Model, SourceError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        if name == "broken" {
            return Err(SourceError::new("the file is damaged"));
        }
        Model::open(&self.path, &self.options).map_err(|error| SourceError::new(error.to_string()))
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
    let (send, address) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let server = Server::new(config, Arc::new(source)).unwrap();
    let thread = std::thread::spawn(move || {
        let stopped = async {
            let _ = stopped.await;
        };
        server.run(Vec::new(), stopped, |address| send.send(address).unwrap()).unwrap();
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
