#!/usr/bin/env python3
"""Dequantises a GGUF model of Qwen 2 into a GGUF file of F16 and a SafeTensors folder of BF16 with the same values.

float_model.py MODEL.gguf OUT       (pip install gguf numpy) writes OUT/f16.gguf and OUT/bf16/

Values are rounded to BF16 first; F16 has them all but the tiniest. The folder has the tokenizer, too. The two are for
measuring what a container costs at load (docs/benchmarks.md).
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
GLOBAL = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
          "output_norm.weight": "model.norm.weight"}
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def bf16(values):
    """The 16 bits of the nearest BF16 of each value."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def renamed(name):
    if name in GLOBAL:
        return GLOBAL[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}"


def tokenizer(reader, folder):
    strings = lambda key: [bytes(reader.fields[key].parts[i]).decode() for i in reader.fields[key].data]
    types = reader.fields["tokenizer.ggml.token_type"]
    kinds = [int(types.parts[i][0]) for i in types.data]
    tokens = strings("tokenizer.ggml.tokens")
    normal = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == 1}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind == 3} for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (3, 4)]
    split = [{"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": normal,
                  "merges": [merge.split(" ") for merge in strings("tokenizer.ggml.merges")]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False))
    template = bytes(reader.fields["tokenizer.chat_template"].parts[-1]).decode()
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def config(reader, tied):
    number = lambda key: reader.fields[f"qwen2.{key}"].parts[-1][0].item()
    return {
        "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": tied,
        "hidden_size": number("embedding_length"), "num_hidden_layers": number("block_count"),
        "max_position_embeddings": number("context_length"), "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"), "rope_theta": number("rope.freq_base"),
        "num_key_value_heads": number("attention.head_count_kv"), "eos_token_id": 151645, "bos_token_id": 151643,
        "rms_norm_eps": round(number("attention.layer_norm_rms_epsilon"), 9), "use_sliding_window": False,
    }


def main(model, out):
    reader, folder = gguf.GGUFReader(model), pathlib.Path(out) / "bf16"
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder.parent / "f16.gguf", "qwen2")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    header, parts, at = {}, [], 0
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        stored = bf16(values)
        rounded = (stored.astype(np.uint32) << 16).view(np.float32)
        writer.add_tensor(tensor.name, rounded.astype(np.float16 if values.ndim > 1 else np.float32))
        header[renamed(tensor.name)] = {"dtype": "BF16", "shape": list(values.shape),
                                        "data_offsets": [at, at + stored.nbytes]}
        parts.append(stored)
        at += stored.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part.tobytes())
    (folder / "config.json").write_text(json.dumps(config(reader, "lm_head.weight" not in header), indent=1))
    tokenizer(reader, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
