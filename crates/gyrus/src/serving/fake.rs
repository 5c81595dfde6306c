//! A backend without a model, for tests of the scheduler: its cache holds hashes, and each token depends on all of them,
//! so that one wrong block changes the tokens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gyrus_kernels::observe::Observer;
use gyrus_kernels::{
    Backend, BackendError, Batch, CacheContents, Chunk, Decode, DeltaShape, Draft, KV_BLOCK, KvGroup, Landed,
    Limits, LogitRows, Outcome, Plan, Precision, RowKind, Slots, TopTokens, Work,
};

use super::fake_faults::{Call, Fault, Faults, Log};
use super::fake_masks::first_allowed;

pub(super) const VOCAB: usize = 97;

/// A random number of a stream.
pub(super) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mix(*state, 0)
}

pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x2545_F491_4F6C_DD1D);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a position puts into the cache.
pub(super) fn entry(token: u32, position: usize, kind: RowKind, before: u64) -> u64 {
    mix(mix(before, u64::from(token)), 2 * position as u64 + u64::from(kind == RowKind::Generated)) | 1
}

/// The state of a hybrid after a row.
pub(super) fn state_after(before: u64, token: u32, position: usize, kind: RowKind) -> u64 {
    mix(entry(token, position, kind, before), 0x5354)
}

/// The token after a position, of the sum of what it attends to.
pub(super) fn next_token(attended: u64, seed: u64, position: usize) -> u32 {
    (mix(mix(attended, seed), position as u64) % VOCAB as u64) as u32
}

pub(super) struct Fake {
    plan: Arc<Plan>,
    blocks: Vec<usize>,
    limits: Limits,
    /// Of each KV group, `[blocks, KV_BLOCK]`.
    cache: Vec<Vec<u64>>,
    /// States of a hybrid: hashes of all rows that they have seen.
    records: Vec<u64>,
    slots: Vec<Slot>,
    landed: VecDeque<Part>,
    outcomes: Vec<Outcome>,
    logits: Vec<f32>,
    submission: u64,
    random: u64,
    faults: Faults,
    /// Whether the device was lost: it stays so.
    lost: bool,
    log: Arc<Log>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    open: bool,
    tables: Vec<Vec<u32>>,
    decode: Option<State>,
    /// Whether it was started since the last submission.
    is_new: bool,
    draft: Option<Drafted>,
}

/// A draft of the next submission.
#[derive(Debug, Clone)]
struct Drafted {
    order: usize,
    tokens: Vec<u32>,
    guesses: usize,
    seed: u64,
    masks: Vec<u32>,
}

#[derive(Debug, Clone)]
struct State {
    token: u32,
    position: usize,
    limit: usize,
    seed: u64,
    ends: Vec<u32>,
    ended: bool,
    records: [u32; 2],
    masked: bool,
    /// The position that the mask is for, and the tokens that it allows.
    mask: Option<(usize, Vec<u32>)>,
    /// What its row attends to, if it was computed ahead of its step.
    computed: Option<u64>,
}

enum Part {
    Drafts(u64, Vec<Outcome>),
    Chunks(u64, usize),
    Step(u64, Vec<Outcome>),
}

/// A plan with these KV groups, and for a hybrid a layer with a state.
pub(super) fn plan(windows: &[Option<u32>], hybrid: bool) -> Plan {
    let shape = DeltaShape { key_heads: 1, value_heads: 1, key_dim: 16, value_dim: 16, tiled: false };
    let kv = windows.iter().map(|window| KvGroup { layers: 1, kv_heads: 1, head_dim: 8, window: *window });
    Plan {
        precision: Precision::Fast,
        vocab: VOCAB,
        buffers: Vec::new(),
        weights: Vec::new(),
        ropes: Vec::new(),
        delta: if hybrid { vec![shape] } else { Vec::new() },
        kv: kv.collect(),
        encode: Vec::new(),
        forward: Vec::new(),
        layers: Vec::new(),
        outputs: Vec::new(),
    }
}

pub(super) fn limits(slots: usize, steps: usize, kinds_differ: bool) -> Limits {
    Limits { slots, rows: 64, logit_rows: 16, steps, draft_rows: 8, asynchronous: steps > 1, kinds_differ }
}

