//! Drafts on the CPU: their rows sample what steps sample, bit for bit.

mod draft_jobs;
mod short_tales;
mod slot_backend;
mod written;

use gyrus::Precision;
use gyrus_testkit::Rng;

#[test]
fn drafts_give_the_tokens_of_steps() {
    for (precision, threads) in [(Precision::Fast, 1), (Precision::Fast, 3), (Precision::Exact, 2)] {
        let Some(mut backend) = slot_backend::cpu(precision, 0, threads) else { return };
        draft_jobs::compare(&mut backend, 24, 24, &mut Rng::new(11));
    }
}
