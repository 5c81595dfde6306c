"""What llama.cpp's samplers keep of given logits.

samplers.py CASES.json RESULTS.json

CASES.json: {"logits": [...], "tokens": [...], "cases": [{"stages": [[NAME, ARGUMENT...], ...]}, ...]}
RESULTS.json: for each case the tokens that are kept with their probabilities: [[[ID, P], ...], ...]

The library exports its C interface; a chain of samplers is applied to an array of candidates.
"""
import ctypes
import json
import math
import sys

from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import xllamacpp


class TokenData(Structure):
    _fields_ = [("id", c_int32), ("logit", c_float), ("p", c_float)]


class TokenDataArray(Structure):
    _fields_ = [("data", POINTER(TokenData)), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class Vector(Structure):
    """The three pointers of a std::vector."""
    _fields_ = [("begin", c_void_p), ("end", c_void_p), ("capacity", c_void_p)]

    @classmethod
    def of(cls, array):
        begin = ctypes.addressof(array)
        end = begin + ctypes.sizeof(array)
        return cls(begin, end, end)


class LogitBias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


# DRY with breakers that are tokens, for tests, is C++.
DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"

KINDS = {
    "top_k": [c_int32],
    "top_p": [c_float, c_size_t],
    "min_p": [c_float, c_size_t],
    "typical": [c_float, c_size_t],
    "temp": [c_float],
    "temp_ext": [c_float, c_float, c_float],
    "xtc": [c_float, c_float, c_size_t, c_uint32],
    "top_n_sigma": [c_float],
    "mirostat_v2": [c_uint32, c_float, c_float],
    # The size of the vocabulary, the window, the penalties for repetition, frequency and presence.
    "penalties": [c_int32, c_int32, c_float, c_float, c_float],
}


def load():
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    for name, kinds in KINDS.items():
        init = getattr(library, f"llama_sampler_init_{name}")
        init.restype, init.argtypes = c_void_p, kinds
    library.llama_sampler_init_logit_bias.restype = c_void_p
    library.llama_sampler_init_logit_bias.argtypes = [c_int32, c_int32, POINTER(LogitBias)]
    dry = getattr(library, DRY)
    dry.restype, dry.argtypes = c_void_p, [c_float, c_float, c_int32, c_int32, POINTER(Vector)]
    for name in ("apply", "accept", "free"):
        getattr(library, f"llama_sampler_{name}").restype = None
    library.llama_sampler_apply.argtypes = [c_void_p, POINTER(TokenDataArray)]
    library.llama_sampler_accept.argtypes = [c_void_p, c_int32]
    library.llama_sampler_free.argtypes = [c_void_p]
    return library


def init(library, name, arguments, vocab):
    if name == "logit_bias":
        biases = (LogitBias * len(arguments))(*[LogitBias(token, bias) for token, bias in arguments])
        return library.llama_sampler_init_logit_bias(vocab, len(arguments), biases)
    if name == "penalties":
        return library.llama_sampler_init_penalties(vocab, *arguments)
    if name == "dry":
        *numbers, breakers = arguments
        tokens = [(c_int32 * len(breaker))(*breaker) for breaker in breakers]
        vectors = (Vector * len(tokens))(*[Vector.of(breaker) for breaker in tokens])
        return getattr(library, DRY)(*numbers, byref(Vector.of(vectors)))
    return getattr(library, f"llama_sampler_init_{name}")(*arguments)


def kept(library, logits, tokens, stages):
    data = (TokenData * len(logits))(*[TokenData(i, logit, 0.0) for i, logit in enumerate(logits)])
    array = TokenDataArray(data, len(logits), -1, False)
    for name, *arguments in stages:
        sampler = init(library, name, arguments, len(logits))
        for token in tokens:
            library.llama_sampler_accept(sampler, token)
        library.llama_sampler_apply(sampler, byref(array))
        library.llama_sampler_free(sampler)
    left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    left = [(token, logit) for token, logit in left if logit > -1e30]
    largest = max(logit for _, logit in left)
    weights = [(token, math.exp(logit - largest)) for token, logit in left]
    total = sum(weight for _, weight in weights)
    return [[token, weight / total] for token, weight in weights]


def main(cases, results):
    with open(cases) as file:
        given = json.load(file)
    library = load()
    found = [kept(library, given["logits"], given["tokens"], case["stages"]) for case in given["cases"]]
    with open(results, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
