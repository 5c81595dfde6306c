//! The kernels that sample the tokens of a group of slots, and their buffers.

use std::collections::HashMap;

use gyrus_kernels::call::{SELECT_EMITTED, SELECT_LOGPROBS, SELECT_ROWS, SelectCall, draws_from_all};
use gyrus_kernels::params::SlotState;
use gyrus_kernels::{MAX_TOP, Sampler};

use super::slot::Needs;
use super::writes::Writes;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::recorder::Copied;
use crate::step::buffers_of;

/// Buffers that are used within a step only, so that all groups share them.
const SCRATCH: [&str; 3] = ["partials", "adjusted", "surveyed"];

/// Buffers by the names of their slots.
pub(crate) type Named = Vec<(&'static str, Buffer)>;

/// Steps of the rings that are copied to the host, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RingSteps {
    first: u32,
    count: u32,
}

impl RingSteps {
    /// Of steps from this number on: all of a ring if they go beyond its end.
    pub(super) fn new(number: u32, count: u32) -> RingSteps {
        let first = number % SELECT_EMITTED;
        match first + count <= SELECT_EMITTED {
            true => RingSteps { first, count },
            false => RingSteps { first: 0, count: SELECT_EMITTED },
        }
    }

    /// Where a step is among those that were copied.
    pub(super) fn place(self, number: u32) -> u32 {
        number % SELECT_EMITTED - self.first
    }
}

/// The kernels that sample for a group, by what its slots need.
#[derive(Debug)]
pub(crate) struct Selects {
    /// Buffers are allocated when a call first needs them, for all rows, and never again.
    buffers: Named,
    bound: HashMap<SelectCall, Bound>,
    /// What the buffer of masks holds, `[SELECT_ROWS, words]`: only words that change are written.
    masks: Vec<u32>,
}

/// Kernels of a call.
#[derive(Debug)]
pub(crate) struct Bound {
    /// Counts the penalty windows of slots that were started.
    pub(crate) count: Option<Dispatch>,
    pub(crate) steps: Vec<Dispatch>,
}

impl Needs {
    /// What a slot with this sampler needs.
    pub(super) fn of(sampler: &Sampler, masked: bool, logprobs: bool) -> Needs {
        if !sampler.is_plain() {
            return Needs { keeps: true, ..Needs::NONE };
        }
        let (greedy, penalties) = (sampler.is_greedy(), sampler.has_penalties());
        Needs { greedy, penalties, masked, logprobs, whole: draws_from_all(sampler), keeps: false }
    }

    /// The call that samples `rows` rows of sequences of up to `length` tokens.
    pub(super) fn call(self, rows: u32, vocab: usize, length: usize) -> SelectCall {
        let Needs { greedy, penalties, masked: masks, logprobs, whole, keeps } = self;
        let history = if penalties { history(length) } else { 0 };
        SelectCall { rows, vocab: vocab as u32, greedy, penalties, history, masks, logprobs, whole, keeps }
    }
}

/// Tokens of a row's history: those of the longest sequence.
fn history(length: usize) -> u32 {
    length.clamp(1, 1 << 24).next_power_of_two() as u32
}

impl Selects {
    /// Of rows whose logits, tokens and positions are given.
    pub(crate) fn new(gpu: &Gpu, given: [(&'static str, Buffer); 3]) -> Result<Selects, GpuError> {
        let mut buffers = given.to_vec();
        buffers.push(("slots", gpu.buffer(u64::from(SELECT_ROWS) * size_of::<SlotState>() as u64)?));
        Ok(Selects { buffers, bound: HashMap::new(), masks: Vec::new() })
    }

    /// A buffer by its name, if a call has needed it.
    pub(super) fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|(of, _)| *of == name).map(|(_, buffer)| buffer)
    }

