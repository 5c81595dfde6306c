//! Sessions that are saved, loaded and forked on the CPU.

mod session_cases;

use gyrus::{Device, Precision};
use session_cases::{KINDS, LENGTHS};

#[test]
fn a_saved_session_resumes_bit_for_bit() {
    for name in KINDS {
        for precision in [Precision::Fast, Precision::Exact] {
            session_cases::resumes_bit_for_bit(&Device::Cpu, name, precision, &LENGTHS);
        }
    }
}

#[test]
fn forks_share_blocks_and_go_on_alone() {
    for name in KINDS {
        session_cases::forks_go_on_alone(&Device::Cpu, name, Precision::Fast, &LENGTHS);
    }
}

#[test]
fn what_was_reclaimed_is_computed_again() {
    for name in KINDS {
        session_cases::what_was_reclaimed_is_computed_again(&Device::Cpu, name, Precision::Fast);
    }
}
