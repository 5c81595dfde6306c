/// The element type of a buffer. Arithmetic is `f32` with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// `f32`.
    F32,
    /// `f16`.
    F16,
    /// `bf16`.
    Bf16,
}

impl Storage {
    /// Its name, the suffix of kernel names.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        if self == Storage::F32 { 4 } else { 2 }
    }

    /// Elements of sixteen bytes.
    pub(crate) fn vector(self) -> u32 {
        16 / self.bytes() as u32
    }
}
