//! `gyrus logits`: the logits of every position as a NumPy file.

use std::io::Write;

use anyhow::{Context, Result};
use gyrus::Precision;

use crate::cli::{Ids, LogitsArgs};
use crate::load::load;
use crate::npy;
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
    npy::header(file, ids.len(), vocab)?;
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
