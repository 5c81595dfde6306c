use std::time::Duration;

/// What is looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// The next token of each of so many texts, from tokens to tokens.
    Sequences(usize),
    /// So many tokens of one text that are read at once, and the last one's logits.
    Prompt(usize),
}

impl Workload {
    /// Tokens it takes.
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
    /// What it did.
    pub workload: Workload,
    /// Positions in the cache before it.
    pub depth: usize,
    /// The batch from its tokens to its choice, all kernels in their order.
    pub time: Duration,
    /// Kernels that do the same for one layer after the other, in the order of their first.
    pub entries: Vec<ProfileEntry>,
    /// Bytes per second that a copy reads and writes on this device.
    pub copy_bandwidth: f64,
}

/// Kernels of a kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileEntry {
    /// What they do.
    pub name: String,
    /// How many of them the batch has.
    pub count: usize,
    /// All of them, one after the other and nothing between them.
    pub time: Duration,
    /// Bytes that must be read and written, by all of them.
    pub bytes: u64,
    /// Products and sums of all of them, each counted.
    pub flops: u64,
}

impl Profile {
    /// How many kernels the batch has.
    pub fn dispatches(&self) -> usize {
        self.entries.iter().map(|entry| entry.count).sum()
    }
}

/// A form of a kernel that was tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// What it computes.
    pub kernel: String,
    /// How it was divided.
    pub form: String,
    /// A step with it.
    pub time: Duration,
    /// Whether it was the quickest so far.
    pub best: bool,
}

/// What looks into a backend's speed.
pub trait Instruments {
    /// Where the time of a batch goes whose texts have `depth` positions before.
    fn profile(&mut self, workload: Workload, depth: usize) -> Result<Profile, crate::BackendError>;

    /// Tries forms of kernels, tells of each, and keeps the best from then on, in this process and, if it has a place
    /// for that, in later ones.
    fn tune(&mut self, trial: &mut dyn FnMut(&Trial)) -> Result<(), crate::BackendError>;
}
