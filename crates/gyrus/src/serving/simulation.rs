//! A seeded simulation of clients: they join, leave, cancel, read slowly, come back and fork, blocks run out, and the device
//! is lost. Every sequence must get the tokens that it would get alone, and no block may be lost or shared by mistake.
//!
//! `GYRUS_SCHEDULES` sets how many random schedules run. A failure names the seed, which repeats it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gyrus_kernels::{KV_BLOCK, KvSize, Plan, RowKind, Sampler};

use super::core::{Command, Core};
use super::counters::Counters;
use super::fake::{self, Fake, draw, entry, limits, next_token, plan, state_after};
use super::fake_faults::{Faults, Log, PANIC};
use super::fake_masks::{FakeMask, LateWorkers, first_allowed};
use super::job::{End, EventQueue, Job, JobEvent, SequenceId, Task};
use super::kv::WINDOW_SLACK;
use super::masks::TokenMask;
use super::scheduler::Settings;
use crate::Error;
use crate::speculation::{Drafter, Speculator};

/// Rows of a submission.
const CHUNK: usize = 48;

/// What a schedule is made of.
#[derive(Debug, Clone)]
struct World {
    windows: Vec<Option<u32>>,
    blocks: Vec<usize>,
    slots: usize,
    /// The most sequences that run at once.
    running: usize,
    /// Events that a client leaves unread before its sequence holds.
    unread_events: usize,
    steps: usize,
    kinds_differ: bool,
    prefix_cache: bool,
    /// Records of a hybrid's states; 0 if it has none.
    records: usize,
    faults: Faults,
    clients: usize,
    longest: usize,
    /// One in so many masks is computed at each look.
    late: u64,
    /// One in so many jobs speculates.
    speculates: usize,
}

/// Guesses the tokens that a job must give, and sometimes others.
#[derive(Debug)]
struct FakeDrafter {
    tokens: Vec<u32>,
    pushed: usize,
    random: u64,
    evidence: usize,
}

impl Drafter for FakeDrafter {
    fn push(&mut self, token: u32) {
        assert_eq!(self.tokens.get(self.pushed), Some(&token), "the drafter sees every token once");
        self.pushed += 1;
        self.evidence = draw(&mut self.random) as usize % 9;
    }

    fn evidence(&self) -> usize {
        self.evidence
    }

    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
        for i in 0..most {
            let right = self.tokens.get(self.pushed + i).copied();
            let wrong = (draw(&mut self.random) % (fake::VOCAB as u64 + 1)) as u32;
            guesses.push(right.filter(|_| !draw(&mut self.random).is_multiple_of(6)).unwrap_or(wrong));
        }
    }
}

/// A client: a session, and what its job must give.
struct Client {
    id: SequenceId,
    tokens: Vec<u32>,
    running: Option<Expected>,
    jobs: usize,
    /// Whether it has sent a job, so that the core may know it.
    known: bool,
    /// How often it does not read when it could.
    silent: usize,
}

struct Expected {
    events: Arc<EventQueue>,
    tokens: Vec<u32>,
    /// How many have come.
    seen: usize,
    ends: Vec<u32>,
    /// Whether its constraint fails after these tokens.
    fails: bool,
    complete: bool,
}

/// The tokens that a sequence gets alone. They end where its constraint fails.
fn alone(
    plan: &Plan,
    kinds_differ: bool,
    prompt: &[u32],
    seed: u64,
    max_len: usize,
    ends: &[u32],
    mask: &mut Option<FakeMask>,
) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let mut entries: Vec<u64> = Vec::new();
    let mut state = 0;
    let mut generated = Vec::new();
    while tokens.len() < max_len && !mask.as_ref().is_some_and(FakeMask::has_failed) {
        if let Some(mask) = mask {
            // Tokens of sequences with a state are all sampled.
            let forced = if plan.delta.is_empty() { mask.next_forced() } else { Vec::new() };
            forced.iter().for_each(|token| mask.push(*token));
            if mask.has_failed() {
                break;
            }
            for token in forced {
                let is_end =
                    tokens.len() == max_len || generated.last().is_some_and(|last| ends.contains(last));
                if !is_end {
                    tokens.push(token);
                    generated.push(token);
                }
            }
            if tokens.len() == max_len || generated.last().is_some_and(|last| ends.contains(last)) {
                break;
            }
        }
        while entries.len() < tokens.len() {
            let position = entries.len();
            // The last token of a prompt is computed like generated ones.
            let is_generated = kinds_differ && position + 1 >= prompt.len();
            let kind = if is_generated { RowKind::Generated } else { RowKind::Prompt };
            entries.push(entry(tokens[position], position, kind, entries.last().copied().unwrap_or(0)));
            if !plan.delta.is_empty() {
                state = state_after(state, tokens[position], position, kind);
            }
        }
        let position = tokens.len() - 1;
        let attended = plan.kv.iter().fold(0u64, |all, group| {
            let window = group.window.map_or(usize::MAX, |window| window as usize);
            let seen = &entries[(position + 1).saturating_sub(window)..=position];
            seen.iter().fold(all, |all, entry| all.wrapping_add(*entry))
        });
        let mut token = next_token(attended.wrapping_add(state), seed, position + 1);
        if let Some(mask) = mask {
            token = first_allowed(token, |id| mask.allows(id));
            mask.push(token);
        }
        tokens.push(token);
        generated.push(token);
        if ends.contains(&token) {
            break;
        }
    }
    generated
}

