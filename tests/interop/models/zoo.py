"""The Model Zoo's decoder classes, which many families are configurations of. `c` is the model section of the YAML file."""
import re

import torch

from .layers import ACTIVATIONS, alibi_bias, angles, attention, rotate_pairs, split, stretched_bands

GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def norm_of(w, c):
    kind, eps = c.get("norm_type", "layernorm"), c.get("layer_norm_epsilon", 1e-5)
    return {"layernorm": lambda name, x: w.layer_norm(name, x, eps), "rmsnorm": lambda name, x: w.rms_norm(name, x, eps),
            "biasless-layernorm": lambda name, x: w.layer_norm(name, x, eps, bias=False)}[kind]


def feed_forward(w, name, x, size, nonlinearity, bias):
    """A gated one multiplies the plain projection with the activation of the other one."""
    plain = w.linear(name + ".ffn.ffn.0.linear_layer", x, size, bias)
    if nonlinearity in GATED:
        hidden = plain * ACTIVATIONS[GATED[nonlinearity]](w.linear(name + ".ffn.ffn.0.linear_layer_for_glu", x, size, bias))
    else:
        hidden = ACTIVATIONS[nonlinearity](plain)
    return w.linear(name + ".ffn.ffn.1.linear_layer", hidden, x.shape[-1], bias)


def expert_of(w, name, number, x, size, count):
    """The expert's matrices are its own tensors, or (up to 2.8) a slice of one tensor for all: (rows, experts, columns)."""
    def matrix(part, module, rows, columns):
        fused = f"{name}.ffn.experts.fused_ffns.{part}.{module}.expert_weights"
        if w.has(fused):
            return w.get(fused, rows, count, columns)[:, number]
        return w.get(f"{name}.ffn.experts.experts.{number}.{part}.{module}.weight", rows, columns)

    width = x.shape[-1]
    gate = ACTIVATIONS["silu"](x @ matrix(0, "linear_layer_for_glu", size, width).T)
    return (gate * (x @ matrix(0, "linear_layer", size, width).T)) @ matrix(1, "linear_layer", width, size).T


def chosen(scores, top_k, normed=True):
    """For each token the weights of its best experts, which add up to 1 if they are `normed`; of the others, 0."""
    best = scores.softmax(-1).topk(top_k, -1)
    return torch.zeros_like(scores).scatter(-1, best.indices, best.values / (best.values.sum(-1, keepdim=True) if normed else 1))


def experts(w, name, x, c):
    count = c["moe"]["num_experts"]
    weights = chosen(w.linear(name + ".ffn.gate", x, count, False), c["moe"]["top_k"], c["moe"].get("expert_weighting_normalization", True))
    return sum(weights[..., i, None] * expert_of(w, name, i, x, c["filter_size"], count) for i in range(count))


