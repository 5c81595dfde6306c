//! A SafeTensors model from the Hugging Face hub: the files of a repository that make up the model.
//!
//! Each file is pulled as any other file of the hub, so a pull that was cut goes on with the file it was cut in. When all
//! files are there, a list of them is written beside them; a folder without its list is not complete.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use gyrus_formats::safetensors::Index;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::{Absent, Existing};
use crate::cache::{self, Provenance};
use crate::catalogue::{HubFile, Named, Repository};
use crate::environment::Environment;
use crate::{diagnostics, foreign};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Files that a model may have.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
/// The most bytes of an index, and of the list.
const MAX_JSON: u64 = 64 << 20;

/// Whether a file's name is that of a description beside a model's weights.
pub(crate) fn is_description(name: &str) -> bool {
    name == CONFIG || name == INDEX || OPTIONAL.contains(&name)
}

/// The list of a model's files.
#[derive(Debug, Serialize, Deserialize)]
struct List {
    source: String,
    files: Vec<Listed>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    name: String,
    bytes: u64,
    sha256: String,
}

impl List {
    /// The list in a folder; `None` if there is none, or none that can be read.
    fn read(folder: &Path) -> Option<List> {
        let list: List = serde_json::from_slice(&read_small(&folder.join(cache::LIST)).ok()?).ok()?;
        // A name must not lead out of the folder.
        list.files.iter().all(|file| HubFile::is_plain(&file.name)).then_some(list)
    }

    /// Writes the list, whole or not at all.
    fn write(&self, folder: &Path) -> Result<()> {
        let (target, part) = (folder.join(cache::LIST), folder.join(cache::LIST_PART));
        let written = serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&part, text))
            .and_then(|()| fs::rename(&part, &target));
        if written.is_err() {
            let _ = fs::remove_file(part);
        }
        written.with_context(|| format!("{}: cannot write", target.display()))
    }
}

/// The bytes of the files that are listed.
pub(crate) fn bytes(folder: &Path) -> u64 {
    List::read(folder).map_or(0, |list| list.files.iter().map(|file| file.bytes).sum())
}

/// Whether all files of a model are in its folder and, as far as was asked, right.
pub(crate) fn is_there(repository: &Repository, existing: Existing, folder: &Path) -> Result<bool> {
    let Some(list) = List::read(folder).filter(|_| existing != Existing::Replace) else { return Ok(false) };
    for file in &list.files {
        let path = folder.join(&file.name);
        let found = fs::metadata(&path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
        let wrong = match found {
            None => format!("{} is missing in the cache", file.name),
            Some(found) if found != file.bytes => {
                format!("{} in the cache has {found} bytes instead of {}", file.name, file.bytes)
            }
            Some(_) if existing == Existing::Verify => {
                let (found, _) = Digest::of_file(&path).with_context(|| path.display().to_string())?;
                match Digest::parse(&file.sha256) == Some(found) {
                    true => continue,
                    false => format!(
                        "{} has a wrong checksum: expected SHA-256 {}, found {found}",
                        file.name, file.sha256
                    ),
                }
            }
            Some(_) => continue,
        };
        if existing == Existing::Verify {
            bail!("{}: {wrong}; pull it with --force", folder.display());
        }
        diagnostics::about(repository, format!("{}; pulling it again", foreign::one_line(&wrong, 300)));
        return Ok(false);
    }
    Ok(true)
}

/// Pulls the files of a model into its folder. The caller holds the folder's lock.
pub(crate) fn pull(
    repository: &Repository,
    existing: Existing,
    folder: &Path,
    environment: &Environment,
) -> Result<()> {
    // From here on the folder is not complete.
    match fs::remove_file(folder.join(cache::LIST)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| folder.display().to_string());
        }
        _ => {}
    }
    let mut pull = Pull { repository, existing, environment, files: Vec::new() };
    if !pull.file(CONFIG)? {
        bail!(
            "it has no {CONFIG}, so it is not a SafeTensors model; a GGUF file is named hf:{}/{}/FILE",
            repository.owner,
            repository.repo
        );
    }
    for name in OPTIONAL {
        pull.file(name)?;
    }
    if pull.file(INDEX)? {
        let path = folder.join(INDEX);
        let index = Index::parse(&read_small(&path).with_context(|| path.display().to_string())?)
            .with_context(|| path.display().to_string())?;
        for name in index.files() {
            ensure!(pull.file(name)?, "{INDEX} names {name}, which the hub does not have");
        }
    } else {
        ensure!(pull.file(SINGLE)?, "it has neither {SINGLE} nor {INDEX}");
    }
    List { source: repository.to_string(), files: pull.files }.write(folder)
}

struct Pull<'a> {
    repository: &'a Repository,
    existing: Existing,
    environment: &'a Environment,
    files: Vec<Listed>,
}

impl Pull<'_> {
    /// Pulls a file and adds it to the list. `false` if the repository does not have it.
    fn file(&mut self, name: &str) -> Result<bool> {
        let file = Named::Hub(self.repository.file(name)?);
        let path = match super::pull_quietly(&file, self.existing, self.environment) {
            Ok(pulled) => pulled.path,
            Err(error) if error.is::<Absent>() => return Ok(false),
            Err(error) => return Err(error),
        };
        let Some(known) = Provenance::of(&path) else {
            bail!("{}: nothing is known of where it came from; remove it", path.display());
        };
        self.files.push(Listed { name: name.to_owned(), bytes: known.bytes, sha256: known.sha256 });
        Ok(true)
    }
}

/// The content of a small file.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_JSON {
        return Err(io::Error::other(format!("more than {MAX_JSON} bytes")));
    }
    fs::read(path)
}
