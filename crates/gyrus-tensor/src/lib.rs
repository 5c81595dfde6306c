//! Element types, shapes and the block formats of quantised weights.
//!
//! This crate is the reference for all others. It defines how many bytes a tensor takes and how blocks are
//! quantised and dequantised. It knows nothing of files, operations or models. Faster kernels are tested
//! against [`dequantize`].
//!
//! ```
//! use gyrus_tensor::{DType, Shape, dequantize, quantize};
//!
//! let shape = Shape::new(&[2, 64])?;
//! let values: Vec<f32> = (0..128).map(|i| (i as f32 - 64.0) / 64.0).collect();
//! let blocks = quantize(DType::Q8_0, &values)?;
//! assert_eq!(blocks.len(), DType::Q8_0.bytes_of(&shape)?);
//!
//! let mut back = vec![0.0; 128];
//! dequantize(DType::Q8_0, &blocks, &mut back)?;
//! assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.01));
//! # Ok::<(), gyrus_tensor::TensorError>(())
//! ```

#![forbid(unsafe_code)]

mod affine;
pub mod block;
mod bound;
mod dequantize;
mod dtype;
mod error;
mod fit;
mod mxfp4;
mod quantize;
mod shape;

pub use affine::AffineRows;
pub use bound::magnitude_bound;
pub use dequantize::{can_dequantize, dequantize};
pub use dtype::DType;
pub use error::TensorError;
pub use mxfp4::{assemble_mxfp4, check_scales};
pub use quantize::{can_quantize, quantize};
pub use shape::{MAX_RANK, Shape};