struct Simulation {
    world: World,
    plan: Arc<Plan>,
    core: Core,
    counters: Arc<Counters>,
    clients: Vec<Client>,
    random: u64,
    commands: Vec<Command>,
    next_id: u64,
    /// Prompts that clients share.
    prefixes: Vec<Vec<u32>>,
}

impl Simulation {
    fn new(seed: u64, world: World) -> Simulation {
        let plan = Arc::new(plan(&world.windows, world.records > 0));
        let limits = limits(world.slots, world.steps, world.kinds_differ);
        let (of_rebuild, blocks, faults) = (Arc::clone(&plan), world.blocks.clone(), world.faults);
        let records = world.records;
        let number = AtomicU64::new(seed);
        let log = Arc::new(Log::default());
        let new = move || {
            let random = fake::mix(number.fetch_add(1, Ordering::Relaxed), 77);
            let size = (&blocks[..], records);
            Fake::new(Arc::clone(&of_rebuild), size, limits, random, faults, Arc::clone(&log))
        };
        let settings = Settings {
            chunk: CHUNK,
            steps_in_flight: world.steps,
            running: world.running,
            unread_events: world.unread_events,
            queue: 1 << 20,
            prefix_cache: world.prefix_cache,
            checkpoint_interval: 64,
            strict: true,
        };
        let counters = Arc::new(Counters::default());
        let first = Box::new(new());
        let rebuild = Box::new(move || Ok(Box::new(new()) as Box<dyn gyrus_kernels::Backend>));
        let mut core = Core::new(first, Arc::clone(&plan), settings, Arc::clone(&counters), rebuild);
        core.scheduler.masks.workers = Box::new(LateWorkers::new(seed, world.late));
        let mut random = seed;
        let prefixes = (0..3)
            .map(|_| {
                let length = draw(&mut random) as usize % (world.longest / 2) + 1;
                (0..length).map(|_| (draw(&mut random) % fake::VOCAB as u64) as u32).collect()
            })
            .collect();
        let clients = (0..world.clients as u64)
            .map(|id| Client {
                id: SequenceId(id + 1),
                tokens: Vec::new(),
                running: None,
                jobs: 0,
                known: false,
                silent: 0,
            })
            .collect::<Vec<_>>();
        let next_id = clients.len() as u64 + 1;
        Simulation { world, plan, core, counters, clients, random, commands: Vec::new(), next_id, prefixes }
    }

    fn below(&mut self, n: usize) -> usize {
        draw(&mut self.random) as usize % n.max(1)
    }

