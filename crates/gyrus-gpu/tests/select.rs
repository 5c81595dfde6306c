//! Tokens sampled on the device over many steps: large vocabularies, distributions, the state, batch invariance. The
//! op-test grid compares single steps with the CPU's sampler.

mod common;
#[path = "select/slots.rs"]
mod slots;

use std::cell::Cell;
use std::collections::HashMap;

use common::device;
use gyrus_gpu::{Buffer, Dispatch, Gpu, GpuRunner};
use gyrus_kernels::call::{
    SELECT_EMITTED, SELECT_HELD as HELD, SELECT_NOT_FINITE as NOT_FINITE, SELECT_ROWS, SelectCall,
    SelectTuning,
};
use gyrus_kernels::params::SlotState;
use gyrus_kernels::scalar::{SelectState, emitted_at};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Counts, LaunchError, Sampler};
use gyrus_testkit::Rng;

const EMITTED: usize = SELECT_EMITTED as usize;
const ROWS: usize = SELECT_ROWS as usize;
/// Tokens of the histories.
const HISTORY: usize = 1024;

fn on_every_rung(test: impl Fn(&GpuRunner)) {
    for rungs in [Rungs::ALL, Rungs::NONE] {
        let Some(runner) = device(rungs) else { return };
        test(&runner);
    }
}

fn gaussian(seed: u64, n: usize, scale: f64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| (scale * rng.gaussian()) as f32).collect()
}

/// Rows with their samplers and histories on a device, and the launches that sample their tokens.
struct Chain<'a> {
    gpu: &'a Gpu,
    buffers: HashMap<&'static str, Buffer>,
    dispatches: Vec<Dispatch>,
    /// The next step of every row.
    step: Cell<u32>,
    rows: usize,
    vocab: usize,
}

/// A row: its logits, which do not change, its sampler and its state.
type Row<'a> = (&'a [f32], &'a Sampler, &'a SelectState);

/// Where the steps of chains begin: not a multiple of the ring's length.
const FIRST_STEP: u32 = 100;

fn call_of<'s>(samplers: impl IntoIterator<Item = &'s Sampler>, vocab: usize) -> SelectCall {
    SelectCall::of(samplers, vocab as u32, HISTORY as u32).unwrap()
}

fn running(sampler: &Sampler) -> SlotState {
    SlotState::new(sampler, FIRST_STEP, u32::MAX, &[], None, false)
}

