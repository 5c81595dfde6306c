//! The official test suite of JSON Schema.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use gyrus_constrain::{Error, Source, Vocabulary};
use serde_json::Value;

/// Valid instances of draft 2020-12 that are not generated. `format` is an assertion here, integers have no fraction,
/// and names come in the order of the schema.
const REJECTED: [&str; 22] = [
    "allOf.json: allOf with base schema: valid",
    "allOf.json: allOf: allOf",
    "const.json: const with -2.0 matches integer and float types: float -2.0 is valid",
    "const.json: const with 0 does not match other zero-like types: float zero is valid",
    "const.json: const with 1 does not match true: float one is valid",
    "const.json: const with object: same object with different property order is valid",
    "const.json: float and integers are equal up to 64-bit representation limits: float is valid",
    "enum.json: enum with 0 does not match false: float zero is valid",
    "enum.json: enum with 1 does not match true: float one is valid",
    "enum.json: enum with [0] does not match [false]: [0.0] is valid",
    "enum.json: enum with [1] does not match [true]: [1.0] is valid",
    "format.json: date format: invalid date string is only an annotation by default",
    "format.json: date-time format: invalid date-time string is only an annotation by default",
    "format.json: duration format: invalid duration string is only an annotation by default",
    "format.json: email format: invalid email string is only an annotation by default",
    "format.json: hostname format: invalid hostname string is only an annotation by default",
    "format.json: ipv4 format: invalid ipv4 string is only an annotation by default",
    "format.json: ipv6 format: invalid ipv6 string is only an annotation by default",
    "format.json: time format: invalid time string is only an annotation by default",
    "format.json: uri format: invalid uri string is only an annotation by default",
    "format.json: uuid format: invalid uuid string is only an annotation by default",
    "type.json: integer type matches integers: a float with zero fractional part is an integer",
];

/// What became of the tests of a folder.
#[derive(Default)]
struct Outcome {
    agreed: usize,
    accepted_invalid: Vec<String>,
    rejected_valid: BTreeSet<String>,
    /// Groups whose schema was refused.
    refused: usize,
    /// Groups whose schema was refused without naming a keyword.
    unnamed: Vec<String>,
}

fn run(vocabulary: &Vocabulary, folder: &Path, outcome: &mut Outcome) {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let file = path.file_name().unwrap().display();
        let groups: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            let mut schema = group["schema"].clone();
            if let (true, Some(schema)) = (folder.ends_with("draft7"), schema.as_object_mut()) {
                schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
            }
            let schema = schema.to_string();
            let name = format!("{file}: {}", group["description"].as_str().unwrap());
            let tests = group["tests"].as_array().unwrap();
            let constraint = match vocabulary.compile(&Source::Schema(schema.clone())) {
                Ok(constraint) => constraint,
                Err(Error::Keyword { keyword, .. }) => {
                    assert!(
                        schema.contains(&format!("{keyword:?}")),
                        "{name} refuses {keyword}, which it lacks"
                    );
                    outcome.refused += 1;
                    continue;
                }
                // A schema that nothing satisfies may be refused as such.
                Err(Error::Unsatisfiable { .. }) if tests.iter().all(|test| test["valid"] == false) => {
                    continue;
                }
                Err(error) => {
                    outcome.unnamed.push(format!("{name}: {error}"));
                    continue;
                }
            };
            for test in tests {
                let accepted = common::accepts(&constraint, &test["data"].to_string());
                let name = format!("{name}: {}", test["description"].as_str().unwrap());
                match (accepted, test["valid"].as_bool().unwrap()) {
                    (true, false) => outcome.accepted_invalid.push(name),
                    (false, true) => drop(outcome.rejected_valid.insert(name)),
                    _ => outcome.agreed += 1,
                }
            }
        }
    }
}

#[test]
fn draft_2020_12_accepts_no_invalid_instance() {
    let Some(folder) = gyrus_testkit::data("json-schema/tests/draft2020-12") else { return };
    let mut outcome = Outcome::default();
    run(&common::bytes(), &folder, &mut outcome);
    assert_eq!(outcome.accepted_invalid, [""; 0]);
    assert_eq!(outcome.unnamed, [""; 0]);
    let rejected: Vec<_> = outcome.rejected_valid.iter().map(String::as_str).collect();
    assert_eq!(rejected, REJECTED);
    assert!(
        outcome.agreed > 700 && outcome.refused < 170,
        "{} agreed, {} refused",
        outcome.agreed,
        outcome.refused
    );
}

#[test]
fn optional_tests_and_draft_7_accept_no_invalid_instance() {
    let Some(folder) = gyrus_testkit::data("json-schema/tests") else { return };
    let (vocabulary, mut outcome) = (common::bytes(), Outcome::default());
    for part in ["draft2020-12/optional", "draft2020-12/optional/format", "draft7"] {
        run(&vocabulary, &folder.join(part), &mut outcome);
    }
    assert_eq!(outcome.accepted_invalid, [""; 0]);
    assert!(outcome.agreed > 900, "{} agreed, {} refused", outcome.agreed, outcome.refused);
}
