#!/usr/bin/env python3
"""Token ids as Hugging Face tokenizers computes them, for the differential tests of gyrus-text.

Usage: tokenize_hf.py TOKENIZER REQUESTS      (needs PyPI tokenizers)

TOKENIZER is a tokenizer.json, or a GGUF vocabulary of the bert family, from which the standard BERT
tokenizer is put together. REQUESTS is as for tokenize_llama.py; so is the output, without a line of
end tokens.
"""
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers


def bert(path):
    """BERT as published: the words of the vocabulary, its marks for continuations, its cleaning."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    vocab = {}
    for i, (token, kind) in enumerate(zip(tokens, kinds)):
        if kind == 1 and token.startswith("\u2581"):
            token = token[1:]
        elif kind == 1 and not token.startswith("[unused"):
            token = "##" + token
        vocab[token] = i
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([t for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def main(path, requests):
    tokenizer = bert(path) if path.endswith(".gguf") else Tokenizer.from_file(path)
    for line in open(requests):
        flags, _, text = line.rstrip("\n").partition(" ")
        flags, text = int(flags), bytes.fromhex(text).decode()
        tokenizer.encode_special_tokens = not flags & 1
        print(*tokenizer.encode(text, add_special_tokens=bool(flags & 2)).ids)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
