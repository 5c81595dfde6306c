//! Mat-muls, mat-vecs and what prepares their activations.

use crate::params::params;

params! {
    /// A product of rows with a weight matrix in planes. Unlike [`GEMMParams`](super::GEMMParams) it has an output column
    /// offset and no stride of the weights, which planes do not have.
    MatMulParams {
        /// Rows of activations and of the output.
        m: u32,
        /// Rows of the weights, columns that are written.
        n: u32,
        /// Columns of the weights and activations.
        k: u32,
        /// Elements from one row of activations to the next; not used if they are quantised.
        x_stride: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column that is written.
        y_offset: u32,
        /// 1 to add to what the output holds.
        accumulate: u32,
        /// With experts: tiles of rows of the grid.
        tiles: u32,
    }

    /// A mat-vec for few rows of int8 activations.
    MatVecParams {
        /// Rows of the activations.
        m: u32,
        /// Rows of the matrix.
        n: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column of the output that is written.
        y_offset: u32,
        /// Added to the mean square, if the row is normalised.
        eps: f32,
        /// The attention window: positions a row attends to; 0 for all.
        window: u32,
        /// The position of the only row, if the kernel merges attention and takes the position as a parameter.
        position: u32,
        /// Unused.
        _pad0: u32,
    }

    /// Quantisation of rows of activations to int8.
    QuantizeParams {
        /// Elements of a row.
        k: u32,
        /// Elements from one row to the next.
        x_stride: u32,
        /// The attention window: positions a row attends to; 0 for all.
        window: u32,
        /// Added to the mean square, if rows are normalised.
        eps: f32,
    }

    /// Conversion of rows of activations to f16.
    F16RowsParams {
        /// Rows.
        m: u32,
        /// Elements of a row, a multiple of 4.
        k: u32,
        /// Elements from one row to the next.
        x_stride: u32,
        /// Added to the mean square, if rows are normalised.
        eps: f32,
    }

    /// The sum over the splits of a split-K mat-mul.
    SumTilesParams {
        /// Rows.
        m: u32,
        /// Columns that are written.
        n: u32,
        /// Splits.
        splits: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column that is written.
        y_offset: u32,
        /// 1 to add to what the output holds.
        accumulate: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// Slots of rows, sorted by expert and divided into tiles.
    ExpertTilesParams {
        /// Slots of all rows.
        slots: u32,
        /// The most tiles that there can be.
        most: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// A convolution over time.
    Conv1DParams {
        /// Channels read.
        in_channels: u32,
        /// Channels written.
        out_channels: u32,
        /// Taps.
        kernel_size: u32,
        /// Samples from one output to the next.
        stride: u32,
        /// Samples read.
        in_length: u32,
        /// Samples written.
        out_length: u32,
        /// Zeros on either side.
        padding: u32,
        /// Unused.
        _pad0: u32,
    }
}
