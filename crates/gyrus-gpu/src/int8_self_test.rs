//! A self-test of int8 cooperative matrices: they must give the same bits as mat-vecs without them.
//!
//! They round at the same places. But a driver may or may not contract a product and a sum to one fused multiply-add, and
//! a sequence that is decoded in a batch must get the tokens that it gets alone. So a device is tested once, when it is
//! opened. If it fails, int8 cooperative matrices are not used.

use gyrus_kernels::call::{Input, MatVecCall, MatVecTuning, Results};
use gyrus_kernels::{Launch, Plane, WeightLayout, scalar};
use gyrus_tensor::DType;

use crate::device::Gpu;
use crate::error::GpuError;

/// One tile for each workgroup that a large device runs at once.
const COLUMNS: usize = 2064;
/// Two blocks for each lane, so that every operation that can round does.
const DEPTH: usize = 2048;
const ROWS: usize = 16;

impl Gpu {
    /// Whether a product by int8 cooperative matrices has the bits of the mat-vec.
    pub(crate) fn passes_int8_self_test(&self) -> bool {
        let product = || -> Result<bool, GpuError> {
            let weight = WeightLayout::new(DType::Q4_0, COLUMNS, DEPTH).map_err(internal)?;
            let call = MatVecCall {
                input: Input::Int8 { norm: false },
                tuning: MatVecTuning { workgroup: 256, columns: 2, splits: 1, passes: 1 },
                ..MatVecCall::new(weight, ROWS as u32)
            };
            let inputs = Inputs::new(&weight);
            let by_int8_matrix = call.launch_int8_matrix(self.rungs(), Results::F32)?;
            Ok(inputs.product(self, &call.launch(self.rungs())?)? == inputs.product(self, &by_int8_matrix)?)
        };
        product().unwrap_or(false)
    }
}

fn internal(error: impl std::fmt::Display) -> GpuError {
    GpuError::internal(error.to_string())
}

/// Contents of the buffers that a product reads, by name.
struct Inputs(Vec<(&'static str, Vec<u32>)>);

impl Inputs {
    fn new(weight: &WeightLayout) -> Inputs {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.rotate_left(13)
        };
        let words = |bytes: u64| 0..bytes / 4;
        let quants = words(weight.bytes(Plane::Quants)).map(|_| noise()).collect();
        // f16 from 2^-7 to 2^-3.
        let scales =
            words(weight.bytes(Plane::Scales)).map(|_| noise() & 0x0fff_0fff | 0x2000_2000).collect();
        let x: Vec<f32> = (0..ROWS * DEPTH).map(|_| noise() as i32 as f32 / i32::MAX as f32).collect();
        let x = scalar::quantize_rows(ROWS, DEPTH, DEPTH, &x);
        Inputs(vec![("quants", quants), ("scales", scales), ("x", x.q), ("x_scales", x.scales)])
    }

    fn product(&self, gpu: &Gpu, launch: &Launch) -> Result<Vec<u8>, GpuError> {
        let buffers = launch.slots().iter().map(|slot| {
            let given = self.0.iter().find(|(name, _)| *name == slot.name);
            given.map_or_else(|| gpu.buffer(slot.bytes), |(_, words)| gpu.upload(bytemuck::cast_slice(words)))
        });
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        gpu.run(&[&gpu.bind(launch, &buffers.iter().collect::<Vec<_>>())?])?;
        let y = launch.slots().iter().position(|slot| slot.name == "y");
        y.map_or(Ok(Vec::new()), |y| gpu.read(&buffers[y]))
    }
}
