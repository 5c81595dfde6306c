//! Context shift: a sequence that fills its context drops tokens, and the keys that remain are rotated to their new
//! positions.

use std::ops::Range;

use gyrus_kernels::{Backend, KV_BLOCK, Plan};

use super::job::SequenceId;
use super::scheduler::Scheduler;
use super::sequence::Phase;
use crate::Error;

/// Why keys of a plan cannot be rotated to other positions, if they cannot.
pub(crate) fn unsound(plan: &Plan) -> Option<&'static str> {
    if !plan.delta.is_empty() {
        return Some("layers with a recurrent state, which tokens cannot be dropped from");
    }
    if plan.kv.iter().any(|group| group.window.is_some()) {
        return Some("layers with a window, which do not keep the first tokens");
    }
    if plan.ropes.iter().any(|rope| rope.length_class(0) != rope.length_class(usize::MAX)) {
        return Some("rotary frequencies that depend on the length of the sequence");
    }
    None
}

/// The tokens that a shift of `len` positions drops: the older half behind the first `keep`, in whole blocks. Empty if
/// that is less than a block.
pub(crate) fn dropped(len: usize, keep: usize) -> Range<usize> {
    let first = keep.div_ceil(KV_BLOCK) * KV_BLOCK;
    let count = len.saturating_sub(first) / 2 / KV_BLOCK * KV_BLOCK;
    first..first + count
}