impl Fake {
    pub(super) fn new(
        plan: Arc<Plan>,
        (blocks, records): (&[usize], usize),
        limits: Limits,
        random: u64,
        faults: Faults,
        log: Arc<Log>,
    ) -> Fake {
        Fake {
            plan,
            blocks: blocks.to_vec(),
            limits,
            cache: blocks.iter().map(|blocks| vec![0; blocks * KV_BLOCK]).collect(),
            // A record that was never written is not that of a beginning.
            records: vec![u64::MAX; records],
            slots: vec![Slot::default(); limits.slots],
            landed: VecDeque::new(),
            outcomes: Vec::new(),
            logits: Vec::new(),
            submission: 0,
            random,
            faults,
            lost: false,
            log,
        }
    }

    /// Fails as the test wants it, or at random.
    fn fault(&mut self, call: Call) -> Result<(), BackendError> {
        let mut fault = self.log.take(call);
        let mut at_random = |rate: u64| rate > 0 && draw(&mut self.random) % 10_000 < rate;
        let can_panic = !matches!(call, Call::CopyState);
        if can_panic && at_random(self.faults.panics) {
            fault = fault.or(Some(Fault::Panic));
        }
        let uses_device = matches!(call, Call::Open | Call::CopyState | Call::Submit | Call::Poll);
        if uses_device && (self.lost || at_random(self.faults.lost)) {
            fault = fault.or(Some(Fault::Lost));
        }
        self.lost |= fault == Some(Fault::Lost);
        fault.map_or(Ok(()), Fault::happen)
    }

    fn place(&self, slot: usize, group: usize, position: usize) -> usize {
        let table = &self.slots[slot].tables[group];
        let block = *table.get(position / KV_BLOCK).expect("a position has a block");
        block as usize * KV_BLOCK + position % KV_BLOCK
    }

    /// Writes a row to all groups, and returns the sum of what it attends to and the state after it.
    fn row(
        &mut self,
        slot: usize,
        (token, position): (u32, usize),
        kind: RowKind,
        state: Option<u64>,
    ) -> (u64, u64) {
        let kind = if self.limits.kinds_differ { kind } else { RowKind::Prompt };
        let mut all = 0u64;
        for group in 0..self.blocks.len() {
            let before = match position {
                0 => 0,
                _ => self.cache[group][self.place(slot, group, position - 1)],
            };
            let at = self.place(slot, group, position);
            self.cache[group][at] = entry(token, position, kind, before);
            let window = self.plan.kv[group].window.map_or(usize::MAX, |window| window as usize);
            for seen in (position + 1).saturating_sub(window)..=position {
                all = all.wrapping_add(self.cache[group][self.place(slot, group, seen)]);
            }
        }
        let after = state.map_or(0, |before| state_after(before, token, position, kind));
        (all.wrapping_add(after), after)
    }

    fn step(&mut self, with_new: bool) -> Vec<Outcome> {
        let slots = self.slots.len();
        // Rows that were computed ahead are sampled first. A slot that was started since takes part in the next step.
        let computed = |slot: &Slot| slot.decode.as_ref().is_some_and(|decode| decode.computed.is_some());
        let with_new = with_new && !self.slots.iter().any(computed);
        let outcome = |slot: usize| match self.slots[slot].is_new && !with_new {
            true => Outcome::Held,
            false => self.step_slot(slot),
        };
        (0..slots).map(outcome).collect()
    }

    /// Computes the rows of all drafts, in the order in which they were given.
    fn verify(&mut self) -> Vec<Outcome> {
        let drafts =
            self.slots.iter_mut().enumerate().filter_map(|(at, slot)| Some((slot.draft.take()?, at)));
        let mut drafts: Vec<(Drafted, usize)> = drafts.collect();
        drafts.sort_by_key(|(draft, _)| draft.order);
        let mut outcomes = Vec::new();
        for (Drafted { tokens, guesses, seed, masks, .. }, slot) in drafts {
            let first = tokens.len() - guesses - 1;
            for (row, position) in (first..tokens.len()).enumerate() {
                let input = (tokens[position], position);
                let (attended, _) = self.row(slot, input, RowKind::Generated, None);
                let id = next_token(attended, seed, position + 1);
                let id = match masks.chunks_exact(VOCAB.div_ceil(32)).nth(row) {
                    Some(words) => first_allowed(id, |id| words[id as usize / 32] >> (id % 32) & 1 == 1),
                    None => id,
                };
                let bad = draw(&mut self.random) % 10_000 < self.faults.not_finite;
                outcomes.push(if bad {
                    Outcome::NotFinite
                } else {
                    Outcome::Token { id, logprob: f32::NAN, mu: f32::NAN }
                });
            }
        }
        outcomes
    }

