"""Embeddings of a small Qwen3 whose rows attend to the whole text, in f64.

bidirectional.py FOLDER      writes FOLDER/bidirectional.json

FOLDER is that of `tiny_encoders.py`. With causal attention the same function must give the embeddings that
sentence-transformers computed, which are in FOLDER/ref.json: this is checked first.
"""
import json
import pathlib
import struct
import sys

import numpy as np


def tensors(path):
    """The tensors of a SafeTensors file in BF16."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        assert entry["dtype"] == "BF16", name
        first, last = entry["data_offsets"]
        bits = np.frombuffer(data[8 + size + first:8 + size + last], np.uint16).astype(np.uint32) << 16
        found[name] = bits.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return found


def embedding(ids, weights, config, causal):
    """The last row of a text, at length 1."""
    eps, size = config["rms_norm_eps"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
    rates = config["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
    phases = np.outer(np.arange(len(ids)), rates)[:, None]

    def rotate(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(phases) - b * np.sin(phases), b * np.cos(phases) + a * np.sin(phases)], -1)

    x = weights["embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        w = lambda name: weights[f"layers.{layer}.{name}.weight"]
        y = norm(x, w("input_layernorm"))
        split = lambda name, count: (y @ w(f"self_attn.{name}_proj").T).reshape(len(ids), count, size)
        q = rotate(norm(split("q", heads), w("self_attn.q_norm")))
        k = rotate(norm(split("k", kv_heads), w("self_attn.k_norm")))
        k, v = (np.repeat(part, heads // kv_heads, 1) for part in (k, split("v", kv_heads)))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        if causal:
            scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(len(ids), -1) @ w("self_attn.o_proj").T
        y = norm(x, w("post_attention_layernorm"))
        gate, up = (y @ w(f"mlp.{name}_proj").T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w("mlp.down_proj").T
    last = norm(x, weights["norm.weight"])[-1]
    return last / np.linalg.norm(last)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    ref = json.loads((folder / "ref.json").read_text())
    weights = tensors(folder / "model.safetensors")
    for ids, want in zip(ref["tokens"], ref["embeddings"]):
        worst = np.abs(embedding(ids, weights, config, True) - want).max()
        assert worst < 1e-5, f"{worst} from sentence-transformers"
    found = [[round(float(x), 8) for x in embedding(ids, weights, config, False)] for ids in ref["tokens"]]
    text = json.dumps(dict(texts=ref["texts"], embeddings=found), ensure_ascii=False)
    (folder / "bidirectional.json").write_text(text + "\n")
