//! The table of routes. The router, the description at `/openapi.json` and the labels of metrics come from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;

use crate::failure::{Failure, Kind, Wire};
use crate::state::{Caller, State};
use crate::{anthropic, body, health, llama_cpp, native, ollama, openai, openapi, page, tei};

/// A request whose sender is known and whose body was read.
pub(crate) struct Call {
    pub(crate) state: Arc<State>,
    pub(crate) caller: Arc<Caller>,
    /// The last part of a path that ends with a parameter.
    pub(crate) parameter: String,
    pub(crate) body: Bytes,
}

/// What the body of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyKind {
    None,
    Json,
    /// `multipart/form-data`.
    Form,
}

type Answered = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send>>;

/// A route.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    /// Fields of the request that are not optional.
    pub(crate) required: &'static [&'static str],
    /// What the body of a request is.
    pub(crate) body: BodyKind,
    /// Whether it takes a place in the queue, so that a full queue refuses it before its body is read.
    pub(crate) queues: bool,
    handler: fn(Call) -> Answered,
}

macro_rules! route {
    (GET $path:literal, $($rest:tt)*) => { route!(GET None $path, $($rest)*) };
    (POST $path:literal, $($rest:tt)*) => { route!(POST Json $path, $($rest)*) };
    ($method:ident $body:ident $path:literal, $summary:literal, $required:expr, $queues:literal, $handler:path) => {
        Route {
            method: Method::$method,
            body: BodyKind::$body,
            path: $path,
            summary: $summary,
            required: &$required,
            queues: $queues,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

/// All routes.
#[rustfmt::skip]
pub(crate) static ROUTES: &[Route] = &[
    route!(GET "/", "Page: chat in the browser", [], false, page::chat),
    route!(GET "/status", "Page: what the server does now", [], false, page::status),
    route!(GET "/page/{*file}", "Page: files of the pages", [], false, page::file),

    route!(GET "/health", "Whether the server is alive and ready", [], false, health::health),
    route!(GET "/health/live", "Whether the server is alive", [], false, health::live),
    route!(GET "/health/ready", "Whether the server takes requests", [], false, health::ready),
    route!(GET "/metrics", "Metrics in the format of Prometheus", [], false, native::prometheus),
    route!(GET "/openapi.json", "This description", [], false, openapi::serve),

    route!(POST "/v1/chat/completions", "OpenAI: answer a conversation", ["messages"], true, openai::chat::create),
    route!(POST "/v1/completions", "OpenAI: complete a prompt", ["prompt"], true, openai::completions::create),
    route!(POST "/v1/responses", "OpenAI: answer an input", ["input"], true, openai::responses::create),
    route!(POST "/v1/embeddings", "OpenAI: compute vectors of texts", ["input"], true, openai::embeddings::create),
    route!(POST "/v1/rerank", "Jina, Cohere: order documents by relevance", ["query", "documents"], true, openai::embeddings::rerank),
    route!(POST Form "/v1/audio/transcriptions", "OpenAI: write what is said in a recording", ["file"], true, openai::audio::transcribe),
    route!(POST Form "/v1/audio/translations", "OpenAI: translate what is said to English", ["file"], true, openai::audio::translate),
    route!(GET "/v1/models", "OpenAI: list the models", [], false, openai::models::list),
    route!(GET "/v1/models/{*id}", "OpenAI: describe a model", [], false, openai::models::show),

    route!(POST "/v1/messages", "Anthropic: answer a conversation", ["messages", "max_tokens"], true, anthropic::create),
    route!(POST "/v1/messages/count_tokens", "Anthropic: count the tokens of a conversation", ["messages"], true, anthropic::count_tokens),

    route!(POST "/api/chat", "Ollama: answer a conversation", ["model"], true, ollama::chat),
    route!(POST "/api/generate", "Ollama: answer a prompt", ["model"], true, ollama::generate),
    route!(GET "/api/tags", "Ollama: list the models", [], false, ollama::manage::tags),
    route!(POST "/api/show", "Ollama: describe a model", ["model"], false, ollama::manage::show),
    route!(GET "/api/ps", "Ollama: list loaded models", [], false, ollama::manage::ps),
    route!(GET "/api/version", "Ollama: the version", [], false, ollama::manage::version),
    route!(POST "/api/pull", "Ollama: download a model", ["model"], false, ollama::pull::pull),
    route!(POST "/api/embed", "Ollama: compute vectors of texts", ["model", "input"], true, ollama::embed::embed),
    route!(POST "/api/embeddings", "Ollama: compute the vector of a text", ["model", "prompt"], true, ollama::embed::embeddings),

    route!(GET "/props", "llama.cpp: the default model and its settings", [], false, llama_cpp::props),
    route!(GET "/slots", "llama.cpp: what runs", [], false, llama_cpp::slots),
    route!(POST "/completion", "llama.cpp: complete a prompt", ["prompt"], true, llama_cpp::completion),
    route!(POST "/infill", "llama.cpp: fill a gap in code", ["input_prefix", "input_suffix"], true, llama_cpp::infill),
    route!(POST "/tokenize", "llama.cpp: encode text", ["content"], true, llama_cpp::tokenize),
    route!(POST "/detokenize", "llama.cpp: decode tokens", ["tokens"], true, llama_cpp::detokenize),
    route!(POST "/apply-template", "llama.cpp: the prompt of a conversation", ["messages"], true, llama_cpp::apply_template),

    route!(POST "/embed", "TEI: compute vectors of texts", ["inputs"], true, tei::embed),
    route!(POST "/rerank", "TEI: order texts by relevance", ["query", "texts"], true, tei::rerank),

    route!(POST "/v1/tokenize", "Encode text", ["text"], true, native::tokenize),
    route!(POST "/v1/models/load", "Load a model", ["model"], false, native::load),
    route!(POST "/v1/models/unload", "Unload a model when its requests have ended", ["model"], false, native::unload),
    route!(GET "/v1/metrics", "Metrics as JSON", [], false, native::metrics),
];

/// The router of all routes.
pub(crate) fn router(state: &Arc<State>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        // Every method of the table is one of those that can be filtered by.
        let Ok(filter) = MethodFilter::try_from(route.method.clone()) else { continue };
        let state = Arc::clone(state);
        let handler = move |parameter: Option<Path<String>>, request: Request| {
            let state = Arc::clone(&state);
            async move { handle(route, state, parameter, request).await }
        };
        router = router.route(route.path, on(filter, handler));
    }
    router.fallback(unknown).method_not_allowed_fallback(wrong_method)
}

async fn handle(
    route: &'static Route,
    state: Arc<State>,
    parameter: Option<Path<String>>,
    request: Request,
) -> Response {
    let wire = Wire::of(route.path);
    let (mut parts, body) = request.into_parts();
    let Some(caller) = parts.extensions.remove::<Arc<Caller>>() else {
        return Failure::server("the sender of the request is unknown").response(wire);
    };
    if route.queues && state.gate.is_full() {
        return state.full().response(wire);
    }
    let answered = async {
        let mut held = state.bodies.hold();
        let body = match route.body {
            BodyKind::None => Bytes::new(),
            _ => body::read(&parts.headers, body, &state.config, &mut held).await?,
        };
        if route.body == BodyKind::Json {
            held.add_values(&body)?;
        }
        // It is set once: a request has one body.
        let _ = caller.held.set(held);
        let parameter = parameter.map(|Path(parameter)| parameter).unwrap_or_default();
        (route.handler)(Call { state, caller, parameter, body }).await
    };
    answered.await.unwrap_or_else(|failure| failure.response(wire))
}

async fn unknown(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    Failure::new(Kind::NotFound, format!("there is no {path:?}; /openapi.json lists the routes"))
        .response(Wire::of(&path))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let label = label(path);
    let methods: Vec<&str> =
        ROUTES.iter().filter(|route| route.path == label).map(|route| route.method.as_str()).collect();
    Failure::new(Kind::Method, format!("{path} takes {}", methods.join(" and "))).response(Wire::of(path))
}

/// The path of the table that a request is for; the same for all that are unknown.
pub(crate) fn label(path: &str) -> &'static str {
    let exact = ROUTES.iter().find(|route| route.path == path);
    let by_prefix = || {
        ROUTES
            .iter()
            .find(|route| route.path.split_once("{*").is_some_and(|(prefix, _)| path.starts_with(prefix)))
    };
    exact.or_else(by_prefix).map_or("other", |route| route.path)
}
