//! Many requests at once on the CPU, and the limits of a scheduler.

mod serving_cases;
mod short_tales;
mod written;

use std::time::Duration;

use gyrus::{Device, Error, Event, Options, Precision, Prompt, Request, StopReason};
use serving_cases::{Served, alone, asks, at_once, open};

const CPU: Served = Served::tales(Device::Cpu);
const HYBRID: Served = Served::hybrid(Device::Cpu);

#[test]
fn requests_together_get_what_each_gets_alone() {
    for precision in [Precision::Exact, Precision::Fast] {
        serving_cases::together_is_alone(&CPU, precision, 21, 12);
    }
}

#[test]
fn common_prefixes_are_computed_once() {
    for precision in [Precision::Exact, Precision::Fast] {
        serving_cases::prefixes_are_computed_once(&CPU, precision, 9);
    }
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    serving_cases::what_is_computed_again_has_the_same_bits(&CPU, Precision::Fast);
}

#[test]
fn too_few_blocks_preempt_the_youngest() {
    serving_cases::shortage_preempts(&CPU, Precision::Fast, 16, 60);
}

/// Joins, prefixes, preemption and recomputation, with recurrent states.
#[test]
fn hybrids_are_served_as_alone() {
    for precision in [Precision::Exact, Precision::Fast] {
        serving_cases::together_is_alone(&HYBRID, precision, 21, 12);
        serving_cases::prefixes_are_computed_once(&HYBRID, precision, 9);
        serving_cases::what_is_computed_again_has_the_same_bits(&HYBRID, precision);
        serving_cases::shortage_preempts(&HYBRID, precision, 16, 60);
    }
}

#[test]
fn what_cannot_run_is_refused_by_type() {
    // No request may wait, not even until the next tick.
    let Some(model) = open(&CPU, Precision::Fast, |options| options.queue = 0) else { return };
    let error = asks(1, 0, 2)[0].run(&model).unwrap_err();
    assert!(matches!(error, Error::QueueFull { waiting: 0, most: 0 }), "{error}");
    let small = Options { kv_memory: Some(1000), ..Options::default() };
    let Some(checkpoint) = short_tales::checkpoint(2, 0) else { return };
    let error = gyrus::Model::load(checkpoint, &small).err().unwrap().to_string();
    assert_eq!(error, "1000 bytes of KV cache hold 0 tokens, but a context of 1 was requested");
}

#[test]
fn a_time_limit_ends_a_request() {
    let Some(model) = open(&CPU, Precision::Fast, |_| {}) else { return };
    let mut session = model.session();
    let request = Request::ids([1, 2, 3]).ignore_end(true).time_limit(Duration::ZERO);
    let mut generation = session.generate(request).unwrap();
    let mut reason = None;
    while let Some(event) = generation.next().unwrap() {
        if let Event::Stop { reason: found, .. } = event {
            reason = Some(found);
        }
    }
    assert_eq!(reason, Some(StopReason::TimeLimit));
    assert_eq!(session.tokens(), [1, 2, 3]);
}

/// The blocks of a dropped generation, and of a dropped session, can be used by others.
#[test]
fn dropped_requests_free_their_blocks() {
    let Some(model) = open(&CPU, Precision::Fast, |options| options.prefix_cache = false) else { return };
    let ids = |n: u32| (0..n).map(|i| (i * 37 + n) % short_tales::VOCAB).collect::<Vec<_>>();
    for n in 0..10 {
        let mut session = model.session();
        let mut generation = session.generate(Request::ids(ids(200 + n)).ignore_end(true)).unwrap();
        // In the middle of its tokens.
        while !matches!(generation.next().unwrap(), Some(Event::Token { .. })) {}
    }
    let mut session = model.session();
    let mut generation = session.generate(Request::ids(ids(250)).max_tokens(6).ignore_end(true)).unwrap();
    while generation.next().unwrap().is_some() {}
    assert_eq!(session.tokens().len(), 256);
}

/// A client that does not read its events does not stop the others, and gets all its tokens later.
#[test]
fn slow_clients_do_not_stop_others() {
    let all = asks(3, 0, 100);
    let Some(expected) = alone(&CPU, Precision::Fast, &all) else { return };
    let Some(model) = open(&CPU, Precision::Fast, |options| options.sessions = 3) else { return };
    let mut session = model.session();
    let slow = Request::ids(all[0].prompt.clone()).max_tokens(all[0].tokens).ignore_end(true);
    let mut slow = session.generate(slow).unwrap();
    let got: Vec<_> = at_once(&model, &all[1..]).into_iter().map(Result::unwrap).collect();
    assert_eq!(got, expected[1..]);
    let mut ids = Vec::new();
    while let Some(event) = slow.next().unwrap() {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
    }
    assert_eq!(ids, expected[0]);
}

/// Log-probabilities of alternatives: the most likely first, and the sampled token's own among them if it is greedy.
#[test]
fn alternatives_come_with_their_probabilities() {
    let Some(model) = open(&CPU, Precision::Fast, |_| {}) else { return };
    let mut session = model.session();
    session.set_tokens(&[1, 2, 3, 4]).unwrap();
    let request = Request::new(Prompt::Continue).max_tokens(5).ignore_end(true).top_logprobs(4);
    let mut generation = session.generate(request).unwrap();
    let mut tokens = 0;
    while let Some(event) = generation.next().unwrap() {
        let Event::Token { id, logprob, top, .. } = event else { continue };
        assert_eq!(top.len(), 4);
        assert_eq!((top[0].0, Some(top[0].1)), (id, logprob));
        assert!(top.windows(2).all(|pair| pair[0].1 >= pair[1].1) && top[0].1 < 0.0);
        tokens += 1;
    }
    assert_eq!(tokens, 5);
}
