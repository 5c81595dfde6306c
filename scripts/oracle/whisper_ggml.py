"""Reads Whisper models in whisper.cpp's GGML files of F16 and F32, for scripts that write them in other forms."""
import itertools
import math
import os
import struct

LANGUAGES = """en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml
cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo
ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue""".split()
FIRST_MULTILINGUAL = 51865


def read_ggml(path):
    """The sizes in the header, the tokens, and the type ("F32" or "F16"), shape and bytes of each tensor."""
    with open(path, "rb") as file:
        take = lambda form: struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))
        assert take("I") == (0x67676D6C,), "not a GGML file"
        names = "vocab audio_ctx audio_state audio_heads audio_layers text_ctx text_state text_heads text_layers mels type"
        sizes = dict(zip(names.split(), take("11i")))
        bands, bins = take("2i")
        file.seek(4 * bands * bins, os.SEEK_CUR)
        tokens = [file.read(take("I")[0]) for _ in range(take("i")[0])]
        tensors = {}
        while head := file.read(12):
            dims, length, kind = struct.unpack("<3i", head)
            shape = take(f"{dims}i")[::-1]
            name = file.read(length).decode()
            dtype, width = {0: ("F32", 4), 1: ("F16", 2)}[kind]
            # Biases of convolutions are stored as columns.
            shape = (math.prod(shape),) if name.endswith(("conv1.bias", "conv2.bias")) else shape
            tensors[name] = (dtype, shape, file.read(math.prod(shape) * width))
    return sizes, tokens, tensors


def split_vocabulary(sizes, tokens):
    """Tokens of text, special tokens and timestamps, in the order of their ids."""
    multilingual = sizes["vocab"] >= FIRST_MULTILINGUAL
    languages = LANGUAGES[: sizes["vocab"] - FIRST_MULTILINGUAL + 99 if multilingual else 99]
    tokens = tokens[: 50257 if multilingual else 50256]
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{language}|>" for language in languages), "<|translate|>",
               "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(sizes["vocab"] - len(tokens) - len(special))]
    assert len(times) == 1501, f"{len(times)} timestamps instead of 1,501"
    return tokens, special, times


def letters():
    """The letter of each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merges(ranks):
    """The two parts that each token is merged from: what merging by rank leaves before the token itself."""
    pairs = []
    for token, rank in ranks.items():
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            found = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
            least, i = min(found)
            if least >= rank:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            pairs.append(parts)
    return pairs


def tokenizer_json(tokens, special):
    letter = letters()
    spelled = lambda token: "".join(letter[byte] for byte in token)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": len(tokens) + i, "content": content, **flags} for i, content in enumerate(special)]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "vocab": {spelled(token): rank for token, rank in ranks.items()},
        "merges": [[spelled(a), spelled(b)] for a, b in merges(ranks)],
    }
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
