//! Serving: one road for one sequence or hundreds.
//!
//! [`Handle`] takes commands from clients and gives them events. [`Core`] owns the backend: its tick is the only code that
//! calls it. [`Scheduler`] decides what each submission computes, and owns the blocks of the KV cache.

mod admission;
mod ahead;
mod blocks;
mod core;
mod counters;
mod drafts;
mod failure;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fake_core;
#[cfg(test)]
mod fake_faults;
#[cfg(test)]
mod fake_masks;
#[cfg(test)]
mod fault_tests;
mod handle;
mod job;
mod kv;
mod landing;
mod mask_workers;
mod masks;
mod mirostat;
mod pace;
mod prefix;
mod queue;
mod records;
mod row_times;
mod saved;
mod scheduler;
mod sequence;
#[cfg(test)]
mod sharing_tests;
mod shift;
#[cfg(test)]
mod simulation;
mod submission;

pub(crate) use self::core::{Command, Core, Rebuild};
pub(crate) use counters::Counters;
pub use counters::Statistics;
pub use handle::Driver;
pub(crate) use handle::Handle;
pub(crate) use job::{End, EventQueue, Job, JobEvent, MAX_WAITING_EVENTS, SequenceId, Task};
pub(crate) use kv::{SequenceKv, WINDOW_SLACK};
pub(crate) use masks::TokenMask;
pub(crate) use records::{CHECKPOINT_INTERVAL, SequenceState};
pub(crate) use saved::Outline;
pub(crate) use scheduler::{Scheduler, Settings};
pub(crate) use shift::unsound as unsound_shift;
