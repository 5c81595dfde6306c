use std::fmt;

use crate::TensorError;

/// The most dimensions of a [`Shape`].
pub const MAX_RANK: usize = 8;

/// The dimensions of a dense tensor, outermost first: a matrix is `[rows, columns]` and its rows are contiguous.
///
/// The element count of a `Shape` fits `isize`, so later code need not check it. A dimension may be zero (an
/// empty tensor), and there may be no dimensions (a scalar).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// Checks the rank and the element count.
    pub fn new(dims: &[usize]) -> Result<Shape, TensorError> {
        if dims.len() > MAX_RANK {
            return Err(TensorError::Rank { rank: dims.len(), max: MAX_RANK });
        }
        // A zero dimension counts as one here, so an empty tensor cannot have a stride that overflows.
        dims.iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))
            .filter(|&n| isize::try_from(n).is_ok())
            .ok_or_else(|| TensorError::Overflow { dims: dims.to_vec() })?;
        let mut held = [0; MAX_RANK];
        held[..dims.len()].copy_from_slice(dims);
        Ok(Shape { rank: dims.len() as u8, dims: held })
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Number of elements; 1 for a scalar.
    pub fn elems(&self) -> usize {
        self.dims().iter().product()
    }

    /// Length of a row, the last dimension; 1 for a scalar.
    pub fn row(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        match self.dims() {
            [] => 1,
            [outer @ .., _] => outer.iter().product(),
        }
    }
}

impl fmt::Display for Shape {
    /// Writes `2048 × 512`, or `scalar`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rank == 0 {
            return f.pad("scalar");
        }
        let text: Vec<String> = self.dims().iter().map(usize::to_string).collect();
        f.pad(&text.join(" × "))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dims().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_elements_of_tensors_scalars_and_empty_shapes() {
        let shape = Shape::new(&[2, 3, 4]).unwrap();
        assert_eq!((shape.rank(), shape.elems(), shape.rows(), shape.row()), (3, 24, 6, 4));
        assert_eq!(shape.to_string(), "2 × 3 × 4");
        let scalar = Shape::new(&[]).unwrap();
        assert_eq!((scalar.elems(), scalar.rows(), scalar.row()), (1, 1, 1));
        let empty = Shape::new(&[0, 5]).unwrap();
        assert_eq!((empty.elems(), empty.rows(), empty.row()), (0, 0, 5));
    }

    #[test]
    fn overflowing_shapes_are_rejected_in_any_order() {
        let big = 1 << 40;
        for dims in [[big, big, 1], [0, big, big], [big, 0, big], [big, big, 0]] {
            assert_eq!(Shape::new(&dims), Err(TensorError::Overflow { dims: dims.to_vec() }));
        }
        assert_eq!(Shape::new(&[1; 9]), Err(TensorError::Rank { rank: 9, max: MAX_RANK }));
    }
}
