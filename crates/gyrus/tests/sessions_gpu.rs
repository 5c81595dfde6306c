//! Sessions that are saved, loaded and forked on a GPU, where rows of prompts and generated rows have different roundings.

mod adapter;
mod session_cases;

use gyrus::{Device, Precision};
use session_cases::KINDS;

/// Around the end of a block, and beyond a window. Software adapters take seconds for each.
const LENGTHS: [usize; 4] = [31, 32, 33, 190];

#[test]
fn a_saved_session_resumes_bit_for_bit() {
    let Some(name) = adapter::adapter() else { return };
    let device = Device::Gpu(Some(name));
    for name in KINDS {
        session_cases::resumes_bit_for_bit(&device, name, Precision::Fast, &LENGTHS);
    }
    session_cases::resumes_bit_for_bit(&device, "llama", Precision::Exact, &[33]);
}

#[test]
fn forks_share_blocks_and_go_on_alone() {
    let Some(name) = adapter::adapter() else { return };
    let device = Device::Gpu(Some(name));
    for name in KINDS {
        session_cases::forks_go_on_alone(&device, name, Precision::Fast, &[32, 33]);
        session_cases::what_was_reclaimed_is_computed_again(&device, name, Precision::Fast);
    }
}
