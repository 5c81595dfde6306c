//! The names of a decoder's tensors in GGUF files and in Hugging Face's layout.

use gyrus_formats::Checkpoint;

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
    PerLayerEmbedding,
    PerLayerProjection,
    PerLayerNorm,
}

/// The tensors of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerTensor {
    AttentionNorm,
    Q,
    K,
    V,
    /// Q, K and V, one below the other.
    Qkv,
    QNorm,
    KNorm,
    Sinks,
    AttentionOutput,
    AttentionPostNorm,
    FfnNorm,
    Gate,
    Up,
    /// Gate and up, one below the other.
    GateUp,
    Down,
    FfnPostNorm,
    /// The norm of the dense feed-forward's result, if experts run beside it.
    DensePostNorm,
    /// The norm of the experts' input, and of their result.
    ExpertsNorm,
    ExpertsPostNorm,
    /// Queries, keys and values of Gated DeltaNet, one below the other.
    DeltaQkv,
    /// Its output gate.
    DeltaGate,
    DeltaBeta,
    DeltaAlpha,
    /// Queries, keys, values and output gate of one key head after the other.
    DeltaQkvz,
    /// The two gates of value heads, of one key head after the other.
    DeltaBetaAlpha,
    DeltaTaps,
    DeltaA,
    DeltaBias,
    DeltaNorm,
    DeltaOutput,
    InputGate,
    InputProjection,
    InputPostNorm,
    OutputScale,
}

/// A file's naming scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TensorNames {
    Gguf,
    HuggingFace {
        /// What is before the names of the language model's tensors.
        prefix: &'static str,
        /// What is before the output matrix's name.
        output: &'static str,
        /// Whether the results of attention and feed-forward are normalised, so that the norm of the feed-forward's
        /// input has another name.
        post_norms: bool,
    },
}

/// What is before the names of the language model's tensors, and of its output matrix: in a file of its own, and in
/// multimodal files of different ages.
const PREFIXES: [(&str, &str); 4] =
    [("model.", ""), ("model.language_model.", ""), ("language_model.model.", "language_model."), ("", "")];

/// What the names of other towers' tensors begin with in multimodal files. They are not loaded.
pub(crate) const OTHER_TOWERS: [&str; 12] = [
    "vision_tower.",
    "vision_model.",
    "visual.",
    "model.vision_tower.",
    "model.visual.",
    "model.vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
];

/// What the names of layers that predict several tokens begin with, where they are not behind the other layers. They are not
/// loaded.
pub(crate) const PREDICTION_LAYERS: [&str; 2] = ["mtp.", "model.mtp."];

impl TensorNames {
    /// The scheme of a file in Hugging Face's layout: the first under which it has an embedding matrix.
    pub(crate) fn hugging_face(model: &Checkpoint, post_norms: bool) -> TensorNames {
        let schemes =
            PREFIXES.map(|(prefix, output)| TensorNames::HuggingFace { prefix, output, post_norms });
        let has = |names: &TensorNames| model.tensor(&names.global(GlobalTensor::Embedding)).is_some();
        let [first, ..] = &schemes;
        schemes.iter().find(|names| has(names)).unwrap_or(first).clone()
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self, TensorNames::Gguf)
    }

    pub(crate) fn global(&self, tensor: GlobalTensor) -> String {
        match self {
            TensorNames::Gguf => match tensor {
                GlobalTensor::Embedding => "token_embd.weight",
                GlobalTensor::OutputNorm => "output_norm.weight",
                GlobalTensor::Output => "output.weight",
                GlobalTensor::PerLayerEmbedding => "per_layer_token_embd.weight",
                GlobalTensor::PerLayerProjection => "per_layer_model_proj.weight",
                GlobalTensor::PerLayerNorm => "per_layer_proj_norm.weight",
            }
            .to_owned(),
            TensorNames::HuggingFace { prefix, output, .. } => match tensor {
                GlobalTensor::Embedding => format!("{prefix}embed_tokens.weight"),
                GlobalTensor::OutputNorm => format!("{prefix}norm.weight"),
                GlobalTensor::Output => format!("{output}lm_head.weight"),
                GlobalTensor::PerLayerEmbedding => format!("{prefix}embed_tokens_per_layer.weight"),
                GlobalTensor::PerLayerProjection => format!("{prefix}per_layer_model_projection.weight"),
                GlobalTensor::PerLayerNorm => format!("{prefix}per_layer_projection_norm.weight"),
            },
        }
    }

    pub(crate) fn layer(&self, layer: usize, part: LayerTensor) -> String {
        match (self, part) {
            // Names without the suffix.
            (
                TensorNames::HuggingFace { .. },
                LayerTensor::OutputScale | LayerTensor::Sinks | LayerTensor::DeltaBias,
            )
            | (_, LayerTensor::DeltaA) => self.stem(layer, part),
            (TensorNames::Gguf, LayerTensor::DeltaBias) => self.bias(layer, part),
            _ => format!("{}.weight", self.stem(layer, part)),
        }
    }

    pub(crate) fn bias(&self, layer: usize, part: LayerTensor) -> String {
        format!("{}.bias", self.stem(layer, part))
    }

    fn stem(&self, layer: usize, part: LayerTensor) -> String {
        match self {
            TensorNames::Gguf => format!("blk.{layer}.{}", gguf(part)),
            TensorNames::HuggingFace { prefix, post_norms, .. } => {
                format!("{prefix}layers.{layer}.{}", hugging_face(part, *post_norms))
            }
        }
    }
}

