use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::ggml::Ggml;
use crate::gguf::{Gguf, Metadata};
use crate::quote::Quote;
use crate::safetensors::{Index, SafeTensors};
use crate::{Access, Bytes, FormatError, Problem, TensorView};

mod split;

/// The most bytes of a configuration or index file. Real ones are far smaller.
const MAX_JSON: u64 = 64 << 20;

/// The tensors and metadata of a model, from one file or several.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Files,
    config: Option<serde_json::Value>,
    generation_config: Option<serde_json::Value>,
}

#[derive(Debug)]
enum Files {
    /// All parts of a GGUF model; the first carries the metadata.
    Gguf(Vec<(PathBuf, Gguf)>),
    /// All shards of a SafeTensors model.
    SafeTensors(Vec<(PathBuf, SafeTensors)>),
    /// A Whisper model of whisper.cpp.
    Ggml(PathBuf, Box<Ggml>),
}

/// The container a checkpoint came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// GGUF.
    Gguf,
    /// SafeTensors.
    SafeTensors,
    /// The GGML files of whisper.cpp.
    WhisperGgml,
}

impl Checkpoint {
    /// Opens a GGUF, SafeTensors or Whisper GGML file, all parts of a split model given any one of them, or the model
    /// in a folder. The format is detected from the content, not from the file name.
    ///
    /// Files are mapped. They must not be shortened while the checkpoint, or a model loaded from it, is in use: access to
    /// a missing part of a mapped file ends the process with SIGBUS. [`Checkpoint::open_with`] can read them instead.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        Checkpoint::open_with(path, Access::Map)
    }

    /// As [`Checkpoint::open`], with the files mapped or read into memory.
    pub fn open_with(path: &Path, access: Access) -> Result<Checkpoint, FormatError> {
        let kind = std::fs::metadata(path).map_err(|e| FormatError::new(path, e))?;
        let file = if kind.is_dir() { find_in(path)? } else { path.to_owned() };
        if file.to_str().is_some_and(|name| name.ends_with(".safetensors.index.json")) {
            return open_index(path, &file, access);
        }
        let bytes = Bytes::open(&file, access).map_err(|e| FormatError::new(&file, e))?;
        match sniff(&bytes) {
            Ok(Format::Gguf) => {
                let first = Gguf::parse(bytes).map_err(|e| FormatError::new(&file, e))?;
                let parts = split::open_all(&file, first, access)?;
                Ok(Checkpoint::of_gguf(path.to_owned(), parts))
            }
            Ok(Format::SafeTensors) => {
                // One shard of several is opened with the rest if its index lies beside it.
                let index = file.with_file_name("model.safetensors.index.json");
                if split::is_numbered(&file) && index.is_file() {
                    return open_index(path, &index, access);
                }
                let single = SafeTensors::parse(bytes).map_err(|e| FormatError::new(&file, e))?;
                Checkpoint::of_safetensors(path, vec![(file, single)])
            }
            Ok(Format::WhisperGgml) => {
                let ggml = Ggml::parse(bytes).map_err(|e| FormatError::new(&file, e))?;
                Ok(Checkpoint::of_ggml(path.to_owned(), file, ggml))
            }
            Err(problem) => Err(FormatError::new(&file, problem)),
        }
    }

    /// A Whisper GGML file that is already in memory.
    pub fn from_ggml(name: &str, bytes: Bytes) -> Result<Checkpoint, FormatError> {
        let path = PathBuf::from(name);
        let file = Ggml::parse(bytes).map_err(|e| FormatError::new(&path, e))?;
        Ok(Checkpoint::of_ggml(path.clone(), path, file))
    }

    fn of_ggml(path: PathBuf, file: PathBuf, ggml: Ggml) -> Checkpoint {
        Checkpoint { path, files: Files::Ggml(file, Box::new(ggml)), config: None, generation_config: None }
    }

    /// A GGUF file that is already in memory, for example one inside the program.
    pub fn from_gguf(name: &str, bytes: Bytes) -> Result<Checkpoint, FormatError> {
        let path = PathBuf::from(name);
        let file = Gguf::parse(bytes).map_err(|e| FormatError::new(&path, e))?;
        Ok(Checkpoint::of_gguf(path.clone(), vec![(path, file)]))
    }

    /// A SafeTensors file and the `config.json` that belongs to it, both in memory.
    pub fn from_safetensors(name: &str, bytes: Bytes, config: &[u8]) -> Result<Checkpoint, FormatError> {
        let path = PathBuf::from(name);
        let file = SafeTensors::parse(bytes).map_err(|e| FormatError::new(&path, e))?;
        let config = Some(parse_json(&path.with_file_name("config.json"), config)?);
        let files = Files::SafeTensors(vec![(path.clone(), file)]);
        Ok(Checkpoint { path, files, config, generation_config: None })
    }

    fn of_gguf(path: PathBuf, parts: Vec<(PathBuf, Gguf)>) -> Checkpoint {
        Checkpoint { path, files: Files::Gguf(parts), config: None, generation_config: None }
    }

    /// With the descriptions that lie beside the shards.
    fn of_safetensors(path: &Path, shards: Vec<(PathBuf, SafeTensors)>) -> Result<Checkpoint, FormatError> {
        let beside = |name: &str| shards.first().map_or(Ok(None), |(file, _)| read_beside(file, name));
        let (config, generation_config) = (beside("config.json")?, beside("generation_config.json")?);
        Ok(Checkpoint { path: path.to_owned(), files: Files::SafeTensors(shards), config, generation_config })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The container.
    pub fn format(&self) -> Format {
        match self.files {
            Files::Gguf(_) => Format::Gguf,
            Files::SafeTensors(_) => Format::SafeTensors,
            Files::Ggml(..) => Format::WhisperGgml,
        }
    }

    /// The files, in the order [`TensorView::shard`] counts them, with their lengths.
    pub fn files(&self) -> Vec<(&Path, u64)> {
        match &self.files {
            Files::Gguf(parts) => {
                parts.iter().map(|(path, file)| (path.as_path(), file.file_bytes())).collect()
            }
            Files::SafeTensors(shards) => {
                shards.iter().map(|(path, file)| (path.as_path(), file.file_bytes())).collect()
            }
            Files::Ggml(path, file) => vec![(path.as_path(), file.file_bytes())],
        }
    }

    /// The metadata of a GGUF model.
    pub fn gguf(&self) -> Option<Metadata<'_>> {
        match &self.files {
            Files::Gguf(parts) => parts.first().map(|(_, file)| file.metadata()),
            Files::SafeTensors(_) | Files::Ggml(..) => None,
        }
    }

    /// The Whisper file of whisper.cpp, if it is one.
    pub fn ggml(&self) -> Option<&Ggml> {
        match &self.files {
            Files::Ggml(_, file) => Some(file),
            Files::Gguf(_) | Files::SafeTensors(_) => None,
        }
    }

    /// The `config.json` beside a SafeTensors model, if it has one.
    pub fn config(&self) -> Option<&serde_json::Value> {
        self.config.as_ref()
    }

    /// A small file beside the first file of a SafeTensors model, such as its tokenizer; `None` if there is none, and for
    /// GGUF models. A name that leads out of the model's folder is an error.
    pub fn beside(&self, name: &str) -> Result<Option<Bytes>, FormatError> {
        let Files::SafeTensors(shards) = &self.files else { return Ok(None) };
        let Some((file, _)) = shards.first() else { return Ok(None) };
        let is_inside =
            |name: &Path| name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !is_inside(Path::new(name)) {
            let problem = format!("'{}' is not a file of the model's folder", name.escape_debug());
            return Err(FormatError::new(file, Problem::Json(problem)));
        }
        let path = Some(file.with_file_name(name)).filter(|path| path.is_file());
        path.map(|path| read_json(&path)).transpose()
    }

    /// The `generation_config.json` beside a SafeTensors model, if it has one.
    pub fn generation_config(&self) -> Option<&serde_json::Value> {
        self.generation_config.as_ref()
    }

    /// A range of one of the files, as [`TensorView::shard`] and [`TensorView::at`] name it; empty if it
    /// does not lie in the file.
    pub fn bytes(&self, shard: usize, at: u64, bytes: usize) -> &[u8] {
        let range = || {
            let start = usize::try_from(at).ok()?;
            self.raw(shard)?.get(start..start.checked_add(bytes)?)
        };
        range().unwrap_or_default()
    }

    /// Releases the resident pages of a range of a mapped file. A later access reads them from the file again.
    pub fn release(&self, shard: usize, at: u64, bytes: usize) {
        if let Some(file) = self.raw(shard) {
            let start = at as usize;
            file.release(start..start.saturating_add(bytes).min(file.len()));
        }
    }

    fn raw(&self, shard: usize) -> Option<&Bytes> {
        match &self.files {
            Files::Gguf(parts) => parts.get(shard).map(|(_, file)| file.raw()),
            Files::SafeTensors(shards) => shards.get(shard).map(|(_, file)| file.raw()),
            Files::Ggml(_, file) => (shard == 0).then(|| file.raw()),
        }
    }

    /// All tensors, shard by shard.
    pub fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        fn with_shard(shard: usize) -> impl Fn(TensorView<'_>) -> TensorView<'_> {
            move |tensor| TensorView { shard, ..tensor }
        }
        match &self.files {
            Files::Gguf(parts) => Box::new(
                parts.iter().enumerate().flat_map(|(n, (_, file))| file.tensors().map(with_shard(n))),
            ),
            Files::SafeTensors(shards) => Box::new(
                shards.iter().enumerate().flat_map(|(n, (_, file))| file.tensors().map(with_shard(n))),
            ),
            Files::Ggml(_, file) => Box::new(file.tensors()),
        }
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        fn first<'a>(found: impl Iterator<Item = Option<TensorView<'a>>>) -> Option<TensorView<'a>> {
            found.enumerate().find_map(|(shard, tensor)| Some(TensorView { shard, ..tensor? }))
        }
        match &self.files {
            Files::Gguf(parts) => first(parts.iter().map(|(_, file)| file.tensor(name))),
            Files::SafeTensors(shards) => first(shards.iter().map(|(_, file)| file.tensor(name))),
            Files::Ggml(_, file) => file.tensor(name),
        }
    }
}

