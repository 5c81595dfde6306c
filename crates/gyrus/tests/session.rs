//! Sessions: their state after every kind of stop, their limits, and recovery from errors.

use gyrus::{
    Cancel, Dry, Error, Event, Mirostat, Model, Options, Precision, Prompt, Request, Sampler, Session,
    StopReason,
};
use gyrus_testkit::data;

fn tales(options: Options) -> Option<Model> {
    Some(Model::open(&data("tales/tales-7m-q8_0.gguf")?, &options).unwrap())
}

fn fast() -> Option<Model> {
    tales(Options { sessions: 4, ..Options::default() })
}

/// Runs a request to its end and returns the token ids and the stop reason.
fn run(session: &mut Session, request: Request) -> (Vec<u32>, StopReason) {
    let mut generation = session.generate(request).unwrap();
    let mut ids = Vec::new();
    loop {
        match generation.next().unwrap() {
            Some(Event::Token { id, .. }) => ids.push(id),
            Some(Event::Stop { reason, .. }) => return (ids, reason),
            Some(_) => {}
            None => panic!("no stop"),
        }
    }
}

fn sampled(seed: u64) -> Sampler {
    Sampler { temperature: 0.9, top_k: 50, top_p: 0.95, repetition_penalty: 1.1, seed, ..Sampler::default() }
}

/// A sampler whose state depends on the tokens and logits so far.
fn with_state(seed: u64) -> Sampler {
    let mirostat = Some(Mirostat { tau: 4.0, eta: 0.5, mu: None });
    let dry = Dry { multiplier: 1.0, allowed_length: 1, ..Dry::default() };
    Sampler { temperature: 1.2, seed, mirostat, dry, ..Sampler::default() }
}

#[test]
fn a_continued_generation_equals_an_uninterrupted_one() {
    let Some(model) = fast() else { return };
    for sampler in [Sampler::default(), sampled(3), with_state(4)] {
        let request = |prompt| Request::new(prompt).sampler(sampler.clone()).ignore_end(true);
        let start = Prompt::Text("Once upon a time".to_owned());
        let mut whole = model.session();
        let (expected, _) = run(&mut whole, request(start.clone()).max_tokens(40));
        for cut in [1, 2, 17, 39] {
            let mut session = model.session();
            let (mut ids, reason) = run(&mut session, request(start.clone()).max_tokens(cut));
            assert_eq!(reason, StopReason::MaxTokens);
            ids.extend(run(&mut session, request(Prompt::Continue).max_tokens(40 - cut)).0);
            assert_eq!(ids, expected, "cut at {cut}");
            assert_eq!(session.tokens(), whole.tokens());
            // The same from a place within what was generated.
            session.truncate(whole.tokens().len() - 25);
            let (again, _) = run(&mut session, request(Prompt::Continue).max_tokens(25));
            assert_eq!(again, expected[15..], "truncated");
        }
    }
}

#[test]
fn a_prefilled_prompt_continues_like_a_prompt_and_may_fill_the_context() {
    let Some(model) = fast() else { return };
    let ids: Vec<u32> = (0..600).map(|i| i * 7 % 4000).collect();
    let (expected, _) = run(&mut model.session(), Request::ids(ids.clone()).max_tokens(8).ignore_end(true));
    let mut session = model.session();
    session.prefill(&[]).unwrap();
    session.prefill(&ids[..10]).unwrap();
    session.prefill(&ids[10..]).unwrap();
    assert_eq!(session.tokens(), ids);
    let request = Request::new(Prompt::Continue).max_tokens(8).ignore_end(true);
    assert_eq!(run(&mut session, request).0, expected);
    // Up to the last token of the context, but not more.
    let context = model.context().tokens;
    session.prefill(&vec![1; context - session.tokens().len()]).unwrap();
    let full = session.tokens().to_vec();
    assert_eq!(full.len(), context);
    assert!(matches!(session.prefill(&[1]), Err(Error::PromptTooLong { .. })));
    assert!(matches!(session.prefill(&[u32::MAX]), Err(Error::TokenId { .. })));
    assert_eq!(session.tokens(), full);
}

#[test]
fn speeds_are_absent_without_prefill_or_decode() {
    let Some(model) = fast() else { return };
    for (max_tokens, prefilled, decoded) in [(0, false, false), (1, true, false), (3, true, true)] {
        let mut session = model.session();
        let mut generation =
            session.generate(Request::text("Once").max_tokens(max_tokens).ignore_end(true)).unwrap();
        while let Some(event) = generation.next().unwrap() {
            if let Event::Stop { usage, .. } = event {
                assert_eq!(usage.prompt_speed().is_some(), prefilled);
                assert_eq!(usage.decode_speed().is_some(), decoded);
            }
        }
    }
}