fn gguf(part: LayerTensor) -> &'static str {
    match part {
        LayerTensor::AttentionNorm => "attn_norm",
        LayerTensor::Q => "attn_q",
        LayerTensor::K => "attn_k",
        LayerTensor::V => "attn_v",
        LayerTensor::Qkv => "attn_qkv",
        LayerTensor::QNorm => "attn_q_norm",
        LayerTensor::KNorm => "attn_k_norm",
        LayerTensor::Sinks => "attn_sinks",
        LayerTensor::AttentionOutput => "attn_output",
        LayerTensor::AttentionPostNorm => "post_attention_norm",
        LayerTensor::FfnNorm => "ffn_norm",
        LayerTensor::Gate => "ffn_gate",
        LayerTensor::Up | LayerTensor::GateUp => "ffn_up",
        LayerTensor::Down => "ffn_down",
        LayerTensor::FfnPostNorm => "post_ffw_norm",
        LayerTensor::DensePostNorm => "post_ffw_norm_1",
        LayerTensor::ExpertsNorm => "pre_ffw_norm_2",
        LayerTensor::ExpertsPostNorm => "post_ffw_norm_2",
        LayerTensor::DeltaQkv => "attn_qkv",
        LayerTensor::DeltaGate => "attn_gate",
        LayerTensor::DeltaBeta => "ssm_beta",
        LayerTensor::DeltaAlpha => "ssm_alpha",
        LayerTensor::DeltaQkvz => "ssm_in",
        LayerTensor::DeltaBetaAlpha => "ssm_ba",
        LayerTensor::DeltaTaps => "ssm_conv1d",
        LayerTensor::DeltaA => "ssm_a",
        LayerTensor::DeltaBias => "ssm_dt",
        LayerTensor::DeltaNorm => "ssm_norm",
        LayerTensor::DeltaOutput => "ssm_out",
        LayerTensor::InputGate => "inp_gate",
        LayerTensor::InputProjection => "proj",
        LayerTensor::InputPostNorm => "post_norm",
        LayerTensor::OutputScale => "layer_output_scale",
    }
}

fn hugging_face(part: LayerTensor, post_norms: bool) -> &'static str {
    match part {
        LayerTensor::AttentionNorm => "input_layernorm",
        LayerTensor::Q => "self_attn.q_proj",
        LayerTensor::K => "self_attn.k_proj",
        LayerTensor::V => "self_attn.v_proj",
        LayerTensor::Qkv => "self_attn.qkv_proj",
        LayerTensor::QNorm => "self_attn.q_norm",
        LayerTensor::KNorm => "self_attn.k_norm",
        LayerTensor::Sinks => "self_attn.sinks",
        LayerTensor::AttentionOutput => "self_attn.o_proj",
        LayerTensor::AttentionPostNorm => "post_attention_layernorm",
        LayerTensor::FfnNorm if post_norms => "pre_feedforward_layernorm",
        LayerTensor::FfnNorm => "post_attention_layernorm",
        LayerTensor::Gate => "mlp.gate_proj",
        LayerTensor::Up => "mlp.up_proj",
        LayerTensor::GateUp => "mlp.gate_up_proj",
        LayerTensor::Down => "mlp.down_proj",
        LayerTensor::FfnPostNorm => "post_feedforward_layernorm",
        LayerTensor::DensePostNorm => "post_feedforward_layernorm_1",
        LayerTensor::ExpertsNorm => "pre_feedforward_layernorm_2",
        LayerTensor::ExpertsPostNorm => "post_feedforward_layernorm_2",
        LayerTensor::DeltaQkv => "linear_attn.in_proj_qkv",
        LayerTensor::DeltaGate => "linear_attn.in_proj_z",
        LayerTensor::DeltaBeta => "linear_attn.in_proj_b",
        LayerTensor::DeltaAlpha => "linear_attn.in_proj_a",
        LayerTensor::DeltaQkvz => "linear_attn.in_proj_qkvz",
        LayerTensor::DeltaBetaAlpha => "linear_attn.in_proj_ba",
        LayerTensor::DeltaTaps => "linear_attn.conv1d",
        LayerTensor::DeltaA => "linear_attn.A_log",
        LayerTensor::DeltaBias => "linear_attn.dt_bias",
        LayerTensor::DeltaNorm => "linear_attn.norm",
        LayerTensor::DeltaOutput => "linear_attn.out_proj",
        LayerTensor::InputGate => "per_layer_input_gate",
        LayerTensor::InputProjection => "per_layer_projection",
        LayerTensor::InputPostNorm => "post_per_layer_input_norm",
        LayerTensor::OutputScale => "layer_scalar",
    }
}
