//! `gyrus rope`: the rotary frequencies of a model or of given parameters.

mod report;
pub(crate) mod settings;
mod show;
mod svg;

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gyrus::ModelRopes;
use gyrus::rope::{Pairing, Rope, Sections};

use crate::cli::RopeArgs;
use crate::output::OutputFile;
use crate::usage::usage;
use crate::{json, source};
use report::{AS_GIVEN, Report};
use settings::{Changes, Options};

/// A configuration file is no larger; the largest known has some hundred kilobytes.
const MOST_CONFIG_BYTES: u64 = 16 << 20;

pub(crate) fn run(args: &RopeArgs) -> Result<()> {
    let options = Options {
        head_dim: args.head_dim,
        rope_dim: args.rope_dim,
        offset: args.offset,
        base: args.base,
        pairing: args.pairing.map(Pairing::from),
        scaling: args.scaling.clone(),
        sections: args.sections.clone().map(|sizes| Sections { sizes, interleaved: args.interleaved }),
    };
    let ropes = args.model.as_deref().map(|model| read(model, options.pairing)).transpose()?;
    let name = args.model.as_deref().map_or_else(|| AS_GIVEN.to_owned(), base_name);
    let report = make(&name, ropes.as_ref(), &options, args.length)?;
    let other = match &args.compare {
        None => None,
        Some(Changes::Model(model)) => {
            Some(Report::of_model(&base_name(model), read(model, None)?, args.length))
        }
        Some(Changes::Options { text, options: changes }) => {
            Some(make(text, ropes.as_ref(), &changes.over(&options), args.length)?)
        }
    };
    if let Some(path) = &args.svg {
        let picture = svg::draw(&report, other.as_ref());
        OutputFile::write(path, picture)?;
    }
    let mut out = std::io::BufWriter::new(anstream::stdout());
    match (&other, args.json) {
        (None, true) => json::pretty(&mut out, &report)?,
        (Some(other), true) => json::pretty(&mut out, &[&report, other])?,
        (None, false) => show::report(&mut out, &report)?,
        (Some(other), false) => show::comparison(&mut out, &report, other)?,
    }
    out.flush()?;
    Ok(())
}

/// The rotary embedding of a model with these options changed, or of the options alone.
fn make(name: &str, ropes: Option<&ModelRopes>, options: &Options, length: Option<usize>) -> Result<Report> {
    let Some(ropes) = ropes else {
        let rope = Rope::new(options.spec()).map_err(usage)?;
        return Ok(Report::of_rope(name, rope, length));
    };
    let mut ropes = ropes.clone();
    for kind in &mut ropes.kinds {
        let mut spec = kind.rope.spec().clone();
        options.apply(&mut spec);
        if options.scaling.is_some() {
            kind.score_factor = 1.0;
        }
        kind.rope = Rope::new(spec).map_err(usage)?;
    }
    Ok(Report::of_model(name, ropes, length))
}

/// The ropes of a model, of which a `config.json` is enough.
fn read(model: &OsStr, pairing: Option<Pairing>) -> Result<ModelRopes> {
    let path = Path::new(model);
    let config = if path.extension().is_some_and(|e| e == "json") {
        path.to_owned()
    } else {
        path.join("config.json")
    };
    if config.is_file() {
        let bytes = config.metadata().with_context(|| config.display().to_string())?.len();
        if bytes > MOST_CONFIG_BYTES {
            bail!("{}: {bytes} bytes are too many for a configuration", config.display());
        }
        let text = std::fs::read_to_string(&config).with_context(|| config.display().to_string())?;
        return ModelRopes::from_config(&text, pairing).with_context(|| config.display().to_string());
    }
    Ok(ModelRopes::read(&source::open(model)?, pairing)?)
}

/// The last part of a path.
fn base_name(model: &OsStr) -> String {
    Path::new(model).file_name().unwrap_or(model).to_string_lossy().into_owned()
}
