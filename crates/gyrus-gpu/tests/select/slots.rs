//! Slots that advance or hold, wait for masks, and give log-probabilities.

use gyrus_kernels::MAX_TOP;
use gyrus_kernels::call::SELECT_LOGPROBS;
use gyrus_kernels::scalar::{allowed, logprobs};

use super::*;

/// Rows advance or hold by their slots, and the host can change a slot between steps.
#[test]
fn slots_advance_or_hold() {
    on_every_rung(|runner| {
        for temperature in [0.0, 0.9] {
            let sampler = Sampler { temperature, seed: 11, ..Sampler::default() };
            let logits: Vec<Vec<f32>> = (0..5).map(|i| gaussian(60 + i, 700, 3.0)).collect();
            let mut states: Vec<SelectState> =
                (1..6).map(|n| SelectState::new(&[3, 4, 5, 6, 7][..n], 0, HISTORY)).collect();
            let rows: Vec<Row<'_>> = (0..5).map(|i| (&logits[i][..], &sampler, &states[i])).collect();
            let chain = Chain::new(runner, call_of([&sampler; 5], 700), &rows);
            let token = |row: usize, position: u32| {
                sampler.draw(&logits[row], &Counts::new(), position.into(), &mut Vec::new())
            };
            let slot = running(&sampler);
            let mut slots = [
                slot,
                SlotState::inactive(FIRST_STEP),
                SlotState { limit: 7, ..slot },
                SlotState::new(&sampler, FIRST_STEP, u32::MAX, &[1, 2, token(3, 4)], None, false),
                SlotState::new(&sampler, FIRST_STEP, u32::MAX, &[], None, true),
            ];
            for round in 0..4 {
                match round {
                    // A slot begins, another may be longer, another is closed.
                    1 => {
                        slots[1] = SlotState { step: slots[1].step, ..slot };
                        slots[2].limit = 12;
                        slots[0].flags = 0;
                    }
                    2 => slots[2].limit = 5,
                    _ => {}
                }
                slots.iter().enumerate().for_each(|(row, slot)| chain.set(row, *slot));
                let found = chain.steps(6);
                for (row, (slot, state)) in slots.iter_mut().zip(&mut states).enumerate() {
                    let twin = |_| state.step(slot, Some(token(row, state.position + 1)));
                    let expected: Vec<u32> = (0..6).map(twin).collect();
                    assert_eq!(found[row], expected, "row {row} of round {round}, temperature {temperature}");
                }
                assert_eq!(chain.slots(), slots);
            }
            assert_eq!(states.iter().map(|state| state.position).collect::<Vec<_>>(), [6, 19, 11, 4, 4]);
        }
    });
}

/// A masked row advances by one token for each mask, and only to tokens that it allows. Its neighbour goes on.
#[test]
fn masked_rows_wait_for_their_masks() {
    on_every_rung(|runner| {
        for (temperature, presence_penalty) in [(0.0, 0.5), (0.9, 0.0)] {
            let sampler = Sampler { temperature, presence_penalty, seed: 5, ..Sampler::default() };
            let logits = [gaussian(70, 1000, 3.0), gaussian(71, 1000, 3.0)];
            let mut states = [&[1u32, 2][..], &[3]].map(|text| SelectState::new(text, 64, HISTORY));
            let rows: Vec<Row<'_>> = (0..2).map(|i| (&logits[i][..], &sampler, &states[i])).collect();
            let call = SelectCall { masks: true, ..call_of([&sampler; 2], 1000) };
            let chain = Chain::new(runner, call, &rows);
            let mut slots =
                [SlotState::new(&sampler, FIRST_STEP, u32::MAX, &[], None, true), running(&sampler)];
            chain.set(0, slots[0]);
            for round in 0..6u32 {
                // Every third token from a first one on; in the last round none.
                let is_allowed = |token: u32| round < 5 && token % 3 == round % 3;
                let mut mask = vec![0; 2 * 32];
                (0..1000)
                    .filter(|token| is_allowed(*token))
                    .for_each(|t| mask[t as usize / 32] |= 1 << (t % 32));
                chain.gpu.write(&chain.buffers["masks"], bytemuck::cast_slice(&mask)).unwrap();
                slots[0].mask_position = states[0].position + 1;
                chain.set(0, slots[0]);
                let found = chain.steps(3);
                let masked = [allowed(&logits[0], &mask), logits[1].clone()];
                for (row, (slot, state)) in slots.iter_mut().zip(&mut states).enumerate() {
                    for &word in &found[row] {
                        let step = state.position + 1;
                        let token = sampler.draw(&masked[row], &state.counts, step.into(), &mut Vec::new());
                        let is_drawn = row == 1 || round < 5;
                        assert_eq!(word, state.step(slot, is_drawn.then_some(token)), "row {row} of {round}");
                        assert!(row == 1 || word >= HELD || is_allowed(word));
                    }
                }
                assert_eq!(chain.slots(), slots);
            }
            // One token for each mask but the last.
            assert_eq!(states.map(|state| state.position), [1 + 5, 18]);
            assert_ne!(slots[0].flags & SlotState::ENDED, 0);
        }
    });
}

/// Log-probabilities of every step of the ring, of rows that draw, end and hold, at a large vocabulary and with ties.
#[test]
fn logprobs_are_those_of_the_raw_logits() {
    on_every_rung(|runner| {
        let sampler = Sampler { temperature: 0.8, top_k: 50, presence_penalty: 3.0, ..Sampler::default() };
        let vocab = 40_001;
        let ties: Vec<f32> = gaussian(81, vocab, 1.0).iter().map(|logit| logit.round()).collect();
        let logits = [gaussian(80, vocab, 3.0), ties, gaussian(82, vocab, 2.0), vec![-0.5; vocab]];
        let states = [0; 4].map(|_| SelectState::new(&[7, 8], 64, HISTORY));
        let rows: Vec<Row<'_>> = (0..4).map(|i| (&logits[i][..], &sampler, &states[i])).collect();
        let call = SelectCall { logprobs: true, ..call_of([&sampler; 4], vocab) };
        let chain = Chain::new(runner, call, &rows);
        let tops = [Some(MAX_TOP), Some(3), None, Some(MAX_TOP)];
        for (row, top) in tops.into_iter().enumerate() {
            // The last row holds from its second step on.
            let limit = if row == 3 { 3 } else { u32::MAX };
            chain.set(row, SlotState::new(&sampler, FIRST_STEP, limit, &[], top, false));
        }
        let words = chain.steps(5);
        let ring = chain.read("logprobs");
        let entry = |step: u32, row: usize| &ring[emitted_at(step, row as u32) * SELECT_LOGPROBS as usize..];
        for (row, top) in tops.into_iter().enumerate() {
            for (&word, step) in words[row].iter().zip(FIRST_STEP..) {
                let found = entry(step, row);
                let Some(top) = top.filter(|_| word < HELD) else {
                    assert!(found[..SELECT_LOGPROBS as usize].iter().all(|word| *word == 0xaaaa_5555));
                    continue;
                };
                let (own, most_likely) = logprobs(&logits[row], word, top);
                let close = |bits: u32, exact: f64| (f64::from(f32::from_bits(bits)) - exact).abs() < 2e-5;
                assert!(close(found[0], own), "row {row}");
                for (pair, (id, logprob)) in found[1..].chunks(2).zip(most_likely) {
                    assert_eq!(pair[0], id, "row {row}");
                    assert!(close(pair[1], logprob), "row {row}");
                }
            }
        }
        assert_eq!(words[3][1..], [HELD; 4]);
    });
}
