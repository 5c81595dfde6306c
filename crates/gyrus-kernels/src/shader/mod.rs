//! The WGSL kernels: their sources, and their variants.
//!
//! One file a kernel under `wgsl/`, with bindings, shapes, grid and numerics in its head comment; shared code is under
//! `wgsl/lib`, the published kernels under `wgsl/abi`. The [preprocessor](preprocess) selects structure, override
//! constants set numbers.

mod condition;
mod preprocess;

pub use preprocess::{PreprocessError, Source, preprocess};

use crate::params;

macro_rules! files {
    ($($path:literal)*) => { &[$(($path, include_str!(concat!("../../wgsl/", $path))),)*] };
}

/// The WGSL files by path.
pub const FILES: &[(&str, &str)] = files![
    "abi/head_norm_rope_neox_kv_write.wgsl"
    "abi/lib/cache.wgsl"
    "abi/lib/frequencies.wgsl"
    "abi/lib/rope.wgsl"
    "abi/lib/rope_in_place.wgsl"
    "abi/lib/rope_op.wgsl"
    "abi/lib/rope_qkv.wgsl"
    "abi/lib/rope_row.wgsl"
    "abi/lib/rope_rows.wgsl"
    "abi/lib/rope_staged.wgsl"
    "abi/lib/rope_words.wgsl"
    "abi/lib/rope_x.wgsl"
    "abi/rope.wgsl"
    "abi/rope_batch_kv_write.wgsl"
    "abi/rope_bwd.wgsl"
    "abi/rope_fwd.wgsl"
    "abi/rope_k.wgsl"
    "abi/rope_k_backward.wgsl"
    "abi/rope_neox.wgsl"
    "abi/rope_neox_batch_kv_write.wgsl"
    "abi/rope_neox_qkv_write.wgsl"
    "abi/rope_q.wgsl"
    "abi/rope_q_backward.wgsl"
    "abi/rope_qkv_write.wgsl"
    "conv1d.wgsl"
    "copy.wgsl"
    "embed.wgsl"
    "engine/activate.wgsl"
    "engine/add.wgsl"
    "engine/add_gated.wgsl"
    "engine/attend.wgsl"
    "engine/attend_gathered.wgsl"
    "engine/attention.wgsl"
    "engine/expert_sum.wgsl"
    "engine/expert_tiles.wgsl"
    "engine/flash.wgsl"
    "engine/flash_cooperative.wgsl"
    "engine/gate.wgsl"
    "engine/copy_record.wgsl"
    "engine/delta_conv.wgsl"
    "engine/delta_rule.wgsl"
    "engine/gate_by.wgsl"
    "engine/gather.wgsl"
    "engine/rope_write.wgsl"
    "engine/route.wgsl"
    "engine/scale.wgsl"
    "engine/unfold.wgsl"
    "f16_rows.wgsl"
    "kv_copy.wgsl"
    "kv_shift.wgsl"
    "lib/activation.wgsl"
    "lib/attend.wgsl"
    "lib/attend_begin.wgsl"
    "lib/attend_tiles.wgsl"
    "lib/emulated_fragments.wgsl"
    "lib/expert_rows.wgsl"
    "lib/experts.wgsl"
    "lib/f16_range.wgsl"
    "lib/int8.wgsl"
    "lib/int8_rows.wgsl"
    "lib/invocation.wgsl"
    "lib/kv.wgsl"
    "lib/kv_rows.wgsl"
    "lib/delta_runs.wgsl"
    "lib/lanes.wgsl"
    "lib/lanes_subgroup32.wgsl"
    "lib/merge.wgsl"
    "lib/outputs.wgsl"
    "lib/params.wgsl"
    "lib/reduce_many.wgsl"
    "lib/rms.wgsl"
    "lib/rotate_head.wgsl"
    "lib/rotate_pairs.wgsl"
    "lib/splits.wgsl"
    "lib/sum.wgsl"
    "lib/tiles_cooperative.wgsl"
    "lib/tiles_plain.wgsl"
    "lib/turns.wgsl"
    "lib/u64.wgsl"
    "lib/weights.wgsl"
    "lib/weights16.wgsl"
    "lib/weights_blocks.wgsl"
    "lib/weights_plain.wgsl"
    "lib/weights_scales.wgsl"
    "lib/words.wgsl"
    "matmul.wgsl"
    "matvec.wgsl"
    "matvec_int8_matrix.wgsl"
    "norm.wgsl"
    "quantize.wgsl"
    "read_sums.wgsl"
    "select/add.wgsl"
    "select/advance.wgsl"
    "select/argmax.wgsl"
    "select/binned.wgsl"
    "select/bins.wgsl"
    "select/block.wgsl"
    "select/candidates.wgsl"
    "select/count.wgsl"
    "select/cuts.wgsl"
    "select/draw.wgsl"
    "select/gather.wgsl"
    "select/gathered.wgsl"
    "select/histogram.wgsl"
    "select/keep.wgsl"
    "select/keys.wgsl"
    "select/layout.wgsl"
    "select/load.wgsl"
    "select/logprobs.wgsl"
    "select/mass.wgsl"
    "select/radix.wgsl"
    "select/random.wgsl"
    "select/refine.wgsl"
    "select/row.wgsl"
    "select/scan.wgsl"
    "select/slot.wgsl"
    "select/survey.wgsl"
    "select/take.wgsl"
    "sum_tiles.wgsl"
    "tiles.wgsl"
];

