//! The contents of the cache folder by kind, and their removal.
//!
//! Only files that Gyrus writes are listed, since `GYRUS_CACHE` may name a folder that has other files too. Symbolic links
//! are not followed: a link to a file is listed and removed itself, and a link to a folder is left alone. So nothing
//! outside the cache folder is counted or removed.

use std::fs::{self, File, FileType, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::{LIST, LIST_PART, LOCK, MODELS, ORIGIN, PART, PIPELINES, beside, is_model};
use crate::fetch::repository::is_description;

/// The lines typed in `gyrus chat`.
pub(crate) const HISTORY: &str = "history.txt";
/// Between a model's name and a process id: the folder of a download through pip.
pub(crate) const SCRATCH: &str = "pip-";
/// Extensions of kernel tunings, of outcomes of the GPU self-test and of compiled pipelines.
const TUNING: &str = "tuning";
const SELF_TEST: &str = "selftest";
const PIPELINE: &str = "bin";

/// What a file in the cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A model, or a part of one whose download was interrupted.
    Model,
    /// Compiled GPU pipelines.
    Pipelines,
    /// Kernel variants that `gyrus tune` selected.
    Tuning,
    /// The outcome of a GPU's self-test.
    SelfTest,
    /// Lines typed in `gyrus chat`.
    History,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Model, Kind::Pipelines, Kind::Tuning, Kind::SelfTest, Kind::History];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Pipelines => "pipelines",
            Kind::Tuning => "tuning",
            Kind::SelfTest => "self-test",
            Kind::History => "history",
        }
    }
}

/// A file in the cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
    /// Bytes in the cache folder: of a link those of the link, of a model also those of its origin file.
    pub(crate) bytes: u64,
    pub(crate) state: State,
    /// The model that the file belongs to: while it is downloaded, its lock is held.
    target: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Complete,
    /// Left by an interrupted download, or still being downloaded.
    Incomplete,
    /// A symbolic link.
    Link,
}

/// The files that Gyrus has written to the cache folder, by kind and path.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) root: PathBuf,
    pub(crate) entries: Vec<Entry>,
    /// Links to folders, which are not followed.
    pub(crate) skipped: Vec<PathBuf>,
}

impl Contents {
    /// Lists the cache folder. A folder that does not exist is empty.
    pub(crate) fn read(root: &Path) -> Result<Contents> {
        let mut contents = Contents { root: root.to_owned(), entries: Vec::new(), skipped: Vec::new() };
        let models = root.join(MODELS);
        contents.folder(&models, true, model_file)?;
        contents
            .folder(&root.join(PIPELINES), false, |path| Some((engine_file(path)?, State::Complete, None)))?;
        let history = root.join(HISTORY);
        if let Some(found) = found(&history)? {
            contents.add(history, &found, (Kind::History, State::Complete, None));
        }
        contents.entries.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
        contents.skipped.sort();
        Ok(contents)
    }

