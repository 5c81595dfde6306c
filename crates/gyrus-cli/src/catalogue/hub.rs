//! Names of files and repositories on the Hugging Face hub.

use std::fmt;

use anyhow::{Result, bail, ensure};

use crate::foreign;

/// A file on the hub, `hf:owner/repo/file`; the file may lie in a folder of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubFile {
    pub(crate) owner: String,
    pub(crate) repo: String,
    /// The parts of the path inside the repository.
    pub(crate) path: Vec<String>,
}

impl HubFile {
    pub(crate) const PREFIX: &str = "hf:";

    /// Reads `owner/repo/file`.
    pub(crate) fn parse(name: &str) -> Result<HubFile> {
        let mut parts = name.split('/').map(str::to_owned);
        let (Some(owner), Some(repo)) = (parts.next(), parts.next()) else {
            bail!("hf:{}: a file on the hub is named hf:OWNER/REPO/FILE", foreign::one_line(name, 120));
        };
        let path: Vec<String> = parts.collect();
        ensure!(
            !path.is_empty(),
            "hf:{}: no file is named; a file on the hub is named hf:OWNER/REPO/FILE",
            foreign::one_line(name, 120)
        );
        check(name, [&owner, &repo].into_iter().chain(&path))?;
        Ok(HubFile { owner, repo, path })
    }

    /// Whether this can be a part of a path. Each part becomes a name in the cache, so none may lead out of it or mean
    /// something to a file system.
    pub(crate) fn is_plain(part: &str) -> bool {
        let strange = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
        !part.is_empty()
            && part.len() <= 200
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.contains(strange)
    }
}

fn check<'a>(name: &str, parts: impl Iterator<Item = &'a String>) -> Result<()> {
    for part in parts {
        ensure!(
            HubFile::is_plain(part),
            "hf:{}: {:?} cannot be part of a file's name",
            foreign::one_line(name, 120),
            foreign::one_line(part, 80)
        );
    }
    Ok(())
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}/{}", HubFile::PREFIX, self.owner, self.repo, self.path.join("/"))
    }
}

/// A repository on the hub with a SafeTensors model, `hf:owner/repo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repository {
    pub(crate) owner: String,
    pub(crate) repo: String,
}

impl Repository {
    /// Reads `owner/repo`.
    pub(crate) fn parse(name: &str) -> Result<Repository> {
        let parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        check(name, parts.iter())?;
        match <[String; 2]>::try_from(parts) {
            Ok([owner, repo]) => Ok(Repository { owner, repo }),
            Err(_) => bail!("hf:{}: a repository is named hf:OWNER/REPO", foreign::one_line(name, 120)),
        }
    }

    /// A file of the repository, not in a folder of it.
    pub(crate) fn file(&self, name: &str) -> Result<HubFile> {
        HubFile::parse(&format!("{}/{}/{name}", self.owner, self.repo))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}", HubFile::PREFIX, self.owner, self.repo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hub_files() {
        let file = HubFile::parse("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf").unwrap();
        assert_eq!((&*file.owner, &*file.repo), ("Qwen", "Qwen3-0.6B-GGUF"));
        assert_eq!(file.to_string(), "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf");
        assert_eq!(HubFile::parse("a/b/c/d.gguf").unwrap().path, ["c", "d.gguf"]);
        let bad = [
            "", "a", "a/b", "a/b/", "/b/c", "a//c", "a/b/../c", "../b/c", "a/b/.", "a/b/c\\d", "a/b/c:d",
            "a/b/c\nd", "a/b/.git", "a/b/c.", "a/b/c?d",
        ];
        for name in bad {
            assert!(HubFile::parse(name).is_err(), "{name:?}");
        }
        assert!(HubFile::parse(&format!("a/b/{}", "x".repeat(201))).is_err());
    }

    #[test]
    fn names_of_repositories() {
        let repository = Repository::parse("Qwen/Qwen3-0.6B").unwrap();
        assert_eq!(repository.to_string(), "hf:Qwen/Qwen3-0.6B");
        assert_eq!(repository.file("config.json").unwrap().to_string(), "hf:Qwen/Qwen3-0.6B/config.json");
        for name in ["", "a", "a/", "/b", "../b", "a/..", "a/b/c", "a/.b", "a/b\n"] {
            assert!(Repository::parse(name).is_err(), "{name:?}");
        }
        assert!(repository.file("../config.json").is_err());
    }
}
