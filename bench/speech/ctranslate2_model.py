#!/usr/bin/env python3
"""Writes a Whisper model of whisper.cpp (GGML, F16 or F32) in the form that faster-whisper loads, quantised to int8.

ctranslate2_model.py ggml-tiny.bin FOLDER    (needs ctranslate2 and numpy; FOLDER is for compare.py --ctranslate2)

faster-whisper finds a tokenizer.json in FOLDER: the merges of its byte-level BPE follow from the order of the tokens.
"""
import json
import os
import sys

import numpy as np
from ctranslate2.specs import whisper_spec

sys.path.append(os.path.join(os.path.dirname(__file__), "../../scripts/oracle"))
from whisper_ggml import letters, read_ggml, split_vocabulary, tokenizer_json


def set_linear(spec, weights, biases):
    """One or several matrices, one below the other. Keys have no bias in Whisper."""
    spec.weight = np.concatenate(weights)
    if any(bias is not None for bias in biases):
        given = [np.zeros(len(w), np.float32) if b is None else b for w, b in zip(weights, biases)]
        spec.bias = np.concatenate(given)


def set_attention(spec, tensors, name, norm, own):
    weight = lambda part: tensors[f"{name}.{part}.weight"]
    bias = lambda part: tensors.get(f"{name}.{part}.bias")
    groups = [["query", "key", "value"], ["out"]] if own else [["query"], ["key", "value"], ["out"]]
    for linear, parts in zip(spec.linear, groups, strict=True):
        set_linear(linear, [weight(part) for part in parts], [bias(part) for part in parts])
    set_norm(spec.layer_norm, tensors, norm)


def set_norm(spec, tensors, name):
    spec.gamma, spec.beta = tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def set_layers(layers, tensors, side, decoder):
    for i, layer in enumerate(layers):
        name = f"{side}.blocks.{i}"
        set_attention(layer.self_attention, tensors, f"{name}.attn", f"{name}.attn_ln", True)
        if decoder:
            set_attention(layer.attention, tensors, f"{name}.cross_attn", f"{name}.cross_attn_ln", False)
        for linear, part in ((layer.ffn.linear_0, "mlp.0"), (layer.ffn.linear_1, "mlp.2")):
            set_linear(linear, [tensors[f"{name}.{part}.weight"]], [tensors[f"{name}.{part}.bias"]])
        set_norm(layer.ffn.layer_norm, tensors, f"{name}.mlp_ln")


path, folder = sys.argv[1:3]
sizes, tokens, tensors = read_ggml(path)
DTYPES = {"F32": "<f4", "F16": "<f2"}
tensors = {name: np.frombuffer(data, DTYPES[dtype]).astype(np.float32).reshape(shape)
           for name, (dtype, shape, data) in tensors.items()}
tokens, special, times = split_vocabulary(sizes, tokens)

spec = whisper_spec.WhisperSpec(*(sizes[key] for key in ("audio_layers", "audio_heads", "text_layers", "text_heads")))
encoder, decoder = spec.encoder, spec.decoder
for convolution, name in ((encoder.conv1, "encoder.conv1"), (encoder.conv2, "encoder.conv2")):
    convolution.weight, convolution.bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
encoder.position_encodings.encodings = tensors["encoder.positional_embedding"]
decoder.position_encodings.encodings = tensors["decoder.positional_embedding"]
decoder.embeddings.weight = decoder.projection.weight = tensors["decoder.token_embedding.weight"]
set_norm(encoder.layer_norm, tensors, "encoder.ln_post")
set_norm(decoder.layer_norm, tensors, "decoder.ln")
set_layers(encoder.layer, tensors, "encoder", False)
set_layers(decoder.layer, tensors, "decoder", True)
first = len(tokens) + 2
spec.config.lang_ids = list(range(first, first + special.index("<|translate|>") - 2))
spec.config.suppress_ids = []
spec.config.suppress_ids_begin = [220, len(tokens)]  # a space and the end, as published models have it
half = sizes["text_layers"] // 2
spec.config.alignment_heads = [[i, j] for i in range(half, sizes["text_layers"]) for j in range(sizes["text_heads"])]
letter = letters()
spec.register_vocabulary(["".join(letter[byte] for byte in token) for token in tokens] + special + times)
spec.validate()
spec.optimize(quantization="int8")
os.makedirs(folder, exist_ok=True)
spec.save(folder)
with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump(tokenizer_json(tokens, special + times), file, ensure_ascii=False)
with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
    json.dump({"feature_size": sizes["mels"], "sampling_rate": 16000, "hop_length": 160, "chunk_length": 30, "n_fft": 400}, file)
