#!/usr/bin/env python3
"""Trains a small SentencePiece model and tokenises with it, for the differential tests of gyrus-text.

Usage: sentencepiece_model.py KIND VOCABULARY.gguf REQUESTS      (needs PyPI sentencepiece and gguf)

KIND is unigram (with SentencePiece's own normalisation), unigram-bytes (no normalisation, bytes for
unknown characters), unigram-suffix (spaces behind words) or bpe. The texts of REQUESTS, which is as for
tokenize_llama.py, are what the model is trained on. Its vocabulary is written to VOCABULARY.gguf; output
is as of tokenize_llama.py, without a line of end tokens.
"""
import io
import struct
import sys

import gguf
import sentencepiece

OPTIONS = {
    "unigram": {"model_type": "unigram"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity",
                      "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "unigram-suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True},
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False},
}


def fields(message):
    """The fields of a protocol buffer message as (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, message[at:at + size]
            at += size
        else:
            size = 4 if key & 7 == 5 else 8
            yield key >> 3, message[at:at + size]
            at += size


def write(model, path, kind):
    tokens, scores, kinds = [], [], []
    normaliser = {}
    suffix = False
    for number, value in fields(model):
        if number == 1:
            piece = dict(fields(value))
            tokens.append(piece[1].decode())
            scores.append(struct.unpack("<f", piece[2])[0])
            kinds.append(piece.get(3, 1))
        elif number == 2:
            suffix = bool(dict(fields(value)).get(24, 0))
        elif number == 3:
            normaliser = dict(fields(value))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama" if kind == "bpe" else "t5")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(bool(normaliser.get(3, 1)))
    writer.add_remove_extra_whitespaces(bool(normaliser.get(4, 1)))
    writer.add_bool("tokenizer.ggml.treat_whitespace_as_suffix", suffix)
    if normaliser.get(2):
        writer.add_precompiled_charsmap(normaliser[2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main(kind, path, requests):
    texts = [bytes.fromhex(line.rstrip("\n").partition(" ")[2]).decode() for line in open(requests)]
    model = io.BytesIO()
    # Lines are sentences to the trainer, and it cannot hold a zero.
    sentences = [line for text in texts for line in text.replace("\0", "").splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=2500, character_coverage=0.98,
        hard_vocab_limit=False, num_threads=1, minloglevel=2, max_sentence_length=1 << 16, **OPTIONS[kind])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write(model.getvalue(), path, kind)
    for text in texts:
        print(*processor.encode(text))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
