//! Published parameter structs without a kernel in this crate. Other programs rely on their layout.

use crate::params::params;

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
        /// Factor on the previous contents of C.
        beta: f32,
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
        /// Positions of the cache.
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

    /// A matrix-vector product whose result goes to the cache.
    GEMVKVParams {
        /// Outputs: `n_kv_heads·head_dim`.
        n: u32,
        /// Inputs.
        k: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Positions of the cache.
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

    /// Sampling among the top-k by the Gumbel-max trick.
    GumbelTopKParams {
        /// Size of the vocabulary.
        vocab: u32,
        /// Divides the logits.
        temperature: f32,
        /// Position, which counts the draws.
        position: u32,
        /// Distinguishes seeds.
        seed_offset: u32,
        /// top-k: tokens that may be drawn; 0 for all.
        top_k: u32,
        /// top-p: the share of probability that may be drawn.
        top_p: f32,
        /// Penalty on tokens that occurred.
        repeat_penalty: f32,
        /// min-p: the least probability, relative to the largest, that may be drawn.
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

    /// Tokens that Whisper's decoder suppresses.
    WhisperSuppressParams {
        /// The first special token.
        first_special: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
        /// The end-of-text token.
        eot: u32,
        /// Whether a segment may begin with a blank.
        suppress_blank: u32,
    }

    /// The sampler's settings as a host passes them.
    SamplingParams {
        /// Divides the logits.
        temperature: f32,
        /// top-k: tokens that may be drawn; 0 for all.
        top_k: u32,
        /// top-p: the share of probability that may be drawn.
        top_p: f32,
        /// min-p: the least probability, relative to the largest, that may be drawn.
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
}
