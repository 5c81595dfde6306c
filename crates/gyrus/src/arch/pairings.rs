//! The rotary pairing of each architecture. Model files do not contain it.

use gyrus_kernels::Pairing;

/// GGUF architectures with adjacent pairs, most of them because their converter permutes rows.
const GGUF_ADJACENT: &[&str] = &[
    "arcee",
    "arctic",
    "baichuan",
    "bailingmoe",
    "chameleon",
    "chatglm",
    "cohere2",
    "cohere2moe",
    "command-r",
    "deci",
    "deepseek",
    "deepseek2",
    "deepseek2-ocr",
    "deepseek32",
    "ernie4_5",
    "ernie4_5-moe",
    "glm4",
    "glm-dsa",
    "granite",
    "granitehybrid",
    "granitemoe",
    "internlm2",
    "llada",
    "llama",
    "llama4",
    "llama-embed",
    "minicpm",
    "mistral3",
    "mistral4",
    "neo-bert",
    "olmo",
    "plm",
    "smollm3",
    "xverse",
];

/// GGUF architectures with split pairs.
const GGUF_SPLIT: &[&str] = &[
    "afmoe",
    "apertus",
    "bailingmoe2",
    "bitnet",
    "codeshell",
    "cogvlm",
    "dbrx",
    "dots1",
    "dream",
    "eurobert",
    "exaone",
    "exaone4",
    "falcon",
    "falcon-h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma-embedding",
    "glm4moe",
    "gpt-oss",
    "gptneox",
    "grok",
    "grovemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan-vl",
    "jina-bert-v3",
    "laguna",
    "lfm2",
    "lfm2moe",
    "mimo2",
    "minicpm3",
    "minimax-m2",
    "modern-bert",
    "nemotron",
    "nomic-bert",
    "nomic-bert-moe",
    "olmo2",
    "olmoe",
    "openelm",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "phi2",
    "phi3",
    "phimoe",
    "plamo",
    "plamo2",
    "plamo3",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "seed_oss",
    "smallthinker",
    "stablelm",
    "starcoder2",
    "step35",
];

/// GGUF architectures with interleaved M-RoPE sections. The file contains the sizes of the sections only.
const GGUF_INTERLEAVED: &[&str] = &["qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"];

/// Hugging Face `model_type`s with adjacent pairs. DeepSeek V3 and its relatives have a `rope_interleave` field too.
const CONFIG_ADJACENT: &[&str] = &[
    "blt",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v4",
    "ernie4_5",
    "ernie4_5_moe",
    "glm",
    "glm4",
    "glm4v_text",
    "glm_ocr_text",
    "gptj",
    "helium",
    "kimi_k2",
    "llama4_text",
    "moonshine",
];

/// The pairing of a GGUF architecture. M-RoPE always has split pairs there.
pub(super) fn gguf(architecture: &str, sections: bool) -> Option<Pairing> {
    if sections || GGUF_SPLIT.contains(&architecture) {
        return Some(Pairing::Split);
    }
    GGUF_ADJACENT.contains(&architecture).then_some(Pairing::Adjacent)
}

/// Whether a GGUF architecture interleaves its M-RoPE sections.
pub(super) fn gguf_interleaved(architecture: &str) -> bool {
    GGUF_INTERLEAVED.contains(&architecture)
}

/// The pairing of a Hugging Face `model_type`; split is the default.
pub(super) fn config(model_type: &str) -> Pairing {
    if CONFIG_ADJACENT.contains(&model_type) { Pairing::Adjacent } else { Pairing::Split }
}
