//! Finds the model that an argument names: a path, a catalogue name or a file on the hub.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache;
use crate::catalogue::{self, BUILT_IN, DEFAULT, HubFile, Named, Origin, SMALL};
use crate::environment::Environment;
use crate::fetch::{self, Existing, Unavailable};
use crate::{diagnostics, foreign};

/// Where a model's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// A file, or a folder that holds a model.
    File(PathBuf),
    /// Inside the program.
    BuiltIn {
        /// Its name in the catalogue.
        name: &'static str,
        /// The GGUF file.
        bytes: &'static [u8],
    },
}

/// Finds the model that an argument names, and downloads it if needed. Without an argument it is the default model. If that
/// cannot be downloaded, it is the small one if it is in the cache, else the built-in one; then a note on stderr says so.
pub(crate) fn resolve(argument: Option<&OsStr>, environment: &Environment) -> Result<ModelSource> {
    let Some(argument) = argument else {
        return match by_name(&Named::parse(DEFAULT)?, environment) {
            Err(error) if error.is::<Unavailable>() => {
                let small = Named::parse(SMALL)?;
                if fetch::is_cached(&small, environment)? {
                    diagnostics::note(format!("{error:#}; using {SMALL} from the cache instead"));
                    return by_name(&small, environment);
                }
                diagnostics::note(format!("{error:#}; using the built-in model {BUILT_IN} instead"));
                by_name(&Named::parse(BUILT_IN)?, environment)
            }
            found => found,
        };
    };
    let path = Path::new(argument);
    let shown = || foreign::one_line(&argument.to_string_lossy(), 200);
    match path.try_exists() {
        Ok(true) => return Ok(ModelSource::File(path.to_owned())),
        // Too long a name, or one with a NUL, is no path; the code below reports it as an unknown model.
        Ok(false) | Err(_) if !is_path(argument) => {}
        Ok(false) => return Err(Missing(shown()).into()),
        // Opening it gives the reason.
        Err(_) => return Ok(ModelSource::File(path.to_owned())),
    }
    // A name that is not UTF-8 can only be a path, and there is no such file.
    let Some(name) = argument.to_str() else { return Err(Missing(shown()).into()) };
    by_name(&Named::parse(name)?, environment)
}

/// There is no file at a path.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: no such file", self.0)
    }
}

impl std::error::Error for Missing {}

/// Whether an argument that may be a model or a prompt is a model: it exists, has a name in the catalogue or
/// on the hub, or is written as a path.
pub(crate) fn looks_like_model(argument: &OsStr) -> bool {
    let is_name = |name: &str| name.starts_with(HubFile::PREFIX) || catalogue::is_known(name);
    argument.to_str().is_some_and(is_name)
        || is_path(argument)
        || (!argument.is_empty() && Path::new(argument).exists())
}

/// Whether this can only be meant as a path.
fn is_path(argument: &OsStr) -> bool {
    // A name that is not UTF-8 is neither a catalogue name nor a prompt.
    let Some(argument) = argument.to_str() else { return true };
    !argument.starts_with(HubFile::PREFIX)
        && (cache::is_model(argument)
            // Words with a slash among them ("What is 3/4 of 12?") are a prompt.
            || argument.contains(std::path::is_separator) && !argument.contains(char::is_whitespace))
}

