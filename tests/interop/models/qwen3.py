"""Qwen3: LLaMA with norms of queries and keys, and heads of any size."""
from . import llama
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "qwen3"


def hugging_face(w, c, ids):
    usual = {"num_key_value_heads": 32, "head_dim": 128}
    return llama.hugging_face(w, {**usual, **c, "sliding_window": None}, ids, bias=c.get("attention_bias", False), head_norms=True)


HF = {**llama.HF, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 6}
KEEP = ("num_key_value_heads", "head_dim", "attention_bias")
CASES = {
    "grouped queries, heads of 6": {"hf": HF, "keep": KEEP},
    "a key head for each query, tied": {"hf": {**HF, "num_key_value_heads": 4, "tie_word_embeddings": True}, "keep": KEEP},
}