#[test]
fn a_dropped_generation_leaves_the_emitted_tokens() {
    let Some(model) = fast() else { return };
    let mut whole = model.session();
    let (expected, _) = run(&mut whole, Request::text("Once upon a time").max_tokens(20));
    let mut session = model.session();
    let mut generation = session.generate(Request::text("Once upon a time")).unwrap();
    let mut ids = Vec::new();
    while ids.len() < 9 {
        if let Some(Event::Token { id, .. }) = generation.next().unwrap() {
            ids.push(id);
        }
    }
    drop(generation);
    ids.extend(run(&mut session, Request::new(Prompt::Continue).max_tokens(11)).0);
    assert_eq!(ids, expected);
}

#[test]
fn interleaved_sessions_do_not_affect_each_other() {
    let Some(model) = fast() else { return };
    let prompts = ["Once upon a time", "The dog", "Lily and Tom went to the park. They", "One day"];
    let alone: Vec<Vec<u32>> =
        prompts.iter().map(|p| run(&mut model.session(), Request::text(*p).max_tokens(30)).0).collect();
    // Round robin: one token of each session after the other.
    let mut sessions: Vec<Session> = prompts.iter().map(|_| model.session()).collect();
    let mut together = vec![Vec::new(); prompts.len()];
    for step in 0..30 {
        for ((session, prompt), ids) in sessions.iter_mut().zip(prompts).zip(&mut together) {
            let prompt = if step == 0 { Prompt::Text(prompt.to_owned()) } else { Prompt::Continue };
            ids.extend(run(session, Request::new(prompt).max_tokens(1)).0);
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn a_common_prefix_is_reused_from_the_cache_with_equal_results() {
    let Some(model) = fast() else { return };
    let ids = |n: u32| -> Vec<u32> { (0..n).map(|i| (i * 31 + 7) % 4096).collect() };
    let mut session = model.session();
    run(&mut session, Request::ids(ids(100)).max_tokens(5).ignore_end(true));
    let mut other = ids(80);
    other.extend([5, 6, 7]);
    session.set_tokens(&other).unwrap();
    let mut generation = session
        .generate(Request::new(Prompt::Continue).max_tokens(10).ignore_end(true).logprobs(true))
        .unwrap();
    let first = generation.next().unwrap();
    assert_eq!(first, Some(Event::Prompt { choice: 0, tokens: 83, cached: 64 }));
    let mut reused = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            reused.push((id, logprob.unwrap().to_bits()));
        }
    }
    let mut fresh = Vec::new();
    let mut session = model.session();
    let mut generation =
        session.generate(Request::ids(other).max_tokens(10).ignore_end(true).logprobs(true)).unwrap();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            fresh.push((id, logprob.unwrap().to_bits()));
        }
    }
    assert_eq!(reused, fresh);
}

#[test]
fn a_session_is_usable_after_its_context_was_full() {
    let Some(model) = tales(Options { context: Some(40), ..Options::default() }) else { return };
    let mut session = model.session();
    let (ids, reason) = run(&mut session, Request::ids(vec![5; 30]).ignore_end(true));
    assert_eq!((ids.len(), reason), (10, StopReason::ContextFull));
    assert_eq!(session.tokens().len(), 40);
    let error = session.generate(Request::ids(vec![5; 2])).err().unwrap();
    assert!(matches!(error, Error::PromptTooLong { tokens: 42, context: 40 }), "{error}");
    assert_eq!(session.tokens().len(), 40);
    session.truncate(10);
    let (ids, _) = run(&mut session, Request::new(Prompt::Continue).max_tokens(3).ignore_end(true));
    assert_eq!(ids.len(), 3);
}

#[test]
fn the_emitted_text_ends_before_the_stop_string() {
    let Some(model) = fast() else { return };
    let mut session = model.session();
    let request = Request::text("Once upon a time").max_tokens(64).stop(["red ball".to_owned()]);
    let mut generation = session.generate(request).unwrap();
    let mut completion = String::new();
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Text { text, .. } => completion.push_str(text),
            Event::Stop { reason, .. } => {
                assert_eq!(reason, StopReason::StopString("red ball".to_owned()))
            }
            _ => {}
        }
    }
    assert!(completion.ends_with("she saw a big, "), "{completion}");
}

