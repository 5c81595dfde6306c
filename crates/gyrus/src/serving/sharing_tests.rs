//! How jobs share slots, blocks and records.

use super::fake_core::{Served, is_complete, prompt};

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

/// Where no checkpoint can be taken, a slot of a hybrid does not hold for one.
#[test]
fn a_hybrid_without_prefix_cache_does_not_stop() {
    let steps = |prefix_cache| {
        let mut served = Served::with(None, 1, 20, 6, |settings| settings.prefix_cache = prefix_cache);
        assert!(is_complete(&served.run(1, prompt(1, 10), 400), 400));
        served.counters.read().steps
    };
    // Steps in flight at the end are not counted.
    assert_eq!(steps(false), 400);
    assert!(steps(true) > 400, "steps that hold are counted");
}
