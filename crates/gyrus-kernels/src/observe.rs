//! Observation of a batch: the result of each op as the backend has it, to find where two backends part.

use crate::batch::Batch;
use crate::call::Storage;
use crate::kv::KvLayer;
use crate::op::{BufferId, Op};
use crate::plan::Plan;

/// A result of an op that can be observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// The buffer that it writes.
    Buffer(BufferId),
    /// The rotated queries of an [`Op::RopeWrite`], `[rows, heads·head_dim]`.
    Queries,
    /// The keys of the batch's rows, read back from the cache of this layer, `[rows, kv_heads·head_dim]`: where the op
    /// writes them.
    Keys(KvLayer),
    /// The values of the batch's rows, likewise.
    Values(KvLayer),
}

/// A result of an op of the forward pass, as a backend shows it.
#[derive(Debug)]
pub struct Observation<'a> {
    /// Index into [`Plan::forward`].
    pub op: usize,
    /// Which of the op's results.
    pub result: OpResult,
    /// The values.
    pub seen: Seen<'a>,
    /// How far the form in which the backend holds the values may be from f32, relative to the largest of a row: 0 for
    /// f32, [`F16_ROUNDING`], [`BF16_ROUNDING`], [`INT8_ROUNDING`].
    pub rounding: f32,
}

/// Half a unit in the last place of f16.
pub const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// Half a unit in the last place of bf16.
pub const BF16_ROUNDING: f32 = 1.0 / 256.0;
/// Half a step of an int8 block, whose largest value is 127 steps.
pub const INT8_ROUNDING: f32 = 0.5 / 127.0;

/// The rounding of elements of a cache.
pub fn rounding(storage: Storage) -> f32 {
    match storage {
        Storage::F32 => 0.0,
        Storage::F16 => F16_ROUNDING,
        Storage::Bf16 => BF16_ROUNDING,
    }
}

/// What can be seen of a result.
#[derive(Debug)]
pub enum Seen<'a> {
    /// All values, `[rows, width]`.
    Values(&'a mut [f32]),
    /// The backend never has this result in f32, for this reason.
    Hidden(&'a str),
}

/// Gets every result of every op, in the order of [`Plan::results`]. It may change values and then returns `true`:
/// backends that compute on the host continue with the changed values, others ignore them.
pub type Observer<'o> = dyn FnMut(Observation<'_>) -> bool + 'o;

impl Op {
    /// Its results that can be observed.
    pub fn results(&self) -> impl Iterator<Item = OpResult> + use<> {
        let results = match *self {
            Op::RopeWrite { kv, write: true, heads: 0, .. } => {
                [None, Some(OpResult::Keys(kv)), Some(OpResult::Values(kv))]
            }
            Op::RopeWrite { kv, write: true, .. } => {
                [Some(OpResult::Queries), Some(OpResult::Keys(kv)), Some(OpResult::Values(kv))]
            }
            Op::RopeWrite { write: false, .. } => [Some(OpResult::Queries), None, None],
            _ => [Some(OpResult::Buffer(self.writes())), None, None],
        };
        results.into_iter().flatten()
    }
}

impl Plan {
    /// All results of the forward pass in the order of observation, each with the index of its op.
    pub fn results(&self) -> impl Iterator<Item = (usize, OpResult)> + '_ {
        self.forward.iter().enumerate().flat_map(|(op, it)| it.results().map(move |result| (op, result)))
    }

    /// Elements of a row of an op's result.
    pub fn result_width(&self, op: &Op, result: OpResult) -> usize {
        match (result, op) {
            (OpResult::Buffer(id), _) => self.buffer(id).width,
            (OpResult::Keys(layer) | OpResult::Values(layer), _) => self.kv_group(layer).row(),
            (OpResult::Queries, Op::RopeWrite { heads, kv, .. }) => {
                usize::from(*heads) * self.kv_group(*kv).head_dim
            }
            // No other op has queries.
            (OpResult::Queries, _) => 0,
        }
    }

    /// Rows of a result.
    pub fn result_rows(&self, result: OpResult, batch: &Batch<'_>) -> usize {
        match result {
            OpResult::Buffer(id) => self.buffer(id).rows.count(batch),
            _ => batch.rows(),
        }
    }
}

/// A backend that computes op by op on the host.
pub trait HostState {
    /// A scratch buffer, `[rows, width]` of the batch.
    fn buffer(&mut self, id: BufferId) -> &mut [f32];

    /// Reads keys and values of the batch's rows, each `[rows, kv_heads·head_dim]`, by the block tables of the layer's KV
    /// group.
    fn read_cache(&self, layer: KvLayer, keys: &mut [f32], values: &mut [f32]);

    /// Overwrites them.
    fn write_cache(&mut self, layer: KvLayer, keys: &[f32], values: &[f32]);

    /// The element type of the cache.
    fn cache_storage(&self) -> Storage;
}

/// Shows the results of an op that has just run.
pub fn show(plan: &Plan, op: usize, rows: usize, state: &mut dyn HostState, observer: &mut Observer<'_>) {
    let mut see = |result, values: &mut [f32], rounding| {
        observer(Observation { op, result, seen: Seen::Values(values), rounding })
    };
    match plan.forward[op] {
        ref op @ Op::RopeWrite { qkv, kv, write, .. } => {
            let (stride, width) = (plan.buffer(qkv).width, plan.result_width(op, OpResult::Queries));
            if width > 0 {
                let buffer = state.buffer(qkv);
                let mut queries = columns(buffer, stride, width);
                if see(OpResult::Queries, &mut queries, 0.0) {
                    let rows = buffer.chunks_exact_mut(stride).zip(queries.chunks_exact(width));
                    rows.for_each(|(row, queries)| row[..width].copy_from_slice(queries));
                }
            }
            if !write {
                return;
            }
            let mut keys = vec![0.0; rows * plan.kv_group(kv).row()];
            let mut values = keys.clone();
            state.read_cache(kv, &mut keys, &mut values);
            let rounding = rounding(state.cache_storage());
            let changed = see(OpResult::Keys(kv), &mut keys, rounding);
            if see(OpResult::Values(kv), &mut values, rounding) || changed {
                state.write_cache(kv, &keys, &values);
            }
        }
        ref other => {
            for result in other.results() {
                if let OpResult::Buffer(id) = result {
                    see(result, state.buffer(id), 0.0);
                }
            }
        }
    }
}

/// The first `width` elements of each row of `stride` elements.
pub fn columns(rows: &[f32], stride: usize, width: usize) -> Vec<f32> {
    rows.chunks_exact(stride).flat_map(|row| &row[..width]).copied().collect()
}
