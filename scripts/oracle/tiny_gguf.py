"""Converts a small model in Hugging Face's layout to GGUF with F32 weights, as llama.cpp's converters do.

tiny_gguf.py FOLDER OUT.gguf [unscaled|grouped]

unscaled: without the scaling of the rope; grouped: Qwen3-Next's projections in one tensor, as old files have them

It shares no code with Gyrus: names and keys are those of the gguf package. Written for the models of tests/data/tiny,
which have no tokenizer.
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

PARTS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
# The tensors of single experts, which are stacked.
EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
ARCHITECTURES = {"gemma3_text": "gemma3", "gemma4_text": "gemma4", "mistral": "llama", "mixtral": "llama",
                 "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "qwen3_5_text": "qwen35",
                 "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next"}
# Converters permute the rows of Q and K of these.
PERMUTED = {"llama", "granite", "smollm3"}
HYBRIDS = {"qwen35", "qwen35moe", "qwen3next"}
# gpt-oss and hybrids call the norm before the feed-forward so.
POST_NORMS = {"gemma2", "gemma3", "gemma4", "olmo2", "gpt-oss"} | HYBRIDS
NORMS_MINUS_ONE = {"gemma", "gemma2", "gemma3"} | HYBRIDS


def tensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        halves = np.frombuffer(data[begin:end], dtype="<u2").astype(np.uint32)
        yield name, (halves << 16).view(np.float32).reshape(entry["shape"])


def permuted(weight, heads):
    """Rows of a head from halves to neighbouring pairs."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tiled(weight, axis, first, key_heads, value_heads):
    """Value heads along an axis, from element `first` on, from groups of a key head to one of each key head in turn."""
    before, heads = np.split(weight, [first], axis)
    shape = heads.shape
    split = shape[:axis] + (key_heads, value_heads // key_heads, -1) + shape[axis + 1:]
    return np.concatenate([before, heads.reshape(split).swapaxes(axis, axis + 1).reshape(shape)], axis)


def delta_net(part, weight, config):
    """A tensor of Gated DeltaNet as llama.cpp's converter stores it."""
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = 2 * key_heads * config["linear_key_head_dim"]
    if part == "ssm_conv1d.weight":
        weight = weight[:, 0, :]
    if part == "ssm_a":
        weight = -np.exp(weight)
    if part == "ssm_norm.weight":
        return weight
    if config["model_type"] == "qwen3_next":
        return weight
    axis = 1 if part == "ssm_out.weight" else 0
    first = keys if part in ("attn_qkv.weight", "ssm_conv1d.weight") else 0
    return tiled(weight, axis, first, key_heads, value_heads)


def by_part(named, config):
    """Qwen3-Next's projection of queries, keys, values and gates as two tensors. It has them for one key head after the
    other, and the value heads that belong to it."""
    key_dim, value_dim = config.get("linear_key_head_dim"), config.get("linear_value_head_dim")
    for name, weight in named:
        if not name.endswith("linear_attn.in_proj_qkvz.weight"):
            yield name, weight
            continue
        key_heads = config["linear_num_key_heads"]
        values = config["linear_num_value_heads"] // key_heads * value_dim
        heads = weight.reshape(key_heads, -1, weight.shape[1])
        ends = np.cumsum([key_dim, key_dim, values])
        *qkv, z = (part.reshape(-1, weight.shape[1]) for part in np.split(heads, ends, axis=1))
        yield name.replace("qkvz", "qkv"), np.concatenate(qkv)
        yield name.replace("qkvz", "z"), z


def renamed(name, arch):
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.split(".", 3)
    if part == "post_attention_layernorm.weight":
        new = "post_attention_norm.weight" if arch in POST_NORMS else "ffn_norm.weight"
    else:
        new = part if "_exps." in part else PARTS[part]
    return f"blk.{layer}.{new}"


def with_stacked_experts(named):
    """The tensors of single experts as one, and gpt-oss's transposed tensors as rows."""
    experts = {}
    for name, weight in named:
        stem, _, part = name.rpartition(".experts.")
        layer = ".".join(name.split(".")[:3])
        if not stem:
            yield name, weight
        elif part.endswith(".weight"):
            number, kind, _ = part.split(".")
            experts.setdefault(f"{layer}.{EXPERTS[kind]}", {})[int(number)] = weight
        elif stem.endswith("mlp") and part in ("gate_up_proj", "gate_up_proj_bias"):
            suffix = "bias" if part.endswith("bias") else "weight"
            for first, kind in enumerate(["gate", "up"]):
                rows = weight[..., first::2]
                yield f"{layer}.ffn_{kind}_exps.{suffix}", rows if suffix == "bias" else rows.swapaxes(1, 2)
        elif stem.endswith("mlp") and part == "down_proj":
            yield f"{layer}.ffn_down_exps.weight", weight.swapaxes(1, 2)
        else:
            yield name, weight
    for name, weights in experts.items():
        layer, _, kind = name.rpartition(".")
        yield f"{layer}.ffn_{kind}_exps.weight", np.stack([weights[i] for i in range(len(weights))])


def main(folder, out, variant=None):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    dim, width = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or dim // heads
    types = config.get("layer_types") or ["full_attention"] * layers
    local = [kind == "sliding_attention" for kind in types]
    ropes = config["rope_parameters"]
    rope, local_rope = (ropes["full_attention"], ropes["sliding_attention"]) if "full_attention" in ropes else (ropes, None)
    special = config.get("per_layer_config") or {}
    global_dim = next((fields["head_dim"] for fields in special.values()), head_dim)

    writer = gguf.GGUFWriter(out, arch)
    number = lambda key, value: writer.add_uint32(f"{arch}.{key}", value)
    real = lambda key, value: writer.add_float32(f"{arch}.{key}", value)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    number("vocab_size", config["vocab_size"])
    number("context_length", config["max_position_embeddings"])
    number("embedding_length", dim)
    number("block_count", layers)
    number("attention.head_count", heads)
    if special:
        each = [special.get(str(i), {}).get("num_key_value_heads", kv_heads) for i in range(layers)]
        writer.add_array(f"{arch}.attention.head_count_kv", each)
    else:
        number("attention.head_count_kv", kv_heads)
    number("attention.key_length", global_dim)
    number("attention.value_length", global_dim)
    rotated = int(global_dim * rope.get("partial_rotary_factor", 1.0)) if arch in HYBRIDS else global_dim
    number("rope.dimension_count", rotated)
    real("attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    real("rope.freq_base", rope["rope_theta"])
    shared = config.get("num_kv_shared_layers") or 0
    if config.get("use_double_wide_mlp"):
        widths = [width * (2 if i >= layers - shared else 1) for i in range(layers)]
        writer.add_array(f"{arch}.feed_forward_length", widths)
    else:
        number("feed_forward_length", width)
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        number("expert_count", experts)
        number("expert_used_count", config.get("top_k_experts") or config["num_experts_per_tok"])
        number("expert_feed_forward_length", config.get("moe_intermediate_size") or width)
    if config.get("shared_expert_intermediate_size"):
        number("expert_shared_feed_forward_length", config["shared_expert_intermediate_size"])
    if config.get("sliding_window"):
        number("attention.sliding_window", config["sliding_window"])
    if arch == "gemma4":
        number("attention.shared_kv_layers", shared)
        number("embedding_length_per_layer_input", config["hidden_size_per_layer_input"])
        number("attention.key_length_swa", head_dim)
        number("attention.value_length_swa", head_dim)
        number("rope.dimension_count_swa", head_dim)
        writer.add_array(f"{arch}.attention.sliding_window_pattern", local)
    if arch in HYBRIDS:
        number("ssm.conv_kernel", config["linear_conv_kernel_dim"])
        number("ssm.state_size", config["linear_key_head_dim"])
        number("ssm.group_count", config["linear_num_key_heads"])
        number("ssm.time_step_rank", config["linear_num_value_heads"])
        number("ssm.inner_size", config["linear_value_head_dim"] * config["linear_num_value_heads"])
        number("full_attention_interval", config["layer_types"].index("full_attention") + 1)
    if arch.startswith("qwen35"):
        # Sections take turns. For text they all have the same position.
        writer.add_array(f"{arch}.rope.dimension_sections", [(rotated // 2 - i + 2) // 3 for i in range(3)] + [0])
    if local_rope:
        real("rope.freq_base_swa", local_rope["rope_theta"])
    for key, name in [("embedding_scale", "embedding_multiplier"), ("residual_scale", "residual_multiplier"),
                      ("logit_scale", "logits_scaling"), ("attention.scale", "attention_multiplier"),
                      ("attn_logit_softcapping", "attn_logit_softcapping"),
                      ("final_logit_softcapping", "final_logit_softcapping")]:
        if config.get(name):
            real(key, config[name])
    factors = None
    if rope["rope_type"] == "llama3":
        # The frequency factors of Llama 3, as its converter computes them.
        base, dims = rope["rope_theta"], global_dim
        frequencies = base ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)
        waves = 2 * np.pi / frequencies
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / waves - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors = np.where(waves < high, 1.0, np.where(waves > low, rope["factor"], between))
    elif rope["rope_type"] == "proportional":
        rotated = int(global_dim / 2 * rope["partial_rotary_factor"])
        factors = np.where(np.arange(global_dim // 2) < rotated, 1.0, 1e30)
    elif rope["rope_type"] == "yarn" and variant != "unscaled":
        writer.add_string(f"{arch}.rope.scaling.type", "yarn")
        real("rope.scaling.factor", rope["factor"])
        number("rope.scaling.original_context_length", rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        number("rope.scaling.original_context_length", rope["original_max_position_embeddings"])
        scale = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        real("rope.scaling.attn_factor", (1 + np.log(scale) / np.log(rope["original_max_position_embeddings"])) ** 0.5)
        for length in ["long", "short"]:
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))

    stored = tensors(folder / "model.safetensors")
    if variant != "grouped":
        stored = by_part(stored, config)
    for name, weight in with_stacked_experts(stored):
        new = renamed(name, arch)
        # Layers that share keys and values do not use their own.
        part = new.split(".", 2)[-1]
        if arch == "gemma4" and part in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
            if int(new.split(".")[1]) >= layers - shared:
                continue
        if arch in NORMS_MINUS_ONE and new.endswith("norm.weight") and part != "ssm_norm.weight":
            weight = weight + 1
        if "linear_attn." in name:
            weight = delta_net(part, weight, config)
        if part == "ffn_gate_inp_shexp.weight":
            weight = weight[0]
        if arch in PERMUTED and part in ("attn_q.weight", "attn_k.weight"):
            weight = permuted(weight, heads if part == "attn_q.weight" else kv_heads)
        writer.add_tensor(new, np.ascontiguousarray(weight, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
