//! Masks, commits, triggers, forced tokens and limits.

mod common;

use gyrus_constrain::template::Part;
use gyrus_constrain::{Error, Limits, Piece, Source, State, Vocabulary};
use gyrus_testkit::Rng;

const WORDS: [&str; 20] = [
    "<end>", "{", "}", "\"", "a", "b", ":", "1", "2", ",", "{\"", "\":", "1}", "</", "think", ">", ">{\"",
    ">x", "> \n", "</think>",
];

fn words(encode: bool) -> Vocabulary {
    let pieces = WORDS.iter().enumerate();
    let pieces =
        pieces.map(
            |(id, word)| if id == 0 { Piece::Control(word.as_bytes()) } else { Piece::Text(word.as_bytes()) },
        );
    // The longest token first, as a stand-in for a tokenizer.
    let greedy = |text: &[u8]| {
        let (mut ids, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let fits = (1..WORDS.len()).filter(|&id| rest.starts_with(WORDS[id].as_bytes()));
            let Some(id) = fits.max_by_key(|&id| WORDS[id].len()) else { return Vec::new() };
            ids.push(id as u32);
            rest = &rest[WORDS[id].len()..];
        }
        ids
    };
    Vocabulary::new(pieces, &[0], if encode { Some(Box::new(greedy)) } else { None }, Limits::default())
        .unwrap()
}

fn allowed(state: &mut State) -> Vec<&'static str> {
    let mut mask = [u32::MAX; 2];
    state.mask(&mut mask).unwrap();
    assert_eq!(mask[1], 0, "bits beyond the vocabulary are zero");
    (0..32).filter(|id| mask[0] >> id & 1 == 1).map(|id| WORDS[id]).collect()
}

fn feed(state: &mut State, tokens: &[&str]) {
    for token in tokens {
        state.commit(WORDS.iter().position(|word| word == token).unwrap() as u32).unwrap();
    }
}

const AB: &str =
    r#"{"type":"object","properties":{"a":{"enum":[1,12]}},"required":["a"],"additionalProperties":false}"#;

#[test]
fn masks_have_the_tokens_that_continue_and_the_end_when_complete() {
    let mut state = words(false).compile(&Source::Schema(AB.into())).unwrap().start();
    assert_eq!(allowed(&mut state), ["{", "{\""]);
    feed(&mut state, &["{\"", "a", "\":"]);
    assert_eq!(allowed(&mut state), ["1", "1}"]);
    feed(&mut state, &["1"]);
    assert_eq!(allowed(&mut state), ["}", "2"]);
    assert!(!state.is_complete());
    feed(&mut state, &["2", "}"]);
    assert!(state.is_complete() && state.is_finished());
    assert_eq!(allowed(&mut state), ["<end>"]);
    feed(&mut state, &["<end>"]);
    assert_eq!(allowed(&mut state), ["<end>"]);
    assert!(state.is_finished());
}

#[test]
fn a_complete_text_may_go_on() {
    let mut state = words(false).compile(&Source::Regex("[12]+".into())).unwrap().start();
    assert_eq!(allowed(&mut state), ["1", "2"]);
    feed(&mut state, &["1"]);
    assert_eq!(allowed(&mut state), ["<end>", "1", "2"]);
    assert!(state.is_complete() && !state.is_finished());
    feed(&mut state, &["<end>"]);
    assert!(state.is_finished());
}

#[test]
fn refused_tokens_change_nothing() {
    let mut state = words(false).compile(&Source::Schema(AB.into())).unwrap().start();
    for token in [0, 2, 19, 20, 1 << 30] {
        assert!(matches!(state.commit(token), Err(Error::Token { position: 0, .. })), "{token}");
    }
    assert_eq!(allowed(&mut state), ["{", "{\""]);
    assert_eq!(state.mask(&mut []), Err(Error::MaskSize { words: 0, tokens: 20 }));
}

#[test]
fn tokens_are_taken_back_and_drafts_are_checked() {
    let constraint = words(false).compile(&Source::Schema(AB.into())).unwrap().after("</think>");
    let mut state = constraint.start();
    let id = |word: &str| WORDS.iter().position(|known| *known == word).unwrap() as u32;
    let draft = ["a", "</", "think", ">{\"", "a", "\":", "1}", "<end>", "a"].map(id);
    assert_eq!(state.accepted(&draft), 8);
    assert_eq!(state.position(), 0);
    let mut masks = Vec::new();
    for &token in &draft[..8] {
        masks.push(allowed(&mut state));
        state.commit(token).unwrap();
    }
    for mask in masks.iter().rev() {
        state.rollback(1).unwrap();
        assert_eq!(allowed(&mut state), *mask);
    }
    assert_eq!(state.rollback(1), Err(Error::Rollback { asked: 1, committed: 0 }));
}

