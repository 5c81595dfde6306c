#!/usr/bin/env python3
"""Token ids as llama.cpp computes them, for the differential tests of gyrus-text.

Usage: tokenize_llama.py VOCABULARY.gguf REQUESTS      (needs PyPI xllamacpp)

The file REQUESTS holds one request a line: FLAGS HEX, where FLAGS is a number (1: parse special
tokens, 2: add the special tokens the vocabulary asks for) and HEX the UTF-8 text in hexadecimal.
Standard output has a line "end ID..." of the tokens that end a generation, then the ids of each
request on one line. A model file without weights is enough: only the vocabulary is loaded, through the
C interface that the extension module exports.
"""
import ctypes
import os
import sys

import xllamacpp.xllamacpp as module

# Where the flag that skips the weights lies inside the parameter struct: behind two pointers, five
# 32-bit fields with padding and four pointers.
VOCAB_ONLY_OFFSET = 72


class ModelParams(ctypes.Structure):
    """Opaque and larger than the real struct, so that one definition outlives added fields."""

    _fields_ = [("bytes", ctypes.c_uint8 * 256)]


def load(path):
    lib = ctypes.CDLL(module.__file__)
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p,
                                   ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    lib.llama_vocab_is_eog.restype = ctypes.c_bool
    lib.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    quiet = callback(lambda level, text, user: None)
    lib.llama_log_set.argtypes = [callback, ctypes.c_void_p]
    lib.llama_log_set(quiet, None)
    params = lib.llama_model_default_params()
    params.bytes[VOCAB_ONLY_OFFSET] = 1
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(f"llama.cpp does not load {path}")
    vocab = lib.llama_model_get_vocab(model)
    return lib, vocab, quiet


def main(path, requests):
    lib, vocab, _quiet = load(path)
    count = lib.llama_vocab_n_tokens(vocab)
    print("end", *[i for i in range(count) if lib.llama_vocab_is_eog(vocab, i)])
    room = 1 << 16
    ids = (ctypes.c_int32 * room)()
    for line in open(requests):
        flags, _, text = line.rstrip("\n").partition(" ")
        flags, text = int(flags), bytes.fromhex(text)
        while True:
            n = lib.llama_tokenize(vocab, text, len(text), ids, room, bool(flags & 2), bool(flags & 1))
            if n >= 0:
                break
            room = -n
            ids = (ctypes.c_int32 * room)()
        print(*ids[:n])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
