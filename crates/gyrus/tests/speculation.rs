//! Requests with speculation give the tokens that they give without: greedy, sampled, penalised and constrained, alone and
//! beside others.
//!
//! CI runs a few prompts on a small model; `scripts/verify` runs 50 on SmolLM2 (`GYRUS_CASES`).

use std::sync::Arc;

use gyrus::constrain::Source;
use gyrus::{Drafter, Event, Lookup, Message, Model, Options, Request, Sampler, Speculation, Usage};
use gyrus_testkit::{cases, data, model};

const TOPICS: [&str; 10] = [
    "a lighthouse",
    "a river",
    "the moon",
    "a small dog",
    "an old clock",
    "the sea",
    "a letter",
    "a garden",
    "the winter",
    "a train",
];

/// Prompts with much to copy, and with little.
fn prompt(number: usize) -> String {
    let topic = TOPICS[number % TOPICS.len()];
    match number / TOPICS.len() % 5 {
        0 => format!("Tell me about {topic}."),
        1 => format!(
            "Repeat this text and replace '{topic}' by 'it': {topic} was there in the morning. We saw {topic} again at \
             noon, and in the evening {topic} was gone. Nobody knew where {topic} went."
        ),
        2 => format!("List ten words about {topic}, then the same ten words again."),
        3 => format!(
            "def describe(x):\n    return 'here is {topic}: ' + x\n\nRewrite this function with a docstring."
        ),
        _ => format!("Say '{topic}' twenty times."),
    }
}

fn request(number: usize) -> Request {
    let sampler = match number % 3 {
        0 => Sampler::default(),
        1 => Sampler { temperature: 0.8, top_p: 0.95, seed: number as u64, ..Sampler::default() },
        _ => Sampler { repetition_penalty: 1.1, temperature: 0.5, seed: number as u64, ..Sampler::default() },
    };
    let request = Request::messages([Message::user(&prompt(number))]).sampler(sampler).max_tokens(96);
    let request = if number % 4 == 3 { request.top_logprobs(2) } else { request };
    match number % 5 {
        4 => request.constraint(Source::Regex("([a-z]+ ){3,40}(the end)?\\.".to_owned())),
        _ => request,
    }
}

/// Guesses wherever the text occurred before, whatever that costs.
#[derive(Debug)]
struct Eager(Lookup);

impl Drafter for Eager {
    fn push(&mut self, token: u32) {
        self.0.push(token);
    }

    fn evidence(&self) -> usize {
        self.0.evidence()
    }

    fn is_eager(&self) -> bool {
        true
    }

    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
        self.0.guess(most, guesses);
    }
}

/// Tokens with the bits of their log-probabilities.
fn generate(model: &Model, request: Request) -> (Vec<(u32, Option<u32>)>, Usage) {
    let mut session = model.session();
    let mut generation = session.generate(request).unwrap();
    let (mut tokens, mut usage) = (Vec::new(), Usage::default());
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Token { id, logprob, .. } => tokens.push((id, logprob.map(f32::to_bits))),
            Event::Stop { usage: of_stop, .. } => usage = of_stop,
            _ => {}
        }
    }
    (tokens, usage)
}

#[test]
fn text_is_the_same_with_and_without() {
    let small = || data("tales/tales-7m-q8_0.gguf");
    let (count, path) = match cases(0) {
        0 => (20, small()),
        count => (count.min(50), model("SmolLM2-135M-Instruct.Q4_1.gguf").or_else(small)),
    };
    let Some(path) = path else { return };
    let options = Options { sessions: 8, context: Some(512), ..Options::default() };
    let model = Model::open(&path, &options).unwrap();
    let expected: Vec<_> = (0..count).map(|number| generate(&model, request(number)).0).collect();
    let (mut drafted, mut accepted) = (0, 0);
    for (number, expected) in expected.iter().enumerate() {
        let (found, usage) = generate(&model, request(number).speculation(Speculation::Lookup));
        assert_eq!(&found, expected, "prompt {number}: {}", prompt(number));
        assert!(usage.accepted_tokens <= usage.drafted_tokens);
        // An end token may be guessed, too.
        assert!(usage.accepted_tokens <= usage.generated_tokens);
        (drafted, accepted) = (drafted + usage.drafted_tokens, accepted + usage.accepted_tokens);
    }
    println!("{accepted} of {drafted} guesses in {count} prompts");
    // How many drafts are made depends on times, and may be none. These do not depend on them.
    let eager = || Speculation::Custom(Arc::new(|tokens: &[u32]| Box::new(Eager(Lookup::new(tokens)))));
    let (mut made, mut right) = (0, 0);
    for (number, expected) in expected.iter().enumerate() {
        let (found, usage) = generate(&model, request(number).speculation(eager()));
        assert_eq!(&found, expected, "prompt {number} with all drafts: {}", prompt(number));
        (made, right) = (made + usage.drafted_tokens, right + usage.accepted_tokens);
    }
    println!("{right} of {made} guesses of all drafts");
    // Single prompts may have nothing to copy.
    assert!(count < 10 || right > count, "{right} of {made} guesses");
    (drafted, accepted) = (drafted + made, accepted + right);
    let done = model.statistics();
    assert_eq!((done.drafted_tokens, done.accepted_tokens), (drafted as u64, accepted as u64));
    // Eight at a time, every second of which speculates.
    let _driver = model.drive().unwrap();
    for first in (0..count).step_by(8) {
        std::thread::scope(|scope| {
            for number in first..(first + 8).min(count) {
                let (model, expected) = (&model, &expected);
                scope.spawn(move || {
                    let request = request(number);
                    let request =
                        if number % 2 == 0 { request.speculation(Speculation::Lookup) } else { request };
                    assert_eq!(generate(model, request).0, expected[number], "prompt {number} beside others");
                });
            }
        });
    }
}

/// A draft model changes no token. Models of other vocabularies are
/// refused by the first token that differs.
#[test]
fn draft_models_change_no_token() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let options = Options { context: Some(512), ..Options::default() };
    let [target, draft] = [(); 2].map(|()| Model::open(&path, &options).unwrap());
    let speculation = Speculation::model(&target, draft).unwrap();
    for number in 0..15 {
        let (expected, _) = generate(&target, request(number));
        let (found, usage) = generate(&target, request(number).speculation(speculation.clone()));
        assert_eq!(found, expected, "prompt {number}");
        assert!(usage.accepted_tokens <= usage.drafted_tokens);
    }
    let Some(other) = model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let other = Model::open(&other, &options).unwrap();
    for refused in [Speculation::model(&target, other.clone()), Speculation::model(&other, target.clone())] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("another vocabulary"), "{error}");
    }
}
