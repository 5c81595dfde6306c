//! The weights of experts, in the layouts that files have them in.

use gyrus_formats::TensorView;
use gyrus_kernels::{FileLayout, WeightId, WeightSpec};
use gyrus_tensor::{DType, Shape};

use super::weights::Weights;
use crate::Error;

impl Weights<'_> {
    /// A tensor by its name.
    pub(super) fn named(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, Error> {
        let tensor = self.find(name)?;
        self.add(tensor, dims)
    }

    /// A matrix of one row, which some files store as a vector.
    pub(super) fn row(&mut self, name: &str, cols: usize) -> Result<WeightId, Error> {
        let tensor = self.find(name)?;
        let dims: &[usize] = if tensor.shape.rank() == 1 { &[cols] } else { &[1, cols] };
        let id = self.add(tensor, dims)?;
        self.specs[id.0 as usize].shape = shape(&[1, cols])?;
        Ok(id)
    }

    /// A weight `[experts, rows, cols]`: one tensor, or one for each expert if the name has a `*`.
    pub(super) fn stacked(&mut self, name: &str, dims: &[usize; 3]) -> Result<WeightId, Error> {
        if !name.contains('*') {
            return self.named(name, dims);
        }
        let [experts, rows, cols] = *dims;
        let mut first = None;
        for expert in 0..experts {
            let name = name.replacen('*', &expert.to_string(), 1);
            let tensor = self.find(&name)?;
            let stored = self.checked(&tensor, &[rows, cols])?;
            let dtype = *first.get_or_insert(stored.dtype);
            if stored.dtype != dtype {
                let what = format!("'{name}' of type {}, which is {dtype} for other experts,", stored.dtype);
                return Err(Error::Unsupported(what));
            }
            self.used.insert(name);
        }
        let Some(dtype) = first else { return Err(Error::MissingTensor(name.to_owned())) };
        self.push_stored(name, dims, dtype, FileLayout::PerExpert)
    }

    /// Adds a weight of tensors that were checked and have this type.
    fn push_stored(
        &mut self,
        name: &str,
        dims: &[usize; 3],
        stored: DType,
        layout: FileLayout,
    ) -> Result<WeightId, Error> {
        let shape = shape(dims)?;
        let dtype = self.loaded_dtype(name, stored, shape)?;
        Ok(self.push(WeightSpec { layout, ..WeightSpec::new(name, dtype, shape) }))
    }

    /// A weight `[experts, rows, cols]` whose rows are columns of a tensor of floats.
    pub(super) fn columns(
        &mut self,
        name: &str,
        dims: &[usize; 3],
        layout: FileLayout,
    ) -> Result<WeightId, Error> {
        let [experts, rows, cols] = *dims;
        let tensor = self.find(name)?;
        let stored = self.checked(&tensor, &[experts, cols, rows * step(layout)])?;
        not_blocks(&tensor)?;
        self.push_stored(name, dims, stored.dtype, layout)
    }

    /// A weight `[experts, rows, cols]` in MXFP4 whose quants and exponents are tensors of their own.
    pub(super) fn mxfp4(
        &mut self,
        name: &str,
        dims: &[usize; 3],
        layout: FileLayout,
    ) -> Result<WeightId, Error> {
        let [experts, rows, cols] = *dims;
        let (rows, blocks) = (rows * step(layout), cols / DType::MXFP4.block_elems());
        let shape = shape(dims)?;
        DType::MXFP4.bytes_of(&shape).map_err(|source| Error::Tensor { name: name.to_owned(), source })?;
        for (suffix, expected) in
            [("_blocks", &[experts, rows, blocks, 16][..]), ("_scales", &[experts, rows, blocks])]
        {
            let tensor = self.find(&format!("{name}{suffix}"))?;
            if tensor.dtype != DType::U8 {
                return Err(Error::TensorType { name: tensor.name.to_owned(), dtype: tensor.dtype });
            }
            if tensor.shape.dims() != expected {
                let expected = self::shape(expected)?.to_string();
                let (name, found) = (tensor.name.to_owned(), tensor.shape.to_string());
                return Err(Error::TensorShape { name, found, expected });
            }
            self.used.insert(tensor.name.to_owned());
        }
        Ok(self.push(WeightSpec { layout, ..WeightSpec::new(name, DType::MXFP4, shape) }))
    }

    /// A vector of each expert, all of them side by side in one vector.
    pub(super) fn vectors(&mut self, name: &str, dims: [usize; 2]) -> Result<WeightId, Error> {
        self.columns_of_vectors(name, dims, FileLayout::Rows)
    }

    /// The same, if elements of a tensor's rows take turns.
    pub(super) fn columns_of_vectors(
        &mut self,
        name: &str,
        [experts, n]: [usize; 2],
        layout: FileLayout,
    ) -> Result<WeightId, Error> {
        let tensor = self.find(name)?;
        let stored = self.checked(&tensor, &[experts, n * step(layout)])?;
        not_blocks(&tensor)?;
        let shape = shape(&[experts * n])?;
        Ok(self.push(WeightSpec { layout, ..WeightSpec::new(name, stored.dtype, shape) }))
    }
}

fn shape(dims: &[usize]) -> Result<Shape, Error> {
    Shape::new(dims).map_err(|error| Error::Unsupported(error.to_string()))
}

/// How many columns of the file there are for one of the weight.
fn step(layout: FileLayout) -> usize {
    match layout {
        FileLayout::Columns { step, .. } | FileLayout::Mxfp4 { step, .. } => step,
        FileLayout::Rows | FileLayout::PerExpert => 1,
    }
}

/// Single elements cannot be taken out of blocks.
fn not_blocks(tensor: &TensorView<'_>) -> Result<(), Error> {
    match tensor.dtype.is_quantized() {
        true => Err(Error::TensorType { name: tensor.name.to_owned(), dtype: tensor.dtype }),
        false => Ok(()),
    }
}
