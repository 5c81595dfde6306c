//! Cross-origin requests, by a list of origins.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::config::Config;
use crate::front::empty;

/// How long a browser may remember the answer to a preflight, in seconds.
const MAX_AGE: u64 = 600;

/// Whether pages of an origin may use the server.
pub(crate) fn allows(config: &Config, origin: &HeaderValue) -> bool {
    config.cors.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}

/// Tells a browser that a page of this origin may read the response.
pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    headers
        .insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
}

/// The answer to a preflight of an origin that was checked.
pub(crate) fn preflight(asked: &HeaderMap) -> Response {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let usual = || HeaderValue::from_static("authorization, content-type, x-api-key");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or_else(usual));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    response
}