    /// A client starts a job: with one of the common prefixes, or with its last tokens and some more.
    fn start(&mut self, at: usize) {
        // A session goes on with what it has computed, whatever computed it. Where kinds differ, its tokens would depend
        // on its earlier jobs, so that each job has a session of its own.
        if self.world.kinds_differ && self.clients[at].known {
            self.close(at);
        }
        let again = !self.world.kinds_differ && self.below(3) == 0 && !self.clients[at].tokens.is_empty();
        let mut prompt = if again {
            let keep = self.below(self.clients[at].tokens.len()) + 1;
            self.clients[at].tokens[..keep].to_vec()
        } else {
            let which = self.below(self.prefixes.len());
            self.prefixes[which].clone()
        };
        let more = self.below(self.world.longest / 4);
        for _ in 0..more {
            let token = self.below(fake::VOCAB) as u32;
            prompt.push(token);
        }
        prompt.truncate(self.world.longest - 1);
        let max_len = prompt.len() + 1 + self.below(self.world.longest - prompt.len());
        let max_len = max_len.min(self.world.longest);
        let seed = draw(&mut self.random);
        let ends = if self.below(2) == 0 { vec![self.below(fake::VOCAB) as u32] } else { Vec::new() };
        let fails = (self.below(8) == 0).then(|| self.below(30));
        let mask = (self.below(2) == 0).then(|| FakeMask::new(seed, fails));
        let kinds_differ = self.world.kinds_differ;
        let mut after = mask.clone();
        let tokens = alone(&self.plan, kinds_differ, &prompt, seed, max_len, &ends, &mut after);
        let is_full = prompt.len() + tokens.len() >= max_len;
        let has_ended = tokens.last().is_some_and(|last| ends.contains(last));
        let fails = !is_full && !has_ended && after.is_some_and(|mask| mask.has_failed());
        let events = Arc::new(EventQueue::new());
        let speculates = self.world.speculates;
        let speculator = (speculates > 0 && self.below(speculates) == 0).then(|| {
            let random = draw(&mut self.random);
            let drafter = FakeDrafter { tokens: tokens.clone(), pushed: 0, random, evidence: 0 };
            let mut speculator = Speculator::new(Box::new(drafter));
            speculator.eager = true;
            Box::new(speculator)
        });
        let job = Job {
            tokens: prompt.clone(),
            max_len,
            task: Task::Generate {
                sampler: Box::new(Sampler { seed, ..Sampler::default() }),
                ends: ends.clone(),
                logprobs: None,
                constraint: mask.map(|mask| Box::new(mask) as Box<dyn TokenMask>),
                speculator,
            },
            client: self.below(3) as u64,
            priority: self.below(2) as i32,
            deadline: None,
            tenant: 0,
            events: Arc::clone(&events),
        };
        let client = &mut self.clients[at];
        client.tokens = prompt;
        client.known = true;
        client.jobs += 1;
        self.commands.push(Command::Start(client.id, job));
        client.running = Some(Expected { events, tokens, seen: 0, ends, fails, complete: false });
    }

    /// A client reads some of its events.
    fn read(&mut self, at: usize) {
        let most = self.below(8);
        let faulty = self.is_faulty();
        let client = &mut self.clients[at];
        if client.silent > 0 {
            client.silent -= 1;
            return;
        }
        let Some(expected) = &mut client.running else { return };
        for _ in 0..most {
            let Some(event) = expected.events.pop() else { break };
            match event {
                JobEvent::Token { id, .. } => {
                    assert_eq!(Some(&id), expected.tokens.get(expected.seen), "token {}", expected.seen);
                    expected.seen += 1;
                    client.tokens.push(id);
                }
                JobEvent::Done(end) => {
                    assert_eq!(expected.seen, expected.tokens.len(), "ended early: {end:?}");
                    assert!(!expected.fails, "ended in spite of its constraint");
                    let at_end = expected.tokens.last().is_some_and(|last| expected.ends.contains(last));
                    assert_eq!(end, if at_end { End::Token } else { End::Complete });
                    expected.complete = true;
                }
                JobEvent::Failed(Error::Backend(_) | Error::NotFinite { .. }) if faulty => {
                    expected.complete = true
                }
                JobEvent::Failed(Error::Panicked(text)) if faulty && text == PANIC => {
                    expected.complete = true
                }
                // The start of the job panicked.
                JobEvent::Failed(Error::Panicked(_)) if faulty && expected.seen == 0 => {
                    expected.complete = true
                }
                JobEvent::Failed(Error::Request(_)) if expected.fails => {
                    assert_eq!(expected.seen, expected.tokens.len(), "failed early");
                    expected.complete = true;
                }
                JobEvent::Failed(error) => panic!("failed: {error}"),
                JobEvent::Admitted { .. } | JobEvent::Progress { .. } | JobEvent::Logits { .. } => {}
            }
        }
        if expected.complete {
            client.running = None;
        }
    }

    fn is_faulty(&self) -> bool {
        self.world.faults.lost > 0
    }

    /// A client closes its session and opens another one.
    fn close(&mut self, at: usize) {
        self.commands.push(Command::Close(self.clients[at].id));
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.clients[at] = Client { id, tokens: Vec::new(), running: None, jobs: 0, known: false, silent: 0 };
    }

