//! Loading a model with a word to the user about what was chosen.

use std::time::Instant;

use anyhow::Result;
use gyrus::{ContextLimit, Model, Options};

use crate::progress::Progress;
use crate::source::Source;
use crate::text::{self, FAINT};

/// Loads a model and says in one line what it is and what it got, unless asked to be quiet.
pub(crate) fn load(source: &Source, options: &Options, quiet: bool) -> Result<Model> {
    let start = Instant::now();
    let checkpoint = source.open()?;
    let model = if quiet {
        Model::load(checkpoint, options)?
    } else {
        let progress = Progress::new("loading");
        Model::load_with(checkpoint, options, |done, total| progress.set(done, total))?
    };
    if quiet {
        return Ok(model);
    }
    let context = model.context();
    let why = match context.limit {
        ContextLimit::Memory => format!(" (memory allows no more; the model has {})", context.model),
        ContextLimit::Unknown => format!(" (--ctx sets more; the model has {})", context.model),
        _ => String::new(),
    };
    let threads = model.threads();
    anstream::eprintln!(
        "{}{} · {} · cpu, {threads} thread{} · context {}{why} · loaded in {:.2} s{}",
        FAINT.render(),
        text::one_line(source.name(), 80),
        model.config().architecture,
        if threads == 1 { "" } else { "s" },
        context.tokens,
        start.elapsed().as_secs_f64(),
        FAINT.render_reset(),
    );
    Ok(model)
}