impl<'a> Chain<'a> {
    fn new(runner: &'a GpuRunner, call: SelectCall, rows: &[Row<'_>]) -> Chain<'a> {
        Chain::tuned(runner, call, rows, SelectTuning::default())
    }

    fn tuned(runner: &'a GpuRunner, call: SelectCall, rows: &[Row<'_>], tuning: SelectTuning) -> Chain<'a> {
        let gpu = runner.gpu();
        let call = SelectCall { history: rows[0].2.history.len() as u32, ..call };
        let vocab = call.vocab as usize;
        let mut buffers = HashMap::new();
        let launches = call.tuned(gpu.rungs(), tuning).unwrap();
        for slot in launches.iter().flat_map(|launch| launch.slots()) {
            if buffers.contains_key(slot.name) {
                continue;
            }
            let words: Vec<u32> = match slot.name {
                "logits" => rows.iter().flat_map(|row| row.0.iter().map(|l| l.to_bits())).collect(),
                "slots" => {
                    let slots: Vec<SlotState> = rows.iter().map(|row| running(row.1)).collect();
                    bytemuck::pod_collect_to_vec(&slots)
                }
                "tokens" => rows.iter().map(|row| row.2.token).collect(),
                "rows" => rows.iter().flat_map(|row| [row.2.position, 7]).collect(),
                "history" => rows.iter().flat_map(|row| row.2.history.clone()).collect(),
                "counts" => rows
                    .iter()
                    .flat_map(|row| (0..vocab as u32).map(|id| row.2.counts.get(&id).copied().unwrap_or(0)))
                    .collect(),
                // Outputs and scratch buffers may hold anything.
                _ => vec![0xaaaa_5555; slot.bytes as usize / 4],
            };
            assert_eq!(4 * words.len() as u64, slot.bytes, "{}", slot.name);
            buffers.insert(slot.name, gpu.upload(bytemuck::cast_slice(&words)).unwrap());
        }
        let dispatches = launches
            .iter()
            .map(|launch| {
                let bound: Vec<&Buffer> = launch.slots().iter().map(|slot| &buffers[slot.name]).collect();
                gpu.bind(launch, &bound).unwrap()
            })
            .collect();
        Chain { gpu, buffers, dispatches, step: Cell::new(FIRST_STEP), rows: rows.len(), vocab }
    }

    fn read(&self, name: &str) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&self.gpu.read(&self.buffers[name]).unwrap())
    }

    /// Overwrites a slot.
    fn set(&self, row: usize, slot: SlotState) {
        let mut slots: Vec<SlotState> = bytemuck::pod_collect_to_vec(&self.read("slots"));
        slots[row] = slot;
        self.gpu.write(&self.buffers["slots"], bytemuck::cast_slice(&slots)).unwrap();
    }

    fn slots(&self) -> Vec<SlotState> {
        bytemuck::pod_collect_to_vec(&self.read("slots"))
    }

    fn positions(&self) -> Vec<u32> {
        self.read("rows").chunks_exact(2).map(|row| row[0]).collect()
    }

    /// Runs steps in one submission and returns each row's tokens.
    fn steps(&self, count: usize) -> Vec<Vec<u32>> {
        let mut tokens = vec![Vec::new(); self.rows];
        let mut left = count;
        while left > 0 {
            let now = left.min(EMITTED);
            let (before, input) = (self.positions(), self.read("tokens"));
            let all: Vec<&Dispatch> = (0..now).flat_map(|_| &self.dispatches).collect();
            self.gpu.run(&all).unwrap();
            let emitted = self.read("emitted");
            for (row, tokens) in tokens.iter_mut().enumerate() {
                let at = |step: usize| emitted_at(self.step.get() + step as u32, row as u32);
                let new: Vec<u32> = (0..now).map(|step| emitted[at(step)]).collect();
                let drawn: Vec<u32> = new.iter().copied().filter(|word| *word < HELD).collect();
                assert!(drawn.iter().all(|token| (*token as usize) < self.vocab));
                // Rows that hold keep their token and their position.
                assert_eq!(self.read("tokens")[row], drawn.last().copied().unwrap_or(input[row]));
                assert_eq!(self.positions()[row], before[row] + drawn.len() as u32);
                tokens.extend(new);
            }
            self.step.set(self.step.get() + now as u32);
            assert!(self.slots().iter().all(|slot| slot.step == self.step.get()));
            left -= now;
        }
        tokens
    }
}

/// Compares a token with the CPU's. Returns whether they differ, which only rounding may cause: a sum of probabilities within
/// 1e-5 of the random number or of a cut; or two tokens whose probabilities differ so little that either may come first.
/// Tokens of equal logits have equal probabilities, and their order must be the same.
fn check(sampler: &Sampler, logits: &[f32], counts: &Counts, step: u32, token: u32) -> bool {
    let mut scratch = Vec::new();
    let expected = sampler.draw(logits, counts, step.into(), &mut scratch);
    if token == expected {
        return false;
    }
    assert!(!sampler.is_greedy(), "{sampler:?} step {step}: {token}, expected {expected}");
    let (kept, close) = sampler.exact(logits, counts);
    let number = sampler.number(step.into());
    let mut sum = 0.0;
    let near = kept.iter().any(|(_, p)| {
        sum += p;
        (sum - number).abs() < 1e-5
    });
    let p = |token: u32| kept.iter().find(|(id, _)| *id == token).map_or(0.0, |(_, p)| *p);
    let apart = (p(token) / p(expected) - 1.0).abs();
    let swapped = apart > 0.0 && apart < 1e-6;
    assert!(
        near || close || swapped,
        "{sampler:?} vocabulary {} step {step}: {token}, expected {expected}",
        logits.len()
    );
    !swapped
}

