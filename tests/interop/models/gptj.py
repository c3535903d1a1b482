"""GPT-J: attention and feed-forward part beside each other behind one norm, rotary pairs over a part of each head."""
from .layers import ACTIVATIONS, angles, attention, rotate_pairs, split
from .zoo import gptj_model as model_zoo  # noqa: F401  the other side

MODEL = "gptj"
RELEASES = ["cs-1.7", "cs-2.0"]
BUFFERS = r"\.attn\.(masked_)?bias"  # constants that old Hugging Face files hold


def projections(w, name, x, width, heads):
    return (split(w.linear(f"{name}{part}_proj", x, width, False), heads) for part in "qkv")


def hugging_face(w, c, ids, projections=projections):
    width, heads, eps = c["n_embd"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    angle = angles(ids.shape[1], c.get("rotary_dim", 64), 10000.0)
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        normed = w.layer_norm(layer + "ln_1", x, eps)
        q, k, v = projections(w, layer + "attn.", normed, width, heads)
        out = attention(rotate_pairs(q, angle), rotate_pairs(k, angle), v, (width // heads) ** -0.5, causal=True)
        hidden = ACTIVATIONS[c.get("activation_function", "gelu_new")](w.linear(layer + "mlp.fc_in", normed, c.get("n_inner") or 4 * width))
        x = x + w.linear(layer + "attn.out_proj", out, width, False) + w.linear(layer + "mlp.fc_out", hidden, width)
    return w.head("lm_head", w.layer_norm("transformer.ln_f", x, eps), c["vocab_size"], bias=True)


HF = {"model_type": "gptj", "vocab_size": 19, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 9, "rotary_dim": 4, "rotary": True,
      "layer_norm_epsilon": 0.1, "activation_function": "gelu_new", "tie_word_embeddings": False}
CS = {"vocab_size": 19, "hidden_size": 32, "num_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 9, "filter_size": 24,
      "rotary_dim": 4, "position_embedding_type": "rotary", "nonlinearity": "gelu", "layer_norm_epsilon": 0.1, "use_bias_in_output": True,
      "use_ffn_bias": True, "use_ffn_bias_in_attention": False, "use_projection_bias_in_attention": False, "share_embedding_weights": False}
CASES = {
    "a part of each head": {"hf": HF},
    "muP": {"cs": {**CS, "mup_base_hidden_size": 8, "mup_base_filter_size": 6, "embeddings_scale": 3.0, "scale_qk_dot_by_d": True,
                   "attention_logits_alpha": 2.5, "output_logits_alpha": 3.0}},
}
