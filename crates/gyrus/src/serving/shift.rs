//! Context shift: a sequence that fills its context drops tokens, and the keys that remain are rotated to their new
//! positions.

use std::ops::Range;
use std::sync::Arc;

use gyrus_kernels::call::KvShiftCall;
use gyrus_kernels::{Backend, CacheContents, KV_BLOCK, KvShape, Op, Plan, Rope, scalar};

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
        let plan = Arc::clone(&self.plan);
        let rope_of = ropes(&plan);
        self.shifts += 1;
        sequence.tokens.drain(range.clone());
        sequence.has_own_chain = true;
        let salt = [u64::MAX, u64::MAX, self.shifts];
        self.kv.drop_blocks(&mut sequence.kv, range.start / KV_BLOCK..range.end / KV_BLOCK, salt);
        let blocks = sequence.kv.capacity() / KV_BLOCK;
        for block in range.start / KV_BLOCK..blocks {
            for (group, ropes) in rope_of.iter().enumerate() {
                while self.kv.pools()[group].available() == 0 {
                    if !self.reclaim_idle(at) {
                        break;
                    }
                }
                let Some(sequence) = &mut self.sequences[at] else { return Ok(None) };
                // Others may read the block as it is.
                let Some((from, to)) = self.kv.replace(&mut sequence.kv, group, block) else {
                    // It is computed again.
                    self.kv.release(&mut sequence.kv);
                    return Ok(Some(range));
                };
                let moved = Moved { group, from, to, by: -(range.len() as i32) };
                let done = moved.rotate(&plan, ropes, sequence.length, contents);
                self.kv.release_block(group, from);
                if let Err(error) = done {
                    self.kv.release(&mut sequence.kv);
                    return Err(error);
                }
            }
        }
        Ok(Some(range))
    }
}

/// The rope of each layer of each KV group; `None` where keys are not rotated.
fn ropes(plan: &Plan) -> Vec<Vec<Option<&Rope>>> {
    let mut all: Vec<Vec<Option<&Rope>>> = plan.kv.iter().map(|group| vec![None; group.layers]).collect();
    for op in &plan.forward {
        if let Op::RopeWrite { kv, write: true, rope: Some(rope), .. } = op {
            all[usize::from(kv.group)][usize::from(kv.index)] = plan.ropes.get(usize::from(rope.0));
        }
    }
    all
}

/// A block whose keys move to other positions.
struct Moved {
    group: usize,
    from: u32,
    to: u32,
    by: i32,
}

impl Moved {
    /// Copies the block with its keys rotated, by the scalar definition.
    fn rotate(
        &self,
        plan: &Plan,
        ropes: &[Option<&Rope>],
        length: u32,
        contents: &mut dyn CacheContents,
    ) -> Result<(), Error> {
        let group = &plan.kv[self.group];
        let one = group.block_bytes(plan.precision);
        let mut bytes = vec![0; group.bytes_per_block(plan.precision)];
        contents.read_blocks(self.group, &[self.from], &mut bytes)?;
        let moves: Vec<[u32; 2]> = (0..KV_BLOCK as u32).map(|slot| [slot, slot]).collect();
        for (layer, rope) in bytes.chunks_exact_mut(2 * one).zip(ropes) {
            let Some(rope) = rope else { continue };
            let cache = KvShape::of(group, plan.precision, 1);
            let call = KvShiftCall::new(cache, rope, self.by, moves.len() as u32);
            let (keys, values) = layer.split_at_mut(one);
            let (mut k, mut v) = (words(keys), words(values));
            scalar::kv_shift(&call, rope, length as usize, &mut k, &mut v, &moves);
            keys.chunks_exact_mut(4).zip(k).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        }
        Ok(contents.write_blocks(self.group, &[self.to], &bytes)?)
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Options, Precision, Session};

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
            let values: Vec<f32> = words(&bytes).into_iter().map(f32::from_bits).collect();
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
        for name in ["llama", "qwen2", "smollm3"] {
            let Some(path) = gyrus_testkit::data(&format!("tiny/{name}")) else { return };
            let options = Options {
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
                a.iter().zip(b).fold(0f32, |far, (a, b)| far.max((a - b).abs() / (1.0 + b.abs())))
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
                    assert!(distance < 2e-6, "{name}, block {block}, value {is_value}: {distance}");
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
