//! Slots whose samplers the device cannot run: the host samples from their logits.
//!
//! On the device such a slot has a row that holds. A submission with steps copies the row's logits to the host. When the
//! first of its steps is read, the host draws the token, which is that step's outcome, and the next submission writes the
//! token and its position to the row. Steps that were submitted before that compute the same row again; the host does not
//! read their logits. Other slots advance on the device as ever.

use gyrus_kernels::{BackendError, Decode, DecodeRow, LogSoftmax, Outcome};

use super::flight::{GroupSteps, Landing};
use crate::buffers::MATVEC_ROWS;

/// A slot that the host samples.
#[derive(Debug)]
pub(super) struct HostSlot {
    pub(super) row: DecodeRow,
    /// The first submission that computes the row of its last token.
    since: u64,
    /// Whether the last step that was read has sampled.
    pub(super) has_sampled: bool,
}

/// All slots that the host samples, by number.
#[derive(Debug, Default)]
pub(super) struct HostSlots(Vec<Option<Box<HostSlot>>>);

impl HostSlots {
    pub(super) fn new(slots: usize) -> HostSlots {
        HostSlots((0..slots).map(|_| None).collect())
    }

    /// Begins with the next submission. `length` is the length that the sequence may reach.
    pub(super) fn start(
        &mut self,
        slot: usize,
        decode: &Decode<'_>,
        length: u32,
        since: u64,
    ) -> Result<(), BackendError> {
        let mut row = DecodeRow::default();
        row.start(decode, length, since)?;
        self.0[slot] = Some(Box::new(HostSlot { row, since, has_sampled: false }));
        Ok(())
    }

    pub(super) fn get(&mut self, slot: usize) -> Option<&mut HostSlot> {
        self.0.get_mut(slot)?.as_deref_mut()
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.0[slot] = None;
    }

    /// The slots that the last step has sampled, with their tokens and positions.
    pub(super) fn take_sampled(&mut self) -> impl Iterator<Item = (usize, u32, u32)> {
        self.0.iter_mut().enumerate().filter_map(|(slot, host)| {
            let host = host.as_mut()?;
            let (token, position) = host.row.input();
            std::mem::take(&mut host.has_sampled).then_some((slot, token, position))
        })
    }

    /// Samples from the logits that a landing has of a group, where they are new. `next`: the number of the next
    /// submission, with which the tokens are written to the device.
    pub(super) fn sample(
        &mut self,
        (index, group): (usize, &GroupSteps),
        landing: &Landing,
        words: &[u32],
        (vocab, next): (usize, u64),
    ) {
        let first = index * MATVEC_ROWS;
        let mut kept = words.get(group.kept..).unwrap_or_default().chunks_exact(vocab);
        let mut work: Vec<(&mut HostSlot, &[f32])> = Vec::new();
        for (row, host) in self.0[first..first + MATVEC_ROWS].iter_mut().enumerate() {
            if let Some(host) = host {
                host.has_sampled = false;
            }
            if group.hosted >> row & 1 == 0 {
                continue;
            }
            let Some(logits) = kept.next() else { continue };
            if let Some(host) = host
                && host.since <= landing.number()
                && host.row.next_input().is_some()
            {
                work.push((host, bytemuck::cast_slice(logits)));
            }
        }
        let sample = |(host, logits): &mut (&mut HostSlot, &[f32])| {
            host.row.expect(Some(0));
            host.row.sample(logits, vocab, LogSoftmax::with_top);
            host.since = next;
            host.has_sampled = true;
        };
        // The device has other steps meanwhile, but not many.
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(work.len());
        if threads <= 1 {
            work.iter_mut().for_each(sample);
            return;
        }
        let each = work.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let mut parts = work.chunks_mut(each);
            let own = parts.next();
            for part in parts {
                scope.spawn(move || part.iter_mut().for_each(sample));
            }
            own.into_iter().flatten().for_each(sample);
        });
    }
}

impl HostSlot {
    /// What the step that was read has done.
    pub(super) fn outcome(&self) -> Outcome {
        if self.has_sampled { self.row.outcome() } else { Outcome::Held }
    }

    /// The most likely tokens, if the step has sampled and they were asked for.
    pub(super) fn top(&self) -> &[(u32, f32)] {
        if self.has_sampled { self.row.top() } else { &[] }
    }
}