/// Every combination of filters, on distributions from steep to flat.
fn samplers() -> Vec<Sampler> {
    let mut all = Vec::new();
    for top_k in [0, 1, 40, 300] {
        for top_p in [1.0, 0.95, 0.5] {
            for min_p in [0.0, 0.05] {
                for temperature in [0.8, 1.7] {
                    all.push(Sampler { temperature, top_k, top_p, min_p, ..Sampler::default() });
                }
            }
        }
    }
    all
}

fn penalties(sampler: &Sampler) -> Sampler {
    Sampler {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.25,
        // Counts do not change then, and neither does the distribution.
        penalty_window: 0,
        ..sampler.clone()
    }
}

fn counts(vocab: usize) -> Counts {
    (0..vocab as u32).step_by(3).map(|id| (id, 1 + id % 5)).collect()
}

fn state(position: u32, counts: Counts) -> SelectState {
    SelectState { position, token: 0, history: vec![0; HISTORY], counts }
}

/// Runs samplers in batches of sixteen rows and compares every token with the CPU's.
fn compare(runner: &GpuRunner, logits: &[f32], samplers: &[Sampler], penalised: bool, steps: usize) {
    let vocab = logits.len();
    let counts = if penalised { counts(vocab) } else { Counts::new() };
    let (mut differ, mut all) = (0, 0);
    for team in samplers.chunks(ROWS) {
        let team: Vec<Sampler> = team
            .iter()
            .zip(1u64..)
            .map(|(s, i)| Sampler {
                seed: i.wrapping_mul(0x1234_5678_9abc_def1),
                ..if penalised { penalties(s) } else { s.clone() }
            })
            .collect();
        let states: Vec<SelectState> =
            (0..team.len()).map(|i| state(97 * i as u32, counts.clone())).collect();
        let rows: Vec<Row<'_>> = team.iter().zip(&states).map(|(s, state)| (logits, s, state)).collect();
        let call = SelectCall { greedy: false, ..call_of(&team, vocab) };
        let chain = Chain::new(runner, call, &rows);
        for ((tokens, sampler), state) in chain.steps(steps).iter().zip(&team).zip(&states) {
            for (token, step) in tokens.iter().zip(state.position + 1..) {
                differ += usize::from(check(sampler, logits, &counts, step, *token));
                all += 1;
            }
        }
    }
    assert!(differ * 500 <= all, "{differ} of {all} tokens differ");
}

#[test]
fn large_vocabularies() {
    let Some(runner) = device(Rungs::ALL) else { return };
    for (seed, vocab, scale) in
        [(5, 32_000, 2.5), (6, 49_152, 1.0), (7, 128_256, 3.0), (8, 151_936, 2.0), (9, 262_144, 2.5)]
    {
        let some: Vec<Sampler> = samplers().into_iter().step_by(3).collect();
        compare(&runner, &gaussian(seed, vocab, scale), &some, false, 2);
    }
}

/// A draw from a flat row is decided by few tokens, of which it is one: the bins are fine enough, however flat the row is
/// and whatever its temperature.
#[test]
fn flat_draws_are_decided_by_few_tokens() {
    on_every_rung(|runner| {
        for (scale, temperature) in [(0.5, 0.8), (0.5, 100.0), (0.01, 1.0), (3.0, 1.0)] {
            let logits = gaussian(31, 40_001, scale);
            for (top_p, min_p) in [(0.95, 0.0), (1.0, 0.0), (0.5, 0.01), (1.0, 0.01)] {
                let sampler = Sampler { temperature, top_p, min_p, seed: 9, ..Sampler::default() };
                let call = call_of([&sampler], logits.len());
                let state = state(5, Counts::new());
                let chain = Chain::new(runner, call, &[(&logits, &sampler, &state)]);
                let token = chain.steps(1)[0][0];
                let partials = chain.read("partials");
                // As in layout.wgsl and bins.wgsl.
                let bins = &partials[64 * 32 + 2 * 64..];
                let gathered = bins[0] as usize;
                assert!((1..=50).contains(&gathered), "{gathered} of {sampler:?}");
                let tokens = &bins[bins.len() - 2 * 1024..][..2 * gathered];
                assert!(tokens.chunks(2).any(|pair| pair[1] == token), "{sampler:?}");
                check(&sampler, &logits, &Counts::new(), 6, token);
            }
        }
    });
}

