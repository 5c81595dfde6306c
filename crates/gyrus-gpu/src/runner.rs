use std::time::Duration;

use gyrus_kernels::Launch;
use gyrus_kernels::call::RopeTuning;
use gyrus_kernels::grid::{Case, RunError, Runner, Step};
use gyrus_kernels::shader::Rungs;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// Runs the op-test grid on a GPU.
#[derive(Debug)]
pub struct GpuRunner {
    gpu: Gpu,
    /// The tuning of the published rope kernels.
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

    /// Gives the device back.
    pub fn into_gpu(self) -> Gpu {
        self.gpu
    }

    /// Checks the block table of a published rope kernel, which the kernel does not.
    fn check(launch: &Launch, buffers: &[Vec<u32>]) -> Result<(), RunError> {
        let table = launch.slots().iter().position(|slot| slot.name == "block_table");
        if let (Some(call), Some(at)) = (launch.rope(), table) {
            call.check_block_table(buffers.get(at).map_or(&[], Vec::as_slice))?;
        }
        Ok(())
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

    fn rungs(&self) -> Rungs {
        self.gpu.rungs()
    }

    fn rope_tuning(&self) -> RopeTuning {
        self.tuning
    }

    fn fits(&self, case: &Case) -> bool {
        let device = self.gpu.capabilities();
        let bound = case.steps.iter().map(|step| step.launch.slots().len()).max().unwrap_or(0);
        // Devices with cooperative matrices have those of 16×16; those of 8×8 are Metal's.
        let is_for_metal =
            |step: &Step| step.launch.variant().constants.contains(&("MATRIX", "8".to_owned()));
        bound <= device.storage_buffers
            && case.workgroup_bytes <= device.workgroup_memory
            && !case.steps.iter().any(is_for_metal)
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        Self::check(launch, buffers)?;
        Ok(self.run_launch(launch, buffers)?)
    }

    fn time(
        &mut self,
        launch: &Launch,
        buffers: &mut [Vec<u32>],
        chain: u32,
        repetitions: usize,
    ) -> Result<Duration, RunError> {
        Self::check(launch, buffers)?;
        let device = self.upload(buffers)?;
        let dispatch = self.gpu.bind(launch, &device.iter().collect::<Vec<_>>())?;
        Ok(self.gpu.median_time(&[&dispatch], chain, repetitions)?)
    }
}