    /// Adds the files of a folder, and with `deep` those of the folders in it.
    fn folder(&mut self, folder: &Path, deep: bool, classify: impl Fn(&Path) -> Option<Class>) -> Result<()> {
        match found(folder)? {
            Some(metadata) if metadata.is_symlink() => {
                self.skipped.push(folder.to_owned());
                return Ok(());
            }
            Some(metadata) if metadata.is_dir() => {}
            _ => return Ok(()),
        }
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.with_context(|| folder.display().to_string())?,
            };
            for entry in entries {
                let path = entry.with_context(|| folder.display().to_string())?.path();
                // Removed since the folder was read.
                let Some(metadata) = found(&path)? else { continue };
                if metadata.is_dir() {
                    if deep {
                        folders.push(path);
                    }
                } else if let Some(class) = classify(&path) {
                    self.add(path, &metadata, class);
                } else if deep && metadata.is_symlink() && path.is_dir() {
                    self.skipped.push(path);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, metadata: &fs::Metadata, (kind, state, target): Class) {
        if !is_file_or_link(metadata.file_type()) {
            return;
        }
        let state = if metadata.is_symlink() { State::Link } else { state };
        let sidecar =
            if target.as_ref() == Some(&path) { found(&beside(&path, ORIGIN)).ok().flatten() } else { None };
        let bytes = metadata.len() + sidecar.map_or(0, |origin| origin.len());
        self.entries.push(Entry { kind, path, bytes, state, target });
    }

    /// The total size of a kind.
    pub(crate) fn bytes(&self, kind: Kind) -> u64 {
        self.entries.iter().filter(|entry| entry.kind == kind).map(|entry| entry.bytes).sum()
    }

    /// Removes a file, and the folders that it leaves empty.
    pub(crate) fn remove(&self, entry: &Entry) -> Result<()> {
        let shown = || entry.path.display().to_string();
        let Some(folder) = entry.path.parent() else { bail!("{}: has no folder", shown()) };
        // A folder on the way may have become a link since it was listed.
        let root = fs::canonicalize(&self.root).with_context(|| self.root.display().to_string())?;
        match fs::canonicalize(folder) {
            Ok(folder) => {
                ensure!(folder.starts_with(&root), "{}: is not in the cache folder any more", shown())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(shown),
        }
        if let Some(target) = &entry.target {
            ensure!(!is_locked(target), "{}: another process is downloading it", shown());
        }
        remove_file(&entry.path).with_context(shown)?;
        if entry.target.as_ref() == Some(&entry.path) {
            remove_file(&beside(&entry.path, ORIGIN)).with_context(shown)?;
        }
        // `remove_dir` fails on a folder that is not empty.
        let inside =
            folder.ancestors().take_while(|folder| *folder != self.root && folder.starts_with(&self.root));
        for folder in inside {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Kind, state and model of a file.
type Class = (Kind, State, Option<PathBuf>);

/// What a file in the folder of the models is; `None` if Gyrus did not write it.
fn model_file(path: &Path) -> Option<Class> {
    let name = path.file_name()?.to_str()?;
    if let Some(model) = name.strip_suffix(&format!(".{ORIGIN}")) {
        let target = path.with_file_name(model);
        // The origin file of a complete model belongs to that entry.
        let orphan = is_ours(model) && found(&target).is_ok_and(|found| found.is_none());
        return orphan.then_some((Kind::Model, State::Incomplete, Some(target)));
    }
    if let Some(part) = name.strip_suffix(&format!(".{PART}")) {
        // A part from the hub also bears the mark of its version.
        let whole = if is_ours(part) { Some(part) } else { part.rsplit_once('.').map(|(whole, _)| whole) };
        if let Some(whole) = whole.filter(|whole| is_ours(whole)) {
            return Some((Kind::Model, State::Incomplete, Some(path.with_file_name(whole))));
        }
    }
    // A description that came from the hub has its origin beside it; other folders may have files of that name too.
    let is_pulled =
        || is_description(name) && found(&beside(path, ORIGIN)).is_ok_and(|found| found.is_some());
    if is_model(name) || is_pulled() {
        return Some((Kind::Model, State::Complete, Some(path.to_owned())));
    }
    if name == LIST || name == LIST_PART {
        return Some((Kind::Model, State::Complete, path.parent().map(Path::to_owned)));
    }
    // `NAME.gguf.pip-123/FILE`
    let folder = path.parent()?;
    let (model, process) = folder.file_name()?.to_str()?.rsplit_once(&format!(".{SCRATCH}"))?;
    let is_scratch = is_model(model) && process.bytes().all(|c| c.is_ascii_digit());
    is_scratch.then(|| (Kind::Model, State::Incomplete, Some(folder.with_file_name(model))))
}

/// Whether Gyrus pulls files of this name.
fn is_ours(name: &str) -> bool {
    is_model(name) || is_description(name)
}

/// What a file in the engine's folder is; `None` if the engine did not write it.
fn engine_file(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()? {
        TUNING => Some(Kind::Tuning),
        SELF_TEST => Some(Kind::SelfTest),
        PIPELINE | PART => Some(Kind::Pipelines),
        _ => None,
    }
}

fn is_file_or_link(kind: FileType) -> bool {
    kind.is_file() || kind.is_symlink()
}

/// What is at a path, links not followed; `None` if there is nothing.
fn found(path: &Path) -> Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Removes a file or a link; one that is gone already is no error.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether another process holds the lock of a model.
fn is_locked(target: &Path) -> bool {
    match File::options().append(true).open(beside(target, LOCK)) {
        Ok(file) => matches!(file.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::tempfile;

    fn write(path: &Path, bytes: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; bytes]).unwrap();
    }

    fn listed(contents: &Contents) -> Vec<(&'static str, String, u64, State)> {
        let relative = |path: &Path| path.strip_prefix(&contents.root).unwrap().to_str().unwrap().to_owned();
        contents.entries.iter().map(|e| (e.kind.name(), relative(&e.path), e.bytes, e.state)).collect()
    }

    #[test]
    fn files_are_listed_by_kind_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Contents::read(&folder.path().join("none")).unwrap().entries.is_empty());
        for (path, bytes) in [
            ("models/hf/o/r/m.gguf", 100),
            ("models/hf/o/r/m.gguf.origin.json", 5),
            ("models/hf/o/r/big.gguf.0a1b.part", 30),
            ("models/x.gguf.pip-123/x.whl", 7),
            ("models/x.gguf.pip-me/x.whl", 7),
            ("models/gone.gguf.origin.json", 4),
            ("models/notes.txt", 1),
            ("models/m.gguf.lock", 0),
            ("pipelines/vulkan_1_0.bin", 20),
            ("pipelines/vulkan_1_0.77.part", 2),
            ("pipelines/gpu_0.tuning", 3),
            ("pipelines/gpu_0.selftest", 6),
            ("pipelines/README", 1),
            ("pipelines/below/x.bin", 1),
            ("history.txt", 9),
            ("other/m.gguf", 1000),
            ("top.gguf", 1000),
        ] {
            write(&folder.path().join(path), bytes);
        }
        let contents = Contents::read(folder.path()).unwrap();
        let expected = [
            ("model", "models/gone.gguf.origin.json", 4, State::Incomplete),
            ("model", "models/hf/o/r/big.gguf.0a1b.part", 30, State::Incomplete),
            ("model", "models/hf/o/r/m.gguf", 105, State::Complete),
            ("model", "models/x.gguf.pip-123/x.whl", 7, State::Incomplete),
            ("pipelines", "pipelines/vulkan_1_0.77.part", 2, State::Complete),
            ("pipelines", "pipelines/vulkan_1_0.bin", 20, State::Complete),
            ("tuning", "pipelines/gpu_0.tuning", 3, State::Complete),
            ("self-test", "pipelines/gpu_0.selftest", 6, State::Complete),
            ("history", "history.txt", 9, State::Complete),
        ];
        assert_eq!(
            listed(&contents),
            expected.map(|(kind, path, bytes, state)| (kind, path.to_owned(), bytes, state))
        );
        assert_eq!(Kind::ALL.map(|kind| contents.bytes(kind)), [146, 22, 3, 6, 9]);
        for entry in &contents.entries {
            contents.remove(entry).unwrap();
            // A second time there is nothing to do.
            contents.remove(entry).unwrap();
        }
        assert!(Contents::read(folder.path()).unwrap().entries.is_empty());
        let left = [
            "models/notes.txt",
            "models/x.gguf.pip-me/x.whl",
            "pipelines/README",
            "other/m.gguf",
            "top.gguf",
        ];
        assert!(left.iter().all(|path| folder.path().join(path).exists()));
        assert!(!folder.path().join("models/hf").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        use std::os::unix::fs::symlink;
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = outside.path().join("m.gguf");
        write(&model, 100);
        let models = folder.path().join("models");
        fs::create_dir(&models).unwrap();
        symlink(&model, models.join("link.gguf")).unwrap();
        symlink(outside.path(), models.join("hf")).unwrap();
        symlink(outside.path(), folder.path().join("pipelines")).unwrap();
        symlink("nowhere", models.join("broken.gguf")).unwrap();
        let contents = Contents::read(folder.path()).unwrap();
        assert_eq!(contents.skipped, [models.join("hf"), folder.path().join("pipelines")]);
        assert!(contents.entries.iter().all(|entry| entry.state == State::Link));
        assert_eq!(contents.entries.len(), 2);
        for entry in &contents.entries {
            contents.remove(entry).unwrap();
        }
        assert!(model.exists() && models.join("hf").exists());
        assert!(!models.join("link.gguf").is_symlink() && !models.join("broken.gguf").is_symlink());

        // A folder that became a link after it was listed.
        write(&models.join("o/m.gguf"), 1);
        let contents = Contents::read(folder.path()).unwrap();
        fs::remove_dir_all(models.join("o")).unwrap();
        symlink(outside.path(), models.join("o")).unwrap();
        let error = contents.remove(&contents.entries[0]).unwrap_err().to_string();
        assert!(error.ends_with("o/m.gguf: is not in the cache folder any more"), "{error}");
        assert!(model.exists());
    }

    #[test]
    fn a_model_that_is_downloaded_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("models/m.gguf");
        let part = beside(&target, PART);
        write(&part, 10);
        let lock = super::super::Lock::take(&target, &folder.path().join("models"), || ()).unwrap();
        let contents = Contents::read(folder.path()).unwrap();
        let error = contents.remove(&contents.entries[0]).unwrap_err().to_string();
        assert!(error.ends_with("m.gguf.part: another process is downloading it"), "{error}");
        drop(lock);
        contents.remove(&contents.entries[0]).unwrap();
        assert!(!part.exists() && folder.path().exists());
    }
}
