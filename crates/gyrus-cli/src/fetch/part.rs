//! A file in the making: `NAME.part` becomes `NAME` once it is complete and right.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};

use super::digest::{Digest, Hasher};
use crate::interrupt::{self, Undo};
use crate::text;

/// What a complete file must be.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    pub(crate) bytes: Option<u64>,
    pub(crate) sha256: Option<Digest>,
}

/// A file in the making. It is removed when dropped, unless it is finished or may be resumed.
#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    bytes: u64,
    expected: Expected,
    /// Whether what is there is worth keeping if the rest does not come, be it for a signal.
    resumable: Arc<AtomicBool>,
    finished: bool,
    _undo: Undo,
}

impl Part {
    /// Begins anew; what is there is lost.
    pub(crate) fn create(path: PathBuf, expected: Expected) -> Result<Part> {
        let mut part = Part::open(path, expected)?;
        part.restart()?;
        Ok(part)
    }

    /// Goes on where an earlier try ended.
    #[cfg(feature = "download")]
    pub(crate) fn resume(path: PathBuf, expected: Expected) -> Result<Part> {
        let mut part = Part::open(path, expected)?;
        part.bytes = super::digest::feed(&mut part.file, &mut part.hasher)
            .with_context(|| format!("{}: cannot read", part.path.display()))?;
        if expected.bytes.is_some_and(|bytes| part.bytes > bytes) {
            part.restart()?;
        }
        Ok(part)
    }

