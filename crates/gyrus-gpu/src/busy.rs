//! How long the GPU is busy: timestamps at the beginning and the end of each submission.
//!
//! They are written only while [`Gpu::start_busy`] is in effect, so that other runs do not pay for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wgpu::{
    BufferUsages, CommandEncoder, ComputePass, ComputePassDescriptor, ComputePassTimestampWrites, QuerySet,
};

use crate::buffer::Buffer;
use crate::device::{Gpu, lock};
use crate::error::GpuError;

/// Timestamps of submissions.
#[derive(Debug, Default)]
pub(crate) struct BusyMeter {
    on: AtomicBool,
    /// Beginnings and ends of submissions that were waited for, in ticks of the device's clock.
    intervals: Mutex<Vec<[u64; 2]>>,
    /// Buffers with the timestamps of passes that wgpu has submitted.
    unread: Mutex<Vec<Buffer>>,
}

impl BusyMeter {
    /// Whether submissions write timestamps.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds a submission that has completed.
    pub(crate) fn add(&self, interval: [u64; 2]) {
        lock(&self.intervals).push(interval);
    }
}

impl Gpu {
    /// Begins to measure how long submissions take. `false`: the device has no timestamps.
    pub(crate) fn start_busy(&self) -> bool {
        lock(&self.busy.intervals).clear();
        lock(&self.busy.unread).clear();
        self.busy.on.store(self.has_timestamps(), Ordering::Relaxed);
        self.has_timestamps()
    }

    /// Ends the measurement: the time since [`start_busy`](Gpu::start_busy) in which at least one submission that was
    /// waited for ran. `None`: nothing was measured.
    pub(crate) fn end_busy(&self) -> Result<Option<Duration>, GpuError> {
        if !self.busy.on.swap(false, Ordering::Relaxed) {
            return Ok(None);
        }
        let mut intervals = std::mem::take(&mut *lock(&self.busy.intervals));
        let unread = std::mem::take(&mut *lock(&self.busy.unread));
        for buffer in &unread {
            intervals.push(bytemuck::pod_read_unaligned(&self.read(buffer)?));
        }
        Ok((!intervals.is_empty()).then(|| self.duration(covered(&mut intervals))))
    }

    /// A duration in ticks of the device's clock.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        Duration::from_secs_f64(ticks as f64 * f64::from(self.queue.get_timestamp_period()) * 1e-9)
    }

    /// Begins a compute pass, with timestamps if they are measured.
    pub(crate) fn begin_pass<'e>(
        &self,
        encoder: &'e mut CommandEncoder,
    ) -> (ComputePass<'e>, Option<QuerySet>) {
        let queries = self.busy.is_on().then(|| self.queries());
        let timestamp_writes = queries.as_ref().map(|query_set| ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        });
        let pass = encoder.begin_compute_pass(&ComputePassDescriptor { label: None, timestamp_writes });
        (pass, queries)
    }

    /// Notes the timestamps of a pass that has ended and is submitted next.
    pub(crate) fn end_pass(
        &self,
        encoder: &mut CommandEncoder,
        queries: Option<QuerySet>,
    ) -> Result<(), GpuError> {
        let Some(queries) = queries else { return Ok(()) };
        lock(&self.busy.unread).push(self.resolve(encoder, &queries)?);
        Ok(())
    }

    /// Records a copy of two timestamps to a buffer.
    pub(crate) fn resolve(
        &self,
        encoder: &mut CommandEncoder,
        queries: &QuerySet,
    ) -> Result<Buffer, GpuError> {
        let resolved = self.create(16, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC)?;
        encoder.resolve_query_set(queries, 0..2, &resolved.inner, 0);
        Ok(resolved)
    }
}

/// Ticks that are in at least one interval. Submissions may overlap: one begins while the one before ends.
fn covered(intervals: &mut [[u64; 2]]) -> u64 {
    intervals.sort_unstable();
    let (mut ticks, mut until) = (0, 0);
    for [begin, end] in intervals {
        let begin = (*begin).max(until);
        until = until.max(*end);
        ticks += until.saturating_sub(begin);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_submissions_count_once() {
        assert_eq!(covered(&mut []), 0);
        assert_eq!(covered(&mut [[5, 9]]), 4);
        assert_eq!(covered(&mut [[20, 30], [5, 9]]), 14, "in any order");
        assert_eq!(covered(&mut [[5, 9], [7, 12], [12, 13]]), 8, "overlapping and adjacent");
        assert_eq!(covered(&mut [[5, 20], [7, 9], [15, 22]]), 17, "one within another");
        assert_eq!(covered(&mut [[9, 5]]), 0, "a clock that went backwards");
    }
}
