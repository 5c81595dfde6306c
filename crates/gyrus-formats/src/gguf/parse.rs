use std::path::Path;

use gyrus_tensor::{DType, Shape};

use super::cursor::Cursor;
use super::dtype::{dtype_of, withdrawn};
use super::error::{GgufError, GgufProblem, Subject};
use super::metadata::Metadata;
use super::value::{Number, ValueType};
use crate::{Access, Bytes, FormatError, TensorView};

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
const MAX_TENSOR_NAME_BYTES: u64 = 256;

/// The fewest bytes a key with its value can take: name length, one character, type, one byte.
const MIN_KEY_BYTES: usize = 8 + 1 + 4 + 1;
/// The fewest bytes a tensor's description can take: name, dimension count, one dimension, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// One GGUF file that has passed every check.
///
/// Offsets, lengths and names were copied out of the file while it was checked. Only strings, arrays and tensor
/// data are read from the mapping later, so a file that changes meanwhile cannot cause invalid bounds.
#[derive(Debug)]
pub struct Gguf {
    bytes: Bytes,
    version: u32,
    alignment: u64,
    /// Where tensor data begins.
    data_at: usize,
    /// All names, concatenated; a [`Name`] is a range of it.
    names: String,
    /// In file order.
    keys: Vec<Key>,
    tensors: Vec<Tensor>,
    /// Indices into `keys` and `tensors`, sorted by name.
    keys_by_name: Vec<u32>,
    tensors_by_name: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    start: usize,
    bytes: u32,
}

#[derive(Debug)]
struct Key {
    name: Name,
    /// File offset of the key.
    at: usize,
    value: Stored,
}

/// A value: a number, or a range of the file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stored {
    Number(ValueType, Number),
    Str { at: usize, bytes: usize },
    Array { kind: ValueType, count: usize, at: usize, bytes: usize },
}

#[derive(Debug)]
struct Tensor {
    name: Name,
    /// File offset of the description.
    at: usize,
    dtype: DType,
    rank: u8,
    /// Outermost first.
    dims: [usize; 4],
    /// File range of the data.
    data_at: usize,
    bytes: usize,
}

impl Tensor {
    fn shape(&self) -> Shape {
        Shape::new(&self.dims[..usize::from(self.rank)]).expect("checked when the file was opened")
    }
}

impl Gguf {
    /// Maps and checks a file.
    pub fn open(path: &Path) -> Result<Gguf, FormatError> {
        Gguf::open_with(path, Access::Map)
    }

    /// Maps a file, or reads it into memory, and checks it.
    pub fn open_with(path: &Path, access: Access) -> Result<Gguf, FormatError> {
        let bytes = Bytes::open(path, access).map_err(|e| FormatError::new(path, e))?;
        Gguf::parse(bytes).map_err(|e| FormatError::new(path, e))
    }

    /// Checks bytes that are already at hand.
    pub fn parse(bytes: Bytes) -> Result<Gguf, GgufError> {
        let mut cursor = Cursor::new(&bytes);
        let version = version(&mut cursor)?;
        let tensor_count = cursor.u64("the tensor count")?;
        let key_count = cursor.count("keys", MIN_KEY_BYTES)?;
        let tensor_count = cursor.check_count(tensor_count, "tensors", MIN_TENSOR_BYTES, 8)?;

        let mut names = String::new();
        let mut keys = Vec::with_capacity(key_count);
        for n in 0..key_count {
            keys.push(key(&mut cursor, n, &mut names)?);
        }
        let keys_by_name = index(&names, &keys, |k| (k.name, k.at), Subject::Key)?;
        let alignment = alignment(&mut cursor, &names, &keys, &keys_by_name)?;

        let mut tensors = Vec::with_capacity(tensor_count);
        for n in 0..tensor_count {
            tensors.push(tensor(&mut cursor, n, alignment, &mut names)?);
        }
        let tensors_by_name = index(&names, &tensors, |t| (t.name, t.at), Subject::Tensor)?;
        let data_at = place(&cursor, bytes.len(), alignment, &names, &mut tensors)?;

        names.shrink_to_fit();
        Ok(Gguf { bytes, version, alignment, data_at, names, keys, tensors, keys_by_name, tensors_by_name })
    }

    /// The format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// File offset where tensor data begins.
    pub fn data_at(&self) -> u64 {
        self.data_at as u64
    }

