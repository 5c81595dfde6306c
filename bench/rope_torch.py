#!/usr/bin/env python3
"""Rotary embedding of Q and K in PyTorch, for a comparison on the same card: a device copy, eager, and
torch.compile. Half precision, 65,536 x (32+8) x 128, split pairs, forward and backward.

    python3 bench/rope_torch.py
"""
import torch
from triton.testing import do_bench

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 65536, 32, 8, 128


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def both(q, k, cos, sin):
    return rotate(q, cos, sin), rotate(k, cos, sin)


def main():
    torch.manual_seed(0)
    q = torch.randn(TOKENS, HEADS, HEAD_DIM, device="cuda", dtype=torch.float16)
    k = torch.randn(TOKENS, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.float16)
    frequency = 5e5 ** (-torch.arange(0, HEAD_DIM, 2, device="cuda", dtype=torch.float64) / HEAD_DIM)
    angle = torch.arange(TOKENS, device="cuda", dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    moved = 2 * (q.numel() + k.numel()) * 2
    source = torch.cat((q.flatten(), k.flatten()))
    target = torch.empty_like(source)

    def report(name, run):
        run()
        milliseconds = do_bench(run, warmup=50, rep=300, return_mode="median")
        print(f"{name:24} {1e3 * milliseconds:9.1f} us  {moved / milliseconds / 1e9:6.2f} TB/s", flush=True)

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    report("copy", lambda: target.copy_(source))
    report("eager forward", lambda: both(q, k, cos, sin))
    compiled = torch.compile(both)
    report("torch.compile forward", lambda: compiled(q, k, cos, sin))
    report("torch.compile backward", lambda: compiled(q, k, cos, -sin))


if __name__ == "__main__":
    main()
