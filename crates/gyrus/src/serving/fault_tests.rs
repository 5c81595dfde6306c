//! Faults at a named call, and what the device is given: every job ends with an event, and those that wait survive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gyrus_kernels::{Backend, Sampler};

use super::core::{Command, Core};
use super::counters::Counters;
use super::fake::{Fake, limits, plan};
use super::fake_faults::{Call, Fault, Faults, Log, PANIC};
use super::job::{End, EventQueue, Job, JobEvent, SequenceId, Task};
use super::scheduler::Settings;
use crate::Error;

/// Rows of a submission.
const CHUNK: usize = 48;

/// A core with a fake backend of one KV group.
struct Served {
    core: Core,
    commands: Vec<Command>,
    counters: Arc<Counters>,
    log: Arc<Log>,
}

/// How a job ended, and how many tokens it got.
type Ended = (Result<End, Error>, usize);

impl Served {
    fn new(slots: usize, blocks: usize, records: usize) -> Served {
        let plan = Arc::new(plan(&[None], records > 0));
        let (counters, log) = (Arc::new(Counters::default()), Arc::new(Log::default()));
        let (of_fakes, of_log) = (Arc::clone(&plan), Arc::clone(&log));
        let open = move || {
            let size = (&[blocks][..], records);
            let plan = Arc::clone(&of_fakes);
            Fake::new(plan, size, limits(slots, 4, false), 1, Faults::default(), Arc::clone(&of_log))
        };
        let settings = Settings {
            chunk: CHUNK,
            steps_in_flight: 4,
            queue: 100,
            prefix_cache: true,
            checkpoint_interval: 64,
            strict: false,
        };
        let (first, of_rebuild) = (Box::new(open()), Arc::clone(&log));
        let rebuild = Box::new(move || match of_rebuild.is_gone.load(Ordering::Relaxed) {
            true => Err(Error::Request("no device".into())),
            false => Ok(Box::new(open()) as Box<dyn Backend>),
        });
        let core = Core::new(first, plan, settings, Arc::clone(&counters), rebuild);
        Served { core, commands: Vec::new(), counters, log }
    }

    /// Starts a job that samples tokens, or reads its prompt only.
    fn start(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Arc<EventQueue> {
        let events = Arc::new(EventQueue::new());
        let sampler = Box::new(Sampler::default());
        let generate =
            Task::Generate { sampler, ends: Vec::new(), logprobs: None, constraint: None, speculator: None };
        let job = Job {
            max_len: prompt.len() + tokens,
            tokens: prompt,
            task: if tokens > 0 { generate } else { Task::Prefill },
            client: 0,
            priority: 0,
            deadline: None,
            tenant: 0,
            events: Arc::clone(&events),
        };
        self.commands.push(Command::Start(SequenceId(id), job));
        events
    }

    fn tick(&mut self) {
        self.core.tick(&mut self.commands, Duration::ZERO);
    }

    /// Runs until a job ends.
    fn end(&mut self, events: &EventQueue) -> Ended {
        let mut tokens = 0;
        for _ in 0..10_000 {
            match events.pop() {
                None => self.tick(),
                Some(JobEvent::Token { .. }) => tokens += 1,
                Some(JobEvent::Done(end)) => return (Ok(end), tokens),
                Some(JobEvent::Failed(error)) => return (Err(error), tokens),
                Some(_) => {}
            }
        }
        panic!("a job does not end");
    }

    /// Starts a job and runs it.
    fn run(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Ended {
        let events = self.start(id, prompt, tokens);
        self.end(&events)
    }

    /// Runs until a job has given a token.
    fn begin(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Arc<EventQueue> {
        let events = self.start(id, prompt, tokens);
        while !matches!(events.pop(), Some(JobEvent::Token { .. })) {
            assert!(!events.has_ended());
            self.tick();
        }
        events
    }

    fn rebuilds(&self) -> u64 {
        self.counters.read().rebuilds
    }
}

fn is_complete((ended, tokens): &Ended, expected: usize) -> bool {
    matches!(ended, Ok(End::Complete)) && *tokens == expected
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 7 + seed * 13) % 97).collect()
}

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
    assert_eq!((tokens, served.log.submissions.load(Ordering::Relaxed)), (0, before));
    assert_eq!(served.core.scheduler.kv.available(), held);
    // With one token less it has blocks for the first one that it samples.
    let (ended, tokens) = served.run(2, prompt(2, 127), 5);
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(tokens, 1);
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
