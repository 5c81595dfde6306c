use std::collections::BTreeMap;
use std::path::Path;

use gyrus_tensor::{DType, Shape, TensorError};

use super::error::{SafeTensorsError, SafeTensorsProblem};
use super::header::{Described, Header};
use crate::{Access, Bytes, FormatError, TensorView};

/// The longest header the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// One SafeTensors file that has passed every check.
#[derive(Debug)]
pub struct SafeTensors {
    bytes: Bytes,
    metadata: BTreeMap<String, String>,
    /// Sorted by name.
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: Box<str>,
    dtype: DType,
    shape: Shape,
    /// File range of the data.
    data_at: usize,
    bytes: usize,
}

impl SafeTensors {
    /// Maps and checks a file.
    pub fn open(path: &Path) -> Result<SafeTensors, FormatError> {
        SafeTensors::open_with(path, Access::Map)
    }

    /// Maps a file, or reads it into memory, and checks it.
    pub fn open_with(path: &Path, access: Access) -> Result<SafeTensors, FormatError> {
        let bytes = Bytes::open(path, access).map_err(|e| FormatError::new(path, e))?;
        SafeTensors::parse(bytes).map_err(|e| FormatError::new(path, e))
    }

    /// Checks bytes that are already at hand.
    pub fn parse(bytes: Bytes) -> Result<SafeTensors, SafeTensorsError> {
        let fail = |at, problem| SafeTensorsError { tensor: None, at, problem };
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Err(fail(0, SafeTensorsProblem::NoLength { left: bytes.len() as u64 }));
        };
        let (length, left) = (u64::from_le_bytes(*length), rest.len() as u64);
        if length > left || length > MAX_HEADER {
            return Err(fail(0, SafeTensorsProblem::Length { length, left, max: MAX_HEADER }));
        }
        let (text, data) = rest.split_at(length as usize);
        let text = str::from_utf8(text).map_err(|e| {
            fail(8 + e.valid_up_to() as u64, SafeTensorsProblem::Utf8 { valid: e.valid_up_to() })
        })?;
        let mut tensor_name = None;
        let header = Header::parse(text, &mut tensor_name).map_err(|e| {
            let (at, message) = locate(text, &e);
            let problem = SafeTensorsProblem::Json { message };
            SafeTensorsError { tensor: tensor_name, at: 8 + at as u64, problem }
        })?;

        let base = bytes.len() - data.len();
        let mut tensors = Vec::with_capacity(header.entries.len());
        for (name, entry) in header.entries {
            match tensor(&entry, base, data.len()) {
                Ok((dtype, shape, data_at, bytes)) => {
                    tensors.push(Tensor { name: name.into_boxed_str(), dtype, shape, data_at, bytes });
                }
                Err(problem) => {
                    return Err(SafeTensorsError { at: position(text, &name), tensor: Some(name), problem });
                }
            }
        }
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let name = pair[0].name.to_string();
            let problem = SafeTensorsProblem::Duplicate;
            return Err(SafeTensorsError { at: position(text, &name), tensor: Some(name), problem });
        }
        check_cover(&tensors, base, data.len(), text)?;
        Ok(SafeTensors { metadata: header.metadata, tensors, bytes })
    }

    /// The header's `__metadata__`, empty if it has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|t| self.view(t))
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let found = self.tensors.binary_search_by(|t| t.name.as_ref().cmp(name)).ok()?;
        Some(self.view(&self.tensors[found]))
    }

    pub(crate) fn raw(&self) -> &Bytes {
        &self.bytes
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> TensorView<'a> {
        TensorView {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            data: &self.bytes[tensor.data_at..tensor.data_at + tensor.bytes],
            at: tensor.data_at as u64,
            shard: 0,
        }
    }
}

/// Checks one entry; returns type, shape, file offset and length of the data.
fn tensor(
    entry: &Described,
    base: usize,
    available: usize,
) -> Result<(DType, Shape, usize, usize), SafeTensorsProblem> {
    let dtype = match &entry.dtype {
        Ok(dtype) => *dtype,
        Err(name) => return Err(SafeTensorsProblem::DType { dtype: name.clone() }),
    };
    let max = entry.dims.len();
    if entry.rank > max {
        return Err(TensorError::Rank { rank: entry.rank, max }.into());
    }
    // A dimension beyond `usize` saturates, and the overflow check of `Shape` rejects it.
    let dims = entry.dims.map(|d| usize::try_from(d).unwrap_or(usize::MAX));
    let shape = Shape::new(&dims[..entry.rank])?;
    let expected = dtype.bytes_of(&shape)?;
    let (start, end) = (entry.start, entry.end);
    if start > end || end > available as u64 {
        return Err(SafeTensorsProblem::Range { start, end, available: available as u64 });
    }
    if end - start != expected as u64 {
        return Err(SafeTensorsProblem::Bytes { start, end, expected: expected as u64 });
    }
    Ok((dtype, shape, base + start as usize, expected))
}

/// The format requires that tensors cover the data exactly, without overlaps and gaps.
fn check_cover(
    tensors: &[Tensor],
    base: usize,
    available: usize,
    text: &str,
) -> Result<(), SafeTensorsError> {
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    // Empty tensors first, so an empty tensor at the start of another is not an overlap.
    order.sort_unstable_by_key(|t| (t.data_at, t.bytes));
    let mut end = base;
    let mut before: Option<&Tensor> = None;
    for tensor in order {
        if tensor.data_at < end {
            let other = before.map(|t| t.name.to_string()).unwrap_or_default();
            return Err(SafeTensorsError {
                at: position(text, &tensor.name),
                tensor: Some(tensor.name.to_string()),
                problem: SafeTensorsProblem::Overlap { other },
            });
        }
        hole(end, tensor.data_at, base)?;
        end = tensor.data_at + tensor.bytes;
        before = Some(tensor);
    }
    hole(end, base + available, base)
}

fn hole(from: usize, to: usize, base: usize) -> Result<(), SafeTensorsError> {
    if from == to {
        return Ok(());
    }
    let problem = SafeTensorsProblem::Hole { bytes: (to - from) as u64, before: (to - base) as u64 };
    Err(SafeTensorsError { tensor: None, at: from as u64, problem })
}

/// File offset of a tensor's name in the header, for error messages; the start of the header if the name is escaped
/// in the JSON.
fn position(text: &str, name: &str) -> u64 {
    8 + text.find(&format!("\"{name}\"")).unwrap_or(0) as u64
}

/// Offset of a JSON error in the header, and its message without line and column.
fn locate(text: &str, error: &serde_json::Error) -> (usize, String) {
    let line_start: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let message = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&suffix).unwrap_or(&message).to_owned();
    ((line_start + error.column().saturating_sub(1)).min(text.len()), message)
}