def rotary_angles(c, length):
    size, base = c.get("rotary_dim") or int(c["hidden_size"] // c["num_heads"] * 0.25), c.get("rope_theta", 10000.0)
    factor, kind = c.get("pos_scaling_factor", 1.0), c.get("pos_scaling_type", "linear")
    if kind == "llama3":
        extra = c["pos_scaling_extra_args"]
        return stretched_bands(angles(length, size, base), factor, extra["low_freq_factor"], extra["high_freq_factor"],
                               extra["original_max_position_embeddings"])
    assert kind == "linear" or factor == 1, kind
    return angles(length, size, base, factor)


def self_attention(w, name, x, c, key_heads, mup):
    heads, width = c["num_heads"], x.shape[-1]
    inner = c.get("attention_inner_dim") or width
    size = inner // heads
    bias = c.get("use_projection_bias_in_attention", True)
    q = split(w.linear(name + ".proj_q_dense_layer", x, inner, bias), heads)
    k = split(w.linear(name + ".proj_k_dense_layer", x, key_heads * size, bias), key_heads)
    v = split(w.linear(name + ".proj_v_dense_layer", x, key_heads * size, bias), key_heads)
    if c.get("attention_qk_norm_layer"):
        q, k = (w.rms_norm(f"{name}.{part}_norm", t, c["attention_qk_norm_eps"]) for part, t in (("q", q), ("k", k)))
    scale = 1.0
    if c.get("attention_type", "scaled_dot_product") == "scaled_dot_product":
        scale = size ** -0.5 * (size ** -0.5 if c.get("scale_qk_dot_by_d", mup) else 1)
    scale *= c.get("attention_logits_alpha", 1.0)
    if c.get("scale_qk_dot_by_layer_idx", False):
        scale /= int(re.search(r"layers\.(\d+)", name)[1]) + 1
    bias_of_positions, kind = None, c.get("position_embedding_type")
    if kind == "rotary":
        angle = rotary_angles(c, x.shape[1])
        q, k = rotate_pairs(q, angle), rotate_pairs(k, angle)
    elif kind == "alibi":
        slopes = w.get("embedding_layer.position_embed_helper.slopes", heads, 1)[:, 0]
        bias_of_positions = alibi_bias(slopes, x.shape[1]) / c.get("pos_scaling_factor", 1.0)
    attended = attention(q, k, v, scale, bias_of_positions, causal=True, window=c.get("attention_sliding_window_length"))
    return w.linear(name + ".proj_output_dense_layer", attended, width, c.get("use_ffn_bias_in_attention", True))


def key_heads_of(c):
    grouped = c.get("attention_module", "aiayn_attention") == "multiquery_attention"
    return c["extra_attention_params"]["num_kv_groups"] if grouped else c["num_heads"]


def logits_scale(c, hidden_size):
    """By which muP multiplies the logits: given by 2.2, computed since 2.3."""
    if not c.get("mup_base_hidden_size"):
        return c.get("output_logits_scale") or 1.0
    width = hidden_size / c["mup_base_hidden_size"]
    return (c.get("output_logits_alpha") or 1.0) / (width if c.get("scale_output_logits_by_d", True) else width ** 0.5)


def last_norm_and_head(w, c, norm, x):
    x = norm("transformer_decoder.norm", x)
    for name in ("weight", "bias") if c.get("norm_type", "layernorm") == "layernorm" else ("weight",):
        w.again(f"transformer_decoder.norm.{name}", f"ln_f.{name}")  # one module in two places
    tied = "embedding_layer.word_embeddings.weight" if c.get("share_embedding_weights", True) else None
    return w.head("lm_head", x, c["vocab_size"], tied, c.get("use_bias_in_output", False))


def gpt2_lm_head_model(w, c, ids, place=lambda embedded: embedded):
    """Norms before attention and before the feed-forward part; learned or rotary positions. `place` puts images between tokens."""
    width, norm, mup = c["hidden_size"], norm_of(w, c), bool(c.get("mup_base_hidden_size"))
    x = w.embedding("embedding_layer.word_embeddings", ids, c["vocab_size"], width)
    if c.get("position_embedding_type", "learned") == "learned":
        x = x + w.embedding("embedding_layer.position_embeddings.embed", torch.arange(ids.shape[1]),
                            c.get("max_position_embeddings", 1024), width)
    if c.get("embedding_layer_norm", False):
        x = norm("embedding_ln_f", x)
    x = place(x * c.get("embeddings_scale", 1.0))
    for i in range(c["num_hidden_layers"]):
        layer = f"transformer_decoder.layers.{i}"
        x = x + self_attention(w, layer + ".self_attn", norm(layer + ".norm1", x), c, key_heads_of(c), mup)
        normed = norm(layer + ".norm3", x)
        x = x + (experts(w, layer, normed, c) if c.get("moe") else
                 feed_forward(w, layer, normed, c["filter_size"], c.get("nonlinearity", "gelu"), c.get("use_ffn_bias", True)))
    return last_norm_and_head(w, c, norm, x) * logits_scale(c, width)


def gptj_model(w, c, ids):
    """Attention and feed-forward part beside each other, behind one norm or behind one each; rotary positions."""
    c = {"position_embedding_type": "rotary", **c}
    norm, width, mup = norm_of(w, c), c["hidden_size"], bool(c.get("mup_base_hidden_size"))
    x = w.embedding("embedding_layer.word_embeddings", ids, c["vocab_size"], width) * c.get("embeddings_scale", 1.0)
    for i in range(c["num_hidden_layers"]):
        layer = f"transformer_decoder.layers.{i}"
        normed = norm(layer + ".norm1", x)
        attended = self_attention(w, layer + ".self_attn", normed, c, key_heads_of(c), mup)
        if c.get("use_untied_layer_norm", False):
            normed = norm(layer + ".norm3", x)
        x = x + attended + feed_forward(w, layer, normed, c["filter_size"], c.get("nonlinearity", "gelu"), c.get("use_ffn_bias", False))
    return last_norm_and_head(w, c, norm, x) * logits_scale(c, width)
