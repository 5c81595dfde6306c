//! The scalar twin of every op: the definition that backends are tested against, written to be read.

mod attention;
mod conv;
mod delta;
mod elements;
mod f16_rows;
mod kv;
mod merge;
mod norm;
mod ops;
mod quantize;
mod reference;
mod select;

pub use crate::abi::scalar::{Written, rope};
pub use attention::{KvCache, Query, Question, attend, attention};
pub use conv::conv1d;
pub use delta::{DeltaConvWeights, delta_conv, delta_rule, push_input};
pub use elements::{element, set};
pub use f16_rows::{F16Rows, f16_rows};
pub use kv::{kv_copy, kv_shift};
pub use merge::merge;
pub use norm::norm;
pub use ops::{activate, gate, inverse_rms, matmul, read_sums, rms_norm, soft_cap};
pub use quantize::{QuantizedRows, quantize_rows};
pub use reference::Reference;
pub use select::{SelectState, allowed, emitted_at, logprobs};
