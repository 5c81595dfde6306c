//! What all requests share.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};

use crate::body::{Bodies, Held};
use crate::config::{Config, SetupError};
use crate::encoding;
use crate::failure::{Failure, Kind};
use crate::gate::Gate;
use crate::keep_alive::KeepAlive;
use crate::keys::{Key, Keys};
use crate::metrics::{Metrics, Now};
use crate::models::{Lease, Listed, Registry, Source};

/// What all requests of a server share.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) models: Arc<Registry>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) metrics: Metrics,
    /// Bodies of requests in memory.
    pub(crate) bodies: Arc<Bodies>,
    /// Requests that encode or decode, on a thread each.
    pub(crate) encoding: Arc<Semaphore>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) preload: Preload,
}

/// Longer than any request runs.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No new work; running requests go on.
    Draining,
    /// Running requests are ended with an error.
    Ending,
}

/// The models that are loaded when the server starts, without which it is not ready.
#[derive(Debug, Default)]
pub(crate) struct Preload(Mutex<BTreeMap<String, Loading>>);

/// How far the load of a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loading {
    Done,
    Pending,
    Failed,
}

impl Preload {
    pub(crate) fn set(&self, name: &str, loading: Loading) {
        self.models().insert(name.to_owned(), loading);
    }

    /// That of the model that is worst off. One that failed is done once a request has loaded it.
    pub(crate) fn worst(&self, registry: &Registry) -> Loading {
        let is_loaded = |name: &str| registry.known(name).is_some_and(|entry| entry.served().is_some());
        let mut models = self.models();
        for (_, loading) in
            models.iter_mut().filter(|(name, loading)| **loading == Loading::Failed && is_loaded(name))
        {
            *loading = Loading::Done;
        }
        models.values().copied().max().unwrap_or(Loading::Done)
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Loading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who sends a request.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: Option<Arc<Key>>,
    /// The client's address, without its port.
    pub(crate) address: String,
    /// The id of the request.
    pub(crate) id: String,
    /// When its headers had come. Its time begins then.
    pub(crate) arrived: Instant,
    /// The bytes that its body takes, set when the body was read. Whatever works for the request has the caller, also a stream
    /// and a thread that outlives its client, so the bytes are counted for as long as something of the request is in memory.
    pub(crate) held: OnceLock<Held>,
}

impl State {
    pub(crate) fn new(config: Config, source: Arc<dyn Source>) -> Result<Arc<State>, SetupError> {
        config.validate()?;
        let mut keys = match &config.keys {
            Some(path) => Keys::read(path, &config.aliases)?,
            None => Keys::default(),
        };
        if let Some(key) = &config.api_key {
            if !keys.is_empty() {
                let message = "a file of keys and a single key exclude each other".to_owned();
                return Err(SetupError::Setting { name: "api_key", message });
            }
            keys = Keys::single(key).map_err(SetupError::Key)?;
        }
        let models = Registry::new(source, config.aliases.clone(), config.memory, config.keep_alive);
        let gate = Gate::new(config.parallel + config.queue);
        let (phase, _) = watch::channel(Phase::Serving);
        let bodies = Bodies::new(config.max_body);
        let (metrics, preload) = (Metrics::new(), Preload::default());
        let encoding = Arc::new(Semaphore::new(encoding::THREADS));
        Ok(Arc::new(State { config, keys, models, gate, metrics, bodies, encoding, phase, preload }))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Ready when the server ends running requests.
    pub(crate) async fn ending(&self) {
        let mut phase = self.phase.subscribe();
        // The state outlives every request.
        let _ = phase.wait_for(|phase| *phase == Phase::Ending).await;
    }

    /// When a request ends unfinished. `asked`: the time that it gives itself.
    pub(crate) fn deadline(&self, caller: &Caller, asked: Option<Duration>) -> Instant {
        let most = self.config.request_timeout;
        let limit = asked.map_or(most, |asked| asked.min(most));
        // A limit beyond what clocks can tell is none.
        caller.arrived.checked_add(limit).unwrap_or_else(|| caller.arrived + FAR)
    }

    /// A part of a request, unless the request's time is over before or the server ends.
    pub(crate) async fn within<T>(
        &self,
        deadline: Instant,
        part: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = tokio::time::timeout_at(deadline.into(), part) => done.unwrap_or_else(|_| {
                Err(Failure::new(Kind::Timeout, "the time limit of the request has passed"))
            }),
            () = self.ending() => {
                Err(Failure::new(Kind::Unavailable, "the server is shutting down").with_retry(5))
            }
        }
    }

    /// A language model for a request without a generation. Loading it takes from the request's time.
    pub(crate) async fn lease(&self, caller: &Caller, listed: &Listed) -> Result<Lease, Failure> {
        self.within(self.deadline(caller, None), self.models.lease(listed)).await
    }

    /// How long a model is to stay after a request. Where clients do not manage models, they do not decide it.
    pub(crate) fn kept(&self, asked: Option<KeepAlive>) -> Option<KeepAlive> {
        asked.filter(|_| self.config.manage)
    }

    /// The model of a name, if the caller may use it.
    pub(crate) async fn find(&self, caller: &Caller, name: &str) -> Result<Listed, Failure> {
        self.models.find(name, &|model| caller.may_use(model)).await
    }

    /// The queue is full.
    pub(crate) fn full(&self) -> Failure {
        let message = format!("{} sequences run or wait already: try again later", self.gate.taken());
        let seconds = self.metrics.duration.mean().clamp(1.0, 60.0).ceil() as u64;
        Failure::new(Kind::RateLimit, message).with_code("queue_full").with_retry(seconds)
    }

    /// What the loaded models do now that the caller may use.
    pub(crate) fn now(&self, caller: &Caller) -> Vec<Now> {
        let all = self.models.all().into_iter().filter(|entry| caller.may_use(&entry.name));
        let loaded =
            all.filter_map(|entry| entry.model().map(|(model, bytes)| (entry.name.clone(), model, bytes)));
        loaded
            .map(|(name, model, bytes)| {
                let context = model.context().tokens;
                Now { model: name, statistics: model.statistics(), bytes, context }
            })
            .collect()
    }

    /// Whether the clients may manage models.
    pub(crate) fn check_managed(&self) -> Result<(), Failure> {
        match self.config.manage {
            true => Ok(()),
            false => {
                Err(Failure::new(Kind::Permission, "this server does not let clients manage its models"))
            }
        }
    }
}

impl Caller {
    /// Whether the caller may use a model, and be told of it.
    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.allows(model))
    }

    /// What fair shares are counted by: the key, or else the address.
    pub(crate) fn client(&self) -> &str {
        self.key.as_ref().map_or(&self.address, |key| &key.name)
    }

    /// Whose prefixes are shared. Without keys all clients share them.
    pub(crate) fn tenant(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.name)
    }
}
