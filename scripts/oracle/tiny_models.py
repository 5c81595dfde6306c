#!/usr/bin/env python3
"""Makes the random models of tests/data/tiny with `transformers`, each of at most 140 KB.

tiny_models.py OUT [NAME…]      (pip install torch transformers safetensors numpy; it needs neither GPU nor network)

Each OUT/NAME gets config.json, model.safetensors (BF16), ref.json (80 input ids and 16 greedy ones) and
ref_logits_f32.npy (logits of all input positions, in f32 arithmetic on the BF16 values). Layers are few and narrow, but
each model has every part of its architecture: windows shorter than the input, so that keys leave them, scaled ropes
beyond their original context, shared keys, soft caps. Norms and biases are random, so that one that is forgotten or
swapped shows. llama, mistral and qwen3 have larger models of an older script there and are not made here.
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers as tf

POSITIONS, VOCABULARY, WINDOW = 80, 96, 16
COMMON = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def config(kind, **fields):
    return getattr(tf, kind)(**{**COMMON, **fields})


def long_rope():
    return dict(rope_type="longrope", short_factor=[1.0 + 0.05 * i for i in range(4)],
                long_factor=[1.0 + 0.5 * i for i in range(4)])


CONFIGS = {
    "qwen2": lambda: config("Qwen2Config", rope_theta=1e6, tie_word_embeddings=True),
    "gemma": lambda: config("GemmaConfig", head_dim=16),
    "gemma2": lambda: config("Gemma2Config", head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
                             attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    # The last of six layers attends to all positions.
    "gemma3": lambda: config("Gemma3TextConfig", num_hidden_layers=6, intermediate_size=32, num_key_value_heads=1,
                             head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW),
    # The last two layers read the keys of layers 1 and 2.
    "gemma4": lambda: config("Gemma4TextConfig", num_hidden_layers=5, intermediate_size=16, head_dim=8,
                             num_key_value_heads=1,
                             global_head_dim=16, sliding_window=WINDOW, vocab_size_per_layer_input=VOCABULARY,
                             hidden_size_per_layer_input=8, num_kv_shared_layers=2, use_double_wide_mlp=True,
                             layer_types=[LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL], final_logit_softcapping=3.0),
    # The input is longer than the original context, so that the long factors apply.
    "phi3": lambda: config("Phi3Config", original_max_position_embeddings=64, sliding_window=None,
                           rope_scaling=long_rope()),
    "smollm3": lambda: config("SmolLM3Config", num_hidden_layers=4, no_rope_layer_interval=4),
    "granite": lambda: config("GraniteConfig", embedding_multiplier=6.0, logits_scaling=0.5, residual_multiplier=0.4,
                              attention_multiplier=0.1),
    "olmo2": lambda: config("Olmo2Config"),
    # Three layers of Gated DeltaNet, whose value heads share key heads, and one of attention with an output gate.
    "qwen35": lambda: config("Qwen3_5TextConfig", num_hidden_layers=4, intermediate_size=16, head_dim=16,
                             linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
                             linear_num_value_heads=4),
    # Experts beside a shared one, and larger heads.
    "qwen35moe": lambda: config("Qwen3_5MoeTextConfig", num_hidden_layers=2, head_dim=16, linear_key_head_dim=32,
                                linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
                                layer_types=["linear_attention", GLOBAL], num_experts=4, num_experts_per_tok=2,
                                moe_intermediate_size=8, shared_expert_intermediate_size=8),
    # The same parts, with projections of Gated DeltaNet that are grouped by key head.
    "qwen3next": lambda: config("Qwen3NextConfig", num_hidden_layers=2, head_dim=16, linear_key_head_dim=16,
                                linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
                                layer_types=["linear_attention", GLOBAL], num_experts=4, num_experts_per_tok=2,
                                moe_intermediate_size=8, shared_expert_intermediate_size=8),
    "ernie4_5": lambda: config("Ernie4_5Config", head_dim=16),
    "qwen3moe": lambda: config("Qwen3MoeConfig", num_hidden_layers=2, head_dim=16, num_experts=6, num_experts_per_tok=3, rope_theta=1e6,
                               moe_intermediate_size=16, norm_topk_prob=True),
    "mixtral": lambda: config("MixtralConfig", num_hidden_layers=2, head_dim=16, intermediate_size=24,
                              num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    # The first layer has the window. The input is longer than the original context.
    "gpt_oss": lambda: config("GptOssConfig", num_hidden_layers=2, head_dim=16, intermediate_size=32,
                              num_local_experts=3, num_experts_per_tok=2, sliding_window=WINDOW,
                              rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0,
                                                   beta_slow=1.0, truncate=False,
                                                   original_max_position_embeddings=32)),
    # The values of the last layer are its keys.
    "gemma4moe": lambda: config("Gemma4TextConfig", num_hidden_layers=3, intermediate_size=24, head_dim=8,
                                global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
                                sliding_window=WINDOW, hidden_size_per_layer_input=0, enable_moe_block=True,
                                num_experts=4, top_k_experts=2, moe_intermediate_size=16,
                                layer_types=[LOCAL, LOCAL, GLOBAL], final_logit_softcapping=3.0),
}


def randomise(model):
    """Random parameters with values that BF16 has. The model stays in f32, so that no buffer of a rope is rounded."""
    kind = model.config.model_type
    # These norms multiply by 1 + weight.
    centred = kind in ("gemma", "gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text",
                       "qwen3_next")
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim == 1:
                is_norm = "norm" in name and name.endswith("weight")
                is_centred = centred and not name.endswith("linear_attn.norm.weight")
                mean = 1.0 if is_norm and not is_centred or name.endswith("scale") else 0.0
                values.copy_(0.3 * torch.randn_like(values) + mean)
            elif kind == "gpt_oss" and name.endswith("gate_up_proj"):
                # Some gates and factors are clamped.
                values.copy_(1.5 * torch.randn_like(values))
            elif "conv1d" in name:
                # Heads after it are so large that the epsilon of their norm, which programs add differently, is nothing.
                values.copy_(torch.randn_like(values))
            elif "embed" in name:
                values.copy_(0.3 * torch.randn_like(values))
            else:
                values.copy_(0.2 * torch.randn_like(values))
            values.copy_(values.to(torch.bfloat16).float())
        for name, values in model.named_buffers():
            if name.endswith("layer_scalar"):
                values.copy_((0.75 + 0.5 * torch.rand_like(values.float())).to(torch.bfloat16).float())


def make(out, name):
    folder = out / name
    model = tf.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32, attn_implementation="eager").eval()
    torch.manual_seed(sum(name.encode()))
    randomise(model)
    ids = [int(i) for i in np.random.default_rng(7).integers(3, VOCABULARY, POSITIONS)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
        greedy, gaps = [], []
        for _ in range(16):
            # Without a cache: LongRoPE chooses its factors by the length of the input.
            last = model(torch.tensor([ids + greedy]), use_cache=False).logits[0, -1]
            top = last.topk(2)
            greedy.append(int(top.indices[0]))
            gaps.append(float(top.values[0] - top.values[1]))
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.save(folder / "ref_logits_f32.npy", logits.astype(np.float32))
    (folder / "ref.json").write_text(json.dumps({"ids": ids, "greedy": greedy}) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1000:.0f} KB, logits of {logits.std():.2f} (standard deviation), up to {abs(logits).max():.1f}, "
          f"smallest gap of greedy ids {min(gaps):.3f}")


def main():
    names = sys.argv[2:] or list(CONFIGS)
    if len(sys.argv) < 2 or not set(names) <= set(CONFIGS):
        sys.exit(__doc__)
    for name in names:
        make(pathlib.Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
