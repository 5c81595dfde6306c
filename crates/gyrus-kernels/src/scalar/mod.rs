//! The scalar twin of every op: the definition that backends are tested against, written to be read.

mod attention;
mod conv;
mod delta;
mod elements;
mod experts;
mod f16_rows;
mod kv;
mod merge;
mod norm;
mod ops;
mod quantize;
mod reference;
mod select;
mod unfold;

pub use crate::abi::scalar::{Written, rope};
pub use attention::{KvCache, Query, Question, attend, attention};
pub use conv::conv1d;
pub use delta::{DeltaConvWeights, delta_conv, delta_rule, push_input};
pub use elements::{element, set};
pub use experts::{add_gated, expert_sum, route, routed};
pub use f16_rows::{F16Rows, f16_rows};
pub use kv::{kv_copy, kv_shift};
pub use merge::merge;
pub use norm::norm;
pub use ops::{activate, gate, gated, inverse_rms, matmul, read_sums, rms_norm, soft_cap};
pub use quantize::{QuantizedRows, quantize_rows};
pub use reference::Reference;
pub use select::{SelectState, allowed, emitted_at, kept_logits, logprobs};
pub use unfold::unfold;
