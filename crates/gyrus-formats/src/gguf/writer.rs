use std::io::{self, Write};

use gyrus_tensor::{DType, Shape, TensorError};

use super::dtype::id_of;
use super::value::ValueType;

/// Writes a GGUF file: metadata and tensor infos first, then tensor data.
///
/// ```
/// use gyrus_formats::{Bytes, gguf::{Gguf, Writer}};
/// use gyrus_tensor::{DType, Shape};
///
/// let mut writer = Writer::new();
/// writer.string("general.architecture", "llama").u32("llama.block_count", 1);
/// writer.tensor("token_embd.weight", DType::F32, Shape::new(&[2, 4])?, &[0; 32])?;
/// let mut file = Vec::new();
/// writer.write_to(&mut file)?;
///
/// let read = Gguf::parse(Bytes::Owned(file))?;
/// assert_eq!(read.metadata().require::<u32>("llama.block_count")?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Duplicate keys are not detected; readers reject such a file.
#[derive(Debug, Default)]
pub struct Writer<'a> {
    alignment: Option<u32>,
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<Described<'a>>,
}

#[derive(Debug)]
struct Described<'a> {
    name: &'a str,
    id: u32,
    shape: Shape,
    data: &'a [u8],
}

/// Why a tensor cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// GGUF does not have its element type.
    #[error("tensor '{name}': GGUF has no type {dtype}")]
    DType {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// Its shape is not valid for its element type or for GGUF.
    #[error("tensor '{name}': {source}")]
    Shape {
        /// The tensor.
        name: String,
        /// What is wrong.
        source: TensorError,
    },
    /// Its data has the wrong length.
    #[error("tensor '{name}': its type and shape need {expected} bytes, the data has {found}")]
    Length {
        /// The tensor.
        name: String,
        /// Bytes that type and shape need.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl<'a> Writer<'a> {
    /// An empty file.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// Sets the alignment of tensor data, a power of two, and writes `general.alignment`. The default is 32.
    ///
    /// # Panics
    /// If `alignment` is not a power of two.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is not a power of two");
        self.alignment = Some(alignment);
        self.u32("general.alignment", alignment)
    }

    /// Adds a string.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key, ValueType::Str);
        put_string(&mut self.keys, value);
        self
    }

    /// Adds an unsigned 32-bit integer.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, ValueType::U32, &value.to_le_bytes())
    }

    /// Adds an unsigned 64-bit integer.
    pub fn u64(&mut self, key: &str, value: u64) -> &mut Self {
        self.raw(key, ValueType::U64, &value.to_le_bytes())
    }

    /// Adds a signed 32-bit integer.
    pub fn i32(&mut self, key: &str, value: i32) -> &mut Self {
        self.raw(key, ValueType::I32, &value.to_le_bytes())
    }

    /// Adds a float.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, ValueType::F32, &value.to_le_bytes())
    }

    /// Adds a bool.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, ValueType::Bool, &[value.into()])
    }

    /// Adds an array of strings.
    pub fn strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        self.array_head(key, ValueType::Str, values.len());
        values.iter().for_each(|v| put_string(&mut self.keys, v.as_ref()));
        self
    }

    /// Adds an array of floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.array_head(key, ValueType::F32, values.len());
        values.iter().for_each(|v| self.keys.extend_from_slice(&v.to_le_bytes()));
        self
    }

    /// Adds an array of signed 32-bit integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.array_head(key, ValueType::I32, values.len());
        values.iter().for_each(|v| self.keys.extend_from_slice(&v.to_le_bytes()));
        self
    }

    /// Adds a value of any type as bytes; an array is its element type, count and elements.
    pub fn raw(&mut self, key: &str, kind: ValueType, bytes: &[u8]) -> &mut Self {
        self.key(key, kind);
        self.keys.extend_from_slice(bytes);
        self
    }

    /// Adds a tensor. `shape` is outermost first; the file stores it in reverse. The data is borrowed until the
    /// file is written.
    pub fn tensor(
        &mut self,
        name: &'a str,
        dtype: DType,
        shape: Shape,
        data: &'a [u8],
    ) -> Result<&mut Self, WriteError> {
        let shape_error = |source| WriteError::Shape { name: name.to_owned(), source };
        let id = id_of(dtype).ok_or_else(|| WriteError::DType { name: name.to_owned(), dtype })?;
        if !(1..=4).contains(&shape.rank()) {
            return Err(shape_error(TensorError::Rank { rank: shape.rank(), max: 4 }));
        }
        let expected = dtype.bytes_of(&shape).map_err(shape_error)?;
        if data.len() != expected {
            return Err(WriteError::Length { name: name.to_owned(), expected, found: data.len() });
        }
        self.tensors.push(Described { name, id, shape, data });
        Ok(self)
    }

    /// Writes the file, version 3.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let alignment = u64::from(self.alignment.unwrap_or(32));
        let mut head = Vec::from(*b"GGUF");
        head.extend_from_slice(&3u32.to_le_bytes());
        head.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&self.key_count.to_le_bytes());
        head.extend_from_slice(&self.keys);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut head, tensor.name);
            head.extend_from_slice(&(tensor.shape.rank() as u32).to_le_bytes());
            for &dim in tensor.shape.dims().iter().rev() {
                head.extend_from_slice(&(dim as u64).to_le_bytes());
            }
            head.extend_from_slice(&tensor.id.to_le_bytes());
            head.extend_from_slice(&offset.to_le_bytes());
            offset = (offset + tensor.data.len() as u64).next_multiple_of(alignment);
        }
        pad(&mut head, alignment as usize);
        out.write_all(&head)?;
        for tensor in &self.tensors {
            out.write_all(tensor.data)?;
            let padding = tensor.data.len().next_multiple_of(alignment as usize) - tensor.data.len();
            out.write_all(&vec![0; padding])?;
        }
        Ok(())
    }

    fn key(&mut self, key: &str, kind: ValueType) {
        put_string(&mut self.keys, key);
        self.keys.extend_from_slice(&(kind as u32).to_le_bytes());
        self.key_count += 1;
    }

    fn array_head(&mut self, key: &str, kind: ValueType, count: usize) {
        self.key(key, ValueType::Array);
        self.keys.extend_from_slice(&(kind as u32).to_le_bytes());
        self.keys.extend_from_slice(&(count as u64).to_le_bytes());
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn pad(out: &mut Vec<u8>, alignment: usize) {
    out.resize(out.len().next_multiple_of(alignment), 0);
}
