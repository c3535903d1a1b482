"""StarCoder: GPT-2 with Linear layers; one key head below all queries, or three parts in each head."""
import torch

from .gpt2 import HF as GPT2
from .layers import ACTIVATIONS, attention, split
from .santacoder import CASES as SANTACODER
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "starcoder"
RELEASES = ["cs-2.0"]


def queries_keys_values(w, name, x, c):
    width, heads = c["n_embd"], c["n_head"]
    size = width // heads
    if c.get("multi_query", True):
        return [split(t, t.shape[-1] // size) for t in w.linear(name, x, width + 2 * size).split([width, size, size], -1)]
    return split(w.linear(name, x, 3 * width), heads).split(size, -1)


def hugging_face(w, c, ids):
    width, heads, eps = c["n_embd"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    scale = (width // heads) ** -0.5 if c.get("scale_attn_weights", True) else 1.0
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    x = x + w.embedding("transformer.wpe", torch.arange(ids.shape[1]), c.get("n_positions", 1024), width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        q, k, v = queries_keys_values(w, layer + "attn.c_attn", w.layer_norm(layer + "ln_1", x, eps), c)
        x = x + w.linear(layer + "attn.c_proj", attention(q, k, v, scale, causal=True), width)
        hidden = w.linear(layer + "mlp.c_fc", w.layer_norm(layer + "ln_2", x, eps), c.get("n_inner") or 4 * width)
        x = x + w.linear(layer + "mlp.c_proj", ACTIVATIONS[c.get("activation_function", "gelu_pytorch_tanh")](hidden), width)
    x = w.layer_norm("transformer.ln_f", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "transformer.wte.weight" if c.get("tie_word_embeddings", True) else None)


HF = {**GPT2, "model_type": "gpt_bigcode", "activation_function": "gelu_pytorch_tanh", "multi_query": True}
CASES = {
    "one key head": {"hf": HF},
    "a key head for each, relu, a head of its own": {"hf": {**HF, "multi_query": False, "activation_function": "relu", "n_inner": 24,
                                                            "tie_word_embeddings": False}},
    "no scale": {"hf": {**HF, "scale_attn_weights": False}},
    "muP": SANTACODER["muP"],
}
