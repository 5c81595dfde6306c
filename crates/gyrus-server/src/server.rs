//! A server: state, routes and a runtime.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tracing::{info, warn};

use crate::config::{Config, SetupError};
use crate::front::front;
use crate::http;
use crate::models::{IDLE_BEFORE_RELEASE, Listed, Source};
use crate::routes::router;
use crate::state::{Loading, State};

/// Threads that prepare prompts and load models. More requests wait for one.
const BLOCKING_THREADS: usize = 32;
/// How long such a thread waits for work. The allocator caches buffers for each thread, and frees them when it ends: that is
/// before an idle server returns free memory to the system.
const BLOCKING_IDLE: Duration = IDLE_BEFORE_RELEASE.checked_div(2).unwrap();
/// How long threads may take to close models, and to end what they prepare.
const CLOSING: Duration = Duration::from_secs(5);

/// A server that is set up but not started.
pub struct Server {
    state: Arc<State>,
    runtime: Runtime,
}

impl Server {
    /// Checks the settings and sets a server up.
    pub fn new(config: Config, source: Arc<dyn Source>) -> Result<Server, SetupError> {
        let state = State::new(config, source)?;
        #[cfg(feature = "tls")]
        http::tls::acceptor(&state.config)?;
        // A server runs for long, and its models come and go.
        gyrus::limit_heap();
        let runtime = Builder::new_multi_thread()
            .worker_threads(state.config.threads)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_keep_alive(BLOCKING_IDLE)
            .thread_name("gyrus-server")
            .enable_all()
            .build()
            .map_err(SetupError::Runtime)?;
        Ok(Server { state, runtime })
    }

    /// The number of API keys.
    pub fn keys(&self) -> usize {
        self.state.keys.len()
    }

    /// What is wrong with the names of models that keys have: a key can use no model of a name that is not in this list.
    pub fn unknown_models(&self, listed: &[Listed]) -> Vec<String> {
        let unknown = self.state.keys.unknown_models(|model| listed.iter().any(|one| one.name == model));
        unknown.iter().map(|(key, model)| format!("key {key:?}: there is no model {model:?}")).collect()
    }

    /// Listens and serves until `stop` is ready, then drains. `ready` is called with the address once requests are taken.
    /// `preload`: models to load at once; the others are loaded when they are asked for.
    pub fn run(
        self,
        preload: Vec<String>,
        stop: impl Future<Output = ()>,
        ready: impl FnOnce(SocketAddr),
    ) -> Result<(), SetupError> {
        // A model may come later.
        let listed = self.state.models.source().list();
        self.unknown_models(&listed).iter().for_each(|problem| warn!("{problem}"));
        let Server { state, runtime } = self;
        let served = runtime.block_on(async {
            // Before anybody can ask whether the server is ready.
            preload.iter().for_each(|name| state.preload.set(name, Loading::Pending));
            let address = state.config.listen;
            let wrong = |source| SetupError::Listen { address, source };
            let listener = TcpListener::bind(address).await.map_err(wrong)?;
            let address = listener.local_addr().map_err(wrong)?;
            info!(%address, "listening");
            tokio::spawn(Arc::clone(&state.models).unload_idle());
            for name in preload {
                let state = Arc::clone(&state);
                tokio::spawn(async move { load(&state, &name).await });
            }
            let front = from_fn_with_state(Arc::clone(&state), front);
            let router = router(&state).layer(front);
            ready(address);
            http::listen(listener, router, Arc::clone(&state), stop).await
        });
        // Models are closed before the process ends: drivers of GPUs fail if a device is closed while they end, too. Threads
        // that prepare a prompt for longer are not waited for.
        runtime.shutdown_timeout(CLOSING);
        served
    }
}

/// Loads a model at the start.
async fn load(state: &State, name: &str) {
    let loaded = match state.models.find(name, &|_| true).await {
        Ok(listed) => state.models.lease_any(&listed).await.map(drop),
        Err(failure) => Err(failure),
    };
    // A failure was logged, and whoever asks for the model gets it too.
    state.preload.set(name, if loaded.is_ok() { Loading::Done } else { Loading::Failed });
}
