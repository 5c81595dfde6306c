//! Constraints without a grammar, for tests of the scheduler, and workers that are late.

use std::time::Duration;

use super::fake::{VOCAB, draw, mix};
use super::mask_workers::{Help, MaskWork, MaskWorkers};
use super::masks::TokenMask;
use crate::Error;

/// A constraint in which every token decides which ones may follow.
#[derive(Debug, Clone)]
pub(super) struct FakeMask {
    hash: u64,
    /// Those before each token.
    before: Vec<u64>,
    /// After this many tokens it fails.
    fails: Option<usize>,
    committed: usize,
}

impl FakeMask {
    pub(super) fn new(seed: u64, fails: Option<usize>) -> FakeMask {
        FakeMask { hash: seed, before: Vec::new(), fails, committed: 0 }
    }

    pub(super) fn allows(&self, id: u32) -> bool {
        u64::from(id) == self.hash % VOCAB as u64 || mix(self.hash, u64::from(id)).is_multiple_of(7)
    }

    pub(super) fn push(&mut self, token: u32) {
        assert!(self.allows(token), "token {token} was not allowed");
        self.before.push(self.hash);
        self.hash = mix(self.hash, u64::from(token) + 1);
        self.committed += 1;
    }

    /// Whether there is no mask here.
    pub(super) fn has_failed(&self) -> bool {
        self.fails.is_some_and(|fails| self.committed >= fails)
    }
}

impl FakeMask {
    /// The tokens without an alternative that come next.
    pub(super) fn next_forced(&self) -> Vec<u32> {
        let (mut after, mut forced) = (self.clone(), Vec::new());
        while after.hash.is_multiple_of(3) && forced.len() < 5 {
            let token = first_allowed((after.hash / 3 % VOCAB as u64) as u32, |id| after.allows(id));
            after.push(token);
            forced.push(token);
        }
        forced
    }
}

impl TokenMask for FakeMask {
    fn forced(&mut self) -> Vec<u32> {
        self.next_forced()
    }

    fn commit(&mut self, token: u32) -> Result<(), Error> {
        // Only guesses may be refused: what was sampled is allowed.
        if !self.allows(token) {
            return Err(Error::Request("not allowed".into()));
        }
        self.push(token);
        Ok(())
    }

    fn take_back(&mut self, tokens: usize) -> Result<(), Error> {
        for _ in 0..tokens {
            self.hash = self.before.pop().expect("a token to take back");
            self.committed -= 1;
        }
        Ok(())
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), Error> {
        if self.has_failed() {
            return Err(Error::Request("the fake constraint has failed".into()));
        }
        words.fill(0);
        for id in (0..VOCAB as u32).filter(|id| self.allows(*id)) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(())
    }
}

/// The token that is sampled if not all are allowed: the first one from the model's choice on.
pub(super) fn first_allowed(choice: u32, allows: impl Fn(u32) -> bool) -> u32 {
    let vocab = VOCAB as u32;
    (0..vocab).map(|n| (choice + n) % vocab).find(|id| allows(*id)).expect("a mask allows a token")
}

/// Workers that complete masks at random, and in another order than they were started in.
#[derive(Debug)]
pub(super) struct LateWorkers {
    random: u64,
    /// One in so many masks is computed at each look.
    late: u64,
    work: Vec<MaskWork>,
}

impl LateWorkers {
    pub(super) fn new(random: u64, late: u64) -> LateWorkers {
        LateWorkers { random, late, work: Vec::new() }
    }
}

impl MaskWorkers for LateWorkers {
    fn start(&mut self, work: MaskWork, _: Help) -> Result<(), Error> {
        let at = draw(&mut self.random) as usize % (self.work.len() + 1);
        self.work.insert(at, work);
        Ok(())
    }

    fn help(&mut self, help: Help, done: &mut Vec<MaskWork>) {
        if help != Help::No && draw(&mut self.random).is_multiple_of(self.late) {
            done.extend(self.work.pop().map(MaskWork::compute));
        }
    }

    fn wait(&mut self, _: Duration, done: &mut Vec<MaskWork>) {
        for work in std::mem::take(&mut self.work) {
            match draw(&mut self.random).is_multiple_of(self.late) {
                true => done.push(work.compute()),
                false => self.work.push(work),
            }
        }
    }
}
