"""SantaCoder: GPT-2 with one key head; its key and value are one Conv1D."""
import torch

from .gpt2 import CS as GPT2_CS, HF as GPT2
from .layers import ACTIVATIONS, attention, split
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "santacoder"
BUFFERS = r"\.attn\.(masked_)?bias"  # constants that its files hold


def hugging_face(w, c, ids):
    width, heads, eps = c["n_embd"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    size = width // heads
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    x = x + w.embedding("transformer.wpe", torch.arange(ids.shape[1]), c.get("n_positions", 1024), width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        normed = w.layer_norm(layer + "ln_1", x, eps)
        scale = size ** -0.5 if c.get("scale_attn_weights", True) else 1.0
        scale /= i + 1 if c.get("scale_attn_by_inverse_layer_idx", False) else 1
        k, v = (split(t, 1) for t in w.conv1d(layer + "attn.kv_attn", normed, 2 * size).split(size, -1))
        q = split(w.conv1d(layer + "attn.q_attn", normed, width), heads)
        x = x + w.conv1d(layer + "attn.c_proj", attention(q, k, v, scale, causal=True), width)
        hidden = w.conv1d(layer + "mlp.c_fc", w.layer_norm(layer + "ln_2", x, eps), c.get("n_inner") or 4 * width)
        x = x + w.conv1d(layer + "mlp.c_proj", ACTIVATIONS[c.get("activation_function", "gelu_new")](hidden), width)
    x = w.layer_norm("transformer.ln_f", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "transformer.wte.weight" if c.get("tie_word_embeddings", True) else None)


HF = {**GPT2, "attention_head_type": "multiquery"}
CS = {**GPT2_CS, "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 1}}
CASES = {
    "tied": {"hf": HF},
    "a head of its own, relu, by the number of the layer": {"hf": {
        **HF, "tie_word_embeddings": False, "activation_function": "relu", "n_inner": 24, "scale_attn_by_inverse_layer_idx": True}},
    "no scale": {"hf": {**HF, "scale_attn_weights": False}},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "embeddings_scale": 3.0, "scale_qk_dot_by_d": True,
                   "attention_logits_alpha": 2.5, "output_logits_alpha": 1.5}, "keep": ("attention_module",)},
}
