//! `gyrus models`: known and downloaded models.

use std::io::Write;

use anstyle::Style;
use anyhow::Result;
use serde::Serialize;

use crate::cache;
use crate::catalogue::{CATALOGUE, DEFAULT, Named, Origin};
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
    licence: Option<&'static str>,
    about: Option<&'static str>,
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
    let column = |title, style| Column { title, right: title == "size", style };
    let columns = [
        column("model", NAME),
        column("size", Style::new()),
        column("licence", Style::new()),
        column("state", Style::new()),
        column("about", FAINT),
    ];
    let rows: Vec<Vec<String>> = models.iter().map(row).collect();
    text::table(&mut out, &columns, &rows)?;
    writeln!(out)?;
    for line in [
        "hf:OWNER/REPO/FILE is a model file on the Hugging Face hub.".to_owned(),
        format!("cache folder: {}", foreign::path(&cache::folder(&environment)?)),
    ] {
        writeln!(out, "  {}{line}{}", FAINT.render(), FAINT.render_reset())?;
    }
    Ok(())
}

fn row(model: &Model) -> Vec<String> {
    let about = model.about.unwrap_or_default();
    let default = if model.default { " (default)" } else { "" };
    vec![
        foreign::one_line(&model.name, 100),
        text::bytes(model.bytes),
        model.licence.unwrap_or("?").to_owned(),
        model.state.words().to_owned(),
        format!("{about}{default}"),
    ]
}

/// The catalogue, then whatever else is in the cache.
fn models(environment: &Environment) -> Result<Vec<Model>> {
    let mut found = cache::list(environment)?;
    let mut models = Vec::new();
    for entry in CATALOGUE {
        let path = cache::path_of(&Named::Entry(entry), environment)?;
        let cached = found.iter().any(|f| f.path == path && f.bytes == entry.bytes);
        found.retain(|f| f.path != path);
        let state = match entry.origin {
            Origin::BuiltIn(_) => State::BuiltIn,
            Origin::Wheel { .. } if cached => State::Cached,
            Origin::Wheel { .. } => State::CanBePulled,
        };
        models.push(Model {
            name: entry.name.to_owned(),
            state,
            bytes: entry.bytes,
            licence: Some(entry.licence),
            about: Some(entry.about),
            default: entry.name == DEFAULT,
            path: cached.then(|| path.to_string_lossy().into_owned()),
        });
    }
    models.extend(found.into_iter().map(|found| Model {
        name: found.name,
        state: if found.unfinished { State::Unfinished } else { State::Cached },
        bytes: found.bytes,
        licence: None,
        about: None,
        default: false,
        path: Some(found.path.to_string_lossy().into_owned()),
    }));
    Ok(models)
}
