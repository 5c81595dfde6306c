#!/usr/bin/env python3
"""Writes what openai-whisper computes of jfk.wav with the weights of a GGML file: some frames of the spectrogram, and some
rows of the encoder's output.

Needs torch, numpy and openai-whisper: scripts/oracle/openai_whisper.py ggml-tiny.bin jfk.wav tests/data/whisper
"""
import os
import struct
import sys
import wave

import numpy as np
import torch
import whisper
from whisper.model import ModelDimensions, Whisper

MAGIC = 0x67676D6C
FRAMES, ROWS = 25, 50  # one in so many is written


def read_ggml(path):
    """The dimensions of a GGML file of F32 and F16, and its tensors under OpenAI's names."""
    with open(path, "rb") as file:
        take = lambda format: struct.unpack("<" + format, file.read(struct.calcsize("<" + format)))
        assert take("I") == (MAGIC,), "not a GGML file"
        vocab, audio_ctx, audio_state, audio_head, audio_layer, text_ctx, text_state, text_head, text_layer, mels, _ = take("11i")
        bands, bins = take("2i")
        file.seek(4 * bands * bins, os.SEEK_CUR)
        for _ in range(take("i")[0]):
            file.seek(take("I")[0], os.SEEK_CUR)
        tensors = {}
        while head := file.read(12):
            dims, length, kind = struct.unpack("<3i", head)
            shape = take(f"{dims}i")[::-1]
            name = file.read(length).decode()
            dtype = {0: "<f4", 1: "<f2"}[kind]
            count = int(np.prod(shape))
            values = np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype).astype(np.float32)
            # Biases of convolutions are stored as columns.
            shape = (-1,) if name.endswith(("conv1.bias", "conv2.bias")) else shape
            tensors[name] = torch.from_numpy(values.reshape(shape).copy())
    dims = ModelDimensions(mels, audio_ctx, audio_state, audio_head, audio_layer, vocab, text_ctx, text_state, text_head, text_layer)
    return dims, tensors


model_path, audio_path, out = sys.argv[1:4]
dims, tensors = read_ggml(model_path)
model = Whisper(dims)
model.load_state_dict(tensors)
with wave.open(audio_path) as file:
    samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
mel = whisper.pad_or_trim(whisper.log_mel_spectrogram(samples, dims.n_mels, padding=30 * 16000), 3000)
with torch.no_grad():
    encoded = model.eval().embed_audio(mel[None])[0]
np.save(os.path.join(out, "jfk_mel.npy"), np.ascontiguousarray(mel.numpy().T[::FRAMES]))
np.save(os.path.join(out, "jfk_encoded.npy"), np.ascontiguousarray(encoded.numpy()[::ROWS]))
