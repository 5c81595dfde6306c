use super::error::{Found, MetadataError};
use super::parse::{Gguf, Stored};
use super::value::{Array, Number, Value};

/// Typed access to the metadata of a GGUF file.
///
/// ```no_run
/// # use gyrus_formats::gguf::Gguf;
/// let file = Gguf::open("model.gguf".as_ref())?;
/// let layers: u32 = file.metadata().require("llama.block_count")?;
/// let base: Option<f32> = file.metadata().get("llama.rope.freq_base")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    file: &'a Gguf,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a Gguf) -> Metadata<'a> {
        Metadata { file }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.file.key_count()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let file = self.file;
        (0..file.key_count()).map(move |n| {
            let (name, _, stored) = file.key(n);
            (name, view(file, stored))
        })
    }

    /// Whether the key exists, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.file.find_key(key).is_some()
    }

    /// A value without conversion.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        let (_, _, stored) = self.file.key(self.file.find_key(key)?);
        Some(view(self.file, stored))
    }

    /// An optional value. A value of another type is an error.
    pub fn get<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(n) = self.file.find_key(key) else { return Ok(None) };
        let (_, at, stored) = self.file.key(n);
        T::from_value(view(self.file, stored)).map(Some).map_err(|mismatch| match mismatch {
            Mismatch::Type => {
                let found = match stored {
                    Stored::Number(kind, _) => Found::One(kind),
                    Stored::Str { .. } => Found::One(super::ValueType::Str),
                    Stored::Array { kind, .. } => Found::Array(kind),
                };
                MetadataError::Type { key: key.to_owned(), at, expected: T::EXPECTED, found }
            }
            Mismatch::Range(value) => {
                MetadataError::Range { key: key.to_owned(), at, expected: T::EXPECTED, value }
            }
            Mismatch::Utf8(index) => MetadataError::Utf8 { key: key.to_owned(), at, index },
        })
    }

    /// A required value.
    pub fn require<T: FromValue<'a>>(&self, key: &str) -> Result<T, MetadataError> {
        self.get(key)?.ok_or_else(|| MetadataError::Missing { key: key.to_owned() })
    }
}

fn view(file: &Gguf, stored: Stored) -> Value<'_> {
    match stored {
        Stored::Number(_, number) => Value::Number(number),
        Stored::Str { at, bytes } => Value::Str(&file.bytes()[at..at + bytes]),
        Stored::Array { kind, count, at, bytes } => {
            Value::Array(Array { kind, count, bytes: &file.bytes()[at..at + bytes] })
        }
    }
}

/// Why a value cannot be converted.
#[derive(Debug)]
pub enum Mismatch {
    /// Another type.
    Type,
    /// A number that is out of range, as digits.
    Range(String),
    /// Not UTF-8, with the index in the array.
    Utf8(usize),
}

/// A type that [`Metadata::get`] can return.
///
/// Integers convert from any integer type if the value fits, because writers differ in the width they choose.
/// Floats convert from f32 and f64. Strings, bools and arrays do not convert.
pub trait FromValue<'a>: Sized {
    /// The name of the type in error messages.
    const EXPECTED: &'static str;

    /// Converts the value, or returns why it cannot.
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch>;
}

macro_rules! integers {
    ($($type:ty: $one:literal, $many:literal;)*) => {$(
        impl FromValue<'_> for $type {
            const EXPECTED: &'static str = $one;

            fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
                let Value::Number(number) = value else { return Err(Mismatch::Type) };
                integer(number)
            }
        }

        impl FromValue<'_> for Vec<$type> {
            const EXPECTED: &'static str = $many;

            fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
                let Value::Array(array) = value else { return Err(Mismatch::Type) };
                collect(array, integer)
            }
        }
    )*};
}

integers! {
    u32: "an unsigned 32-bit integer", "an array of unsigned 32-bit integers";
    u64: "an unsigned integer", "an array of unsigned integers";
    usize: "an unsigned integer", "an array of unsigned integers";
    i32: "a signed 32-bit integer", "an array of signed 32-bit integers";
    i64: "a signed integer", "an array of signed integers";
}

fn integer<T: TryFrom<i128>>(number: Number) -> Result<T, Mismatch> {
    let value = number.integer().ok_or(Mismatch::Type)?;
    T::try_from(value).map_err(|_| Mismatch::Range(value.to_string()))
}

fn float(number: Number) -> Result<f32, Mismatch> {
    match number {
        Number::Float(v) => Ok(v as f32),
        _ => Err(Mismatch::Type),
    }
}

/// Converts a numeric array. Memory grows with the bytes in the file, not with the declared count.
fn collect<T>(array: Array<'_>, read: impl Fn(Number) -> Result<T, Mismatch>) -> Result<Vec<T>, Mismatch> {
    if array.kind().size().is_none() && !array.is_empty() {
        return Err(Mismatch::Type);
    }
    array.numbers().map(read).collect()
}

impl FromValue<'_> for Vec<u8> {
    const EXPECTED: &'static str = "an array of bytes";

    /// Some writers store bytes as unsigned integers, others as signed ones.
    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        let Value::Array(array) = value else { return Err(Mismatch::Type) };
        collect(array, |number| {
            let value = number.integer().ok_or(Mismatch::Type)?;
            let signed = || i8::try_from(value).map(|byte| byte as u8);
            u8::try_from(value).or_else(|_| signed()).map_err(|_| Mismatch::Range(value.to_string()))
        })
    }
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        let Value::Number(number) = value else { return Err(Mismatch::Type) };
        float(number)
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of floats";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        let Value::Array(array) = value else { return Err(Mismatch::Type) };
        collect(array, float)
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::Number(Number::Bool(v)) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        let Value::Str(bytes) = value else { return Err(Mismatch::Type) };
        str::from_utf8(bytes).map_err(|_| Mismatch::Utf8(0))
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        let Value::Array(array) = value else { return Err(Mismatch::Type) };
        if array.kind() != super::ValueType::Str && !array.is_empty() {
            return Err(Mismatch::Type);
        }
        let text = |(i, bytes)| str::from_utf8(bytes).map_err(|_| Mismatch::Utf8(i));
        array.strings().enumerate().map(text).collect()
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Array(array) => Ok(array),
            _ => Err(Mismatch::Type),
        }
    }
}
