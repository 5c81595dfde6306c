#!/usr/bin/env python3
"""Logits in f64 for small models that enlarge roundings, and how far f32 roundings move them.

grid_f64.py FOLDER...      (pip install torch transformers safetensors numpy)

Each FOLDER of tests/data/tiny gets grid_f64.npy: for each position of the ids that `grid_gpu` has, the logits that
`transformers` computes in f64, and as the last column the largest change of any logit there if every result of a
projection and of a norm is disturbed as rounding to f32 would: by half a unit in the last place of its row's largest
value, normally distributed, over 32 runs.
"""
import contextlib
import json
import pathlib
import sys

import numpy as np
import torch
import transformers as tf

POSITIONS, RUNS, HALF_UNIT = 100, 32, 2.0 ** -24


@contextlib.contextmanager
def without_f32():
    """Models convert some values to f32 whatever their type is. Here these stay f64."""
    to, narrow, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax
    wide = lambda value: torch.float64 if value is torch.float32 else value
    torch.Tensor.to = lambda self, *args, **named: to(
        self, *map(wide, args), **{key: wide(value) for key, value in named.items()})
    torch.Tensor.float = lambda self: self.double()
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None: softmax(x, dim=dim)
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = to, narrow, softmax


def logits(model, ids):
    with torch.no_grad(), without_f32():
        found = model(torch.tensor([ids]), use_cache=False).logits[0]
    assert found.dtype == torch.float64, found.dtype
    return found.numpy()


def disturbed(model, ids, seed):
    generator = torch.Generator().manual_seed(seed)

    def disturb(_module, _inputs, result):
        largest = result.abs().amax(-1, keepdim=True)
        return result + HALF_UNIT * largest * torch.randn(result.shape, generator=generator, dtype=torch.float64)

    parts = [part for name, part in model.named_modules()
             if isinstance(part, torch.nn.Linear) or name.split(".")[-1].endswith("norm")]
    hooks = [part.register_forward_hook(disturb) for part in parts]
    found = logits(model, ids)
    for hook in hooks:
        hook.remove()
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(pathlib.Path, sys.argv[1:]):
        model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        ids = [(i * 37 + 11) % vocabulary for i in range(POSITIONS)]
        exact = logits(model, ids)
        moved = np.max([abs(disturbed(model, ids, seed) - exact).max(axis=1) for seed in range(RUNS)], axis=0)
        np.save(folder / "grid_f64.npy", np.column_stack([exact, moved]).astype("<f4"))
        print(f"{folder.name}: roundings move a logit by up to {moved.max():.1e}, by more than 1e-4 at positions "
              f"{[int(at) for at in np.flatnonzero(moved > 1e-4)]}")


if __name__ == "__main__":
    main()
