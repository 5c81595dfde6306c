//! Drafts on the GPU: their rows sample what steps sample, bit for bit.
#![cfg(feature = "gpu")]

mod adapter;
mod draft_jobs;
mod short_tales;
mod slot_jobs_gpu;
mod written;

use gyrus::Precision;
use gyrus_testkit::Rng;
use slot_jobs_gpu::{EACH, backend_of, short};

#[test]
fn drafts_give_the_tokens_of_steps() {
    // Both recorders, and the precision whose kinds of rows do not differ.
    for (precision, vulkan) in [(Precision::Fast, true), (Precision::Fast, false), (Precision::Exact, true)] {
        let Some(mut backend) = backend_of(short, precision, vulkan, EACH * 128) else { return };
        let mut rng = Rng::new(3);
        draft_jobs::compare(&mut backend, 8, 12, &mut rng);
    }
}
