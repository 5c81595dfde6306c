//! Many requests at once on a GPU.

mod adapter;
mod serving_cases;
mod short_tales;
mod written;

use gyrus::{Device, Error, Precision};
use serving_cases::{Served, alone, asks, open, tokens};

fn gpu() -> Option<Served> {
    adapter::adapter().map(|name| Served::tales(Device::Gpu(Some(name))))
}

/// Joins, prefixes, preemption and recomputation, with recurrent states.
#[test]
fn hybrids_are_served_as_alone() {
    let Some(Served { device, .. }) = gpu() else { return };
    let hybrid = Served::hybrid(device);
    serving_cases::together_is_alone(&hybrid, Precision::Fast, 18, 5);
    serving_cases::prefixes_are_computed_once(&hybrid, Precision::Fast, 4);
    serving_cases::what_is_computed_again_has_the_same_bits(&hybrid, Precision::Fast);
    serving_cases::shortage_preempts(&hybrid, Precision::Fast, 8, 40);
}

#[test]
fn requests_together_get_what_each_gets_alone() {
    let Some(gpu) = gpu() else { return };
    serving_cases::together_is_alone(&gpu, Precision::Fast, 18, 5);
}

#[test]
fn common_prefixes_are_computed_once() {
    let Some(gpu) = gpu() else { return };
    serving_cases::prefixes_are_computed_once(&gpu, Precision::Fast, 4);
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    serving_cases::what_is_computed_again_has_the_same_bits(&gpu, Precision::Fast);
}

#[test]
fn too_few_blocks_preempt_the_youngest() {
    let Some(gpu) = gpu() else { return };
    serving_cases::shortage_preempts(&gpu, Precision::Fast, 8, 40);
}

/// A device that is lost in the middle fails the requests that run, by its name. Those that are queued run on the device
/// that is opened again.
#[test]
fn a_lost_device_is_opened_again() {
    let Some(gpu) = gpu() else { return };
    let all = asks(3, 0, 8);
    let Some(expected) = alone(&gpu, Precision::Fast, &all) else { return };
    let few = |options: &mut gyrus::Options| (options.sessions, options.steps_in_flight) = (1, 2);
    let Some(model) = open(&gpu, Precision::Fast, few) else { return };
    let mut session = model.session();
    // It takes all blocks, so that the others are queued.
    let prompt: Vec<u32> = (0..224).map(|i| i % 90).collect();
    let request = gyrus::Request::ids(prompt).max_tokens(30).ignore_end(true);
    let mut generation = session.generate(request).unwrap();
    for _ in 0..3 {
        generation.next().unwrap();
    }
    let mut sessions: Vec<_> = all.iter().map(|_| model.session()).collect();
    let queued: Vec<_> =
        sessions.iter_mut().zip(&all).map(|(session, ask)| ask.begin(session).unwrap()).collect();
    model.close_device();
    let error = loop {
        match generation.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the device was lost"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "the GPU was lost: it was closed");
    assert!(matches!(error, Error::Backend(_)));
    let got: Vec<_> = queued.into_iter().map(|generation| tokens(generation).unwrap()).collect();
    assert_eq!(got, expected);
    assert_eq!(model.statistics().rebuilds, 1);
}

/// A device that is lost between requests is opened again for the next ones.
#[test]
fn a_device_that_was_lost_while_idle_is_opened_again() {
    let Some(gpu) = gpu() else { return };
    let all = asks(3, 0, 8);
    let Some(expected) = alone(&gpu, Precision::Fast, &all) else { return };
    let Some(model) = open(&gpu, Precision::Fast, |_| {}) else { return };
    assert_eq!(all[0].run(&model).unwrap(), expected[0]);
    model.close_device();
    let got: Vec<_> = all.iter().map(|ask| ask.run(&model).unwrap()).collect();
    assert_eq!(got, expected);
    assert_eq!(model.statistics().rebuilds, 1);
}
