"""Gemma 2: LLaMA with a norm behind each part of a layer as well, scaled embeddings, capped logits.

Hugging Face has the window in layers 0, 2, ..., the Model Zoo (up to 2.9) in layers 1, 3, ...: a window as long as the input is
compared. Inner functions are `gelu`: with gelu_pytorch_tanh, the Model Zoo's exact one differs."""
import torch

from .layers import ACTIVATIONS, angles, attention, rotate_halves, rotate_pairs, split
from .zoo import feed_forward, key_heads_of, rotary_angles

MODEL = "gemma2"


def cap(x, limit):
    return torch.tanh(x / limit) * limit if limit else x


def hugging_face(w, c, ids):
    width, heads, size = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    key_heads, inner, eps = c["num_key_value_heads"], c["intermediate_size"], c.get("rms_norm_eps", 1e-6)
    angle = angles(ids.shape[1], size, c.get("rope_theta", 10000.0))

    def norm(name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + w.get(name + ".weight", width, std=0.3))

    x = w.embedding("model.embed_tokens", ids, c["vocab_size"], width) * width ** 0.5
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        normed = norm(layer + "input_layernorm", x)
        q, k, v = (split(w.linear(f"{layer}self_attn.{name}_proj", normed, count * size, False), count)
                   for name, count in (("q", heads), ("k", key_heads), ("v", key_heads)))
        out = attention(rotate_halves(q, angle), rotate_halves(k, angle), v, c["query_pre_attn_scalar"] ** -0.5, causal=True,
                        window=c["sliding_window"] if i % 2 == 0 else None, cap=c.get("attn_logit_softcapping", 50.0))
        x = x + norm(layer + "post_attention_layernorm", w.linear(layer + "self_attn.o_proj", out, width, False))
        normed = norm(layer + "pre_feedforward_layernorm", x)
        gate = ACTIVATIONS["gelu"](w.linear(layer + "mlp.gate_proj", normed, inner, False))
        out = w.linear(layer + "mlp.down_proj", gate * w.linear(layer + "mlp.up_proj", normed, inner, False), width, False)
        x = x + norm(layer + "post_feedforward_layernorm", out)
    tied = "model.embed_tokens.weight" if c.get("tie_word_embeddings", True) else None
    return cap(w.head("lm_head", norm("model.norm", x), c["vocab_size"], tied), c.get("final_logit_softcapping", 30.0))


def model_zoo(w, c, ids):
    width, heads, groups, inner = c["hidden_size"], c["num_heads"], key_heads_of(c), c["attention_inner_dim"]
    size, eps, angle = inner // heads, c.get("layer_norm_epsilon", 1e-5), rotary_angles(c, ids.shape[1])
    x = w.embedding("embedding_layer.word_embeddings", ids, c["vocab_size"], width) * c["embeddings_scale"]
    for i in range(c["num_hidden_layers"]):
        layer = f"transformer_decoder.layers.{i}."
        normed = w.rms_norm(layer + "norm1", x, eps)
        q, k, v = (split(w.linear(f"{layer}self_attn.proj_{name}_dense_layer", normed, count * size, False), count)
                   for name, count in (("q", heads), ("k", groups), ("v", groups)))
        scale = size ** -0.5 * c.get("attention_logits_alpha", 1.0)
        out = attention(rotate_pairs(q, angle), rotate_pairs(k, angle), v, scale, causal=True,
                        window=c["attention_sliding_window_length"] if i % 2 else None, cap=c.get("attention_logit_softcapping"))
        x = x + w.rms_norm(layer + "norm1_post", w.linear(layer + "self_attn.proj_output_dense_layer", out, width, False), eps)
        normed = w.rms_norm(layer + "norm3", x, eps)
        x = x + w.rms_norm(layer + "norm3_post", feed_forward(w, layer[:-1], normed, c["filter_size"], c["nonlinearity"], False), eps)
    x = w.rms_norm("transformer_decoder.norm", x, eps)
    w.again("transformer_decoder.norm.weight", "ln_f.weight")
    tied = "embedding_layer.word_embeddings.weight" if c.get("share_embedding_weights", True) else None
    return cap(w.head("lm_head", x, c["vocab_size"], tied), c.get("final_logit_softcapping"))


HF = {"model_type": "gemma2", "vocab_size": 19, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
      "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 32, "rms_norm_eps": 0.1, "rope_theta": 50.0,
      "query_pre_attn_scalar": 10, "hidden_activation": "gelu", "sliding_window": 12, "attn_logit_softcapping": 2.0,
      "final_logit_softcapping": 3.0}
KEEP = ("head_dim", "num_key_value_heads", "query_pre_attn_scalar", "hidden_activation", "sliding_window")
CASES = {
    "grouped queries, heads of 6": {"hf": HF, "keep": KEEP, "warning": "logits differ for inputs of more than 12"},
    "a key head for each query, untied": {"hf": {**HF, "num_key_value_heads": 4, "tie_word_embeddings": False, "query_pre_attn_scalar": 6},
                                          "keep": KEEP, "warning": "logits differ for inputs of more than 12"},
}
