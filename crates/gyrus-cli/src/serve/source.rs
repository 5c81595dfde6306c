//! The models of a server: those it was told of, those of a folder, and the catalogue.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gyrus::speech::SpeechOptions;
use gyrus::{Embedder, Model, ModelKind, Options, Precision, Reranker, Transcriber};
use gyrus_formats::{Access, Bytes, Checkpoint, Format};
use gyrus_server::{Details, Listed, Pulled, Purpose, Served, Source, SourceError};

use super::details::{self, Known};
use crate::catalogue::{About, CATALOGUE, Named, ON_THE_HUB, Origin};
use crate::cli::ServerArgs;
use crate::environment::Environment;
use crate::fetch::progress::Follower;
use crate::fetch::{self, Existing};
use crate::resolve::{ModelSource, resolve};
use crate::synthetic::Synthetic;
use crate::{cache, catalogue, foreign};

/// How often the progress of a download is told.
const PROGRESS: Duration = Duration::from_millis(200);

/// All models that a server may load.
pub(super) struct Models {
    /// Those of the command line.
    told: Vec<(String, ModelSource)>,
    /// Random weights, before all others.
    synthetic: Option<Synthetic>,
    folder: Option<PathBuf>,
    environment: Environment,
    options: Options,
    details: Known,
}

impl Models {
    /// Finds the models of the arguments, and downloads those of the catalogue that are not there.
    pub(super) fn new(args: &ServerArgs, environment: Environment) -> Result<Models> {
        let mut told: Vec<(String, ModelSource)> = Vec::new();
        for argument in &args.model {
            let (name, model) = match argument.split_once('=') {
                Some((name, model)) if !name.is_empty() && !Path::new(argument).exists() => {
                    (Some(name), model)
                }
                _ => (None, argument.as_str()),
            };
            let found = resolve(Some(OsStr::new(model)), &environment)?;
            let name = name.map_or_else(|| name_of(model, &found), |name| Ok(name.to_owned()))?;
            if told.iter().any(|(other, _)| *other == name) {
                bail!("two models are called {name:?}: give one of them another name, as NAME=FILE");
            }
            told.push((name, found));
        }
        if let Some(folder) = &args.models {
            fs::read_dir(folder).with_context(|| format!("--models {}", folder.display()))?;
        }
        let mut options = args.model_options.options(Precision::Fast);
        options.sessions = args.parallel.into();
        options.parallel = Some(args.parallel.into());
        // The server refuses what is too much before it comes here.
        options.queue = usize::MAX;
        let synthetic = args.synthetic.clone().zip(args.vocabulary.as_deref());
        let synthetic =
            synthetic.map(|(model, path)| model.with_vocabulary(path)).transpose().context("--vocabulary")?;
        Ok(Models {
            told,
            synthetic,
            folder: args.models.clone(),
            environment,
            options,
            details: Known::default(),
        })
    }

    /// Opens every model that is there, to see whether it is sound.
    pub(super) fn check(&self) -> Result<()> {
        for one in self.list().iter().filter(|one| one.is_present) {
            let opened = self.open(&one.name).and_then(|checkpoint| {
                let is_speech = Transcriber::recognises(&checkpoint);
                if !is_speech && ModelKind::of(&checkpoint)? == ModelKind::Language {
                    gyrus::Config::read(&checkpoint, self.options.precision)?;
                }
                Ok(())
            });
            opened.with_context(|| one.name.clone())?;
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Checkpoint> {
        if let Some(synthetic) = self.synthetic.as_ref().filter(|synthetic| synthetic.name() == name) {
            return synthetic.model();
        }
        match self.find(name)? {
            ModelSource::File(path) => Ok(Checkpoint::open_with(&path, self.access())?),
            ModelSource::BuiltIn { name, bytes } => Ok(Checkpoint::from_gguf(name, Bytes::Static(bytes))?),
        }
    }

    fn access(&self) -> Access {
        self.options.access
    }

    /// Where a model of the list is.
    fn find(&self, name: &str) -> Result<ModelSource> {
        if let Some((_, source)) = self.told.iter().find(|(told, _)| told == name) {
            return Ok(source.clone());
        }
        if let Some((_, path)) = self.in_folder().into_iter().find(|(found, _)| found == name) {
            return Ok(ModelSource::File(path));
        }
        let named = Named::parse(name)?;
        if let Named::Entry(entry) = &named
            && let Origin::BuiltIn(bytes) = entry.origin
        {
            return Ok(ModelSource::BuiltIn { name: entry.about.name, bytes });
        }
        match fetch::is_cached(&named, &self.environment)? {
            true => Ok(ModelSource::File(cache::path_of(&named, &self.environment)?)),
            false => bail!("{name} is not in the cache"),
        }
    }

    /// The models of the folder by their names, in order.
    fn in_folder(&self) -> Vec<(String, PathBuf)> {
        let Some(entries) = self.folder.as_deref().and_then(|folder| fs::read_dir(folder).ok()) else {
            return Vec::new();
        };
        let mut found: Vec<(String, PathBuf)> = entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                Some((folder_name(&path)?, path))
            })
            .collect();
        found.sort();
        found
    }

