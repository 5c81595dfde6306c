//! The WGSL kernels: their sources, and how variants of them are made.
//!
//! One file a kernel under `wgsl/`, with bindings, shapes and numerics in its head; what kernels share is under
//! `wgsl/lib`. Structure is chosen by the [preprocessor](preprocess), numbers by override constants.

mod condition;
mod preprocess;

pub use preprocess::{PreprocessError, Source, preprocess};

use crate::params;

macro_rules! files {
    ($($path:literal)*) => { &[$(($path, include_str!(concat!("../../wgsl/", $path))),)*] };
}

const FILES: &[(&str, &str)] = files![
    "conv1d.wgsl"
    "copy.wgsl"
    "embed.wgsl"
    "engine/attend.wgsl"
    "engine/attend_gathered.wgsl"
    "engine/attention.wgsl"
    "engine/flash.wgsl"
    "engine/gate.wgsl"
    "engine/gather.wgsl"
    "engine/rope_write.wgsl"
    "f16_rows.wgsl"
    "kv_copy.wgsl"
    "kv_shift.wgsl"
    "lib/activation.wgsl"
    "lib/attend.wgsl"
    "lib/attend_begin.wgsl"
    "lib/attend_tiles.wgsl"
    "lib/int8.wgsl"
    "lib/cache.wgsl"
    "lib/f16_pair.wgsl"
    "lib/frequencies.wgsl"
    "lib/rotate_head.wgsl"
    "lib/invocation.wgsl"
    "lib/kv.wgsl"
    "lib/kv_rows.wgsl"
    "lib/lanes.wgsl"
    "lib/lanes_subgroup32.wgsl"
    "lib/merge.wgsl"
    "lib/outputs.wgsl"
    "lib/params.wgsl"
    "lib/rms.wgsl"
    "lib/rope.wgsl"
    "lib/rope_in_place.wgsl"
    "lib/rope_op.wgsl"
    "lib/rope_qkv.wgsl"
    "lib/rope_row.wgsl"
    "lib/rope_rows.wgsl"
    "lib/rope_staged.wgsl"
    "lib/rope_words.wgsl"
    "lib/rope_x.wgsl"
    "lib/int8_rows.wgsl"
    "lib/splits.wgsl"
    "lib/sum.wgsl"
    "lib/reduce_many.wgsl"
    "lib/tiles_cooperative.wgsl"
    "lib/tiles_plain.wgsl"
    "lib/turns.wgsl"
    "lib/u64.wgsl"
    "lib/weights.wgsl"
    "lib/weights_blocks.wgsl"
    "lib/weights_plain.wgsl"
    "lib/weights_scales.wgsl"
    "lib/weights16.wgsl"
    "lib/words.wgsl"
    "matmul.wgsl"
    "matvec.wgsl"
    "matvec_int8_matrix.wgsl"
    "norm.wgsl"
    "quantize.wgsl"
    "rope/head_norm_rope_neox_kv_write.wgsl"
    "rope/rope.wgsl"
    "rope/rope_batch_kv_write.wgsl"
    "rope/rope_bwd.wgsl"
    "rope/rope_fwd.wgsl"
    "rope/rope_k.wgsl"
    "rope/rope_k_backward.wgsl"
    "rope/rope_neox.wgsl"
    "rope/rope_neox_batch_kv_write.wgsl"
    "rope/rope_neox_qkv_write.wgsl"
    "rope/rope_q.wgsl"
    "rope/rope_q_backward.wgsl"
    "rope/rope_qkv_write.wgsl"
    "select/advance.wgsl"
    "select/argmax.wgsl"
    "select/draw.wgsl"
    "select/radix.wgsl"
    "select/keys.wgsl"
    "select/layout.wgsl"
    "select/load.wgsl"
    "select/mass.wgsl"
    "select/candidates.wgsl"
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

/// What a device can do beyond the least: the rungs of the ladder that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rungs {
    /// Arithmetic with halves. Without, they are packed and unpacked.
    pub f16: bool,
    /// Operations across a subgroup. Without, workgroup memory.
    pub subgroups: bool,
    /// Parameters in the command stream. Without, uniform buffers.
    pub immediates: bool,
    /// Matrices of 16 × 16 halves that a subgroup of 32 multiplies together, with sums in `f32`. Without, or without
    /// halves or subgroups, plain tiles.
    pub cooperative: bool,
    /// Matrices of signed bytes, 16 × 32 by 32 × 16, that a subgroup of 32 multiplies together, with sums of integers.
    /// Where these are, `cooperative` is. Without, a kernel that needs them is not launched.
    pub int8_matrix: bool,
}

impl Rungs {
    /// Everything.
    pub const ALL: Rungs =
        Rungs { f16: true, subgroups: true, immediates: true, cooperative: true, int8_matrix: true };

    /// The least a device must have.
    pub const NONE: Rungs =
        Rungs { f16: false, subgroups: false, immediates: false, cooperative: false, int8_matrix: false };
}

/// One compiled form of a kernel: what a pipeline is made of, and its name in a cache of pipelines.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// The kernel's name, which is that of its entry point.
    pub name: String,
    /// Its file.
    pub file: &'static str,
    /// Names that the preprocessor knows.
    pub constants: Vec<(&'static str, String)>,
    /// Override constants.
    pub overrides: Vec<(&'static str, f64)>,
}

impl Variant {
    /// The plain WGSL.
    pub fn source(&self) -> Result<Source, PreprocessError> {
        let constants = self.constants.iter().cloned().chain([("KERNEL", self.name.clone())]);
        preprocess(self.file, constants, &file)
    }

    /// Whether it has matrices of bytes: the constant `INT8_MATRIX` says so. WGSL cannot, so that its text means
    /// something else until its SPIR-V is rewritten, and there is no form of it in other languages.
    pub fn has_int8_matrix(&self) -> bool {
        self.constants.iter().any(|(name, _)| *name == "INT8_MATRIX")
    }

    /// A name that tells this variant from every other.
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
