//! What an observer is shown of a batch on the CPU.

use gyrus_kernels::call::Storage;
use gyrus_kernels::observe::HostState;
use gyrus_kernels::{Batch, BufferId, KvLayer};

use super::{Prepared, State};
use crate::kv::{KvRow, KvStore, Strided};

/// The state after an op.
pub(super) struct Observable<'a> {
    pub(super) model: &'a Prepared,
    pub(super) batch: &'a Batch<'a>,
    /// The places of the batch's rows in each KV group.
    pub(super) rows: &'a [&'a [KvRow<'a>]],
    /// One per KV group.
    pub(super) caches: &'a mut [KvStore],
    pub(super) state: &'a mut State,
}

impl HostState for Observable<'_> {
    fn buffer(&mut self, id: BufferId) -> &mut [f32] {
        self.model.target(self.state, id, self.batch).0
    }

    fn read_cache(&self, KvLayer { group, index }: KvLayer, keys: &mut [f32], values: &mut [f32]) {
        let (cache, places) = (&self.caches[usize::from(group)], self.rows[usize::from(group)]);
        let n = cache.group().row();
        let rows = keys.chunks_exact_mut(n).zip(values.chunks_exact_mut(n));
        for (row, (keys, values)) in places.iter().zip(rows) {
            cache.read_row(usize::from(index), *row, keys, values);
        }
    }

    fn write_cache(&mut self, KvLayer { group, index }: KvLayer, keys: &[f32], values: &[f32]) {
        let (cache, rows) = (&mut self.caches[usize::from(group)], self.rows[usize::from(group)]);
        let stride = cache.group().row();
        let (keys, values) = (Strided { data: keys, stride }, Strided { data: values, stride });
        cache.write_rows(&self.model.pool, usize::from(index), rows, keys, values);
    }

    fn cache_storage(&self) -> Storage {
        self.model.plan.precision.kv_storage()
    }
}