    fn describe(&self, about: &About) -> Option<Listed> {
        let named = Named::parse(about.name).ok()?;
        let is_built_in = matches!(&named, Named::Entry(entry) if matches!(entry.origin, Origin::BuiltIn(_)));
        let is_present = is_built_in || fetch::is_cached(&named, &self.environment).unwrap_or(false);
        Some(Listed {
            name: about.name.to_owned(),
            bytes: about.bytes,
            memory: about.bytes,
            is_present,
            modified: None,
            description: about.words.to_owned(),
        })
    }
}

impl Source for Models {
    fn list(&self) -> Vec<Listed> {
        let of_file = |name: &str, path: &Path| {
            let metadata = fs::metadata(path).ok();
            let bytes = match metadata.as_ref().is_some_and(fs::Metadata::is_dir) {
                true => folder_bytes(path),
                false => metadata.as_ref().map_or(0, fs::Metadata::len),
            };
            Listed {
                name: name.to_owned(),
                bytes,
                memory: bytes,
                is_present: true,
                modified: metadata.and_then(|metadata| metadata.modified().ok()),
                description: String::new(),
            }
        };
        let mut all: Vec<Listed> = Vec::new();
        let mut add = |one: Listed| {
            if !all.iter().any(|other| other.name == one.name) {
                all.push(one);
            }
        };
        if let Some(synthetic) = &self.synthetic {
            let bytes = synthetic.bytes();
            let description = "random weights".to_owned();
            let name = synthetic.name().to_owned();
            add(Listed { name, bytes, memory: bytes, is_present: true, modified: None, description });
        }
        for (name, source) in &self.told {
            match source {
                ModelSource::File(path) => add(of_file(name, path)),
                ModelSource::BuiltIn { bytes, .. } => {
                    let bytes = bytes.len() as u64;
                    let name = name.clone();
                    add(Listed { name, bytes, memory: bytes, is_present: true, ..Listed::default() });
                }
            }
        }
        for (name, path) in self.in_folder() {
            add(of_file(&name, &path));
        }
        let about =
            CATALOGUE.iter().map(|entry| &entry.about).chain(ON_THE_HUB.iter().map(|entry| &entry.about));
        about.filter_map(|about| self.describe(about)).for_each(add);
        all
    }

    fn load(&self, name: &str, memory: Option<u64>) -> Result<Served, SourceError> {
        let load = || -> Result<Served> {
            let checkpoint = self.open(name)?;
            let options = &Options { memory, ..self.options.clone() };
            if Transcriber::recognises(&checkpoint) {
                let options = SpeechOptions {
                    device: options.device.clone(),
                    precision: options.precision,
                    threads: options.threads,
                    quantize: options.quantize,
                    gpu_memory: options.gpu_memory,
                    pipelines: options.pipelines.clone(),
                    ..SpeechOptions::default()
                };
                return Ok(Served::Transcriber(Transcriber::load(checkpoint, &options, |_, _| {})?));
            }
            Ok(match ModelKind::of(&checkpoint)? {
                ModelKind::Language => Model::load(checkpoint, options)?.into(),
                ModelKind::Embedder => {
                    Served::Embedder(Arc::new(Embedder::load(checkpoint, options, None, &|_, _| {})?))
                }
                ModelKind::Reranker => {
                    Served::Reranker(Arc::new(Reranker::load(checkpoint, options, &|_, _| {})?))
                }
            })
        };
        load().map_err(|error| SourceError::new(format!("{error:#}")))
    }

    fn template(&self, name: &str) -> Option<String> {
        // Random weights would be made for it.
        if self.synthetic.as_ref().is_some_and(|synthetic| synthetic.name() == name) {
            return None;
        }
        gyrus::tokenizer::template_source(&self.open(name).ok()?).ok().flatten()
    }