#[test]
fn a_constraint_begins_behind_its_trigger() {
    let constraint = words(false).compile(&Source::Schema(AB.into())).unwrap().after("</think>");
    let everything: Vec<_> = WORDS[1..].to_vec();
    let mut state = constraint.start();
    assert_eq!(allowed(&mut state), everything);
    assert!(matches!(state.commit(0), Err(Error::Token { .. })), "the end before the trigger");
    feed(&mut state, &["b", "</", "</", "think"]);
    let but_x: Vec<_> = everything.iter().copied().filter(|word| *word != ">x").collect();
    assert_eq!(
        allowed(&mut state),
        but_x,
        "a token must not go on behind the trigger with what the grammar lacks"
    );
    assert!(state.is_waiting() && !state.is_complete());

    let mut spaced = state.clone();
    feed(&mut spaced, &["> \n"]);
    assert_eq!(allowed(&mut spaced), ["{", "{\""]);
    feed(&mut state, &[">{\""]);
    assert!(!state.is_waiting());
    assert_eq!(allowed(&mut state), ["a"]);

    let mut whole = constraint.start();
    feed(&mut whole, &["</think>"]);
    assert_eq!(allowed(&mut whole), ["{", "{\""]);
}

/// gpt-oss writes `<|channel|>final <|constrain|>json<|message|>`, too, which would never complete the trigger.
#[test]
fn a_header_that_has_begun_is_completed() {
    const END: u32 = 256;
    const CONTROLS: [&str; 6] =
        ["<|return|>", "<|start|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|message|>"];
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = bytes.iter().map(|byte| Piece::Text(byte));
    let pieces = pieces.chain(CONTROLS.iter().map(|name| Piece::Control(name.as_bytes())));
    let vocabulary = Vocabulary::new(pieces, &[END], None, Limits::default()).unwrap();
    let constraint = vocabulary.compile(&Source::Schema(AB.into())).unwrap();
    let mut state = constraint.after_header("<|channel|>final", "<|message|>").start();
    // Control tokens, and text by bytes.
    let tokens = |text: &str| {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(&byte) = rest.as_bytes().first() {
            let control = CONTROLS.iter().position(|name| rest.starts_with(name));
            ids.push(control.map_or(u32::from(byte), |at| END + at as u32));
            rest = &rest[control.map_or(1, |at| CONTROLS[at].len())..];
        }
        ids
    };
    let allowed = |state: &mut State| {
        let mut mask = vec![0; vocabulary.mask_words()];
        state.mask(&mut mask).unwrap();
        (0..262).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect::<Vec<u32>>()
    };
    let before = "<|channel|>analysis<|message|>The final {json}.<|end|><|start|>assistant<|channel|>";
    for token in tokens(before) {
        let free = allowed(&mut state);
        assert!(free.len() == 261 && !free.contains(&END), "all but the end");
        state.commit(token).unwrap();
    }
    for token in tokens("final") {
        state.commit(token).unwrap();
    }
    assert_eq!(allowed(&mut state), tokens("<|message|>"));
    for refused in [" ", "<", "<|constrain|>", "<|end|>"] {
        assert!(matches!(state.commit(tokens(refused)[0]), Err(Error::Token { .. })), "{refused}");
    }
    assert!(state.is_waiting());
    state.commit(tokens("<|message|>")[0]).unwrap();
    assert!(!state.is_waiting());
    assert_eq!(allowed(&mut state), tokens("{"));
    for token in tokens("{\"a\":12}") {
        state.commit(token).unwrap();
    }
    assert_eq!(allowed(&mut state), [END]);
    // The header is taken back as a whole.
    state.rollback(9).unwrap();
    assert_eq!(allowed(&mut state), tokens("<|message|>"));
}

/// Where no token is the rest of a header, its parts are.
#[test]
fn a_header_is_completed_by_parts() {
    let constraint = words(false).compile(&Source::Schema(AB.into())).unwrap();
    let mut state = constraint.after_header("b", "</think>{").start();
    assert_eq!(allowed(&mut state), WORDS[1..]);
    feed(&mut state, &["b"]);
    assert_eq!(allowed(&mut state), ["</", "</think>"]);
    feed(&mut state, &["</", "think"]);
    // A token that goes on as the constraint cannot begin is left out.
    assert_eq!(allowed(&mut state), [">"]);
}

