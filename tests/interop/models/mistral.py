"""Mistral: LLaMA whose tokens attend to a window of tokens; 8 key heads if the config leaves them out."""
from . import llama
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "mistral"


def hugging_face(w, c, ids):
    usual = {"sliding_window": 4096, "num_key_value_heads": 8}
    return llama.hugging_face(w, {**{name: c.get(name, value) for name, value in usual.items()}, **c}, ids)


HF = {**llama.HF, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 5}
CS = {**llama.CS, "attention_sliding_window_length": 5}
CASES = {
    "a window of 5": {"hf": HF, "keep": ("num_key_value_heads",)},
    "no window, tied": {"hf": {**HF, "sliding_window": None, "tie_word_embeddings": True}, "keep": ("num_key_value_heads",)},
    "heads of 6": {"hf": {**HF, "head_dim": 6}, "keep": ("num_key_value_heads", "head_dim")},
    "a key head for each query": {"cs": {**CS, "attention_module": "aiayn_attention", "extra_attention_params": None}},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 8, "mup_base_filter_size": 16, "embeddings_scale": 3.0,
                   "output_logits_alpha": 1.5}},
}
