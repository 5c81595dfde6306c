//! The names of the tensors of experts. Families differ in these, while GGUF has one scheme for all.

use super::tensor_names::TensorNames;

/// How files in Hugging Face's layout name and store experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertNames {
    /// `block_sparse_moe.experts.N.w1`, `w3` and `w2`.
    Mixtral,
    /// `mlp.experts.N.gate_proj`, `up_proj` and `down_proj`, or `mlp.experts.gate_up_proj` and `down_proj` as in Gemma.
    Qwen,
    /// `mlp.experts.gate_up_proj` and `down_proj`: all experts, transposed, gate and up in turn.
    GptOss,
    /// `experts.gate_up_proj` and `down_proj`: all experts, gate above up.
    Gemma,
}

/// The tensors of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertTensor {
    Router,
    RouterBias,
    /// The factor on the router's normalised input.
    RouterScale,
    /// The factor on each expert's weight.
    Scale,
    Gate,
    Up,
    /// Gate and up of each expert, one below the other.
    GateUp,
    Down,
    /// Down of all experts, in files that have [`ExpertTensor::GateUp`].
    StackedDown,
    GateBias,
    UpBias,
    GateUpBias,
    DownBias,
    SharedGate,
    SharedUp,
    SharedDown,
    /// The gate of the shared expert's result.
    SharedRouter,
}

impl TensorNames {
    /// The name of a tensor of a layer's experts. Where each expert has its own, a `*` is in place of its number.
    pub(crate) fn expert(&self, layer: usize, part: ExpertTensor, family: ExpertNames) -> String {
        match self {
            TensorNames::Gguf => format!("blk.{layer}.{}", gguf(part)),
            TensorNames::HuggingFace { prefix, .. } => {
                format!("{prefix}layers.{layer}.{}", hugging_face(part, family))
            }
        }
    }
}

fn gguf(part: ExpertTensor) -> &'static str {
    match part {
        ExpertTensor::Router => "ffn_gate_inp.weight",
        ExpertTensor::RouterBias => "ffn_gate_inp.bias",
        ExpertTensor::RouterScale => "ffn_gate_inp.scale",
        ExpertTensor::Scale => "ffn_down_exps.scale",
        ExpertTensor::Gate => "ffn_gate_exps.weight",
        ExpertTensor::Up => "ffn_up_exps.weight",
        ExpertTensor::GateUp => "ffn_gate_up_exps.weight",
        ExpertTensor::Down | ExpertTensor::StackedDown => "ffn_down_exps.weight",
        ExpertTensor::GateBias => "ffn_gate_exps.bias",
        ExpertTensor::UpBias => "ffn_up_exps.bias",
        ExpertTensor::GateUpBias => "ffn_gate_up_exps.bias",
        ExpertTensor::DownBias => "ffn_down_exps.bias",
        ExpertTensor::SharedGate => "ffn_gate_shexp.weight",
        ExpertTensor::SharedUp => "ffn_up_shexp.weight",
        ExpertTensor::SharedDown => "ffn_down_shexp.weight",
        ExpertTensor::SharedRouter => "ffn_gate_inp_shexp.weight",
    }
}

fn hugging_face(part: ExpertTensor, family: ExpertNames) -> String {
    let (router, experts) = match family {
        ExpertNames::Mixtral => ("block_sparse_moe.gate", "block_sparse_moe.experts"),
        ExpertNames::Qwen => ("mlp.gate", "mlp.experts"),
        ExpertNames::GptOss => ("mlp.router", "mlp.experts"),
        ExpertNames::Gemma => ("router.proj", "experts"),
    };
    let [gate, up, down] = match family {
        ExpertNames::Mixtral => ["w1", "w3", "w2"],
        _ => ["gate_proj", "up_proj", "down_proj"],
    };
    match part {
        ExpertTensor::Router => format!("{router}.weight"),
        ExpertTensor::RouterBias => format!("{router}.bias"),
        ExpertTensor::RouterScale => "router.scale".to_owned(),
        ExpertTensor::Scale => "router.per_expert_scale".to_owned(),
        ExpertTensor::Gate => format!("{experts}.*.{gate}.weight"),
        ExpertTensor::Up => format!("{experts}.*.{up}.weight"),
        ExpertTensor::Down if matches!(family, ExpertNames::Mixtral | ExpertNames::Qwen) => {
            format!("{experts}.*.{down}.weight")
        }
        ExpertTensor::GateUp => format!("{experts}.gate_up_proj"),
        ExpertTensor::Down | ExpertTensor::StackedDown => format!("{experts}.down_proj"),
        ExpertTensor::GateBias => format!("{experts}.*.{gate}.bias"),
        ExpertTensor::UpBias => format!("{experts}.*.{up}.bias"),
        ExpertTensor::GateUpBias => format!("{experts}.gate_up_proj_bias"),
        ExpertTensor::DownBias => format!("{experts}.down_proj_bias"),
        ExpertTensor::SharedGate => "mlp.shared_expert.gate_proj.weight".to_owned(),
        ExpertTensor::SharedUp => "mlp.shared_expert.up_proj.weight".to_owned(),
        ExpertTensor::SharedDown => "mlp.shared_expert.down_proj.weight".to_owned(),
        ExpertTensor::SharedRouter => "mlp.shared_expert_gate.weight".to_owned(),
    }
}