#[test]
fn forced_tokens_are_those_of_the_encoder() {
    let source = Source::Regex(r#"\{"a":[12]\}"#.into());
    let constraint = words(true).compile(&source).unwrap();
    let mut state = constraint.start();
    assert!(constraint.after("</think>").start().forced().is_empty());
    let forced = state.forced();
    assert_eq!(forced.iter().map(|&id| WORDS[id as usize]).collect::<Vec<_>>(), ["{\"", "a", "\":"]);
    for token in forced {
        assert_eq!(allowed(&mut state), [WORDS[token as usize]]);
        state.commit(token).unwrap();
    }
    assert!(state.forced().is_empty());
    feed(&mut state, &["2"]);
    assert_eq!(state.forced().len(), 1);
    assert!(words(false).compile(&source).unwrap().start().forced().is_empty());
}

#[test]
fn templates_frame_json_with_texts_and_control_tokens() {
    let pieces = ["<end>", "<call>"].map(|name| Piece::Control(name.as_bytes()));
    let all: Vec<[u8; 1]> = (0..128).map(|byte| [byte]).collect();
    let pieces = pieces.into_iter().chain(all.iter().map(|byte| Piece::Text(byte)));
    let vocabulary = Vocabulary::new(pieces, &[0], None, Limits::default()).unwrap();
    let call = |name: &str| {
        let schema = Part::Schema(r#"{"type":"object","additionalProperties":{"type":"integer"}}"#.into());
        Part::Sequence(vec![
            Part::Marker("<call>".into()),
            Part::text(name),
            schema,
            Part::Marker("</call>".into()),
        ])
    };
    let choice = Part::Choice(vec![call("add"), call("sub")]);
    let source = Source::Template(Part::Repeat { part: Box::new(choice), min: 1, max: Some(2) });
    let constraint = vocabulary.compile(&source).unwrap();
    let accepts = |text: &str| {
        let mut state = constraint.start();
        let mut tokens = Vec::new();
        for (at, part) in text.split("<call>").enumerate() {
            tokens.extend((at > 0).then_some(1));
            tokens.extend(part.bytes().map(|byte| u32::from(byte) + 2));
        }
        tokens.into_iter().all(|token| state.commit(token).is_ok()) && state.is_complete()
    };
    let one = r#"<call>add{"a": 1}</call>"#;
    assert!(accepts(one) && accepts(&one.repeat(2)));
    assert!(!accepts("") && !accepts(&one.repeat(3)) && !accepts(r#"<call>mul{"a":1}</call>"#));
    assert!(!accepts(r#"<call>add{"a":"x"}</call>"#) && !accepts(r#"add{"a":1}</call>"#));
}

#[test]
fn random_walks_stay_inside_and_can_always_go_on() {
    let vocabulary = common::bytes();
    let schema = r#"{"type":"object","properties":{"s":{"type":"string","maxLength":4},"n":{"type":"integer","minimum":-3,
        "maximum":40},"l":{"type":"array","items":{"enum":["x","yy",null]},"maxItems":3}},"required":["s","n","l"],
        "additionalProperties":false}"#;
    let constraint = vocabulary.compile(&Source::Schema(schema.into())).unwrap();
    for seed in 0..20 {
        let (mut rng, mut state, mut text) = (Rng::new(seed), constraint.start(), Vec::new());
        let mut mask = vec![0; vocabulary.mask_words()];
        loop {
            assert!(text.len() < 400, "bounded parts end");
            state.mask(&mut mask).unwrap();
            let allowed: Vec<u32> =
                (0..257).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            assert_eq!(allowed.contains(&common::END), state.is_complete());
            let token = *rng.pick(&allowed);
            state.commit(token).unwrap();
            if token == common::END {
                break;
            }
            text.push(token as u8);
        }
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(
            value["s"].as_str().unwrap().chars().count() <= 4 && value["l"].as_array().unwrap().len() <= 3,
            "{value}"
        );
        // `-0` is an integer, and a float to serde.
        assert!((-3.0..=40.0).contains(&value["n"].as_f64().unwrap()), "{value}");
    }
}

#[test]
fn vocabularies_that_cannot_end_or_are_empty_are_refused() {
    let make = |ends: &[u32]| Vocabulary::new([Piece::Text(b"a")], ends, None, Limits::default()).map(drop);
    assert_eq!(make(&[1]), Err(Error::Vocabulary("end token 1 of 1 tokens".into())));
    assert!(make(&[]).is_err() && make(&[0]).is_ok());
    assert!(Vocabulary::new([], &[], None, Limits::default()).is_err());
    let (long, marker) = (vec![b'a'; 5000], [0xff, b'a']);
    let odd =
        [Piece::Text(&long), Piece::Text(&marker), Piece::Text(b""), Piece::Unused, Piece::Control(b"<end>")];
    let vocabulary = Vocabulary::new(odd, &[4], None, Limits::default()).unwrap();
    assert!(matches!(vocabulary.compile(&Source::Regex("a+".into())), Err(Error::Unsatisfiable { .. })));
}
