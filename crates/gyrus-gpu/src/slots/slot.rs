//! What the host knows of a slot.

/// A slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    /// Whether a sequence has it.
    pub(super) open: bool,
    /// The length that the sequence may reach.
    pub(super) length: u32,
    /// Entries of its block tables.
    pub(super) blocks: usize,
    /// The records of its state, if it decodes.
    pub(super) records: Option<[u32; 2]>,
    /// How it decodes, if it does.
    pub(super) decoding: Option<Decoding>,
}

/// A slot that decodes. The position of its input token is known only of steps that were read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoding {
    /// The position after the last step that was read.
    pub(super) confirmed: u32,
    /// The position after the last step that was submitted, if the slot advanced whenever its limit allowed.
    pub(super) predicted: u32,
    /// Steps that were submitted and not read.
    ahead: u32,
    pub(super) limit: u32,
    /// The position that its last mask is for, and the first submission whose steps have it.
    pub(super) mask: Option<(u32, u64)>,
    /// The first submission that it is part of.
    pub(super) since: u64,
    pub(super) needs: Needs,
}

/// What a slot needs of the kernels that sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Needs {
    pub(super) greedy: bool,
    pub(super) penalties: bool,
    pub(super) masked: bool,
    pub(super) logprobs: bool,
    /// Whether it draws without a top-k.
    pub(super) whole: bool,
    /// Whether the host samples it, from logits that are kept.
    pub(super) keeps: bool,
}

impl Needs {
    /// What no slot needs.
    pub(super) const NONE: Needs =
        Needs { greedy: true, penalties: false, masked: false, logprobs: false, whole: false, keeps: false };

    /// What slots need together.
    pub(super) fn and(self, other: Needs) -> Needs {
        Needs {
            greedy: self.greedy && other.greedy,
            penalties: self.penalties || other.penalties,
            masked: self.masked || other.masked,
            logprobs: self.logprobs || other.logprobs,
            whole: self.whole || other.whole,
            keeps: self.keeps || other.keeps,
        }
    }
}

impl Decoding {
    pub(super) fn new(position: u32, limit: u32, since: u64, needs: Needs) -> Decoding {
        Decoding { confirmed: position, predicted: position, ahead: 0, limit, mask: None, since, needs }
    }

    /// A step of a submission was recorded.
    pub(super) fn submit(&mut self, submission: u64) {
        self.ahead += 1;
        let next = self.predicted + 1;
        let is_for_next = |(position, since)| position == next && since <= submission;
        let has_mask = !self.needs.masked || self.mask.is_some_and(is_for_next);
        // The device does not advance a slot that the host samples.
        self.predicted += u32::from(!self.needs.keeps && has_mask && next < self.limit);
    }

    /// A step was read.
    pub(super) fn read(&mut self, advanced: bool) {
        self.ahead = self.ahead.saturating_sub(1);
        self.confirmed += u32::from(advanced);
        if self.needs.keeps {
            self.predicted = self.confirmed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_predicted_to_hold_at_its_limit_and_to_go_on() {
        let mut slot = Decoding::new(10, 13, 1, Needs::NONE);
        (0..5).for_each(|_| slot.submit(1));
        assert_eq!((slot.confirmed, slot.predicted), (10, 12));
        [true, true, false].into_iter().for_each(|advanced| slot.read(advanced));
        assert_eq!(slot.confirmed, 12);
        slot.limit = 20;
        slot.submit(1);
        assert_eq!(slot.predicted, 13);
    }

    #[test]
    fn a_masked_slot_is_predicted_to_advance_once_for_each_mask() {
        let mut slot = Decoding::new(10, 100, 1, Needs { masked: true, ..Needs::NONE });
        slot.submit(1);
        assert_eq!(slot.predicted, 10);
        slot.mask = Some((11, 2));
        slot.submit(1);
        assert_eq!(slot.predicted, 10, "a step of a submission that was made before has no mask");
        (0..3).for_each(|_| slot.submit(2));
        assert_eq!(slot.predicted, 11);
        [false, false, true, false, false].into_iter().for_each(|advanced| slot.read(advanced));
        assert_eq!((slot.confirmed, slot.predicted), (11, 11));
        slot.mask = Some((12, 3));
        slot.limit = 12;
        slot.submit(3);
        assert_eq!(slot.predicted, 11, "the limit holds it, too");
    }
}
