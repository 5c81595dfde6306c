use std::time::Duration;

use gyrus_kernels::Launch;
use gyrus_kernels::call::{RopeCall, RopeTuning};
use gyrus_kernels::grid::{RunError, Runner};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// Runs the op-test grid on a GPU.
#[derive(Debug)]
pub struct GpuRunner {
    gpu: Gpu,
    /// The tuning of kernels.
    pub tuning: RopeTuning,
}

impl GpuRunner {
    /// A runner on this device.
    pub fn new(gpu: Gpu) -> GpuRunner {
        GpuRunner { gpu, tuning: RopeTuning::default() }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The launch of a call on host buffers. Kernels do not check a block table, so this does.
    fn checked(&self, call: &RopeCall, buffers: &[Vec<u32>]) -> Result<Launch, RunError> {
        let launch = call.launch(self.gpu.rungs(), self.tuning)?;
        if let Some(at) = launch.slots().iter().position(|slot| slot.name == "block_table") {
            call.check_block_table(buffers.get(at).map_or(&[], Vec::as_slice))?;
        }
        Ok(launch)
    }

    /// Runs a launch on host buffers, in place.
    pub fn run_launch(&self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), GpuError> {
        let device = self.upload(buffers)?;
        let dispatch = self.gpu.bind(launch, &device.iter().collect::<Vec<_>>())?;
        self.gpu.run(&[&dispatch])?;
        for (buffer, device) in buffers.iter_mut().zip(&device) {
            *buffer = bytemuck::pod_collect_to_vec(&self.gpu.read(device)?);
        }
        Ok(())
    }

    fn upload(&self, buffers: &[Vec<u32>]) -> Result<Vec<Buffer>, GpuError> {
        buffers.iter().map(|words| self.gpu.upload(bytemuck::cast_slice(words))).collect()
    }
}

impl From<GpuError> for RunError {
    fn from(error: GpuError) -> RunError {
        match error {
            GpuError::Launch(error) => RunError::Launch(error),
            other => RunError::Backend(other.to_string()),
        }
    }
}

impl Runner for GpuRunner {
    fn name(&self) -> String {
        let rungs = self.gpu.rungs();
        let adapter = self.gpu.adapter();
        let without: Vec<&str> = [
            ("f16", rungs.f16),
            ("subgroups", rungs.subgroups),
            ("immediates", rungs.immediates),
            // Few adapters have these, so that their absence is reported only if they were turned off.
            ("cooperative matrices", rungs.cooperative || !adapter.rungs.cooperative),
            ("int8 cooperative matrices", rungs.int8_matrix || !adapter.rungs.int8_matrix),
        ]
        .iter()
        .filter(|(_, has)| !has)
        .map(|(name, _)| *name)
        .collect();
        let without =
            if without.is_empty() { String::new() } else { format!(", without {}", without.join(", ")) };
        format!("{} ({}{without})", adapter.name, adapter.backend)
    }

    fn fuses(&self) -> bool {
        true
    }

    fn run(&mut self, call: &RopeCall, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        let launch = self.checked(call, buffers)?;
        Ok(self.run_launch(&launch, buffers)?)
    }

    fn time(
        &mut self,
        call: &RopeCall,
        buffers: &mut [Vec<u32>],
        chain: u32,
        repetitions: usize,
    ) -> Result<Duration, RunError> {
        let launch = self.checked(call, buffers)?;
        let device = self.upload(buffers)?;
        let dispatch = self.gpu.bind(&launch, &device.iter().collect::<Vec<_>>())?;
        Ok(self.gpu.median_time(&[&dispatch], chain, repetitions)?)
    }
}
