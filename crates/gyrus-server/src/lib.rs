//! Gyrus over HTTP.
//!
//! A thin front door: [`Server`] speaks the wire formats of OpenAI, Anthropic, Ollama and llama.cpp, and the scheduler of
//! `gyrus` does the work. Each format has its own module, which only translates: a body becomes one internal request, and
//! the engine's events become the format's pieces. The crate knows nothing of tensors, files or downloads; models come from
//! a [`Source`].

#![forbid(unsafe_code)]

mod anthropic;
mod body;
mod bucket;
mod collected;
mod config;
mod cors;
mod embeddings;
mod encoding;
mod failure;
mod fields;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod health;
mod http;
mod infill;
mod json_size;
mod keep_alive;
mod keys;
mod llama_cpp;
pub mod log;
mod messages;
mod metrics;
mod models;
mod multipart;
mod names;
mod native;
mod ollama;
mod openai;
mod openapi;
mod page;
mod places;
mod random;
mod routes;
mod running;
mod sampling;
mod schemas;
mod server;
mod state;
mod stream;
mod tei;
mod time;
mod wanted;
mod work;

pub use config::{Config, SetupError};
pub use keep_alive::KeepAlive;
pub use models::{Details, Listed, Pulled, Purpose, Served, Source, SourceError};
pub use server::Server;
