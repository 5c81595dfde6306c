//! Files at paths that the user names: whole or not there at all.
//!
//! A regular file is written under a temporary name in its folder and renamed when it is complete, so that an error or
//! a full disk leaves what was there before. A symbolic link is followed, and its target replaced. A device, a pipe or a
//! socket cannot be replaced without breaking whoever uses it, so it is opened and written to.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, anyhow};

use crate::foreign;
use crate::interrupt::{self, Undo};

/// Links that may lead to each other before they are taken to go in a circle, as many as Linux follows.
const MOST_LINKS: usize = 40;

/// A file in the making. Dropped before [`OutputFile::finish`], it leaves nothing.
pub(crate) struct OutputFile {
    /// What the user called it.
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    /// Something that is no regular file.
    Direct(Box<dyn Write>),
    /// A file beside its place.
    Temporary { file: BufWriter<File>, temporary: Temporary, target: PathBuf },
}

/// A name that is removed unless it has become the final one.
struct Temporary {
    path: PathBuf,
    renamed: bool,
    /// Should the process be told to end.
    _undo: Undo,
}

impl OutputFile {
    /// Begins a file. Nothing is at its path before [`OutputFile::finish`] that was not there.
    pub(crate) fn create(path: &Path) -> Result<OutputFile> {
        let sink = open(path).map_err(|error| named(path, error))?;
        Ok(OutputFile { path: path.to_owned(), sink })
    }

    /// Writes a whole file.
    pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write_all(content.as_ref()).map_err(|error| named(path, error))?;
        file.finish()
    }

    /// Gives the file its name, with all that was written on the disk.
    pub(crate) fn finish(self) -> Result<()> {
        let OutputFile { path, sink } = self;
        finish(sink).map_err(|error| named(&path, error))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sink {
            Sink::Direct(out) => out.write(bytes),
            Sink::Temporary { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Direct(out) => out.flush(),
            Sink::Temporary { file, .. } => file.flush(),
        }
    }
}

fn named(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow!(error).context(foreign::path(path))
}

fn open(path: &Path) -> io::Result<Sink> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "is a folder")),
        Ok(found) if !found.is_file() => Ok(Sink::Direct(direct(path, &found)?)),
        found => {
            let Some(target) = follow(path)? else {
                // An open file of a process, such as /dev/stdout: whoever opened it decided where it ends.
                return Ok(Sink::Direct(Box::new(File::options().append(true).open(path)?)));
            };
            if found.is_ok() {
                // Replacing a file takes no right to write to it, which is no reason to do without.
                File::options().write(true).open(&target)?;
            }
            temporary(target, found.ok().as_ref())
        }
    }
}

/// Opens what is no regular file.
fn direct(path: &Path, found: &Metadata) -> io::Result<Box<dyn Write>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.file_type().is_socket() {
            return Ok(Box::new(std::os::unix::net::UnixStream::connect(path)?));
        }
    }
    let _ = found;
    Ok(Box::new(File::options().write(true).open(path)?))
}

/// Where links lead, whether or not something is there. `None` where the kernel keeps the link: it stands for an open
/// file, and not for a path.
fn follow(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let folder = folder_of(&path);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
            return Ok(Some(path));
        }
        if cfg!(target_os = "linux") && fs::canonicalize(folder)?.starts_with("/proc") {
            return Ok(None);
        }
        path = folder.join(fs::read_link(&path)?);
    }
    Err(io::Error::other("its symbolic links go in a circle"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Begins a file beside its place, with the owner and permissions of the one it will replace.
fn temporary(target: PathBuf, replaced: Option<&Metadata>) -> io::Result<Sink> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if target.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a file"));
    }
    let folder = folder_of(&target);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short, since a name may be as long as names can be.
        let path = folder.join(format!(".gyrus-{}-{number}.tmp", std::process::id()));
        let undo = {
            let path = path.clone();
            move || drop(fs::remove_file(&path))
        };
        // Before the file exists, so that no signal can come between. A file of this name that exists was left by a
        // process of the same number, so that it may be removed, too.
        let undo = interrupt::undo(undo);
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => {
                let temporary = Temporary { path, renamed: false, _undo: undo };
                if let Some(replaced) = replaced {
                    keep_rights(&file, replaced)?;
                }
                return Ok(Sink::Temporary { file: BufWriter::new(file), temporary, target });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn keep_rights(file: &File, replaced: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        // Only the superuser can give files away; for others it is their own already, or becomes so.
        let _ = fchown(file, Some(replaced.uid()), Some(replaced.gid()));
    }
    file.set_permissions(replaced.permissions())
}

fn finish(sink: Sink) -> io::Result<()> {
    match sink {
        Sink::Direct(mut out) => out.flush(),
        Sink::Temporary { file, mut temporary, target } => {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            // Some file systems report a full disk only at this call.
            file.sync_all()?;
            drop(file);
            fs::rename(&temporary.path, target)?;
            temporary.renamed = true;
            Ok(())
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use gyrus_testkit::tempfile;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_that_is_not_finished_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        drop(file);
        assert!(names(folder.path()).is_empty());
        fs::write(&path, "before").unwrap();
        drop(OutputFile::create(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(names(folder.path()), ["out"]);
        OutputFile::write(&path, "after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        // As long a name as there can be.
        OutputFile::write(&folder.path().join("n".repeat(255)), "").unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_and_the_device_stays() {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/full", &link).unwrap();
        for path in [&link, Path::new("/dev/full")] {
            let error = OutputFile::write(path, [0; 4096]).unwrap_err();
            assert!(
                format!("{error:#}").starts_with(&format!("{}: No space left", path.display())),
                "{error:#}"
            );
        }
        assert!(fs::symlink_metadata("/dev/full").unwrap().file_type().is_char_device());
        assert_eq!(names(folder.path()), ["link"]);
    }

    /// As `--out /dev/stdout >>file` does.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_open_is_added_to() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("log"), folder.path().join("link"));
        fs::write(&path, "before ").unwrap();
        let open = File::open(&path).unwrap();
        symlink(format!("/dev/fd/{}", open.as_raw_fd()), &link).unwrap();
        OutputFile::write(&link, "after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_socket_is_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            listener.accept().unwrap().0.read_to_string(&mut text).map(|_| text)
        });
        OutputFile::write(&path, "said").unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), "said");
        assert_eq!(names(folder.path()), ["socket"]);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        for (path, reason) in [
            (folder.path().to_owned(), "is a folder"),
            (at("none/out"), "No such file or directory"),
            (at("a"), "circle"),
            (PathBuf::from(""), ""),
            (at("none/.."), "is not the name of a file"),
        ] {
            let error = format!("{:#}", OutputFile::write(&path, "x").unwrap_err());
            assert!(error.starts_with(&path.display().to_string()) && error.contains(reason), "{error}");
        }
    }
}
