//! Calls of kernels: what to compute, checked and made a [`Launch`](crate::Launch), which a backend runs.

mod attend;
mod conv;
mod copy;
mod delta;
mod elementwise;
mod embed;
pub mod engine;
mod experts;
mod f16_rows;
mod flash;
mod kv;
mod matmul;
mod matvec;
mod matvec_int8_matrix;
mod matvec_sizes;
mod matvec_tuning;
mod norm;
mod product;
mod quantize;
mod select;
mod slot;
mod storage;
mod sum_tiles;
mod tiles;
mod unfold;

pub use crate::abi::{Cache, Freqs, RopeCall, RopeKernel, RopeTuning};
pub use attend::{AttendCall, SplitMode};
pub use conv::{Conv1dCall, ConvActivation};
pub use copy::{copy, read_sums};
pub use delta::{DeltaCall, decoding_run, delta_run, idle_run, record_pair};
pub use embed::EmbedCall;
pub use experts::{ExpertSumCall, ExpertTilesCall, Experts, RouteCall, add_gated};
pub use f16_rows::F16RowsCall;
pub use flash::{COOPERATIVE_MEMORY, FlashCall, FlashTuning, Tile, push_tiles};
pub use kv::{KvCopyCall, KvShiftCall};
pub use matmul::{MatMulCall, MatMulTuning};
pub use matvec::{Input, MatVecCall};
pub use matvec_int8_matrix::{INT8_MATRIX_INVOCATIONS, Results};
pub use matvec_sizes::MatVecSizes;
pub use matvec_tuning::MatVecTuning;
pub use norm::{Columns, Norm, NormCall};
pub use quantize::{QuantizeCall, Source, Target};
pub use select::{
    SELECT_EMITTED, SELECT_HELD, SELECT_LOGPROBS, SELECT_NOT_FINITE, SELECT_ROWS, SelectCall, SelectTuning,
    draws_from_all,
};
pub use storage::Storage;
pub use sum_tiles::SumTilesCall;
pub use tiles::{TileCall, TileShape, TileTuning};
pub use unfold::UnfoldCall;

use crate::launch::{Access, LaunchError, Slot};
use crate::op::Activation;
use crate::weights::{Plane, WeightLayout};

/// The preprocessor's name of a gate's function.
fn gate_name(gate: Option<Activation>) -> &'static str {
    match gate {
        None => "none",
        Some(Activation::Silu) => "silu",
        Some(Activation::Sigmoid) => "sigmoid",
        Some(Activation::GeluTanh) => "gelu_tanh",
        Some(Activation::Gelu) => "gelu",
        Some(Activation::SquaredRelu) => "squared_relu",
        Some(Activation::ClampedSwish) => "clamped_swish",
        Some(Activation::Relu) => "relu",
        Some(Activation::Tanh) => "tanh",
    }
}

/// The planes of a weight, bindings 0 to 2.
fn weight_slots(kernel: &str, weight: &WeightLayout) -> Result<Vec<Slot>, LaunchError> {
    let slot = |plane: Plane| {
        let bytes = weight.bytes(plane);
        if bytes / 4 > u64::from(u32::MAX) {
            let kernel = kernel.to_owned();
            return Err(LaunchError::Large { kernel, what: "words of a weight", count: bytes / 4 });
        }
        let binding = Plane::ALL.iter().position(|p| *p == plane).unwrap_or(0) as u32;
        Ok(Slot { name: plane.name(), binding, access: Access::Read, bytes })
    };
    weight.planes().map(slot).collect()
}
