//! Gated DeltaNet: layers that keep a state per sequence instead of keys and values.
//!
//! A layer's state is the last inputs of its convolution and, for each value head, a matrix `S` of
//! `[key_dim, value_dim]`, all in `f32`. The states of all such layers for one sequence are a *record*. A backend has a
//! pool of records; batches name the record that a sequence's rows begin with and the one that they leave.

use std::fmt;

/// Inputs of the convolution that an output depends on, its own included.
pub const CONV_TAPS: usize = 4;

/// Both head sizes are a multiple of this, so that kernels divide heads evenly.
pub const DELTA_UNIT: usize = 16;

/// The largest head size.
pub const MAX_DELTA_DIM: usize = 256;

/// What is added to the sum of squares in the L2 norm of queries and keys.
pub const L2_EPS: f32 = 1e-6;

/// The shape of a Gated DeltaNet layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of the key heads. Each has a state.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Which key head a value head `j` reads: `j mod key_heads` if tiled, else `j div (value_heads / key_heads)`.
    pub tiled: bool,
}

impl DeltaShape {
    /// Elements of all query heads, and of all key heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all value heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Elements of a row of projections: the channels, the output gate, and two gates for each value head.
    pub fn projected_width(&self) -> usize {
        self.channels() + self.value_width() + 2 * self.value_heads
    }

    /// Elements of a prepared row: the channels after convolution and norms, and two factors for each value head. It is a
    /// multiple of 4; elements beyond the factors are not used.
    pub fn prepared_width(&self) -> usize {
        self.channels() + (2 * self.value_heads).next_multiple_of(4)
    }

    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.tiled {
            true => value_head % self.key_heads,
            false => value_head / (self.value_heads / self.key_heads),
        }
    }

    /// Elements of the convolution's state: the last inputs of each channel.
    pub fn conv_elems(&self) -> usize {
        (CONV_TAPS - 1) * self.channels()
    }

    /// Elements of the matrices of all value heads.
    pub fn matrix_elems(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Operations of a row: products and sums with the state.
    pub fn flops(&self) -> u64 {
        7 * self.matrix_elems() as u64
    }

    /// Elements of a record that the layer takes.
    pub fn state_elems(&self) -> usize {
        self.conv_elems() + self.matrix_elems()
    }
}

impl fmt::Display for DeltaShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, tiled } = self;
        let order = if *tiled { "tiled" } else { "grouped" };
        write!(f, "{key_heads} key heads of {key_dim}, {value_heads} value heads of {value_dim}, {order}")
    }
}

/// A layer with a state: its index in [`crate::Plan::delta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeltaLayer(pub u16);

impl fmt::Display for DeltaLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// The records of a sequence's rows in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    /// The state before the first row; a state of zeros if there is none, as at the beginning of a sequence.
    pub from: Option<u32>,
    /// Where the state after the last row is written. It may be the record that is read.
    pub to: u32,
}

impl Records {
    /// Whether sequences that run together have records of a pool of this many, and none writes one that another reads
    /// or writes.
    pub fn are_sound(all: &[Records], pool: usize) -> bool {
        let within = |record: u32| (record as usize) < pool;
        all.iter().enumerate().all(|(i, records)| {
            within(records.to)
                && records.from.is_none_or(within)
                && all
                    .iter()
                    .enumerate()
                    .all(|(j, other)| i == j || (other.to != records.to && other.from != Some(records.to)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_one_sequence_writes_is_of_no_other() {
        let of = |from: Option<u32>, to| Records { from, to };
        assert!(Records::are_sound(&[of(None, 0), of(Some(1), 1), of(Some(4), 2), of(Some(4), 3)], 5));
        assert!(!Records::are_sound(&[of(None, 5)], 5));
        assert!(!Records::are_sound(&[of(Some(5), 0)], 5));
        assert!(!Records::are_sound(&[of(None, 1), of(None, 1)], 5));
        assert!(!Records::are_sound(&[of(Some(2), 1), of(None, 2)], 5));
    }

    #[test]
    fn widths_are_those_of_a_published_model() {
        let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: true };
        assert_eq!((shape.channels(), shape.projected_width(), shape.prepared_width()), (8192, 12352, 8256));
        assert_eq!(4 * shape.state_elems(), 4 * (3 * 8192 + 32 * 128 * 128));
        assert_eq!((shape.key_head(17), DeltaShape { tiled: false, ..shape }.key_head(17)), (1, 8));
    }
}
