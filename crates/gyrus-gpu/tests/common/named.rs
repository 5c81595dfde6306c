//! Launches on buffers by name.

use std::collections::BTreeMap;

use gyrus_gpu::GpuRunner;
use gyrus_kernels::Launch;

pub(crate) type Buffers = BTreeMap<&'static str, Vec<u32>>;

/// Runs a launch on the buffers that its slots name.
pub(crate) fn run(runner: &GpuRunner, launch: &Launch, buffers: &mut Buffers) {
    let take =
        |name: &str| std::mem::take(buffers.get_mut(name).unwrap_or_else(|| panic!("no buffer '{name}'")));
    let mut taken: Vec<Vec<u32>> = launch.slots().iter().map(|slot| slot.name).map(take).collect();
    runner.run_launch(launch, &mut taken).unwrap();
    for (slot, words) in launch.slots().iter().zip(taken) {
        buffers.insert(slot.name, words);
    }
}
