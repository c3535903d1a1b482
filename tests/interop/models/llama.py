"""LLaMA: RMS norms, rotary halves, a gated feed-forward part, key heads that several queries share."""
from .layers import ACTIVATIONS, angles, attention, rotate_halves, split, stretched_bands
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "llama"
RELEASES = ["cs-1.9", "cs-2.0"]
BUFFERS = r"\.rotary_emb\.inv_freq"  # a constant that old Hugging Face files hold


def head_size(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def positions(c, length):
    size = head_size(c)
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    angle = angles(length, size, c.get("rope_theta", 10000.0), scaling["factor"] if kind == "linear" else 1.0)
    if kind == "llama3":
        angle = stretched_bands(angle, scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"],
                                scaling["original_max_position_embeddings"])
    return angle


def feed_forward(w, layer, x, c):
    width, inner = c["hidden_size"], c["intermediate_size"]
    gate = ACTIVATIONS[c.get("hidden_act", "silu")](w.linear(layer + "mlp.gate_proj", x, inner, False))
    return w.linear(layer + "mlp.down_proj", gate * w.linear(layer + "mlp.up_proj", x, inner, False), width, False)


def projections(w, layer, x, heads, key_heads, size, bias):
    return (split(w.linear(f"{layer}self_attn.{name}_proj", x, count * size, bias), count)
            for name, count in (("q", heads), ("k", key_heads), ("v", key_heads)))


def hugging_face(w, c, ids, feed_forward=feed_forward, bias=False, projections=projections, head_norms=False,
                 place=lambda embedded: embedded):
    """`place` puts images between tokens."""
    width, heads, eps = c["hidden_size"], c["num_attention_heads"], c.get("rms_norm_eps", 1e-6)
    key_heads, angle, size = c.get("num_key_value_heads") or heads, positions(c, ids.shape[1]), head_size(c)
    x = place(w.embedding("model.embed_tokens", ids, c["vocab_size"], width))
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        normed = w.rms_norm(layer + "input_layernorm", x, eps)
        q, k, v = projections(w, layer, normed, heads, key_heads, size, bias)
        if head_norms:
            q, k = w.rms_norm(layer + "self_attn.q_norm", q, eps), w.rms_norm(layer + "self_attn.k_norm", k, eps)
        out = attention(rotate_halves(q, angle), rotate_halves(k, angle), v, size ** -0.5, causal=True, window=c.get("sliding_window"))
        x = x + w.linear(layer + "self_attn.o_proj", out, width, False)
        x = x + feed_forward(w, layer, w.rms_norm(layer + "post_attention_layernorm", x, eps), c)
    x = w.rms_norm("model.norm", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "model.embed_tokens.weight" if c.get("tie_word_embeddings", False) else None)


HF = {"model_type": "llama", "vocab_size": 19, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
      "intermediate_size": 24, "max_position_embeddings": 16, "rms_norm_eps": 0.1, "rope_theta": 50.0}
CS = {"vocab_size": 19, "hidden_size": 32, "num_heads": 4, "num_hidden_layers": 2, "filter_size": 24, "max_position_embeddings": 16,
      "layer_norm_epsilon": 0.1, "rope_theta": 50.0, "rotary_dim": 8, "position_embedding_type": "rotary", "nonlinearity": "swiglu",
      "norm_type": "rmsnorm", "share_embedding_weights": False, "attention_dropout_rate": 0.0, "dropout_rate": 0.0,
      "embedding_dropout_rate": 0.0, "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False, "use_ffn_bias": False,
      "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 2}}
USUAL_BASE = {name: value for name, value in HF.items() if name != "rope_theta"}  # up to 2.0 it was no field
CASES = {
    "the usual base of positions": {"hf": USUAL_BASE, "keep": tuple(HF)},
    "the usual base, grouped queries": {"hf": {**USUAL_BASE, "num_key_value_heads": 2}, "keep": tuple(HF),
                                        "refused": {"cs-1.9": "num_key_value_heads=2"}},
    "a key head for each query": {"hf": {**HF, "tie_word_embeddings": True}, "releases": []},
    "grouped queries, stretched positions": {"hf": {**HF, "num_key_value_heads": 2, "rope_scaling": {"type": "linear", "factor": 4.0}},
                                             "releases": []},
    "one key head, LLaMA 3's positions, relu": {"hf": {
        **HF, "num_key_value_heads": 1, "hidden_act": "relu", "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}}, "releases": []},
    "grouped queries, muP": {"cs": {**CS, "mup_base_hidden_size": 8, "mup_base_filter_size": 6, "embeddings_scale": 3.0,
                                    "scale_qk_dot_by_d": True, "attention_logits_alpha": 2.5, "output_logits_alpha": 1.5}},
}
