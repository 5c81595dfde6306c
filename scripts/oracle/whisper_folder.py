#!/usr/bin/env python3
"""Writes a Whisper model of whisper.cpp (GGML) as a SafeTensors folder with the names and files of transformers.

whisper_folder.py ggml-tiny.bin FOLDER
"""
import json
import os
import re
import struct
import sys

from whisper_ggml import read_ggml, split_vocabulary, tokenizer_json

# From OpenAI's names, which GGML has, to those of transformers; in this order.
NAMES = [
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."), (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."), (r"\.cross_attn\.", ".encoder_attn."), (r"\.attn\.", ".self_attn."),
    (r"\.query\.", ".q_proj."), (r"\.key\.", ".k_proj."), (r"\.value\.", ".v_proj."), (r"\.out\.", ".out_proj."),
    (r"\.mlp\.0\.", ".fc1."), (r"\.mlp\.2\.", ".fc2."), (r"\.blocks\.", ".layers."),
    (r"\.positional_embedding$", ".embed_positions.weight"), (r"\.token_embedding\.", ".embed_tokens."),
    (r"^encoder\.ln_post\.", "encoder.layer_norm."), (r"^decoder\.ln\.", "decoder.layer_norm."),
]


def renamed(name):
    for pattern, to in NAMES:
        name = re.sub(pattern, to, name)
    return "model." + name


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


path, folder = sys.argv[1:3]
sizes, tokens, tensors = read_ggml(path)
tokens, special, _ = split_vocabulary(sizes, tokens)
os.makedirs(folder, exist_ok=True)
write_safetensors(f"{folder}/model.safetensors", {renamed(name): tensor for name, tensor in tensors.items()})
end = len(tokens)
config = {
    "model_type": "whisper", "activation_function": "gelu", "vocab_size": sizes["vocab"], "num_mel_bins": sizes["mels"],
    "d_model": sizes["text_state"], "encoder_layers": sizes["audio_layers"], "encoder_attention_heads": sizes["audio_heads"],
    "encoder_ffn_dim": 4 * sizes["audio_state"], "decoder_layers": sizes["text_layers"],
    "decoder_attention_heads": sizes["text_heads"], "decoder_ffn_dim": 4 * sizes["text_state"],
    "max_source_positions": sizes["audio_ctx"], "max_target_positions": sizes["text_ctx"],
    "decoder_start_token_id": end + 1, "eos_token_id": end,
}
for name, content in (("config.json", config), ("tokenizer.json", tokenizer_json(tokens, special))):
    with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)
