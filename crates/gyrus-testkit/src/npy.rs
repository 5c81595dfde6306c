//! A reader of NumPy array files (`.npy`), limited to f32.

use std::path::Path;

/// An f32 array.
#[derive(Debug)]
pub struct Npy {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// All elements in row-major order.
    pub values: Vec<f32>,
}

/// Reads a little-endian f32 array in C order.
///
/// # Panics
/// If the file cannot be read or is of another kind.
pub fn read_f32(path: &Path) -> Npy {
    let bytes = std::fs::read(path).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01"), "{} is not a version 1 NumPy file", path.display());
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).unwrap();
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let shape =
        shape.split(',').filter(|s| !s.trim().is_empty()).map(|s| s.trim().parse().unwrap()).collect();
    let values = bytes[10 + header_len..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Npy { shape, values }
}