    fn open(path: PathBuf, expected: Expected) -> Result<Part> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("{}: cannot write", path.display()))?;
        let hasher = Hasher::default();
        let resumable = Arc::new(AtomicBool::new(false));
        let undo = {
            let (path, resumable) = (path.clone(), Arc::clone(&resumable));
            move || {
                if !resumable.load(Ordering::Relaxed) {
                    let _ = fs::remove_file(&path);
                }
            }
        };
        let _undo = interrupt::undo(undo);
        Ok(Part { path, file, hasher, bytes: 0, expected, resumable, finished: false, _undo })
    }

    /// Forgets what is there.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.with_context(|| format!("{}: cannot write", self.path.display()))?;
        self.hasher = Hasher::default();
        self.bytes = 0;
        Ok(())
    }

    /// How much is there.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says whether to keep what is there if the rest does not come.
    pub(crate) fn set_resumable(&mut self, resumable: bool) {
        self.resumable.store(resumable, Ordering::Relaxed);
    }

    pub(crate) fn is_resumable(&self) -> bool {
        self.resumable.load(Ordering::Relaxed)
    }

    #[cfg(feature = "download")]
    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        self.expected.bytes
    }

    /// The size has become known.
    #[cfg(feature = "download")]
    pub(crate) fn expect_bytes(&mut self, bytes: u64) {
        self.expected.bytes = Some(bytes);
    }

    /// The checksum of what is there.
    pub(crate) fn digest(&self) -> Digest {
        self.hasher.digest()
    }

    /// Adds what comes next. More than was expected is refused, so that no source can fill the disk.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let total = self.bytes.saturating_add(bytes.len() as u64);
        if let Some(expected) = self.expected.bytes
            && total > expected
        {
            self.set_resumable(false);
            bail!("more than the expected {expected} bytes came");
        }
        if let Err(error) = self.file.write_all(bytes) {
            return Err(self.cannot_write(error));
        }
        self.hasher.update(bytes);
        self.bytes = total;
        Ok(())
    }

    /// Whether the file is complete and right. If not, it cannot be made right by resuming.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.set_resumable(false);
        if let Some(expected) = self.expected.bytes
            && self.bytes != expected
        {
            bail!("wrong size: expected {expected} bytes, found {}; the file was removed", self.bytes);
        }
        let found = self.digest();
        if let Some(expected) = self.expected.sha256
            && found != expected
        {
            bail!("wrong checksum: expected SHA-256 {expected}, found {found}; the file was removed");
        }
        Ok(())
    }

    /// Checks the file, flushes it to the disk and gives it its final name.
    pub(crate) fn finish(mut self, target: &Path) -> Result<()> {
        self.check()?;
        if let Err(error) = self.file.sync_all() {
            return Err(self.cannot_write(error));
        }
        fs::rename(&self.path, target)
            .with_context(|| format!("{}: cannot rename to {}", self.path.display(), target.display()))?;
        self.finished = true;
        // The new name outlives a power cut only if the folder is flushed too; not all systems can.
        if cfg!(unix)
            && let Some(folder) = target.parent()
        {
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(())
    }

    fn cannot_write(&mut self, error: io::Error) -> anyhow::Error {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if !full {
            return anyhow!(error).context(format!("{}: cannot write", self.path.display()));
        }
        // A full disk troubles every program of the machine: give the room back rather than keep a part.
        self.set_resumable(false);
        let after = text::bytes(self.bytes);
        let of = self.expected.bytes.map_or_else(String::new, |bytes| format!(" of {}", text::bytes(bytes)));
        let folder = self.path.parent().unwrap_or(&self.path).display();
        anyhow!("{folder}: the disk is full after {after}{of}; what was written is removed again")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let kept = self.finished || (self.is_resumable() && self.bytes > 0);
        if !kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::tempfile;

    fn expected(content: &[u8]) -> Expected {
        Expected { bytes: Some(content.len() as u64), sha256: Some(Digest::of(content)) }
    }

    /// The names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_right_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("m.part"), folder.path().join("m"));
        fs::write(&path, "left over").unwrap();
        let mut part = Part::create(path, expected(b"hello world")).unwrap();
        part.write(b"hello ").unwrap();
        assert_eq!(names(folder.path()), ["m.part"]);
        part.write(b"world").unwrap();
        part.finish(&target).unwrap();
        assert_eq!(names(folder.path()), ["m"]);
        assert_eq!(fs::read(target).unwrap(), b"hello world");
    }

    #[test]
    fn what_is_wrong_is_removed_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("m.part"), folder.path().join("m"));
        let part = |content: &[u8]| {
            let mut part = Part::create(path.clone(), expected(b"hello")).unwrap();
            part.write(content).map(|()| part)
        };
        let short = part(b"hell").unwrap().finish(&target).unwrap_err().to_string();
        assert!(short.contains("expected 5 bytes, found 4"), "{short}");
        let wrong = part(b"HELLO").unwrap().finish(&target).unwrap_err().to_string();
        for digest in [Digest::of(b"hello"), Digest::of(b"HELLO")] {
            assert!(wrong.contains(&digest.to_string()), "{wrong}");
        }
        assert!(part(b"hello!").unwrap_err().to_string().contains("more than the expected 5 bytes"));
        assert!(names(folder.path()).is_empty());
    }

    #[cfg(feature = "download")]
    #[test]
    fn a_part_is_kept_only_if_it_can_be_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("m.part"), folder.path().join("m"));
        for (resumable, left) in [(false, 0), (true, 1)] {
            let mut part = Part::create(path.clone(), expected(b"hello")).unwrap();
            part.write(b"hel").unwrap();
            part.set_resumable(resumable);
            drop(part);
            assert_eq!(names(folder.path()).len(), left);
        }
        let mut part = Part::resume(path.clone(), expected(b"hello")).unwrap();
        assert_eq!(part.bytes(), 3);
        part.write(b"lo").unwrap();
        part.finish(&target).unwrap();
        // A part that is longer than the whole is of another file.
        fs::write(&path, "hello and more").unwrap();
        assert_eq!(Part::resume(path, expected(b"hello")).unwrap().bytes(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        // Writing to this device fails as on a full disk.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut part = Part::open(path, expected(&[0; 4096])).unwrap();
        part.set_resumable(true);
        let error = part.write(&[0; 4096]).unwrap_err().to_string();
        assert!(error.contains("the disk is full after 0 B of 4.00 KiB"), "{error}");
        drop(part);
        assert!(names(folder.path()).is_empty());
    }
}
