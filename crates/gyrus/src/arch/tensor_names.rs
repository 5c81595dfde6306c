//! The names of a decoder's tensors in GGUF files and in Hugging Face's layout.

/// Frequency factors of the rotary embedding in GGUF files.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// LongRoPE's factors for sequences within the original context.
pub(crate) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
/// LongRoPE's factors for longer sequences.
pub(crate) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// The tensors outside the layers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GlobalTensor {
    Embedding,
    OutputNorm,
    Output,
}

/// The tensors of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerTensor {
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
pub(crate) enum TensorNames {
    Gguf,
    HuggingFace,
}

impl TensorNames {
    pub(crate) fn global(self, tensor: GlobalTensor) -> &'static str {
        match (self, tensor) {
            (TensorNames::Gguf, GlobalTensor::Embedding) => "token_embd.weight",
            (TensorNames::Gguf, GlobalTensor::OutputNorm) => "output_norm.weight",
            (TensorNames::Gguf, GlobalTensor::Output) => "output.weight",
            (TensorNames::HuggingFace, GlobalTensor::Embedding) => "model.embed_tokens.weight",
            (TensorNames::HuggingFace, GlobalTensor::OutputNorm) => "model.norm.weight",
            (TensorNames::HuggingFace, GlobalTensor::Output) => "lm_head.weight",
        }
    }

    pub(crate) fn layer(self, layer: usize, part: LayerTensor) -> String {
        let (prefix, part) = match self {
            TensorNames::Gguf => ("blk", gguf(part)),
            TensorNames::HuggingFace => ("model.layers", hugging_face(part)),
        };
        format!("{prefix}.{layer}.{part}.weight")
    }
}

fn gguf(part: LayerTensor) -> &'static str {
    match part {
        LayerTensor::AttentionNorm => "attn_norm",
        LayerTensor::Q => "attn_q",
        LayerTensor::K => "attn_k",
        LayerTensor::V => "attn_v",
        LayerTensor::QNorm => "attn_q_norm",
        LayerTensor::KNorm => "attn_k_norm",
        LayerTensor::AttentionOutput => "attn_output",
        LayerTensor::FfnNorm => "ffn_norm",
        LayerTensor::Gate => "ffn_gate",
        LayerTensor::Up => "ffn_up",
        LayerTensor::Down => "ffn_down",
    }
}

fn hugging_face(part: LayerTensor) -> &'static str {
    match part {
        LayerTensor::AttentionNorm => "input_layernorm",
        LayerTensor::Q => "self_attn.q_proj",
        LayerTensor::K => "self_attn.k_proj",
        LayerTensor::V => "self_attn.v_proj",
        LayerTensor::QNorm => "self_attn.q_norm",
        LayerTensor::KNorm => "self_attn.k_norm",
        LayerTensor::AttentionOutput => "self_attn.o_proj",
        LayerTensor::FfnNorm => "post_attention_layernorm",
        LayerTensor::Gate => "mlp.gate_proj",
        LayerTensor::Up => "mlp.up_proj",
        LayerTensor::Down => "mlp.down_proj",
    }
}
