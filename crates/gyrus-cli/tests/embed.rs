//! `gyrus embed` and `gyrus rerank`.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{refused, run, said, stdout};
use gyrus_testkit::{npy, repository, tempfile};

fn model(name: &str) -> String {
    let path: PathBuf = repository().join("tests/data/encoders").join(name);
    path.to_str().unwrap().to_owned()
}

fn vectors(text: &str) -> Vec<Vec<f32>> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn texts_come_from_arguments_lines_and_files() {
    let bert = model("bert");
    let of_arguments = vectors(&stdout(&["embed", &bert, "a cat", "the old bridge", "-q"], ""));
    assert_eq!((of_arguments.len(), of_arguments[0].len()), (2, 32));
    let of_lines = vectors(&stdout(&["embed", &bert, "-q"], "a cat\n\nthe old bridge\n"));
    assert_eq!(of_lines, of_arguments);
    let text = stdout(&["embed", &bert, "a cat", "-q", "--format", "text"], "");
    let numbers: Vec<f32> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(numbers, of_arguments[0]);

    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    fs::create_dir_all(notes.join("more")).unwrap();
    fs::write(notes.join("b.txt"), "the old bridge").unwrap();
    fs::write(notes.join("a.txt"), "a cat").unwrap();
    fs::write(notes.join("more/picture"), [0xff, 0xd8]).unwrap();
    let out = folder.path().join("x.npy");
    let (notes, out_name) = (notes.to_str().unwrap(), out.to_str().unwrap());
    let output = run(&["embed", &bert, "--files", notes, "--out", out_name], "");
    assert!(output.status.success(), "{}", said(&output));
    let names: Vec<String> =
        String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect();
    assert!(names.len() == 2 && names[0].ends_with("a.txt") && names[1].ends_with("b.txt"), "{names:?}");
    assert!(said(&output).contains("picture: skipped, it is no text"), "{}", said(&output));
    assert!(said(&output).contains("32 dimensions, mean pooling, up to 128 tokens"), "{}", said(&output));
    let array = npy::read_f32(&out);
    assert_eq!(array.shape, [2, 32]);
    assert_eq!(array.values, of_arguments.concat());
}

#[test]
fn options_change_the_vectors() {
    let bert = model("bert");
    let of = |flags: &[&str]| {
        let fixed = ["embed", &bert, "a cat", "-q"];
        vectors(&stdout(&[&fixed, flags].concat(), "")).remove(0)
    };
    let plain = of(&[]);
    assert_eq!(of(&["--dimensions", "5"]).len(), 5);
    assert_eq!(of(&["--prompt", "query"]), of(&["--prompt-text", "find: "]));
    assert_ne!(of(&["--prompt", "query"]), plain);
    assert_ne!(of(&["--pooling", "cls"]), plain);
    let length = |vector: Vec<f32>| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(plain) - 1.0).abs() < 1e-5);
    assert!((length(of(&["--normalize", "false"])) - 1.0).abs() > 1e-3);
}

#[test]
fn documents_are_ordered() {
    let ranker = model("bert-reranker");
    let documents = "snow in winter\nthe old bridge\na red ship sails\n";
    let ranked = stdout(&["rerank", &ranker, "a ship", "-q"], documents);
    let scores: Vec<f32> =
        ranked.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert!(scores.len() == 3 && scores.windows(2).all(|pair| pair[0] >= pair[1]), "{ranked}");
    let json = stdout(&["rerank", &ranker, "a ship", "-q", "--json", "--top", "1"], documents);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let first = ranked.lines().next().unwrap().split('\t').nth(2).unwrap();
    assert_eq!(json[0]["document"], first);
    assert_eq!(json.as_array().unwrap().len(), 1);
    // Results name lines of the file, blank ones included.
    let spaced = format!("\n\n{}", documents.replace('\n', "\n\n"));
    let json = stdout(&["rerank", &ranker, "a ship", "-q", "--json"], &spaced);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for (line, one) in ranked.lines().zip(json.as_array().unwrap()) {
        let number: u64 = line.split('\t').nth(1).unwrap().parse().unwrap();
        assert_eq!(one["index"].as_u64(), Some(2 * number));
    }
    let by_number = stdout(&["rerank", &ranker, "a ship", "-q"], &spaced);
    let first: u64 = by_number.split('\t').nth(1).unwrap().parse().unwrap();
    assert_eq!(json[0]["index"].as_u64(), Some(first - 1));
}

#[test]
fn what_cannot_be_embedded_is_refused_with_a_line() {
    let (bert, ranker) = (model("bert"), model("bert-reranker"));
    let llama = repository().join("tests/data/tiny/llama");
    let llama = llama.to_str().unwrap();
    let long = "cat ".repeat(200);
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines.txt");
    fs::write(&lines, "a cat\na bridge\n").unwrap();
    let lines = lines.to_str().unwrap();
    for (args, part) in [
        (vec!["embed", &bert, "x", &long, "-q"], "text 2 has 202 tokens, at most 128 are possible"),
        (vec!["embed", &bert, "x", "--prompt", "poem", "-q"], "there are: document, query"),
        (vec!["embed", llama, "x", "-q"], "a language model without settings for embeddings"),
        (vec!["run", &bert, "x"], "'bert' is a text encoder, which generates no text"),
        (vec!["rerank", &bert, "x", "-q", "--documents", "/nowhere"], "/nowhere"),
        (vec!["embed", &ranker, "-q"], "there is no text to embed"),
        (
            vec!["rerank", &ranker, "x", "--instruction", "y", "--documents", lines, "-q"],
            "an instruction: the model is a cross-encoder",
        ),
    ] {
        let said = refused(&args, 1);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    assert!(refused(&["embed", &bert, "--files", "."], 2).contains("--out"));
}
