//! Tokens chosen from logits: greedy, drawn with every combination of filters, and penalised.

use crate::call::{
    SELECT_EMITTED, SELECT_HELD, SELECT_LOGPROBS, SELECT_ROWS, SelectCall, SelectTuning, Storage,
};
use crate::grid::case::{Case, CaseBuffer, Rule, Step, UNTOUCHED};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::params::SlotState;
use crate::sampler::Sampler;
use crate::scalar::{SelectState, allowed, emitted_at, kept_logits, logprobs};
use crate::select::Counts;
use crate::shader::Rungs;
use crate::slots::MAX_TOP;

/// The distribution of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Logits {
    Gaussian(f64),
    /// Few distinct values, so that ties are at every cut.
    Ties,
    Equal,
    Falling,
    Rising,
    /// The last row has a NaN, or an infinity.
    Nan,
    Infinity,
}

/// The tokens that a row's mask allows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    Half,
    /// One of 40.
    Few,
    None,
}

/// What a case computes.
struct Inputs {
    logits: Logits,
    call: SelectCall,
    sampler: Sampler,
    /// Whether windows are counted first.
    count: bool,
    masks: Option<Mask>,
    /// Alternatives to the token, with log-probabilities.
    top: Option<usize>,
}

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let logits = point.of(&[
        Logits::Gaussian(3.0),
        Logits::Ties,
        Logits::Gaussian(0.3),
        Logits::Nan,
        Logits::Gaussian(1.0),
        Logits::Equal,
        Logits::Falling,
        Logits::Rising,
        Logits::Infinity,
    ]);
    let vocab: usize = point.of(&[300, 5003, 1, 16_385, 2, 257, 2001]);
    let (temperature, greedy) =
        point.of(&[(0.8, false), (0.0, true), (1.7, false), (0.0, false), (1e6, false)]);
    let top_k = point.of(&[0, 40, 1, 300, u32::MAX]);
    let top_p = point.of(&[1.0, 0.95, 0.5]);
    let min_p = point.of(&[0.0, 0.05]);
    let penalties = point.of(&[false, true]);
    let (window, history) = point.of(&[(64, 64), (5, 1024), (0, 1), (1024, 1024), (u32::MAX, 2048)]);
    let count = point.of(&[true, false]);
    let rows: usize = point.of(&[4, 1, 16]);
    let tuning = point.of(&[
        SelectTuning { workgroup: None, refine: Some(true) },
        SelectTuning { workgroup: Some(512), refine: Some(false) },
        SelectTuning { workgroup: Some(1024), refine: None },
    ]);
    let [repetition_penalty, presence_penalty, frequency_penalty] =
        if penalties { [1.3, 0.4, 0.25] } else { [1.0, 0.0, 0.0] };
    let sampler = Sampler {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        penalty_window: window,
        seed: 0,
        ..Sampler::default()
    };
    let masks = point.of(&[None, Some(Mask::Half), Some(Mask::Few), None, Some(Mask::None)]);
    let top = point.of(&[None, Some(5), Some(MAX_TOP), Some(0)]);
    let keeps = point.of(&[false, true]);
    let whole = point.of(&[true, false]);
    let history = if penalties { history } else { 0 };
    let call = SelectCall {
        rows: rows as u32,
        vocab: vocab as u32,
        greedy,
        penalties,
        history,
        masks: masks.is_some(),
        logprobs: top.is_some(),
        keeps,
        whole,
    };
    let mut launches = call.tuned(rungs, tuning).ok()?;
    if count {
        launches.splice(0..0, call.count(rungs).ok()?);
    }
    let scratch: Vec<(&'static str, usize)> = launches
        .iter()
        .flat_map(|launch| launch.slots())
        .filter(|slot| ["partials", "adjusted", "surveyed"].contains(&slot.name))
        .map(|slot| (slot.name, slot.bytes as usize / 4))
        .collect();
    let name = format!(
        "{logits:?} of {vocab}, {rows} rows, {sampler:?}, {masks:?}, logprobs {top:?}, {tuning:?}, keeps {keeps}, whole {whole}"
    );
    let seed = point.seed;
    let inputs = Inputs { logits, call, sampler, count, masks, top };
    let twin = move || {
        let mut buffers = twin(&mut Noise::new(seed), &inputs);
        for (name, words) in &scratch {
            if !buffers.iter().any(|buffer| buffer.name == *name) {
                buffers.push(CaseBuffer::scratch(name, *words));
            }
        }
        buffers
    };
    Some(Case::chain(name, launches.into_iter().map(Step::new).collect(), twin))
}

