"""Block formats by independent programs.

quants.py dequantize DIR   for each DIR/TYPE.blocks write DIR/TYPE.f32, by the Python package `gguf`
quants.py error DIR        for each DIR/NAME.f32 and each type both can make, print one JSON object
                           {"NAME": {"TYPE": mean squared error}}, by ggml's own quantisers
quants.py sizes            print {"ID": [name, block elements, block bytes]} as ggml states them
"""
import ctypes
import importlib.util
import json
import pathlib
import sys

import numpy as np

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4"]
TYPES = 43


def ggml():
    """The ggml library inside the xllamacpp wheel, which exports its C functions."""
    folder = pathlib.Path(importlib.util.find_spec("xllamacpp").origin).parent
    library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    return library


def dequantize(folder):
    import gguf

    for path in sorted(folder.glob("*.blocks")):
        kind = gguf.GGMLQuantizationType[path.stem]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = np.fromfile(path, dtype=np.uint8).reshape(-1, size)
        if kind == gguf.GGMLQuantizationType.F32:
            values = blocks.view(np.float32)
        elif kind == gguf.GGMLQuantizationType.F16:
            values = blocks.view(np.float16).astype(np.float32)
        else:
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(blocks, kind)
        values.astype(np.float32).tofile(path.with_suffix(".f32"))


def error(folder):
    import gguf

    library = ggml()
    result = {}
    for path in sorted(folder.glob("*.f32")):
        values = np.fromfile(path, dtype=np.float32)
        result[path.stem] = {}
        for name in QUANTIZED:
            kind = gguf.GGMLQuantizationType[name]
            elems, size = gguf.GGML_QUANT_SIZES[kind]
            out = np.zeros((values.size // elems, size), dtype=np.uint8)
            library.ggml_quantize_chunk(
                ctypes.c_int(kind.value), values.ctypes.data_as(ctypes.c_void_p),
                out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0),
                ctypes.c_int64(values.size // 256), ctypes.c_int64(256), None)
            back = gguf.quants.dequantize(out, kind).reshape(-1)
            result[path.stem][name] = float(np.mean((back.astype(np.float64) - values) ** 2))
    print(json.dumps(result))


def sizes():
    library = ggml()
    table = {i: [library.ggml_type_name(i).decode(), library.ggml_blck_size(i), library.ggml_type_size(i)]
             for i in range(TYPES)}
    print(json.dumps({i: row for i, row in table.items() if row[2] > 0}))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    {"dequantize": dequantize, "error": error, "sizes": sizes}[command](*map(pathlib.Path, rest))
