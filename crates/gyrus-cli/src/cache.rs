//! The cache folder: downloaded models and compiled GPU pipelines.
//!
//! A file in it under its final name is complete: it was written as `NAME.part`, checked, flushed and then
//! renamed. While it is being made, `NAME.lock` keeps other processes away. Beside a file from the hub lies
//! `NAME.origin.json`, which says where it came from and what its checksum is. The folder of a SafeTensors repository is
//! complete if it has a list of its files.

pub(crate) mod command;
pub(crate) mod contents;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::catalogue::{HubFile, Named};
use crate::environment::Environment;
use crate::interrupt::{self, Undo};

/// The models' folder inside the cache; hub files have a folder each for owner and repository.
const MODELS: &str = "models";
const HUB: &str = "hf";
/// The GPU pipeline cache, kernel tunings and outcomes of the self-test, which the engine writes and checks itself.
const PIPELINES: &str = "pipelines";

pub(crate) const PART: &str = "part";
const SAFETENSORS: &str = "safetensors";
const LOCK: &str = "lock";
const ORIGIN: &str = "origin.json";
/// The list of the files of a SafeTensors model, in its folder, and the list while it is written.
pub(crate) const LIST: &str = "gyrus-files.json";
pub(crate) const LIST_PART: &str = "gyrus-files.part";

/// The folder of the models.
pub(crate) fn folder(environment: &Environment) -> Result<PathBuf> {
    Ok(environment.cache()?.join(MODELS))
}

/// The folder of the pipeline cache, if there is a cache folder.
pub(crate) fn pipelines(environment: &Environment) -> Option<PathBuf> {
    Some(environment.cache().ok()?.join(PIPELINES))
}

/// The path of a model's file in the cache, whether or not it exists.
pub(crate) fn path_of(model: &Named, environment: &Environment) -> Result<PathBuf> {
    let mut path = folder(environment)?;
    match model {
        Named::Entry(entry) => path.push(entry.file),
        Named::Hub(file) => {
            path.extend([HUB, &file.owner, &file.repo]);
            path.extend(&file.path);
        }
        Named::Repository(repository) => path.extend([HUB, &repository.owner, &repository.repo]),
    }
    Ok(path)
}

/// `NAME.suffix`, beside the file NAME.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// What is known of a file from the hub.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    pub(crate) source: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Provenance {
    /// What was noted when the file was pulled; `None` for one that came some other way.
    pub(crate) fn of(path: &Path) -> Option<Provenance> {
        serde_json::from_slice(&fs::read(beside(path, ORIGIN)).ok()?).ok()
    }

    /// Notes it; done before the file gets its final name, so that no complete file is without.
    #[cfg(feature = "download")]
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let (target, part) = (beside(path, ORIGIN), beside(path, "origin.part"));
        let written =
            fs::write(&part, serde_json::to_vec_pretty(self)?).and_then(|()| fs::rename(&part, target));
        if written.is_err() {
            let _ = fs::remove_file(part);
        }
        written
    }
}

/// An exclusive lock on making a file, held by one process at a time.
#[derive(Debug)]
pub(crate) struct Lock {
    // Closing the file gives the lock back.
    _file: Option<File>,
    path: PathBuf,
    /// Folders to remove if nothing is in them, innermost first.
    folders: Vec<PathBuf>,
    _undo: Undo,
}

impl Lock {
    /// Locks the file at `target`, which is below the folder `root`, and creates missing folders. Calls `waiting` before
    /// it waits for another process.
    pub(crate) fn take(target: &Path, root: &Path, mut waiting: impl FnMut()) -> Result<Lock> {
        let path = beside(target, LOCK);
        let folder = path.parent().unwrap_or(root);
        let ours = |f: &&Path| f.starts_with(root) || !f.exists();
        let folders: Vec<PathBuf> = folder.ancestors().take_while(ours).map(Path::to_owned).collect();
        let cannot =
            || format!("{}: cannot write in the cache (GYRUS_CACHE names another folder)", folder.display());
        // The previous holder removes the lock file, and folders that stayed empty. The file we opened may be deleted by
        // the time we hold it; then we have to try again.
        let mut vanished = None;
        for _ in 0..100 {
            let opened = fs::create_dir_all(folder)
                .and_then(|()| File::options().create(true).append(true).open(&path));
            let file = match opened {
                Ok(file) => file,
                // Creating a folder while another process removes it may also fail with `AlreadyExists`.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
                {
                    vanished = Some(error);
                    continue;
                }
                Err(error) => return Err(error).with_context(cannot),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    file.lock().with_context(cannot)?;
                }
                // Some network file systems have no locks; the rename still prevents partial files.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Lock::new(None, path, folders));
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            }
            if is_at(&file, &path) {
                return Ok(Lock::new(Some(file), path, folders));
            }
        }
        Err(vanished.unwrap_or_else(|| io::Error::other("the lock keeps vanishing"))).with_context(cannot)
    }
}

