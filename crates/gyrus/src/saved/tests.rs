//! Files that are damaged, forged or of others: each is refused by name, or does what its own session may do.

use gyrus_kernels::Precision;
use gyrus_testkit::{Rng, cases, data};

use super::file::seal;
use super::*;
use crate::{Model, Options, Prompt, Request, Session};

fn open(name: &str, change: impl FnOnce(&mut Options)) -> Option<Model> {
    let mut options = Options {
        context: Some(128),
        sessions: 3,
        threads: Some(1),
        session_files: true,
        ..Options::default()
    };
    change(&mut options);
    Some(Model::open(&data(&format!("tiny/{name}"))?, &options).unwrap())
}

fn talk(model: &Model) -> Session {
    let mut session = model.session();
    session.prefill(&(0..69).map(|i| i * 7 % 90).collect::<Vec<_>>()).unwrap();
    session
}

fn saved(model: &Model) -> Vec<u8> {
    let mut file = Vec::new();
    talk(model).save(&mut file, b"attached").unwrap();
    file
}

fn error(model: &Model, file: &[u8]) -> String {
    match model.load_session(&mut &file[..], file.len() as u64) {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn sessions_of_others_are_refused_by_name() {
    let Some(model) = open("llama", |_| {}) else { return };
    let file = saved(&model);
    for (name, change, complaint) in [
        ("qwen3", None, "it is a session of another model: of 'llama' ("),
        ("llama", Some(Precision::Exact), "its precision is fast, but here it is exact"),
    ] {
        let Some(other) = open(name, |options| options.precision = change.unwrap_or(options.precision))
        else {
            return;
        };
        let error = error(&other, &file);
        assert!(error.starts_with("the session: ") && error.contains(complaint), "{error}");
    }
    let Some(reference) = open("llama", |options| options.device = crate::Device::Reference) else { return };
    assert!(error(&reference, &file).contains("its device is the CPU, but here it is the scalar reference"));
    let unsaved = reference.session().save(&mut Vec::new(), b"").unwrap_err().to_string();
    assert_eq!(unsaved, "the session: sessions cannot be saved on the scalar reference");
    let Some(without) = open("llama", |options| options.session_files = false) else { return };
    assert!(error(&without, &file).contains("Options::session_files is needed"));
    let Some(small) = open("llama", |options| options.context = Some(64)) else { return };
    assert!(error(&small, &file).contains("69 tokens, which does not fit into the context of 64"));
}

#[test]
fn a_damaged_file_is_refused_and_says_where() {
    let Some(model) = open("llama", |_| {}) else { return };
    let file = saved(&model);
    assert_eq!(check_session_file(&mut &file[..], file.len() as u64).unwrap(), (69, 69));
    for length in (0..file.len()).step_by(97).chain(file.len() - 40..file.len()) {
        let error = error(&model, &file[..length]);
        let known = ["no saved session", "incomplete or damaged"];
        assert!(known.iter().any(|known| error.contains(known)), "{length} bytes: {error}");
    }
    assert!(error(&model, &[&file[..], b"x"].concat()).contains("incomplete or damaged"));
    // Every byte of the head, and some of the rest.
    for at in (0..2048).chain((2048..file.len()).step_by(211)) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x20;
        let error = error(&model, &damaged);
        let known = ["no saved session", "of version", "damaged", "header is malformed"];
        assert!(known.iter().any(|known| error.contains(known)), "byte {at}: {error}");
    }
    let mut damaged = file.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let error = error(&model, &damaged);
    assert!(error.contains("the cache of KV group 0 at positions 0 to 95 is damaged"), "{error}");
    // The cache has all its blocks again.
    let mut sessions = [model.session(), model.session(), model.session()];
    sessions.iter_mut().for_each(|session| session.prefill(&[1; 128]).unwrap());
}

/// A file with sound checksums whose numbers are changed: it is refused, or it is a session that goes on.
#[test]
fn a_forged_file_does_no_harm() {
    for name in ["llama", "gemma3", "qwen35"] {
        let Some(model) = open(name, |_| {}) else { return };
        let file = saved(&model);
        let end = 20 + u32::from_le_bytes(*file[16..].first_chunk().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&file[20..end]).unwrap();
        let mut rng = Rng::new(11);
        let (mut refused, mut went_on) = (0, 0);
        for _ in 0..cases(400) {
            let mut header = header.clone();
            for _ in 0..1 + rng.below(2) {
                let names = ["tokens", "positions", "known", "length", "attachment", "record_bytes", "first"];
                let name = *rng.pick(&names);
                let value = match rng.below(4) {
                    0 => *rng.pick(&[0, 1, 31, 32, 33, 64, 68, 69, 70, 96, 128]),
                    1 => u64::MAX - rng.below(3) as u64,
                    2 => 1 << rng.below(64),
                    _ => rng.below(200) as u64,
                };
                let group = rng.below(header["groups"].as_array().unwrap().len());
                match (name, rng.below(6)) {
                    ("first", 0) => header["groups"][group]["layers"] = value.into(),
                    ("first", 1) => header["groups"][group]["window"] = value.into(),
                    ("first", _) => header["groups"][group]["first"] = value.into(),
                    (name, 0) => header[name] = serde_json::Value::Null,
                    (name, _) => header[name] = value.into(),
                }
            }
            let json = header.to_string().into_bytes();
            let mut forged = file[..16].to_vec();
            forged.extend((json.len() as u32).to_le_bytes());
            forged.extend(&json);
            forged.extend([0; 16]);
            let behind = file.len() - end - 16;
            let wanted = Header::parse(&json).ok().and_then(|header| header.bytes_behind(16));
            let wanted = wanted.filter(|bytes| *bytes < 1 << 22).map_or(behind, |bytes| bytes as usize);
            // Tokens of the vocabulary, rows of prompts, and a cache of small numbers.
            let count = header["tokens"].as_u64().unwrap_or(0).saturating_mul(4);
            let byte = |at: usize| match at as u64 {
                at if at < count => {
                    if at.is_multiple_of(4) {
                        (at % 90) as u8
                    } else {
                        0
                    }
                }
                at if at < count.saturating_add(1024) => 0,
                at => (at % 40) as u8,
            };
            forged.extend((0..wanted).map(byte));
            seal(&mut forged);
            match model.load_session(&mut &forged[..], forged.len() as u64) {
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
                Ok((mut session, _)) => {
                    let request = Request::new(Prompt::Continue).max_tokens(2);
                    if let Ok(mut generation) = session.generate(request) {
                        while let Ok(Some(_)) = generation.next() {}
                    }
                    went_on += 1;
                }
            }
        }
        assert!(refused > 0 && went_on > 0, "{name}: {refused} refused, {went_on} went on");
        // What a file says is in its blocks is found by its own session only.
        let tokens = talk(&model).tokens().to_vec();
        let mut other = model.session();
        let mut generation = other.generate(Request::ids(tokens)).unwrap();
        while let Some(event) = generation.next().unwrap() {
            if let crate::Event::Prompt { cached, .. } = event {
                assert!(cached <= 68);
            }
        }
    }
}

/// Blocks of a file are not shared with sessions of the same tokens.
#[test]
fn the_cache_of_a_file_is_its_own() {
    let Some(model) = open("llama", |_| {}) else { return };
    let Some(fresh) = open("llama", |_| {}) else { return };
    let file = saved(&model);
    let (mut session, _) = fresh.load_session(&mut &file[..], file.len() as u64).unwrap();
    let cached_of = |session: &mut Session, prompt: Prompt| {
        let mut generation = session.generate(Request::new(prompt).max_tokens(3)).unwrap();
        let mut found = None;
        while let Some(event) = generation.next().unwrap() {
            if let crate::Event::Prompt { cached, .. } = event {
                found = Some(cached);
            }
        }
        found
    };
    let tokens = session.tokens().to_vec();
    // Its blocks are registered when it goes on.
    assert_eq!(cached_of(&mut session, Prompt::Continue), Some(68));
    assert_eq!(cached_of(&mut fresh.session(), Prompt::Ids(tokens.clone())), Some(0));
    let mut fork = session.fork().unwrap();
    assert_eq!(cached_of(&mut fork, Prompt::Continue), Some(tokens.len() + 2));
}
