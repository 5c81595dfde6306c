//! How jobs share slots, blocks and records.

use super::fake_core::{Served, prompt};

#[test]
fn no_more_sequences_run_than_may() {
    let mut served = Served::with(None, 6, 40, 0, |settings| settings.running = 2);
    let all: Vec<_> = (1..6).map(|id| served.start(id, prompt(id as u32, 30), 20)).collect();
    let mut most = 0;
    while all.iter().any(|events| !events.has_ended()) {
        served.tick();
        most = most.max(served.core.scheduler.slots.iter().flatten().count());
    }
    assert_eq!(most, 2);
}
