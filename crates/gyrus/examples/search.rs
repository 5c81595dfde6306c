//! Searches the text files of a folder by meaning:
//! `cargo run --release -p gyrus --example search -- MODEL FOLDER "what to look for"`.

use std::path::{Path, PathBuf};

use gyrus::{EmbedOptions, EmbedPrompt, Embedder, Options};

/// Words of a passage. Neighbouring passages share half of them.
const WORDS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: search MODEL FOLDER QUERY");
    let (model, folder, query) = (next()?, next()?, next()?);

    let mut passages: Vec<(PathBuf, String)> = Vec::new();
    collect(Path::new(&folder), &mut passages)?;
    let texts: Vec<&str> = passages.iter().map(|(_, text)| text.as_str()).collect();

    let embedder = Embedder::open(model.as_ref(), &Options::default())?;
    let with = |prompt: &str| {
        // Models that tell queries from documents have a prompt for each.
        let has = embedder.prompts().any(|name| name == prompt);
        let prompt = if has { EmbedPrompt::Named(prompt.to_owned()) } else { EmbedPrompt::Default };
        EmbedOptions { prompt, truncate: true, normalize: Some(true), ..EmbedOptions::default() }
    };
    let documents = embedder.embed(&texts, &with("document"))?;
    let query = embedder.embed(&[query], &with("query"))?;

    let score = |vector: &[f32]| vector.iter().zip(&query.values).map(|(a, b)| a * b).sum::<f32>();
    let mut found: Vec<(f32, usize)> = documents.vectors().map(score).zip(0..).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (score, at) in found.into_iter().take(5) {
        let (path, text) = &passages[at];
        let start: String = text.chars().take(80).map(|c| if c.is_control() { ' ' } else { c }).collect();
        println!("{score:.3}  {}  {start}…", path.display());
    }
    Ok(())
}

/// The passages of the text files of a folder and of those in it.
fn collect(folder: &Path, passages: &mut Vec<(PathBuf, String)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, passages)?;
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let words: Vec<&str> = text.split_whitespace().collect();
            for first in (0..words.len()).step_by(WORDS / 2) {
                let passage = words[first..words.len().min(first + WORDS)].join(" ");
                passages.push((path.clone(), passage));
            }
        }
    }
    Ok(())
}