/// Rows with NaN or infinity emit no token; extreme rows that are finite do.
#[test]
fn rows_that_are_not_finite_emit_no_token() {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let greedy = Sampler::default();
    let drawn = Sampler { temperature: 0.7, ..Sampler::default() };
    let cut = Sampler { temperature: 0.7, top_k: 2, top_p: 0.9, min_p: 0.1, ..Sampler::default() };
    let repelled = Sampler { presence_penalty: 1.0, ..Sampler::default() };
    // The sampler overflows f32 here, not the model.
    let extreme = Sampler { repetition_penalty: 1e38, temperature: 1.0, ..Sampler::default() };
    on_every_rung(|runner| {
        for logits in [
            vec![1.0, 3.0, 3.0, NAN],
            vec![NAN, -INF, -INF],
            vec![NAN, NAN],
            vec![-INF, -INF, -INF],
            vec![-INF, NAN, -3e38, -1.0, 3e38],
            vec![1.0, INF, NAN, INF],
            vec![-0.0, 0.0, -0.0],
            vec![-1.0, -0.0, 0.0],
            vec![NAN, 5.0],
            vec![2.0],
            vec![-NAN, -2.0, -1.5, -INF, NAN, -1.5],
            vec![1.0, -3e38, 3e38, 1e-45],
            vec![-3e38, -3e38],
        ] {
            let counts = Counts::from([(1, 1)]);
            let vocab = logits.len() as u32;
            let finite = logits.iter().all(|logit| logit.is_finite());
            for sampler in [&greedy, &drawn, &cut, &repelled, &extreme] {
                for greedy in [sampler.is_greedy(), false] {
                    let state = state(3, counts.clone());
                    let call = SelectCall { greedy, ..call_of([sampler], vocab as usize) };
                    let chain = Chain::new(runner, call, &[(&logits, sampler, &state)]);
                    let tokens = chain.steps(if sampler.has_penalties() { 1 } else { 30 });
                    for (token, step) in tokens[0].iter().zip(4..) {
                        let drawn = sampler.draw(&logits, &counts, step, &mut Vec::new());
                        // The row ends at the first.
                        let ended = if step == 4 { NOT_FINITE } else { HELD };
                        let expected = if finite { drawn } else { ended };
                        assert_eq!(*token, expected, "{logits:?} {sampler:?}");
                    }
                }
            }
        }
    });
}

/// The 0.9999 quantile of chi-squared, by Wilson and Hilferty.
fn bound(freedom: usize) -> f64 {
    let n = freedom.max(1) as f64;
    let t = 2.0 / (9.0 * n);
    n * (1.0 - t + 3.72 * t.sqrt()).powi(3)
}

