"""GPT-NeoX: attention and feed-forward part beside each other, a norm each, rotary halves over a part of each head."""
from .layers import ACTIVATIONS, angles, attention, rotate_halves
from .zoo import gptj_model as model_zoo  # noqa: F401  the other side

MODEL = "gpt-neox"
RELEASES = ["cs-1.7", "cs-2.0"]
BUFFERS = r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"  # constants that old Hugging Face files hold


def hugging_face(w, c, ids):
    width, heads, eps = c["hidden_size"], c["num_attention_heads"], c.get("layer_norm_eps", 1e-5)
    scaling, size = c.get("rope_scaling") or {"factor": 1.0}, width // heads
    angle = angles(ids.shape[1], int(size * c.get("rotary_pct", 0.25)), c.get("rotary_emb_base", 10000), scaling["factor"])
    x = w.embedding("gpt_neox.embed_in", ids, c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        layer = f"gpt_neox.layers.{i}."
        packed = w.linear(layer + "attention.query_key_value", w.layer_norm(layer + "input_layernorm", x, eps), 3 * width)
        q, k, v = packed.unflatten(-1, (heads, 3 * size)).transpose(1, 2).split(size, -1)  # beside each other in each head
        out = attention(rotate_halves(q, angle), rotate_halves(k, angle), v, size ** -0.5, causal=True)
        hidden = w.linear(layer + "mlp.dense_h_to_4h", w.layer_norm(layer + "post_attention_layernorm", x, eps), c["intermediate_size"])
        hidden = ACTIVATIONS[c.get("hidden_act", "gelu")](hidden)
        x = x + w.linear(layer + "attention.dense", out, width) + w.linear(layer + "mlp.dense_4h_to_h", hidden, width)
    x = w.layer_norm("gpt_neox.final_layer_norm", x, eps)
    return w.head("embed_out", x, c["vocab_size"], "gpt_neox.embed_in.weight" if c.get("tie_word_embeddings", False) else None)


HF = {"model_type": "gpt_neox", "vocab_size": 19, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
      "intermediate_size": 24, "max_position_embeddings": 16, "layer_norm_eps": 0.1, "tie_word_embeddings": False}
CASES = {
    "half of each head": {"hf": {**HF, "rotary_pct": 0.5}},
    "whole heads, stretched positions": {"hf": {**HF, "rotary_pct": 1.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
                                         "releases": ["cs-2.0"], "refused": {"cs-2.0": "rope_scaling"}},
}
