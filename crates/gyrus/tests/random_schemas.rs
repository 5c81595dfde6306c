//! Instances of random JSON Schemas, many at a time, held to the reference validator.

use std::io::Write;

use gyrus::constrain::Source;
use gyrus::{Event, Message, Model, Options, Request, Sampler, StopReason};
use gyrus_testkit::{data, oracle, tempfile};
use serde_json::{Value, json};

/// Schemas, and requests that run at once. All of `scripts/verify` are 500 on SmolLM2.
const SCHEMAS: usize = 24;
const AT_ONCE: usize = 8;

#[test]
fn instances_of_random_schemas_end_and_validate() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let Some(schemas) = oracle("random_schemas.py", &["make", &SCHEMAS.to_string(), "7"]) else { return };
    let schemas: Vec<Value> = schemas.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let options = Options { sessions: AT_ONCE, context: Some(1024), ..Options::default() };
    let model = Model::open(&path, &options).unwrap();
    let _driver = model.drive().unwrap();
    let mut lines = tempfile::NamedTempFile::new().unwrap();
    for (round, schemas) in schemas.chunks(AT_ONCE).enumerate() {
        let instances: Vec<Value> = std::thread::scope(|scope| {
            let one = |(n, schema)| {
                let model = &model;
                scope.spawn(move || instance(model, schema, (round * AT_ONCE + n) as u64))
            };
            let running: Vec<_> = schemas.iter().enumerate().map(one).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        instances.iter().for_each(|instance| writeln!(lines, "{instance}").unwrap());
    }
    let wrong = oracle("random_schemas.py", &["check".as_ref(), lines.path().as_os_str()]).unwrap();
    assert!(wrong.is_empty(), "{wrong}");
}

fn instance(model: &Model, schema: &Value, seed: u64) -> Value {
    let sampler = Sampler { temperature: 1.0, seed, ..Sampler::default() };
    let request = Request::messages([Message::user("An example?")])
        .constraint(Source::Schema(schema.to_string()))
        .sampler(sampler);
    let mut session = model.session();
    let mut generation = session.generate(request).unwrap();
    let (mut text, mut stop) = (String::new(), "other");
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Text { text: piece, .. } => text.push_str(piece),
            Event::Stop { reason: StopReason::EndToken(_), .. } => stop = "end",
            _ => {}
        }
    }
    json!({ "schema": schema, "text": text, "stop": stop })
}
