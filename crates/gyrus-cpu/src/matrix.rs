use gyrus_kernels::Precision;
use gyrus_tensor::{DType, Shape, can_dequantize, dequantize};

use crate::f32_dot;
use crate::panel::{self, FloatPanels, QuantPanels, float_panels};
use crate::pool::Pool;
use crate::simd;
use crate::storage::Bytes;
use crate::{CpuError, Isa};

/// A weight prepared for [`crate::matmul()`]: `[rows, cols]`, `rows` outputs from `cols` inputs.
pub struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    body: Body,
}

pub(crate) enum Body {
    /// Re-laid for integer SIMD.
    QuantPanels(QuantPanels),
    /// Re-laid for `f32` SIMD.
    FloatPanels(FloatPanels),
    /// As the file has it, decoded while it is read.
    Raw(Bytes),
}

impl Matrix {
    /// Prepares a matrix stored row by row in `data`.
    ///
    /// [`Precision::Exact`] keeps `data` as it is. [`Precision::Fast`] re-lays every type (to the same size
    /// but for a few bytes) and lets `data` go.
    pub fn new(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        data: Bytes,
        precision: Precision,
    ) -> Result<Matrix, CpuError> {
        if rows == 0 || cols == 0 {
            return Err(CpuError::Empty { rows, cols });
        }
        let expected = dtype.bytes_of(&Shape::new(&[rows, cols])?)?;
        let found = data.as_slice().len();
        if found != expected {
            return Err(CpuError::ByteCount { dtype, rows, cols, expected, found });
        }
        if !can_dequantize(dtype) {
            return Err(CpuError::Tensor(gyrus_tensor::TensorError::NoDequantizer { dtype }));
        }
        let body = match precision {
            Precision::Exact => Body::Raw(data),
            Precision::Fast => match QuantPanels::pack(pool, dtype, rows, cols, data.as_slice())? {
                Some(panels) => Body::QuantPanels(panels),
                None => match FloatPanels::pack(pool, dtype, rows, cols, data.as_slice())? {
                    Some(columns) => Body::FloatPanels(columns),
                    None => Body::Raw(data),
                },
            },
        };
        Ok(Matrix { dtype, rows, cols, body })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The element type it was made from.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes a mat-mul reads.
    pub fn bytes(&self) -> usize {
        match &self.body {
            Body::QuantPanels(panels) => panels.bytes(),
            Body::FloatPanels(columns) => columns.bytes(),
            Body::Raw(data) => data.as_slice().len(),
        }
    }

    /// Whether a mat-mul reads activations as signed bytes.
    pub fn takes_int8(&self) -> bool {
        matches!(self.body, Body::QuantPanels(_))
    }

    /// Outputs that are computed together.
    pub(crate) fn unit(&self) -> usize {
        match self.body {
            Body::QuantPanels(_) | Body::Raw(_) => panel::LANES,
            Body::FloatPanels(_) => float_panels::ROWS,
        }
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Writes the values of one row (`[cols]`), the same in either precision: an embedding look-up.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row's length");
        match &self.body {
            Body::QuantPanels(panels) => panels.dequantize_row(row, out),
            Body::FloatPanels(columns) => columns.row(row, out),
            Body::Raw(data) => {
                let bytes = self.raw_rows(data, row, 1);
                dequantize(self.dtype, bytes, out).expect("type and length were checked");
            }
        }
    }

    /// Rows as `f32`, `[count, width]` with `width` the columns rounded up to [`simd::LANES`] and zeros
    /// in between; in place if they are stored so, else in `buffer`.
    pub(crate) fn float_rows<'a>(
        &'a self,
        isa: Isa,
        data: &'a Bytes,
        first: usize,
        count: usize,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        let bytes = self.raw_rows(data, first, count);
        let width = self.cols.next_multiple_of(simd::LANES);
        if self.dtype == DType::F32
            && width == self.cols
            && cfg!(target_endian = "little")
            && let Ok(rows) = bytemuck::try_cast_slice(bytes)
        {
            return rows;
        }
        let row_bytes = bytes.len() / count;
        let buffer = &mut buffer[..count * width];
        for (bytes, out) in bytes.chunks_exact(row_bytes).zip(buffer.chunks_exact_mut(width)) {
            let (values, padding) = out.split_at_mut(self.cols);
            f32_dot::decode(isa, self.dtype, bytes, values);
            padding.fill(0.0);
        }
        buffer
    }

    /// Rows as they are stored.
    pub(crate) fn raw_rows<'a>(&self, data: &'a Bytes, first: usize, count: usize) -> &'a [u8] {
        let data = data.as_slice();
        let row_bytes = data.len() / self.rows;
        &data[first * row_bytes..(first + count) * row_bytes]
    }
}
