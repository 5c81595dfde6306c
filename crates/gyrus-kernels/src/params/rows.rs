//! Kernels that work on rows or elements: embedding, norms, copies.

use crate::params::params;

params! {
    /// Rows of an embedding table that may be in several parts; a launch writes the rows of one part.
    EmbedParams {
        /// Tokens, rows of the output.
        tokens: u32,
        /// Elements of a row.
        dim: u32,
        /// Entries of all parts; token ids beyond them are clamped to the last.
        vocab: u32,
        /// The first entry of this part.
        first: u32,
        /// Entries of this part.
        rows: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// Factor on the values.
        scale: f32,
        /// Unused.
        _pad0: u32,
    }

    /// An operation on each of `count` elements.
    ElementwiseParams {
        /// Elements.
        count: u32,
        /// Unused, or as the kernel's head comment says.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// `x / √(mean(x²) + eps) · weight` over rows of `dim`.
    RMSNormParams {
        /// Elements of a row.
        dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// `(x − mean) / √(var + eps) · weight + bias` over rows of `dim`.
    LayerNormParams {
        /// Elements of a row.
        dim: u32,
        /// Added to the variance.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }
}