#[test]
fn a_session_is_usable_after_a_cancelled_prefill() {
    let Some(model) = fast() else { return };
    let cancel = Cancel::new();
    cancel.cancel();
    let mut session = model.session();
    let (ids, reason) = run(&mut session, Request::text("Once upon a time").cancel(cancel.clone()));
    assert_eq!((ids.len(), reason), (0, StopReason::Cancelled));
    cancel.reset();
    let request = Request::new(Prompt::Continue).max_tokens(4).cancel(cancel);
    assert_eq!(run(&mut session, request).0, [12, 369, 282, 259]);
}

#[test]
fn equal_seeds_give_equal_tokens() {
    let Some(model) = fast() else { return };
    let tokens =
        |seed| run(&mut model.session(), Request::text("The").sampler(sampled(seed)).max_tokens(30)).0;
    assert_eq!(tokens(7), tokens(7));
    assert_ne!(tokens(7), tokens(8));
}

#[test]
fn an_invalid_request_is_an_error_and_leaves_the_session_unchanged() {
    let Some(model) = tales(Options::default()) else { return };
    let mut session = model.session();
    let mut refused = |request: Request| session.generate(request).err().expect("refused").to_string();
    assert_eq!(refused(Request::new(Prompt::Continue)), "the prompt is empty");
    assert_eq!(refused(Request::ids([4096])), "token id 4096 is beyond the vocabulary of 4096");
    assert_eq!(
        refused(Request::ids(vec![1; 1025])),
        "the prompt has 1025 tokens, which does not fit into the context of 1024"
    );
    let biased = Sampler { logit_bias: vec![(1 << 30, 1.0)], ..Sampler::default() };
    assert_eq!(
        refused(Request::text("a").sampler(biased)),
        "a logit bias is of token 1073741824, but the vocabulary has 4096 tokens"
    );
    assert_eq!(
        refused(Request::text("a").sampler(with_state(1)).dry_breakers([String::new()])),
        "the DRY sequence breaker \"\" has 0 bytes, it must have 1 to 40"
    );
    let bad = Sampler { min_p: 2.0, ..Sampler::default() };
    assert_eq!(refused(Request::text("a").sampler(bad)), "min-p is 2, it must be from 0 to 1");
    assert!(session.tokens().is_empty());
}

/// The KV cache holds one session. A second one takes the blocks of the first while that is idle, and the first computes
/// its tokens again.
#[test]
fn idle_sessions_give_their_blocks_to_others() {
    let Some(model) = tales(Options::default()) else { return };
    let ids = |n: u32| (0..n).map(|i| (i * 37 + n) % 4096).collect::<Vec<_>>();
    let request = |prompt: Prompt| Request::new(prompt).max_tokens(5).ignore_end(true);
    let alone = |turns: &[u32]| {
        let mut session = model.session();
        turns.iter().for_each(|n| drop(run(&mut session, request(Prompt::Ids(ids(*n))))));
        session.tokens().to_vec()
    };
    let (first, second) = (alone(&[900, 40]), alone(&[700, 30]));
    let mut sessions = [model.session(), model.session()];
    for turn in [[900, 700], [40, 30]] {
        for (session, n) in sessions.iter_mut().zip(turn) {
            run(session, request(Prompt::Ids(ids(n))));
        }
    }
    assert_eq!(sessions[0].tokens(), first);
    assert_eq!(sessions[1].tokens(), second);
}

#[test]
fn a_context_above_the_model_maximum_is_an_error() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let error = |context| {
        let options = Options { context: Some(context), precision: Precision::Fast, ..Options::default() };
        Model::open(&path, &options).err().unwrap().to_string()
    };
    assert_eq!(error(1025), "a context of 1025 tokens is more than the 1024 the model was made for");
    assert!(error(0).contains("context is 0"));
}

#[test]
fn a_repetition_stops_the_generation_only_on_request() {
    let Some(model) = fast() else { return };
    // A penalty below 1 makes earlier tokens more likely, which leads to a cycle.
    let sampler = Sampler { repetition_penalty: 0.01, ..Sampler::default() };
    let request =
        || Request::text("Once upon a time").sampler(sampler.clone()).ignore_end(true).max_tokens(400);
    let (free, reason) = run(&mut model.session(), request());
    assert_eq!((free.len(), reason), (400, StopReason::MaxTokens), "without the option");
    let mut session = model.session();
    let (ids, reason) = run(&mut session, request().stop_at_repetition(true));
    assert_eq!(reason, StopReason::Repetition);
    assert!((160..400).contains(&ids.len()), "{} tokens", ids.len());
    assert!(free.starts_with(&ids) && session.tokens().ends_with(&ids));
}