/// Draws follow the distribution that the definition gives, for every combination of filters.
#[test]
fn draws_follow_the_distribution() {
    let Some(runner) = device(Rungs::ALL) else { return };
    // The second is flat, so that draws leave the candidates near the maximum; those of top-k never do.
    for (logits, draws, flat) in [(gaussian(20, 120, 2.0), 40, false), (gaussian(21, 1500, 0.5), 16, true)] {
        for penalised in [false, true] {
            for filter in (0..8).filter(|filter| !flat || (filter % 2 == 0 && !penalised)) {
                let on = |bit: u32| filter >> bit & 1 == 1;
                let plain = Sampler {
                    temperature: 0.9,
                    top_k: if on(0) { 30 } else { 0 },
                    top_p: if on(1) { 0.9 } else { 1.0 },
                    min_p: if on(2) { 0.02 } else { 0.0 },
                    ..Sampler::default()
                };
                let counts = if penalised { counts(logits.len()) } else { Counts::new() };
                let all: Vec<Sampler> = (0..ROWS as u64)
                    .map(|row| Sampler {
                        seed: 1 + row * 0x9999_8888_7777,
                        ..if penalised { penalties(&plain) } else { plain.clone() }
                    })
                    .collect();
                let state = state(0, counts.clone());
                let rows: Vec<Row<'_>> = all.iter().map(|s| (logits.as_slice(), s, &state)).collect();
                let call = call_of(&all, logits.len());
                let mut seen: HashMap<u32, f64> = HashMap::new();
                for token in Chain::new(&runner, call, &rows).steps(draws).concat() {
                    *seen.entry(token).or_default() += 1.0;
                }
                let (kept, _) = all[0].exact(&logits, &counts);
                let n = (draws * ROWS) as f64;
                assert!(seen.keys().all(|token| kept.iter().any(|(id, _)| id == token)), "{plain:?}");
                // Tokens are binned until at least five draws are expected in a bin.
                let (mut sum, mut bins, mut expected, mut found) = (0.0, 0, 0.0, 0.0);
                for (i, (token, p)) in kept.iter().enumerate() {
                    expected += p * n;
                    found += seen.get(token).copied().unwrap_or(0.0);
                    if expected >= 5.0 || i + 1 == kept.len() {
                        sum += (found - expected) * (found - expected) / expected.max(1.0);
                        (bins, expected, found) = (bins + 1, 0.0, 0.0);
                    }
                }
                let most = bound(bins - 1);
                assert!(sum < most, "{plain:?} penalties {penalised}: {sum} of {most}, {bins} bins");
            }
        }
    }
}

/// A row's tokens depend neither on its neighbours nor on the size of workgroups.
#[test]
fn neighbours_change_no_token() {
    on_every_rung(|runner| {
        let samplers: Vec<Sampler> = [
            Sampler::default(),
            Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, ..Sampler::default() },
            Sampler { temperature: 1.0, seed: 3, ..Sampler::default() },
            Sampler { temperature: 1.3, top_p: 0.9, seed: u64::MAX, ..Sampler::default() },
            Sampler { temperature: 0.5, min_p: 0.1, seed: 9, ..Sampler::default() },
            Sampler { temperature: 1.0, top_k: 700, seed: 1 << 40, ..Sampler::default() },
        ]
        .map(|s| Sampler { frequency_penalty: 0.1, penalty_window: 9, ..s })
        .to_vec();
        let logits: Vec<Vec<f32>> =
            (0..6).map(|i| gaussian(30 + i, 2001, if i == 2 { 0.4 } else { 2.0 })).collect();
        let states: Vec<SelectState> =
            samplers.iter().map(|s| SelectState::new(&[4, 5, 6, 4, 4], s.penalty_window, HISTORY)).collect();
        for penalised in [true, false] {
            let samplers: Vec<Sampler> = samplers
                .iter()
                .map(|s| Sampler { frequency_penalty: if penalised { 0.1 } else { 0.0 }, ..s.clone() })
                .collect();
            let rows: Vec<Row<'_>> = (0..6).map(|i| (&logits[i][..], &samplers[i], &states[i])).collect();
            let call = call_of(&samplers, 2001);
            let together = Chain::new(runner, call, &rows).steps(10);
            for (row, tokens) in rows.iter().zip(&together) {
                let call = call_of([row.1], 2001);
                assert_eq!(Chain::new(runner, call, &[*row]).steps(10)[0], *tokens, "{:?}", row.1);
            }
            for (workgroup, refine) in [(Some(512), None), (None, Some(true)), (None, Some(false))] {
                let tuning = SelectTuning { workgroup, refine };
                assert_eq!(Chain::tuned(runner, call, &rows, tuning).steps(10), together, "{tuning:?}");
            }
        }
    });
}

