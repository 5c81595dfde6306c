//! `gyrus inspect`: what is in a model file, without loading it.

mod kv;
mod show;
mod summary;

use std::io::Write;

use anyhow::Result;

use crate::cli::InspectArgs;
use crate::{json, source};
use summary::Summary;
pub(crate) use summary::architecture;

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let model = source::open(&args.model)?;
    let summary = Summary::new(&model, args.ctx, args.full);
    // A table of thousands of lines is written in large pieces.
    let mut out = std::io::BufWriter::with_capacity(1 << 16, anstream::stdout());
    if args.json {
        json::pretty(&mut out, &summary)?;
    } else {
        show::show(&mut out, &summary)?;
    }
    out.flush()?;
    Ok(())
}
