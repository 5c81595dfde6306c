//! The parameters of the published rope kernels: see [`crate::abi`].

use crate::params::params;

params! {
    /// Rotary embedding of `[seq_len, n_heads, head_dim]` in place.
    RoPEParams {
        /// Tokens.
        seq_len: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Heads.
        n_heads: u32,
        /// Position of the first token.
        pos_offset: u32,
        /// Base of the frequencies, if no table is given.
        theta: f32,
        /// Elements from one token to the next; 0 for `n_heads·head_dim`.
        row_stride: u32,
        /// Elements of a head that are rotated; 0 for `head_dim`. (The published struct leaves this word unused.)
        rope_dim: u32,
        /// First element that is rotated. (The published struct leaves this word unused.)
        rope_offset: u32,
    }

    /// Rotary embedding of Q and K with the write of K and V to the cache.
    ///
    /// The first 36 bytes are as published. Publications give 32, 36 and 48 bytes as the size; 48 is the one that is a
    /// multiple of 16.
    RoPEQKVWriteParams {
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions of a cache block; of the whole cache if it is one block.
        max_seq_len: u32,
        /// Position of the (first) token.
        pos: u32,
        /// Base of the frequencies, if no table is given.
        theta: f32,
        /// Query heads.
        n_heads: u32,
        /// First element of K in a row; in the batch kernels, the number of tokens.
        k_elem_offset: u32,
        /// First element of V in a row.
        v_elem_offset: u32,
        /// Factor on the position; 1 for none.
        freq_scale: f32,
        /// Elements of a head that are rotated; 0 for `head_dim`.
        rope_dim: u32,
        /// First element that is rotated.
        rope_offset: u32,
        /// Cache slot minus position, modulo 2³²: 0 if slots are positions.
        slot_offset: u32,
    }

    /// The epsilon of the fused head norm, a separate binding of the published kernel.
    NormEpsParams {
        /// Added to the mean square.
        norm_eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// Sizes of `rope_q` and its siblings.
    RoPEDims {
        /// Tokens.
        seq_len: u32,
        /// Heads.
        n_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Position of the first token.
        pos_offset: u32,
    }

    /// Base of the frequencies of `rope_q` and its siblings.
    RoPEBase {
        /// The base.
        rope_base: f32,
        /// Unused.
        _pad0: f32,
        /// Unused.
        _pad1: f32,
        /// Unused.
        _pad2: f32,
    }

    /// Rotary embedding of the last elements of `[batch, heads, seq_len, head_dim]` by given angles.
    RoPEOpParams {
        /// Sequences.
        batch: u32,
        /// Heads.
        n_heads: u32,
        /// Positions.
        seq_len: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Elements of a head that are rotated: the last ones.
        rope_dim: u32,
        /// Angles of each position: `rope_dim`, of which the first half is used, or half as many.
        freqs_dim: u32,
        /// Factor on every element.
        output_scale: f32,
        /// Unused.
        _pad0: u32,
    }
}