impl Format {
    /// The format of a file by its first bytes, of which nine are enough. `None` of what is no model.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        sniff(bytes).ok()
    }
}

/// Tells the formats apart by their first bytes.
fn sniff(bytes: &[u8]) -> Result<Format, Problem> {
    if bytes.is_empty() {
        return Err(Problem::Empty);
    }
    if bytes.starts_with(b"GGUF") || b"GGUF".starts_with(bytes) {
        return Ok(Format::Gguf);
    }
    if bytes.starts_with(b"lmgg") {
        return Ok(Format::WhisperGgml);
    }
    // A SafeTensors header is JSON, so its ninth byte is a brace and the length before it is small.
    if bytes.get(8) == Some(&b'{') && bytes[5..8] == [0, 0, 0] {
        return Ok(Format::SafeTensors);
    }
    const PYTORCH: &str = "such as a PyTorch checkpoint, which may run code when it is read; convert it to SafeTensors with \
                           transformers, or a Whisper model with whisper.cpp's convert-pt-to-ggml.py";
    let begins = match bytes {
        [b'P', b'K', 3, 4, ..] => format!("the magic of a zip archive, {PYTORCH}"),
        // The form before PyTorch 1.6. Protocols have one digit.
        [0x80, 2..=9, ..] => format!("the protocol of a Python pickle, {PYTORCH}"),
        [0x1f, 0x8b, ..] => "the magic of a gzip archive".to_owned(),
        _ => format!("\"{}\"", bytes[..bytes.len().min(16)].escape_ascii()),
    };
    Err(Problem::Unrecognised { begins })
}

