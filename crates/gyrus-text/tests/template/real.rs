//! The chat templates of real models, on the grid.

use std::fs;

use super::grid;
use gyrus_testkit::data;
use gyrus_text::template::{ChatTemplate, Fallback, Source};

use super::oracle::{Batch, assert_none, render_parts};

/// Every template with every input of the grid.
fn batch() -> Option<Batch> {
    let folder = data("templates")?;
    let mut batch = Batch { inputs: grid::inputs(), ..Batch::default() };
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
            batch.templates.push((name, fs::read_to_string(&path).expect("templates are text")));
        }
    }
    assert!(!batch.templates.is_empty(), "no templates to test");
    batch.templates.sort();
    Some(batch)
}

#[test]
fn real_templates_render_as_in_jinja() {
    let Some(batch) = batch() else { return };
    let start = std::time::Instant::now();
    let results = batch.results();
    println!("{} cases in {:?}", results.len(), start.elapsed());
    let Some(reference) = batch.reference() else { return };
    let (rendered, differences) = batch.compare(&reference);
    for (t, (name, _)) in batch.templates.iter().enumerate() {
        let ours = &results[t * batch.inputs.len()..][..batch.inputs.len()];
        println!("{name}: {} of {} inputs rendered", ours.iter().filter(|r| r.is_ok()).count(), ours.len());
        assert!(ours.iter().any(Result::is_ok), "{name} renders nothing");
    }
    if let Ok(path) = std::env::var("GYRUS_KEEP_REQUEST") {
        fs::write(path, batch.request().to_string()).expect("the request can be kept");
    }
    println!("{} cases, {rendered} rendered by the reference", reference.len());
    assert_none(&differences);
}

/// The ranges that look like control tokens of published vocabularies.
fn markers(text: &str) -> Vec<std::ops::Range<usize>> {
    let named =
        ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<start_of_turn>", "<end_of_turn>", "<turn|>"];
    let mut found: Vec<_> = named
        .iter()
        .flat_map(|name| text.match_indices(name))
        .map(|(at, name)| at..at + name.len())
        .collect();
    for (open, close) in [("<|", "|>"), ("<｜", "｜>")] {
        for (at, _) in text.match_indices(open) {
            let inside = &text[at + open.len()..];
            if let Some(end) = inside.find(close).filter(|&end| !inside[..end].contains(['<', ' ', '\n'])) {
                found.push(at..at + open.len() + end + close.len());
            }
        }
    }
    found
}

#[test]
fn every_control_token_comes_from_the_template() {
    let Some(mut batch) = batch() else { return };
    batch.templates.extend(Fallback::all().map(|form| (form.name.to_owned(), form.template.to_owned())));
    let mut seen = 0;
    for (name, source) in &batch.templates {
        let template = ChatTemplate::new(source).expect("it parses");
        for input in &batch.inputs {
            let Ok(rendered) = render_parts(&template, input) else { continue };
            let mut end = 0;
            let template_ranges: Vec<_> = rendered
                .parts()
                .filter_map(|(text, source)| {
                    end += text.len();
                    (source == Source::Template).then(|| end - text.len()..end)
                })
                .collect();
            assert_eq!(end, rendered.text().len(), "the parts cover the text");
            for marker in markers(rendered.text()) {
                let from_template = template_ranges
                    .iter()
                    .any(|range| range.start <= marker.start && marker.end <= range.end);
                // An unusual role is data.
                let from_template = from_template || &rendered.text()[marker.clone()] == "<|critic|>";
                assert!(from_template, "{name}: {:?} in {:?}", &rendered.text()[marker], rendered.text());
                seen += 1;
            }
        }
    }
    assert!(seen > 10_000, "{seen} control tokens");
}
