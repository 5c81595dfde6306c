//! What is in a model's file, for lists of models.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use gyrus::{ModelKind, Transcriber};
use gyrus_formats::{Checkpoint, Format};
use gyrus_server::{Details, Purpose};
use gyrus_tensor::DType;

use crate::cache::{self, Provenance};
use crate::catalogue::{self, CATALOGUE};
use crate::environment::Environment;
use crate::fetch::digest::Digest;
use crate::inspect;
use crate::resolve::ModelSource;

/// The mixes of GGUF's `general.file_type`, by their numbers.
const FILE_TYPES: [(u64, &str); 33] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
];

/// Details of files that were read before. A file is read again if its size or its time has changed.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<PathBuf, (Version, Details)>>);

/// The size of a file and when it was changed.
type Version = (u64, Option<SystemTime>);

impl Known {
    /// What is in the model at a path. `open` opens it.
    pub(super) fn of_file(&self, path: &Path, open: impl FnOnce() -> Option<Checkpoint>) -> Details {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = fs::metadata(path).map(|file| (file.len(), file.modified().ok())).unwrap_or_default();
        if let Some((_, details)) = known().get(path).filter(|(read, _)| *read == version) {
            return details.clone();
        }
        let details = open().map(|model| of_model(&model)).unwrap_or_default();
        known().insert(path.to_owned(), (version, details.clone()));
        details
    }
}

/// What a model does, if its files can be understood.
fn purpose(model: &Checkpoint) -> Option<Purpose> {
    if Transcriber::recognises(model) {
        return Some(Purpose::Transcripts);
    }
    Some(match ModelKind::of(model).ok()? {
        ModelKind::Language => Purpose::Text,
        ModelKind::Embedder => Purpose::Embeddings,
        ModelKind::Reranker => Purpose::Ranks,
    })
}

/// What is in a model, without its digest.
pub(super) fn of_model(model: &Checkpoint) -> Details {
    let mut types: BTreeMap<DType, u64> = BTreeMap::new();
    let mut parameters = 0u64;
    for tensor in model.tensors() {
        parameters += tensor.shape.elems() as u64;
        *types.entry(tensor.dtype).or_default() += tensor.data.len() as u64;
    }
    // Most bytes: a few tensors of other types are in most files.
    let largest = types.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(dtype, _)| dtype);
    let stated = model.gguf().and_then(|metadata| metadata.get::<u64>("general.file_type").ok()?);
    let mix = stated.and_then(|stated| FILE_TYPES.iter().find(|(number, _)| *number == stated));
    Details {
        format: match model.format() {
            Format::Gguf => "gguf",
            Format::SafeTensors => "safetensors",
            Format::WhisperGgml => "ggml",
        }
        .to_owned(),
        family: inspect::architecture(model).unwrap_or_default(),
        parameters,
        quantization: match (mix, largest) {
            (Some((_, name)), _) => (*name).to_owned(),
            (None, Some(dtype)) => dtype.name().to_uppercase(),
            (None, None) => String::new(),
        },
        digest: None,
        purpose: purpose(model),
    }
}

/// The SHA-256 of a model's file, as far as it is known without summing it up: of models of the catalogue, and of files that
/// were pulled from the hub.
pub(super) fn digest_of(source: &ModelSource, environment: &Environment) -> Option<String> {
    match source {
        ModelSource::BuiltIn { name, .. } => catalogue::find(name).map(|entry| entry.sha256.to_string()),
        ModelSource::File(path) => of_cached(path, environment).map(|digest| digest.to_string()),
    }
}

/// What was checked when a file came into the cache. Another file may lie there now, so its size is compared.
fn of_cached(path: &Path, environment: &Environment) -> Option<Digest> {
    let bytes = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    if let Some(noted) = Provenance::of(path) {
        return Digest::parse(&noted.sha256).filter(|_| noted.bytes == bytes);
    }
    let folder = cache::folder(environment).ok()?;
    let entry = CATALOGUE.iter().find(|entry| folder.join(entry.file) == path)?;
    (entry.about.bytes == bytes).then_some(entry.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_come_from_the_file() {
        let entry = catalogue::find(catalogue::BUILT_IN).unwrap();
        let catalogue::Origin::BuiltIn(bytes) = entry.origin else { panic!("it is built in") };
        let open = || Checkpoint::from_gguf("tales", gyrus_formats::Bytes::Static(bytes)).unwrap();
        let details = of_model(&open());
        let expected: u64 = open().tensors().map(|tensor| tensor.shape.elems() as u64).sum();
        assert_eq!(
            (&details.format[..], &details.family[..], &details.quantization[..], details.parameters),
            ("gguf", "qwen3", "Q8_0", expected)
        );
        assert_eq!(details.purpose, Some(Purpose::Text));
        for (path, expected) in [
            ("encoders/bert", Purpose::Embeddings),
            ("encoders/bert-reranker", Purpose::Ranks),
            ("whisper", Purpose::Transcripts),
        ] {
            let path = gyrus_testkit::repository().join("tests/data").join(path);
            assert_eq!(of_model(&Checkpoint::open(&path).unwrap()).purpose, Some(expected), "{path:?}");
        }
        let source = ModelSource::BuiltIn { name: entry.about.name, bytes };
        let digest = digest_of(&source, &Environment::of_test(Path::new("cache"), "")).unwrap();
        assert_eq!(digest, Digest::of(bytes).to_string());
    }

    /// A file is read once, and again after it has changed.
    #[test]
    fn details_are_kept_while_a_file_stays_the_same() {
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, "one").unwrap();
        let (known, mut read) = (Known::default(), 0);
        for text in ["one", "one", "three"] {
            if text != fs::read_to_string(&path).unwrap() {
                fs::write(&path, text).unwrap();
            }
            known.of_file(&path, || {
                read += 1;
                None
            });
        }
        assert_eq!(read, 2);
    }
}
