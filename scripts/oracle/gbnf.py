"""Which texts llama.cpp's grammars accept.

gbnf.py MODEL.gguf CASES.json   for each {"grammar": ..., "texts": [...]} prints a line with 1 for a text that the grammar
                                accepts as a whole, and 0 for others; x for a grammar that is refused
"""
import ctypes
import json
import sys

from llama_cpp import Llama


class Token(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class Tokens(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(Token)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool)]


def main(model, cases):
    llama = Llama(model)
    lib, pointer = llama.lib, ctypes.c_void_p
    for name, result, arguments in [
            ("llama_sampler_init_grammar", pointer, [pointer, ctypes.c_char_p, ctypes.c_char_p]),
            ("llama_sampler_apply", None, [pointer, ctypes.POINTER(Tokens)]),
            ("llama_sampler_accept", None, [pointer, ctypes.c_int32]), ("llama_sampler_free", None, [pointer]),
            ("llama_vocab_eos", ctypes.c_int32, [pointer]),
            ("llama_tokenize", ctypes.c_int32, [pointer, ctypes.c_char_p, ctypes.c_int32,
                                                ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool,
                                                ctypes.c_bool])]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    vocab = lib.llama_model_get_vocab(llama.model)
    end = lib.llama_vocab_eos(vocab)

    def tokens(text):
        data, ids = text.encode(), (ctypes.c_int32 * 4096)()
        return ids[:lib.llama_tokenize(vocab, data, len(data), ids, 4096, False, False)]

    def allows(sampler, token):
        one = Token(token, 1.0, 0.0)
        lib.llama_sampler_apply(sampler, Tokens(ctypes.pointer(one), 1, -1, False))
        return one.logit == 1.0

    def accepts(grammar, text):
        sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if not sampler:
            return "x"
        accepted = True
        # A token that is not allowed must not be accepted: llama.cpp would throw.
        for token in tokens(text):
            if not (accepted := allows(sampler, token)):
                break
            lib.llama_sampler_accept(sampler, token)
        accepted = accepted and allows(sampler, end)
        lib.llama_sampler_free(sampler)
        return "1" if accepted else "0"

    with open(cases, encoding="utf-8") as file:
        for case in json.load(file):
            print("".join(accepts(case["grammar"], text) for text in case["texts"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
