#!/usr/bin/env python3
"""Makes the random models of tests/data/encoders with `transformers` and `sentence-transformers`.

tiny_encoders.py OUT [NAME…]      (pip install torch transformers sentence-transformers gguf; neither GPU nor network)

Each OUT/NAME is a folder as sentence-transformers saves it, with weights in BF16, and ref.json: texts and their
embeddings, or query, documents and logits of a reranker, in f32 arithmetic on the BF16 values. NAME.gguf beside it has the
same weights under llama.cpp's names. Models are small, but each has every part of its architecture: windows shorter than
texts, positions after the padding token's, token types. Norms and biases are random, so that one that is forgotten shows.
"""
import json
import pathlib
import random
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers as tf
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.normalizers import BertNormalizer

SIZES = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64)
WORDS = """the a cat dog sat on mat river bridge over water stone light house of and in runs fast slow old new red blue
green small large bird sings tree leaf falls winter summer rain snow city street night day sun moon star sea ship sails
wind north south east west gold iron wood fire ash smoke bread salt sugar tea cup table chair door window open closed
Zürich café naïve 東京 данные 42 1999 hello, world! yes no""".split()


def texts(count, longest, seed=5):
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, longest))) for _ in range(count)]


def word_piece():
    it = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    it.normalizer, it.pre_tokenizer = BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    it.train_from_iterator(texts(300, 30, 1), trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    it.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, it.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    return tf.PreTrainedTokenizerFast(tokenizer_object=it, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                      sep_token="[SEP]", mask_token="[MASK]", model_max_length=128,
                                      model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def unigram():
    it = Tokenizer(models.Unigram())
    it.normalizer = normalizers.NFKC()
    it.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    it.train_from_iterator(texts(300, 30, 2), trainers.UnigramTrainer(vocab_size=200, special_tokens=special,
                                                                    unk_token="<unk>"))
    it.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(t, it.token_to_id(t)) for t in ("<s>", "</s>")])
    return tf.PreTrainedTokenizerFast(tokenizer_object=it, unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                                      bos_token="<s>", eos_token="</s>", sep_token="</s>", mask_token="<mask>",
                                      model_max_length=192)


def byte_level(special, after):
    it = Tokenizer(models.BPE())
    it.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    it.train_from_iterator(texts(300, 30, 3) + ["yes", "no"] * 500, trainer)
    ids = [(t, it.token_to_id(t)) for t in special]
    if after == "bert":
        it.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
                                                          special_tokens=ids)
    elif after:
        it.post_processor = processors.TemplateProcessing(single=f"$A {after}", pair=f"$A $B {after}",
                                                          special_tokens=ids)
    return it


def modern():
    it = byte_level(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "bert")
    return tf.PreTrainedTokenizerFast(tokenizer_object=it, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                      sep_token="[SEP]", mask_token="[MASK]", model_max_length=256)


def qwen(after):
    it = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"], after)
    return tf.PreTrainedTokenizerFast(tokenizer_object=it, pad_token="<|endoftext|>", eos_token="<|im_end|>",
                                      model_max_length=512)


def random_weights(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and "norm" in name.lower() and name.endswith("weight"):
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            elif weight.ndim == 1:
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (1.5 / weight.shape[-1] ** 0.5))
            weight.copy_(weight.to(torch.bfloat16).float())
    return model.eval()


def save_bf16(model, folder):
    """Rewrites the folder's weights in BF16, which they are representable in."""
    from safetensors.torch import load_file, save_file
    path = folder / "model.safetensors"
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def backbone(name):
    """Tokenizer and model of a name."""
    common = lambda tokenizer, **more: {**SIZES, "vocab_size": len(tokenizer), **more}
    if name in ("bert", "bert-reranker"):
        t = word_piece()
        config = tf.BertConfig(**common(t), max_position_embeddings=128, num_labels=1)
        kind = tf.BertForSequenceClassification if name == "bert-reranker" else tf.BertModel
        return t, kind(config)
    if name in ("xlm-roberta", "xlm-roberta-reranker"):
        t = unigram()
        config = tf.XLMRobertaConfig(**common(t), max_position_embeddings=194, type_vocab_size=1, num_labels=1,
                                     pad_token_id=t.pad_token_id, bos_token_id=0, eos_token_id=2)
        kind = tf.XLMRobertaForSequenceClassification if "reranker" in name else tf.XLMRobertaModel
        return t, kind(config)
    if name == "nomic-bert":
        t = word_piece()
        return t, tf.NomicBertModel(tf.NomicBertConfig(**common(t), max_position_embeddings=128))
    if name in ("modernbert", "modernbert-reranker"):
        t = modern()
        ids = dict(pad_token_id=0, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3)
        config = tf.ModernBertConfig(**{**common(t), "num_hidden_layers": 4}, max_position_embeddings=256,
                                     local_attention=16, num_labels=1, **ids)
        kind = tf.ModernBertForSequenceClassification if "reranker" in name else tf.ModernBertModel
        return t, kind(config)
    t = qwen("<|endoftext|>" if name == "qwen3-embedding" else None)
    config = tf.Qwen3Config(**common(t), num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
                            tie_word_embeddings=True)
    return t, (tf.Qwen3Model if name == "qwen3-embedding" else tf.Qwen3ForCausalLM)(config)


