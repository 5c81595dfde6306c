//! How long a GPU is busy with a model.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod written;

use std::time::Instant;

use adapter::adapter;
use gyrus::{Device, Error, Model, Options, Precision};

/// The GPU's clock measures what a model computes, and nothing outside of it.
#[test]
fn busy_time_is_that_of_the_work() {
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    let options = Options { device, precision: Precision::Fast, context: Some(64), ..Options::default() };
    let Some(checkpoint) = short_tales::checkpoint(2, 0) else { return };
    let model = Model::load(checkpoint, &options).unwrap();
    let start = Instant::now();
    let ids: Vec<u32> = (0..20).collect();
    let (result, busy) = model.busy_time(|| model.session().prefill(&ids).map(|()| 20)).unwrap();
    let wall = start.elapsed();
    assert_eq!(result, 20);
    assert!(busy.is_none_or(|busy| !busy.is_zero() && busy < wall), "{busy:?} of {wall:?}");
    assert_eq!(model.busy_time(|| Ok::<_, Error>(())).unwrap(), ((), None), "nothing ran");
    let error = model.busy_time(|| model.session().prefill(&[u32::MAX])).unwrap_err();
    assert!(!error.to_string().is_empty());

    let cpu = Options { device: Device::Cpu, context: Some(64), ..Options::default() };
    let Some(checkpoint) = short_tales::checkpoint(2, 0) else { return };
    let model = Model::load(checkpoint, &cpu).unwrap();
    assert_eq!(model.busy_time(|| model.session().prefill(&[1, 2])).unwrap(), ((), None));
}
