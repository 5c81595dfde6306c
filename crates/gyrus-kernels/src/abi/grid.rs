//! The op-test grid of the published kernels: cases as data, run on every backend, judged by the scalar twin.

use std::time::{Duration, Instant};

use super::{Freqs, RopeCall, RopeKernel};
use crate::call::Storage;
use crate::grid::{RunError, median};
use crate::scalar::{self, element};
use crate::shader::Rungs;

/// A call and the buffers it runs on, as 32-bit words in the order of its slots.
#[derive(Debug, Clone)]
pub struct Case {
    /// The call.
    pub call: RopeCall,
    /// The buffers, longer than needed to detect writes beyond the end.
    pub buffers: Vec<Vec<u32>>,
}

/// Something that runs calls.
pub trait Runner {
    /// Its name, for display.
    fn name(&self) -> String;

    /// Runs a call on host buffers, in place.
    fn run(&mut self, call: &RopeCall, buffers: &mut [Vec<u32>]) -> Result<(), RunError>;

    /// Whether the backend may contract a product and a sum to one rounding (fma) in one kernel and not in another, as
    /// shader compilers are free to do. If not, kernels with the same arithmetic give the same bits.
    fn fuses(&self) -> bool {
        false
    }

    /// The time of one run: the median of `repetitions` means of `chain` dependent runs, after a warm-up run.
    fn time(
        &mut self,
        call: &RopeCall,
        buffers: &mut [Vec<u32>],
        chain: u32,
        repetitions: usize,
    ) -> Result<Duration, RunError> {
        if cfg!(all(target_family = "wasm", target_os = "unknown")) {
            return Err(RunError::Backend("this platform has no clock".into()));
        }
        self.run(call, buffers)?;
        median(repetitions, || {
            let start = Instant::now();
            for _ in 0..chain {
                self.run(call, buffers)?;
            }
            Ok(start.elapsed() / chain.max(1))
        })
    }
}

/// The twin itself as a runner.
#[derive(Debug, Default)]
pub struct Scalar;

impl Runner for Scalar {
    fn name(&self) -> String {
        "scalar".to_owned()
    }

    fn run(&mut self, call: &RopeCall, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        scalar::rope(call, buffers)?;
        Ok(())
    }
}

/// Runs a case and compares every word with the twin's; an error says where they differ.
pub fn check(runner: &mut dyn Runner, case: &Case) -> Result<(), String> {
    let name = format!("{} on {}: {:?}", case.call.name(), runner.name(), case.call);
    let mut expected = case.buffers.clone();
    let written = scalar::rope(&case.call, &mut expected).map_err(|error| format!("{name}: {error}"))?;
    let mut found = case.buffers.clone();
    runner.run(&case.call, &mut found).map_err(|error| format!("{name}: {error}"))?;
    let launch = case.call.launch(Rungs::NONE, Default::default()).map_err(|error| error.to_string())?;
    for (buffer, slot) in launch.slots.iter().enumerate() {
        for (at, magnitude) in written[buffer].iter().enumerate() {
            let get = |words: &[u32]| element(words, case.call.storage, at);
            let (e, f) = (get(&expected[buffer]), get(&found[buffer]));
            let fits = match magnitude {
                None => {
                    bits(&expected[buffer], case.call.storage, at)
                        == bits(&found[buffer], case.call.storage, at)
                }
                // Both sides may overflow to infinity.
                Some(magnitude) => e == f || (e - f).abs() <= allowed(&case.call, e, *magnitude),
            };
            if !fits {
                let canary = if magnitude.is_none() { " (which is not to be written)" } else { "" };
                return Err(format!("{name}: {}[{at}]{canary} is {f}, expected {e}", slot.name));
            }
        }
    }
    Ok(())
}

fn bits(words: &[u32], storage: Storage, at: usize) -> u32 {
    match storage {
        Storage::F32 => words[at],
        _ => (words[at / 2] >> (16 * (at % 2))) & 0xffff,
    }
}

/// The tolerance: one ulp of the storage, or the f32 rounding error of the pair; more only if frequencies are in f32.
fn allowed(call: &RopeCall, expected: f64, magnitude: f64) -> f64 {
    let digits = match call.storage {
        Storage::F32 => 23,
        Storage::F16 => 10,
        Storage::Bf16 => 7,
    };
    let least = if call.storage == Storage::F16 { -14 } else { -126 };
    let exponent = if expected == 0.0 { least } else { (expected.abs().log2().floor() as i32).max(least) };
    let ulp = 2f64.powi(exponent - digits);
    let (last, scale) = match call.kernel {
        RopeKernel::InPlace { params: p, .. } => (f64::from(p.pos_offset) + f64::from(p.seq_len), 1.0),
        RopeKernel::QkvWrite { params: p, .. } | RopeKernel::HeadNorm { params: p, .. } => {
            (f64::from(p.pos) + 1.0, p.freq_scale)
        }
        RopeKernel::BatchKvWrite { params: p, .. } => {
            (f64::from(p.pos) + f64::from(p.k_elem_offset), p.freq_scale)
        }
        RopeKernel::X { dims, .. } => (f64::from(dims.pos_offset) + f64::from(dims.seq_len), 1.0),
        RopeKernel::Op { .. } => (0.0, 1.0),
    };
    // Position ids are below 100,000.
    let angle = if call.positions > 0 { 1e5 } else { last } * f64::from(scale);
    let frequency_error = match (call.kernel, call.freqs) {
        (RopeKernel::Op { .. }, _) | (_, Freqs::Turns) => 0.0,
        (_, Freqs::Divisors) => 3e-7 * angle,
        (_, Freqs::Inline) => 4e-6 * angle,
    };
    // Cosine and sine are within 1e-7, products and sums are rounded to f32; a norm adds its own error.
    let rotation = match (call.kernel, call.storage) {
        (RopeKernel::HeadNorm { .. }, _) => 2f64.powi(-20),
        (_, Storage::F32) => 2f64.powi(-21),
        _ => 2f64.powi(-22),
    };
    ulp.max(magnitude * (rotation + frequency_error))
}
