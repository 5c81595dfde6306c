//! The pages for browsers: a chat at `/` and the server's state at `/status`. Their files are in the binary, and they ask
//! nobody but this server.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;

use crate::failure::{Failure, Kind};
use crate::routes::Call;

/// A file of the pages.
struct File {
    name: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(File { name: $name, content: include_bytes!(concat!("../page/", $name)) }),*]
    };
}

static FILES: &[File] = files![
    "answer.js",
    "api.js",
    "base.css",
    "blocks.js",
    "chart.js",
    "chat.css",
    "chat.js",
    "dom.js",
    "highlight.js",
    "icon.svg",
    "inline.js",
    "languages.js",
    "markdown.css",
    "markdown.js",
    "message.js",
    "panel.js",
    "settings.js",
    "sidebar.js",
    "speech.css",
    "speech.js",
    "status.css",
    "status.js",
    "store.js",
    "theme.js",
    "thread.js",
    "transcript.js",
    "tree.js",
];

const CHAT: &[u8] = include_bytes!("../page/index.html");
const STATUS: &[u8] = include_bytes!("../page/status.html");

/// What the browser lets the pages do: run and load files of this server, and ask this server. Text that a script would
/// parse as HTML is refused too, so that a mistake in the page cannot run what a model says.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Whether a path is one of the pages or their files, which hold nothing that a key would protect.
pub(crate) fn is_page(path: &str) -> bool {
    path == "/" || path == "/status" || path.starts_with("/page/")
}

/// `/`.
pub(crate) async fn chat(_: Call) -> Result<Response, Failure> {
    Ok(response("index.html", CHAT))
}

/// `/status`.
pub(crate) async fn status(_: Call) -> Result<Response, Failure> {
    Ok(response("status.html", STATUS))
}

/// `/page/…`.
pub(crate) async fn file(call: Call) -> Result<Response, Failure> {
    let found = FILES.iter().find(|file| file.name == call.parameter);
    let file = found.ok_or_else(|| Failure::new(Kind::NotFound, "the pages have no such file"))?;
    Ok(response(file.name, file.content))
}

fn response(name: &str, content: &'static [u8]) -> Response {
    let mut response = Response::new(Body::from(content));
    let kind = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let found = std::fs::read_dir(folder).unwrap();
        let found: BTreeSet<String> =
            found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let pages = ["index.html", "status.html"];
        let served = FILES.iter().map(|file| file.name).chain(pages);
        assert_eq!(found, served.map(str::to_owned).collect());
    }

    /// The page offers the languages that speech models may know, each once.
    #[test]
    fn the_languages_of_the_page_are_those_of_speech() {
        let file = FILES.iter().find(|file| file.name == "languages.js").unwrap();
        let text = std::str::from_utf8(file.content).unwrap();
        let list = text.split_once("CODES =").unwrap().1.split_once(';').unwrap().0;
        let codes: Vec<&str> =
            list.split(&['"', ' ', '+', '\n'][..]).filter(|code| !code.is_empty()).collect();
        assert_eq!(codes.len(), 100);
        assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), codes.len());
        for code in codes {
            assert!(gyrus::speech::is_language(code), "{code}");
        }
    }

    /// Every address in the pages is a file of this server, and nothing in them parses HTML.
    #[test]
    fn the_pages_load_nothing_from_elsewhere() {
        let all = FILES.iter().map(|file| (file.name, file.content));
        for (name, content) in all.chain([("index.html", CHAT), ("status.html", STATUS)]) {
            let text = std::str::from_utf8(content).unwrap();
            for at in text.match_indices("://").map(|(at, _)| at) {
                let before = &text[at.saturating_sub(12)..at];
                // Namespaces are names, and the links of an answer are recognised by their beginning.
                let is_name = text[at..].starts_with("://www.w3.org/") || name == "inline.js";
                assert!(is_name, "{name} has an address behind {before:?}");
            }
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import"]
            {
                assert!(!text.contains(word), "{name} uses {word}");
            }
            if name.ends_with(".html") {
                assert!(!text.contains("style=") && !text.contains(" onclick"), "{name} has inline code");
                for part in text.split(&['"', '\''][..]).filter(|part| part.starts_with("page/")) {
                    let file = part.trim_start_matches("page/");
                    assert!(FILES.iter().any(|known| known.name == file), "{name}: {part}");
                }
            }
        }
    }
}
