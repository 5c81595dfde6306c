#!/usr/bin/env python3
"""Writes tests/data/whisper: a random Whisper of two layers with what transformers computes with it.

Needs torch and transformers: scripts/oracle/tiny_whisper.py tests/data/whisper tests/data/audio/speech.wav
"""
import json
import os
import sys
import wave

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

folder, audio = sys.argv[1:3]
os.makedirs(folder, exist_ok=True)
torch.manual_seed(11)

# The bytes, a few merges, then special tokens as every Whisper has them, with three languages.
printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [b for b in range(256) if b not in printable]
letter = {**{b: chr(b) for b in printable}, **{b: chr(256 + n) for n, b in enumerate(others)}}
vocab = {letter[b]: b for b in range(256)}
merges = []
for left, right in [(" ", "t"), ("h", "e"), (" t", "he"), ("r", "e"), (" the", "re")]:
    spelled = ["".join(letter[b] for b in part.encode()) for part in (left, right)]
    merges.append(" ".join(spelled))
    vocab["".join(spelled)] = len(vocab)
special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
special += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
special += [f"<|{n * 0.02:.2f}|>" for n in range(1501)]
end = len(vocab)
added = [
    {"id": end + n, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    # Timestamps follow these in every Whisper, so that files need not list them.
    for n, text in enumerate(special[:11])
]
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges},
}
with open(f"{folder}/tokenizer.json", "w") as file:
    json.dump(tokenizer, file, ensure_ascii=False, separators=(",", ":"))

config = WhisperConfig(
    vocab_size=end + len(special), num_mel_bins=80, d_model=32, encoder_layers=2, encoder_attention_heads=2,
    encoder_ffn_dim=96, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, max_source_positions=48,
    max_target_positions=64, pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end + 1,
    suppress_tokens=None, begin_suppress_tokens=None,
)
model = WhisperForConditionalGeneration(config).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        # Norms and biases of a fresh model are ones and zeros, which hide mistakes.
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
        elif "embed_positions" in name:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.copy_(torch.randn_like(parameter) * (0.5 if "embed" in name else 1.0 / parameter[0].numel() ** 0.5))
        parameter.copy_(parameter.half().float())
tensors = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
keys = ["vocab_size", "num_mel_bins", "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim",
        "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "max_source_positions", "max_target_positions"]
with open(f"{folder}/config.json", "w") as file:
    json.dump({"model_type": "whisper", "activation_function": "gelu", **{key: getattr(config, key) for key in keys}}, file, indent=1)
with open(f"{folder}/generation_config.json", "w") as file:
    json.dump({"alignment_heads": [[0, 1], [1, 3]]}, file)

with wave.open(audio) as file:
    samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
mel = WhisperFeatureExtractor(feature_size=80)(samples, sampling_rate=16000, return_tensors="pt").input_features[:, :, :96]
tokens = [end + 1, end + 2, end + 6, end + 10, 258, 72, 101, 260]
with torch.no_grad():
    encoded = model.model.encoder(mel).last_hidden_state
    logits = model(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([tokens])).logits
np.save(f"{folder}/mel.npy", mel[0].T.contiguous().numpy())
np.save(f"{folder}/encoded.npy", encoded[0].numpy())
np.save(f"{folder}/logits.npy", logits[0, 3:].numpy())
