//! A self-test of int8 cooperative matrices: they must give the same bits as mat-vecs without them.
//!
//! They round at the same places. But a driver may or may not contract a product and a sum to one fused multiply-add, and
//! a sequence that is decoded in a batch must get the tokens that it gets alone. So a device is tested with every weight
//! type, with and without splits, with every kind of results, and with the fewest and the most rows. It is tested once
//! per adapter, driver and text of the kernels; the outcome is recorded beside the pipeline cache. If it fails, int8
//! cooperative matrices are not used.

mod case;
mod record;

use gyrus_kernels::shader::{FILES, Rungs};

use self::case::{Bench, Case, ROWS};
use self::record::{Outcome, recorded};
use crate::cache_file::{adapter_file, checksum};
use crate::device::{Gpu, Options};
use crate::error::GpuError;

/// The extension of a file with an outcome.
const EXTENSION: &str = "selftest";

impl Gpu {
    /// Whether products by int8 cooperative matrices have the bits of the mat-vec, by the record or by a test. An error is
    /// a test that was not passed.
    pub(crate) fn passes_int8_self_test(&self, options: &Options) -> bool {
        let info = self.adapter().inner.get_info();
        let path = options.pipelines.as_ref().map(|folder| folder.join(adapter_file(&info, EXTENSION)));
        let outcome = self
            .int8_self_test_key()
            .and_then(|key| recorded(path.as_deref(), key, || self.compare_int8_products()));
        outcome == Ok(Outcome::Passed)
    }

    /// Runs the self-test of int8 cooperative matrices, whatever is recorded. The error names the first product that does
    /// not have the bits of the mat-vec, or says that the device was opened without int8 cooperative matrices.
    pub fn int8_self_test(&self) -> Result<(), GpuError> {
        // Rewritten SPIR-V needs this feature, whether or not the test was passed before.
        if !self.device.features().contains(wgpu::Features::PASSTHROUGH_SHADERS) {
            let reason = "it was opened without int8 cooperative matrices".to_owned();
            return Err(GpuError::Refused { reason });
        }
        match self.compare_int8_products()? {
            Outcome::Passed => Ok(()),
            Outcome::Failed(product) => {
                let fault = format!("int8 cooperative matrices and mat-vecs differ: {product}");
                Err(GpuError::internal(fault))
            }
        }
    }

    fn compare_int8_products(&self) -> Result<Outcome, GpuError> {
        let rungs = self.int8_test_rungs();
        let mut launches = Vec::new();
        for case in Case::all() {
            launches.extend(case.launches(rungs)?);
        }
        self.compile(&launches)?;
        for (seed, case) in Case::all().enumerate() {
            for rows in ROWS {
                let bench = &mut Bench::new(self, &case, rows, seed as u64)?;
                let expected = case.by_vectors(bench, rungs)?;
                if case.by_matrices(bench, rungs)? != expected {
                    return Ok(Outcome::Failed(format!("{case}, {rows} rows")));
                }
            }
        }
        Ok(Outcome::Passed)
    }

    /// A number that stands for the adapter, its driver and all that determines the kernels' code.
    fn int8_self_test_key(&self) -> Result<u64, GpuError> {
        let info = self.adapter().inner.get_info();
        let rungs = self.int8_test_rungs();
        let mut text = format!(
            "{} {} {} {} {rungs:?} {} {}",
            info.name,
            info.driver,
            info.driver_info,
            info.backend,
            self.checked,
            env!("CARGO_PKG_VERSION"),
        );
        // How SPIR-V is rewritten.
        text.push_str(include_str!("../spirv.rs"));
        for case in Case::all() {
            for launch in case.launches(rungs)? {
                text.push_str(&launch.variant().key());
            }
        }
        // All kernels: preprocessing those of the test takes longer than opening the device.
        for (_, file) in FILES {
            text.push_str(file);
        }
        Ok(checksum(text.as_bytes()))
    }

    /// The device's rungs before the test has turned this one off.
    fn int8_test_rungs(&self) -> Rungs {
        Rungs { int8_matrix: true, ..self.rungs() }
    }
}
