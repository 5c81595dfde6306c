//! `gyrus pull` of SafeTensors repositories, with a server on this machine for the hub.

#![cfg(feature = "download")]

mod hub;
mod server;

use std::collections::BTreeMap;
use std::fs;

use gyrus_testkit::{Rng, data};
use hub::{Cache, ranged, said, sha256};
use server::{Answer, Request, Server};

const REPOSITORY: &str = "hf:owner/repo";
const FOLDER: &str = "models/hf/owner/repo";

type Files = BTreeMap<String, Vec<u8>>;

/// A hub with these files: weights lie in a store and have a SHA-256, other files are answered by the hub itself.
fn repository(files: Files, store: impl Fn(&Request, Answer) -> Answer + Send + Sync + 'static) -> Server {
    Server::start(move |request, _| {
        let name = request.path.rsplit('/').next().unwrap_or_default();
        let Some(content) = files.get(name) else { return Answer::new(404, &[], b"no such file") };
        if request.path == format!("/store/{name}") {
            return store(request, ranged(request, content));
        }
        assert_eq!(request.path, format!("/owner/repo/resolve/main/{name}"));
        if !name.ends_with(".safetensors") {
            return Answer::new(200, &[("etag", "\"0123456789abcdef\"")], content);
        }
        let (tag, size) = (format!("\"{}\"", sha256(content)), content.len().to_string());
        let place = format!("/store/{name}");
        Answer::new(302, &[("x-linked-etag", &*tag), ("x-linked-size", &size), ("location", &place)], b"")
    })
}

/// A model in two shards. Its weights are no model; they are only pulled.
fn sharded() -> Files {
    let mut rng = Rng::new(11);
    let index = r#"{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}}"#;
    [
        ("config.json", b"{}".to_vec()),
        ("generation_config.json", b"{ }".to_vec()),
        ("tokenizer.json", rng.bytes(500)),
        ("chat_template.jinja", b"{{ x }}".to_vec()),
        ("README.md", b"not pulled".to_vec()),
        ("model.safetensors.index.json", index.as_bytes().to_vec()),
        ("model-00001-of-00002.safetensors", rng.bytes(300_000)),
        ("model-00002-of-00002.safetensors", rng.bytes(200_000)),
    ]
    .into_iter()
    .map(|(name, content)| (name.to_owned(), content))
    .collect()
}

