//! The laws of rotary embedding, on the scalar twin.

use gyrus_kernels::Direction;
use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::grid::{RunError, Runner, Scalar, identities};
use gyrus_kernels::params::RoPEQKVWriteParams;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Access, Launch, Pairing};

#[test]
fn the_twin_keeps_every_law() {
    let count = gyrus_testkit::cases(600) / 10;
    let broken: Vec<String> = identities::all()
        .iter()
        .enumerate()
        .filter_map(|(seed, (name, law))| {
            Some(format!("{name}: {}", law(&mut Scalar, seed as u64, count).err()?))
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The twin with a mistake of the kind that kernels have had.
struct Mistaken(Mistake);

/// Changes a call and its buffers before they run.
type Mistake = fn(&mut RopeCall, &mut [Vec<u32>]);

impl Runner for Mistaken {
    fn name(&self) -> String {
        "mistaken".to_owned()
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        // Refuses what is to be refused.
        Scalar.run(launch, &mut buffers.to_vec())?;
        let (mut call, before) = (*RunError::rope(launch, "this")?, buffers.to_vec());
        (self.0)(&mut call, buffers);
        Scalar.run_rope(&call, buffers)?;
        // Inputs that the mistake changed are restored, so that it shows in results alone.
        let launch = call.launch(Rungs::NONE, Default::default())?;
        for (i, slot) in launch.slots().iter().enumerate() {
            if slot.access == Access::Read {
                buffers[i].clone_from(&before[i]);
            }
        }
        Ok(())
    }
}

fn fused(call: &mut RopeCall) -> Option<&mut RoPEQKVWriteParams> {
    match &mut call.kernel {
        RopeKernel::QkvWrite { params, .. }
        | RopeKernel::BatchKvWrite { params, .. }
        | RopeKernel::HeadNorm { params, .. } => Some(params),
        _ => None,
    }
}

/// Every law can fail: each is broken by a mistake that it is meant to find.
#[test]
fn every_law_finds_a_mistake() {
    let mistakes: [(&str, &str, Mistake); 17] = [
        ("T1", "positions counted from one", |call, _| {
            if let RopeKernel::InPlace { params, .. } = &mut call.kernel {
                params.pos_offset += 1;
            }
        }),
        ("T2", "an output scale that is left out", |call, _| {
            if let RopeKernel::Op { params } = &mut call.kernel {
                params.output_scale = 1.0;
            }
        }),
        ("T3", "positions that skip", |call, buffers| {
            if let (RopeKernel::InPlace { pairing, .. }, 1) = (call.kernel, call.positions) {
                let ids = if pairing == Pairing::Split { 1 } else { 2 };
                buffers[ids].iter_mut().for_each(|id| *id ^= *id >> 3);
            }
        }),
        ("T4", "positions cut to 16 bits", |call, buffers| {
            if let (RopeKernel::InPlace { pairing, .. }, 1) = (call.kernel, call.positions) {
                let ids = if pairing == Pairing::Split { 1 } else { 2 };
                buffers[ids].iter_mut().for_each(|id| *id = (*id as u16).saturating_add(7).into());
            }
        }),
        ("T5", "backward that turns forward", |call, _| call.direction = Direction::Forward),
        ("T6", "backward without the output scale", |call, _| {
            if let (RopeKernel::Op { params }, Direction::Inverse) = (&mut call.kernel, call.direction) {
                params.output_scale = 1.0;
            }
        }),
        ("T7", "rope_q counted from one", |call, _| {
            if let RopeKernel::X { dims, .. } = &mut call.kernel {
                dims.pos_offset += 1;
            }
        }),
        ("T8", "a slot further", |call, _| {
            if let Some(params) = fused(call) {
                params.slot_offset = params.slot_offset.wrapping_add(1);
            }
        }),
        ("T8", "a head norm without the one that is added", |call, _| {
            if let RopeKernel::HeadNorm { plus_one, .. } = &mut call.kernel {
                *plus_one = false;
            }
        }),
        ("T9", "keys read where queries are", |call, buffers| {
            if let (Some(params), Storage::F32) = (fused(call).copied(), call.storage) {
                buffers[0][params.k_elem_offset as usize] = buffers[0][0];
            }
        }),
        ("T10", "divisors taken for others", |call, buffers| {
            if call.freqs == Freqs::Divisors {
                let last = buffers.len() - 1;
                buffers[last].iter_mut().for_each(|d| *d = (f32::from_bits(*d) * 1.01).to_bits());
            }
        }),
        ("T11", "a frequency scale that is left out", |call, _| {
            if let Some(params) = fused(call) {
                params.freq_scale = 1.0;
            }
        }),
        ("T12", "ids that are not looked at", |call, buffers| {
            if let (RopeKernel::InPlace { params, pairing }, 1) = (call.kernel, call.positions) {
                let ids = if pairing == Pairing::Split { 1 } else { 2 };
                (0..params.seq_len)
                    .for_each(|token| buffers[ids][token as usize] = params.pos_offset + token);
            }
        }),
        ("T14", "backward without the scale that was folded", |call, _| {
            if let (RopeKernel::Op { params }, Direction::Inverse) = (&mut call.kernel, call.direction) {
                params.output_scale = 1.0;
            }
        }),
        ("T15", "an offset that is left out", |call, _| {
            if let RopeKernel::InPlace { params, .. } = &mut call.kernel {
                params.rope_offset = 0;
            }
        }),
        ("T17", "rows without their stride", |call, _| {
            if let RopeKernel::InPlace { params, .. } = &mut call.kernel {
                params.row_stride = 0;
            }
        }),
        ("T7", "split pairs for adjacent ones", |call, _| {
            if let RopeKernel::InPlace { pairing, .. } = &mut call.kernel {
                *pairing = Pairing::Split;
            }
        }),
    ];
    for (number, what, mistake) in mistakes {
        let prefix = format!("{number}:");
        let (_, law) = identities::all().iter().find(|(name, _)| name.starts_with(&prefix)).expect("a law");
        let found = law(&mut Mistaken(mistake), 3, 40);
        assert!(found.is_err(), "{number} does not find {what}");
    }
    // A runner that accepts everything breaks the law of refusals.
    struct Blind;
    impl Runner for Blind {
        fn name(&self) -> String {
            "blind".to_owned()
        }
        fn run(&mut self, _: &Launch, _: &mut [Vec<u32>]) -> Result<(), RunError> {
            Ok(())
        }
    }
    assert!(identities::bad_calls_are_refused(&mut Blind, 3, 4).is_err());
}