    /// The keys and their values.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|t| self.view(t))
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let found = self
            .tensors_by_name
            .binary_search_by(|&i| self.name(self.tensors[i as usize].name).cmp(name))
            .ok()?;
        Some(self.view(&self.tensors[self.tensors_by_name[found] as usize]))
    }

    pub(crate) fn raw(&self) -> &Bytes {
        &self.bytes
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> TensorView<'a> {
        TensorView {
            name: self.name(tensor.name),
            dtype: tensor.dtype,
            shape: tensor.shape(),
            data: &self.bytes[tensor.data_at..tensor.data_at + tensor.bytes],
            at: tensor.data_at as u64,
            shard: 0,
        }
    }

    fn name(&self, name: Name) -> &str {
        &self.names[name.start..name.start + name.bytes as usize]
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The n-th key in file order: name, file offset, value.
    pub(super) fn key(&self, n: usize) -> (&str, u64, Stored) {
        let key = &self.keys[n];
        (self.name(key.name), key.at as u64, key.value)
    }

    pub(super) fn find_key(&self, name: &str) -> Option<usize> {
        let found =
            self.keys_by_name.binary_search_by(|&i| self.name(self.keys[i as usize].name).cmp(name)).ok()?;
        Some(self.keys_by_name[found] as usize)
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let found: [u8; 4] = cursor.take(4, "the magic")?.try_into().expect("four bytes were taken");
    if found != MAGIC {
        return cursor.fail_at(0, GgufProblem::Magic { found });
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => cursor.fail_at(4, GgufProblem::BigEndian),
        _ => cursor.fail_at(4, GgufProblem::Version { version }),
    }
}

fn intern(names: &mut String, name: &str) -> Name {
    let start = names.len();
    names.push_str(name);
    Name { start, bytes: name.len() as u32 }
}

fn key(cursor: &mut Cursor<'_>, n: usize, names: &mut String) -> Result<Key, GgufError> {
    cursor.subject = Subject::KeyName(n as u64);
    let at = cursor.at();
    let name = cursor.name(MAX_KEY_BYTES)?;
    cursor.subject = Subject::Key(name.to_owned());
    let kind = cursor.value_type()?;
    let value = match kind {
        ValueType::Str => {
            let start = cursor.at();
            let text = cursor.string("a string")?;
            if let Err(e) = str::from_utf8(text) {
                return cursor.fail_at(start, GgufProblem::Utf8 { valid: e.valid_up_to() });
            }
            Stored::Str { at: cursor.at() - text.len(), bytes: text.len() }
        }
        ValueType::Array => array(cursor)?,
        _ => {
            let bytes = cursor.take(kind.size().unwrap_or(0) as u64, "a value")?;
            bools(cursor, kind, bytes)?;
            match Number::read(kind, bytes) {
                Some(number) => Stored::Number(kind, number),
                None => return cursor.fail(GgufProblem::ValueType { id: kind as u32 }),
            }
        }
    };
    Ok(Key { name: intern(names, name), at, value })
}

/// Skips an array without decoding it, and checks that it ends inside the file.
fn array(cursor: &mut Cursor<'_>) -> Result<Stored, GgufError> {
    let start = cursor.at();
    let kind = cursor.value_type()?;
    if kind == ValueType::Array {
        return cursor.fail_at(start, GgufProblem::NestedArray);
    }
    // A string takes at least its length field.
    let count = cursor.count("array elements", kind.size().unwrap_or(8))?;
    let at = cursor.at();
    match kind.size() {
        Some(size) => {
            let bytes = cursor.take((count * size) as u64, "an array")?;
            bools(cursor, kind, bytes)?;
        }
        None => {
            for _ in 0..count {
                cursor.string("a string in an array")?;
            }
        }
    }
    Ok(Stored::Array { kind, count, at, bytes: cursor.at() - at })
}

fn bools(cursor: &Cursor<'_>, kind: ValueType, bytes: &[u8]) -> Result<(), GgufError> {
    match bytes.iter().position(|&b| b > 1) {
        Some(bad) if kind == ValueType::Bool => {
            cursor.fail_at(cursor.at() - bytes.len() + bad, GgufProblem::Bool { byte: bytes[bad] })
        }
        _ => Ok(()),
    }
}

/// Sorts items by name and rejects duplicates.
fn index<T>(
    names: &str,
    items: &[T],
    name_at: impl Fn(&T) -> (Name, usize),
    subject: impl Fn(String) -> Subject,
) -> Result<Vec<u32>, GgufError> {
    let name = |i: u32| {
        let (name, at) = name_at(&items[i as usize]);
        (&names[name.start..name.start + name.bytes as usize], at)
    };
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_unstable_by_key(|&i| name(i));
    match order.windows(2).find(|pair| name(pair[0]).0 == name(pair[1]).0) {
        Some(pair) => {
            let ((first, first_at), (_, at)) = (name(pair[0]), name(pair[1]));
            Err(GgufError {
                subject: subject(first.to_owned()),
                at: at as u64,
                problem: GgufProblem::Duplicate { first: first_at as u64 },
            })
        }
        None => Ok(order),
    }
}

fn alignment(cursor: &mut Cursor<'_>, names: &str, keys: &[Key], by_name: &[u32]) -> Result<u64, GgufError> {
    let name = |i: &u32| {
        let name = keys[*i as usize].name;
        &names[name.start..name.start + name.bytes as usize]
    };
    let Ok(found) = by_name.binary_search_by_key(&ALIGNMENT_KEY, name) else { return Ok(DEFAULT_ALIGNMENT) };
    let key = &keys[by_name[found] as usize];
    let found = match key.value {
        Stored::Number(_, Number::Unsigned(v)) if v.is_power_of_two() && v <= MAX_ALIGNMENT => return Ok(v),
        Stored::Number(ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64, v) => v.to_string(),
        Stored::Number(kind, v) => format!("{v} ({kind})"),
        Stored::Str { .. } => "is a string".to_owned(),
        Stored::Array { .. } => "is an array".to_owned(),
    };
    cursor.subject = Subject::Key(ALIGNMENT_KEY.to_owned());
    cursor.fail_at(key.at, GgufProblem::Alignment { found, max: MAX_ALIGNMENT })
}

/// Reads a tensor info. `data_at` is relative to the tensor data until [`place`] converts it.
fn tensor(
    cursor: &mut Cursor<'_>,
    n: usize,
    alignment: u64,
    names: &mut String,
) -> Result<Tensor, GgufError> {
    cursor.subject = Subject::TensorName(n as u64);
    let at = cursor.at();
    let name = cursor.name(MAX_TENSOR_NAME_BYTES)?;
    cursor.subject = Subject::Tensor(name.to_owned());

    let rank_at = cursor.at();
    let rank = cursor.u32("the number of dimensions")?;
    if !(1..=4).contains(&rank) {
        return cursor.fail_at(rank_at, GgufProblem::Rank { rank });
    }
    let dims_at = cursor.at();
    let mut dims = [0usize; 4];
    for axis in 0..rank as usize {
        let dim_at = cursor.at();
        let dim = cursor.u64("a dimension")?;
        if dim == 0 {
            return cursor.fail_at(dim_at, GgufProblem::ZeroDim { axis });
        }
        // The file stores the contiguous dimension first; `Shape` stores it last. A dimension beyond `usize`
        // saturates, and the overflow check of `Shape` rejects it.
        dims[rank as usize - 1 - axis] = usize::try_from(dim).unwrap_or(usize::MAX);
    }

    let dtype_at = cursor.at();
    let id = cursor.u32("the tensor type")?;
    let Some(dtype) = dtype_of(id) else {
        let problem = match withdrawn(id) {
            Some(name) => GgufProblem::WithdrawnDType { id, name },
            None => GgufProblem::DType { id },
        };
        return cursor.fail_at(dtype_at, problem);
    };
    let bytes = match Shape::new(&dims[..rank as usize]).and_then(|shape| dtype.bytes_of(&shape)) {
        Ok(bytes) => bytes,
        Err(e) => return cursor.fail_at(dims_at, e),
    };

    let offset_at = cursor.at();
    let offset = cursor.u64("the data offset")?;
    if !offset.is_multiple_of(alignment) {
        return cursor.fail_at(offset_at, GgufProblem::Misaligned { offset, alignment });
    }
    // An offset beyond `usize` saturates; it is beyond the file, which `place` reports.
    let data_at = usize::try_from(offset).unwrap_or(usize::MAX);
    Ok(Tensor { name: intern(names, name), at, dtype, rank: rank as u8, dims, data_at, bytes })
}

/// Converts data offsets to file offsets once the end of the header is known. Checks that every tensor is inside
/// the file and overlaps no other. Returns the file offset of the tensor data.
fn place(
    cursor: &Cursor<'_>,
    file_bytes: usize,
    alignment: u64,
    names: &str,
    tensors: &mut [Tensor],
) -> Result<usize, GgufError> {
    let name = |t: &Tensor| names[t.name.start..t.name.start + t.name.bytes as usize].to_owned();
    // The alignment is at most 64 KiB and the offset at most the length of the file, so nothing overflows. A file
    // without tensors may end before the padding.
    let base = cursor.at().next_multiple_of(alignment as usize);
    let available = file_bytes.saturating_sub(base);
    for tensor in &mut *tensors {
        let end = tensor.data_at.checked_add(tensor.bytes);
        if end.is_none_or(|end| end > available) {
            return Err(GgufError {
                subject: Subject::Tensor(name(tensor)),
                at: tensor.at as u64,
                problem: GgufProblem::OutOfFile {
                    offset: tensor.data_at as u64,
                    bytes: tensor.bytes as u64,
                    available: available as u64,
                },
            });
        }
        tensor.data_at += base;
    }
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&i| tensors[i as usize].data_at);
    for pair in order.windows(2) {
        let (before, after) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if before.data_at + before.bytes > after.data_at {
            return Err(GgufError {
                subject: Subject::Tensor(name(after)),
                at: after.at as u64,
                problem: GgufProblem::Overlap { other: name(before) },
            });
        }
    }
    Ok(base.min(file_bytes))
}
