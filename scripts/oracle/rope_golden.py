"""Writes golden vectors of rotary embeddings: rope_golden.py OUTDIR

Needs torch and transformers (5 or newer); fetches nothing: every configuration is made of numbers that
stand here. It writes

  OUTDIR/golden.json          one entry for each case: the configuration as transformers would save it,
                              positions, attention factor, which tensors belong to it
  OUTDIR/golden.safetensors   the tensors

A class that fails prints a line and the rest goes on; the exit status is then 1.

Cases of kind "class" come from a model's own rotary class: `inv_freq` as it computes it, the cosines and
sines of a few positions, and a query row for each position, turned by the model's own function. Cases of
kind "autograd" are the general op (partial rotation, output scale, both pairings) and its gradient.
"""

import importlib
import inspect
import json
import struct
import sys
import traceback
from pathlib import Path

import torch
import transformers

POSITIONS = [0, 1, 7, 1000, 4095]
BEYOND = [0, 1, 7, 1000, 5000]
WIDEST = 512

# What of a saved configuration has to do with rotation.
KEPT = """model_type hidden_size num_attention_heads num_hidden_layers head_dim global_head_dim per_layer_config
max_position_embeddings original_max_position_embeddings rope_parameters rope_scaling rope_theta
rope_local_base_freq partial_rotary_factor rotary_pct rotary_emb_base layer_types qk_rope_head_dim
qk_nope_head_dim kv_lora_rank rope_interleave sliding_window sliding_window_pattern""".split()

tensors = {}
cases = []


def put(name, value):
    """Stores a tensor and returns its name."""
    tensors[name] = value.detach().to("cpu").contiguous()
    return name


