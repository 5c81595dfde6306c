//! API keys, and what each may do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::bucket::Bucket;
use crate::config::SetupError;
use crate::failure::{Failure, Kind};
use crate::wanted::{HIGHEST_PRIORITY, LOWEST_PRIORITY};

/// All keys. Without any, everybody is served.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<Arc<Key>>);

/// A key and its limits.
pub(crate) struct Key {
    pub(crate) name: String,
    /// SHA-256 of the key: the key itself is not kept.
    digest: [u8; 32],
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
    concurrent: usize,
    running: AtomicUsize,
    /// Models that it may use; all if it names none.
    models: Option<Vec<String>>,
    /// The highest priority that its requests may have.
    priority: i32,
}

/// The file of keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    key: Option<String>,
    sha256: Option<String>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    concurrent: Option<usize>,
    models: Option<Vec<String>>,
    #[serde(default)]
    priority: i32,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Written({})", self.name)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

/// The shortest key that is accepted: shorter ones can be guessed.
const SHORTEST: usize = 16;

impl Keys {
    /// Reads the file of keys. `aliases`: other names of models, which keys may have too.
    pub(crate) fn read(path: &Path, aliases: &BTreeMap<String, String>) -> Result<Keys, SetupError> {
        let wrong = |message: String| SetupError::Keys { path: path.to_owned(), message };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Keys::parse(&text, aliases).map_err(wrong)
    }

    pub(crate) fn parse(text: &str, aliases: &BTreeMap<String, String>) -> Result<Keys, String> {
        // The parser's own message would quote the line, which may hold a key.
        let file: File = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            format!("line {line}: {}", error.message())
        })?;
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for mut written in file.key {
            let name = written.name.clone();
            for model in written.models.iter_mut().flatten() {
                if let Some(of_alias) = aliases.get(model) {
                    model.clone_from(of_alias);
                }
            }
            let key = Key::new(written).map_err(|message| format!("key {name:?}: {message}"))?;
            if keys.iter().any(|other| other.name == key.name || other.digest == key.digest) {
                return Err(format!("key {name:?}: another one has the same name or is the same"));
            }
            keys.push(Arc::new(key));
        }
        match keys.is_empty() {
            true => Err("there is no [[key]]".to_owned()),
            false => Ok(Keys(keys)),
        }
    }

    /// A single key without limits.
    pub(crate) fn single(key: &str) -> Result<Keys, String> {
        let written = Written {
            name: "default".to_owned(),
            key: Some(key.to_owned()),
            sha256: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent: None,
            models: None,
            priority: HIGHEST_PRIORITY,
        };
        Ok(Keys(vec![Arc::new(Key::new(written)?)]))
    }

    /// The names of models that keys have and `is_known` does not know, each with the name of its key.
    pub(crate) fn unknown_models(&self, is_known: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let all = self.0.iter().flat_map(|key| key.models.iter().flatten().map(move |model| (key, model)));
        let unknown = all.filter(|(_, model)| !is_known(model));
        unknown.map(|(key, model)| (key.name.clone(), model.clone())).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key that a client presents. The time does not tell how much of it is right: digests are compared, each as a
    /// whole, and all of them.
    pub(crate) fn find(&self, presented: &str) -> Option<Arc<Key>> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = None;
        for key in &self.0 {
            let differing = key.digest.iter().zip(&digest).fold(0, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(differing) == 0 {
                found = Some(key);
            }
        }
        found.cloned()
    }
}

impl Key {
    fn new(written: Written) -> Result<Key, String> {
        let Written {
            name,
            key,
            sha256,
            requests_per_minute,
            tokens_per_minute,
            concurrent,
            models,
            priority,
        } = written;
        if !(LOWEST_PRIORITY..=HIGHEST_PRIORITY).contains(&priority) {
            return Err(format!(
                "priority is {priority}, it must be from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
            ));
        }
        if models.as_ref().is_some_and(Vec::is_empty) {
            return Err(
                "models is empty, so that the key could use none: leave it out to allow all".to_owned()
            );
        }
        let digest = match (key, sha256) {
            (Some(key), None) if key.len() >= SHORTEST => Sha256::digest(key.as_bytes()).into(),
            (Some(_), None) => return Err(format!("a key has at least {SHORTEST} characters")),
            (None, Some(hex)) => digest_of(&hex).ok_or("sha256 has 64 hexadecimal digits")?,
            _ => return Err("it needs `key` or `sha256`".to_owned()),
        };
        let bucket = |per_minute: Option<u32>| per_minute.map(|n| Mutex::new(Bucket::new(f64::from(n))));
        Ok(Key {
            name,
            digest,
            requests: bucket(requests_per_minute),
            tokens: bucket(tokens_per_minute),
            concurrent: concurrent.unwrap_or(usize::MAX),
            running: AtomicUsize::new(0),
            models,
            priority,
        })
    }

    /// Refuses a priority above that of the key: the scheduler admits higher ones first, whoever else waits.
    pub(crate) fn check_priority(&self, asked: i32) -> Result<(), Failure> {
        if asked <= self.priority {
            return Ok(());
        }
        let message =
            format!("the key {:?} may have priorities up to {}, not {asked}", self.name, self.priority);
        Err(Failure { kind: Kind::Permission, ..Failure::field("priority", message) })
    }

