"""Qwen2: LLaMA with biases of queries, keys and values."""
from . import llama
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "qwen2"


def hugging_face(w, c, ids):
    window = c.get("sliding_window", 4096) if c.get("use_sliding_window", False) else None
    return llama.hugging_face(w, {"num_key_value_heads": 32, **c, "sliding_window": window}, ids, bias=True)


HF = {**llama.HF, "model_type": "qwen2", "num_key_value_heads": 2}
CS = {**llama.CS, "use_projection_bias_in_attention": True}
CASES = {
    "grouped queries": {"hf": HF, "keep": ("num_key_value_heads",)},
    "a key head for each query, tied": {"hf": {**HF, "num_key_value_heads": 4, "tie_word_embeddings": True},
                                        "keep": ("num_key_value_heads",)},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 8, "mup_base_filter_size": 16, "embeddings_scale": 3.0,
                   "output_logits_alpha": 1.5}},
}
