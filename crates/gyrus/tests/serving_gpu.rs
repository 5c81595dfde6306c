//! Many requests at once on a GPU.

mod adapter;
mod serving_cases;
mod short_tales;
mod written;

use gyrus::{Device, Error, Precision};
use serving_cases::{alone, asks, at_once, open};

fn gpu() -> Option<Device> {
    adapter::adapter().map(|name| Device::Gpu(Some(name)))
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

/// A device that is lost in the middle fails the requests that run, by its name. Those that come later run on the device
/// that is opened again.
#[test]
fn a_lost_device_is_opened_again() {
    let Some(gpu) = gpu() else { return };
    let all = asks(3, 0, 8);
    let Some(expected) = alone(&gpu, Precision::Fast, &all) else { return };
    let Some(model) = open(&gpu, Precision::Fast, |options| options.sessions = 3) else { return };
    let mut session = model.session();
    let request = gyrus::Request::ids(all[0].prompt.clone()).max_tokens(100).ignore_end(true);
    let mut generation = session.generate(request).unwrap();
    for _ in 0..3 {
        generation.next().unwrap();
    }
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
    let got: Vec<_> = at_once(&model, &all).into_iter().map(Result::unwrap).collect();
    assert_eq!(got, expected);
    assert_eq!(model.statistics().rebuilds, 1);
}
