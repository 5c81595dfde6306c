//! Arguments of `gyrus serve`. Each is also a setting of its file, under the same name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gyrus_server::KeepAlive;

use crate::options::ModelArgs;
use crate::synthetic::Synthetic;

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct ServerArgs {
    /// Models to serve: files, folders or catalogue names, or NAME=FILE to give one a name. The first is loaded at once
    /// and is the default; all others are loaded when they are asked for
    #[arg(value_name = "MODEL")]
    pub(crate) model: Vec<String>,

    /// A folder whose models clients may ask for, by their names without .gguf or .bin
    #[arg(long, value_name = "FOLDER")]
    pub(crate) models: Option<PathBuf>,

    /// Random weights as the first model: a known shape or explicit dimensions, and a quantisation, such as
    /// llama-3.2-1b:q4_0. It measures a server without a model's file
    #[arg(long, value_name = "SHAPE:QUANT", requires = "vocabulary")]
    pub(crate) synthetic: Option<Synthetic>,

    /// A GGUF file whose vocabulary the synthetic model has, so that it writes text
    #[arg(long, value_name = "FILE", requires = "synthetic")]
    pub(crate) vocabulary: Option<PathBuf>,

    /// Another name for a model, as NAME=MODEL, such as gpt-4o=smollm2-135m
    #[arg(long, value_name = "NAME=MODEL", value_parser = pair)]
    pub(crate) alias: Vec<(String, String)>,

    /// Settings from a TOML file. Its keys are the names of these flags; flags beat the file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Check all settings, the keys, the certificate and the models, and exit
    #[arg(long)]
    pub(crate) check: bool,

    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Listen on an address that others can reach, without API keys
    #[arg(long)]
    pub(crate) insecure: bool,

    /// API keys and their limits, in TOML (see docs/server.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,

    /// One API key without limits; better in the environment than on the command line
    #[arg(long, value_name = "KEY", env = "GYRUS_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// Certificate chain for HTTPS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,

    /// Private key for HTTPS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,

    /// An origin whose web pages may use the server, such as https://chat.example; * for all
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,

    /// A name by which clients may call a server without keys, besides localhost and addresses
    #[arg(long, value_name = "NAME")]
    pub(crate) host_name: Vec<String>,

    /// Sequences that each model computes at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=gyrus::MAX_SEQUENCES as i64))]
    pub(crate) parallel: u16,

    /// Sequences that may wait; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) queue: u32,

    /// Tokens of an answer whose request sets no limit [default: what the context leaves]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// The longest body of a request
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = crate::size::parse)]
    pub(crate) max_body: u64,

    /// Open connections; more are closed at once
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub(crate) connections: u32,

    /// Seconds for the headers of a request, and between requests of a connection
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) header_timeout: Duration,

    /// Seconds for the body of a request
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) body_timeout: Duration,

    /// Seconds in which a client must take something of what is sent to it
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) write_timeout: Duration,

    /// Seconds for a generation, waiting included
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub(crate) request_timeout: Duration,

    /// Seconds that running requests have after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) drain: Duration,

    /// How long a model stays loaded after its last request, such as 5m; forever for ever
    #[arg(long, value_name = "TIME", default_value_t = KeepAlive::Forever)]
    pub(crate) keep_alive: KeepAlive,

    /// Memory of all loaded models together; idle ones are unloaded for others
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub(crate) memory: Option<u64>,

    /// Do not let clients download, load and unload models
    #[arg(long)]
    pub(crate) no_manage: bool,

    /// Threads for connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) server_threads: u16,

    /// How the log on stderr looks
    #[arg(long, value_enum, default_value_t = LogArg::Pretty)]
    pub(crate) log: LogArg,

    /// What is logged: error, warn, info, debug or trace, or a filter such as gyrus_server=debug
    #[arg(long, value_name = "LEVEL", env = "GYRUS_LOG", default_value = "info")]
    pub(crate) log_level: String,

    /// Log prompts, which is not done by default
    #[arg(long)]
    pub(crate) log_prompts: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogArg {
    /// For people
    Pretty,
    /// One JSON object a line
    Json,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, model)) if !name.is_empty() && !model.is_empty() => {
            Ok((name.to_owned(), model.to_owned()))
        }
        _ => Err("NAME=MODEL is needed".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let in_range = |seconds: &f64| (0.0..=1e7).contains(seconds);
    let seconds = text.parse().ok().filter(in_range);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds from 0 to 10000000 are needed".to_owned())
}
