//! Constraints of requests on a GPU.

mod adapter;
mod completion;
mod constraint_cases;

use gyrus::Device;

fn gpu() -> Option<Device> {
    adapter::adapter().map(|name| Device::Gpu(Some(name)))
}

#[test]
fn texts_keep_to_their_grammars() {
    let Some(gpu) = gpu() else { return };
    constraint_cases::texts_keep_to_their_grammars(&gpu, 1);
}

#[test]
fn together_is_alone() {
    let Some(gpu) = gpu() else { return };
    constraint_cases::together_is_alone(&gpu, 4);
}

#[test]
fn choices_are_requests_with_other_seeds() {
    let Some(gpu) = gpu() else { return };
    constraint_cases::choices_are_requests_with_other_seeds(&gpu);
}

#[test]
fn required_calls_keep_to_their_schemas() {
    let Some(gpu) = gpu() else { return };
    constraint_cases::required_calls_keep_to_their_schemas(&gpu, 1);
}