fn by_name(model: &Named, environment: &Environment) -> Result<ModelSource> {
    if let Named::Entry(entry) = model
        && let Origin::BuiltIn(bytes) = entry.origin
    {
        return Ok(ModelSource::BuiltIn { name: entry.about.name, bytes });
    }
    fetch::pull(model, Existing::Use, environment).map(|pulled| ModelSource::File(pulled.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::tempfile;

    #[test]
    fn a_model_is_told_from_a_prompt() {
        let models = [
            "smollm2-135m",
            "tales-7m",
            "llama-3.2-1b",
            "hf:a/b/c.gguf",
            "hf:oops",
            "./x",
            "a/b",
            "model.gguf",
            "m.safetensors",
            "Cargo.toml",
            "src",
            ".",
        ];
        for argument in models {
            assert!(looks_like_model(argument.as_ref()), "{argument}");
        }
        for argument in ["", "Hello", "Why is the sky blue?", "smollm2", "gguf", "What is a .gguf file?\n"] {
            assert!(!looks_like_model(argument.as_ref()), "{argument}");
        }
        assert!(!looks_like_model("long ".repeat(100_000).as_ref()));
        assert!(!looks_like_model("nul\0".as_ref()));
    }

    fn resolved(argument: Option<&str>) -> Result<ModelSource, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::of_test(folder.path(), "");
        environment.offline = true;
        let resolved = resolve(argument.map(OsStr::new), &environment).map_err(|error| format!("{error:#}"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        resolved
    }

    #[test]
    fn paths_and_names_are_resolved() {
        assert_eq!(resolved(Some("Cargo.toml")), Ok(ModelSource::File("Cargo.toml".into())));
        assert_eq!(resolved(Some("src")), Ok(ModelSource::File("src".into())));
        let built_in = resolved(Some("tales-7m")).unwrap();
        assert!(
            matches!(built_in, ModelSource::BuiltIn { name: "tales-7m", bytes } if bytes.starts_with(b"GGUF"))
        );
        for (argument, reason) in [
            ("no/such", "no/such: no such file"),
            ("missing.gguf", "missing.gguf: no such file"),
            ("smollm", "no model is called \"smollm\""),
            ("smollm2-135m", "smollm2-135m is not in the cache, and GYRUS_OFFLINE is set"),
            ("hf:a/b/c.gguf", "hf:a/b/c.gguf is not in the cache, and GYRUS_OFFLINE is set"),
            (
                "qwen3-0.6b",
                "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf is not in the cache, and GYRUS_OFFLINE is set",
            ),
            ("hf:a/b", "hf:a/b is not in the cache, and GYRUS_OFFLINE is set"),
            ("hf:a", "a file on the hub is named hf:OWNER/REPO/FILE"),
            ("nul\0", "no model is called"),
        ] {
            let error = resolved(Some(argument)).unwrap_err();
            assert!(error.starts_with(reason) || error.contains(reason), "{argument:?}: {error}");
        }
    }

    #[test]
    fn without_network_the_built_in_model_is_used() {
        assert!(matches!(resolved(None), Ok(ModelSource::BuiltIn { name: "tales-7m", .. })));
        // Nor is there a pip here.
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::of_test(&folder.path().join("cache"), folder.path().join("nothing"));
        assert!(matches!(resolve(None, &environment), Ok(ModelSource::BuiltIn { name: "tales-7m", .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // Whoever asks for a model by its name gets that or none.
        assert!(resolve(Some(DEFAULT.as_ref()), &environment).is_err());
        // A cache that cannot be written is a fault to be mended, not a lack of network.
        std::fs::write(folder.path().join("cache"), "").unwrap();
        assert!(resolve(None, &environment).is_err());
    }

    #[test]
    fn a_cached_model_needs_no_network() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::of_test(folder.path(), "");
        environment.offline = true;
        let path = cache::path_of(&Named::parse("hf:a/b/c.gguf").unwrap(), &environment).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "model").unwrap();
        assert_eq!(resolve(Some("hf:a/b/c.gguf".as_ref()), &environment).unwrap(), ModelSource::File(path));
        // A file of the catalogue has a known size; another one is not it.
        let small = cache::path_of(&Named::parse(SMALL).unwrap(), &environment).unwrap();
        std::fs::write(&small, "cut").unwrap();
        assert!(matches!(resolve(None, &environment), Ok(ModelSource::BuiltIn { .. })));
        std::fs::File::create(&small).unwrap().set_len(catalogue::find(SMALL).unwrap().about.bytes).unwrap();
        assert_eq!(resolve(None, &environment).unwrap(), ModelSource::File(small.clone()));
        std::fs::remove_file(small).unwrap();
        let path = cache::path_of(&Named::parse(DEFAULT).unwrap(), &environment).unwrap();
        std::fs::write(&path, "cut").unwrap();
        assert!(matches!(resolve(None, &environment), Ok(ModelSource::BuiltIn { .. })));
        std::fs::File::create(&path).unwrap().set_len(catalogue::find(DEFAULT).unwrap().about.bytes).unwrap();
        assert_eq!(resolve(None, &environment).unwrap(), ModelSource::File(path));
    }
}
