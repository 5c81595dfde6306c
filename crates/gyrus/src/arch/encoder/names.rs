//! The names of an encoder's tensors in GGUF files and in the layouts of Hugging Face's classes.

use gyrus_formats::Checkpoint;

/// The tensors of an encoder. Those of layers have the layer's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tensor {
    Embedding,
    Positions,
    Types,
    EmbeddingNorm,
    FinalNorm,
    Q(usize),
    K(usize),
    V(usize),
    /// Q, K and V, one below the other.
    Qkv(usize),
    AttentionOutput(usize),
    /// The norm before attention, or after it.
    AttentionNorm(usize),
    Gate(usize),
    Up(usize),
    /// Gate and up, one below the other.
    GateUp(usize),
    Down(usize),
    /// The norm before the feed-forward, or after it.
    FeedForwardNorm(usize),
    /// The dense layer of a classifier's head.
    HeadDense,
    HeadNorm,
    HeadOutput,
}

/// The layout of Hugging Face's classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Bert,
    /// Nomic's own class.
    Nomic,
    /// The names that decoders have.
    Llama,
    Modern,
}

/// A file's naming scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Names {
    Gguf {
        /// Whether norms are before attention and feed-forward.
        pre_norms: bool,
    },
    HuggingFace {
        layout: Layout,
        /// What is before the names: classes with a head have their encoder in a part of its own.
        prefix: &'static str,
    },
}

const PREFIXES: [&str; 4] = ["", "bert.", "roberta.", "model."];

impl Names {
    /// The scheme of a file: the first under which it has a norm of its embeddings.
    pub(super) fn of(model: &Checkpoint, layouts: &[Layout], pre_norms: bool) -> Names {
        if model.gguf().is_some() {
            return Names::Gguf { pre_norms };
        }
        let all = layouts
            .iter()
            .flat_map(|layout| PREFIXES.map(|prefix| Names::HuggingFace { layout: *layout, prefix }));
        let has = |names: &Names| model.tensor(&names.weight(Tensor::EmbeddingNorm)).is_some();
        let first = Names::HuggingFace { layout: *layouts.first().unwrap_or(&Layout::Bert), prefix: "" };
        all.clone().find(has).unwrap_or(first)
    }

    /// The name of a weight.
    pub(super) fn weight(&self, tensor: Tensor) -> String {
        format!("{}.weight", self.stem(tensor))
    }

    /// The name of a bias.
    pub(super) fn bias(&self, tensor: Tensor) -> String {
        format!("{}.bias", self.stem(tensor))
    }

    /// What is before the names of tensors that the encoder and its heads have.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Names::Gguf { .. } => "",
            Names::HuggingFace { prefix, .. } => prefix,
        }
    }

    fn stem(&self, tensor: Tensor) -> String {
        match self {
            Names::Gguf { pre_norms } => gguf(tensor, *pre_norms),
            Names::HuggingFace { layout, prefix } => match tensor {
                // The head is beside the encoder, but for BERT's pooler.
                Tensor::HeadDense if *layout == Layout::Bert && *prefix != "roberta." => {
                    format!("{prefix}pooler.dense")
                }
                Tensor::HeadDense if *layout == Layout::Bert => "classifier.dense".to_owned(),
                Tensor::HeadOutput if *prefix == "roberta." => "classifier.out_proj".to_owned(),
                Tensor::HeadDense => "head.dense".to_owned(),
                Tensor::HeadNorm => "head.norm".to_owned(),
                Tensor::HeadOutput => "classifier".to_owned(),
                tensor => format!("{prefix}{}", hugging_face(*layout, tensor)),
            },
        }
    }
}

