use std::collections::BTreeMap;

use serde::Deserialize;

use super::header::StringMap;
use crate::Problem;
use crate::quote::Quote;

/// The index of a sharded model (`model.safetensors.index.json`): which shard contains each tensor.
#[derive(Debug)]
pub struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Document {
    weight_map: StringMap,
}

impl Index {
    /// Parses an index. File names must be plain names in the folder of the index.
    pub fn parse(bytes: &[u8]) -> Result<Index, Problem> {
        let document: Document = serde_json::from_slice(bytes).map_err(|e| Problem::Json(e.to_string()))?;
        let weight_map = document.weight_map.0;
        for (tensor, file) in &weight_map {
            if !is_plain_name(file) {
                let (tensor, file) = (Quote(tensor), Quote(file));
                return Err(Problem::Json(format!(
                    "weight_map places tensor {tensor} in {file}, which is not a plain file name in the folder of the index"
                )));
            }
        }
        Ok(Index { weight_map })
    }

    /// Tensor names and their files, sorted by tensor.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str()))
    }

    /// The file of a tensor.
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        self.weight_map.get(tensor).map(String::as_str)
    }

    /// The distinct files, sorted.
    pub fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// Whether a file name has no path separators or other parts that could leave its folder on any system.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}
