//! A backend of a small model, for tests of slots.

use std::sync::Arc;

use gyrus::{Model, Options, Precision};
use gyrus_cpu::CpuBackend;
use gyrus_kernels::{KV_BLOCK, KvSize};

use crate::short_tales;

/// Blocks of the cache: enough for all slots.
pub(crate) const BLOCKS: usize = 128 * 6;

pub(crate) fn cpu(precision: Precision, window: u32, threads: usize) -> Option<CpuBackend> {
    let options = Options { precision, ..Options::default() };
    let plan = Model::load(short_tales::checkpoint(4, window)?, &options).unwrap().plan().clone();
    let checkpoint = short_tales::checkpoint(4, window)?;
    let kv = KvSize::full(&plan.kv, BLOCKS * KV_BLOCK);
    let backend = CpuBackend::new(plan, &kv, threads, |spec| {
        Arc::new(spec.data(|name| Some(checkpoint.tensor(name)?.data)).unwrap().into_owned())
    });
    Some(backend.unwrap())
}