fn gguf(tensor: Tensor, pre_norms: bool) -> String {
    let (layer, part) = match tensor {
        Tensor::Embedding => return "token_embd".to_owned(),
        Tensor::Positions => return "position_embd".to_owned(),
        Tensor::Types => return "token_types".to_owned(),
        Tensor::EmbeddingNorm => return "token_embd_norm".to_owned(),
        Tensor::FinalNorm => return "output_norm".to_owned(),
        Tensor::HeadDense => return "cls".to_owned(),
        Tensor::HeadNorm => return "cls.norm".to_owned(),
        Tensor::HeadOutput => return "cls.output".to_owned(),
        Tensor::Q(layer) => (layer, "attn_q"),
        Tensor::K(layer) => (layer, "attn_k"),
        Tensor::V(layer) => (layer, "attn_v"),
        Tensor::Qkv(layer) => (layer, "attn_qkv"),
        Tensor::AttentionOutput(layer) => (layer, "attn_output"),
        Tensor::AttentionNorm(layer) => (layer, if pre_norms { "attn_norm" } else { "attn_output_norm" }),
        Tensor::Gate(layer) => (layer, "ffn_gate"),
        Tensor::Up(layer) | Tensor::GateUp(layer) => (layer, "ffn_up"),
        Tensor::Down(layer) => (layer, "ffn_down"),
        Tensor::FeedForwardNorm(layer) => (layer, if pre_norms { "ffn_norm" } else { "layer_output_norm" }),
    };
    format!("blk.{layer}.{part}")
}

fn hugging_face(layout: Layout, tensor: Tensor) -> String {
    let layers = match layout {
        Layout::Bert => "encoder.layer",
        Layout::Nomic => "encoder.layers",
        Layout::Llama | Layout::Modern => "layers",
    };
    // Names of BERT, Nomic, Llama and ModernBERT. A part that a layout does not have is no name of a tensor.
    let [bert, nomic, llama, modern]: [&str; 4] = match tensor {
        Tensor::Embedding => ["embeddings.word_embeddings", "", "", "embeddings.tok_embeddings"],
        Tensor::Positions => ["embeddings.position_embeddings", "", "", ""],
        Tensor::Types => ["embeddings.token_type_embeddings", "", "", ""],
        Tensor::EmbeddingNorm => ["embeddings.LayerNorm", "emb_ln", "", "embeddings.norm"],
        Tensor::FinalNorm => ["", "", "", "final_norm"],
        Tensor::Q(_) => ["attention.self.query", "attn.q", "self_attn.q_proj", "attn.q"],
        Tensor::K(_) => ["attention.self.key", "attn.k", "self_attn.k_proj", "attn.k"],
        Tensor::V(_) => ["attention.self.value", "attn.v", "self_attn.v_proj", "attn.v"],
        Tensor::Qkv(_) => ["attention.self.qkv", "attn.Wqkv", "self_attn.qkv_proj", "attn.Wqkv"],
        Tensor::AttentionOutput(_) => {
            ["attention.output.dense", "attn.out_proj", "self_attn.o_proj", "attn.Wo"]
        }
        Tensor::AttentionNorm(_) => {
            ["attention.output.LayerNorm", "norm1", "post_attention_layernorm", "attn_norm"]
        }
        Tensor::Gate(_) => ["intermediate.gate", "mlp.fc12", "mlp.gate_proj", "mlp.gate"],
        Tensor::Up(_) => ["intermediate.dense", "mlp.fc11", "mlp.up_proj", "mlp.up"],
        Tensor::GateUp(_) => ["intermediate.gate_up", "mlp.fc1", "mlp.gate_up_proj", "mlp.Wi"],
        Tensor::Down(_) => ["output.dense", "mlp.fc2", "mlp.down_proj", "mlp.Wo"],
        Tensor::FeedForwardNorm(_) => ["output.LayerNorm", "norm2", "post_mlp_layernorm", "mlp_norm"],
        Tensor::HeadDense | Tensor::HeadNorm | Tensor::HeadOutput => [""; 4],
    };
    let own = match layout {
        Layout::Bert => bert,
        Layout::Nomic => nomic,
        Layout::Llama => llama,
        Layout::Modern => modern,
    };
    // All classes but ModernBERT's name the parts of embeddings as BERT's does.
    let part = if own.is_empty() { bert } else { own };
    match tensor {
        Tensor::Q(layer)
        | Tensor::K(layer)
        | Tensor::V(layer)
        | Tensor::Qkv(layer)
        | Tensor::AttentionOutput(layer)
        | Tensor::AttentionNorm(layer)
        | Tensor::Gate(layer)
        | Tensor::Up(layer)
        | Tensor::GateUp(layer)
        | Tensor::Down(layer)
        | Tensor::FeedForwardNorm(layer) => format!("{layers}.{layer}.{part}"),
        _ => part.to_owned(),
    }
}
