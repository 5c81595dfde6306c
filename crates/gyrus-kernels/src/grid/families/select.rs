//! Tokens chosen from logits: greedy, drawn with every combination of filters, and penalised.

use crate::call::{SELECT_EMITTED, SELECT_HISTORY, SELECT_NOT_FINITE, SELECT_ROWS, SelectCall, SelectTuning};
use crate::grid::case::{Case, CaseBuffer, Step};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::scalar::SelectState;
use crate::select::{Counts, Sampler};
use crate::shader::Rungs;

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
    let window = point.of(&[64, 5, 0, SELECT_HISTORY]);
    let rows: usize = point.of(&[4, 1, 16]);
    let tuning = point.of(&[SelectTuning { workgroup: None }, SelectTuning { workgroup: Some(512) }]);
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
    };
    let call = SelectCall { rows: rows as u32, vocab: vocab as u32, greedy, penalties };
    let launches = call.tuned(rungs, tuning).ok()?;
    let scratch: Vec<(&'static str, usize)> = launches
        .iter()
        .flat_map(|launch| launch.slots())
        .filter(|slot| ["partials", "adjusted"].contains(&slot.name))
        .map(|slot| (slot.name, slot.bytes as usize / 4))
        .collect();
    let name = format!("{logits:?} of {vocab}, {rows} rows, {sampler:?}, {tuning:?}");
    let seed = point.seed;
    let twin = move || {
        let mut buffers = twin(&mut Noise::new(seed), logits, call, &sampler);
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

fn sampler_words(samplers: &[Sampler]) -> Vec<u32> {
    let bytes = SelectCall::samplers(samplers);
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

fn twin(noise: &mut Noise, logits: Logits, call: SelectCall, sampler: &Sampler) -> Vec<CaseBuffer> {
    let (rows, vocab) = (call.rows as usize, call.vocab as usize);
    let (mut all, mut samplers, mut states) = (Vec::new(), Vec::new(), Vec::new());
    let mut emitted = vec![0xaaaa_5555; (SELECT_EMITTED * SELECT_ROWS) as usize];
    let emitted_before = emitted.clone();
    for row in 0..rows {
        let row_logits = row_of(noise, logits, vocab, row + 1 == rows);
        let before =
            SelectState::new(&history(noise, vocab), if call.penalties { sampler.penalty_window } else { 0 });
        let step = before.position + 1;
        // Rounding may decide a draw that is this close to a cut, so another seed is taken.
        let sampler = (0..64)
            .map(|_| Sampler {
                seed: u64::from(noise.bits()) << 32 | u64::from(noise.bits()),
                ..sampler.clone()
            })
            .find(|sampler| !is_close(sampler, &row_logits, &before.counts, step.into()))
            .unwrap_or_else(|| Sampler { top_k: 1, ..sampler.clone() });
        let finite = row_logits.iter().all(|logit| logit.is_finite());
        let token = sampler.draw(&row_logits, &before.counts, step.into(), &mut Vec::new());
        let mut after = before.clone();
        // Steps in flight continue with a valid token.
        after.advance(if finite { token } else { 0 }, sampler.penalty_window);
        emitted[after.emitted_at(row as u32)] = if finite { token } else { SELECT_NOT_FINITE };
        all.extend(row_logits);
        samplers.push(sampler);
        states.push((before, after));
    }
    let state = |name, words: &dyn Fn(&SelectState) -> Vec<u32>| {
        let before = states.iter().flat_map(|(before, _)| words(before)).collect();
        CaseBuffer::exact(name, before, states.iter().flat_map(|(_, after)| words(after)).collect())
    };
    let count = |counts: &Counts, id: u32| counts.get(&id).copied().unwrap_or(0);
    let tokens = CaseBuffer { before: vec![u32::MAX; rows], ..state("tokens", &|state| vec![state.token]) };
    let mut buffers = vec![
        CaseBuffer::floats("logits", &all),
        CaseBuffer::read("samplers", sampler_words(&samplers)),
        tokens,
        state("rows", &|state| vec![state.position, 7]),
        CaseBuffer::exact("emitted", emitted_before, emitted),
    ];
    if call.penalties {
        buffers.push(state("history", &|state| state.history.clone()));
        buffers
            .push(state("counts", &|state| (0..vocab as u32).map(|id| count(&state.counts, id)).collect()));
    }
    buffers
}

/// Whether rounding may decide the draw: a sum of probabilities within 1e-5 of the random number or of a cut, or two
/// candidates whose probabilities differ so little that either may come first.
fn is_close(sampler: &Sampler, logits: &[f32], counts: &Counts, step: u64) -> bool {
    if sampler.is_greedy() || !logits.iter().all(|logit| logit.is_finite()) {
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