/// Pulls the repository, which must work.
fn pull(cache: &Cache, server: &Server, flags: &[&str]) -> String {
    let output = cache.gyrus(server, &[&["pull", REPOSITORY], flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let path = cache.root().join(FOLDER);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", path.display()));
    said(&output)
}

/// Pulls the repository, which must fail, and returns the error.
fn failure(cache: &Cache, server: &Server, flags: &[&str]) -> String {
    let output = cache.gyrus(server, &[&["pull", REPOSITORY], flags].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(output.stdout.is_empty());
    said(&output)
}

/// The files in the folder that are not about other files.
fn pulled(cache: &Cache) -> Files {
    let names = cache.files().into_iter().filter_map(|name| Some(name.strip_prefix(FOLDER)?[1..].to_owned()));
    let names = names.filter(|name| !name.ends_with(".origin.json") && name != "gyrus-files.json");
    names.map(|name| (name.clone(), fs::read(cache.root().join(FOLDER).join(&name)).unwrap())).collect()
}

#[test]
fn the_files_of_a_model_are_pulled_once() {
    let (cache, mut files) = (Cache::new(), sharded());
    let server = repository(files.clone(), |_, answer| answer);
    let line = pull(&cache, &server, &[]);
    assert!(line.starts_with("hf:owner/repo: pulled 489 KiB in "), "{line}");
    files.remove("README.md");
    assert_eq!(pulled(&cache), files);
    let asked = server.requests().len();
    assert_eq!(pull(&cache, &server, &[]), "hf:owner/repo: already in the cache\n");
    let verified = pull(&cache, &server, &["--verify"]);
    assert_eq!(verified, "hf:owner/repo: already in the cache, with the right checksum\n");
    assert_eq!(server.requests().len(), asked);

    // The shards are one model in the list.
    let listed = cache.gyrus(&server, &["models", "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let listed: Vec<_> = listed.iter().filter(|m| m["name"].as_str().unwrap().starts_with("hf:")).collect();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0]["name"], &listed[0]["bytes"]), (&REPOSITORY.into(), &500_000.into()));
    assert_eq!(listed[0]["path"].as_str(), cache.root().join(FOLDER).to_str());

    // Damage is found, a lost file is pulled again, and all can be.
    let shard = cache.root().join(FOLDER).join("model-00002-of-00002.safetensors");
    let mut damaged = fs::read(&shard).unwrap();
    damaged[5] ^= 1;
    fs::write(&shard, &damaged).unwrap();
    let error = failure(&cache, &server, &["--verify"]);
    assert!(error.contains("model-00002-of-00002.safetensors has a wrong checksum"), "{error}");
    assert!(error.contains(&sha256(&damaged)), "{error}");
    pull(&cache, &server, &["--force"]);
    assert_eq!(pulled(&cache), files);
    fs::remove_file(&shard).unwrap();
    let line = pull(&cache, &server, &[]);
    assert!(
        line.contains("model-00002-of-00002.safetensors is missing in the cache; pulling it again"),
        "{line}"
    );
    assert_eq!(pulled(&cache), files);

    let pruned = cache.gyrus(&server, &["cache", "prune", "--models", "--yes"]);
    assert_eq!(pruned.status.code(), Some(0), "{}", said(&pruned));
    assert_eq!(cache.files(), Vec::<String>::new());
}

#[test]
fn a_pull_that_was_cut_goes_on_in_the_file_it_was_cut_in() {
    let (cache, mut files) = (Cache::new(), sharded());
    let server = repository(files.clone(), |request, answer| match request.path.contains("00002-of") {
        true if request.range_from().is_some() => Answer::new(503, &[], b"busy"),
        true => answer.cut(150_000),
        false => answer,
    });
    let error = failure(&cache, &server, &[]);
    assert!(error.contains("cut off after 146 KiB of 195 KiB"), "{error}");
    // It is no model yet.
    let offline =
        cache.command(&server.url, &["pull", REPOSITORY]).env("GYRUS_OFFLINE", "1").output().unwrap();
    assert!(said(&offline).contains("hf:owner/repo is not in the cache, and GYRUS_OFFLINE is set"));
    let server = repository(files.clone(), |_, answer| answer);
    pull(&cache, &server, &[]);
    files.remove("README.md");
    assert_eq!(pulled(&cache), files);
    assert_eq!(server.ranges("/store/model-00001-of-00002.safetensors"), []);
    assert_eq!(server.ranges("/store/model-00002-of-00002.safetensors"), [Some(150_000)]);
}

#[test]
fn what_is_no_safetensors_model_is_refused() {
    let refused = |change: &dyn Fn(&mut Files)| {
        let (cache, mut files) = (Cache::new(), sharded());
        change(&mut files);
        let server = repository(files, |_, answer| answer);
        let error = failure(&cache, &server, &[]);
        assert!(!cache.files().iter().any(|name| name.ends_with("gyrus-files.json")), "{error}");
        error
    };
    let index = |text: &str| {
        let text = text.as_bytes().to_vec();
        move |files: &mut Files| drop(files.insert("model.safetensors.index.json".to_owned(), text.clone()))
    };
    let error = refused(&|files| drop(files.remove("config.json")));
    assert!(error.contains("it has no config.json, so it is not a SafeTensors model"), "{error}");
    assert!(error.contains("hf:owner/repo/FILE"), "{error}");
    let error = refused(&|files| drop(files.remove("model-00002-of-00002.safetensors")));
    assert!(error.contains("names model-00002-of-00002.safetensors, which the hub does not have"), "{error}");
    let error = refused(&|files| drop(files.remove("model.safetensors.index.json")));
    assert!(error.contains("it has neither model.safetensors nor model.safetensors.index.json"), "{error}");
    for bad in ["../x.safetensors", "sub/x.safetensors", ".x.safetensors", "x\\u001b.safetensors"] {
        let error = refused(&index(&format!(r#"{{"weight_map": {{"a": "{bad}"}}}}"#)));
        assert!(error.contains("weight_map") || error.contains("cannot be part of a file's name"), "{error}");
        assert!(!error.contains('\u{1b}'));
    }
    assert!(refused(&index("[")).contains("model.safetensors.index.json"));
}

#[test]
fn a_repository_runs_by_its_name() {
    let Some(source) = data("tiny/llama") else { return };
    let read = |name: &str| (name.to_owned(), fs::read(source.join(name)).unwrap());
    let server = repository(["config.json", "model.safetensors"].map(read).into(), |_, answer| answer);
    let cache = Cache::new();
    let out = cache.0.path().join("logits.npy");
    let arguments = ["logits", REPOSITORY, "--ids", "1,2", "--out", out.to_str().unwrap()];
    let output = cache.gyrus(&server, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let logits = fs::read(&out).unwrap();
    fs::remove_file(&out).unwrap();
    let asked = server.requests().len();
    let output = cache.command(&server.url, &arguments).env("GYRUS_OFFLINE", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(fs::read(&out).unwrap() == logits);
    assert_eq!(server.requests().len(), asked);
}