    /// A client forks its session and goes on with the fork, and the session is closed or goes on with another client.
    fn fork(&mut self, at: usize) {
        let (parent, child) = (self.clients[at].id, SequenceId(self.next_id));
        let tokens = self.clients[at].tokens.clone();
        // As a handle does before it gives the backend away.
        self.core.tick(&mut self.commands, Duration::ZERO);
        let keep = self.below(tokens.len() + 1);
        let forked = self
            .core
            .exclusively(|backend, scheduler| Ok(scheduler.fork(parent, child, &tokens[..keep], backend)?));
        assert!(forked.is_ok() || self.is_faulty(), "{forked:?}");
        self.next_id += 1;
        let to = self.below(self.clients.len());
        let to = if self.clients[to].running.is_some() || to == at {
            self.commands.push(Command::Close(parent));
            at
        } else {
            if self.clients[to].known {
                self.commands.push(Command::Close(self.clients[to].id));
            }
            to
        };
        let tokens = tokens[..keep].to_vec();
        self.clients[to] = Client { id: child, tokens, running: None, jobs: 0, known: true, silent: 0 };
    }

    fn act(&mut self, more: bool) {
        let at = self.below(self.clients.len());
        match (self.below(40), self.clients[at].running.is_some()) {
            (_, false) if more && self.below(3) == 0 => self.start(at),
            (0, true) => {
                // It goes away in the middle.
                if let Some(expected) = self.clients[at].running.take() {
                    expected.events.cancel();
                    self.commands.push(Command::Cancel);
                }
            }
            (5, true) => self.clients[at].silent = self.below(200),
            (1, _) if self.clients[at].known => {
                self.close(at);
            }
            (2..5, false) if self.clients[at].known && !self.world.kinds_differ => self.fork(at),
            (_, true) => self.read(at),
            _ => {}
        }
    }

    /// Every block is free, kept or in use by the sequences that have it.
    fn check_blocks(&self) {
        let scheduler = &self.core.scheduler;
        let running = scheduler.slots.iter().flatten().count();
        assert!(running <= self.world.running, "{running} sequences run");
        let mut users: Vec<Vec<u32>> = self.world.blocks.iter().map(|blocks| vec![0; *blocks]).collect();
        for sequence in scheduler.sequences.iter().flatten() {
            for (group, block) in sequence.kv.held() {
                users[group][block as usize] += 1;
            }
        }
        for (pool, users) in scheduler.kv.pools().iter().zip(&users) {
            pool.check(users);
        }
        let held = scheduler.sequences.iter().flatten().flat_map(|sequence| sequence.state.held());
        let chunks = scheduler.flights.iter().flat_map(|flight| &flight.chunks);
        scheduler.records.check(held.chain(chunks.filter_map(|chunk| chunk.checkpoint)));
    }

    fn run(&mut self, actions: usize) {
        for i in 0..actions {
            self.act(true);
            if self.below(3) > 0 {
                self.core.tick(&mut self.commands, Duration::ZERO);
            }
            if i % 16 == 0 {
                self.check_blocks();
            }
        }
        // All that still run must end, first those of the other clients if one does not read.
        let mut left = 200_000;
        let mut silent = Some(self.below(self.clients.len()));
        while self.clients.iter().any(|client| client.running.is_some()) {
            for at in (0..self.clients.len()).filter(|at| Some(*at) != silent) {
                self.read(at);
            }
            let mut clients = self.clients.iter().enumerate();
            silent = silent.filter(|silent| clients.any(|(at, c)| at != *silent && c.running.is_some()));
            self.core.tick(&mut self.commands, Duration::ZERO);
            left -= 1;
            assert!(left > 0, "a job does not end");
        }
        for at in 0..self.clients.len() {
            self.commands.push(Command::Close(self.clients[at].id));
        }
        for _ in 0..200 {
            self.core.tick(&mut self.commands, Duration::ZERO);
        }
        assert!(self.core.scheduler.by_id.is_empty(), "a sequence was not removed");
        self.check_blocks();
        for (pool, blocks) in self.core.scheduler.kv.pools().iter().zip(&self.world.blocks) {
            assert_eq!(pool.available(), *blocks, "blocks were lost");
        }
        assert_eq!(self.core.scheduler.records.available(), self.world.records, "records were lost");
    }
}

