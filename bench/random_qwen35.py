#!/usr/bin/env python3
"""Writes a GGUF file of the shape of Qwen 3.5 0.8B with random weights, to measure speed.

random_qwen35.py OUT.gguf [LAYERS]        (pip install gguf numpy)

Matrices are Q4_0, as llama.cpp stores them, and the output matrix is the embedding. Three of four layers are Gated
DeltaNet.
"""
import sys

import gguf
import numpy as np

DIM, LAYERS, FFN, VOCABULARY = 1024, 24, 3584, 248320
HEADS, KV_HEADS, HEAD_DIM, ROTATED = 8, 2, 256, 64
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 16, 16, 128, 128
ARCH = "qwen35"


def main(out, layers=LAYERS):
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(out, ARCH)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for key, value in {
            "vocab_size": VOCABULARY, "context_length": 32768, "embedding_length": DIM, "block_count": layers,
            "feed_forward_length": FFN, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, "rope.dimension_count": ROTATED,
            "ssm.conv_kernel": 4, "ssm.state_size": KEY_DIM, "ssm.group_count": KEY_HEADS,
            "ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": VALUE_HEADS * VALUE_DIM,
            "full_attention_interval": 4}.items():
        writer.add_uint32(f"{ARCH}.{key}", value)
    writer.add_float32(f"{ARCH}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCH}.rope.freq_base", 1e7)
    writer.add_array(f"{ARCH}.rope.dimension_sections", [11, 11, 10, 0])

    def matrix(name, rows, cols):
        """Blocks of 32: a scale of about one over the root of the columns, and random quants."""
        blocks = np.empty((rows, cols // 32, 18), dtype=np.uint8)
        scales = (random.random((rows, cols // 32, 1), dtype=np.float32) * 0.3 / cols ** 0.5).astype(np.float16)
        blocks[:, :, :2] = scales.view(np.uint8)
        blocks[:, :, 2:] = random.integers(0, 256, (rows, cols // 32, 16), dtype=np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def vector(name, shape, mean=0.0, spread=0.1):
        writer.add_tensor(name, (mean + spread * random.standard_normal(shape)).astype(np.float32))

    matrix("token_embd.weight", VOCABULARY, DIM)
    vector("output_norm.weight", DIM, 1.0)
    keys, values = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
    for i in range(layers):
        layer = f"blk.{i}."
        vector(layer + "attn_norm.weight", DIM, 1.0)
        vector(layer + "post_attention_norm.weight", DIM, 1.0)
        if i % 4 == 3:
            matrix(layer + "attn_q.weight", 2 * HEADS * HEAD_DIM, DIM)
            matrix(layer + "attn_k.weight", KV_HEADS * HEAD_DIM, DIM)
            matrix(layer + "attn_v.weight", KV_HEADS * HEAD_DIM, DIM)
            matrix(layer + "attn_output.weight", DIM, HEADS * HEAD_DIM)
            vector(layer + "attn_q_norm.weight", HEAD_DIM, 1.0)
            vector(layer + "attn_k_norm.weight", HEAD_DIM, 1.0)
        else:
            matrix(layer + "attn_qkv.weight", 2 * keys + values, DIM)
            matrix(layer + "attn_gate.weight", values, DIM)
            matrix(layer + "ssm_beta.weight", VALUE_HEADS, DIM)
            matrix(layer + "ssm_alpha.weight", VALUE_HEADS, DIM)
            vector(layer + "ssm_conv1d.weight", (2 * keys + values, 4), 0.0, 0.5)
            vector(layer + "ssm_a", VALUE_HEADS, -1.0)
            vector(layer + "ssm_dt.bias", VALUE_HEADS)
            vector(layer + "ssm_norm.weight", VALUE_DIM, 1.0)
            matrix(layer + "ssm_out.weight", DIM, values)
        matrix(layer + "ffn_gate.weight", FFN, DIM)
        matrix(layer + "ffn_up.weight", FFN, DIM)
        matrix(layer + "ffn_down.weight", DIM, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:3]))
