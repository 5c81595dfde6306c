//! Settings from environment variables: the cache folder and how models are downloaded. Who follows a download is passed on with
//! them.
//!
//! They are read once and passed on, so that the rest of the program does not depend on the process's state.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::fetch::progress::Follower;

#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// The cache folder; `None` if the system names no place for one.
    cache: Option<PathBuf>,
    /// `GYRUS_OFFLINE`: no network access.
    pub(crate) offline: bool,
    /// Where programs are searched; `None` for the process's `PATH`.
    pub(crate) search_path: Option<OsString>,
    #[cfg_attr(not(feature = "download"), allow(dead_code))]
    pub(crate) hub: Hub,
    /// Who follows the downloads that are made with these settings.
    pub(crate) follower: Follower,
}

/// How the Hugging Face hub is reached.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "download"), allow(dead_code))]
pub(crate) struct Hub {
    /// `HF_ENDPOINT`, without a slash at the end.
    pub(crate) endpoint: String,
    /// `HF_TOKEN`.
    pub(crate) token: Option<Token>,
    /// `SSL_CERT_FILE`: the authorities to trust instead of the built-in ones, for networks whose proxy
    /// signs its own certificates.
    pub(crate) authorities: Option<PathBuf>,
    /// Time-out for a silent server.
    pub(crate) patience: Duration,
}

/// A secret that stays out of debug output.
#[derive(Clone)]
#[cfg_attr(not(feature = "download"), allow(dead_code))]
pub(crate) struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

const HUB: &str = "https://huggingface.co";
const PATIENCE: Duration = Duration::from_secs(30);

impl Environment {
    pub(crate) fn of_process() -> Environment {
        Environment::of(std::env::consts::OS, |name| std::env::var_os(name))
    }

    fn of(os: &str, variable: impl Fn(&str) -> Option<OsString>) -> Environment {
        // A shell unsets a setting by an empty variable.
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name)?.into_string().ok();
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned());
        Environment {
            cache: cache_folder(os, &set),
            offline: set("GYRUS_OFFLINE").is_some_and(|value| value != "0"),
            search_path: None,
            hub: Hub {
                endpoint: endpoint.trim_end_matches('/').to_owned(),
                token: text("HF_TOKEN").map(|token| Token(token.trim().to_owned())),
                authorities: set("SSL_CERT_FILE").map(PathBuf::from),
                patience: PATIENCE,
            },
            follower: Follower::default(),
        }
    }

    /// The cache folder.
    pub(crate) fn cache(&self) -> Result<&Path> {
        self.cache
            .as_deref()
            .context("no cache folder: the home folder is unknown; set GYRUS_CACHE to a folder")
    }

    #[cfg(test)]
    pub(crate) fn of_test(cache: &Path, search_path: impl Into<OsString>) -> Environment {
        let mut environment = Environment::of("linux", |_| None);
        environment.cache = Some(cache.to_owned());
        environment.search_path = Some(search_path.into());
        environment
    }
}

/// `GYRUS_CACHE`, else the platform's folder for what can be fetched again.
fn cache_folder(os: &str, set: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = set("GYRUS_CACHE") {
        // The path is printed for other programs, which may run elsewhere.
        return Some(std::path::absolute(&path).unwrap_or_else(|_| path.into()));
    }
    // A relative path in these variables is an error of the system's and is not followed.
    let folder = |name: &str| set(name).map(PathBuf::from).filter(|path| path.has_root());
    let base = match os {
        "windows" => folder("LOCALAPPDATA")?,
        "macos" | "ios" => folder("HOME")?.join("Library/Caches"),
        _ => folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?,
    };
    Some(base.join("gyrus"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(os: &str, variables: &[(&str, &str)]) -> Environment {
        Environment::of(os, |name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn the_cache_is_in_the_platforms_cache_folder() {
        let cache = |os: &str, variables: &[(&str, &str)]| {
            environment(os, variables).cache().ok().map(Path::to_owned)
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache("linux", &[("HOME", "/home/ada")]), path("/home/ada/.cache/gyrus"));
        assert_eq!(cache("linux", &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), path("/x/gyrus"));
        assert_eq!(cache("linux", &[("HOME", "/h"), ("XDG_CACHE_HOME", "")]), path("/h/.cache/gyrus"));
        assert_eq!(cache("linux", &[("HOME", "/h"), ("XDG_CACHE_HOME", "x")]), path("/h/.cache/gyrus"));
        assert_eq!(cache("macos", &[("HOME", "/Users/ada")]), path("/Users/ada/Library/Caches/gyrus"));
        assert_eq!(cache("windows", &[("LOCALAPPDATA", "/local")]), path("/local/gyrus"));
        assert_eq!(cache("windows", &[("HOME", "/h")]), None);
        assert_eq!(cache("linux", &[]), None);
        assert_eq!(cache("linux", &[("HOME", "/h"), ("GYRUS_CACHE", "/models")]), path("/models"));
        let relative = cache("linux", &[("GYRUS_CACHE", "here")]).unwrap();
        assert!(relative.is_absolute() && relative.ends_with("here"), "{}", relative.display());
    }

    #[test]
    fn settings_of_the_hub() {
        let plain = environment("linux", &[("HF_TOKEN", ""), ("GYRUS_OFFLINE", "0")]);
        assert_eq!(plain.hub.endpoint, HUB);
        assert!(plain.hub.token.is_none() && !plain.offline);
        let set = environment(
            "linux",
            &[("HF_ENDPOINT", "https://mirror.example/"), ("HF_TOKEN", "s3cret\n"), ("GYRUS_OFFLINE", "1")],
        );
        assert_eq!(set.hub.endpoint, "https://mirror.example");
        assert_eq!(set.hub.token.as_ref().unwrap().0, "s3cret");
        assert!(set.offline);
        assert!(!format!("{set:?}").contains("s3cret"));
    }
}
