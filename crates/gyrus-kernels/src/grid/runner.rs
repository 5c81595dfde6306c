use std::time::{Duration, Instant};

use crate::abi::{RopeCall, RopeTuning};
use crate::launch::{Launch, LaunchError};
use crate::scalar;
use crate::shader::Rungs;

use super::case::Case;

/// Something that runs launches.
pub trait Runner {
    /// Its name, for display.
    fn name(&self) -> String;

    /// The device features that launches for it may use.
    fn rungs(&self) -> Rungs {
        Rungs::NONE
    }

    /// The tuning of the published rope kernels.
    fn rope_tuning(&self) -> RopeTuning {
        RopeTuning::default()
    }

    /// Whether its device has the bindings and the workgroup memory of a case.
    fn fits(&self, _case: &Case) -> bool {
        true
    }

    /// Runs a launch on host buffers, in place.
    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError>;

    /// Checks a call of a published rope kernel and runs it.
    fn run_rope(&mut self, call: &RopeCall, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        self.run(&call.launch(self.rungs(), self.rope_tuning())?, buffers)
    }

    /// Whether the backend may contract a product and a sum to one rounding (fma) in one kernel and not in another, as
    /// shader compilers are free to do. If not, kernels with the same arithmetic give the same bits.
    fn fuses(&self) -> bool {
        false
    }

    /// The time of one run: the median of `repetitions` means of `chain` dependent runs, after a warm-up run.
    fn time(
        &mut self,
        launch: &Launch,
        buffers: &mut [Vec<u32>],
        chain: u32,
        repetitions: usize,
    ) -> Result<Duration, RunError> {
        if cfg!(all(target_family = "wasm", target_os = "unknown")) {
            return Err(RunError::Backend("this platform has no clock".into()));
        }
        self.run(launch, buffers)?;
        median(repetitions, || {
            let start = Instant::now();
            for _ in 0..chain {
                self.run(launch, buffers)?;
            }
            Ok(start.elapsed() / chain.max(1))
        })
    }
}

/// The twin of the published rope kernels as a runner.
#[derive(Debug, Default)]
pub struct Scalar;

impl Runner for Scalar {
    fn name(&self) -> String {
        "scalar".to_owned()
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        scalar::rope(RunError::rope(launch, "the scalar twin")?, buffers)?;
        Ok(())
    }
}

/// Why a runner did not run a launch.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The launch or its buffers are wrong in themselves.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The backend failed.
    #[error("{0}")]
    Backend(String),
}

impl RunError {
    /// The rope call of a launch, for a backend that runs no others.
    pub fn rope<'a>(launch: &'a Launch, backend: &str) -> Result<&'a RopeCall, RunError> {
        let refuse =
            || RunError::Backend(format!("{}: {backend} runs rope kernels only", launch.variant.name));
        launch.rope().ok_or_else(refuse)
    }
}

/// The median of as many measurements as are asked for, at least one.
pub fn median<E>(repetitions: usize, mut once: impl FnMut() -> Result<Duration, E>) -> Result<Duration, E> {
    let mut times = (0..repetitions.max(1)).map(|_| once()).collect::<Result<Vec<Duration>, E>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}