    /// Computes the row of a slot that decodes, and returns the sum of what it attends to.
    fn decode_row(&mut self, slot: usize, state: &State, before: Option<u64>) -> u64 {
        let row = (state.token, state.position);
        let (attended, after) = self.row(slot, row, RowKind::Generated, before);
        if before.is_some() {
            self.records[state.records[1 - state.position % 2] as usize] = after;
        }
        attended
    }

    fn step_slot(&mut self, slot: usize) -> Outcome {
        let Some(state) = self.slots[slot].decode.clone() else { return Outcome::Held };
        // A row that holds is computed again, as on a GPU.
        let hybrid = !self.plan.delta.is_empty();
        let own = state.position % 2;
        let before = hybrid.then(|| self.records[state.records[own] as usize]);
        let mask = state.mask.clone().filter(|(position, _)| *position == state.position + 1);
        let holds = state.ended || state.position + 1 >= state.limit || (state.masked && mask.is_none());
        // Where both records are one, the backend computes no row that holds.
        if holds && hybrid && state.records[0] == state.records[1] {
            return Outcome::Held;
        }
        let attended = match state.computed {
            Some(attended) => attended,
            None => self.decode_row(slot, &state, before),
        };
        if let Some(decode) = &mut self.slots[slot].decode {
            decode.computed = None;
        }
        if holds {
            return Outcome::Held;
        }
        let bad = draw(&mut self.random) % 10_000 < self.faults.not_finite;
        let id = next_token(attended, state.seed, state.position + 1);
        let id = match &mask {
            Some((_, words)) => first_allowed(id, |id| words[id as usize / 32] >> (id % 32) & 1 == 1),
            None => id,
        };
        let Some(decode) = &mut self.slots[slot].decode else { return Outcome::Held };
        if bad {
            decode.ended = true;
            return Outcome::NotFinite;
        }
        decode.token = id;
        decode.position += 1;
        decode.ended = decode.ends.contains(&id);
        Outcome::Token { id, logprob: f32::NAN, mu: f32::NAN }
    }
}