fn world(seed: u64) -> World {
    let mut random = fake::mix(seed, 5);
    let mut below = |n: u64| draw(&mut random) % n;
    // A few are so long that most of their blocks leave the windows.
    let longest = if below(32) == 0 { 500 + below(300) } else { 40 + below(200) } as usize;
    let windows = [vec![None], vec![None, Some(40)], vec![Some(33)], vec![None, Some(16), Some(64)]];
    let windows = windows[below(4) as usize].clone();
    let all = longest.div_ceil(KV_BLOCK) + 1;
    // From just enough for one sequence to enough for all.
    let clients = 1 + below(9) as usize;
    let share = all + below((all * clients / 2) as u64 + 1) as usize;
    // Groups with a window may have blocks for less than all positions.
    let groups = plan(&windows, false).kv;
    let window = KvSize::windowed(&groups, 1, longest, CHUNK + WINDOW_SLACK).blocks;
    let blocks = match below(2) {
        0 => vec![share; windows.len()],
        _ => window.iter().map(|least| *least + below((share - least) as u64 + 1) as usize).collect(),
    };
    // From just enough for one sequence to enough for all and many checkpoints.
    let records = if below(2) == 0 { 0 } else { 2 + below(4 * clients as u64) as usize };
    World {
        windows,
        blocks,
        records,
        slots: 1 + below(6) as usize,
        running: 1 + below(6) as usize,
        unread_events: [3, 20, 512, 512, 512][below(5) as usize],
        steps: [1, 2, 8, 40][below(4) as usize],
        kinds_differ: below(2) == 0,
        prefix_cache: below(4) > 0,
        faults: if below(4) == 0 {
            Faults { lost: 20, not_finite: 20, panics: 10 }
        } else {
            Faults::default()
        },
        clients,
        longest,
        late: [1, 2, 5, 40][below(4) as usize],
        speculates: [0, 1, 1, 3][below(4) as usize],
    }
}

fn run(seed: u64) -> [u64; 4] {
    let mut simulation = Simulation::new(seed, world(seed));
    simulation.run(120);
    let done = simulation.counters.read();
    [done.preemptions, done.cached_tokens, done.drafted_tokens, done.accepted_tokens]
}

/// Runs schedules and returns preemptions, cached tokens, guesses and right guesses.
fn run_all(seeds: std::ops::Range<u64>) -> [u64; 4] {
    let mut all = [0; 4];
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(done) => all.iter_mut().zip(done).for_each(|(all, done)| *all += done),
            Err(_) => panic!("schedule {seed} failed: {:?}", world(seed)),
        }
    }
    all
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The blocks of a client that goes away are free with the next tick, whether it waits, reads its prompt or decodes, and
/// whatever is in flight.
#[test]
fn a_client_that_goes_away_frees_its_blocks_at_once() {
    let blocks = 64;
    for (steps, ticks) in [1, 2, 8, 40].into_iter().flat_map(|steps| (0..24).map(move |ticks| (steps, ticks)))
    {
        let records = 8 * (ticks as usize % 2);
        let world = World {
            windows: vec![None, Some(40)],
            blocks: vec![blocks; 2],
            records,
            slots: 4,
            running: 4,
            unread_events: 512,
            steps,
            kinds_differ: true,
            prefix_cache: false,
            faults: Faults::default(),
            clients: 1,
            longest: 400,
            late: 0,
            speculates: usize::from(ticks % 3 == 0),
        };
        let mut simulation = Simulation::new(ticks, world);
        simulation.prefixes = vec![vec![3; 200]];
        simulation.start(0);
        for _ in 0..ticks {
            simulation.core.tick(&mut simulation.commands, Duration::ZERO);
        }
        simulation.close(0);
        simulation.core.tick(&mut simulation.commands, Duration::ZERO);
        for pool in simulation.core.scheduler.kv.pools() {
            assert_eq!(pool.available(), blocks, "after {ticks} ticks with {steps} steps in flight");
        }
        assert_eq!(simulation.core.scheduler.records.available(), records);
        assert!(simulation.core.scheduler.slots.iter().all(Option::is_none));
    }
}

#[test]
fn every_sequence_gets_the_tokens_that_it_gets_alone() {
    let (schedules, first) = (variable("GYRUS_SCHEDULES", 10_000), variable("GYRUS_SEED", 0));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let each = schedules.div_ceil(threads);
    let [preemptions, cached, drafted, accepted] = std::thread::scope(|scope| {
        let ranges = (0..threads).map(|n| first + n * each..(first + (n + 1) * each).min(first + schedules));
        let running: Vec<_> = ranges.map(|range| scope.spawn(|| run_all(range))).collect();
        running.into_iter().fold([0; 4], |all, thread| {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            std::array::from_fn(|i| all[i] + done[i])
        })
    });
    println!(
        "{schedules} schedules: {preemptions} preemptions, {cached} cached tokens, {accepted} of {drafted} guesses"
    );
    // Otherwise the schedules would not test much.
    if schedules >= 1000 {
        assert!(preemptions > schedules / 10, "{preemptions} preemptions");
        assert!(cached > 10 * schedules, "{cached} cached tokens");
        assert!(accepted > 10 * schedules, "{accepted} right guesses");
        assert!(drafted - accepted > 10 * schedules, "{accepted} of {drafted} guesses are right");
    }
}
