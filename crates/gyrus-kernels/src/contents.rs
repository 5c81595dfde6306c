//! The contents of a backend's cache in a layout that all backends share.

use crate::backend::BackendError;

/// Reads and writes blocks of the KV cache and records of states.
///
/// The caller has nothing in flight. Numbers are little-endian. A block is
/// `[layers, keys and values, kv_heads, KV_BLOCK, head_dim]` in the [element type](crate::Precision::kv_storage) of the
/// plan's precision: [`KvGroup::bytes_per_block`](crate::KvGroup::bytes_per_block) bytes. A record has for each layer
/// with a state the last inputs of its convolution, `[CONV_TAPS - 1, channels]`, the oldest first, and its matrices by
/// columns, `[value_heads, value_dim, key_dim]`, in f32: [`Plan::record_bytes`](crate::Plan::record_bytes) bytes. What is
/// written and read again has the same bits.
///
/// A block, a record or a size that does not exist is [`BackendError::UnsoundBatch`], and nothing was read or written.
pub trait CacheContents {
    /// Reads blocks of a KV group, one after the other.
    fn read_blocks(&mut self, group: usize, blocks: &[u32], bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Writes blocks of a KV group.
    fn write_blocks(&mut self, group: usize, blocks: &[u32], bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads a record.
    fn read_record(&mut self, record: u32, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Writes a record.
    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<(), BackendError>;
}
