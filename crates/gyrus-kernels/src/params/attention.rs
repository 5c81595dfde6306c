//! The engine's attention, and its KV cache.

use crate::params::params;

params! {
    /// The engine's decode attention over a paged cache, with the rotary embedding before it.
    AttendParams {
        /// Query heads.
        n_heads: u32,
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements from one row of queries, keys and values to the next.
        stride: u32,
        /// The attention window: positions a row attends to, its own included; 0 for all.
        window: u32,
        /// Factor on the scores.
        scale: f32,
        /// The soft cap of the scores, `soft_cap·tanh(score / soft_cap)`; 0 for none.
        soft_cap: f32,
        /// Elements of a head that are rotated.
        rope_dim: u32,
        /// First element that is rotated.
        rope_offset: u32,
        /// Added to the mean square, if heads are normalised.
        eps: f32,
        /// Factor on elements that are not rotated.
        pass_scale: f32,
        /// Entries from one row's table of turns to the next; 0 if all rows share one.
        turns_stride: u32,
        /// The position of the only row, if it is a parameter.
        position: u32,
    }

    /// The engine's attention of tiles of rows over a paged cache.
    FlashParams {
        /// Query heads.
        n_heads: u32,
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements from one row of queries to the next.
        q_stride: u32,
        /// The attention window: positions a row attends to back, its own included, and as many ahead if not causal; 0
        /// for all.
        window: u32,
        /// 1 if a row attends to no later position.
        causal: u32,
        /// Factor on queries: `scale·log2(e)`, so that scores are logarithms to base 2; with a soft cap, `scale / cap`.
        query_scale: f32,
        /// The soft cap times `log2(e)`; 0 for none.
        cap: f32,
        /// Unused.
        _pad0: u32,
    }

    /// Moves `new_len` cached positions down by `shift` and rotates their keys accordingly.
    KVCacheShiftParams {
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions of a cache block; of the whole cache if it is one block.
        max_seq_len: u32,
        /// Positions to move down, modulo 2³²: a negative shift moves up.
        shift: u32,
        /// Positions that move.
        new_len: u32,
        /// Elements of a head that are rotated. (The published struct leaves this word unused.)
        rope_dim: u32,
        /// First element that is rotated. (The published struct leaves this word unused.)
        rope_offset: u32,
        /// Unused.
        _pad0: u32,
    }
}