fn row_of(noise: &mut Noise, logits: Logits, vocab: usize, last: bool) -> Vec<f32> {
    let mut row: Vec<f32> = match logits {
        Logits::Gaussian(scale) => noise.gaussians(vocab).iter().map(|l| l * scale as f32).collect(),
        Logits::Ties => noise.gaussians(vocab).iter().map(|l| (l * 4.0).round()).collect(),
        Logits::Equal => vec![0.25; vocab],
        Logits::Falling => (0..vocab).map(|i| i as f32 * -0.006).collect(),
        Logits::Rising => (0..vocab).map(|i| i as f32 * 0.006).collect(),
        Logits::Nan | Logits::Infinity => noise.gaussians(vocab),
    };
    if last && matches!(logits, Logits::Nan | Logits::Infinity) {
        let at = noise.below(vocab as u32) as usize;
        row[at] =
            if logits == Logits::Nan { f32::NAN } else { noise.pick(&[f32::INFINITY, f32::NEG_INFINITY]) };
    }
    row
}

/// A sequence of tokens before the step, most of them few.
fn history(noise: &mut Noise, vocab: usize) -> Vec<u32> {
    let length = noise.pick(&[1, 7, 70, 1500]);
    let few = noise.pick(&[vocab as u32, 9]).min(vocab as u32);
    (0..length).map(|_| noise.below(few)).collect()
}

/// The words of a mask. Bits beyond the vocabulary are set.
fn mask_of(noise: &mut Noise, mask: Mask, vocab: usize) -> Vec<u32> {
    let word = |noise: &mut Noise| match mask {
        Mask::Half => noise.bits(),
        Mask::Few => (0..32).filter(|_| noise.below(40) == 0).fold(0, |word, bit| word | 1 << bit),
        Mask::None => 0,
    };
    let mut words: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| word(noise)).collect();
    let last = vocab - 1;
    words[last / 32] |= u32::MAX.checked_shl(last as u32 % 32 + 1).unwrap_or(0);
    words
}

/// A slot that runs, mostly, for a row that draws this token.
fn slot_of(noise: &mut Noise, sampler: &Sampler, position: u32, token: u32) -> SlotState {
    let step = noise.pick(&[0, 63, 64, 1000]);
    let ends = [token + 1, u32::MAX - 2, 0, 1, 2, 3, 4, token];
    let ends = &ends[noise.pick(&[8, 7, 0])..];
    let limit = noise.pick(&[position + 2, u32::MAX]);
    let slot = SlotState::new(sampler, step, limit, ends, None, false);
    match noise.below(11) {
        10 => SlotState::on_host(step),
        0 => SlotState::inactive(step),
        1 => SlotState { flags: slot.flags | SlotState::ENDED, ..slot },
        2 => SlotState { limit: position + noise.below(2), ..slot },
        // The mask for the next position has not arrived.
        3 => SlotState { flags: slot.flags | SlotState::MASKED, mask_position: position, ..slot },
        _ => slot,
    }
}

fn twin(noise: &mut Noise, inputs: &Inputs) -> Vec<CaseBuffer> {
    let Inputs { logits, call, ref sampler, count, masks, top } = *inputs;
    let (rows, vocab) = (call.rows as usize, call.vocab as usize);
    let (mut all, mut slots, mut states, mut counted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut all_masks, mut kept) = (Vec::new(), Vec::new());
    let mut ring = empty_ring();
    let mut emitted = vec![0xaaaa_5555; (SELECT_EMITTED * SELECT_ROWS) as usize];
    let emitted_before = emitted.clone();
    for row in 0..rows {
        let raw = row_of(noise, logits, vocab, row + 1 == rows);
        let mask = masks.map(|mask| mask_of(noise, mask, vocab)).unwrap_or_default();
        // Other rows of the call have no mask.
        let is_masked = masks.is_some() && noise.below(4) > 0;
        let row_logits = if is_masked { allowed(&raw, &mask) } else { raw.clone() };
        let window = if call.penalties { sampler.penalty_window } else { 0 };
        let before = SelectState::new(&history(noise, vocab), window, call.history.max(1) as usize);
        let step = before.position + 1;
        // Rounding may decide a draw that is this close to a cut, so another seed is taken.
        let sampler = (0..64)
            .map(|_| Sampler {
                seed: u64::from(noise.bits()) << 32 | u64::from(noise.bits()),
                ..sampler.clone()
            })
            .find(|sampler| !is_close(sampler, &row_logits, &before.counts, step.into()))
            .unwrap_or_else(|| Sampler { top_k: 1, ..sampler.clone() });
        let finite = raw.iter().all(|logit| logit.is_finite()) && row_logits.iter().any(|l| l.is_finite());
        let token = sampler.draw(&row_logits, &before.counts, step.into(), &mut Vec::new());
        let mut after = before.clone();
        let mut slot = slot_of(noise, &sampler, before.position, token);
        if is_masked && slot.flags & SlotState::MASKED == 0 {
            slot.flags |= SlotState::MASKED;
            slot.mask_position = before.position + 1;
        }
        if let Some(top) = top.filter(|_| noise.below(4) > 0) {
            slot.flags |= SlotState::LOGPROBS;
            slot.top = top as u32;
        }
        let mut slot_after = slot;
        // Windows of flagged rows are counted, whatever their counts are.
        let is_counted = count && call.penalties && slot.flags & SlotState::COUNT != 0;
        if is_counted {
            slot_after.flags &= !SlotState::COUNT;
        }
        let word = after.step(&mut slot_after, finite.then_some(token));
        let at = emitted_at(slot.step, row as u32);
        emitted[at] = word;
        if slot.flags & SlotState::LOGPROBS != 0 && word < SELECT_HELD {
            put_logprobs(&mut ring, at, &raw, word, slot.top as usize);
        }
        kept.extend(kept_logits(&slot, &raw, &vec![UNTOUCHED; vocab]));
        all.extend(raw);
        all_masks.extend(mask);
        slots.push((slot, slot_after));
        states.push((before, after));
        counted.push(is_counted);
    }
    let state = |name, words: &dyn Fn(&SelectState) -> Vec<u32>| {
        let before = states.iter().flat_map(|(before, _)| words(before)).collect();
        CaseBuffer::exact(name, before, states.iter().flat_map(|(_, after)| words(after)).collect())
    };
    let count_of = |counts: &Counts, id: u32| counts.get(&id).copied().unwrap_or(0);
    let words = |of: &dyn Fn(&(SlotState, SlotState)) -> SlotState| {
        bytemuck::cast_slice(&slots.iter().map(of).collect::<Vec<_>>()).to_vec()
    };
    let mut buffers = vec![
        CaseBuffer::floats("logits", &all),
        CaseBuffer::exact("slots", words(&|slot| slot.0), words(&|slot| slot.1)),
        state("tokens", &|state| vec![state.token]),
        state("rows", &|state| vec![state.position, 7]),
        CaseBuffer::exact("emitted", emitted_before, emitted),
    ];
    if call.logprobs {
        buffers.push(ring);
    }
    if call.keeps {
        buffers.push(CaseBuffer::exact("kept", vec![UNTOUCHED; kept.len()], kept));
    }
    if call.masks {
        buffers.push(CaseBuffer::read("masks", all_masks));
    }
    if call.penalties {
        buffers.push(state("history", &|state| state.history.clone()));
        let mut counts =
            state("counts", &|state| (0..vocab as u32).map(|id| count_of(&state.counts, id)).collect());
        for (row, _) in counts.before.chunks_exact_mut(vocab).zip(counted).filter(|(_, counted)| *counted) {
            row.fill(3);
        }
        buffers.push(counts);
    }
    buffers
}