def write_safetensors(path):
    """The file format in a few lines, so that no package is needed for it."""
    types = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"}
    header, at, parts = {}, 0, []
    for name, value in sorted(tensors.items()):
        data = value.view(torch.uint8 if value.element_size() == 1 else torch.int16
                          if value.element_size() == 2 else torch.int32
                          if value.element_size() == 4 else torch.int64).numpy().tobytes()
        header[name] = {"dtype": types[value.dtype], "shape": list(value.shape),
                        "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def saved(config):
    """The configuration as config.json would hold it, without what is not about rotation."""
    full = json.loads(json.dumps(config.to_dict(), default=str))
    return {key: full[key] for key in KEPT if full.get(key) is not None}


def queries(count, width):
    """The same pseudo-random rows for every case, so that they are stored once."""
    return tensors["queries"][:count, :width].clone()


def attribute(object, *names):
    for name in names:
        if hasattr(object, name):
            return getattr(object, name)
    raise AttributeError(f"{type(object).__name__} has none of {names}")


def turn(module, q, cos, sin, sections):
    """Turns `q: [rows, width]` by the model's own function."""
    q = q[None, None]
    multimodal = getattr(module, "apply_multimodal_rotary_pos_emb", None)
    if multimodal is not None and cos.dim() == 4:
        return multimodal(q, q, cos, sin, sections)[0][0, 0]
    plain = attribute(module, "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", "_apply_rotary_emb")
    parameters = list(inspect.signature(plain).parameters)
    width = cos.shape[-1]

    def call(q):
        if parameters[1] in ("k", "key", "key_states"):
            return plain(q, q, cos, sin)[0]
        # One tensor at a time, as Gemma 4 does, with heads behind positions.
        if "unsqueeze_dim" in parameters:
            return plain(q, cos, sin)
        return plain(q, cos[:, None], sin[:, None])

    try:
        return call(q)[0, 0]
    except RuntimeError:
        # A model that slices the rotated part off before it calls the function.
        return torch.cat((call(q[..., :width])[0, 0], q[0, 0, :, width:]), dim=-1)


def record(name, module, rotary, config, head_dim, positions=POSITIONS, layer_type=None, rows=None,
           sections=None):
    """Runs a rotary class and stores what it gives. `rows` are the position rows of M-RoPE."""
    x = torch.zeros(1, len(positions), 8)
    ids = torch.tensor([positions]) if rows is None else torch.tensor(rows)[:, None, :]
    arguments = {"layer_type": layer_type} if layer_type else {}
    result = rotary(x, ids, **arguments)
    prefix = f"{layer_type}_" if layer_type else ""
    inv_freq = attribute(rotary, f"{prefix}inv_freq").float()
    factor = float(attribute(rotary, f"{prefix}attention_scaling"))
    entry = {"name": name, "kind": "class", "class": type(rotary).__name__, "config": saved(config),
             "layer_type": layer_type, "head_dim": head_dim, "positions": positions, "rows": rows,
             "attention_factor": factor, "inv_freq": put(f"{name}.inv_freq", inv_freq)}
    q = queries(len(positions), head_dim)
    if torch.is_tensor(result):  # Complex numbers, as DeepSeek V2 has them.
        entry["cos"] = put(f"{name}.cos", result.real[0].float())
        entry["sin"] = put(f"{name}.sin", result.imag[0].float())
        entry["complex"] = True
        width = 2 * result.shape[-1]
        pairs = q[:, head_dim - width:].reshape(len(positions), -1, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * result[0]).flatten(1)
        entry["turned"] = put(f"{name}.turned", torch.cat((q[:, :head_dim - width], turned), dim=-1))
    else:
        cos, sin = result
        if cos.dim() == 3:
            pairs = inv_freq.shape[-1]
            entry["cos"] = put(f"{name}.cos", cos[0, :, :pairs].float())
            entry["sin"] = put(f"{name}.sin", sin[0, :, :pairs].float())
        entry["turned"] = put(f"{name}.turned", turn(module, q, cos, sin, sections).float())
    cases.append(entry)


def model(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def config_of(family, name, base, scaling, **numbers):
    """A configuration, with the rope's parameters as this version of transformers spells them."""
    kind = getattr(importlib.import_module(f"transformers.models.{family}.configuration_{family}"), name)
    scaling = {"rope_type": "default", **scaling}
    if int(transformers.__version__.split(".")[0]) >= 5:
        return kind(rope_parameters={"rope_theta": base, **scaling}, **numbers)
    return kind(rope_theta=base, rope_scaling=scaling, **numbers)


def plain(name, family, prefix, base, scaling=None, head_dim=128, positions=POSITIONS, heads=4, **numbers):
    """A family whose class takes a configuration and turns whole heads."""
    module = model(family)
    numbers = {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_hidden_layers": 2,
               "head_dim": head_dim, **numbers}
    config = config_of(family, f"{prefix}Config", base, scaling or {}, **numbers)
    rotary = getattr(module, f"{prefix}RotaryEmbedding")(config=config)
    record(name, module, rotary, config, head_dim, positions)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
DEEPSEEK = {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 4096}
SHORT = [round(1.0 + 0.02 * i, 4) for i in range(48)]
LONG = [round(1.0 + 0.05 * i + 0.02 * i * i, 4) for i in range(48)]


def llama():
    plain("llama", "llama", "Llama", 10000.0)


def llama3():
    plain("llama3", "llama", "Llama", 500000.0, LLAMA3, max_position_embeddings=131072)


def llama_linear():
    plain("llama_linear", "llama", "Llama", 10000.0, {"rope_type": "linear", "factor": 4.0})


def llama_dynamic_within():
    plain("llama_dynamic_within", "llama", "Llama", 10000.0, {"rope_type": "dynamic", "factor": 2.0},
          max_position_embeddings=8192)


def llama_dynamic_beyond():
    plain("llama_dynamic_beyond", "llama", "Llama", 10000.0, {"rope_type": "dynamic", "factor": 2.0},
          max_position_embeddings=2048)


def qwen2():
    plain("qwen2", "qwen2", "Qwen2", 1000000.0, head_dim=64)


def qwen2_yarn():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    plain("qwen2_yarn", "qwen2", "Qwen2", 1000000.0, scaling, max_position_embeddings=131072)


def qwen3():
    plain("qwen3", "qwen3", "Qwen3", 1000000.0)


def qwen3_yarn_factor():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
               "attention_factor": 1.0}
    plain("qwen3_yarn_factor", "qwen3", "Qwen3", 1000000.0, scaling, max_position_embeddings=131072)


def gemma():
    plain("gemma", "gemma", "Gemma", 10000.0, head_dim=256)


def gemma2():
    plain("gemma2", "gemma2", "Gemma2", 10000.0, head_dim=256)


def layered(name, family, prefix, parameters, dims, **numbers):
    """A family with parameters for each kind of layer; `dims` are the kinds' head sizes."""
    module = model(family)
    configuration = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(configuration, f"{prefix}Config")(
        rope_parameters=parameters, layer_types=["sliding_attention", "full_attention"],
        num_hidden_layers=2, **numbers)
    rotary = attribute(module, f"{prefix}RotaryEmbedding", f"{prefix.removesuffix('Text')}RotaryEmbedding")
    rotary = rotary(config=config)
    for layer_type, head_dim in dims.items():
        record(f"{name}_{layer_type.split('_')[0]}", module, rotary, config, head_dim,
               layer_type=layer_type)


def gemma3():
    layered("gemma3", "gemma3", "Gemma3Text", {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }, {"full_attention": 256, "sliding_attention": 256},
        hidden_size=640, num_attention_heads=4, head_dim=256, max_position_embeddings=131072)


def gemma4():
    layered("gemma4", "gemma4", "Gemma4Text", {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }, {"full_attention": 512, "sliding_attention": 256},
        hidden_size=640, num_attention_heads=4, head_dim=256, global_head_dim=512,
        max_position_embeddings=131072)


def phi3(name, positions):
    plain(name, "phi3", "Phi3", 10000.0,
          {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
           "original_max_position_embeddings": 4096},
          head_dim=96, positions=positions, max_position_embeddings=131072,
          original_max_position_embeddings=4096)


def phi3_short():
    phi3("phi3_short", POSITIONS)


def phi3_long():
    phi3("phi3_long", BEYOND)


def deepseek(name, family, prefix, mscale, all_dim):
    module = model(family)
    config = config_of(family, f"{prefix}Config", 10000.0,
                       {**DEEPSEEK, "mscale": mscale, "mscale_all_dim": all_dim},
                       hidden_size=512, num_attention_heads=4, num_hidden_layers=2, qk_rope_head_dim=64,
                       qk_nope_head_dim=128, max_position_embeddings=163840)
    rotary = getattr(module, f"{prefix}RotaryEmbedding")(config=config)
    record(name, module, rotary, config, 192 if prefix == "DeepseekV2" else 64)


def deepseek_v2():
    deepseek("deepseek_v2", "deepseek_v2", "DeepseekV2", 0.707, 0.707)


def deepseek_v3():
    deepseek("deepseek_v3", "deepseek_v3", "DeepseekV3", 1.0, 1.0)


def deepseek_v3_mscales():
    deepseek("deepseek_v3_mscales", "deepseek_v3", "DeepseekV3", 1.0, 0.5)


def gpt_oss():
    scaling = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
               "original_max_position_embeddings": 4096}
    plain("gpt_oss", "gpt_oss", "GptOss", 150000.0, scaling, head_dim=64, max_position_embeddings=131072)


