//! Greedy completions that equal those of other programs, token for token.

use gyrus::{Event, Model, Options, Precision, Request, StopReason};
use gyrus_testkit::{data, oracle};

fn open(name: &str, precision: Precision) -> Option<Model> {
    let options = Options { precision, ..Options::default() };
    Some(Model::open(&data(name)?, &options).unwrap())
}

fn greedy(model: &Model, request: Request) -> (Vec<u32>, String, StopReason) {
    let mut session = model.session();
    let mut generation = session.generate(request).unwrap();
    let (mut ids, mut completion) = (Vec::new(), String::new());
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Text { text, .. } => completion.push_str(text),
            Event::Stop { reason, .. } => return (ids, completion, reason),
            _ => {}
        }
    }
    panic!("no stop");
}

/// The completion of "Once upon a time" in PyTorch and llama.cpp.
const TALE: &str = ", there was a little girl named Lily. She loved to play outside in the sunshine. One day, \
    she saw a big, red ball in the sky. It was so pretty! She wanted to touch it, but it was too high up.\n\
    Lily's mom came outside and saw her looking up at the sky";
const TALE_IDS: [u32; 64] = [
    12, 369, 282, 259, 351, 417, 370, 306, 14, 329, 406, 265, 318, 510, 326, 263, 1601, 14, 413, 322, 12,
    335, 377, 259, 359, 12, 736, 507, 326, 263, 840, 14, 475, 282, 380, 675, 1, 329, 428, 265, 1240, 307, 12,
    389, 307, 282, 483, 934, 340, 14, 199, 298, 345, 328, 514, 510, 267, 377, 300, 1201, 340, 477, 263, 840,
];

#[test]
fn tales_completes_as_in_pytorch_and_llama_cpp() {
    for precision in [Precision::Exact, Precision::Fast] {
        let Some(model) = open("tales/tales-7m-q8_0.gguf", precision) else { return };
        let (ids, text, reason) = greedy(&model, Request::text("Once upon a time").max_tokens(64));
        assert_eq!(ids, TALE_IDS, "{precision:?}");
        assert_eq!(text, TALE);
        assert_eq!(reason, StopReason::MaxTokens);
    }
}

#[test]
fn tales_completes_equally_from_safetensors() {
    // The bf16 original of the quantised GGUF, with the tokenizer.json beside it.
    let Some(model) = open("tales", Precision::Exact) else { return };
    let (ids, text, _) = greedy(&model, Request::text("Once upon a time").max_tokens(64));
    assert_eq!(ids, TALE_IDS);
    assert_eq!(text, TALE);
}

#[test]
fn stories260k_in_f32_completes_as_in_llama_cpp() {
    let name = "stories260K/stories260K.gguf";
    let Some(model) = open(name, Precision::Exact) else { return };
    let prompt = "Once upon a time";
    let (ids, text, _) = greedy(&model, Request::text(prompt).max_tokens(200).ignore_end(true));
    assert!(
        text.starts_with(", there was a little girl named Lily. She loved to play outside in the park."),
        "{text}"
    );
    let tokenizer = model.tokenizer().unwrap();
    let start = tokenizer.encode(prompt, gyrus::text::Special::Literal, true);
    let mut arguments =
        vec!["greedy".to_owned(), data(name).unwrap().display().to_string(), "200".to_owned()];
    arguments.extend(start.iter().map(u32::to_string));
    let Some(printed) = oracle("llama_cpp.py", &arguments) else { return };
    let expected: Vec<u32> = printed.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids, expected);
}