QUERY = "the old bridge over water"
PROMPTS = {"query": "find: ", "document": ""}


def embedder(name, out):
    tokenizer, model = backbone(name)
    random_weights(model, 11)
    plain = out.with_name(name + ".plain")
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    pooling = {"bert": "mean", "xlm-roberta": "cls", "nomic-bert": "mean", "modernbert": "mean"}.get(name, "lasttoken")
    transformer = Transformer(str(plain))
    modules = [transformer, Pooling(model.config.hidden_size, pooling_mode=pooling)]
    if name != "modernbert":
        modules.append(Normalize())
    st = SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").eval()
    st.save(str(out), create_model_card=False)
    shutil.rmtree(plain)
    save_bf16(model, out)
    st = SentenceTransformer(str(out), device="cpu", model_kwargs=dict(dtype=torch.float32)).eval()
    all_texts = texts(40, 45) + ["", "x"]
    with torch.no_grad():
        one = lambda text, **more: [float(x) for x in st.encode([text], batch_size=1, **more)[0]]
        ref = dict(texts=all_texts, embeddings=[one(t, prompt_name="document") for t in all_texts],
                   tokens=[st.tokenizer(t)["input_ids"] for t in all_texts],
                   query=QUERY, query_embedding=one(QUERY, prompt_name="query"), pooling=pooling,
                   normalized=name != "modernbert")
    return ref


QWEN_BEFORE = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct '
               'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
QWEN_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QWEN_TASK = "Given a web search query, retrieve relevant passages that answer the query"


def reranker(name, out):
    tokenizer, model = backbone(name)
    random_weights(model, 12)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    save_bf16(model, out)
    documents = texts(20, 40, 8)
    with torch.no_grad():
        if name == "qwen3-reranker":
            model = tf.Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
            yes, no = (tokenizer.convert_tokens_to_ids(t) for t in ("yes", "no"))
            logits = []
            for document in documents:
                body = f"<Instruct>: {QWEN_TASK}\n<Query>: {QUERY}\n<Document>: {document}"
                ids = [tokenizer.encode(part, add_special_tokens=False) for part in (QWEN_BEFORE, body, QWEN_AFTER)]
                last = model(torch.tensor([sum(ids, [])])).logits[0, -1]
                logits.append(float(last[yes] - last[no]))
        else:
            ranker = CrossEncoder(str(out), device="cpu", activation_fn=torch.nn.Identity(),
                                  model_kwargs=dict(dtype=torch.float32))
            logits = [float(ranker.predict([(QUERY, d)])[0]) for d in documents]
    return dict(query=QUERY, documents=documents, logits=logits)


def state(folder):
    from safetensors.torch import load_file
    return {name: t.float().numpy() for name, t in load_file(folder / "model.safetensors").items()}


