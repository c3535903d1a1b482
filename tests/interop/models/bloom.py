"""BLOOM: positions by ALiBi only, a norm behind the embedding, queries, keys and values beside each other in each head."""
from .layers import ACTIVATIONS, alibi_bias, alibi_slopes, attention
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "bloom"
RELEASES = ["cs-1.9"]


def hugging_face(w, c, ids):
    width, heads, eps = c["hidden_size"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    bias = alibi_bias(alibi_slopes(heads), ids.shape[1])
    x = w.layer_norm("transformer.word_embeddings_layernorm", w.embedding("transformer.word_embeddings", ids, c["vocab_size"], width), eps)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        packed = w.linear(layer + "self_attention.query_key_value", w.layer_norm(layer + "input_layernorm", x, eps), 3 * width)
        q, k, v = packed.unflatten(-1, (heads, 3, -1)).transpose(1, 2).unbind(3)
        x = x + w.linear(layer + "self_attention.dense", attention(q, k, v, (width // heads) ** -0.5, bias, causal=True), width)
        hidden = w.linear(layer + "mlp.dense_h_to_4h", w.layer_norm(layer + "post_attention_layernorm", x, eps), 4 * width)
        x = x + w.linear(layer + "mlp.dense_4h_to_h", ACTIVATIONS["gelu_new"](hidden), width)
    x = w.layer_norm("transformer.ln_f", x, eps)
    return w.head("lm_head", x, c["vocab_size"], "transformer.word_embeddings.weight" if c.get("tie_word_embeddings", True) else None)


HF = {"model_type": "bloom", "vocab_size": 19, "hidden_size": 32, "n_head": 4, "n_layer": 2, "layer_norm_epsilon": 0.1}
# Hugging Face's BLOOM approximates gelu by tanh; the converter leaves the Model Zoo at gelu itself, as the reference does
TANH = {"tolerance": 2e-4, "warning": "approximation by tanh"}
CASES = {"tied": {"hf": HF, **TANH}, "head of its own": {"hf": {**HF, "tie_word_embeddings": False}, **TANH}}
