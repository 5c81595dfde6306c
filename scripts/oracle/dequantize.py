"""Writes a GGUF model with all its tensors in F32, so that programs that quantise activations differently agree on it.

dequantize.py MODEL.gguf OUT.gguf
"""
import sys

import gguf


def to_f32(model, out):
    """The same values, as F32: llama.cpp then computes without rounding activations."""
    reader = gguf.GGUFReader(model)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        # The writer has the architecture, and counts by itself.
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    to_f32(*sys.argv[1:])
