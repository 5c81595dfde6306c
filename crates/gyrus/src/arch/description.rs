//! The architectures, each a description. The reader and the plan builder know no architecture by name.

use gyrus_kernels::Activation;

use super::config::QkNorm;
use super::expert_names::ExpertNames;
use super::tensor_names::LayerTensor;

/// A family of models that share a forward pass.
///
/// What the file says (sizes, windows, factors) is read by the keys in `reader.rs`. A description has what the file does
/// not say, and which of these keys the architecture has at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arch {
    /// `general.architecture` in GGUF.
    pub(crate) gguf: &'static str,
    /// `model_type` values in `config.json`.
    pub(crate) hugging_face: &'static [&'static str],
    /// The function of the feed-forward's gate. A `config.json` that names another is refused.
    pub(crate) activation: Activation,
    /// Whether files in Hugging Face's layout store the weights of norms minus one. GGUF files have the one added.
    pub(crate) norms_minus_one: bool,
    /// Whether the inputs of attention and feed-forward are normalised.
    pub(crate) pre_norms: bool,
    /// Whether their results are.
    pub(crate) post_norms: bool,
    /// The norm of queries and keys.
    pub(crate) qk_norm: QkNorm,
    /// Whether value heads are normalised.
    pub(crate) v_norm: bool,
    /// Whether Q, K and V have a bias.
    pub(crate) qkv_bias: Presence,
    /// Whether the results of attention have a gate.
    pub(crate) output_gate: bool,
    /// The tensors of Gated DeltaNet, if some layers are.
    pub(crate) delta: Option<DeltaTensors>,
    /// Whether Q, K and V, and gate and up, are one tensor each.
    pub(crate) fused: bool,
    /// Which layers have a sliding window.
    pub(crate) windows: Windows,
    /// Factor on embeddings.
    pub(crate) embedding_scale: Scale,
    /// Factor on attention scores.
    pub(crate) attention_scale: AttentionScale,
    /// Whether scores and logits have a soft cap, where the file gives one.
    pub(crate) soft_caps: bool,
    /// Whether the file has factors on the residual stream and on logits.
    pub(crate) multipliers: bool,
    /// Every how many layers one is not rotated, unless the file lists them.
    pub(crate) no_rope_interval: Option<u64>,
    /// Whether layers may have inputs of their own, share keys and values, and scale their output.
    pub(crate) per_layer_parts: bool,
    /// Whether each head has an attention sink.
    pub(crate) sinks: bool,
    /// The name of the norm before the feed-forward.
    pub(crate) ffn_norm: LayerTensor,
    /// The experts of the feed-forward, if it may have some.
    pub(crate) experts: Option<ExpertParts>,
}

/// What mixtures of experts of an architecture have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertParts {
    /// The names of their tensors in Hugging Face's layout.
    pub(crate) names: ExpertNames,
    /// Whether the weights of the chosen experts add up to 1.
    pub(crate) renormalised: Renormalised,
    /// Whether they run beside a dense feed-forward instead of in place of it. They then have norms of their own, the
    /// router normalises its input, and each expert has a factor.
    pub(crate) beside_dense: bool,
    /// Whether router and experts have biases.
    pub(crate) biases: bool,
    /// Whether there is an expert that every row uses.
    pub(crate) shared: bool,
}

/// How files store the projections of Gated DeltaNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeltaTensors {
    /// Queries, keys and values, the output gate, and each gate of value heads have a tensor. GGUF files have one value
    /// head of each key head in turn.
    ByPart,
    /// One tensor has queries, keys, values and output gate of one key head after the other, and one the gates of value
    /// heads. GGUF files have the former by part, unless they are old, and value heads in the same order.
    ByKeyHead,
}

/// Whether the weights of the chosen experts add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renormalised {
    Always,
    /// The file says so; not if `config.json` does not.
    Given,
}

/// Whether a tensor exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is used if the file has it.
    IfPresent,
    /// A file without it is refused.
    Required,
}

