//! What constrained requests must give, on any device.

use gyrus::constrain::Source;
use gyrus::tools::ToolChoice;
use gyrus::{Device, Message, Model, Options, Precision, Request, Sampler, StopReason};
use gyrus_testkit::data;
use serde_json::Value;

use crate::completion::{run, tools};

pub(crate) fn tales(device: &Device, sessions: usize) -> Option<Model> {
    let options = Options {
        device: device.clone(),
        precision: Precision::Fast,
        context: Some(512),
        sessions,
        ..Options::default()
    };
    Some(Model::open(&data("tales/tales-7m-q8_0.gguf")?, &options).unwrap())
}

pub(crate) fn sampled(seed: u64) -> Sampler {
    Sampler { temperature: 1.0, seed, ..Sampler::default() }
}

pub(crate) const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":12},
    "age":{"type":"integer","minimum":0,"maximum":120},"tags":{"type":"array","items":{"enum":["red","green"]},
    "maxItems":2}},"required":["name","age","tags"],"additionalProperties":false}"#;

fn is_person(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap();
    let tags = value["tags"].as_array().unwrap();
    value.as_object().unwrap().len() == 3
        && value["name"].as_str().unwrap().chars().count() <= 12
        && (0.0..=120.0).contains(&value["age"].as_f64().unwrap())
        && tags.len() <= 2
        && tags.iter().all(|tag| tag == "red" || tag == "green")
}

fn person(n: u64) -> Request {
    Request::text(format!("Tale {n} is of")).constraint(Source::Schema(PERSON.into())).sampler(sampled(n))
}

/// A few constrained tokens.
fn score(n: u64) -> Request {
    let source = Source::Regex("[a-z]{2,8} [0-9]{1,3}(, [a-z]{2,8} [0-9]{1,3})?".into());
    Request::text(format!("Game {n}:")).constraint(source).sampler(sampled(n))
}

fn story(n: u64) -> Request {
    Request::text(format!("Once upon {n} times")).sampler(sampled(n)).max_tokens(6 + n as usize)
}

/// Constrained text keeps to its grammar and ends where that is complete.
pub(crate) fn texts_keep_to_their_grammars(device: &Device, count: u64) {
    let Some(model) = tales(device, 1) else { return };
    for n in 0..count {
        let [one] = &run(&model, person(n)).unwrap()[..] else { panic!() };
        assert!(is_person(&one.text), "{one:?}");
        assert!(matches!(one.reason, Some(StopReason::EndToken(_))), "{one:?}");
    }
    let choose = |source: Source| {
        let request = Request::text("The ball was").constraint(source).max_tokens(40);
        run(&model, request).unwrap().remove(0)
    };
    let colour = choose(Source::Regex("red|green|bluish grey".into())).text;
    assert!(["red", "green", "bluish grey"].contains(&&*colour), "{colour}");
    let digits = choose(Source::Gbnf(r#"root ::= [0-9]{3} ("." [0-9]{2})?"#.into())).text;
    assert!(digits.len() == 3 || digits.len() == 6, "{digits}");
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{digits}");
    // What does not fit is cut, and says so.
    let request = Request::text("A list").constraint(Source::Regex("[a-z ]{50}".into())).max_tokens(3);
    let cut = run(&model, request).unwrap().remove(0);
    assert_eq!((cut.reason, cut.ids.len()), (Some(StopReason::MaxTokens), 3));
}

/// Constrained and free requests together get what each gets alone.
pub(crate) fn together_is_alone(device: &Device, count: u64) {
    let ask = |n: u64| if n.is_multiple_of(2) { score(n) } else { story(n) };
    let Some(model) = tales(device, 1) else { return };
    let alone: Vec<_> = (0..count).map(|n| run(&model, ask(n)).unwrap().remove(0)).collect();
    for driven in [false, true] {
        let Some(model) = tales(device, count as usize) else { return };
        let _driver = driven.then(|| model.drive().unwrap());
        let together: Vec<_> = std::thread::scope(|scope| {
            let one = |n: u64| {
                let model = &model;
                scope.spawn(move || run(model, ask(n)).unwrap().remove(0))
            };
            let running: Vec<_> = (0..count).map(one).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "driven: {driven}");
    }
}

/// Choices have the seeds that follow the sampler's, and each is what a request of its own would give.
pub(crate) fn choices_are_requests_with_other_seeds(device: &Device) {
    let Some(model) = tales(device, 4) else { return };
    let request = |seed: u64| score(7).sampler(sampled(seed));
    let all = run(&model, request(20).choices(3)).unwrap();
    assert_eq!(all.len(), 3);
    for (n, one) in all.iter().enumerate() {
        assert_eq!(run(&model, request(20 + n as u64)).unwrap()[0], *one, "choice {n}");
    }
    assert!(all[0] != all[1] || all[1] != all[2]);
}

/// A call that must be made is one that its tool's schema allows.
pub(crate) fn required_calls_keep_to_their_schemas(device: &Device, calls: u64) {
    let Some(model) = tales(device, 1) else { return };
    for seed in 0..calls {
        let request = Request::messages([Message::user("How is the weather?")])
            .tools(tools())
            .tool_choice(ToolChoice::Named("weather".into()))
            .parallel_calls(false)
            .sampler(sampled(seed));
        let one = run(&model, request).unwrap().remove(0);
        let [call] = &one.calls[..] else { panic!("{one:?}") };
        assert_eq!((call.name.as_str(), one.text.trim()), ("weather", ""), "{one:?}");
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
    }
}