impl Lock {
    fn new(file: Option<File>, path: PathBuf, folders: Vec<PathBuf>) -> Lock {
        let undo = {
            let (path, folders) = (path.clone(), folders.clone());
            move || clear(&path, &folders)
        };
        Lock { _file: file, path, folders, _undo: interrupt::undo(undo) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        clear(&self.path, &self.folders);
    }
}

/// Removes the files and folders of a lock.
fn clear(path: &Path, folders: &[PathBuf]) {
    // Elsewhere than on Unix an open file cannot be replaced, so there the empty lock file stays.
    if cfg!(unix) {
        let _ = fs::remove_file(path);
    }
    // A folder with something in it is not removed.
    for folder in folders {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
}

/// Whether the open file is the one that this path names now.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> bool {
    true
}

/// A file found in the cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// `hf:owner/repo/file`, `hf:owner/repo` for a complete SafeTensors model, or the path inside the models' folder.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Whether it is the beginning of a file whose download was cut.
    pub(crate) unfinished: bool,
}

/// All model files in the cache, in order of their names.
pub(crate) fn list(environment: &Environment) -> Result<Vec<Found>> {
    let root = folder(environment)?;
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        };
        for entry in entries {
            let entry = entry.with_context(|| folder.display().to_string())?;
            // A link to a folder is not followed: it may lead back.
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if let Some((name, unfinished)) = name_in(&root, &path)
                && let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
            {
                found.push(Found { name, path, bytes: metadata.len(), unfinished });
            }
        }
    }
    let mut found = merged(found);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The weights of a complete SafeTensors repository are one model, whose path is their folder.
fn merged(files: Vec<Found>) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for file in files {
        let folder = file.path.parent().filter(|folder| !file.unfinished && folder.join(LIST).is_file());
        let (Some(folder), Some((name, SAFETENSORS))) =
            (folder, file.name.rsplit_once('/').map(|(name, file)| (name, extension(file))))
        else {
            found.push(file);
            continue;
        };
        match found.iter_mut().find(|model| model.path == folder) {
            Some(model) => model.bytes += file.bytes,
            None => found.push(Found { name: name.to_owned(), path: folder.to_owned(), ..file }),
        }
    }
    found
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// The name of a model file, and whether it is only a part of one; `None` for any other file.
fn name_in(root: &Path, path: &Path) -> Option<(String, bool)> {
    let inside = path.strip_prefix(root).ok()?;
    let mut parts: Vec<String> = inside.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    let file = parts.last_mut()?;
    let unfinished = match file.strip_suffix(&format!(".{PART}")) {
        Some(whole) => {
            // A part from the hub also bears the mark of its version.
            let whole = if is_model(whole) { whole } else { whole.rsplit_once('.')?.0 };
            *file = whole.to_owned();
            true
        }
        None => false,
    };
    if !is_model(file) {
        return None;
    }
    let name = match parts.as_slice() {
        [hub, rest @ ..] if hub == HUB && rest.len() >= 3 => format!("{}{}", HubFile::PREFIX, rest.join("/")),
        _ => parts.join("/"),
    };
    Some((name, unfinished))
}

/// Whether a file's name ends as a model's does.
pub(crate) fn is_model(name: &str) -> bool {
    matches!(extension(name), "gguf" | SAFETENSORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::tempfile;

    #[test]
    fn files_have_their_places_and_are_found_there() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::of_test(folder.path(), "");
        assert_eq!(list(&environment).unwrap(), []);
        let path = |name: &str| path_of(&Named::parse(name).unwrap(), &environment).unwrap();
        let models = folder.path().join("models");
        assert_eq!(path("tales-7m"), models.join("tales-7m-q8_0.gguf"));
        let hub = path("hf:owner/repo/sub/model.gguf");
        assert_eq!(hub, models.join("hf/owner/repo/sub/model.gguf"));
        fs::create_dir_all(hub.parent().unwrap()).unwrap();
        for (path, text) in [
            (hub.clone(), "12345"),
            (models.join("mine.safetensors"), "123"),
            (models.join("notes.txt"), "no model"),
            (beside(&hub, ORIGIN), "{}"),
            (models.join("hf/owner/repo/big.gguf.0a1b2c.part"), "12"),
            (models.join("x.gguf.part"), "1"),
        ] {
            fs::write(path, text).unwrap();
        }
        let found: Vec<_> =
            list(&environment).unwrap().into_iter().map(|f| (f.name, f.bytes, f.unfinished)).collect();
        let expected = [
            ("hf:owner/repo/big.gguf", 2, true),
            ("hf:owner/repo/sub/model.gguf", 5, false),
            ("mine.safetensors", 3, false),
            ("x.gguf", 1, true),
        ];
        assert_eq!(found, expected.map(|(name, bytes, unfinished)| (name.to_owned(), bytes, unfinished)));
    }

    #[test]
    fn a_lock_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (root, target) = (folder.path().join("a/b"), folder.path().join("a/b/c/model.gguf"));
        drop(Lock::take(&target, &root, || panic!("nobody holds it")).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // What was made meanwhile stays, and so does the folder around it.
        let lock = Lock::take(&target, &root, || panic!("nobody holds it")).unwrap();
        fs::write(&target, "model").unwrap();
        drop(lock);
        assert_eq!(fs::read(&target).unwrap(), b"model");
        assert!(!beside(&target, LOCK).exists());
    }

    #[test]
    fn one_holder_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("models");
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = Lock::take(&root.join("hf/model.gguf"), &root, || ()).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        rounds.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 400);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
