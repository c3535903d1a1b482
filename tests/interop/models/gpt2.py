"""GPT-2: learned positions, norms before each part, Conv1D layers with q, k and v beside each other."""
import torch

from .layers import ACTIVATIONS, attention, split
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "gpt2"
RELEASES = ["cs-1.7", "cs-2.0"]
BUFFERS = r"\.attn\.(masked_)?bias"  # constants that old Hugging Face files hold


def projections(linear, name, x, c):
    return (split(t, c["n_head"]) for t in linear(name, x, 3 * c["n_embd"]).split(c["n_embd"], -1))


def hugging_face(w, c, ids, linear=None, projections=projections):
    """`linear` makes a layer: a Conv1D, if it is not given."""
    linear = linear or w.conv1d
    width, heads, eps = c["n_embd"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    scale = (width // heads) ** -0.5 if c.get("scale_attn_weights", True) else 1.0
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    x = x + w.embedding("transformer.wpe", torch.arange(ids.shape[1]), c.get("n_positions", 1024), width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        q, k, v = projections(linear, layer + "attn.c_attn", w.layer_norm(layer + "ln_1", x, eps), c)
        x = x + linear(layer + "attn.c_proj", attention(q, k, v, scale, causal=True), width)
        hidden = linear(layer + "mlp.c_fc", w.layer_norm(layer + "ln_2", x, eps), c.get("n_inner") or 4 * width)
        x = x + linear(layer + "mlp.c_proj", ACTIVATIONS[c.get("activation_function", "gelu_new")](hidden), width)
    x = w.layer_norm("transformer.ln_f", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "transformer.wte.weight" if c.get("tie_word_embeddings", True) else None)


HF = {"model_type": "gpt2", "vocab_size": 19, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 9, "layer_norm_epsilon": 0.1,
      "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
CS = {"vocab_size": 19, "hidden_size": 16, "num_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 9, "filter_size": 24,
      "nonlinearity": "gelu", "layer_norm_epsilon": 0.1, "dropout_rate": 0.1}
CASES = {
    "tied": {"hf": HF},
    "head of its own, relu, no scale": {"hf": {**HF, "tie_word_embeddings": False, "activation_function": "relu", "n_inner": 24,
                                               "scale_attn_weights": False}},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "embeddings_scale": 3.0, "scale_qk_dot_by_d": True,
                   "attention_logits_alpha": 2.5, "output_logits_alpha": 1.5}},
    "muP, logits by the root of the width": {"cs": {
        **CS, "mup_base_hidden_size": 4, "mup_base_filter_size": 6, "scale_qk_dot_by_d": False, "attention_logits_alpha": 2.5,
        "scale_output_logits_by_d": False, "share_embedding_weights": False}},
    "muP of release 2.2": {"release": "cs-2.2", "cs": {**CS, "output_logits_scale": 0.25, "embeddings_scale": 3.0,
                                                       "scale_qk_dot_by_d": True}},
}
