//! Counts of what a scheduler has done, readable at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since a model was loaded, and what is going on now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests.
    pub requests: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// How many of them were in the KV cache.
    pub cached_tokens: u64,
    /// Sampled tokens.
    pub generated_tokens: u64,
    /// Decode steps.
    pub steps: u64,
    /// Guesses of speculation that were verified.
    pub drafted_tokens: u64,
    /// How many of them were right: tokens that took no step of their own.
    pub accepted_tokens: u64,
    /// How often a sequence had to give back its blocks, to compute them again later.
    pub preemptions: u64,
    /// How often the device was lost and opened again.
    pub rebuilds: u64,
    /// Sequences that have a slot now.
    pub running: u64,
    /// Jobs that wait for one now.
    pub waiting: u64,
    /// Blocks of the KV cache.
    pub blocks: u64,
    /// How many of them sequences hold now. The others are free, or kept for their known tokens until they are needed.
    pub used_blocks: u64,
}

impl Statistics {
    /// The part of all prompt tokens that was in the KV cache.
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    steps: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    preemptions: AtomicU64,
    rebuilds: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    blocks: AtomicU64,
    used_blocks: AtomicU64,
}

impl Counters {
    pub(super) fn requests(&self, n: u64) {
        self.requests.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn prompt(&self, tokens: usize, cached: usize) {
        self.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(cached as u64, Ordering::Relaxed);
    }

    pub(super) fn tokens(&self, n: u64) {
        self.generated_tokens.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn steps(&self, n: u64) {
        self.steps.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn drafts(&self, guesses: usize, right: usize) {
        self.drafted_tokens.fetch_add(guesses as u64, Ordering::Relaxed);
        self.accepted_tokens.fetch_add(right as u64, Ordering::Relaxed);
    }

    pub(super) fn preemptions(&self, n: u64) {
        self.preemptions.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn rebuilds(&self, n: u64) {
        self.rebuilds.fetch_add(n, Ordering::Relaxed);
    }

    /// What is going on after a tick.
    pub(super) fn now(&self, running: usize, waiting: usize, (used, blocks): (usize, usize)) {
        let set = |gauge: &AtomicU64, value: usize| gauge.store(value as u64, Ordering::Relaxed);
        set(&self.running, running);
        set(&self.waiting, waiting);
        set(&self.used_blocks, used);
        set(&self.blocks, blocks);
    }

    pub(crate) fn read(&self) -> Statistics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            requests: of(&self.requests),
            prompt_tokens: of(&self.prompt_tokens),
            cached_tokens: of(&self.cached_tokens),
            generated_tokens: of(&self.generated_tokens),
            steps: of(&self.steps),
            drafted_tokens: of(&self.drafted_tokens),
            accepted_tokens: of(&self.accepted_tokens),
            preemptions: of(&self.preemptions),
            rebuilds: of(&self.rebuilds),
            running: of(&self.running),
            waiting: of(&self.waiting),
            blocks: of(&self.blocks),
            used_blocks: of(&self.used_blocks),
        }
    }
}