/// The file to open in a model's folder: an index, else the only SafeTensors file, else the only GGUF model.
fn find_in(folder: &Path) -> Result<PathBuf, FormatError> {
    let fail = |problem| FormatError::new(folder, problem);
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        return Ok(index);
    }
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(single);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| fail(e.into()))? {
        let path = entry.map_err(|e| fail(e.into()))?.path();
        let extension = path.extension().and_then(OsStr::to_str);
        if matches!(extension, Some("safetensors" | "gguf")) && path.is_file() && !split::is_later_part(&path)
        {
            found.push(path);
        }
    }
    found.sort();
    match found.len() {
        0 => Err(fail(Problem::NoModel)),
        1 => Ok(found.remove(0)),
        _ => {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(fail(Problem::Ambiguous { names: found.iter().take(5).map(name).collect() }))
        }
    }
}

fn open_index(path: &Path, index_path: &Path, access: Access) -> Result<Checkpoint, FormatError> {
    let fail = |problem| FormatError::new(index_path, problem);
    let index = Index::parse(&read_json(index_path)?).map_err(fail)?;
    if index.entries().len() == 0 {
        return Err(fail(Problem::Json("weight_map is empty".to_owned())));
    }
    let mut shards = Vec::new();
    for name in index.files() {
        let shard_path = index_path.with_file_name(name);
        let shard = SafeTensors::open_with(&shard_path, access)?;
        // The index must list what the shard holds, so that no tensor hides or is found twice.
        for tensor in shard.tensors() {
            match index.file_of(tensor.name) {
                Some(listed) if listed == name => {}
                listed => {
                    let listed = listed.map_or("nowhere".to_owned(), |file| format!("in {}", Quote(file)));
                    return Err(FormatError::new(
                        &shard_path,
                        Problem::Split(format!(
                            "it holds tensor {}, which the index places {listed}",
                            Quote(tensor.name)
                        )),
                    ));
                }
            }
        }
        shards.push((shard_path, shard));
    }
    let files = index.files();
    for (tensor, file) in index.entries() {
        let shard = files.binary_search(&file).ok().and_then(|n| shards.get(n));
        if shard.is_none_or(|(_, shard)| shard.tensor(tensor).is_none()) {
            let (tensor, file) = (Quote(tensor), Quote(file));
            return Err(fail(Problem::Split(format!(
                "weight_map places tensor {tensor} in {file}, which lacks it"
            ))));
        }
    }
    Checkpoint::of_safetensors(path, shards)
}

/// The JSON file of that name beside another file, if there is one.
fn read_beside(file: &Path, name: &str) -> Result<Option<serde_json::Value>, FormatError> {
    let path = file.with_file_name(name);
    if !path.is_file() {
        return Ok(None);
    }
    parse_json(&path, &read_json(&path)?).map(Some)
}

fn parse_json(path: &Path, bytes: &[u8]) -> Result<serde_json::Value, FormatError> {
    serde_json::from_slice(bytes).map_err(|e| FormatError::new(path, Problem::Json(e.to_string())))
}

fn read_json(path: &Path) -> Result<Bytes, FormatError> {
    let bytes = Bytes::open(path, Access::Map).map_err(|e| FormatError::new(path, e))?;
    if bytes.len() as u64 > MAX_JSON {
        let problem = format!("{} bytes, at most {MAX_JSON} are allowed", bytes.len());
        return Err(FormatError::new(path, Problem::Json(problem)));
    }
    Ok(bytes)
}