    /// Counts a request. Refused if there were too many of them, or of tokens, in the last minute.
    pub(crate) fn request(&self) -> Result<(), Failure> {
        let now = Instant::now();
        let wait = self.tokens.as_ref().and_then(|bucket| lock(bucket).wait(now));
        let wait = wait.or_else(|| self.requests.as_ref().and_then(|bucket| lock(bucket).take(now).err()));
        let Some(seconds) = wait else { return Ok(()) };
        let message = format!("the key {:?} has reached its limit of requests or tokens a minute", self.name);
        Err(Failure::new(Kind::RateLimit, message).with_code("rate_limit_exceeded").with_retry(seconds))
    }

    /// Counts tokens of a request that ran.
    pub(crate) fn count(&self, tokens: usize) {
        if let Some(bucket) = &self.tokens {
            lock(bucket).spend(Instant::now(), tokens as f64);
        }
    }

    /// A place for a request that runs.
    pub(crate) fn enter(self: &Arc<Key>) -> Result<Slot, Failure> {
        let fits = |running: usize| Some(running + 1).filter(|running| *running <= self.concurrent);
        match self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Slot(Arc::clone(self))),
            Err(_) => {
                let message = format!("{} requests of the key {:?} run already", self.concurrent, self.name);
                Err(Failure::new(Kind::RateLimit, message).with_code("rate_limit_exceeded").with_retry(1))
            }
        }
    }

    /// Whether it may use a model.
    pub(crate) fn allows(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|name| name == model))
    }
}

/// A request of a key that runs.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Key>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

fn digest_of(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        [[key]]
        name = 'editor'
        key = 'sk-0123456789abcdef'
        requests_per_minute = 2
        concurrent = 1
        models = ['small']

        [[key]]
        name = 'batch'
        sha256 = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'
        tokens_per_minute = 100
        priority = 7
    ";

    #[test]
    fn keys_have_limits() {
        let keys = Keys::parse(FILE, &BTreeMap::new()).unwrap();
        assert!(keys.find("sk-0123456789abcdeF").is_none() && keys.find("").is_none());
        let editor = keys.find("sk-0123456789abcdef").unwrap();
        assert!(editor.allows("small") && !editor.allows("large"));
        editor.request().unwrap();
        editor.request().unwrap();
        let refused = editor.request().unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (Kind::RateLimit, Some(30)));
        let slot = editor.enter().unwrap();
        assert!(editor.enter().is_err());
        drop(slot);
        editor.enter().unwrap();
        let batch = keys.find("test").unwrap();
        assert!(editor.check_priority(0).is_ok() && editor.check_priority(-1000).is_ok());
        assert!(batch.check_priority(7).is_ok());
        let refused = batch.check_priority(8).unwrap_err();
        assert_eq!((refused.kind, refused.param.as_deref()), (Kind::Permission, Some("priority")));
        assert!(editor.check_priority(1).is_err());
        assert!(Keys::single("sk-0123456789abcdef").unwrap().0[0].check_priority(1000).is_ok());
        batch.request().unwrap();
        batch.count(160);
        assert_eq!(batch.request().unwrap_err().retry_after, Some(37));
    }

    #[test]
    fn keys_name_models_by_aliases_and_typos_are_found() {
        let file = "
            [[key]]
            name = 'editor'
            key = 'sk-0123456789abcdef'
            models = ['gpt-4o', 'smal']
            [[key]]
            name = 'all'
            key = 'sk-0123456789abcdeg'
        ";
        let aliases = BTreeMap::from([("gpt-4o".to_owned(), "chat".to_owned())]);
        let keys = Keys::parse(file, &aliases).unwrap();
        let editor = &keys.0[0];
        assert!(editor.allows("chat") && !editor.allows("gpt-4o") && !editor.allows("small"));
        assert!(keys.0[1].allows("small"));
        let unknown = keys.unknown_models(|model| ["chat", "small"].contains(&model));
        assert_eq!(unknown, [("editor".to_owned(), "smal".to_owned())]);
    }

    #[test]
    fn errors_do_not_quote_keys() {
        for (text, part) in [
            ("", "there is no [[key]]"),
            ("[[key]]\nname = 'a'\nkey = 'short'", "at least 16"),
            ("[[key]]\nname = 'a'", "`key` or `sha256`"),
            ("[[key]]\nname = 'a'\nsha256 = 'zz'", "64 hexadecimal digits"),
            ("[[key]]\nname = 'a'\nkey = 'sk-0123456789abcdef\nconcurrent = 1", "line 3"),
            (
                "[[key]]\nname = 'a'\nkey = 'sk-0123456789abcdef'\npriority = 1001",
                "priority is 1001, it must be from -1000 to 1000",
            ),
            ("[[key]]\nname = 'a'\nsecret = 'sk-0123456789abcdef'", "unknown field"),
            ("[[key]]\nname = 'a'\nkey = 'sk-0123456789abcdef'\nmodels = []", "models is empty"),
        ] {
            let error = Keys::parse(text, &BTreeMap::new()).unwrap_err();
            assert!(error.contains(part) && !error.contains("0123456789"), "{error}");
        }
    }
}
