//! The parameter structs of the kernels: what the host writes and a shader reads, byte for byte.
//!
//! Each is declared once. The macro makes the Rust struct and its WGSL twin, so that the two cannot part;
//! a test compares sizes and offsets with the layout that naga computes. All fields are `u32` or `f32`, and
//! every size is a multiple of 16, as uniform buffers of all APIs want it.

use bytemuck::{Pod, Zeroable};

/// A parameter struct: its name and its WGSL declaration.
pub trait Params: Pod {
    /// The name in Rust, WGSL and C.
    const NAME: &'static str;
    /// The declaration in WGSL.
    const WGSL: &'static str;
    /// Name, WGSL type and byte offset of each field.
    const FIELDS: &'static [(&'static str, &'static str, usize)];
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ident,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
            pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

            impl Params for $name {
                const NAME: &'static str = stringify!($name);
                const WGSL: &'static str = concat!(
                    "struct ", stringify!($name), " {\n",
                    $("    ", stringify!($field), ": ", stringify!($ty), ",\n",)*
                    "}\n"
                );
                const FIELDS: &'static [(&'static str, &'static str, usize)] =
                    &[$((stringify!($field), stringify!($ty), std::mem::offset_of!($name, $field)),)*];
            }
        )*

        /// Every struct: name, WGSL declaration, size and fields.
        pub const ALL: &[Layout] = &[$(Layout {
            name: $name::NAME,
            wgsl: $name::WGSL,
            size: size_of::<$name>(),
            fields: $name::FIELDS,
        },)*];
    };
}

/// What a parameter struct looks like.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its WGSL declaration.
    pub wgsl: &'static str,
    /// Its bytes.
    pub size: usize,
    /// Name, WGSL type and byte offset of each field.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