impl Slots for Fake {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, slot: usize, _: u32) -> Result<(), BackendError> {
        self.fault(Call::Open)?;
        assert!(!self.slots[slot].open, "slot {slot} is open");
        let tables = vec![Vec::new(); self.blocks.len()];
        self.slots[slot] = Slot { open: true, tables, decode: None, is_new: false, draft: None };
        Ok(())
    }

    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError> {
        self.fault(Call::Extend)?;
        assert!(self.slots[slot].open && tables.len() == self.blocks.len());
        for ((own, table), blocks) in self.slots[slot].tables.iter_mut().zip(tables).zip(&self.blocks) {
            assert_eq!(table.len(), tables[0].len());
            assert!(table.iter().all(|block| (*block as usize) < *blocks));
            // As a device that is sent only new entries.
            let known = own.len().min(table.len());
            own.truncate(known);
            own.extend_from_slice(&table[known..]);
        }
        assert!(limit as usize <= tables[0].len() * KV_BLOCK, "the limit is beyond the blocks");
        if let Some(decode) = &mut self.slots[slot].decode {
            decode.limit = limit as usize;
        }
        Ok(())
    }

    fn start(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError> {
        self.fault(Call::Start)?;
        assert!(self.slots[slot].open);
        let (token, before) = decode.tokens.split_last().expect("a token");
        self.slots[slot].decode = Some(State {
            token: *token,
            position: before.len(),
            limit: decode.limit as usize,
            seed: decode.sampler.seed,
            ends: decode.ends.to_vec(),
            ended: false,
            records: decode.records,
            masked: decode.masked,
            mask: None,
            computed: None,
        });
        self.slots[slot].is_new = true;
        Ok(())
    }

    fn mask(&mut self, slot: usize, position: u32, allowed: &[u32]) -> Result<(), BackendError> {
        assert_eq!(allowed.len(), VOCAB.div_ceil(32));
        let decode = self.slots[slot].decode.as_mut().expect("a mask of a slot that decodes");
        assert!(decode.masked, "a mask of a slot without masks");
        decode.mask = Some((position as usize, allowed.to_vec()));
        Ok(())
    }

    fn stop(&mut self, slot: usize) -> Result<(), BackendError> {
        assert!(self.slots[slot].open && self.slots[slot].decode.is_some(), "slot {slot} does not decode");
        self.slots[slot].decode = None;
        Ok(())
    }

    fn draft(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError> {
        assert!(self.slots[slot].open && self.slots[slot].decode.is_none(), "slot {slot} decodes");
        assert!(self.plan.delta.is_empty(), "a draft of a plan with a state");
        let positions = self.slots[slot].tables[0].len() * KV_BLOCK;
        assert!(draft.is_sound(VOCAB, positions), "{draft:?}");
        let drafts = self.slots.iter().filter_map(|slot| slot.draft.as_ref());
        let (order, rows) = drafts.fold((0, 0), |(n, rows), draft| (n + 1, rows + draft.guesses + 1));
        assert!(rows + draft.rows() <= self.limits.draft_rows, "{rows} rows of drafts");
        self.slots[slot].draft = Some(Drafted {
            order,
            tokens: draft.tokens.to_vec(),
            guesses: draft.guesses,
            seed: draft.sampler.seed,
            masks: draft.masks.to_vec(),
        });
        Ok(())
    }

    fn copy_state(&mut self, from: Option<u32>, to: u32) -> Result<(), BackendError> {
        self.fault(Call::CopyState)?;
        self.records[to as usize] = from.map_or(0, |from| self.records[from as usize]);
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        // It cannot fail otherwise.
        let _ = self.fault(Call::Close);
        assert!(self.slots[slot].open, "slot {slot} is not open");
        self.slots[slot] = Slot::default();
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<u64, BackendError> {
        self.fault(Call::Submit)?;
        self.log.submitted(work);
        self.submission += 1;
        let rows: usize = work.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        assert!(rows <= self.limits.rows, "{rows} rows");
        let has_drafts = self.slots.iter().any(|slot| slot.draft.is_some());
        assert!(rows + work.steps > 0 || has_drafts, "an empty submission");
        assert!(rows == 0 || !has_drafts, "drafts beside chunks");
        assert!(work.between == 0 || rows > 0);
        // As a backend that ends the parts of chunks by their time, which may take fewer steps.
        let fewer = draw(&mut self.random) as usize % (work.between + 1) * (self.submission as usize % 2);
        for _ in fewer..work.between {
            let outcomes = self.step(false);
            self.landed.push_back(Part::Step(self.submission, outcomes));
        }
        let mut wanted = 0;
        let pool = (!self.plan.delta.is_empty()).then_some(self.records.len());
        assert!(Chunk::have_sound_records(work.chunks, pool), "{:?}", work.chunks);
        for chunk in work.chunks {
            let from = chunk.records.map(|records| records.from);
            let mut state = from.map(|from| from.map_or(0, |from| self.records[from as usize]));
            for (i, token) in chunk.tokens.iter().enumerate() {
                let row = (*token, chunk.position as usize + i);
                let (_, after) = self.row(chunk.slot, row, chunk.kind, state);
                state = state.map(|_| after);
            }
            if let Some((records, state)) = chunk.records.zip(state) {
                self.records[records.to as usize] = state;
            }
            wanted += match chunk.logits {
                LogitRows::None => 0,
                LogitRows::Last => 1,
                LogitRows::All => chunk.tokens.len(),
            };
        }
        assert!(wanted <= self.limits.logit_rows);
        if !work.chunks.is_empty() {
            self.landed.push_back(Part::Chunks(self.submission, wanted));
        }
        if has_drafts {
            let outcomes = self.verify();
            self.landed.push_back(Part::Drafts(self.submission, outcomes));
        }
        for _ in 0..work.steps {
            let outcomes = self.step(true);
            self.landed.push_back(Part::Step(self.submission, outcomes));
        }
        self.slots.iter_mut().for_each(|slot| slot.is_new = false);
        let steps = self.landed.iter().filter(|part| matches!(part, Part::Step(..))).count();
        assert!(steps <= self.limits.steps.max(1), "{steps} steps in flight");
        Ok(self.submission)
    }

    fn compute_ahead(&mut self) -> Result<bool, BackendError> {
        assert!(self.limits.asynchronous, "rows are computed ahead where nothing computes them");
        // As a device that cannot, sometimes.
        if self.is_recording() || draw(&mut self.random).is_multiple_of(8) {
            return Ok(false);
        }
        let mut any = false;
        for slot in 0..self.slots.len() {
            let Some(state) = self.slots[slot].decode.clone().filter(|_| !self.slots[slot].is_new) else {
                continue;
            };
            let record = state.records[state.position % 2] as usize;
            let before = (!self.plan.delta.is_empty()).then(|| self.records[record]);
            let attended = self.decode_row(slot, &state, before);
            if let Some(decode) = &mut self.slots[slot].decode {
                decode.computed = Some(attended);
            }
            any |= state.masked;
        }
        Ok(any)
    }

    fn is_idle(&mut self) -> Result<bool, BackendError> {
        Ok(draw(&mut self.random).is_multiple_of(2))
    }

    /// As a backend that has parts to record until the last of them runs.
    fn is_recording(&self) -> bool {
        self.submission.is_multiple_of(3) && self.landed.len() > 1
    }

    fn poll(&mut self, _: Duration) -> Result<Option<Landed<'_>>, BackendError> {
        self.fault(Call::Poll)?;
        if draw(&mut self.random).is_multiple_of(4) {
            return Ok(None);
        }
        Ok(match self.landed.pop_front() {
            None => None,
            Some(Part::Chunks(submission, rows)) => {
                self.logits.clear();
                self.logits.resize(rows * VOCAB, 1.0);
                Some(Landed::Chunks { submission, logits: &self.logits })
            }
            Some(Part::Drafts(submission, outcomes)) => {
                self.outcomes = outcomes;
                Some(Landed::Drafts { submission, outcomes: &self.outcomes, top: TopTokens::default() })
            }
            Some(Part::Step(submission, outcomes)) => {
                self.outcomes = outcomes;
                Some(Landed::Step { submission, outcomes: &self.outcomes, top: TopTokens::default() })
            }
        })
    }

    fn reset(&mut self) {
        let _ = self.fault(Call::Reset);
        self.landed.clear();
        self.slots.fill(Slot::default());
    }
}

impl Backend for Fake {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn batch_rows(&self) -> usize {
        usize::MAX
    }

    fn kv_blocks(&self) -> &[usize] {
        &self.blocks
    }

    fn records(&self) -> usize {
        self.records.len()
    }

    fn forward(&mut self, _: &Batch<'_>) -> Result<&[f32], BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn observe(&mut self, _: &Batch<'_>, _: &mut Observer<'_>) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn slots(&mut self) -> &mut dyn Slots {
        self
    }

    fn contents(&mut self) -> Option<&mut dyn CacheContents> {
        assert!(self.landed.is_empty(), "something is in flight");
        Some(self)
    }
}

/// Entries are at the beginning of a block's or record's bytes.
impl CacheContents for Fake {
    fn read_blocks(&mut self, group: usize, blocks: &[u32], bytes: &mut [u8]) -> Result<(), BackendError> {
        let one = self.plan.kv[group].bytes_per_block(self.plan.precision);
        assert_eq!(bytes.len(), blocks.len() * one);
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact_mut(one)) {
            let entries = &self.cache[group][*block as usize * KV_BLOCK..][..KV_BLOCK];
            bytes
                .chunks_exact_mut(8)
                .zip(entries)
                .for_each(|(to, entry)| to.copy_from_slice(&entry.to_le_bytes()));
        }
        Ok(())
    }

    fn write_blocks(&mut self, group: usize, blocks: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let one = self.plan.kv[group].bytes_per_block(self.plan.precision);
        assert_eq!(bytes.len(), blocks.len() * one);
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact(one)) {
            let entries = &mut self.cache[group][*block as usize * KV_BLOCK..][..KV_BLOCK];
            let (words, _) = bytes.as_chunks::<8>();
            entries.iter_mut().zip(words).for_each(|(entry, word)| *entry = u64::from_le_bytes(*word));
        }
        Ok(())
    }

    fn shift_blocks(&mut self, _: usize, _: &[[u32; 2]], _: i32, _: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn read_record(&mut self, record: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        bytes[..8].copy_from_slice(&self.records[record as usize].to_le_bytes());
        Ok(())
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<(), BackendError> {
        let (words, _) = bytes.as_chunks::<8>();
        self.records[record as usize] = u64::from_le_bytes(words[0]);
        Ok(())
    }
}
