//! A sequence as the scheduler knows it.

use gyrus_kernels::{LogitRows, RowKind};

use super::job::{Job, JobEvent, SequenceId, Task};
use super::kv::SequenceKv;
use super::masks::SequenceMask;
use super::mirostat::MirostatTrail;
use super::records::{RecordPool, SequenceState};
use crate::speculation::Speculator;

/// The tokens of a sequence, its part of the KV cache, and the job that runs on it.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// Prompts and sampled tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) kv: SequenceKv,
    /// Its state, if the plan has one.
    pub(super) state: SequenceState,
    /// The length for which the ropes' frequencies were chosen.
    pub(super) length: u32,
    pub(super) tenant: u64,
    /// Whether the chain of its blocks is its own and its forks', since they came from a file. No tenant finds them.
    pub(super) has_own_chain: bool,
    pub(super) job: Option<Job>,
    pub(super) phase: Phase,
    /// Rows from this position on are generated rows.
    pub(super) generated_from: usize,
    /// The constraint of its job.
    pub(super) mask: Option<SequenceMask>,
    /// Mirostat's state along its tokens.
    pub(super) mirostat: MirostatTrail,
    /// Guesses the next tokens of its job.
    pub(super) speculator: Option<Box<Speculator>>,
    /// When it was last used, to find the least recently used one.
    pub(super) used: u64,
    /// How often the device was lost when its job was admitted.
    pub(super) losses: usize,
    /// Whether its session is closed: it is removed when its job has ended.
    pub(super) closed: bool,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has no job. It may hold blocks, so that the next job need not compute them again.
    Idle,
    /// Its job waits for a slot and blocks; with the number of its admission if it was preempted.
    Waiting { order: Option<u64>, announced: bool },
    /// It has a slot.
    Running(Running),
}

/// The state of a sequence that has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) slot: usize,
    /// The number of its admission: the youngest is preempted first.
    pub(super) order: u64,
    /// A number that no other admission has: chunks in flight of an earlier one are not this one's.
    pub(super) epoch: u64,
    /// Positions whose keys and values the device has computed.
    pub(super) landed: usize,
    /// From which submission on its slot decodes.
    pub(super) decodes: Decodes,
    /// The limit and the blocks that its slot knows.
    pub(super) sent_limit: u32,
    pub(super) sent_blocks: usize,
    /// If the host samples it: the first submission with steps since its last token, if there was one.
    pub(super) host_step: Option<u64>,
    /// The sequence that computes its prefix.
    pub(super) follows: Option<Follows>,
}

/// A sequence that computes the prefix of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Follows {
    pub(super) leader: SequenceId,
    /// The leader's admission: a later job may have other tokens.
    pub(super) epoch: u64,
    /// Tokens that they have in common.
    pub(super) common: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decodes {
    /// Its prompt is not computed yet.
    No,
    /// It begins with the submission that is being made.
    Next,
    /// It has begun with this submission.
    Since(u64),
    /// It has left the steps, of which those up to this submission are in flight.
    Stops { since: u64, last: u64 },
    /// Drafts of it are verified.
    Drafts { in_flight: bool },
}

impl Sequence {
    pub(super) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) => Some(running),
            _ => None,
        }
    }

    /// How many tokens it begins with as these do.
    pub(super) fn common(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Sends an event to the job's client.
    pub(super) fn tell(&self, event: JobEvent) {
        if let Some(job) = &self.job {
            job.events.push(event);
        }
    }

    /// The tokens that chunks compute: all, or all but the last one, which decodes.
    pub(super) fn to_read(&self) -> usize {
        match self.job.as_ref().map(|job| &job.task) {
            Some(Task::Generate { .. }) => self.tokens.len().saturating_sub(1),
            Some(Task::Prefill | Task::Score) => self.tokens.len(),
            None => 0,
        }
    }

    /// The next chunk of at most `rows` tokens, all of one kind: their number, kind and wanted logits. A chunk ends where a
    /// checkpoint of the state is taken.
    pub(super) fn next_chunk(
        &self,
        rows: usize,
        records: &RecordPool,
    ) -> Option<(usize, RowKind, LogitRows)> {
        let (first, end) = (self.kv.len(), self.to_read());
        let next = records.next_checkpoint(first, end);
        let most = rows.min(end.min(next).saturating_sub(first));
        if most == 0 {
            return None;
        }
        let kind = |position: usize| match position >= self.generated_from {
            true => RowKind::Generated,
            false => self.kv.kind(position),
        };
        let count = (first..first + most).take_while(|position| kind(*position) == kind(first)).count();
        let kind = kind(first);
        let logits = match self.job.as_ref().map(|job| &job.task) {
            Some(Task::Score) => LogitRows::All,
            Some(Task::Prefill) if first + count == end => LogitRows::Last,
            _ => LogitRows::None,
        };
        Some((count, kind, logits))
    }

    /// Whether its sampler is not for every backend's own steps.
    pub(super) fn has_host_sampler(&self) -> bool {
        match self.job.as_ref().map(|job| &job.task) {
            Some(Task::Generate { sampler, .. }) => !sampler.is_plain(),
            _ => false,
        }
    }

    /// Whether its prompt is to be computed.
    pub(super) fn reads(&self) -> bool {
        self.running().is_some_and(|running| running.decodes == Decodes::No)
    }

    /// Whether its slot takes part in the next step.
    pub(super) fn decodes(&self) -> bool {
        self.running().is_some_and(|running| matches!(running.decodes, Decodes::Next | Decodes::Since(_)))
    }

    /// Whether its prompt is computed, and steps or drafts give it tokens.
    pub(super) fn generates(&self) -> bool {
        self.running().is_some_and(|running| running.decodes != Decodes::No)
    }

    /// Whether its client has left this many events unread.
    pub(super) fn is_unread(&self, events: usize) -> bool {
        self.job.as_ref().is_some_and(|job| job.events.waiting() >= events)
    }

    /// Positions that it needs blocks for to begin: those of its tokens, and one for the first that it samples.
    pub(super) fn positions(&self) -> usize {
        self.tokens.len() + usize::from(self.remaining() > 0)
    }

    /// Tokens that it may still sample.
    pub(super) fn remaining(&self) -> usize {
        self.job.as_ref().map_or(0, |job| job.max_len.saturating_sub(self.tokens.len()))
    }
}
