"""SmolLM2 on Gyrus against llama.cpp, by the numbers that matter.

smollm2.py GYRUS MODEL.gguf TEXT...

- exact against llama.cpp on the same values as F32: log-probability of the likeliest token at 200 positions,
  and greedy continuations of 20 prompts up to the first near tie;
- fast against exact, measured with the same yardstick as llama.cpp on the quantised file.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from dequantize import to_f32
from llama_cpp import Llama, log_softmax

WINDOW, WINDOWS, POSITIONS = 512, 4, 200
PROMPTS = [
    "The capital of France is", "Water boils at", "Once upon a time", "The three primary colours are",
    "In 1969, the first man", "A good recipe for bread needs", "def fibonacci(n):", "The opposite of hot is",
    "To be or not to be,", "My favourite animal is", "The sun rises in the", "Photosynthesis is the process",
    "The largest planet is", "Dear Sir or Madam,", "1, 2, 3, 4,", "The quick brown fox", "Roses are red,",
    "It was a dark and stormy night", "The population of the Earth", "If all men are mortal",
]


def main(gyrus, model, *texts):
    # The same device on every machine, unless another is asked for.
    options = {"check": True, "capture_output": True, "text": True, "env": {"GYRUS_DEVICE": "cpu"} | os.environ}

    def run(*arguments, **more):
        return subprocess.run([gyrus, *arguments], **options, **more).stdout

    words = "".join(pathlib.Path(text).read_text() for text in texts)
    ids = [int(i) for i in run("tokenize", model, input=words).split()]
    assert len(ids) >= WINDOW * WINDOWS, len(ids)
    windows = [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(WINDOWS)]
    with tempfile.TemporaryDirectory() as folder:
        single = f"{folder}/f32.gguf"
        to_f32(model, single)

        def ours(window, precision):
            out = f"{folder}/logits.npy"
            run("logits", model, "--ids", " ".join(map(str, window)), "--out", out, "--precision", precision, "-q")
            return log_softmax(np.load(out))

        exact_llama, fast_llama = Llama(single), Llama(model)
        kl_fast, kl_llama, nll_exact, nll_fast, worst = [], [], [], [], 0.0
        for n, window in enumerate(windows):
            exact_llama.reset()
            fast_llama.reset()
            reference = log_softmax(exact_llama.decode(window))
            quantised = log_softmax(fast_llama.decode(window))
            exact, fast = ours(window, "exact"), ours(window, "fast")
            if n == 0:
                best = reference.argmax(axis=1)[:POSITIONS]
                rows = np.arange(POSITIONS)
                worst = np.abs(exact[rows, best] - reference[rows, best]).max()
            kl_fast.append((np.exp(exact) * (exact - fast)).sum(axis=1))
            kl_llama.append((np.exp(exact) * (exact - quantised)).sum(axis=1))
            following = np.array(window[1:])
            nll_exact.append(-exact[np.arange(WINDOW - 1), following])
            nll_fast.append(-fast[np.arange(WINDOW - 1), following])
        kl_fast, kl_llama = np.concatenate(kl_fast).mean(), np.concatenate(kl_llama).mean()
        ratio = np.exp(np.concatenate(nll_fast).mean() - np.concatenate(nll_exact).mean())
        print(f"exact against llama.cpp on F32: log-probability of the likeliest token within {worst:.2e} "
              f"at {POSITIONS} positions")
        print(f"KL(exact‖fast) {kl_fast:.3e}, KL(exact‖llama.cpp on the same file) {kl_llama:.3e}, "
              f"ratio {kl_fast / kl_llama:.3f} over {WINDOW * WINDOWS} tokens")
        print(f"perplexity of fast over exact {ratio:.5f}")
        assert worst < 1e-2
        assert kl_fast <= 1.2 * kl_llama
        assert abs(ratio - 1) < 0.01

        agreed = 0
        for prompt in PROMPTS:
            start = [int(i) for i in run("tokenize", model, input=prompt).split()]
            expected, gaps = exact_llama.greedy(start, 64)
            got = run("run", model, prompt, "--raw", "--temp", "0", "-n", "64", "--precision", "exact", "--output",
                      "ids", "-q")
            got = [int(i) for i in got.split()]
            # Up to the first near tie; ours may stop at an end token, theirs goes on.
            limit = next((i for i, gap in enumerate(gaps) if gap < 0.01), 64)
            limit = min(limit, len(got))
            assert got[:limit] == expected[:limit], f"{prompt!r}: {got[:limit]} instead of {expected[:limit]}"
            agreed += limit
        print(f"greedy in exact: {agreed} tokens of {len(PROMPTS)} prompts as llama.cpp on F32 chooses them")


if __name__ == "__main__":
    main(*sys.argv[1:])
