"""Phi-3: LLaMA with q, k and v in one projection, and gate and inner projection in one."""
from . import llama
from .layers import ACTIVATIONS, split
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "phi3"


def projections(w, layer, x, heads, key_heads, size, bias):
    q, k, v = w.linear(layer + "self_attn.qkv_proj", x, (heads + 2 * key_heads) * size, bias).split(
        [heads * size, key_heads * size, key_heads * size], -1)
    return split(q, heads), split(k, key_heads), split(v, key_heads)


def feed_forward(w, layer, x, c):
    gate, up = w.linear(layer + "mlp.gate_up_proj", x, 2 * c["intermediate_size"], False).chunk(2, -1)
    hidden = ACTIVATIONS[c.get("hidden_act", "silu")](gate) * up
    return w.linear(layer + "mlp.down_proj", hidden, c["hidden_size"], False)


def hugging_face(w, c, ids):
    return llama.hugging_face(w, {"rms_norm_eps": 1e-5, **c}, ids, feed_forward, projections=projections)


HF = {**llama.HF, "model_type": "phi3"}
CASES = {
    "a key head for each query": {"hf": HF},
    "grouped queries, a window, tied": {"hf": {**HF, "num_key_value_heads": 2, "sliding_window": 5, "tie_word_embeddings": True}},
}
