#!/usr/bin/env python3
"""Small tokenizers with the parts that published tokenizer.json files use, for the tests of gyrus-text.

Usage: train_tokenizers.py FOLDER REQUESTS      (needs PyPI tokenizers and sentencepiece)

The texts of REQUESTS, which is as for tokenize_llama.py, are what the tokenizers are trained on. Writes
FOLDER/NAME.json for each tokenizer below and prints the names.
"""
import io
import json
import re
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sentencepiece_model import fields

N, P, D = normalizers, pre_tokenizers, decoders
ALPHABET = P.ByteLevel.alphabet()
LLAMA_DECODER = D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])


def charsmap(rule):
    """The compiled normalisation rules of a SentencePiece model; they do not depend on the texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["some words"] * 10), model_writer=model, vocab_size=20, hard_vocab_limit=False,
        normalization_rule_name=rule, minloglevel=2)
    return next(dict(fields(value))[2] for number, value in fields(model.getvalue()) if number == 3)


def byte_level(prefix=False, regex=True):
    return P.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def definitions():
    """Name: model, normaliser, pre-tokenizer, decoder, post-processor by ids, added tokens."""
    nmt = N.Precompiled(charsmap("nmt_nfkc"))
    folded = N.Precompiled(charsmap("nmt_nfkc_cf"))
    roberta = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    bert = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    template = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 1), ("</s>", 2)])
    both = processors.Sequence([processors.ByteLevel(), template])
    word = AddedToken("word", single_word=True, normalized=False)
    left = AddedToken("<left>", lstrip=True)
    right = AddedToken("<right>", rstrip=True)
    folds = AddedToken("NEW Token", normalized=True)
    special = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    added = [word, left, right, folds, special]
    yield "roberta", "bpe", None, byte_level(True), D.ByteLevel(), roberta, added
    yield "byte-level", "bpe", N.NFC(), P.Sequence([P.Digits(True), byte_level()]), D.ByteLevel(), both, added
    yield "falcon", "bpe", None, P.Sequence([P.Punctuation("contiguous"), byte_level(), P.Digits(False), P.Split(
        Regex("[0-9][0-9][0-9]"), "isolated")]), D.ByteLevel(), None, []
    yield "removed", "bpe", None, P.Sequence([P.Split(Regex(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "removed", True),
        byte_level(False, False)]), D.ByteLevel(), None, added
    yield "unknown-regex", "bpe", N.Sequence([N.NFKC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]), P.Sequence([
        P.Split(Regex(r"(?<=\d)(?=(?:\d\d\d)+(?!\d))|\p{Lu}+|[\p{L}']+(?=ing)|\S"), "isolated"),
        byte_level(False, False)]), D.ByteLevel(), None, added
    yield "byte-normalizer", "bpe", N.Sequence([N.NFD(), N.ByteLevel()]), None, D.ByteLevel(), None, []
    yield "llama", "bytes", N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]), None, LLAMA_DECODER, template, added
    yield "metaspace-first", "bytes", None, P.Metaspace("\u2581", "first", False), LLAMA_DECODER, template, added
    yield "gemma", "bytes", N.Replace(" ", "\u2581"), P.Split(" ", "merged_with_previous"), D.Sequence(
        [D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse()]), None, []
    yield "unknown-fused", "fused", N.NFKD(), P.Metaspace("\u2581", "never", True), D.Metaspace("\u2581", "never"), bert, []
    yield "unknown-apart", "apart", N.Strip(), P.Whitespace(), None, None, added
    yield "behaviors", "apart", N.Nmt(), P.Sequence([
        P.Split(Regex(r"[aeiou]"), "merged_with_next"), P.Split(Regex(r"\p{P}+"), "merged_with_previous"),
        P.Split("o", "contiguous"), P.Split(Regex(r"\s"), "removed"), P.CharDelimiterSplit("k")]), D.Fuse(), None, []
    yield "t5", "unigram", N.Sequence([nmt, N.Replace(Regex(" {2,}"), " ")]), P.Sequence(
        [P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace(), template, added
    yield "albert", "unigram", N.Sequence([N.Replace("``", '"'), N.Replace("''", '"'), N.NFKD(), N.StripAccents(),
        N.Lowercase(), nmt]), P.Metaspace("\u2581", "always"), D.Metaspace(), template, added
    yield "unigram-first", "unigram", folded, P.Metaspace("\u2581", "first"), D.Metaspace("\u2581", "first"), None, []
    yield "unigram-bytes", "unigram-bytes", N.Replace(" ", "\u2581"), None, LLAMA_DECODER, template, []
    yield "bert", "wordpiece", N.BertNormalizer(), P.BertPreTokenizer(), D.WordPiece(), bert, added
    yield "bert-cased", "wordpiece", N.BertNormalizer(True, False, False, False), P.Sequence(
        [P.WhitespaceSplit(), P.Punctuation()]), D.WordPiece(cleanup=False), template, [special]
    yield "no-decoder", "wordpiece", N.Sequence([N.NFD(), N.StripAccents()]), P.Whitespace(), None, None, []


def train(kind, tokenizer, texts):
    specials = ["<unk>", "<s>", "</s>"]
    size = {"vocab_size": 900, "special_tokens": specials, "show_progress": False}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = {
        "bpe": lambda: trainers.BpeTrainer(initial_alphabet=ALPHABET, **size),
        "bytes": lambda: trainers.BpeTrainer(limit_alphabet=150, **size),
        "fused": lambda: trainers.BpeTrainer(limit_alphabet=100, **size),
        "apart": lambda: trainers.BpeTrainer(limit_alphabet=100, **size),
        "unigram": lambda: trainers.UnigramTrainer(unk_token="<unk>", **{**size, "vocab_size": 6000}),
        "unigram-bytes": lambda: trainers.UnigramTrainer(unk_token="<unk>", **{**size, "vocab_size": 6000}),
        "wordpiece": lambda: trainers.WordPieceTrainer(limit_alphabet=150, **size),
    }[kind]()
    # Of some texts only, so that there are unknown characters. A special token must not be learned as text.
    texts = [re.sub("</?s>|<unk>|<0x41>", "", text) for text in texts[::4]]
    tokenizer.train_from_iterator(texts, trainer)
    if not kind.endswith("bytes"):
        return tokenizer
    # Byte tokens are no training result: they are written into the file.
    file = json.loads(tokenizer.to_str())
    model = file["model"]
    model["byte_fallback"] = True
    if kind == "bytes":
        # As some files write them.
        model["merges"] = [" ".join(pair) for pair in model["merges"] if not any(" " in side for side in pair)]
    for byte in bytes_:
        if kind == "bytes":
            model["vocab"].setdefault(byte, len(model["vocab"]))
        else:
            model["vocab"].append([byte, -20.0])
    return Tokenizer.from_str(json.dumps(file))


MODELS = {
    "bpe": lambda: models.BPE(),
    "bytes": lambda: models.BPE(unk_token="<unk>", fuse_unk=True),
    "fused": lambda: models.BPE(unk_token="<unk>", fuse_unk=True),
    "apart": lambda: models.BPE(unk_token="<unk>", ignore_merges=True),
    "unigram": lambda: models.Unigram(),
    "unigram-bytes": lambda: models.Unigram(),
    "wordpiece": lambda: models.WordPiece(unk_token="<unk>", max_input_chars_per_word=20),
}


def main(folder, requests):
    texts = [bytes.fromhex(line.rstrip("\n").split(" ", 1)[1]).decode() for line in open(requests)]
    for name, kind, normalizer, pre_tokenizer, decoder, post_processor, added in definitions():
        tokenizer = Tokenizer(MODELS[kind]())
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        if decoder:
            tokenizer.decoder = decoder
        tokenizer = train(kind, tokenizer, texts)
        if post_processor:
            tokenizer.post_processor = post_processor
        tokenizer.add_special_tokens([token for token in added if token.special])
        tokenizer.add_tokens([token for token in added if not token.special])
        tokenizer.save(f"{folder}/{name}.json")
        print(name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
