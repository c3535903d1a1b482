"""BTLM: GPT-2 with muP as fields, positions by ALiBi with slopes in the checkpoint, and a gate in the feed-forward part."""
import torch
import torch.nn.functional as F

from .layers import ACTIVATIONS, alibi_bias, attention, split
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "btlm"
RELEASES = ["cs-2.0"]
BUFFERS = r"\.attn\.(masked_)?bias"  # constants that the release 2.0 writes


def self_attention(w, name, x, c, index, bias):
    width, heads = c["n_embd"], c["n_head"]
    scale = 1.0
    if c.get("scale_attn_weights", True):
        scale = (width // heads) ** (-1.0 if c.get("mup_scale_qk_dot_by_d", False) else -0.5)
    if c.get("scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    q, k, v = (split(t, heads) for t in w.conv1d(name + ".c_attn", x, 3 * width).split(width, -1))
    return w.conv1d(name + ".c_proj", attention(q, k, v, scale, bias, causal=True), width)


def feed_forward(w, name, x, c):
    size, activation = c.get("n_inner") or 4 * c["n_embd"], c.get("activation_function", "gelu_new")
    hidden = w.conv1d(name + ".c_fc", x, size)
    hidden = hidden * F.silu(w.conv1d(name + ".c_fc2", x, size)) if activation == "swiglu" else ACTIVATIONS[activation](hidden)
    return w.conv1d(name + ".c_proj", hidden, c["n_embd"])


def hugging_face(w, c, ids):
    width, eps, length = c["n_embd"], c.get("layer_norm_epsilon", 1e-5), ids.shape[1]
    x, bias = w.embedding("transformer.wte", ids, c["vocab_size"], width), None
    if c.get("position_embedding_type", "learned") == "alibi":
        slopes = w.get("transformer.relative_pe.slopes", c["n_head"], 1)[:, 0]
        bias = alibi_bias(slopes, length) / (c.get("alibi_scaling") or {"factor": 1.0})["factor"]
    else:
        x = x + w.embedding("transformer.wpe", torch.arange(length), c.get("n_positions", 1024), width)
    x = x * c.get("mup_embeddings_scale", 1.0)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        x = x + self_attention(w, layer + "attn", w.layer_norm(layer + "ln_1", x, eps), c, i, bias)
        x = x + feed_forward(w, layer + "mlp", w.layer_norm(layer + "ln_2", x, eps), c)
    x = w.layer_norm("transformer.ln_f", x, eps)
    logits = w.head("lm_head", x, c["vocab_size"], "transformer.wte.weight" if c.get("tie_word_embeddings", True) else None)
    return logits * (c.get("mup_output_alpha", 1.0) * c.get("mup_width_scale", 1.0))


HF = {"model_type": "btlm", "vocab_size": 19, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 9, "n_inner": 24,
      "layer_norm_epsilon": 0.1, "activation_function": "swiglu", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
      "position_embedding_type": "alibi", "mup_width_scale": 0.25, "mup_embeddings_scale": 3.0, "mup_output_alpha": 1.5,
      "mup_scale_qk_dot_by_d": True}
CS = {"vocab_size": 19, "hidden_size": 16, "num_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 9, "filter_size": 24,
      "nonlinearity": "swiglu", "layer_norm_epsilon": 0.1, "dropout_rate": 0.1, "position_embedding_type": "alibi",
      "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "embeddings_scale": 3.0, "output_logits_alpha": 1.5}
PLAIN = {name: value for name, value in HF.items() if not name.startswith("mup_")}
CASES = {
    "ALiBi, muP": {"hf": HF, "refused": {"cs-2.0": "mup_base_filter_size"}},  # on the way back: 2.3 has other fields
    "ALiBi": {"hf": PLAIN},
    "stretched positions, by the number of the layer": {
        "hf": {**HF, "alibi_scaling": {"type": "linear", "factor": 2.0}, "scale_attn_by_inverse_layer_idx": True},
        "refused": {"cs-2.0": "alibi_scaling"}},
    "learned positions, relu, no scale, a head of its own": {
        "hf": {**PLAIN, "position_embedding_type": "learned", "activation_function": "relu", "scale_attn_weights": False,
               "tie_word_embeddings": False}},
    "muP since 2.3": {"cs": CS},
    "muP since 2.3, logits by the root of the width": {"cs": {**CS, "scale_output_logits_by_d": False, "scale_qk_dot_by_d": False}},
}
