//! `gyrus models`: known and downloaded models.

use std::io::Write;
use std::path::PathBuf;

use anstyle::Style;
use anyhow::Result;
use serde::Serialize;

use crate::cache;
use crate::catalogue::{About, CATALOGUE, DEFAULT, Named, ON_THE_HUB, Origin};
use crate::cli::ModelsArgs;
use crate::environment::Environment;
use crate::text::{self, Column, FAINT, NAME};
use crate::{foreign, json};

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    state: State,
    /// The size of the file, also of an incomplete one.
    bytes: u64,
    /// The memory needed on the CPU with a context of 4096 tokens.
    memory: Option<u64>,
    licence: Option<&'static str>,
    about: Option<&'static str>,
    /// Whether this very file was tried with Gyrus; `None` for files that are not in the catalogue.
    tried: Option<bool>,
    /// Whether it is used if no model is named.
    default: bool,
    /// Bytes that are not UTF-8 are replaced, since JSON is text.
    path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    BuiltIn,
    Cached,
    Unfinished,
    CanBePulled,
}

impl State {
    fn words(self) -> &'static str {
        match self {
            State::BuiltIn => "built in",
            State::Cached => "in the cache",
            State::Unfinished => "incomplete",
            State::CanBePulled => "not downloaded",
        }
    }
}

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let environment = Environment::of_process();
    let models = models(&environment)?;
    let mut out = anstream::stdout().lock();
    if args.json {
        json::pretty(&mut out, &models)?;
        return Ok(());
    }
    let column = |title, style| Column { title, right: matches!(title, "size" | "memory"), style };
    let columns = [
        column("model", NAME),
        column("size", Style::new()),
        column("memory", Style::new()),
        column("licence", Style::new()),
        column("state", Style::new()),
        column("about", FAINT),
    ];
    let rows: Vec<Vec<String>> = models.iter().map(row).collect();
    text::table(&mut out, &columns, &rows)?;
    writeln!(out)?;
    for line in [
        "memory: on the CPU, with a context of 4096 tokens".to_owned(),
        "not tried: its architecture was tested with other files, this file was not".to_owned(),
        "hf:OWNER/REPO/FILE is a model file on the Hugging Face hub, hf:OWNER/REPO a SafeTensors model."
            .to_owned(),
        format!("cache folder: {}", foreign::path(&cache::folder(&environment)?)),
    ] {
        writeln!(out, "  {}{line}{}", FAINT.render(), FAINT.render_reset())?;
    }
    Ok(())
}

fn row(model: &Model) -> Vec<String> {
    let about = model.about.unwrap_or_default();
    let note = match (model.default, model.tried) {
        (true, _) => " (default)",
        (_, Some(false)) => " (not tried)",
        _ => "",
    };
    vec![
        foreign::one_line(&model.name, 100),
        text::bytes(model.bytes),
        model.memory.map_or_else(|| "?".to_owned(), text::bytes),
        model.licence.unwrap_or("?").to_owned(),
        model.state.words().to_owned(),
        format!("{about}{note}"),
    ]
}

/// The catalogue, then whatever else is in the cache.
fn models(environment: &Environment) -> Result<Vec<Model>> {
    let mut found = cache::list(environment)?;
    let mut models = Vec::new();
    for entry in CATALOGUE {
        let path = cache::path_of(&Named::Entry(entry), environment)?;
        let cached = found.iter().any(|f| f.path == path && f.bytes == entry.about.bytes);
        found.retain(|f| f.path != path);
        let state = match entry.origin {
            Origin::BuiltIn(_) => State::BuiltIn,
            Origin::Wheels(_) if cached => State::Cached,
            Origin::Wheels(_) => State::CanBePulled,
        };
        models.push(known(&entry.about, state, true, cached.then_some(&path)));
    }
    for entry in ON_THE_HUB {
        let path = cache::path_of(&Named::parse(entry.about.name)?, environment)?;
        // A part of it is listed under the address, as of any other file on the hub.
        let cached = found.iter().any(|f| f.path == path && !f.unfinished);
        found.retain(|f| f.path != path);
        let state = if cached { State::Cached } else { State::CanBePulled };
        models.push(known(&entry.about, state, false, cached.then_some(&path)));
    }
    models.extend(found.into_iter().map(|found| Model {
        name: found.name,
        state: if found.unfinished { State::Unfinished } else { State::Cached },
        bytes: found.bytes,
        memory: None,
        licence: None,
        about: None,
        tried: None,
        default: false,
        path: Some(found.path.to_string_lossy().into_owned()),
    }));
    Ok(models)
}

/// A model of the catalogue.
fn known(about: &About, state: State, tried: bool, path: Option<&PathBuf>) -> Model {
    Model {
        name: about.name.to_owned(),
        state,
        bytes: about.bytes,
        memory: Some(about.memory),
        licence: Some(about.licence),
        about: Some(about.words),
        tried: Some(tried),
        default: about.name == DEFAULT,
        path: path.map(|path| path.to_string_lossy().into_owned()),
    }
}
