use std::collections::VecDeque;

use super::DecodeRow;
use crate::slots::{Landed, MAX_TOP, Outcome, TopTokens};

/// Completed parts of submissions, in order. Their buffers are used again.
#[derive(Debug, Default)]
pub(super) struct LandedQueue {
    waiting: VecDeque<Part>,
    /// The part that was read last.
    current: Part,
    unused: Vec<Part>,
}

#[derive(Debug, Default)]
struct Part {
    submission: u64,
    kind: PartKind,
    logits: Vec<f32>,
    outcomes: Vec<Outcome>,
    top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum PartKind {
    #[default]
    Step,
    Drafts,
    Chunks,
}

impl LandedQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Steps that were not read.
    pub(super) fn steps(&self) -> usize {
        self.waiting.iter().filter(|part| part.kind == PartKind::Step).count()
    }

    /// A part with empty buffers at the end of the queue.
    fn push(&mut self, submission: u64, kind: PartKind) -> &mut Part {
        let mut part = self.unused.pop().unwrap_or_default();
        (part.submission, part.kind) = (submission, kind);
        part.logits.clear();
        part.outcomes.clear();
        part.top.clear();
        let index = self.waiting.len();
        self.waiting.push_back(part);
        &mut self.waiting[index]
    }

    pub(super) fn push_chunks(&mut self, submission: u64, logits: &[f32]) {
        let part = self.push(submission, PartKind::Chunks);
        part.logits.extend_from_slice(logits);
    }

    pub(super) fn push_step(&mut self, submission: u64, rows: &[DecodeRow]) {
        self.push_outcomes(submission, PartKind::Step, rows);
    }

    pub(super) fn push_drafts(&mut self, submission: u64, rows: &[DecodeRow]) {
        self.push_outcomes(submission, PartKind::Drafts, rows);
    }

    fn push_outcomes(&mut self, submission: u64, kind: PartKind, rows: &[DecodeRow]) {
        let part = self.push(submission, kind);
        part.outcomes.extend(rows.iter().map(DecodeRow::outcome));
        if rows.iter().any(DecodeRow::wants_top) {
            part.top.resize(rows.len() * MAX_TOP, (0, f32::NEG_INFINITY));
            for (row, top) in rows.iter().zip(part.top.chunks_exact_mut(MAX_TOP)) {
                top[..row.top().len()].copy_from_slice(row.top());
            }
        }
    }

    /// The oldest part.
    pub(super) fn next(&mut self) -> Option<Landed<'_>> {
        let part = self.waiting.pop_front()?;
        self.unused.push(std::mem::replace(&mut self.current, part));
        let Part { submission, kind, logits, outcomes, top } = &self.current;
        Some(match *kind {
            PartKind::Step => {
                Landed::Step { submission: *submission, outcomes, top: TopTokens { entries: top } }
            }
            PartKind::Drafts => {
                Landed::Drafts { submission: *submission, outcomes, top: TopTokens { entries: top } }
            }
            PartKind::Chunks => Landed::Chunks { submission: *submission, logits },
        })
    }

    pub(super) fn clear(&mut self) {
        self.unused.extend(self.waiting.drain(..));
    }
}
