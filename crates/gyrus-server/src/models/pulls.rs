//! Downloads: one of a model at a time, whoever asks for it, and few of them at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use super::source::{Pulled, Source};

/// Downloads that run at once. Others wait.
const AT_ONCE: usize = 4;

/// Where a download is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PullStep {
    /// It waits for others.
    Waiting,
    /// Bytes have come.
    Came(Pulled),
    /// It has ended; with the reason if it failed.
    Ended(Result<(), String>),
}

/// The downloads of a server.
pub(super) struct Pulls {
    running: Mutex<BTreeMap<String, Arc<watch::Sender<PullStep>>>>,
    places: Semaphore,
}

impl Pulls {
    pub(super) fn new() -> Arc<Pulls> {
        Arc::new(Pulls { running: Mutex::default(), places: Semaphore::new(AT_ONCE) })
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Arc<watch::Sender<PullStep>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The download of a model, which is begun unless it runs. It is stopped when all its receivers are dropped. `ended` is
    /// called before the last step is told.
    pub(super) fn join(
        self: &Arc<Pulls>,
        source: &Arc<dyn Source>,
        name: &str,
        ended: impl Fn() + Send + 'static,
    ) -> watch::Receiver<PullStep> {
        let mut running = self.running();
        if let Some(steps) = running.get(name) {
            return steps.subscribe();
        }
        let (steps, receiver) = watch::channel(PullStep::Waiting);
        let steps = Arc::new(steps);
        running.insert(name.to_owned(), Arc::clone(&steps));
        let (pulls, source, name) = (Arc::clone(self), Arc::clone(source), name.to_owned());
        tokio::spawn(async move {
            let done = pulls.run(source, &name, &steps).await;
            match &done {
                Ok(()) => info!(model = %name, "pulled"),
                Err(error) => warn!(model = %name, "not pulled: {error}"),
            }
            ended();
            steps.send_replace(PullStep::Ended(done));
        });
        receiver
    }

    /// Downloads for as long as there are receivers. At the end the download is no longer among those that run.
    async fn run(
        &self,
        source: Arc<dyn Source>,
        name: &str,
        steps: &Arc<watch::Sender<PullStep>>,
    ) -> Result<(), String> {
        let place = tokio::select! {
            place = self.places.acquire() => place.ok(),
            () = steps.closed() => None,
        };
        loop {
            let was_stopped = Arc::new(AtomicBool::new(false));
            let done = match &place {
                None => {
                    was_stopped.store(true, Ordering::Release);
                    Err("it was stopped".to_owned())
                }
                Some(_) => pull(Arc::clone(&source), name.to_owned(), Arc::clone(steps), &was_stopped).await,
            };
            let mut running = self.running();
            // Somebody may have joined a download that was being stopped.
            let goes_on = was_stopped.load(Ordering::Acquire) && !steps.is_closed() && place.is_some();
            if !goes_on {
                running.remove(name);
                return done;
            }
        }
    }
}

/// Downloads on a thread that may block.
async fn pull(
    source: Arc<dyn Source>,
    name: String,
    steps: Arc<watch::Sender<PullStep>>,
    was_stopped: &Arc<AtomicBool>,
) -> Result<(), String> {
    let was_stopped = Arc::clone(was_stopped);
    let work = move || {
        let mut progress = |pulled: Pulled| {
            let is_closed = steps.is_closed();
            was_stopped.store(is_closed, Ordering::Release);
            steps.send_replace(PullStep::Came(pulled));
            !is_closed
        };
        source.pull(&name, &mut progress).map_err(|error| error.message)
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(format!("the download failed: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::models::{Listed, Served, SourceError};

    /// Downloads that last until they are let go, or stopped.
    #[derive(Default)]
    struct Slow {
        pulls: AtomicUsize,
        running: AtomicUsize,
        is_over: AtomicBool,
    }

    impl Source for Slow {
        fn list(&self) -> Vec<Listed> {
            Vec::new()
        }

        fn load(&self, _: &str, _: Option<u64>) -> Result<Served, SourceError> {
            Err(SourceError::new("there is none"))
        }

        fn pull(&self, _: &str, progress: &mut dyn FnMut(Pulled) -> bool) -> Result<(), SourceError> {
            self.pulls.fetch_add(1, Ordering::SeqCst);
            self.running.fetch_add(1, Ordering::SeqCst);
            let mut result = Ok(());
            while !self.is_over.load(Ordering::SeqCst) {
                if !progress(Pulled { done: 1, total: None }) {
                    result = Err(SourceError::new("stopped"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.running.fetch_sub(1, Ordering::SeqCst);
            result
        }
    }

    async fn until(is_so: impl Fn() -> bool) {
        for _ in 0..5000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it took too long");
    }

    #[tokio::test]
    async fn downloads_are_shared_few_at_once_and_end_with_their_clients() {
        let slow = Arc::new(Slow::default());
        let source: Arc<dyn Source> = Arc::clone(&slow) as Arc<dyn Source>;
        let pulls = Pulls::new();
        let same: Vec<_> = (0..20).map(|_| pulls.join(&source, "one", || ())).collect();
        until(|| slow.running.load(Ordering::SeqCst) == 1).await;
        drop(same);
        until(|| pulls.running().is_empty()).await;
        assert_eq!(slow.pulls.load(Ordering::SeqCst), 1);
        let mut all: Vec<_> = (0..10).map(|n| pulls.join(&source, &n.to_string(), || ())).collect();
        until(|| slow.running.load(Ordering::SeqCst) == AT_ONCE).await;
        // One that waits leaves.
        drop(all.pop());
        slow.is_over.store(true, Ordering::SeqCst);
        for mut steps in all {
            let last = steps.wait_for(|step| matches!(step, PullStep::Ended(_))).await.unwrap().clone();
            assert_eq!(last, PullStep::Ended(Ok(())));
        }
        until(|| pulls.running().is_empty()).await;
    }
}