def to_gguf(name, out, path):
    """The same weights under llama.cpp's names, in F32."""
    config = json.loads((out / "config.json").read_text())
    tensors = state(out)
    arch = {"nomic-bert": "nomic-bert", "modernbert": "modern-bert"}.get(name, "bert")
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"] - (2 if name.startswith("xlm") else 0))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_eps")))
    writer.add_causal_attention(False)
    pooling = {"bert": gguf.PoolingType.MEAN, "xlm-roberta": gguf.PoolingType.CLS, "nomic-bert": gguf.PoolingType.MEAN,
               "modernbert": gguf.PoolingType.MEAN}.get(name, gguf.PoolingType.RANK)
    writer.add_pooling_type(pooling)
    if name == "nomic-bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if name == "modernbert":
        ropes = config["rope_parameters"]
        writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
        writer.add_float32("modern-bert.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(3)
    vocabulary(writer, out)
    for theirs, value in tensors.items():
        ours = gguf_name(theirs)
        if name.startswith("xlm") and ours == "position_embd.weight":
            value = value[2:]
        if name.startswith("xlm") and ours == "token_types.weight":
            value = value[0]
        writer.add_tensor(ours, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name):
    for prefix in ("bert.", "roberta.", "model."):
        name = name.removeprefix(prefix)
    stem, _, kind = name.rpartition(".")
    stem = {"embeddings.word_embeddings": "token_embd", "embeddings.tok_embeddings": "token_embd",
            "embeddings.position_embeddings": "position_embd", "embeddings.token_type_embeddings": "token_types",
            "embeddings.LayerNorm": "token_embd_norm", "emb_ln": "token_embd_norm", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm",
            "classifier.dense": "cls", "classifier.out_proj": "cls.output", "classifier": "cls.output",
            "pooler.dense": "cls"}.get(stem, stem)
    for theirs, ours in (("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
                         ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
                         ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
                         ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm"),
                         ("attn.Wqkv", "attn_qkv"), ("attn.Wo", "attn_output"), ("attn_norm", "attn_norm"),
                         ("mlp.Wi", "ffn_up"), ("mlp.Wo", "ffn_down"), ("mlp_norm", "ffn_norm"),
                         ("attn.out_proj", "attn_output"), ("norm1", "attn_output_norm"), ("mlp.fc12", "ffn_gate"),
                         ("mlp.fc11", "ffn_up"), ("mlp.fc2", "ffn_down"), ("norm2", "layer_output_norm")):
        for layers in ("encoder.layer.", "encoder.layers.", "layers."):
            if stem.startswith(layers) and stem.split(".", layers.count(".") + 1)[-1] == theirs:
                return f"blk.{stem.removeprefix(layers).split('.')[0]}.{ours}.{kind}"
    return f"{stem}.{kind}"


def vocabulary(writer, out):
    data = json.loads((out / "tokenizer.json").read_text())
    model, special = data["model"], {t["content"] for t in data["added_tokens"] if t["special"]}
    if model["type"] == "Unigram":
        tokens, scores = zip(*model["vocab"])
        writer.add_tokenizer_model("t5")
        writer.add_token_scores([float(s) for s in scores])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_add_space_prefix(True)
    else:
        tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda entry: entry[1])]
    if model["type"] == "WordPiece":
        # llama.cpp marks the beginning of words instead of what follows.
        tokens = [t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
    if model["type"] == "BPE":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in model["merges"]])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
    writer.add_token_list(list(tokens))
    writer.add_token_types([3 if t in special else 1 for t in tokens])
    at = {t: i for i, t in enumerate(tokens)}
    for ids, add in (((["[CLS]", "<s>"]), writer.add_bos_token_id), (["[SEP]", "</s>"], writer.add_eos_token_id),
                     (["[SEP]", "</s>"], writer.add_sep_token_id), (["[CLS]", "<s>"], lambda i: writer.add_uint32("tokenizer.ggml.cls_token_id", i)),
                     (["[UNK]", "<unk>"], writer.add_unk_token_id), (["[PAD]", "<pad>"], writer.add_pad_token_id),
                     (["[MASK]", "<mask>"], writer.add_mask_token_id)):
        found = [at[t] for t in ids if t in at]
        if found:
            add(found[0])


NAMES = ["bert", "xlm-roberta", "nomic-bert", "modernbert", "qwen3-embedding", "bert-reranker",
         "xlm-roberta-reranker", "modernbert-reranker", "qwen3-reranker"]
GGUF = ["bert", "xlm-roberta", "nomic-bert", "modernbert", "bert-reranker", "xlm-roberta-reranker"]

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or NAMES:
        out = root / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        ref = reranker(name, out) if name.endswith("reranker") else embedder(name, out)
        (out / "ref.json").write_text(json.dumps(ref, ensure_ascii=False) + "\n")
        for extra in ("README.md", ".gitattributes"):
            (out / extra).unlink(missing_ok=True)
        if name in GGUF:
            to_gguf(name, out, root / f"{name}.gguf")
        print(name, sum(p.stat().st_size for p in out.rglob("*")), "bytes")
