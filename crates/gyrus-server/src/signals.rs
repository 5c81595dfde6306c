//! Signals that tell a server to stop.

/// Ready when the process is told to stop: by SIGTERM, or by Ctrl-C.
pub async fn told_to_stop() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler the signal ends the process, which is all that can be done.
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let terminated = async {
            match signal(SignalKind::terminate()) {
                Ok(mut signals) => drop(signals.recv().await),
                Err(_) => std::future::pending::<()>().await,
            }
        };
        tokio::select! {
            () = interrupted => {}
            () = terminated => {}
        }
    }
    #[cfg(not(unix))]
    interrupted.await;
}
