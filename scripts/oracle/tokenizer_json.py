#!/usr/bin/env python3
"""Ids and decoded text as Hugging Face tokenizers computes them, for the tests of gyrus-text's tokenizer.json reader.

Usage: tokenizer_json.py TOKENIZER.json REQUESTS      (needs PyPI tokenizers)

REQUESTS is as for tokenize_llama.py. For each request one line: the ids, the text that they decode to
without special tokens, and with them; the texts in hexadecimal, separated by tabs.
"""
import sys

from tokenizers import Tokenizer


def main(path, requests):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for line in open(requests):
        flags, _, text = line.rstrip("\n").partition(" ")
        flags, text = int(flags), bytes.fromhex(text).decode()
        tokenizer.encode_special_tokens = not flags & 1
        ids = tokenizer.encode(text, add_special_tokens=bool(flags & 2)).ids
        texts = [tokenizer.decode(ids, skip_special_tokens=skip).encode().hex() for skip in (True, False)]
        print(" ".join(map(str, ids)), *texts, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
