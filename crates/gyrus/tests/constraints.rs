//! Constraints, tools and choices of requests on the CPU.

mod completion;
mod constraint_cases;

use completion::{run, tools};
use constraint_cases::{PERSON, sampled, tales};
use gyrus::constrain::Source;
use gyrus::tools::ToolChoice;
use gyrus::{Device, Event, Message, Request, StopReason};

#[test]
fn texts_keep_to_their_grammars() {
    constraint_cases::texts_keep_to_their_grammars(&Device::Cpu, 12);
}

#[test]
fn together_is_alone() {
    constraint_cases::together_is_alone(&Device::Cpu, 12);
}

#[test]
fn choices_are_requests_with_other_seeds() {
    constraint_cases::choices_are_requests_with_other_seeds(&Device::Cpu);
}

#[test]
fn required_calls_keep_to_their_schemas() {
    constraint_cases::required_calls_keep_to_their_schemas(&Device::Cpu, 4);
}

/// Constrained sequences that lose their blocks go on with the state that they had.
#[test]
fn preempted_sequences_keep_their_state() {
    let Some(sized) = tales(&Device::Cpu, 1) else { return };
    let ask = |n: u64| {
        let source = Source::Regex("([a-z]{2,9} ){60}end".into());
        Request::text(format!("Tale {n}")).constraint(source).sampler(sampled(n)).max_tokens(140)
    };
    let alone: Vec<_> = (0..6).map(|n| run(&sized, ask(n)).unwrap()).collect();
    let context = sized.context();
    let block_bytes = context.cache_bytes / (context.total_tokens as u64 / 32);
    let options =
        gyrus::Options { context: Some(160), kv_memory: Some(6 * block_bytes), ..gyrus::Options::default() };
    let path = gyrus_testkit::data("tales/tales-7m-q8_0.gguf").unwrap();
    let model = gyrus::Model::open(&path, &options).unwrap();
    let _driver = model.drive().unwrap();
    let together: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..6u64)
            .map(|n| {
                scope.spawn({
                    let model = &model;
                    move || run(model, ask(n)).unwrap()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    assert!(model.statistics().preemptions > 0, "{:?}", model.statistics());
}

/// Tokens without an alternative are computed together, unless their log-probabilities are wanted.
#[test]
fn forced_tokens_take_few_steps() {
    let Some(model) = tales(&Device::Cpu, 1) else { return };
    let text = "One day a very little girl went to the park and saw [0-9] red balls";
    let request = || Request::text("Once").constraint(Source::Regex(text.into())).max_tokens(60);
    let steps = |request: Request| {
        let before = model.statistics().steps;
        let one = run(&model, request).unwrap().remove(0);
        assert!(one.text.starts_with("One day") && one.text.ends_with(" red balls"), "{one:?}");
        (model.statistics().steps - before, one.ids.len() as u64)
    };
    let (forced, tokens) = steps(request());
    assert!(tokens > 12 && forced < 8, "{forced} steps for {tokens} tokens");
    let (sampled, tokens) = steps(request().logprobs(true));
    assert!(sampled > tokens, "{sampled} steps for {tokens} tokens");
}

#[test]
fn dropped_and_cancelled_requests_end() {
    let Some(model) = tales(&Device::Cpu, 1) else { return };
    for events in 0..6 {
        let mut session = model.session();
        let source = Source::Regex("[a-z ]{100}".into());
        let mut generation = session.generate(Request::text("Once").constraint(source)).unwrap();
        for _ in 0..events {
            generation.next().unwrap();
        }
    }
    let cancel = gyrus::Cancel::new();
    let source = Source::Regex("[a-z ]{100}".into());
    let mut session = model.session();
    let mut generation =
        session.generate(Request::text("Once").constraint(source).cancel(cancel.clone())).unwrap();
    let mut reason = None;
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Token { .. } => cancel.cancel(),
            Event::Stop { reason: found, .. } => reason = Some(found),
            _ => {}
        }
    }
    assert_eq!(reason, Some(StopReason::Cancelled));
}

#[test]
fn reasoning_comes_before_constrained_text() {
    let Some(model) = tales(&Device::Cpu, 1) else { return };
    // The fallback template knows no reasoning, so a constraint begins at once.
    let request = Request::messages([Message::user("Colour?")]).reasoning(true);
    let one = run(&model, request.constraint(Source::Regex("red|blue".into()))).unwrap().remove(0);
    assert!(one.text == "red" || one.text == "blue", "{one:?}");
}

#[test]
fn wrong_requests_are_refused() {
    let Some(model) = tales(&Device::Cpu, 1) else { return };
    let refused = |request: Request| match model.session().generate(request) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let text = || Request::text("Once");
    assert_eq!(
        refused(text().constraint(Source::Schema("{\"type\":\n 1}".into()))),
        "JSON schema keyword \"type\" at # (line 1, column 2) must be a type or an array of types"
    );
    assert_eq!(
        refused(text().constraint(Source::Schema("{\n  \"type\": }".into()))),
        "JSON schema, line 2, column 11: expected value"
    );
    assert!(
        refused(text().constraint(Source::Gbnf("root ::= root \"a\"".into()))).contains("left-recursive")
    );
    assert!(refused(text().constraint(Source::Regex("a(".into()))).contains("regex, line 1, column 2"));
    assert_eq!(refused(text().choices(0)), "0 choices: a request has 1 to 128");
    assert_eq!(refused(text().tools(tools())), "tools need a prompt of messages");
    let messages = || Request::messages([Message::user("Hello")]).tools(tools());
    assert_eq!(
        refused(messages().tool_choice(ToolChoice::Named("fly".into()))),
        "there is no tool \"fly\"; the tools are weather"
    );
    let both = messages().tool_choice(ToolChoice::Required).constraint(Source::Schema(PERSON.into()));
    assert_eq!(refused(both), "a constraint and a tool call that must be made exclude each other");
}
