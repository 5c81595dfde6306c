#!/usr/bin/env python3
"""Writes the vocabulary of a character-level BPE tokenizer.json as GGUF of the family gemma4.

Usage: gemma4_vocabulary.py TOKENIZER.json VOCABULARY.gguf      (needs PyPI gguf)
"""
import json
import sys

import gguf


def main(source, path):
    tokenizer = json.load(open(source))
    model = tokenizer["model"]
    size = max(model["vocab"].values()) + 1
    tokens, kinds = [""] * size, [1] * size
    for text, i in model["vocab"].items():
        tokens[i] = text
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            kinds[i] = 6
    for token in tokenizer["added_tokens"]:
        if token["id"] < size:
            kinds[token["id"]] = 3 if token["special"] else 4
    ids = {name: model["vocab"][f"<{name}>"] for name in ("bos", "eos", "unk")}
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(ids["bos"])
    writer.add_eos_token_id(ids["eos"])
    writer.add_unk_token_id(ids["unk"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