# Time, height and width of a text, then of patches of an image.
ROWS = [[0, 1, 2, 2, 30], [0, 1, 2, 3, 31], [0, 1, 2, 9, 47]]


def qwen2_vl():
    sections = [16, 24, 24]
    config = config_of("qwen2_vl", "Qwen2VLTextConfig", 1000000.0, {"mrope_section": sections},
                       hidden_size=512, num_attention_heads=4, num_hidden_layers=2)
    module = model("qwen2_vl")
    record("qwen2_vl", module, module.Qwen2VLRotaryEmbedding(config=config), config, 128,
           positions=ROWS[0], rows=ROWS, sections=sections)


def qwen3_vl():
    sections = [24, 20, 20]
    config = config_of("qwen3_vl", "Qwen3VLTextConfig", 5000000.0,
                       {"mrope_section": sections, "mrope_interleaved": True},
                       hidden_size=512, num_attention_heads=4, num_hidden_layers=2, head_dim=128)
    module = model("qwen3_vl")
    record("qwen3_vl", module, module.Qwen3VLTextRotaryEmbedding(config=config), config, 128,
           positions=ROWS[0], rows=ROWS, sections=sections)


def gpt_neox():
    module = model("gpt_neox")
    config = config_of("gpt_neox", "GPTNeoXConfig", 10000.0, {"partial_rotary_factor": 0.25},
                       hidden_size=384, num_attention_heads=4, num_hidden_layers=2)
    record("gpt_neox", module, module.GPTNeoXRotaryEmbedding(config=config), config, 96)


