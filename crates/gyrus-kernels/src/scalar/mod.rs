//! The plain twin of every op: the definition, written to be read.

mod attention;
mod conv;
mod f16_rows;
mod kv;
mod merge;
mod norm;
mod ops;
mod quantize;
mod reference;
mod rope;
mod select;

pub use attention::{KvCache, Query, Question, attend, attention};
pub use conv::conv1d;
pub use f16_rows::{F16Rows, f16_rows};
pub use kv::{kv_copy, kv_shift};
pub use merge::merge;
pub use norm::norm;
pub use ops::{gate, inverse_rms, matmul, rms_norm};
pub use quantize::{QuantizedRows, quantize_rows};
pub use reference::Reference;
pub use rope::{Written, element, rope, set};
pub use select::SelectState;
