//! Measures how fast a device reads and writes memory, for profiles.

use std::time::Duration;

use gyrus_kernels::Bandwidth;
use gyrus_kernels::call::{copy, read_sums};

use crate::adapter::AdapterKind;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;

/// The largest working set, larger than any device's caches, and the smallest.
const LARGEST: u64 = 1 << 30;
const SMALLEST: u64 = 1 << 20;

/// Bytes that a measurement reads and writes at least, so that its beginning and end do not count.
const MEASURED: u64 = 1 << 30;

/// Times each measurement is repeated; the fastest counts.
const REPETITIONS: usize = 7;

impl Gpu {
    /// The bandwidth of this device, measured once: for each working set, the faster of reading it and of copying one half
    /// of it to the other.
    pub(crate) fn bandwidth(&self) -> Result<&Bandwidth, GpuError> {
        if let Some(bandwidth) = self.bandwidth.get() {
            return Ok(bandwidth);
        }
        let measured = self.measure_bandwidth()?;
        Ok(self.bandwidth.get_or_init(|| measured))
    }

    fn measure_bandwidth(&self) -> Result<Bandwidth, GpuError> {
        // A software adapter is a thousand times slower, and its times mean little.
        let software = self.adapter().kind == AdapterKind::Software;
        let (largest, measured) = if software { (4 * SMALLEST, 0) } else { (LARGEST, MEASURED) };
        let mut largest = largest.min(self.largest_buffer() / SMALLEST * SMALLEST).max(SMALLEST);
        // The model may have left little memory.
        let (source, target) = loop {
            let pair = self.buffer(largest).and_then(|source| Ok((source, self.buffer(largest / 2)?)));
            match pair {
                Err(GpuError::OutOfMemory { .. }) if largest > SMALLEST => largest /= 2,
                pair => break pair?,
            }
        };
        let sizes = std::iter::successors(Some(largest), |size| Some(size / 2 / 16 * 16));
        let mut points = Vec::new();
        for size in sizes.take_while(|size| *size >= SMALLEST) {
            let reads = self.bind(&read_sums(self.rungs(), size)?, &[&source, &target])?;
            let copies = self.bind(&copy(self.rungs(), size / 2 / 16 * 16)?, &[&source, &target])?;
            let chain = (measured / size).clamp(1, 64) as u32;
            for dispatch in [&reads, &copies] {
                let time = self.least_time(dispatch, chain, points.is_empty())?;
                points.push((size, size as f64 / time.as_secs_f64()));
            }
        }
        Ok(Bandwidth::new(points))
    }

    /// The time of the fastest of several runs, on a device that is warm or warmed up first.
    fn least_time(&self, dispatch: &Dispatch, chain: u32, cold: bool) -> Result<Duration, GpuError> {
        let time = || Ok(self.time(&[dispatch], chain)? / chain.max(1));
        if cold {
            self.warm_up(|| time().map(drop))?;
        }
        (0..REPETITIONS).try_fold(Duration::MAX, |least, _| Ok(least.min(time()?)))
    }
}
