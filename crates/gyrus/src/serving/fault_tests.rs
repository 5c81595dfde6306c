//! Faults at a named call, and what the device is given: every job ends with an event, and those that wait survive.

use std::sync::atomic::Ordering;

use super::core::Command;
use super::fake_core::{CHUNK, Ended, Served, is_complete, prompt};
use super::fake_faults::{Call, Fault, PANIC};
use super::job::{JobEvent, SequenceId};
use crate::Error;

#[test]
fn a_job_survives_that_the_device_was_lost_while_idle() {
    let mut served = Served::new(2, 20, 0);
    assert!(is_complete(&served.run(1, prompt(1, 40), 5), 5));
    served.log.fail_next(Call::Open, Fault::Lost);
    let all: Vec<_> = (2..6).map(|id| served.start(id, prompt(id as u32, 30), 5)).collect();
    for events in all {
        let ended = served.end(&events);
        assert!(is_complete(&ended, 5), "{ended:?}");
    }
    assert_eq!(served.rebuilds(), 1);
    assert!(served.log.has_failed());
}

#[test]
fn a_job_survives_that_the_device_was_lost_when_its_state_was_copied() {
    let mut served = Served::new(2, 20, 12);
    assert!(is_complete(&served.run(1, prompt(1, 100), 5), 5));
    served.log.fail_next(Call::CopyState, Fault::Lost);
    // It begins at the first one's checkpoint.
    let ended = served.run(2, [prompt(1, 100), prompt(2, 9)].concat(), 5);
    assert!(is_complete(&ended, 5), "{ended:?}");
    assert_eq!(served.rebuilds(), 1);
    assert!(served.log.has_failed());
}

#[test]
fn a_job_fails_by_name_if_the_device_cannot_be_opened_again() {
    let mut served = Served::new(2, 20, 0);
    served.log.is_gone.store(true, Ordering::Relaxed);
    served.log.fail_next(Call::Open, Fault::Lost);
    let (ended, _) = served.run(1, prompt(1, 40), 5);
    assert!(matches!(&ended, Err(Error::DeviceGone(text)) if text.contains("no device")), "{ended:?}");
    // The next one runs where there is a device again.
    served.log.is_gone.store(false, Ordering::Relaxed);
    assert!(is_complete(&served.run(2, prompt(1, 40), 5), 5));
}

#[test]
fn a_job_that_loses_every_device_fails() {
    let mut served = Served::new(2, 20, 0);
    (0..100).for_each(|_| served.log.fail_next(Call::Open, Fault::Lost));
    let (ended, _) = served.run(1, prompt(1, 40), 5);
    assert!(matches!(&ended, Err(Error::Backend(_))), "{ended:?}");
}

#[test]
fn a_job_that_a_backend_refuses_fails() {
    let mut served = Served::new(1, 20, 0);
    served.log.fail_next(Call::Open, Fault::Unsound);
    let [first, second] = [1, 2].map(|id| served.start(id, prompt(id as u32, 30), 5));
    let (ended, _) = served.end(&first);
    assert!(matches!(&ended, Err(Error::Backend(_))), "{ended:?}");
    assert!(is_complete(&served.end(&second), 5));
    assert_eq!(served.rebuilds(), 0);
}

fn has_panicked((ended, _): &Ended) -> bool {
    matches!(ended, Err(Error::Panicked(text)) if text == PANIC)
}

#[test]
fn a_panic_ends_the_jobs_that_run_and_no_others() {
    for call in [Call::Extend, Call::Submit, Call::Poll] {
        let mut served = Served::new(1, 20, 0);
        let running = served.begin(1, prompt(1, 40), 300);
        let waiting = served.start(2, prompt(2, 40), 5);
        served.tick();
        served.log.fail_next(call, Fault::Panic);
        let ended = served.end(&running);
        assert!(has_panicked(&ended), "{call:?}: {ended:?}");
        let ended = served.end(&waiting);
        assert!(is_complete(&ended, 5), "{call:?}: {ended:?}");
    }
}

#[test]
fn a_panic_at_the_admission_ends_the_job() {
    let mut served = Served::new(1, 20, 0);
    served.log.fail_next(Call::Open, Fault::Panic);
    let [first, second] = [1, 2].map(|id| served.start(id, prompt(id as u32, 40), 5));
    let ended = served.end(&first);
    assert!(has_panicked(&ended), "{ended:?}");
    assert!(is_complete(&served.end(&second), 5));
}