    /// What a submission with steps of a call copies to the host: of the rings of tokens and, if it has them, of
    /// log-probabilities what these steps write; then the logits of the rows that the host samples, a bit for each.
    pub(super) fn copied(
        &self,
        call: &SelectCall,
        hosted: u16,
        steps: RingSteps,
    ) -> impl Iterator<Item = Copied<'_>> {
        let logprobs = if call.logprobs { self.buffer("logprobs") } else { None };
        let ring = move |buffer| {
            let step = Copied::whole(buffer).bytes / u64::from(SELECT_EMITTED);
            Copied { buffer, offset: u64::from(steps.first) * step, bytes: u64::from(steps.count) * step }
        };
        let rings = self.buffer("emitted").into_iter().chain(logprobs).map(ring);
        let bytes = 4 * u64::from(call.vocab);
        let rows = (0..u64::from(SELECT_ROWS)).filter(move |row| hosted >> row & 1 != 0);
        let kept = self.buffer("kept").into_iter();
        let kept = kept.flat_map(move |buffer| {
            rows.clone().map(move |row| Copied { buffer, offset: row * bytes, bytes })
        });
        rings.chain(kept)
    }

    /// The kernels of a call, if they were bound.
    pub(crate) fn get(&self, call: &SelectCall) -> Option<&Bound> {
        self.bound.get(call)
    }

    /// Binds the kernels of a call, unless they are bound. Returns whether anything was new.
    pub(crate) fn bind(
        &mut self,
        gpu: &Gpu,
        scratch: &mut Named,
        call: SelectCall,
    ) -> Result<bool, GpuError> {
        if self.bound.contains_key(&call) {
            return Ok(false);
        }
        self.allocate(gpu, scratch, call)?;
        let buffers: Named = self.buffers.iter().chain(&*scratch).cloned().collect();
        let bind = |launch| gpu.bind(&launch, &buffers_of(&launch, &buffers)?);
        let launches = call.tuned(gpu.rungs(), gpu.capabilities().select_tuning())?;
        let steps = launches.into_iter().map(bind).collect::<Result<_, _>>()?;
        let count = call.count(gpu.rungs())?.map(bind).transpose()?;
        self.bound.insert(call, Bound { count, steps });
        Ok(true)
    }

    /// Allocates the buffers of a call that there are not yet. Returns whether there were any.
    pub(super) fn allocate(
        &mut self,
        gpu: &Gpu,
        scratch: &mut Named,
        call: SelectCall,
    ) -> Result<bool, GpuError> {
        // The largest size that a buffer of this name has: of all rows, and with or without samplers of any kind.
        let calls =
            [true, false].map(|greedy| SelectCall { rows: SELECT_ROWS, greedy, whole: !greedy, ..call });
        let mut sizes: Vec<(&'static str, u64)> = Vec::new();
        for call in calls {
            for launch in call.launches(gpu.rungs())?.into_iter().chain(call.count(gpu.rungs())?) {
                sizes.extend(launch.slots().iter().map(|slot| (slot.name, slot.bytes)));
            }
        }
        sizes.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut is_new = false;
        for (name, bytes) in sizes {
            let buffers = if SCRATCH.contains(&name) { &mut *scratch } else { &mut self.buffers };
            if !buffers.iter().any(|(of, _)| *of == name) {
                buffers.push((name, gpu.buffer(bytes)?));
                is_new = true;
                if name == "masks" {
                    self.masks.resize(bytes as usize / 4, 0);
                }
            }
        }
        Ok(is_new)
    }

    /// Sets the state of all rows to one that samples greedily without end.
    pub(crate) fn start_all(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let state = SlotState::new(&Sampler::default(), 0, u32::MAX, &[], None, false);
        let all = [state; SELECT_ROWS as usize];
        self.buffer("slots").map_or(Ok(()), |slots| gpu.write(slots, bytemuck::cast_slice(&all)))
    }

    /// Sets the state of a row.
    pub(super) fn set_state(&self, writes: &mut Writes, row: usize, state: &SlotState) {
        let words: &[u32] = bytemuck::cast_slice(bytemuck::bytes_of(state));
        self.set(writes, "slots", row * words.len(), words);
    }

    /// Sets one word of the state of a row, by its byte offset.
    pub(super) fn set_state_word(&self, writes: &mut Writes, row: usize, offset: usize, word: u32) {
        self.set(writes, "slots", row * size_of::<SlotState>() / 4 + offset / 4, &[word]);
    }

    /// Sets the history of a row: the tokens of the penalty window by their positions, in a ring. `tokens` are those before
    /// the position `end`, at least as far as the window reaches.
    pub(super) fn set_history(
        &self,
        writes: &mut Writes,
        row: usize,
        (tokens, end): (&[u32], usize),
        window: u32,
        length: usize,
    ) {
        let ring = history(length) as usize;
        let counted = tokens.len().min(ring).min(window as usize);
        let mut left = &tokens[tokens.len() - counted..];
        while !left.is_empty() {
            let at = (end - left.len()) % ring;
            let (now, later) = left.split_at(left.len().min(ring - at));
            self.set(writes, "history", row * ring + at, now);
            left = later;
        }
    }

    /// Sets the tokens that a row may sample.
    pub(super) fn set_mask(&mut self, writes: &mut Writes, row: usize, allowed: &[u32]) {
        let first = row * allowed.len();
        let Some(known) = self.masks.get_mut(first..first + allowed.len()) else { return };
        let differs = |(known, new): (&u32, &u32)| known != new;
        let Some(from) = known.iter().zip(allowed).position(differs) else { return };
        let to = known.iter().zip(allowed).rposition(differs).unwrap_or(from) + 1;
        known[from..to].copy_from_slice(&allowed[from..to]);
        self.set(writes, "masks", first + from, &allowed[from..to]);
    }

    fn set(&self, writes: &mut Writes, name: &str, offset: usize, words: &[u32]) {
        if let Some(buffer) = self.buffer(name) {
            writes.push(buffer, offset, words);
        }
    }
}

/// The log-probability of a row's token and of the most likely tokens of a step, the ring's steps from the word `first` on.
pub(super) fn logprobs(words: &[u32], first: usize, step: u32, row: usize) -> (f32, [(u32, f32); MAX_TOP]) {
    let each = SELECT_LOGPROBS as usize;
    let at = first + (step as usize * SELECT_ROWS as usize + row) * each;
    let mut top = [(u32::MAX, f32::NEG_INFINITY); MAX_TOP];
    let Some([token, pairs @ ..]) = words.get(at..at + each) else { return (f32::NAN, top) };
    for (entry, pair) in top.iter_mut().zip(pairs.chunks_exact(2)) {
        *entry = (pair[0], f32::from_bits(pair[1]));
    }
    (f32::from_bits(*token), top)
}
