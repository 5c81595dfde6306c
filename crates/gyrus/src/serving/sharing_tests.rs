//! How jobs share slots, blocks and records, and clients that do not read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::KV_BLOCK;

use super::fake_core::{CHUNK, Served, is_complete, job, prompt};
use super::handle::Handle;
use super::job::{EventQueue, MAX_WAITING_EVENTS};

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

/// A sequence whose leader has got other tokens computes the prefix itself.
#[test]
fn a_follower_does_not_wait_for_another_job_of_its_leader() {
    let mut served = Served::new(3, 200, 0);
    let common = prompt(1, 2000);
    let first = served.start(1, common.clone(), 1);
    served.tick();
    let second = served.start(2, [common, prompt(2, 9)].concat(), 1);
    served.tick();
    let follows = |served: &Served| served.sequence(2).running().unwrap().follows;
    assert!(follows(&served).is_some_and(|follows| follows.common == 2000 / KV_BLOCK * KV_BLOCK));
    first.cancel();
    let other = served.start(1, prompt(3, 2000), 1);
    (0..4).for_each(|_| served.tick());
    assert!(served.sequence(1).reads(), "its new prompt is not computed yet");
    assert_eq!(follows(&served), None);
    assert!(is_complete(&served.end(&second), 1));
    assert!(is_complete(&served.end(&other), 1));
}

/// Where all layers have a window, a long prompt is promised the blocks that it holds at once, not one for each position.
#[test]
fn a_long_prompt_leaves_the_blocks_beside_its_window() {
    let blocks = 30;
    let mut served = Served::with(Some(40), 2, blocks, 0, |_| {});
    let decoding = served.begin(1, prompt(1, 10), 200);
    let reading = served.start(2, prompt(2, 3000), 1);
    while served.core.scheduler.by_id.len() < 2 || served.sequence(2).kv.len() < 1000 {
        served.tick();
    }
    let most = served.core.scheduler.kv.most_held(0, 3000, CHUNK);
    let held = served.sequence(2).kv.held().count();
    assert!(served.sequence(2).reads() && held <= most && most < blocks / 2);
    assert_eq!(served.core.scheduler.promised_blocks(0), most - held);
    let tokens = served.sequence(1).tokens.len();
    let granted = served.core.exclusively(|backend, scheduler| Ok(scheduler.grant(40, backend.slots())?));
    granted.unwrap();
    assert!(served.sequence(1).kv.capacity() > tokens + 40, "steps in flight have no blocks");
    assert!(is_complete(&served.end(&reading), 1));
    assert!(matches!(served.end(&decoding), (Ok(_), tokens) if tokens.len() == 199));
}

/// What a prompt has yet to take counts, however many of its blocks have left the window.
#[test]
fn nothing_is_admitted_with_blocks_that_were_promised() {
    for blocks in 13..30 {
        for ticks in (1..40).step_by(3) {
            let mut served = Served::with(Some(40), 2, blocks, 0, |_| {});
            let reading = served.start(1, prompt(1, 1500), 2);
            (0..ticks).for_each(|_| served.tick());
            let ended = served.run(2, prompt(2, 200), 2);
            assert!(is_complete(&ended, 2), "{ended:?}");
            assert!(is_complete(&served.end(&reading), 2));
            let preemptions = served.counters.read().preemptions;
            assert_eq!(preemptions, 0, "{blocks} blocks, after {ticks} ticks");
        }
    }
}

/// A client that does not read gives up its slot, blocks and records to others that wait, and gets all its tokens later.
#[test]
fn a_client_that_does_not_read_lets_others_go_on() {
    let tokens = MAX_WAITING_EVENTS + 100;
    // Blocks, slots, records and sequences that may run are too few for both.
    for (slots, blocks, records, running) in [(2, 22, 0, 2), (1, 60, 0, 1), (2, 60, 2, 2), (2, 60, 0, 1)] {
        let with = || Served::with(None, slots, blocks, records, |settings| settings.running = running);
        let (expected, alone) = (with().run(1, prompt(1, 10), tokens).1, with().run(2, prompt(2, 300), 4).1);
        let mut served = with();
        let unread = served.start(1, prompt(1, 10), tokens);
        while unread.waiting() < MAX_WAITING_EVENTS {
            served.tick();
        }
        for id in 2..5 {
            let ended = served.run(id, prompt(2, 300), 4);
            assert!(is_complete(&ended, 4), "{ended:?}");
            assert_eq!(ended.1, alone);
        }
        assert_eq!(served.counters.read().preemptions, 1);
        // It does not come back before its client reads.
        assert!(served.core.scheduler.is_idle());
        assert_eq!(served.end(&unread).1, expected);
        assert!(served.core.scheduler.is_idle());
    }
}

/// A client that waits where nothing can be done sleeps: it does not drive in a loop.
#[test]
fn a_client_waits_when_a_tick_did_nothing() {
    let Served { core, counters, .. } = Served::new(2, 22, 0);
    let handle = Handle::new(core, counters);
    let (job, unread) = job(prompt(1, 10), MAX_WAITING_EVENTS + 100);
    handle.start(handle.sequence(), job);
    while unread.waiting() < MAX_WAITING_EVENTS {
        handle.wait(&unread, true, || false);
    }
    let other = Arc::new(EventQueue::new());
    let begun = Instant::now();
    (0..10).for_each(|_| handle.wait(&other, true, || false));
    assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
}