/// Which layers have a sliding window, if the file gives its size and does not list the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// All of them. The window that `config.json` has if it does not name one.
    All(Option<u32>),
    /// All but every n-th.
    AllBut(u64),
    /// Those from `max_window_layers` on, if `use_sliding_window` is true.
    Upper,
}

/// A factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// 1.
    One,
    /// √dim.
    SqrtDim,
    /// The file has it.
    Given,
}

/// The factor on attention scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionScale {
    /// 1 / √head_dim.
    HeadDim,
    /// 1 / √query_pre_attn_scalar. GGUF files do not have that number: it is head_dim except in the model with this many
    /// layers, where it is dim / heads.
    PreAttention { by_width: u64 },
    /// The file has it.
    Given,
    /// 1: the norms of queries and keys scale them.
    One,
}

const LLAMA: Arch = Arch {
    gguf: "llama",
    hugging_face: &["llama"],
    activation: Activation::Silu,
    norms_minus_one: false,
    pre_norms: true,
    post_norms: false,
    qk_norm: QkNorm::None,
    v_norm: false,
    qkv_bias: Presence::IfPresent,
    output_gate: false,
    delta: None,
    fused: false,
    windows: Windows::All(None),
    embedding_scale: Scale::One,
    attention_scale: AttentionScale::HeadDim,
    soft_caps: false,
    multipliers: false,
    no_rope_interval: None,
    per_layer_parts: false,
    sinks: false,
    ffn_norm: LayerTensor::FfnNorm,
    experts: None,
};

/// GGUF files of Mistral have the architecture `llama`.
const MISTRAL: Arch = Arch { hugging_face: &["mistral"], windows: Windows::All(Some(4096)), ..LLAMA };

/// GGUF files of Mixtral have the architecture `llama`, too.
const MIXTRAL: Arch = Arch {
    hugging_face: &["mixtral"],
    experts: Some(ExpertParts {
        names: ExpertNames::Mixtral,
        renormalised: Renormalised::Always,
        beside_dense: false,
        biases: false,
        shared: false,
    }),
    ..LLAMA
};

const QWEN2: Arch = Arch {
    gguf: "qwen2",
    hugging_face: &["qwen2"],
    qkv_bias: Presence::Required,
    windows: Windows::Upper,
    ..LLAMA
};

const QWEN3: Arch = Arch {
    gguf: "qwen3",
    hugging_face: &["qwen3"],
    qk_norm: QkNorm::PerHead,
    windows: Windows::Upper,
    ..LLAMA
};

const QWEN3_MOE: Arch = Arch {
    gguf: "qwen3moe",
    hugging_face: &["qwen3_moe"],
    experts: Some(ExpertParts {
        names: ExpertNames::Qwen,
        renormalised: Renormalised::Given,
        beside_dense: false,
        biases: false,
        shared: false,
    }),
    ..QWEN3
};

const GPT_OSS: Arch = Arch {
    gguf: "gpt-oss",
    hugging_face: &["gpt_oss"],
    activation: Activation::ClampedSwish,
    qkv_bias: Presence::Required,
    windows: Windows::AllBut(2),
    sinks: true,
    ffn_norm: LayerTensor::AttentionPostNorm,
    experts: Some(ExpertParts {
        names: ExpertNames::GptOss,
        renormalised: Renormalised::Always,
        beside_dense: false,
        biases: true,
        shared: false,
    }),
    ..LLAMA
};

const GEMMA: Arch = Arch {
    gguf: "gemma",
    hugging_face: &["gemma"],
    activation: Activation::GeluTanh,
    norms_minus_one: true,
    embedding_scale: Scale::SqrtDim,
    ..LLAMA
};

const GEMMA2: Arch = Arch {
    gguf: "gemma2",
    hugging_face: &["gemma2"],
    post_norms: true,
    windows: Windows::AllBut(2),
    attention_scale: AttentionScale::PreAttention { by_width: 46 },
    soft_caps: true,
    ..GEMMA
};

