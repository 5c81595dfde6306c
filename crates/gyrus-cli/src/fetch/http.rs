//! Requests to the hub, with redirects followed by hand: each hop's headers matter, and the token must not
//! leave the hub.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ureq::http::{HeaderMap, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::Unavailable;
use crate::environment::Hub;
use crate::foreign;

const CONNECT: Duration = Duration::from_secs(15);
const MOST_HOPS: usize = 10;

pub(crate) struct Client<'a> {
    agent: Agent,
    hub: &'a Hub,
}

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The headers alone, and those of the hub rather than of the server it redirects to.
    Describe,
    /// The content from this byte on.
    Content { from: u64 },
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Whether the hub itself answered, and not a server it redirected to.
    pub(crate) by_hub: bool,
}

impl Reply {
    /// A header's value, if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }
}

impl<'a> Client<'a> {
    pub(crate) fn new(hub: &'a Hub) -> Result<Client<'a>> {
        let uri: Uri =
            hub.endpoint.parse().ok().filter(|uri: &Uri| uri.host().is_some()).with_context(|| {
                format!(
                    "HF_ENDPOINT: {:?} is not the address of a server",
                    foreign::one_line(&hub.endpoint, 80)
                )
            })?;
        ensure!(
            matches!(uri.scheme_str(), Some("https" | "http")),
            "HF_ENDPOINT: {:?} does not begin with https://",
            foreign::one_line(&hub.endpoint, 80)
        );
        let roots = match &hub.authorities {
            Some(path) => authorities(path)?,
            None => RootCerts::WebPki,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("gyrus/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(hub.patience))
            .timeout_per_read(Some(hub.patience))
            .build()
            .into();
        Ok(Client { agent, hub })
    }

    /// Sends a request and follows where it leads. A server that cannot be reached is [`Unavailable`].
    pub(crate) fn send(&self, ask: Ask, url: &str) -> Result<Reply> {
        let mut url = url.to_owned();
        for _ in 0..MOST_HOPS {
            let by_hub = origin(&url) == origin(&self.hub.endpoint);
            let mut request = match ask {
                Ask::Describe => self.agent.head(&url),
                Ask::Content { .. } => self.agent.get(&url),
            };
            if let Ask::Content { from: from @ 1.. } = ask {
                request = request.header("range", format!("bytes={from}-"));
            }
            if by_hub && let Some(token) = &self.hub.token {
                request = request.header("authorization", format!("Bearer {}", token.0));
            }
            let response = request.call().map_err(|error| {
                let server = foreign::one_line(origin(&url), 80);
                let (cannot, reason) = match error {
                    ureq::Error::Io(error) => ("reach", error.to_string()),
                    ureq::Error::Protocol(error) => ("understand", error.to_string()),
                    error => ("reach", error.to_string()),
                };
                let advice = if reason.contains("certificate") {
                    "; if this network has an authority of its own, SSL_CERT_FILE can name its certificate"
                } else {
                    ""
                };
                anyhow!(Unavailable(format!("cannot {cannot} {server}: {reason}{advice}")))
            })?;
            let (parts, body) = response.into_parts();
            let reply = Reply { status: parts.status.as_u16(), headers: parts.headers, body, by_hub };
            if !matches!(reply.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(reply);
            }
            // The hub describes a large file where it redirects to the store that has it.
            if ask == Ask::Describe && reply.header(LINKED_ETAG).is_some() {
                return Ok(reply);
            }
            let location = reply.header("location").context("a redirect leads nowhere")?;
            let next = resolve(&url, location);
            ensure!(
                next.starts_with("https://") || (next.starts_with("http://") && !url.starts_with("https://")),
                "a redirect leads to {:?}, which is no secure address",
                foreign::one_line(&next, 80)
            );
            url = next;
        }
        bail!("more than {MOST_HOPS} redirects")
    }
}

/// The checksum of a file that lies in a store behind the hub.
pub(crate) const LINKED_ETAG: &str = "x-linked-etag";

/// `scheme://host:port` of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Where a redirect leads, as seen from the address that gave it.
fn resolve(base: &str, location: &str) -> String {
    let scheme = base.split_once(':').map_or("https", |(scheme, _)| scheme);
    if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{}{location}", origin(base))
    } else {
        let path = base.split(['?', '#']).next().unwrap_or(base);
        let folder = path.rfind('/').filter(|&at| at >= origin(base).len()).map_or(path, |at| &path[..at]);
        format!("{folder}/{location}")
    }
}

/// The certificates in a PEM file.
fn authorities(path: &std::path::Path) -> Result<RootCerts> {
    let pem = fs::read(path).with_context(|| format!("SSL_CERT_FILE: {}", path.display()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => bail!("SSL_CERT_FILE: {}: {error}", path.display()),
        }
    }
    ensure!(!certificates.is_empty(), "SSL_CERT_FILE: {}: no certificate in it", path.display());
    Ok(RootCerts::new_with_certs(&certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_put_together() {
        assert_eq!(origin("https://a.example:8/b/c?d"), "https://a.example:8");
        assert_eq!(origin("https://a.example"), "https://a.example");
        let base = "https://a.example/b/c?d=/e";
        assert_eq!(resolve(base, "https://x.example/y"), "https://x.example/y");
        assert_eq!(resolve(base, "//x.example/y"), "https://x.example/y");
        assert_eq!(resolve(base, "/y?z"), "https://a.example/y?z");
        assert_eq!(resolve(base, "y"), "https://a.example/b/y");
        assert_eq!(resolve("https://a.example", "y"), "https://a.example/y");
    }
}
