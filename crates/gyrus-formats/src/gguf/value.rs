use std::fmt;

/// The type of a metadata value, with its id in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// f32.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Length-prefixed UTF-8.
    Str = 8,
    /// Element type, count and elements.
    Array = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// Signed, 64 bits.
    I64 = 11,
    /// f64.
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::Str,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of one value; strings and arrays have no fixed size.
    pub const fn size(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Str | ValueType::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::Str => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        })
    }
}

/// A number of any of the numeric types.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64; f32 converts exactly.
    Float(f64),
    /// A bool.
    Bool(bool),
}

impl Number {
    /// Reads little-endian bytes of exactly `kind`'s size; `None` for strings, arrays and wrong lengths.
    pub(super) fn read(kind: ValueType, b: &[u8]) -> Option<Number> {
        Some(match kind {
            ValueType::U8 => Number::Unsigned(u8::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::U16 => Number::Unsigned(u16::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::U32 => Number::Unsigned(u32::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::U64 => Number::Unsigned(u64::from_le_bytes(b.try_into().ok()?)),
            ValueType::I8 => Number::Signed(i8::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::I16 => Number::Signed(i16::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::I32 => Number::Signed(i32::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::I64 => Number::Signed(i64::from_le_bytes(b.try_into().ok()?)),
            ValueType::F32 => Number::Float(f32::from_le_bytes(b.try_into().ok()?).into()),
            ValueType::F64 => Number::Float(f64::from_le_bytes(b.try_into().ok()?)),
            ValueType::Bool => Number::Bool(*b.first()? != 0),
            ValueType::Str | ValueType::Array => return None,
        })
    }

    /// The integer, whatever its declared width and sign.
    pub fn integer(self) -> Option<i128> {
        match self {
            Number::Unsigned(v) => Some(v.into()),
            Number::Signed(v) => Some(v.into()),
            Number::Float(_) | Number::Bool(_) => None,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Unsigned(v) => v.fmt(f),
            Number::Signed(v) => v.fmt(f),
            // A value that is an exact f32 prints with the shortest digits of the f32.
            Number::Float(v) if f64::from(*v as f32) == *v => (*v as f32).fmt(f),
            Number::Float(v) => v.fmt(f),
            Number::Bool(v) => v.fmt(f),
        }
    }
}

/// A metadata value as a view into the file.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number or bool.
    Number(Number),
    /// A string, as the bytes in the file, which were valid UTF-8 when the file was opened.
    Str(&'a [u8]),
    /// An array, not decoded yet.
    Array(Array<'a>),
}

/// An array in the metadata, decoded on request.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    pub(super) kind: ValueType,
    pub(super) count: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The element type; never [`ValueType::Array`].
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of the elements; strings are length-prefixed.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The numbers of a numeric array; empty for an array of strings.
    pub fn numbers(&self) -> impl Iterator<Item = Number> + 'a {
        let Array { kind, bytes, .. } = *self;
        let (size, bytes) = kind.size().map_or((1, &[][..]), |size| (size, bytes));
        bytes.chunks_exact(size).filter_map(move |b| Number::read(kind, b))
    }

    /// The strings of an array of strings, as bytes; empty for a numeric array.
    pub fn strings(&self) -> impl Iterator<Item = &'a [u8]> + 'a {
        let mut rest = if self.kind == ValueType::Str { self.bytes } else { &[] };
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            Some(text)
        })
    }
}
