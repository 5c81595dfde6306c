//! What every request goes through first: ids, logs, hosts, origins, keys.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{debug, info};

use crate::failure::{Failure, Kind, Wire};
use crate::keys::Key;
use crate::routes::label;
use crate::state::{Caller, Phase, State};
use crate::{cors, page, random};

/// The address of the client of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Checks a request, passes it on, and logs its response.
pub(crate) async fn front(Shared(state): Shared<Arc<State>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let trace = trace_id(request.headers()).map(str::to_owned);
    let traceparent = trace.as_ref().and_then(|_| request.headers().get(TRACEPARENT).cloned());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let wire = Wire::of(&path);
    let mut response = match check(&state, &request, &id, started) {
        Ok(Checked::Preflight) => cors::preflight(request.headers()),
        Ok(Checked::Caller(caller)) => {
            request.extensions_mut().insert(Arc::new(caller));
            next.run(request).await
        }
        Err(failure) => failure.response(wire),
    };
    let status = response.status();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(traceparent) = traceparent {
        headers.insert(TRACEPARENT, traceparent);
    }
    if let Some(origin) = origin.filter(|origin| cors::allows(&state.config, origin)) {
        cors::allow(headers, origin);
    }
    if state.phase() != Phase::Serving {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    state.metrics.response(label(&path), status.as_u16());
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let shown: String = path.chars().take(100).collect();
    let trace = trace.as_deref();
    // Checks of whether the server lives, and files of its pages, would fill the log.
    match shown.starts_with("/health") || shown.ends_with("/metrics") || page::is_page(&shown) {
        true => debug!(%id, trace, %method, path = %shown, status = status.as_u16(), ms, "request"),
        false => info!(%id, trace, %method, path = %shown, status = status.as_u16(), ms, "request"),
    }
    response
}

enum Checked {
    Caller(Caller),
    Preflight,
}

fn check(state: &State, request: &Request, id: &str, arrived: Instant) -> Result<Checked, Failure> {
    let headers = request.headers();
    let path = request.uri().path();
    let is_health = path.starts_with("/health");
    check_host(state, request)?;
    if let Some(origin) = headers.get(header::ORIGIN)
        && !cors::allows(&state.config, origin)
        && !is_same_origin(headers, origin)
    {
        return Err(Failure::new(Kind::Permission, "pages of this origin may not use the server (--cors)"));
    }
    check_site(request)?;
    if request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return Ok(Checked::Preflight);
    }
    if state.phase() != Phase::Serving && !is_health {
        let failure = Failure::new(Kind::Unavailable, "the server is shutting down");
        return Err(failure.with_retry(state.config.drain.as_secs()));
    }
    let needs_key = !is_health && !page::is_page(path) && !state.keys.is_empty();
    let key = if needs_key { Some(authenticate(state, headers)?) } else { None };
    if let Some(key) = key.as_ref().filter(|_| request.method() == Method::POST) {
        key.request()?;
    }
    let address = request.extensions().get::<Peer>().map_or(String::new(), |peer| peer.0.to_string());
    Ok(Checked::Caller(Caller { key, address, id: id.to_owned(), arrived, held: OnceLock::new() }))
}

/// The key that a request presents, in any of the headers that clients use.
fn authenticate(state: &State, headers: &HeaderMap) -> Result<Arc<Key>, Failure> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' '));
    let bearer =
        bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let own = || ["x-api-key", "api-key"].iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let refused = |message: &str| Failure::new(Kind::Authentication, message).with_code("invalid_api_key");
    let presented = bearer.or_else(own);
    let presented = presented.ok_or_else(|| refused("an API key is needed: Authorization: Bearer KEY"))?;
    state.keys.find(presented).ok_or_else(|| refused("the API key is wrong"))
}

/// Without keys, a web page could reach the server by a name of its own that it points to this machine, from wherever the
/// server can be reached. So only names that cannot be such a page's are answered to.
fn check_host(state: &State, request: &Request) -> Result<(), Failure> {
    if !state.keys.is_empty() {
        return Ok(());
    }
    let header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let Some(host) = header.or_else(|| request.uri().host()) else { return Ok(()) };
    let name = host_name(host);
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if is_address
        || name.eq_ignore_ascii_case("localhost")
        || state.config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    {
        return Ok(());
    }
    Err(Failure::new(Kind::Permission, "this server is not known by that host name (--host-name)"))
}

/// Paths of which a look loads a model.
const LOADING: &[&str] = &["/props"];

/// A page of another site can make a browser load any address as an image or a script. Such a request has no origin, and must
/// not take memory and time of this machine.
fn check_site(request: &Request) -> Result<(), Failure> {
    let headers = request.headers();
    let is_of_other =
        headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site" || site == "same-site");
    if is_of_other && !headers.contains_key(header::ORIGIN) && LOADING.contains(&request.uri().path()) {
        return Err(Failure::new(Kind::Permission, "pages of other sites may not load models"));
    }
    Ok(())
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a page is the server's own.
fn is_same_origin(headers: &HeaderMap, origin: &HeaderValue) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    matches!((host, origin), (Some(host), Some((_, origin))) if host.eq_ignore_ascii_case(origin))
}

/// The id of a request: the client's own, if it can be written into a log, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=64).contains(&id.len()) && id.bytes().all(plain)
    };
    own.filter(is_plain).map_or_else(|| random::id("req_"), str::to_owned)
}

/// The trace of the W3C header `traceparent`: `version-trace-parent-flags`.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = value.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let valid = is_hex(version, 2) && version != "ff" && is_hex(parent, 16) && is_hex(flags, 2);
    Some(trace).filter(|trace| valid && is_hex(trace, 32) && trace.bytes().any(|byte| byte != b'0'))
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_traces_of_clients_are_kept_if_they_are_sound() {
        let mut headers = HeaderMap::new();
        assert!(request_id(&headers).starts_with("req_"));
        headers.insert(REQUEST_ID, HeaderValue::from_static("my-id.1"));
        assert_eq!(request_id(&headers), "my-id.1");
        headers.insert(REQUEST_ID, HeaderValue::from_static("a b"));
        assert_ne!(request_id(&headers), "a b");
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (value, found) in [
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some(trace)),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
            ("00-4bf92f35-00f067aa0ba902b7-01", None),
            ("00", None),
        ] {
            headers.insert(TRACEPARENT, HeaderValue::from_static(value));
            assert_eq!(trace_id(&headers), found, "{value}");
        }
    }

    #[test]
    fn hosts_have_ports() {
        for (host, name) in
            [("localhost:80", "localhost"), ("[::1]:8080", "[::1]"), ("[::1]", "[::1]"), ("a.b", "a.b")]
        {
            assert_eq!(host_name(host), name);
        }
    }
}