const GEMMA3: Arch = Arch {
    gguf: "gemma3",
    hugging_face: &["gemma3_text", "gemma3"],
    qk_norm: QkNorm::PerHead,
    windows: Windows::AllBut(6),
    attention_scale: AttentionScale::PreAttention { by_width: 62 },
    ..GEMMA2
};

const GEMMA4: Arch = Arch {
    gguf: "gemma4",
    hugging_face: &["gemma4_text", "gemma4"],
    norms_minus_one: false,
    v_norm: true,
    attention_scale: AttentionScale::One,
    per_layer_parts: true,
    experts: Some(ExpertParts {
        names: ExpertNames::Gemma,
        renormalised: Renormalised::Always,
        beside_dense: true,
        biases: false,
        shared: false,
    }),
    ..GEMMA3
};

const PHI3: Arch = Arch { gguf: "phi3", hugging_face: &["phi3"], fused: true, ..LLAMA };

const SMOLLM3: Arch = Arch {
    gguf: "smollm3",
    hugging_face: &["smollm3"],
    windows: Windows::Upper,
    no_rope_interval: Some(4),
    ..LLAMA
};

const GRANITE: Arch = Arch {
    gguf: "granite",
    hugging_face: &["granite"],
    embedding_scale: Scale::Given,
    attention_scale: AttentionScale::Given,
    multipliers: true,
    ..LLAMA
};

const OLMO2: Arch = Arch {
    gguf: "olmo2",
    hugging_face: &["olmo2"],
    pre_norms: false,
    post_norms: true,
    qk_norm: QkNorm::Whole,
    ..LLAMA
};

/// Hybrids of attention and Gated DeltaNet.
const QWEN35: Arch = Arch {
    gguf: "qwen35",
    hugging_face: &["qwen3_5_text", "qwen3_5"],
    norms_minus_one: true,
    qk_norm: QkNorm::PerHead,
    output_gate: true,
    delta: Some(DeltaTensors::ByPart),
    ffn_norm: LayerTensor::AttentionPostNorm,
    ..LLAMA
};

/// Hybrids with experts, of which every row uses one.
const QWEN35_MOE: Arch = Arch {
    gguf: "qwen35moe",
    hugging_face: &["qwen3_5_moe_text", "qwen3_5_moe"],
    experts: Some(ExpertParts {
        names: ExpertNames::Qwen,
        renormalised: Renormalised::Always,
        beside_dense: false,
        biases: false,
        shared: true,
    }),
    ..QWEN35
};

/// Qwen3-Next: the same parts, other tensors.
const QWEN3_NEXT: Arch = Arch {
    gguf: "qwen3next",
    hugging_face: &["qwen3_next"],
    delta: Some(DeltaTensors::ByKeyHead),
    experts: Some(ExpertParts {
        names: ExpertNames::Qwen,
        renormalised: Renormalised::Given,
        beside_dense: false,
        biases: false,
        shared: true,
    }),
    ..QWEN35
};

/// The dense models of ERNIE 4.5.
const ERNIE: Arch = Arch { gguf: "ernie4_5", hugging_face: &["ernie4_5"], ..LLAMA };

/// All architectures.
pub(crate) const ARCHS: &[Arch] = &[
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GPT_OSS, GEMMA, GEMMA2, GEMMA3, GEMMA4, PHI3, SMOLLM3,
    GRANITE, OLMO2, QWEN35, QWEN35_MOE, QWEN3_NEXT, ERNIE,
];

/// The architecture of a GGUF file. Several may have the same name; of these only some have experts.
pub(crate) fn of_gguf(name: &str, has_experts: bool) -> Result<&'static Arch, crate::Error> {
    let named = || ARCHS.iter().filter(|arch| arch.gguf == name);
    let found = named().find(|arch| arch.experts.is_some() == has_experts).or(named().next());
    find(name, found, |arch| vec![arch.gguf])
}

/// The architecture of a `config.json`.
pub(crate) fn of_model_type(name: &str) -> Result<&'static Arch, crate::Error> {
    let found = ARCHS.iter().find(|arch| arch.hugging_face.contains(&name));
    find(name, found, |arch| arch.hugging_face.to_vec())
}

