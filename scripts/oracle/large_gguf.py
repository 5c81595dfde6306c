"""Writes a sparse GGUF of 1 GiB and measures `gyrus inspect` on it: time and peak memory.

large_gguf.py FILE GYRUS
"""
import struct
import subprocess
import sys
import time

TENSORS, TOKENS, LIMIT_MB = 300, 150_000, 20


def string(text):
    return struct.pack("<Q", len(text)) + text


def write(path):
    def strings(key, pattern):
        items = b"".join(string(pattern % i) for i in range(TOKENS))
        return string(key) + struct.pack("<IIQ", 9, 8, TOKENS) + items

    keys = [string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama"),
            strings(b"tokenizer.ggml.tokens", b"token%d"), strings(b"tokenizer.ggml.merges", b"to ken%d")]
    size = (1 << 30) // TENSORS // 32 * 32
    infos = b"".join(string(b"blk.%d.weight" % i) + struct.pack("<IQIQ", 1, size // 2, 1, i * size)
                     for i in range(TENSORS))
    head = b"GGUF" + struct.pack("<IQQ", 3, TENSORS, len(keys)) + b"".join(keys) + infos
    head += bytes(-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + TENSORS * size)


def main(path, gyrus):
    write(path)
    start = time.perf_counter()
    # A child's peak counts what it was forked from, so GNU time, which is small, starts it.
    timed = subprocess.run(["/usr/bin/time", "-f", "%M", gyrus, "inspect", path], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    megabytes = int(timed.stderr.split()[-1]) / 1024
    print(f"inspect of 1 GiB: {seconds * 1000:.0f} ms, {megabytes:.1f} MB")
    assert megabytes < LIMIT_MB, f"more than {LIMIT_MB} MB"


if __name__ == "__main__":
    main(*sys.argv[1:])
