//! What files call the tensors of a decoder.

/// Frequency factors of the rotary embedding in GGUF files.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// LongRoPE's factors for sequences within the original context.
pub(crate) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
/// LongRoPE's factors for sequences beyond it.
pub(crate) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// The tensors outside the layers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Global {
    Embedding,
    OutputNorm,
    Output,
}

/// The tensors of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    AttentionNorm,
    Q,
    K,
    V,
    QNorm,
    KNorm,
    AttentionOutput,
    FfnNorm,
    Gate,
    Up,
    Down,
}

/// A file's naming scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    Gguf,
    HuggingFace,
}

impl Names {
    pub(crate) fn global(self, tensor: Global) -> &'static str {
        match (self, tensor) {
            (Names::Gguf, Global::Embedding) => "token_embd.weight",
            (Names::Gguf, Global::OutputNorm) => "output_norm.weight",
            (Names::Gguf, Global::Output) => "output.weight",
            (Names::HuggingFace, Global::Embedding) => "model.embed_tokens.weight",
            (Names::HuggingFace, Global::OutputNorm) => "model.norm.weight",
            (Names::HuggingFace, Global::Output) => "lm_head.weight",
        }
    }

    pub(crate) fn layer(self, layer: usize, part: Part) -> String {
        let (prefix, part) = match self {
            Names::Gguf => ("blk", gguf(part)),
            Names::HuggingFace => ("model.layers", hugging_face(part)),
        };
        format!("{prefix}.{layer}.{part}.weight")
    }
}

fn gguf(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "attn_norm",
        Part::Q => "attn_q",
        Part::K => "attn_k",
        Part::V => "attn_v",
        Part::QNorm => "attn_q_norm",
        Part::KNorm => "attn_k_norm",
        Part::AttentionOutput => "attn_output",
        Part::FfnNorm => "ffn_norm",
        Part::Gate => "ffn_gate",
        Part::Up => "ffn_up",
        Part::Down => "ffn_down",
    }
}

fn hugging_face(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "input_layernorm",
        Part::Q => "self_attn.q_proj",
        Part::K => "self_attn.k_proj",
        Part::V => "self_attn.v_proj",
        Part::QNorm => "self_attn.q_norm",
        Part::KNorm => "self_attn.k_norm",
        Part::AttentionOutput => "self_attn.o_proj",
        Part::FfnNorm => "post_attention_layernorm",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
    }
}