def rotate(x, cos, sin, pairing, rope_dim, offset, scale):
    """The general op in x's own type, written with views so that autograd gives its gradient."""
    before, part, behind = x.split([offset, rope_dim, x.shape[-1] - offset - rope_dim], dim=-1)
    if pairing == "split":
        first, second = part.chunk(2, dim=-1)
    else:
        first, second = part[..., 0::2], part[..., 1::2]
    turned = first * cos - second * sin, first * sin + second * cos
    part = torch.cat(turned, dim=-1) if pairing == "split" else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((before, part, behind), dim=-1) * scale


def autograd():
    rows, heads, width = 4, 2, 24
    generator = torch.Generator().manual_seed(7)
    # `[positions, heads, width]`; the same numbers for all cases, rounded to each case's type.
    x = put("autograd.x", torch.randn(rows, heads, width, generator=generator).half().float())
    dy = put("autograd.dy", torch.randn(rows, heads, width, generator=generator).half().float())
    shapes = [("whole", 24, 0, 1.0), ("first", 16, 0, 1.0), ("last", 16, 8, 0.75), ("middle", 8, 8, 1.25)]
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        for pairing in ("split", "adjacent"):
            for where, rope_dim, offset, scale in shapes:
                pairs = rope_dim // 2
                frequencies = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
                angles = torch.tensor([0.0, 1.0, 17.0, 1000.0], dtype=torch.float64)[:, None] * frequencies
                cos, sin = angles.cos().to(kind)[:, None], angles.sin().to(kind)[:, None]
                leaf = tensors[x].clone().to(kind).requires_grad_()
                y = rotate(leaf, cos, sin, pairing, rope_dim, offset, scale)
                y.backward(tensors[dy].to(kind))
                name = f"autograd.{str(kind).removeprefix('torch.')}.{pairing}.{where}"
                cases.append({"name": name, "kind": "autograd", "dtype": str(kind).removeprefix("torch."),
                              "pairing": pairing, "head_dim": width, "rope_dim": rope_dim, "offset": offset,
                              "base": 10000.0, "output_scale": scale, "positions": [0, 1, 17, 1000],
                              "x": x, "dy": dy, "y": put(f"{name}.y", y),
                              "dx": put(f"{name}.dx", leaf.grad)})


ALL = [llama, llama3, llama_linear, llama_dynamic_within, llama_dynamic_beyond, qwen2, qwen2_yarn, qwen3,
       qwen3_yarn_factor, gemma, gemma2, gemma3, gemma4, phi3_short, phi3_long, deepseek_v2, deepseek_v3,
       deepseek_v3_mscales, gpt_oss, qwen2_vl, qwen3_vl, gpt_neox, autograd]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: rope_golden.py OUTDIR")
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    put("queries", torch.randn(len(POSITIONS), WIDEST, generator=torch.Generator().manual_seed(1)))
    failed = []
    for case in ALL:
        before = len(cases)
        try:
            case()
            for entry in cases[before:]:
                print(f"ok      {entry['name']}")
        except Exception as error:
            failed.append(case.__name__)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED  {case.__name__}: {type(error).__name__}: {error} "
                  f"({Path(where.filename).name}:{where.lineno})")
    index = {"torch": torch.__version__, "transformers": transformers.__version__, "failed": failed,
             "cases": cases}
    (out / "golden.json").write_text(json.dumps(index, indent=1) + "\n")
    write_safetensors(out / "golden.safetensors")
    size = sum(f.stat().st_size for f in out.glob("golden.*"))
    print(f"{len(cases)} cases, {size} bytes, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
