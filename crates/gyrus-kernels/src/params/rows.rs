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
        /// Added to each id.
        offset: u32,
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
        /// Factor on the result, where it is added to another buffer. (The published struct leaves this word unused.)
        scale: f32,
        /// Unused.
        _pad1: u32,
    }

    /// `out[r][first + i] += scale · x[r][i]`.
    AddParams {
        /// Elements of a row that are added.
        count: u32,
        /// Elements from one row of `x` to the next; 0 if all rows add the same.
        x_stride: u32,
        /// Elements from one row of `out` to the next.
        out_stride: u32,
        /// The first column of `out`.
        first: u32,
        /// Factor on `x`.
        scale: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// `x = cap · tanh(factor · x / cap)`, or `x *= factor`.
    ScaleParams {
        /// Elements.
        count: u32,
        /// Factor on `x`.
        factor: f32,
        /// The largest magnitude of a result; 0 for no limit.
        cap: f32,
        /// Unused.
        _pad0: u32,
    }

    /// `x[r][i] = f(x[r][i]) · by[r][first + i]`.
    GateByParams {
        /// Elements of a row of `x`.
        count: u32,
        /// Elements from one row of `by` to the next.
        stride: u32,
        /// The first column of `by`.
        first: u32,
        /// Unused.
        _pad0: u32,
    }

    /// The inputs of a convolution over rows, side by side.
    UnfoldParams {
        /// Rows of the batch.
        rows: u32,
        /// Rows of `x` for each of them.
        x_slots: u32,
        /// Rows of `out` for each of them.
        out_slots: u32,
        /// Elements of a row of `x`.
        channels: u32,
        /// Rows of `x` that a row of `out` has.
        taps: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// A layer of Gated DeltaNet.
    DeltaParams {
        /// Heads of queries and keys.
        key_heads: u32,
        /// Heads of values.
        value_heads: u32,
        /// Elements of a query or key head.
        key_dim: u32,
        /// Elements of a value head.
        value_dim: u32,
        /// Elements from one row of projections to the next.
        x_stride: u32,
        /// Elements from one prepared row to the next, a multiple of 4.
        prepared_stride: u32,
        /// Elements from the state of one record to the next.
        state_stride: u32,
        /// Factor on queries.
        query_scale: f32,
        /// Added to the sum of squares of a head.
        eps: f32,
        /// 1 if `a` is stored as a logarithm.
        a_is_log: u32,
        /// 1 if value head `j` reads key head `j mod key_heads`.
        tiled: u32,
        /// Unused.
        _pad0: u32,
    }

    /// The RMS norm of parts of rows, in place: columns from `first` on, each part of `dim` on its own.
    ColumnNormParams {
        /// Elements of a part.
        dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Elements from one row to the next.
        stride: u32,
        /// The first column.
        first: u32,
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