/// A ring of log-probabilities that no row has written.
fn empty_ring() -> CaseBuffer {
    let words = (SELECT_EMITTED * SELECT_ROWS * SELECT_LOGPROBS) as usize;
    let untouched = vec![UNTOUCHED; words];
    let rule = Rule::Near(Storage::F32, vec![None; words]);
    CaseBuffer { name: "logprobs", before: untouched.clone(), after: untouched, rule }
}

/// Puts a row's log-probabilities at an entry of the ring: tokens to the bit, log-probabilities within 1e-5 and roundings.
fn put_logprobs(ring: &mut CaseBuffer, entry: usize, logits: &[f32], token: u32, top: usize) {
    let first = entry * SELECT_LOGPROBS as usize;
    let (own, most_likely) = logprobs(logits, token, top);
    let Rule::Near(_, tolerances) = &mut ring.rule else { return };
    let mut put = |at: usize, logprob: f64| {
        ring.after[at] = (logprob as f32).to_bits();
        tolerances[at] = logprob.is_finite().then_some(1e-5 + 3e-7 * logprob.abs());
    };
    let most_likely = |place| most_likely.get(place).copied().unwrap_or((u32::MAX, f64::NEG_INFINITY));
    put(first, own);
    (0..top).for_each(|place| put(first + 2 + 2 * place, most_likely(place).1));
    (0..top).for_each(|place| ring.after[first + 1 + 2 * place] = most_likely(place).0);
}

/// Whether rounding may decide the draw: a sum of probabilities within 1e-5 of the random number or of a cut, or two
/// candidates whose probabilities differ so little that either may come first.
fn is_close(sampler: &Sampler, logits: &[f32], counts: &Counts, step: u64) -> bool {
    if sampler.is_greedy() || !logits.iter().any(|logit| logit.is_finite()) {
        return false;
    }
    let (kept, close) = sampler.exact(logits, counts);
    let number = sampler.number(step);
    let mut sum = 0.0;
    let near = kept.iter().any(|(_, p)| {
        sum += p;
        (sum - number).abs() < 1e-5
    });
    // Equal logits have equal probabilities, and their order is that of their ids.
    let drawn = sampler.draw(logits, counts, step, &mut Vec::new());
    let at = kept.iter().position(|(id, _)| *id == drawn);
    let p = |at: usize| kept.get(at).map_or(0.0, |(_, p)| *p);
    let swapped = at.is_none_or(|at| {
        [at.checked_sub(1), Some(at + 1)].into_iter().flatten().any(|other| {
            let apart = (p(other) / p(at) - 1.0).abs();
            apart > 0.0 && apart < 1e-6
        })
    });
    near || close || swapped
}
