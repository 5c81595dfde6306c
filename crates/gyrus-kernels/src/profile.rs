use std::time::Duration;

use crate::bandwidth::{Bandwidth, Traffic};

/// The workload to profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Decode: the next token of each of this many sequences.
    Sequences(usize),
    /// Prefill: this many tokens of one sequence at once, and the logits of the last.
    Prompt(usize),
}

impl Workload {
    /// Its tokens.
    pub fn rows(self) -> usize {
        match self {
            Workload::Sequences(rows) | Workload::Prompt(rows) => rows,
        }
    }
}

/// Where the time of one batch goes, kernel by kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The device that ran it.
    pub device: String,
    /// The workload.
    pub workload: Workload,
    /// Positions in the cache before it.
    pub depth: usize,
    /// The whole batch, from tokens to chosen tokens, all kernels in order.
    pub time: Duration,
    /// Kernels grouped by what they do in each layer, in the order of the first.
    pub entries: Vec<ProfileEntry>,
    /// How fast the device reads and writes memory.
    pub bandwidth: Bandwidth,
}

/// Kernels of a kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileEntry {
    /// What they do.
    pub name: String,
    /// How many of them the batch has.
    pub count: usize,
    /// Time of all of them, one after the other.
    pub time: Duration,
    /// The least that all of them must read and write.
    pub traffic: Traffic,
    /// Floating-point operations of all of them.
    pub flops: u64,
}

impl Profile {
    /// How many kernels the batch has.
    pub fn dispatches(&self) -> usize {
        self.entries.iter().map(|entry| entry.count).sum()
    }
}

/// A kernel variant that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// What it computes.
    pub kernel: String,
    /// Its tuning.
    pub form: String,
    /// The time of a step with it.
    pub time: Duration,
    /// Whether it was the fastest so far.
    pub best: bool,
}

/// Profiling and tuning of a backend.
pub trait Instruments {
    /// The time of each kernel of a batch, at a context of `depth` tokens. `free` names for each KV group blocks that no
    /// sequence uses: the batch's keys and values are written to those.
    fn profile(
        &mut self,
        workload: Workload,
        depth: usize,
        free: &[&[u32]],
    ) -> Result<Profile, crate::BackendError>;

    /// Measures kernel variants, reports each, and uses the best from then on, in this process and, if the backend can
    /// store it, in later ones. `free` as in [`Instruments::profile`].
    fn tune(&mut self, free: &[&[u32]], trial: &mut dyn FnMut(&Trial)) -> Result<(), crate::BackendError>;

    /// Begins to measure how long the device is busy. `false`: it has no clock for that.
    fn start_busy(&mut self) -> bool;

    /// Closes the device, as if it was lost: for tests of what happens then.
    fn close_device(&mut self);

    /// Ends that measurement: the time in which the device ran anything that was waited for; `None` if nothing was
    /// measured.
    fn end_busy(&mut self) -> Result<Option<Duration>, crate::BackendError>;
}
