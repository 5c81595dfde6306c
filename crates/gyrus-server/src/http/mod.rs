//! Connections: listening, limits, TLS, shutdown.

mod connection;
mod listen;
mod patient;
#[cfg(feature = "tls")]
pub(crate) mod tls;

pub(crate) use listen::listen;
