//! The settings of a server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::keep_alive::KeepAlive;

/// The settings of a server.
#[derive(Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Whether an address that others can reach is allowed without API keys.
    pub insecure: bool,
    /// The file of API keys.
    pub keys: Option<PathBuf>,
    /// One API key without limits.
    pub api_key: Option<String>,
    /// The certificate chain of HTTPS, in PEM.
    pub tls_certificate: Option<PathBuf>,
    /// The private key of HTTPS, in PEM.
    pub tls_key: Option<PathBuf>,
    /// Origins of web pages that may use the server, such as `https://chat.example`; `*` for all.
    pub cors: Vec<String>,
    /// Names by which clients may call the server besides its address, for servers without keys.
    pub hosts: Vec<String>,
    /// Sequences that each model computes at once, at most [`gyrus::MAX_SEQUENCES`].
    pub parallel: usize,
    /// Sequences that may wait beyond those.
    pub queue: usize,
    /// Tokens of an answer whose request does not limit it; without one the context does.
    pub max_tokens: Option<usize>,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Open connections.
    pub connections: usize,
    /// Time for the headers of a request, and between requests of a connection.
    pub header_timeout: Duration,
    /// Time for the body of a request.
    pub body_timeout: Duration,
    /// Time in which a client must take something of what is sent to it.
    pub write_timeout: Duration,
    /// Time for a generation, waiting included.
    pub request_timeout: Duration,
    /// Time that running requests have when the server is told to stop.
    pub drain: Duration,
    /// How long a model stays loaded after its last request.
    pub keep_alive: KeepAlive,
    /// Bytes that all loaded models may take together.
    pub memory: Option<u64>,
    /// More names of models.
    pub aliases: BTreeMap<String, String>,
    /// Whether clients may download, load and unload models.
    pub manage: bool,
    /// Threads for connections. Models compute on their own.
    pub threads: usize,
    /// Whether prompts are logged.
    pub log_prompts: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            insecure: false,
            keys: None,
            api_key: None,
            tls_certificate: None,
            tls_key: None,
            cors: Vec::new(),
            hosts: Vec::new(),
            parallel: 16,
            queue: 256,
            max_tokens: None,
            max_body: 8 << 20,
            connections: 1024,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(3600),
            drain: Duration::from_secs(30),
            keep_alive: KeepAlive::Forever,
            memory: None,
            aliases: BTreeMap::new(),
            manage: true,
            threads: 1,
            log_prompts: false,
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Anybody could use the server.
    #[error(
        "{0} can be reached by others: set API keys (--keys FILE or GYRUS_API_KEY), or pass --insecure if everybody may use the server"
    )]
    Open(SocketAddr),
    /// The file of keys is wrong.
    #[error("{}: {message}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The single key is wrong.
    #[error("the API key: {0}")]
    Key(String),
    /// The certificate or its key is wrong.
    #[error("TLS: {0}")]
    Tls(String),
    /// A setting is out of range.
    #[error("{name}: {message}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is wrong.
        message: String,
    },
    /// There is no model to serve.
    #[error("there is no model to serve")]
    NoModel,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The threads for connections could not be started.
    #[error("the threads of the server could not be started: {0}")]
    Runtime(#[source] std::io::Error),
}

impl Config {
    /// Whether every setting is in its range, and the address is safe to listen on.
    pub fn validate(&self) -> Result<(), SetupError> {
        let check = |ok: bool, name: &'static str, message: &str| match ok {
            true => Ok(()),
            false => Err(SetupError::Setting { name, message: message.to_owned() }),
        };
        let is_open = !self.listen.ip().is_loopback();
        if is_open && self.keys.is_none() && self.api_key.is_none() && !self.insecure {
            return Err(SetupError::Open(self.listen));
        }
        // More would reserve caches that no sequence could use.
        let most = gyrus::MAX_SEQUENCES;
        let message = format!("a model computes 1 to {most} sequences at once, not {}", self.parallel);
        check((1..=most).contains(&self.parallel), "parallel", &message)?;
        check(self.queue <= 1 << 20, "queue", "at most 1048576 sequences can wait")?;
        check((1024..=1 << 30).contains(&self.max_body), "max_body", "1 KiB to 1 GiB are possible")?;
        check((1..=1 << 16).contains(&self.connections), "connections", "1 to 65536 are possible")?;
        check((1..=64).contains(&self.threads), "threads", "1 to 64 are possible")?;
        let both = self.tls_certificate.is_some() == self.tls_key.is_some();
        check(both, "tls_certificate", "a certificate and its key are needed together")?;
        check(
            cfg!(feature = "tls") || self.tls_key.is_none(),
            "tls_key",
            "this program was built without TLS",
        )?;
        for (name, time) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("request_timeout", self.request_timeout),
        ] {
            check(!time.is_zero(), name, "it must be above 0 seconds")?;
        }
        let is_origin = |origin: &String| {
            origin == "*"
                || origin.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'))
        };
        check(
            self.cors.iter().all(is_origin),
            "cors",
            "an origin is written as https://host or https://host:port",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_address_needs_keys() {
        let open = Config { listen: "0.0.0.0:80".parse().unwrap(), ..Config::default() };
        assert!(matches!(open.validate(), Err(SetupError::Open(_))));
        assert!(Config { insecure: true, ..open.clone() }.validate().is_ok());
        assert!(Config { api_key: Some("k".to_owned()), ..open }.validate().is_ok());
        assert!(Config::default().validate().is_ok());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for (message, name) in [
            (with(|config| config.cors = vec!["example.org".to_owned()]), "cors"),
            (with(|config| config.parallel = 0), "parallel"),
            (
                with(|config| config.parallel = 129),
                "parallel: a model computes 1 to 128 sequences at once, not 129",
            ),
            (with(|config| config.max_body = 1), "max_body"),
            (with(|config| config.tls_key = Some("key.pem".into())), "tls_certificate"),
            (with(|config| config.write_timeout = Duration::ZERO), "write_timeout"),
        ] {
            assert!(message.starts_with(name), "{message}");
        }
    }
}
