//! Writes arrays in NumPy's format, version 1.0.

use std::io::{self, Write};

/// Writes the header of an array of f32, `[rows, columns]`, whose elements follow in order of rows.
pub(crate) fn header(out: &mut impl Write, rows: usize, columns: usize) -> io::Result<()> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take 10 bytes; elements begin at a multiple of 64.
    let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text += &" ".repeat(padded - 1 - text.len());
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(text.len() as u16).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

/// Writes elements.
pub(crate) fn values(out: &mut impl Write, values: &[f32]) -> io::Result<()> {
    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn elements_begin_at_a_multiple_of_64() {
        for (rows, columns) in [(0, 1), (3, 384), (1_000_000, 1024), (12_345_678_901, 7)] {
            let mut out = Vec::new();
            super::header(&mut out, rows, columns).unwrap();
            assert_eq!(out.len() % 64, 0);
            assert_eq!(out.last(), Some(&b'\n'));
            assert_eq!(u16::from_le_bytes([out[8], out[9]]) as usize, out.len() - 10);
            assert!(String::from_utf8_lossy(&out).contains(&format!("({rows}, {columns})")));
        }
    }
}