impl Scheduler {
    /// Drops tokens of a sequence that has no job: the older half behind the first `keep`. Returns which, or `None` if there
    /// are too few.
    ///
    /// What remains is computed again as other tokens if the cache loses it. Its blocks are in a chain of their own: they
    /// have seen tokens that were dropped.
    pub(crate) fn shift(
        &mut self,
        id: SequenceId,
        keep: usize,
        backend: &mut dyn Backend,
    ) -> Result<Option<Range<usize>>, Error> {
        let Some(&at) = self.by_id.get(&id) else { return Ok(None) };
        let (Some(sequence), Some(contents)) = (&mut self.sequences[at], backend.contents()) else {
            return Ok(None);
        };
        let range = dropped(sequence.kv.len(), keep);
        if sequence.phase != Phase::Idle || range.is_empty() {
            return Ok(None);
        }
        self.shifts += 1;
        sequence.tokens.drain(range.clone());
        sequence.has_own_chain = true;
        let salt = [u64::MAX, u64::MAX, self.shifts];
        self.kv.drop_blocks(&mut sequence.kv, range.start / KV_BLOCK..range.end / KV_BLOCK, salt);
        let blocks = sequence.kv.capacity() / KV_BLOCK;
        let (by, length) = (-(range.len() as i32), sequence.length);
        for group in 0..self.kv.groups().len() {
            let mut next = range.start / KV_BLOCK;
            while next < blocks {
                let Some(sequence) = &mut self.sequences[at] else { return Ok(None) };
                // Others may read the blocks as they are, so that the keys are rotated into others.
                let replaced = (next..blocks).map_while(|at| self.kv.replace(&mut sequence.kv, group, at));
                let moves: Vec<[u32; 2]> = replaced.map(|(from, to)| [from, to]).collect();
                if moves.is_empty() {
                    if self.reclaim_idle(at) {
                        continue;
                    }
                    // It is computed again.
                    if let Some(sequence) = &mut self.sequences[at] {
                        self.kv.release(&mut sequence.kv);
                    }
                    return Ok(Some(range));
                }
                let shifted = contents.shift_blocks(group, &moves, by, length);
                moves.iter().for_each(|[from, _]| self.kv.release_block(group, *from));
                if let Err(error) = shifted {
                    self.kv.release(&mut sequence.kv);
                    return Err(error.into());
                }
                next += moves.len();
            }
        }
        Ok(Some(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Model, Options, Precision, Session};

    #[test]
    fn whole_blocks_are_dropped_behind_what_is_kept() {
        for (len, keep, expected) in [
            (512, 0, 0..256),
            (511, 0, 0..224),
            (512, 1, 32..256),
            (512, 32, 32..256),
            (512, 33, 64..288),
            (95, 0, 0..32),
            (63, 0, 0..0),
            (512, 500, 512..512),
            (0, 0, 0..0),
        ] {
            let range = dropped(len, keep);
            assert!(range.start >= keep && range.end <= len.max(range.start), "{len} {keep}");
            assert_eq!(range.len(), expected.len(), "{len} {keep}: {range:?}");
            assert_eq!(range.start, expected.start, "{len} {keep}");
        }
    }

    /// The cache of a session, block by block: for each layer its keys and its values.
    fn cache(model: &Model, session: &Session) -> Vec<Vec<f32>> {
        let read = |backend: &mut dyn Backend, scheduler: &mut Scheduler| {
            let (mut kv, outline, _) = scheduler.hold(session.id(), session.tokens());
            let blocks = outline.positions.div_ceil(KV_BLOCK);
            let one = model.plan().kv[0].bytes_per_block(Precision::Exact);
            let mut bytes = vec![0; blocks * one];
            backend.contents().unwrap().read_blocks(0, &kv.table(0)[..blocks], &mut bytes)?;
            scheduler.release_blocks(&mut kv);
            let (words, _) = bytes.as_chunks::<4>();
            let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
            Ok(values
                .chunks_exact(values.len() / blocks / model.plan().kv[0].layers / 2)
                .map(<[f32]>::to_vec)
                .collect())
        };
        model.exclusively(read).unwrap()
    }

    /// In the first layer keys depend on their token and position alone, so that those that were rotated are those that the
    /// shorter sequence computes.
    #[test]
    fn rotated_keys_are_those_of_the_new_positions() {
        check_rotation(&Device::Cpu, 2e-6);
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn rotated_keys_are_those_of_the_new_positions_on_a_gpu() {
        let named = std::env::var("GYRUS_TEST_ADAPTER").ok();
        match named.or_else(|| gyrus_gpu::adapters().first().map(|adapter| adapter.name.clone())) {
            Some(name) => check_rotation(&Device::Gpu(Some(name)), 2e-6),
            None => gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found"),
        }
    }

    fn check_rotation(device: &Device, bound: f32) {
        for name in ["llama", "qwen2", "smollm3"] {
            let Some(path) = gyrus_testkit::data(&format!("tiny/{name}")) else { return };
            let options = Options {
                device: device.clone(),
                precision: Precision::Exact,
                context: Some(192),
                sessions: 3,
                threads: Some(1),
                prefix_cache: false,
                ..Options::default()
            };
            let model = Model::open(&path, &options).unwrap();
            let tokens: Vec<u32> = (0..180).map(|i| i * 7 % 90).collect();
            let mut session = model.session();
            session.prefill(&tokens).unwrap();
            let before = cache(&model, &session);
            let range = model.exclusively(|backend, scheduler| scheduler.shift(session.id(), 5, backend));
            assert_eq!(range.unwrap(), Some(32..96));
            let shorter = [&tokens[..32], &tokens[96..]].concat();
            session.set_tokens(&shorter).unwrap();
            let mut fresh = model.session();
            fresh.prefill(&shorter).unwrap();
            let (shifted, expected) = (cache(&model, &session), cache(&model, &fresh));
            assert_eq!(shifted.len(), expected.len());
            let layers = model.plan().kv[0].layers;
            let far = |a: &[f32], b: &[f32]| {
                gyrus_testkit::largest(a.iter().zip(b).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())))
            };
            let row = model.plan().kv[0].head_dim;
            for (at, (found, expected)) in shifted.iter().zip(&expected).enumerate() {
                let (block, layer, is_value) = (at / layers / 2, at / 2 % layers, at % 2 == 1);
                if layer > 0 {
                    continue;
                }
                // Positions behind the end hold anything.
                let used = (shorter.len() - block * KV_BLOCK).min(KV_BLOCK);
                for (found, expected) in found.chunks(KV_BLOCK * row).zip(expected.chunks(KV_BLOCK * row)) {
                    let (found, expected) = (&found[..used * row], &expected[..used * row]);
                    let distance = far(found, expected);
                    assert!(distance < bound, "{name}, block {block}, value {is_value}: {distance}");
                    assert!(!is_value || found == expected, "values do not change");
                }
            }
            // Without the rotation they would be far apart.
            let moved = 2 * layers;
            assert!(far(&before[3 * moved][..row], &shifted[moved][..row]) > 1e-3, "{name}");
            // The session goes on, and no block is lost.
            session.prefill(&[1, 2, 3]).unwrap();
            drop((session, fresh));
            let mut all: Vec<Session> = (0..3).map(|_| model.session()).collect();
            all.iter_mut().for_each(|session| session.prefill(&[1; 192]).unwrap());
        }
    }
}
