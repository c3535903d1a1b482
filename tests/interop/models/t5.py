"""T5: encoder and decoder with relative positions, which the first block holds for all; no scale but in the initial weights."""
import torch

from .layers import ACTIVATIONS, attention, relative_bias, split, unpadded
from .zoo import feed_forward

MODEL = "t5"
INPUTS = ("input_ids", "decoder_input_ids")
RELEASES = ["cs-1.6", "cs-1.8", "cs-1.9", "cs-2.0"]  # from 1.6 by the table of 1.7


def inputs(random):
    return torch.randint(19, (2, 7), generator=random), torch.randint(19, (2, 5), generator=random)


def hugging_face(w, c, ids, decoder_ids):
    width, size, heads, eps = c["d_model"], c["d_kv"], c["num_heads"], c.get("layer_norm_epsilon", 1e-6)
    kind, buckets = c.get("feed_forward_proj", "relu"), c.get("relative_attention_num_buckets", 32)

    def attend(name, x, source, bias=None, causal=False):
        q, k, v = (split(w.linear(f"{name}.{part}", y, heads * size, False), heads) for part, y in (("q", x), ("k", source), ("v", source)))
        return w.linear(name + ".o", attention(q, k, v, 1.0, bias, causal), width, False)

    def dense(name, x):
        if kind.startswith("gated-"):
            gate = ACTIVATIONS["gelu_new" if kind == "gated-gelu" else kind[6:]](w.linear(name + ".wi_0", x, c["d_ff"], False))
            return w.linear(name + ".wo", gate * w.linear(name + ".wi_1", x, c["d_ff"], False), width, False)
        return w.linear(name + ".wo", ACTIVATIONS[kind](w.linear(name + ".wi", x, c["d_ff"], False)), width, False)

    def stack(name, depth, tokens, memory=None):
        x = w.embedding("shared", tokens, c["vocab_size"], width)
        w.again("shared.weight", name + ".embed_tokens.weight")
        table = w.get(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", buckets, heads)
        bias = relative_bias(table, tokens.shape[1], memory is None)
        for i in range(depth):
            layer = f"{name}.block.{i}.layer."
            normed = w.rms_norm(layer + "0.layer_norm", x, eps)
            x = x + attend(layer + "0.SelfAttention", normed, normed, bias, memory is not None)
            if memory is not None:
                x = x + attend(layer + "1.EncDecAttention", w.rms_norm(layer + "1.layer_norm", x, eps), memory)
            last = layer + ("1" if memory is None else "2")
            x = x + dense(last + ".DenseReluDense", w.rms_norm(last + ".layer_norm", x, eps))
        return w.rms_norm(name + ".final_layer_norm", x, eps)

    memory = stack("encoder", c["num_layers"], ids)
    x = stack("decoder", c.get("num_decoder_layers") or c["num_layers"], decoder_ids, memory)
    if c.get("tie_word_embeddings", True):
        return w.head("lm_head", x * width ** -0.5, c["vocab_size"], "shared.weight")
    return w.head("lm_head", x, c["vocab_size"])


def model_zoo(w, c, ids, decoder_ids, mask=None):
    width, size, heads, eps = c["d_model"], c["d_kv"], c["num_heads"], c.get("layer_norm_epsilon", 1e-5)
    base, vocabulary = c.get("mup_base_d_model"), c["src_vocab_size"]
    relative = width / base if base else 1.0
    own = 1.0 if c.get("mup_base_d_kv") else relative ** 0.5  # projections go with d_model only where heads do not grow too

    def attend(name, x, source, bias=None, causal=False):
        stack = name.split(".")[0]
        q, k, v = (split(w.linear(f"{name}.proj_{part}_dense_layer", y, heads * size, False) / own, heads)
                   for part, y in (("q", x), ("k", source), ("v", source)))
        scale = c.get(f"{stack}_attention_logits_alpha", 1.0)
        if base:
            scale *= size ** (-1 if c.get(f"scale_{stack}_qk_dot_by_d", True) else -0.5)
        return w.linear(name + ".proj_output_dense_layer", attention(q, k, v, scale, bias, causal), width, False) * own

    def run(name, depth, tokens, memory=None):
        x = w.embedding(name + "_embeddings.word_embeddings", tokens, vocabulary, width)
        x = x * c.get("embeddings_alpha", 1.0) * (width ** 0.5 if base else 1.0)
        table = w.get(f"{name}_embeddings.position_embed_helper.relative_attention_bias.weight", c.get("relative_attention_num_buckets", 32), heads)
        bias, padding = relative_bias(table, tokens.shape[1], memory is None), unpadded(mask)
        if memory is None and mask is not None:
            bias = bias + padding
        for i in range(depth):
            layer = f"{name}.layers.{i}"
            normed = w.rms_norm(layer + ".norm1", x, eps)
            x = x + attend(layer + ".self_attn", normed, normed, bias, memory is not None)
            if memory is not None:
                x = x + attend(layer + ".multihead_attn", w.rms_norm(layer + ".norm2", x, eps), memory, padding)
            last = layer + (".norm2" if memory is None else ".norm3")
            x = x + feed_forward(w, layer, w.rms_norm(last, x, eps), c["d_ff"], nonlinearity[name], False)
        return w.rms_norm(name + ".norm", x, eps)

    nonlinearity = {"encoder": c.get("encoder_nonlinearity", "relu")}
    nonlinearity["decoder"] = c.get("decoder_nonlinearity") or nonlinearity["encoder"]
    memory = run("encoder", c["encoder_num_hidden_layers"], ids)
    embedding = "encoder_embeddings.word_embeddings.weight"
    w.again(embedding, "decoder_embeddings.word_embeddings.weight")
    x = run("decoder", c.get("decoder_num_hidden_layers") or c["encoder_num_hidden_layers"], decoder_ids, memory)
    shared = c.get("share_embedding_weights", True)
    logits = w.head("lm_head", x, vocabulary, embedding if shared else None)
    if base:
        return logits * (c.get("output_logits_alpha") or 1.0) / (relative if c.get("scale_output_logits_by_d") else relative ** 0.5)
    return logits * width ** -0.5 if shared else logits


HF = {"model_type": "t5", "vocab_size": 19, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 4, "num_layers": 2,
      "num_decoder_layers": 3, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8, "is_encoder_decoder": True,
      "layer_norm_epsilon": 0.1, "dropout_rate": 0.1}
CS = {"src_vocab_size": 19, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 4, "encoder_num_hidden_layers": 2,
      "decoder_num_hidden_layers": 2, "encoder_nonlinearity": "relu", "decoder_nonlinearity": "relu", "layer_norm_epsilon": 0.1,
      "relative_attention_num_buckets": 8, "norm_type": "rmsnorm", "dropout_rate": 0.1, "mup_base_d_model": 4, "mup_base_d_ff": 6,
      "embeddings_alpha": 0.5, "encoder_attention_logits_alpha": 2.5, "decoder_attention_logits_alpha": 1.5, "output_logits_alpha": 1.25}
CASES = {
    "tied": {"hf": HF},
    "head of its own, gated": {"hf": {**HF, "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}, "releases": ["cs-1.9", "cs-2.0"]},
    # Hugging Face approximates this gelu by tanh, whatever else a config says
    "gated by gelu": {"hf": {**HF, "feed_forward_proj": "gated-gelu"}, "tolerance": 1e-3, "warning": "approximation by tanh",
                      "releases": ["cs-1.8"]},
    "muP": {"cs": CS},
    "muP, heads of another size": {"cs": {**CS, "mup_base_d_kv": 3, "scale_encoder_qk_dot_by_d": False, "scale_decoder_qk_dot_by_d": False,
                                          "scale_output_logits_by_d": True, "share_embedding_weights": False}},
}