params! {
    /// A matrix product `C[m, n] = alpha·A[m, k]·B[n, k]ᵀ + beta·C`; leading dimensions in elements.
    GEMMParams {
        /// Rows of A and C.
        m: u32,
        /// Rows of B, columns of C.
        n: u32,
        /// Columns of A and B.
        k: u32,
        /// Elements from one row of A to the next.
        lda: u32,
        /// Elements from one row of B to the next: `k` or more, since B is `[n, k]`.
        ldb: u32,
        /// Elements from one row of C to the next.
        ldc: u32,
        /// Factor on the product.
        alpha: f32,
        /// Factor on what C held.
        beta: f32,
    }

    /// A product of rows with a weight matrix in planes: what [`GEMMParams`] cannot say is a column that the output
    /// begins at, and it says a stride of weights, which planes do not have.
    MatMulParams {
        /// Rows of activations and of the output.
        m: u32,
        /// Rows of the weights, columns that are written.
        n: u32,
        /// Columns of the weights and activations.
        k: u32,
        /// Elements from one row of activations to the next; without meaning where they are quantised.
        x_stride: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column that is written.
        y_offset: u32,
        /// 1 to add to what the output holds.
        accumulate: u32,
        /// Unused.
        _pad0: u32,
    }

    /// Rows of an embedding that may be in several parts; a part writes what it has.
    EmbedParams {
        /// Tokens, rows of the output.
        tokens: u32,
        /// Elements of a row.
        dim: u32,
        /// Entries of all parts; a token beyond them is taken for the last.
        vocab: u32,
        /// The first entry of this part.
        first: u32,
        /// Entries of this part.
        rows: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// Factor on the values.
        scale: f32,
        /// Unused.
        _pad0: u32,
    }

    /// Rows of activations as bytes.
    QuantizeParams {
        /// Elements of a row.
        k: u32,
        /// Elements from one row to the next.
        x_stride: u32,
        /// How many positions a row of attention sees; 0 for all.
        window: u32,
        /// Added to the mean square, where the rows are normalised.
        eps: f32,
    }

    /// A mat-vec for few rows of bytes.
    MatVecParams {
        /// Rows of the activations.
        m: u32,
        /// Rows of the matrix.
        n: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column of the output that is written.
        y_offset: u32,
        /// Added to the mean square, where one row is normalised.
        eps: f32,
        /// How many positions a row of attention sees; 0 for all.
        window: u32,
        /// Of the only row, where attention is put together and it is told here.
        position: u32,
        /// Unused.
        _pad0: u32,
    }

    /// Rows of activations that become halves.
    F16RowsParams {
        /// Rows.
        m: u32,
        /// Elements of a row, a multiple of 4.
        k: u32,
        /// Elements from one row to the next.
        x_stride: u32,
        /// Added to the mean of squares, where rows are normed.
        eps: f32,
    }

    /// SplitMode of a mat-mul's sums that become one.
    SumTilesParams {
        /// Rows.
        m: u32,
        /// Columns that are written.
        n: u32,
        /// SplitMode.
        splits: u32,
        /// Elements from one row of the output to the next.
        y_stride: u32,
        /// The first column that is written.
        y_offset: u32,
        /// 1 to add to what the output holds.
        accumulate: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// An operation on each of `count` elements.
    ElementwiseParams {
        /// Elements.
        count: u32,
        /// Unused, or what the kernel's head says.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// Attention of `seq_len` rows over `kv_seq_len` cached positions.
    AttentionParams {
        /// Query rows.
        seq_len: u32,
        /// Cached positions.
        kv_seq_len: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Query heads.
        n_heads: u32,
        /// Key and value heads.
        n_kv_heads: u32,
        /// Factor on the scores.
        scale: f32,
        /// Elements from one KV head to the next; 0 for `kv_seq_len·head_dim`.
        kv_stride: u32,
        /// Elements from one query row to the next; 0 for `n_heads·head_dim`.
        q_stride: u32,
    }

    /// `x / √(mean(x²) + eps) · weight` over rows of `dim`.
    RMSNormParams {
        /// Elements of a row.
        dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// `(x − mean) / √(var + eps) · weight + bias` over rows of `dim`.
    LayerNormParams {
        /// Elements of a row.
        dim: u32,
        /// Added to the variance.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// Softmax over each of `rows`.
    SoftmaxParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        cols: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

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
        /// Base of the frequencies, where no table is given.
        theta: f32,
        /// Elements from one token to the next; 0 for `n_heads·head_dim`.
        row_stride: u32,
        /// Elements that are turned; 0 for `head_dim`. (The seed leaves this word unused.)
        rope_dim: u32,
        /// First element that is turned. (The seed leaves this word unused.)
        rope_offset: u32,
    }

    /// `out[t] = table[tokens[t]]`.
    EmbeddingParams {
        /// Tokens.
        num_tokens: u32,
        /// Elements of a row.
        dim: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// Rows of keys or values into a head-major cache.
    KVCacheWriteParams {
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions the cache has room for.
        max_seq_len: u32,
        /// First slot.
        pos: u32,
        /// Elements from one row to the next; 0 for `n_kv_heads·head_dim`.
        src_stride: u32,
        /// Rows.
        seq_len: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// Rotary embedding of Q and K with the write of K and V to the cache.
    ///
    /// The first 36 bytes are the seed's; sources give 32, 36 and 48 as the size, and 48 is the one that is
    /// a multiple of 16.
    RoPEQKVWriteParams {
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions of a block of the cache; of all of it where the cache is one block.
        max_seq_len: u32,
        /// Position of the (first) token.
        pos: u32,
        /// Base of the frequencies, where no table is given.
        theta: f32,
        /// Query heads.
        n_heads: u32,
        /// First element of K in a row; in the batch kernels, the number of tokens.
        k_elem_offset: u32,
        /// First element of V in a row.
        v_elem_offset: u32,
        /// Factor on the position; 1 leaves it.
        freq_scale: f32,
        /// Elements that are turned; 0 for `head_dim`.
        rope_dim: u32,
        /// First element that is turned.
        rope_offset: u32,
        /// Cache slot less position, modulo 2³²: 0 where slots are positions.
        slot_offset: u32,
    }

    /// Moves `new_len` cached positions `shift` down, and turns their keys accordingly.
    KVCacheShiftParams {
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions of a block of the cache; of all of it where the cache is one block.
        max_seq_len: u32,
        /// By how many positions, modulo 2³²: up is possible too.
        shift: u32,
        /// Positions that move.
        new_len: u32,
        /// Elements that are turned. (The sources leave this word unused.)
        rope_dim: u32,
        /// First element that is turned. (The sources leave this word unused.)
        rope_offset: u32,
        /// Unused.
        _pad0: u32,
    }

    /// RMS norm of each head.
    HeadNormParams {
        /// Elements of a head.
        head_dim: u32,
        /// Heads.
        n_heads: u32,
        /// Tokens.
        seq_len: u32,
        /// Added to the mean square.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
        /// Unused.
        _pad3: u32,
    }

    /// A matrix-vector product whose result is normalised head by head.
    GEMVHeadNormParams {
        /// Outputs: `n_heads·head_dim`.
        n: u32,
        /// Inputs.
        k: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Heads.
        n_heads: u32,
        /// Added to the mean square.
        eps: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// Logits times the inverse temperature.
    TemperatureScaleParams {
        /// The factor.
        inv_temperature: f32,
        /// Logits.
        count: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// The repetition penalty on the logits of tokens that occurred.
    RepetitionPenaltyParams {
        /// Positive logits are divided by it, others multiplied.
        penalty: f32,
        /// Tokens that occurred.
        n_tokens: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// A product with weights in MLX groups: each value is `scale·q + bias`.
    MLXParams {
        /// Rows of the input.
        m: u32,
        /// Outputs.
        n: u32,
        /// Inputs.
        k: u32,
        /// Values that share a scale and a bias.
        group_size: u32,
        /// Bits of a value: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Bytes of the packed values, after which scales begin.
        weight_bytes: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
    }

    /// A convolution over time.
    Conv1DParams {
        /// Channels read.
        in_channels: u32,
        /// Channels written.
        out_channels: u32,
        /// Taps.
        kernel_size: u32,
        /// Samples from one output to the next.
        stride: u32,
        /// Samples read.
        in_length: u32,
        /// Samples written.
        out_length: u32,
        /// Zeros on either side.
        padding: u32,
        /// Unused.
        _pad0: u32,
    }

    /// A matrix-vector product whose result goes to the cache.
    GEMVKVParams {
        /// Outputs: `n_kv_heads·head_dim`.
        n: u32,
        /// Inputs.
        k: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions the cache has room for.
        max_seq_len: u32,
        /// Slot.
        pos: u32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// Sampling by the Gumbel trick among the best.
    GumbelTopKParams {
        /// Size of the vocabulary.
        vocab: u32,
        /// Divides the logits.
        temperature: f32,
        /// Position, which counts the draws.
        position: u32,
        /// Distinguishes seeds.
        seed_offset: u32,
        /// How many of the best may be drawn; 0 for all.
        top_k: u32,
        /// The share of probability that may be drawn.
        top_p: f32,
        /// Penalty on tokens that occurred.
        repeat_penalty: f32,
        /// The least probability, relative to the best, that may be drawn.
        min_p: f32,
    }

    /// Splits rows of Q, K and V side by side into three buffers.
    QKVSplitParams {
        /// Rows.
        seq_len: u32,
        /// Elements of Q.
        q_dim: u32,
        /// Elements of K and of V.
        kv_dim: u32,
        /// Elements of a row.
        qkv_dim: u32,
    }

    /// What Whisper's decoder may not say.
    WhisperSuppressParams {
        /// The first special token.
        first_special: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
        /// End of the text.
        eot: u32,
        /// Whether a segment may begin with a blank.
        suppress_blank: u32,
    }

    /// The sampler's settings as a host passes them.
    SamplingParams {
        /// Divides the logits.
        temperature: f32,
        /// How many of the best may be drawn; 0 for all.
        top_k: u32,
        /// The share of probability that may be drawn.
        top_p: f32,
        /// The least probability, relative to the best, that may be drawn.
        min_p: f32,
        /// Penalty on tokens that occurred.
        repeat_penalty: f32,
        /// Unused.
        _pad0: u32,
        /// Unused.
        _pad1: u32,
        /// Unused.
        _pad2: u32,
    }

    /// The norm's epsilon of the fused head norm, a binding of its own in the seed.
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

    /// Rotary embedding of `[batch, heads, seq_len, head_dim]` by given angles, its last elements turned.
    RoPEOpParams {
        /// Sequences.
        batch: u32,
        /// Heads.
        n_heads: u32,
        /// Positions.
        seq_len: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Elements that are turned: the last ones.
        rope_dim: u32,
        /// Angles given for each position: `rope_dim`, of which the first half counts, or half as many.
        freqs_dim: u32,
        /// Factor on every element.
        output_scale: f32,
        /// Unused.
        _pad0: u32,
    }

    /// The engine's attention over a paged cache, with what goes before it.
    AttendParams {
        /// Query heads.
        n_heads: u32,
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements from one row of queries, keys and values to the next.
        stride: u32,
        /// How many positions a row sees, itself included; 0 for all.
        window: u32,
        /// Factor on the scores.
        scale: f32,
        /// What scores are bent to stay below; 0 for no bound.
        soft_cap: f32,
        /// Elements that are turned.
        rope_dim: u32,
        /// First element that is turned.
        rope_offset: u32,
        /// Added to the mean square, where heads are normalised.
        eps: f32,
        /// Factor on elements that are not turned.
        pass_scale: f32,
        /// Entries from one row's turns to the next; 0 where all rows have the same.
        turns_stride: u32,
        /// Of the only row, where it is told here.
        position: u32,
    }

    /// How rows of logits are divided among workgroups, for the kernels of `select`.
    SelectParams {
        /// Logits of a row.
        vocab: u32,
        /// Slices of a row, at most 64.
        slices: u32,
        /// Runs of 256 logits in a slice.
        each: u32,
        /// Unused.
        _pad0: u32,
    }

    /// A row's sampler.
    SelectRow {
        /// 0 for the likeliest token.
        temperature: f32,
        /// How many of the likeliest are kept; 0 for all.
        top_k: u32,
        /// The sum of probabilities that is kept; 1 for all.
        top_p: f32,
        /// The least probability that is kept, as a fraction of the largest; 0 for all.
        min_p: f32,
        /// Divides positive and multiplies negative logits of tokens that occurred.
        repetition_penalty: f32,
        /// Subtracted from the logits of tokens that occurred.
        presence_penalty: f32,
        /// Subtracted for each time they occurred.
        frequency_penalty: f32,
        /// How many of the last tokens count.
        penalty_window: u32,
        /// The seed's low half.
        seed_low: u32,
        /// The seed's high half.
        seed_high: u32,
        /// 1 / temperature; 0 for the likeliest token.
        inverse_temperature: f32,
        /// Unused.
        _pad0: u32,
    }

    /// The engine's attention of tiles of rows over a paged cache.
    FlashParams {
        /// Query heads.
        n_heads: u32,
        /// Key and value heads.
        n_kv_heads: u32,
        /// Elements from one row of queries to the next.
        q_stride: u32,
        /// How many positions a row sees back, itself included, and ahead if not causal; 0 for all.
        window: u32,
        /// 1 if a row sees nothing after itself.
        causal: u32,
        /// Factor on queries: what makes scores logarithms to base 2, or, with a cap, its multiples.
        query_scale: f32,
        /// What a score approaches, as a logarithm to base 2; 0 for no cap.
        cap: f32,
        /// Unused.
        _pad0: u32,
    }
}

/// The declaration of a struct by its name, for `#include "params/NAME"`.
pub(crate) fn wgsl(name: &str) -> Option<String> {
    ALL.iter().find(|layout| layout.name == name).map(|layout| layout.wgsl.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_offsets_are_those_naga_computes() {
        for layout in ALL {
            let module = naga::front::wgsl::parse_str(layout.wgsl).unwrap();
            let (_, ty) =
                module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some(layout.name)).unwrap();
            let naga::TypeInner::Struct { members, span } = &ty.inner else {
                panic!("{} is a struct", layout.name)
            };
            assert_eq!(*span as usize, layout.size, "{}", layout.name);
            assert_eq!(layout.size % 16, 0, "{}", layout.name);
            let found: Vec<(&str, usize)> =
                members.iter().map(|m| (m.name.as_deref().unwrap(), m.offset as usize)).collect();
            let expected: Vec<(&str, usize)> =
                layout.fields.iter().map(|(name, _, at)| (*name, *at)).collect();
            assert_eq!(found, expected, "{}", layout.name);
        }
    }

    /// Offsets that hosts patch, and sizes that other programs rely on.
    #[test]
    fn documented_offsets_hold() {
        use std::mem::offset_of;
        assert_eq!((size_of::<RoPEParams>(), offset_of!(RoPEParams, pos_offset)), (32, 12));
        assert_eq!((size_of::<RoPEQKVWriteParams>(), offset_of!(RoPEQKVWriteParams, pos)), (48, 12));
        assert_eq!(offset_of!(RoPEQKVWriteParams, freq_scale), 32);
        assert_eq!((size_of::<AttentionParams>(), offset_of!(AttentionParams, kv_seq_len)), (32, 4));
        assert_eq!((size_of::<KVCacheWriteParams>(), offset_of!(KVCacheWriteParams, pos)), (32, 12));
        assert_eq!((size_of::<GEMVKVParams>(), offset_of!(GEMVKVParams, pos)), (32, 16));
        assert_eq!((size_of::<GumbelTopKParams>(), offset_of!(GumbelTopKParams, position)), (32, 8));
        let of_sixteen = [
            "ElementwiseParams",
            "RMSNormParams",
            "LayerNormParams",
            "SoftmaxParams",
            "EmbeddingParams",
            "TemperatureScaleParams",
            "RepetitionPenaltyParams",
            "QKVSplitParams",
            "WhisperSuppressParams",
            "NormEpsParams",
            "RoPEDims",
            "RoPEBase",
            "QuantizeParams",
            "SelectParams",
            "F16RowsParams",
        ];
        for layout in ALL {
            let expected = match layout.name {
                "RoPEQKVWriteParams" | "AttendParams" | "SelectRow" => 48,
                name if of_sixteen.contains(&name) => 16,
                _ => 32,
            };
            assert_eq!(layout.size, expected, "{}", layout.name);
        }
    }
}
