//! The chat templates of real models, over the grid.

use std::fs;

use super::grid;
use gyrus_testkit::data;

use super::oracle::{Batch, assert_none};

#[test]
fn real_templates_render_as_jinja_renders_them() {
    let Some(folder) = data("templates") else { return };
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
