use gyrus_kernels::Precision;
use gyrus_tensor::{DType, Shape, can_dequantize, dequantize};

use crate::f32_dot;
use crate::panel::{self, FloatPanels, QuantPanels, float_panels};
use crate::pool::Pool;
use crate::simd;
use crate::storage::Bytes;
use crate::{CpuError, Isa};

/// A weight prepared for [`crate::matmul()`]: `[rows, cols]`, that is `[out_features, in_features]`.
pub struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    body: Body,
}

pub(crate) enum Body {
    /// Quantised, repacked for int8 SIMD.
    QuantPanels(QuantPanels),
    /// Floats, repacked for `f32` SIMD.
    FloatPanels(FloatPanels),
    /// In the file's layout, dequantised during the matmul.
    Raw(Bytes),
}

impl Matrix {
    /// Prepares a matrix stored row-major in `data`.
    ///
    /// [`Precision::Exact`] stores `data` unchanged. [`Precision::Fast`] repacks every type, to the same size
    /// except for padding, and drops `data`.
    pub fn new(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        data: Bytes,
        precision: Precision,
    ) -> Result<Matrix, CpuError> {
        check(dtype, rows, cols, &data)?;
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

    /// A table whose rows are looked up and never multiplied: a copy of `data`, so that a row is contiguous.
    pub(crate) fn table(dtype: DType, rows: usize, cols: usize, data: &Bytes) -> Result<Matrix, CpuError> {
        check(dtype, rows, cols, data)?;
        let body = Body::Raw(data.as_slice().to_vec().into());
        Ok(Matrix { dtype, rows, cols, body })
    }

    /// Prepares a matrix for products of many rows in `f32`. Floats are repacked, which [`Matrix::new`] does not do in
    /// [`Precision::Exact`] because a few rows gain nothing from it.
    pub(crate) fn for_many_rows(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        data: Bytes,
    ) -> Result<Matrix, CpuError> {
        check(dtype, rows, cols, &data)?;
        let body = match FloatPanels::pack(pool, dtype, rows, cols, data.as_slice())? {
            Some(columns) => Body::FloatPanels(columns),
            None => Body::Raw(data),
        };
        Ok(Matrix { dtype, rows, cols, body })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The element type of the source data.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes that a matmul reads.
    pub fn bytes(&self) -> usize {
        match &self.body {
            Body::QuantPanels(panels) => panels.bytes(),
            Body::FloatPanels(columns) => columns.bytes(),
            Body::Raw(data) => data.as_slice().len(),
        }
    }

    /// Whether a matmul quantises its activations to int8.
    pub fn takes_int8(&self) -> bool {
        matches!(self.body, Body::QuantPanels(_))
    }

    /// Output rows that a kernel computes together.
    pub(crate) fn unit(&self) -> usize {
        match self.body {
            Body::QuantPanels(_) | Body::Raw(_) => panel::LANES,
            Body::FloatPanels(_) => float_panels::ROWS,
        }
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Writes the values of one row (`[cols]`), with the same bits in either precision: an embedding lookup.
    ///
    /// # Panics
    /// If `row` is out of range or `out` has another length than `cols`.
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

    /// Rows as `f32`: `[count, width]`, where `width` is `cols` rounded up to [`simd::LANES`], zero-padded.
    /// Borrows the stored data if it has that form, otherwise decodes to `buffer`.
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

    /// The stored bytes of some rows.
    pub(crate) fn raw_rows<'a>(&self, data: &'a Bytes, first: usize, count: usize) -> &'a [u8] {
        let data = data.as_slice();
        let row_bytes = data.len() / self.rows;
        &data[first * row_bytes..(first + count) * row_bytes]
    }
}

/// Whether `data` is a matrix of this type and shape.
fn check(dtype: DType, rows: usize, cols: usize, data: &Bytes) -> Result<(), CpuError> {
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
    Ok(())
}