/// A job on a sequence that has one ends that one first, which closes its slot.
#[test]
fn a_panic_at_the_start_of_a_job_drops_no_other_command() {
    let mut served = Served::new(2, 20, 0);
    let old = served.begin(1, prompt(1, 40), 300);
    served.log.fail_next(Call::Close, Fault::Panic);
    let new = served.start(1, prompt(1, 50), 5);
    let others = [2, 3].map(|id| served.start(id, prompt(id as u32, 40), 5));
    served.commands.push(Command::Close(SequenceId(1)));
    let ended = served.end(&old);
    assert!(has_panicked(&ended), "{ended:?}");
    let (ended, _) = served.end(&new);
    assert!(matches!(&ended, Err(Error::Panicked(_))), "{ended:?}");
    for events in others {
        let ended = served.end(&events);
        assert!(is_complete(&ended, 5), "{ended:?}");
    }
    assert!(!served.core.scheduler.by_id.contains_key(&SequenceId(1)));
}

#[test]
fn a_session_whose_end_panics_is_removed() {
    let mut served = Served::new(2, 20, 0);
    let events = served.begin(1, prompt(1, 40), 300);
    served.log.fail_next(Call::Close, Fault::Panic);
    served.commands.push(Command::Close(SequenceId(1)));
    assert!(has_panicked(&served.end(&events)));
    assert!(served.core.scheduler.by_id.is_empty());
    assert!(served.core.scheduler.kv.pools().iter().all(|pool| pool.available() == 20));
}

#[test]
fn a_backend_that_panics_again_is_opened_again() {
    let mut served = Served::new(1, 20, 0);
    let running = served.begin(1, prompt(1, 40), 300);
    let waiting = served.start(2, prompt(2, 40), 5);
    served.log.fail_next(Call::Poll, Fault::Panic);
    served.log.fail_next(Call::Reset, Fault::Panic);
    assert!(has_panicked(&served.end(&running)));
    assert!(is_complete(&served.end(&waiting), 5));
    assert_eq!(served.rebuilds(), 1);
}

#[test]
fn a_job_that_is_dropped_tells_its_client() {
    let mut served = Served::new(1, 20, 0);
    let events = served.start(1, prompt(1, 40), 5);
    served.commands.clear();
    assert!(matches!(events.pop(), Some(JobEvent::Failed(Error::Panicked(_)))));
    // One that has ended says no more.
    let events = served.start(1, prompt(1, 40), 5);
    assert!(is_complete(&served.end(&events), 5));
    drop(served);
    assert!(events.pop().is_none());
}

/// A prompt for which there can be no blocks is refused before anything is computed, and nothing is dropped for it.
#[test]
fn a_prompt_that_no_cache_holds_is_refused_at_once() {
    let mut served = Served::new(2, 4, 0);
    let (ended, _) = served.run(1, prompt(1, 40), 5);
    assert!(ended.is_ok());
    let held = served.core.scheduler.kv.available();
    let before = served.log.submissions.load(Ordering::Relaxed);
    let (ended, tokens) = served.run(2, prompt(2, 128), 5);
    assert!(matches!(ended, Err(Error::CacheFull { needed: 5, free: 4 })), "{ended:?}");
    assert_eq!((tokens.len(), served.log.submissions.load(Ordering::Relaxed)), (0, before));
    assert_eq!(served.core.scheduler.kv.available(), held);
    // With one token less it has blocks for the first one that it samples.
    let (ended, tokens) = served.run(2, prompt(2, 127), 5);
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(tokens.len(), 1);
}

/// Prompts that arrive together share submissions: as many as their rows need.
#[test]
fn prompts_that_arrive_together_are_read_in_shared_batches() {
    const PROMPTS: usize = 16;
    const LENGTH: usize = 20;
    for tokens in [0, 3] {
        let mut served = Served::new(PROMPTS, 40, 0);
        let start = |id| served.start(id as u64 + 1, prompt(id as u32, LENGTH as u32), tokens);
        let all: Vec<_> = (0..PROMPTS).map(start).collect();
        for events in all {
            let ended = served.end(&events);
            assert!(is_complete(&ended, tokens), "{ended:?}");
        }
        // The last token of a prompt decodes.
        let rows = PROMPTS * (LENGTH - usize::from(tokens > 0));
        assert_eq!(served.log.chunk_rows.load(Ordering::Relaxed), rows);
        let submissions = served.log.chunked.load(Ordering::Relaxed);
        assert!(submissions <= rows.div_ceil(CHUNK) + 1, "{submissions} submissions for {rows} rows");
    }
}
