//! All models of a server under one memory budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::entry::{Claim, Entry, Loaded, StateName};
use super::lease::Lease;
use super::pulls::{PullStep, Pulls};
use super::source::{Details, Listed, Source};
use crate::failure::{Failure, Kind};
use crate::keep_alive::KeepAlive;
use crate::names::nearest;

/// How often idle models are looked for.
const IDLE_TICK: Duration = Duration::from_millis(500);

/// How long no model was in use when freed memory is returned to the system.
pub(crate) const IDLE_BEFORE_RELEASE: Duration = Duration::from_secs(10);

/// How long the source's list is used.
const LIST_TIME: Duration = Duration::from_secs(1);

/// The models of a server.
pub(crate) struct Registry {
    source: Arc<dyn Source>,
    /// What the source has, and when it was asked.
    listed: Mutex<Option<(Instant, Arc<Vec<Listed>>)>>,
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    aliases: BTreeMap<String, String>,
    /// Bytes that all loaded models may take together.
    budget: Option<u64>,
    keep_alive: KeepAlive,
    /// One model is loaded at a time, so that the budget is counted right.
    loading: tokio::sync::Mutex<()>,
    pulls: Arc<Pulls>,
}

impl Registry {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        aliases: BTreeMap<String, String>,
        budget: Option<u64>,
        keep_alive: KeepAlive,
    ) -> Arc<Registry> {
        Arc::new(Registry {
            source,
            listed: Mutex::new(None),
            entries: Mutex::new(BTreeMap::new()),
            aliases,
            budget,
            keep_alive,
            loading: tokio::sync::Mutex::new(()),
            pulls: Pulls::new(),
        })
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.source)
    }

    pub(crate) fn aliases(&self) -> &BTreeMap<String, String> {
        &self.aliases
    }

    /// All models that there are. A new file is seen after a second.
    pub(crate) async fn list(&self) -> Result<Arc<Vec<Listed>>, Failure> {
        let cached = || self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, listed)) = &*cached()
            && at.elapsed() < LIST_TIME
        {
            return Ok(Arc::clone(listed));
        }
        let source = self.source();
        let listed = tokio::task::spawn_blocking(move || Arc::new(source.list())).await;
        let listed =
            listed.map_err(|error| Failure::server(format!("the models cannot be listed: {error}")))?;
        *cached() = Some((Instant::now(), Arc::clone(&listed)));
        Ok(listed)
    }

    /// What is in models of the list, in their order.
    pub(crate) async fn details(&self, names: Vec<String>) -> Result<Vec<Details>, Failure> {
        let source = self.source();
        let read = move || names.iter().map(|name| source.details(name)).collect();
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| Failure::server(format!("the models cannot be described: {error}")))
    }

    /// The download of a model of the list. It ends when nobody waits for it.
    pub(crate) fn pull(self: &Arc<Registry>, name: &str) -> watch::Receiver<PullStep> {
        let registry = Arc::clone(self);
        self.pulls.join(&self.source, name, move || registry.forget_list())
    }

    /// Asks the source again for what it has, since that has changed.
    fn forget_list(&self) {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The model of a name: exact, an alias, or in another case; with Ollama's `:latest` or without. An empty name is the
    /// default model, the first that the caller may use. A model that the caller may not use is as one that does not exist.
    pub(crate) async fn find(
        &self,
        name: &str,
        may_use: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Listed, Failure> {
        let listed = self.list().await?;
        let usable = || listed.iter().filter(|one| may_use(&one.name));
        let name = self.aliases.get(name).map_or(name, String::as_str);
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let short = self.aliases.get(short).map_or(short, String::as_str);
        let found = match short {
            "" | "default" => usable().find(|one| one.is_present),
            _ => {
                let exact = usable().find(|one| one.name == short);
                exact.or_else(|| usable().find(|one| one.name.eq_ignore_ascii_case(short)))
            }
        };
        if let Some(found) = found {
            return Ok(found.clone());
        }
        let shown: String = name.chars().take(100).collect();
        let names = usable().filter(|one| one.is_present);
        let aliases = self.aliases.iter().filter(|(_, model)| may_use(model));
        let names = names.map(|one| one.name.as_str()).chain(aliases.map(|(alias, _)| alias.as_str()));
        let near = nearest(short, names);
        let hint = match near.is_empty() {
            true => "GET /v1/models lists the models".to_owned(),
            false => format!("near are {}", near.join(", ")),
        };
        let message = format!("there is no model {shown:?}; {hint}");
        let failure = Failure::new(Kind::NotFound, message).with_code("model_not_found");
        Err(Failure { param: Some("model".to_owned()), ..failure })
    }

    /// The entry of a model that can be loaded.
    fn entry(&self, listed: &Listed) -> Result<Arc<Entry>, Failure> {
        if !listed.is_present {
            let message = format!("{} has to be downloaded first: POST /api/pull", listed.name);
            return Err(Failure::new(Kind::NotFound, message).with_code("model_not_found"));
        }
        let mut entries = self.entries();
        let entry = entries.entry(listed.name.clone());
        let new = || Arc::new(Entry::new(listed.name.clone(), self.keep_alive));
        Ok(Arc::clone(entry.or_insert_with(new)))
    }

    /// The entry of a model that was asked for before.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries().get(name).cloned()
    }

    /// Takes a language model into use, and loads it if it is not loaded.
    pub(crate) async fn lease(self: &Arc<Registry>, listed: &Listed) -> Result<Lease, Failure> {
        let lease = self.lease_any(listed).await?;
        if lease.served().model().is_some() {
            return Ok(lease);
        }
        let served = lease.served();
        let message = format!("{} {}: see {}", listed.name, served.does(), served.routes());
        let failure = Failure::new(Kind::Invalid, message).with_code("unsupported_model");
        Err(Failure { param: Some("model".to_owned()), ..failure })
    }

    /// Takes a model of any kind into use, and loads it if it is not loaded.
    pub(crate) async fn lease_any(self: &Arc<Registry>, listed: &Listed) -> Result<Lease, Failure> {
        let entry = self.entry(listed)?;
        let mut changes = entry.subscribe();
        let mut waited = None;
        loop {
            changes.mark_unchanged();
            match entry.claim(waited) {
                Claim::Held(model) => return Ok(Lease::new(entry, model)),
                Claim::Failed(failure) => return Err(failure),
                Claim::Wait(attempt) => waited = Some(attempt),
                Claim::Load(attempt) => {
                    waited = Some(attempt);
                    // A task of its own: if this client goes away, others still want the model.
                    let (registry, entry, listed) = (Arc::clone(self), Arc::clone(&entry), listed.clone());
                    tokio::spawn(async move {
                        let result = registry.load(&entry, &listed).await;
                        if let Err(failure) = &result {
                            warn!(model = %entry.name, "not loaded: {}", failure.message);
                        }
                        entry.loaded(result, registry.keep_alive);
                    });
                }
            }
            if changes.changed().await.is_err() {
                return Err(Failure::server("the model is gone"));
            }
        }
    }

    async fn load(&self, entry: &Entry, listed: &Listed) -> Result<Loaded, Failure> {
        let _guard = self.loading.lock().await;
        // As much again for what grows with the memory that is left, such as the KV cache.
        let wanted = listed.memory.saturating_mul(2).min(self.left_for(entry, false).unwrap_or(u64::MAX));
        self.make_room(entry, wanted.max(listed.memory)).await?;
        let started = Instant::now();
        let (source, name) = (self.source(), entry.name.clone());
        let memory = self.left_for(entry, true);
        let load = move || -> Result<Loaded, Failure> {
            let model = source.load(&name, memory).map_err(|error| Failure::server(error.message))?;
            Ok(Loaded::new(model)?)
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        let loaded = loaded.map_err(|error| Failure::server(format!("loading failed: {error}")))??;
        if let Err(failure) = self.make_room(entry, loaded.bytes).await {
            drop_elsewhere(loaded).await;
            return Err(failure);
        }
        info!(
            model = %entry.name,
            ms = started.elapsed().as_millis() as u64,
            bytes = loaded.bytes,
            context = loaded.served.tokens(),
            cache_tokens = loaded.served.model().map(|model| model.context().total_tokens),
            "loaded"
        );
        Ok(loaded)
    }

    /// The bytes of the budget that other models leave: those in use, or idle ones too.
    fn left_for(&self, entry: &Entry, beside_idle: bool) -> Option<u64> {
        let budget = self.budget?;
        let entries = self.entries();
        let others = entries.values().filter(|other| other.name != entry.name);
        let staying = others.filter(|other| beside_idle || other.users() > 0);
        let taken = staying.filter_map(|other| other.served()).map(|(_, bytes)| bytes);
        Some(budget.saturating_sub(taken.fold(0, u64::saturating_add)))
    }

    /// Unloads idle models, the longest unused first, until this many bytes fit the budget.
    async fn make_room(&self, entry: &Entry, bytes: u64) -> Result<(), Failure> {
        let Some(budget) = self.budget else { return Ok(()) };
        let name = &entry.name;
        if bytes > budget {
            let message = format!("{name} needs {bytes} bytes of memory, the budget is {budget}");
            return Err(Failure::new(Kind::Unavailable, message));
        }
        loop {
            let others: Vec<Arc<Entry>> =
                self.entries().values().filter(|other| other.name != *name).cloned().collect();
            let taken: u64 = others.iter().filter_map(|other| other.served()).map(|(_, bytes)| bytes).sum();
            if taken.saturating_add(bytes) <= budget {
                return Ok(());
            }
            let mut idle: Vec<_> = others.iter().filter(|other| other.users() == 0).collect();
            idle.sort_by_key(|other| other.last_used());
            let Some(victim) = idle.iter().find(|other| other.begin_unload(true)) else {
                let message = format!(
                    "{name} needs {bytes} bytes of memory, and models in use leave {} of {budget}",
                    budget.saturating_sub(taken)
                );
                return Err(Failure::new(Kind::Unavailable, message).with_retry(5));
            };
            self.finish_unload(victim).await;
        }
    }

    /// Waits until nobody uses a model, and frees its memory.
    async fn finish_unload(&self, entry: &Entry) {
        if let Some(loaded) = entry.drained().await {
            drop_elsewhere(loaded).await;
            entry.unloaded();
            info!(model = %entry.name, "unloaded");
        }
    }

    /// Unloads a model when its running requests have ended. Returns its state before.
    pub(crate) async fn unload(self: &Arc<Registry>, name: &str) -> StateName {
        let Some(entry) = self.known(name) else { return StateName::Unloaded };
        let before = entry.name_of_state();
        if entry.begin_unload(false) {
            let registry = Arc::clone(self);
            // A task of its own: the unload must end even if this client goes away.
            let task = tokio::spawn(async move { registry.finish_unload(&entry).await });
            let _ = task.await;
        }
        before
    }

    /// Unloads models whose time is over, and returns memory that requests have freed once there are none, for ever.
    pub(crate) async fn unload_idle(self: Arc<Registry>) {
        let mut tick = tokio::time::interval(IDLE_TICK);
        let mut released = Instant::now();
        loop {
            tick.tick().await;
            let entries: Vec<Arc<Entry>> = self.entries().values().cloned().collect();
            let last_used = entries.iter().map(|entry| entry.last_used()).max();
            let is_idle = entries.iter().all(|entry| entry.users() == 0)
                && last_used.is_some_and(|last| last > released && last.elapsed() >= IDLE_BEFORE_RELEASE);
            if is_idle {
                released = Instant::now();
                let _ = tokio::task::spawn_blocking(gyrus::release_free_memory).await;
            }
            for entry in entries {
                let is_over = entry.expires().is_some_and(|expires| expires <= Instant::now());
                if is_over && entry.begin_unload(true) {
                    self.finish_unload(&entry).await;
                }
            }
        }
    }

    /// All models that were asked for.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries().values().cloned().collect()
    }
}

/// Frees a model on a thread that may block, and returns its memory to the system.
async fn drop_elsewhere(loaded: Loaded) {
    let free = move || {
        drop(loaded);
        gyrus::release_free_memory();
    };
    let _ = tokio::task::spawn_blocking(free).await;
}
