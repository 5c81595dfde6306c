#!/usr/bin/env python3
"""Converts a SafeTensors folder with `mlx-lm` at each bit width and computes reference logits with MLX in f32.

mlx_folders.py MODEL OUT [BITS…]        (pip install "mlx[cpu]" mlx-lm)

Each OUT/BITSbit gets the folder of mlx-lm (groups of 64), ref.json with 96 input ids, and ref_logits_f32.npy with the
logits of all of them: f32 arithmetic on the stored values.
"""
import json
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm import convert
from mlx_lm.utils import load_model

POSITIONS = 96


def main(source, out, *widths):
    for bits in [int(bits) for bits in widths] or [2, 3, 4, 5, 6, 8]:
        folder = pathlib.Path(out) / f"{bits}bit"
        convert(hf_path=source, mlx_path=str(folder), quantize=True, q_bits=bits, q_group_size=64)
        model, config = load_model(folder)
        # Scales, biases and norms in f32, so that MLX computes in f32.
        model.set_dtype(mx.float32)
        ids = [int(i) for i in np.random.default_rng(7).integers(3, config["vocab_size"], POSITIONS)]
        logits = np.array(model(mx.array([ids]))[0])
        assert logits.dtype == np.float32
        np.save(folder / "ref_logits_f32.npy", logits)
        (folder / "ref.json").write_text(json.dumps({"ids": ids}) + "\n")
        print(f"{bits} bits: logits up to {abs(logits).max():.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
