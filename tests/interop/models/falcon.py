"""Falcon: attention and feed-forward part beside each other, rotary halves, queries fused with the keys and values they share."""
import torch.nn.functional as F

from .layers import angles, attention, rotate_halves
from .zoo import gptj_model as model_zoo  # noqa: F401  the other side

MODEL = "falcon"
RELEASES = ["cs-1.9"]


def generation(c):
    """Heads, key heads and layers, whose names changed, and whether there are two norms (40B and later)."""
    if c["model_type"] == "falcon":
        new, heads = c.get("new_decoder_architecture", False), c["num_attention_heads"]
        key_heads = (c.get("num_kv_heads") or heads) if new else 1 if c.get("multi_query", True) else heads
        return heads, key_heads, c["num_hidden_layers"], new and c.get("num_ln_in_parallel_attn") in (None, 2)
    return c["n_head"], c.get("n_head_kv", 1), c["n_layer"], "n_head_kv" in c


def hugging_face(w, c, ids):
    heads, key_heads, depth, two_norms = generation(c)
    width, eps, bias = c["hidden_size"], c.get("layer_norm_epsilon", 1e-5), c.get("bias", False)
    size, queries = width // heads, heads // key_heads
    angle = angles(ids.shape[1], size, c.get("rope_theta", 10000.0), (c.get("rope_scaling") or {"factor": 1.0})["factor"])
    x = w.embedding("transformer.word_embeddings", ids, c["vocab_size"], width)
    for i in range(depth):
        layer = f"transformer.h.{i}."
        first = w.layer_norm(layer + ("ln_attn" if two_norms else "input_layernorm"), x, eps)
        second = w.layer_norm(layer + "ln_mlp", x, eps) if two_norms else first
        # each group: its queries, then one key, then one value
        packed = w.linear(layer + "self_attention.query_key_value", first, (heads + 2 * key_heads) * size, bias)
        groups = packed.unflatten(-1, (key_heads, queries + 2, size))
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in groups.split([queries, 1, 1], 3))
        out = attention(rotate_halves(q, angle), rotate_halves(k, angle), v, size ** -0.5, causal=True)
        hidden = F.gelu(w.linear(layer + "mlp.dense_h_to_4h", second, 4 * width, bias))
        x = x + w.linear(layer + "self_attention.dense", out, width, bias) + w.linear(layer + "mlp.dense_4h_to_h", hidden, width, bias)
    x = w.layer_norm("transformer.ln_f", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "transformer.word_embeddings.weight" if c.get("tie_word_embeddings", True) else None)


SIZES = {"vocab_size": 19, "hidden_size": 32, "max_position_embeddings": 16, "layer_norm_epsilon": 0.1}
OLD = {**SIZES, "n_head": 4, "n_layer": 2}
NEW = {**SIZES, "model_type": "falcon", "num_attention_heads": 4, "num_hidden_layers": 2, "rope_theta": 50.0}
ZOO = {"vocab_size": 19, "hidden_size": 32, "num_heads": 4, "num_hidden_layers": 2, "filter_size": 128, "max_position_embeddings": 16,
       "layer_norm_epsilon": 0.1, "rotary_dim": 8, "rope_theta": 50.0, "embedding_dropout_rate": 0.0,
       "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 1}}
CASES = {
    "7B": {"hf": {**OLD, "model_type": "RefinedWebModel", "multi_query": True, "parallel_attn": True, "bias": False,
                  "tie_word_embeddings": True}},
    "40B": {"hf": {**OLD, "model_type": "RefinedWeb", "n_head_kv": 2, "parallel_attn": True, "bias": False,
                   "tie_word_embeddings": False},
            "instead": {"n_head_kv": "model_type"}},  # without it, the config is that of a 7B
    "7B in today's words": {"hf": {**NEW, "tie_word_embeddings": True, "multi_query": True, "parallel_attn": True,
                                   "rope_scaling": {"type": "linear", "factor": 2.0}},
                            "refused": {"cs-1.9": "model_type"}},
    "180B": {"hf": {**NEW, "new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False}, "releases": []},
    "a key head for each query, biases": {"hf": {**NEW, "multi_query": False, "parallel_attn": True, "bias": True,
                                                 "tie_word_embeddings": True}, "releases": []},
    "biases that the defaults complete": {"cs": {**ZOO, "use_ffn_bias": True}, "instead": {"use_ffn_bias": "query_key_value.bias"}},
}
