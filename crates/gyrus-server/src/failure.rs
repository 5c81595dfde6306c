//! Why a request was refused or failed, and how each wire format says so.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The field that is wrong.
    pub(crate) param: Option<String>,
    /// A short word for programs.
    pub(crate) code: Option<&'static str>,
    /// When it makes sense to try again, in seconds.
    pub(crate) retry_after: Option<u64>,
}

/// What kind of failure it is. It decides the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    Authentication,
    Permission,
    NotFound,
    Method,
    Timeout,
    TooLarge,
    RateLimit,
    Server,
    Unavailable,
}

/// A family of wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaCpp,
    /// text-embeddings-inference.
    Tei,
}

impl Kind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Authentication => StatusCode::UNAUTHORIZED,
            Kind::Permission => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::RateLimit => StatusCode::TOO_MANY_REQUESTS,
            Kind::Server => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The names of Anthropic's API, of which OpenAI's are a part.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Invalid | Kind::Method => "invalid_request_error",
            Kind::Authentication => "authentication_error",
            Kind::Permission => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::Timeout => "timeout_error",
            Kind::TooLarge => "request_too_large",
            Kind::RateLimit => "rate_limit_error",
            Kind::Server => "api_error",
            Kind::Unavailable => "overloaded_error",
        }
    }
}

impl Wire {
    /// The family of a path.
    pub(crate) fn of(path: &str) -> Wire {
        const LLAMA_CPP: [&str; 7] =
            ["/props", "/slots", "/completion", "/tokenize", "/detokenize", "/apply-template", "/infill"];
        match path {
            path if path.starts_with("/v1/messages") => Wire::Anthropic,
            path if path.starts_with("/api/") => Wire::Ollama,
            path if LLAMA_CPP.contains(&path) => Wire::LlamaCpp,
            "/embed" | "/rerank" => Wire::Tei,
            _ => Wire::OpenAi,
        }
    }
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field has a value that it must not have.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Failure {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        Failure { param: Some(param), ..Failure::new(Kind::Invalid, message) }
    }

    pub(crate) fn server(message: impl Into<String>) -> Failure {
        Failure::new(Kind::Server, message)
    }

    pub(crate) fn with_code(self, code: &'static str) -> Failure {
        Failure { code: Some(code), ..self }
    }

    pub(crate) fn with_retry(self, seconds: u64) -> Failure {
        Failure { retry_after: Some(seconds.max(1)), ..self }
    }

    /// The error of a wire format.
    pub(crate) fn to_json(&self, wire: Wire) -> Value {
        let Failure { kind, message, param, code, .. } = self;
        match wire {
            Wire::OpenAi => json!({ "error":
                { "message": message, "type": kind.name(), "param": param, "code": code } }),
            Wire::Anthropic => {
                json!({ "type": "error", "error": { "type": kind.name(), "message": message } })
            }
            Wire::Ollama => json!({ "error": message }),
            Wire::Tei => json!({ "error": message, "error_type": kind.name() }),
            Wire::LlamaCpp => json!({ "error":
                { "code": kind.status().as_u16(), "message": message, "type": kind.name() } }),
        }
    }

    /// The response of a wire format.
    pub(crate) fn response(&self, wire: Wire) -> Response {
        let mut response = json_response(&self.to_json(wire));
        *response.status_mut() = self.kind.status();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == Kind::Authentication {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A response with a JSON body.
pub(crate) fn json_response(value: &impl serde::Serialize) -> Response {
    json_bytes(to_json(value))
}

/// A value as JSON.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    // Maps with keys that are no strings, the only values that cannot be written, occur in no answer.
    serde_json::to_vec(value).unwrap_or_default()
}

/// A response whose JSON is written already.
pub(crate) fn json_bytes(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The field of a request that a sampler's error is about.
fn sampler_field(error: &gyrus::SamplerError) -> String {
    use gyrus::SamplerError;
    match error {
        SamplerError::Range { name, .. } => name.replace(['-', ' '], "_"),
        SamplerError::Bias { .. } | SamplerError::BiasToken { .. } | SamplerError::BiasTwice { .. } => {
            "logit_bias".into()
        }
        _ => "samplers".into(),
    }
}

impl From<gyrus::Error> for Failure {
    fn from(error: gyrus::Error) -> Failure {
        use gyrus::Error;
        let message = error.to_string();
        match error {
            Error::PromptTooLong { .. } | Error::TextTooLong { .. } => {
                Failure::new(Kind::Invalid, message).with_code("context_length_exceeded")
            }
            Error::Sampler(error) => {
                Failure { param: Some(sampler_field(&error)), ..Failure::new(Kind::Invalid, message) }
            }
            Error::Template(_)
            | Error::NoTokenizer
            | Error::EmptyPrompt
            | Error::WrongKind { .. }
            | Error::TokenId { .. }
            | Error::Constraint(_)
            | Error::Tools(_)
            | Error::Request(_) => Failure::new(Kind::Invalid, message),
            // Samples that no model can read. What a model computes of others is not the client's.
            Error::Recording { .. } => Failure::field("file", message),
            Error::CacheFull { .. } => {
                Failure::new(Kind::Invalid, message).with_code("context_length_exceeded")
            }
            Error::QueueFull { .. } => Failure::new(Kind::RateLimit, message).with_retry(1),
            Error::DeviceGone(_) => Failure::new(Kind::Unavailable, message),
            _ => Failure::server(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_samples_are_the_clients_fault_and_bad_logits_are_not() {
        let problem = "too loud".to_owned();
        let samples = Failure::from(gyrus::Error::Recording { index: 0, seconds: 1.5, problem });
        assert_eq!((samples.kind, samples.param.as_deref()), (Kind::Invalid, Some("file")));
        assert_eq!(samples.message, "file: recording 1 at 1.50 s: too loud");
        let precision = gyrus::Precision::Fast;
        let logits = Failure::from(gyrus::Error::RecordingNotFinite { index: 0, seconds: 1.5, precision });
        assert_eq!((logits.kind, logits.param), (Kind::Server, None));
    }
}
