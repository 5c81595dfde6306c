//! `gyrus logits`: the logits of every position as a NumPy file.

use std::io::Write;

use anyhow::{Context, Result};
use gyrus::Precision;

use crate::cli::{Ids, LogitsArgs};
use crate::load::load;
use crate::output::OutputFile;
use crate::source::Source;
use crate::tokenize::check_ids;

pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let source = Source::resolve(Some(&args.model))?;
    let model = load(&source, &args.model_options.options(Precision::Exact), args.quiet)?;
    let vocab = model.plan().vocab;
    let Ids(ids) = &args.ids;
    check_ids(ids, vocab)?;
    let mut file = OutputFile::create(&args.out)?;
    write(&mut file, &model, ids, vocab).with_context(|| args.out.display().to_string())?;
    file.finish()
}

fn write(file: &mut OutputFile, model: &gyrus::Model, ids: &[u32], vocab: usize) -> Result<()> {
    file.write_all(&header(ids.len(), vocab))?;
    let mut failed = Ok(());
    model.session().score(ids, |_, logits| {
        for value in logits {
            if failed.is_ok() {
                failed = file.write_all(&value.to_le_bytes());
            }
        }
    })?;
    Ok(failed?)
}

/// The header of an f32 NumPy file of shape `[rows, columns]`.
fn header(rows: usize, columns: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // The header ends with a newline at a multiple of 64 bytes.
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text.extend(std::iter::repeat_n(' ', length - 1 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(length as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_aligned_and_has_the_shape() {
        let head = header(3, 49152);
        assert_eq!(head.len() % 64, 0);
        assert_eq!(head.last(), Some(&b'\n'));
        assert!(String::from_utf8_lossy(&head).contains("'shape': (3, 49152)"));
    }
}