/// The text of a kernel file, or of a parameter struct as `params/NAME`.
fn file(path: &str) -> Option<String> {
    match path.strip_prefix("params/") {
        Some(name) => params::wgsl(name),
        None => FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()),
    }
}

/// Optional device features that kernels have variants for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rungs {
    /// f16 arithmetic. Without it f16 is packed and unpacked.
    pub f16: bool,
    /// Subgroup operations. Without them, workgroup memory.
    pub subgroups: bool,
    /// Immediates (push constants). Without them, uniform buffers.
    pub immediates: bool,
    /// f16 cooperative matrices of 16 × 16 with `f32` accumulators, in subgroups of 32. Without them, or without f16 or
    /// subgroups, plain tiles.
    pub cooperative: bool,
    /// int8 cooperative matrices, 16 × 32 by 32 × 16 with i32 accumulators, in subgroups of 32. They imply
    /// `cooperative`. Without them, kernels that need them are not launched.
    pub int8_matrix: bool,
}

impl Rungs {
    /// All features.
    pub const ALL: Rungs =
        Rungs { f16: true, subgroups: true, immediates: true, cooperative: true, int8_matrix: true };

    /// The baseline: no optional feature.
    pub const NONE: Rungs =
        Rungs { f16: false, subgroups: false, immediates: false, cooperative: false, int8_matrix: false };
}

/// One variant of a kernel: the source of a pipeline, and its key in a pipeline cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// The kernel's name, which is that of its entry point.
    pub name: String,
    /// Its file.
    pub file: &'static str,
    /// Preprocessor constants.
    pub constants: Vec<(&'static str, String)>,
    /// Override constants.
    pub overrides: Vec<(&'static str, f64)>,
}

impl Variant {
    /// The preprocessed WGSL.
    pub fn source(&self) -> Result<Source, PreprocessError> {
        let constants = self.constants.iter().cloned().chain([("KERNEL", self.name.clone())]);
        preprocess(self.file, constants, &file)
    }

    /// Whether it uses int8 cooperative matrices, marked by the constant `INT8_MATRIX`. WGSL has none: the kernel's
    /// SPIR-V is rewritten, and it does not exist in other languages.
    pub fn has_int8_matrix(&self) -> bool {
        self.constants.iter().any(|(name, _)| *name == "INT8_MATRIX")
    }

    /// Whether it loads from buffers long before it uses what it loads, to hide latency, marked by the constant `LOADS_EARLY`.
    /// NVIDIA's driver moves such loads to their use if the buffer is read-only, so it is not told that it is.
    pub fn loads_early(&self) -> bool {
        self.constants.iter().any(|(name, _)| *name == "LOADS_EARLY")
    }

    /// A unique name of this variant.
    pub fn key(&self) -> String {
        let mut key = self.name.clone();
        for (name, value) in &self.constants {
            key.push_str(&format!(" {name}={value}"));
        }
        for (name, value) in &self.overrides {
            key.push_str(&format!(" {name}={value}"));
        }
        key
    }
}
