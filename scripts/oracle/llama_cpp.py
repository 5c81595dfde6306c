"""llama.cpp as a library, through the C interface that the xllamacpp wheel exports: logits of all positions.

As a program:
  llama_cpp.py greedy MODEL N ID...           prints N greedy ids behind the given ones
  llama_cpp.py logits MODEL OUT.npy ID...     writes the logits behind each of the ids

Both compute in f32, which llama.cpp does not of its own: its cache is f16, its flash attention rounds queries to f16, and
its GELU is a table of f16. With these, GELU alone moves log-probabilities of a small Gemma 4 by 3.4e-3, and the f16 cache
exchanges experts whose router logits differ by 4.6e-4.
"""
import ctypes
import os
import sys

import numpy as np
import xllamacpp.xllamacpp as module


class Params(ctypes.Structure):
    """Opaque and larger than the real structs, so that one definition outlives added fields."""

    _fields_ = [("words", ctypes.c_uint32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.c_void_p), ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


class Tensor(ctypes.Structure):
    """The fields of `ggml_tensor` up to its data."""

    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
                ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16),
                ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p),
                ("view_offset", ctypes.c_size_t), ("data", ctypes.c_void_p)]

    def array(self):
        """Its values, which must be f32: `[ne3, ne2, ne1, ne0]`, not a copy."""
        assert self.type == 0, f"a tensor of type {self.type}, not f32"
        size = 4 + sum((n - 1) * step for n, step in zip(self.ne, self.nb))
        memory = (ctypes.c_char * size).from_address(self.data)
        return np.ndarray(tuple(self.ne)[::-1], np.float32, memory, 0, tuple(self.nb)[::-1])


class F32Gelu:
    """An evaluation callback that replaces the results of GELU, for which llama.cpp has a table of f16 values at f16
    arguments, by those of the formula in f32."""

    def __init__(self, lib):
        lib.ggml_op_desc.restype, lib.ggml_op_desc.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
        self.lib, self.result, self.replaced = lib, None, 0
        self.function = kind(self.observe)

    @staticmethod
    def gelu(x):
        inner = np.float32(0.79788456080286536) * x * (1 + np.float32(0.044715) * x * x)
        return np.float32(0.5) * x * (1 + np.tanh(inner))

    def observe(self, address, before, _user):
        """Called before each op and after it. Its result may overwrite its arguments, so they are read before."""
        op = self.lib.ggml_op_desc(address)
        if op not in (b"GELU", b"GEGLU"):
            # True: this op is run before the next is asked for.
            return True
        tensor = Tensor.from_address(address)
        if before:
            x = Tensor.from_address(tensor.src[0]).array()
            if op == b"GELU":
                self.result = self.gelu(x)
            elif tensor.src[1]:
                self.result = self.gelu(x) * Tensor.from_address(tensor.src[1]).array()
            else:
                gate, up = np.split(x, 2, axis=-1)[::-1 if tensor.op_params[1] else 1]
                self.result = self.gelu(gate) * up
        else:
            given = tensor.array()
            assert np.allclose(given, self.result, rtol=2e-3, atol=1e-3), f"{op}: not the formula that it replaces"
            given[...] = self.result
            self.replaced += 1
        return True


class Llama:
    """A model with one sequence. `f32`: with an f32 cache, attention and GELU in f32."""

    def __init__(self, path, context=1024, f32=False):
        lib = self.lib = ctypes.CDLL(module.__file__)
        pointer = ctypes.c_void_p
        for name, result, arguments in [
                ("llama_model_default_params", Params, []), ("llama_context_default_params", Params, []),
                ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Params]),
                ("llama_init_from_model", pointer, [pointer, Params]),
                ("llama_model_get_vocab", pointer, [pointer]), ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
                ("llama_batch_init", Batch, [ctypes.c_int32] * 3), ("llama_decode", ctypes.c_int32, [pointer, Batch]),
                ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
                ("llama_get_memory", pointer, [pointer]), ("llama_memory_clear", None, [pointer, ctypes.c_bool])]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)
        self.quiet = callback(lambda level, text, user: None)
        lib.llama_log_set(self.quiet, None)
        self.model = lib.llama_model_load_from_file(os.fsencode(path), lib.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        params = lib.llama_context_default_params()
        # The first fields of the struct: context, batch and micro-batch sizes.
        params.words[0] = params.words[1] = params.words[2] = context
        if f32:
            # The types of keys and values are after the last factor of a rope, which is -1: 1 is f16, 0 is f32.
            words = list(params.words)
            first = len(words) - words[::-1].index(0xBF800000)
            at = next(i for i in range(first, len(words)) if words[i:i + 2] == [1, 1])
            params.words[at] = params.words[at + 1] = 0
            # The evaluation callback and its argument, two null pointers, are before them.
            assert words[at - 4:at] == [0] * 4, "no evaluation callback before the types of the cache"
            self.f32_gelu = F32Gelu(lib)
            address = ctypes.cast(self.f32_gelu.function, pointer).value
            params.words[at - 4], params.words[at - 3] = address & 0xFFFFFFFF, address >> 32
            # Flash attention, which rounds queries to f16, is the last of the settings that are -1 for any.
            params.words[len(words) - 1 - words[::-1].index(0xFFFFFFFF)] = 0
        self.context = lib.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp has no context"
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(context, 0, 1)
        self.length = 0

    def reset(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        self.length = 0

    def decode(self, ids, every=True):
        """The logits behind each of the ids, or behind the last: `[n, vocab]`."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == len(ids) - 1
        status = self.lib.llama_decode(self.context, batch)
        assert status == 0, f"llama.cpp: decode gives {status}"
        self.length += len(ids)
        rows = range(len(ids)) if every else [len(ids) - 1]
        return np.stack([np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, i), (self.vocab,)).copy()
                         for i in rows])

    def greedy(self, ids, n):
        """The n likeliest ids, one after the other, and the gap between the best two logits at each."""
        self.reset()
        chosen, gaps = [], []
        row = self.decode(ids, every=False)[0]
        for _ in range(n):
            first, second = np.partition(row, -2)[-1:-3:-1]
            chosen.append(int(np.argmax(row)))
            gaps.append(float(first - second))
            row = self.decode([chosen[-1]], every=False)[0]
        return chosen, gaps


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    command, path, argument, *ids = sys.argv[1:]
    ids = [int(i) for i in ids]
    if command == "greedy":
        print(*Llama(path, f32=True).greedy(ids, int(argument))[0])
    elif command == "logits":
        np.save(argument, Llama(path, f32=True).decode(ids).astype("<f4"))
    else:
        sys.exit(f"no command {command}")