fn find(
    name: &str,
    found: Option<&'static Arch>,
    names: impl Fn(&Arch) -> Vec<&'static str>,
) -> Result<&'static Arch, crate::Error> {
    found.ok_or_else(|| {
        let mut known: Vec<&str> = ARCHS.iter().flat_map(names).collect();
        known.dedup();
        crate::Error::Architecture { found: name.to_owned(), known: known.join(", ") }
    })
}

/// The table of `docs/architectures.md`: which parts each architecture has.
#[cfg(test)]
pub(super) fn table() -> String {
    let mut text = String::from(
        "| GGUF | config.json | norms | Q and K norm | window | rope | attention | other parts |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for arch in ARCHS {
        let norms = match (arch.pre_norms, arch.post_norms) {
            (true, true) => "before and after",
            (false, true) => "after",
            _ => "before",
        };
        let norms = if arch.norms_minus_one { format!("{norms}, `1 + w`") } else { norms.to_owned() };
        let qk = match arch.qk_norm {
            QkNorm::None => "–",
            QkNorm::PerHead => "per head",
            QkNorm::Whole => "all heads",
        };
        let window = match arch.windows {
            Windows::All(None) => "all layers, if given".to_owned(),
            Windows::All(Some(default)) => format!("all layers, {default} if not given"),
            Windows::AllBut(period) => format!("all but every {period}. layer"),
            Windows::Upper => "upper layers, if used".to_owned(),
        };
        let rope = match arch.no_rope_interval {
            Some(interval) => format!("not in every {interval}. layer"),
            None => "all layers".to_owned(),
        };
        let mut attention = vec![match arch.attention_scale {
            AttentionScale::HeadDim => "1/√d",
            AttentionScale::PreAttention { .. } => "1/√query_pre_attn_scalar",
            AttentionScale::Given => "given scale",
            AttentionScale::One => "scale 1",
        }];
        attention.extend(arch.soft_caps.then_some("soft cap"));
        attention.extend(arch.sinks.then_some("sinks"));
        let bias = if arch.qkv_bias == Presence::Required { "Q, K, V bias" } else { "" };
        let scale = match arch.embedding_scale {
            Scale::One => "",
            Scale::SqrtDim => "embedding × √dim",
            Scale::Given => "given embedding scale",
        };
        let others = [
            match arch.activation {
                Activation::GeluTanh => "GELU gate",
                Activation::ClampedSwish => "clamped gate",
                _ => "SiLU gate",
            },
            bias,
            scale,
            if arch.fused { "fused tensors" } else { "" },
            if arch.v_norm { "V norm" } else { "" },
            if arch.output_gate { "gated attention" } else { "" },
            if arch.delta.is_some() { "Gated DeltaNet layers" } else { "" },
            if arch.multipliers { "residual and logit scale" } else { "" },
            if arch.per_layer_parts { "per-layer inputs, shared KV, layer scale" } else { "" },
            match arch.experts {
                Some(ExpertParts { beside_dense: true, .. }) => "experts beside the feed-forward",
                Some(ExpertParts { biases: true, .. }) => "experts with biases",
                Some(ExpertParts { shared: true, .. }) => "experts, one of them shared",
                Some(_) => "experts",
                None => "",
            },
        ];
        let others: Vec<&str> = others.into_iter().filter(|part| !part.is_empty()).collect();
        let names: Vec<String> = arch.hugging_face.iter().map(|name| format!("`{name}`")).collect();
        text += &format!(
            "| `{}` | {} | {norms} | {qk} | {window} | {rope} | {} | {} |\n",
            arch.gguf,
            names.join(", "),
            attention.join(", "),
            others.join(", "),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    /// `docs/architectures.md` has the table that the descriptions give.
    #[test]
    fn the_documentation_lists_the_descriptions() {
        let path = gyrus_testkit::repository().join("docs/architectures.md");
        let text = std::fs::read_to_string(path).unwrap();
        let table = super::table();
        assert!(text.contains(&table), "docs/architectures.md needs this table:\n{table}");
    }
}