    fn details(&self, name: &str) -> Details {
        if let Some(synthetic) = self.synthetic.as_ref().filter(|synthetic| synthetic.name() == name) {
            return Details {
                format: "gguf".to_owned(),
                family: synthetic.architecture().to_owned(),
                parameters: synthetic.parameters(),
                quantization: synthetic.dtype().name().to_owned(),
                digest: None,
                purpose: Some(Purpose::Text),
            };
        }
        let Ok(source) = self.find(name) else {
            // One of the catalogue that was not downloaded: its file is known all the same.
            let digest = catalogue::find(name).map(|entry| entry.sha256.to_string());
            return Details { digest, ..Details::default() };
        };
        let found = match &source {
            ModelSource::File(path) => self.details.of_file(path, || self.open(name).ok()),
            ModelSource::BuiltIn { .. } => {
                self.open(name).map(|model| details::of_model(&model)).unwrap_or_default()
            }
        };
        Details { digest: details::digest_of(&source, &self.environment), ..found }
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulled) -> bool) -> Result<(), SourceError> {
        let wrong = |error: anyhow::Error| SourceError::new(format!("{error:#}"));
        let named = Named::parse(name).map_err(wrong)?;
        let total = self.list().into_iter().find(|one| one.name == name).map(|one| one.bytes);
        let (follower, mut environment) = (Follower::default(), self.environment.clone());
        environment.follower = follower.clone();
        let (done, wait) = channel();
        let spawned = std::thread::Builder::new().name("pull".to_owned()).spawn(move || {
            let pulled = fetch::pull(&named, Existing::Use, &environment);
            let _ = done.send(pulled.map(drop).map_err(|error| format!("{error:#}")));
        });
        spawned.map_err(|error| SourceError::new(error.to_string()))?;
        let mut goes_on = true;
        loop {
            match wait.recv_timeout(PROGRESS) {
                Ok(result) => return result.map_err(SourceError::new),
                Err(RecvTimeoutError::Disconnected) => return Err(SourceError::new("the download failed")),
                // Once nobody waits for it, nothing is told any more: whoever comes now has it begun again.
                Err(RecvTimeoutError::Timeout) if goes_on => {
                    goes_on = progress(Pulled { done: follower.bytes(), total });
                    if !goes_on {
                        follower.stop();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The name of a model that was given as a path or a name.
fn name_of(argument: &str, source: &ModelSource) -> Result<String> {
    match source {
        ModelSource::BuiltIn { name, .. } => Ok((*name).to_owned()),
        // A name of the catalogue is kept, whatever its file is called.
        ModelSource::File(_) if !Path::new(argument).exists() => Ok(argument.to_owned()),
        ModelSource::File(path) => {
            let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
            let name = name.and_then(OsStr::to_str).map(str::to_owned);
            name.with_context(|| format!("{}: give it a name, as NAME=FILE", foreign::one_line(argument, 80)))
        }
    }
}

/// The name of a model in a folder; `None` of what is no model. Of a split model the first part is named.
fn folder_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    if name.starts_with('.') {
        return None;
    }
    if path.is_dir() {
        return path.join("config.json").is_file().then(|| name.to_owned());
    }
    if let Some(stem) = name.strip_suffix(".bin") {
        // Many other things have this ending.
        return is_ggml(path).then(|| stem.to_owned());
    }
    let stem = name.strip_suffix(".gguf")?;
    let part = stem.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
    match part {
        Some((model, number)) if number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            (number == "00001").then(|| model.to_owned())
        }
        _ => Some(stem.to_owned()),
    }
}

fn is_ggml(path: &Path) -> bool {
    let mut first = [0; 9];
    // A pipe would wait for a writer.
    let read =
        path.is_file() && fs::File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok();
    read && Format::of(&first) == Some(Format::WhisperGgml)
}

fn folder_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::tempfile;

    #[test]
    fn a_folder_has_models_and_other_things() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::write(folder.path().join(name), "x").unwrap();
        for name in ["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "notes.txt", ".hidden.gguf"]
        {
            file(name);
        }
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write("ggml-tiny.bin", b"lmgg\0\0\0\0\0\0");
        write("weights.bin", b"PK\x03\x04 and so on");
        write("short.bin", b"lm");
        for name in ["mlx", "empty", "folder.bin"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        file("mlx/config.json");
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .filter_map(|entry| folder_name(&entry.unwrap().path()))
            .collect();
        names.sort();
        assert_eq!(names, ["a", "b", "ggml-tiny", "mlx"]);
    }
}