/// Positions, the ring of emitted tokens, history and counts over many steps, with a window that slides.
#[test]
fn state_advances() {
    on_every_rung(|runner| {
        let logits: Vec<Vec<f32>> = (0..4).map(|i| gaussian(40 + i, 50, 1.0)).collect();
        let base = Sampler {
            temperature: 0.9,
            top_k: 20,
            repetition_penalty: 1.1,
            presence_penalty: 0.3,
            frequency_penalty: 0.2,
            ..Sampler::default()
        };
        let windows = [5, 0, 64, 1024];
        for greedy in [false, true] {
            let samplers: Vec<Sampler> = windows
                .iter()
                .zip(1..)
                .map(|(&penalty_window, seed)| {
                    let temperature = if greedy { 0.0 } else { base.temperature };
                    Sampler { penalty_window, seed, temperature, ..base.clone() }
                })
                .collect();
            let histories: [Vec<u32>; 4] =
                [vec![1, 2, 3], vec![9; 70], (0..40).collect(), (0..1020).map(|i| i * i % 50).collect()];
            let mut states: Vec<SelectState> = histories
                .iter()
                .zip(windows)
                .map(|(history, window)| SelectState::new(history, window, HISTORY))
                .collect();
            let rows: Vec<Row<'_>> = (0..4).map(|i| (&logits[i][..], &samplers[i], &states[i])).collect();
            let chain = Chain::new(runner, call_of(&samplers, 50), &rows);
            let tokens = chain.steps(200);
            let mut emitted = vec![None; EMITTED * ROWS];
            for (row, state) in states.iter_mut().enumerate() {
                for (&token, step) in tokens[row].iter().zip(FIRST_STEP..) {
                    check(&samplers[row], &logits[row], &state.counts, state.position + 1, token);
                    state.advance(token, windows[row]);
                    emitted[emitted_at(step, row as u32)] = Some(token);
                }
            }
            let (found_history, found_counts) = (chain.read("history"), chain.read("counts"));
            for (row, state) in states.iter().enumerate() {
                assert_eq!(found_history[row * HISTORY..][..HISTORY], state.history, "row {row}");
                let expected: Vec<u32> =
                    (0..50).map(|id| state.counts.get(&id).copied().unwrap_or(0)).collect();
                assert_eq!(found_counts[row * 50..][..50], expected, "row {row}");
            }
            for (found, expected) in chain.read("emitted").iter().zip(emitted) {
                assert_eq!(*found, expected.unwrap_or(0xaaaa_5555));
            }
            let block_tables: Vec<u32> = chain.read("rows").chunks_exact(2).map(|row| row[1]).collect();
            assert_eq!(block_tables, [7; 4]);
        }
    });
}

#[test]
fn invalid_calls_are_refused() {
    let refused = |call: SelectCall| call.launches(Rungs::ALL).unwrap_err();
    let call = SelectCall { rows: 1, vocab: 10, ..SelectCall::default() };
    assert!(matches!(refused(SelectCall { rows: 0, ..call }), LaunchError::Zero { .. }));
    assert!(matches!(refused(SelectCall { vocab: 0, ..call }), LaunchError::Zero { .. }));
    assert!(matches!(refused(SelectCall { rows: 17, ..call }), LaunchError::Large { .. }));
    assert!(matches!(refused(SelectCall { vocab: 1 << 23, ..call }), LaunchError::Large { .. }));
    let tuning = SelectTuning { workgroup: Some(128), ..SelectTuning::default() };
    assert!(matches!(call.tuned(Rungs::ALL, tuning), Err(LaunchError::Tuning { .. })));
    let uneven = SelectCall { penalties: true, history: 1000, ..call };
    assert!(matches!(refused(uneven), LaunchError::Tuning { name: "history", .. }));
    let far_back = Sampler { presence_penalty: 1.0, penalty_window: u32::MAX, ..Sampler::default() };
    assert!(matches!(SelectCall::of([&far_back], 10, u32::MAX), Err(LaunchError::Large { .. })));
    assert_eq!(SelectCall::of([&far_back], 10, 5000).unwrap().history, 8192);
    // Without penalties there is no history.
    let unused = Sampler { presence_penalty: 0.0, ..far_back };
    let call = SelectCall::of([&unused], 10, u32::MAX).unwrap();
    assert_eq!(call.history, 0);
    assert_eq!(call.count(Rungs::ALL).unwrap(), None);
}
