"""MPT: ALiBi or learned positions, all layers with biases or none, q, k and v below each other; the head is the embedding."""
import torch
import torch.nn.functional as F

from .layers import alibi_bias, alibi_slopes, attention, split
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "mpt"


def hugging_face(w, c, ids):
    width, heads, length, about = c["d_model"], c["n_heads"], ids.shape[1], c.get("attn_config") or {}
    bias = not c.get("no_bias", False)
    scale = (width // heads) ** -0.5 if about.get("softmax_scale") is None else about["softmax_scale"]
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    if not about.get("alibi", False):
        x = x + w.embedding("transformer.wpe", torch.arange(length), c.get("max_seq_len", 2048), width)
    slopes = alibi_bias(alibi_slopes(heads), length) if about.get("alibi", False) else None
    for i in range(c["n_layers"]):
        block = f"transformer.blocks.{i}."
        packed = w.linear(block + "attn.Wqkv", w.layer_norm(block + "norm_1", x, 1e-5, bias), 3 * width, bias)
        q, k, v = (split(t, heads) for t in packed.split(width, -1))
        x = x + w.linear(block + "attn.out_proj", attention(q, k, v, scale, slopes, causal=True), width, bias)
        normed = w.layer_norm(block + "norm_2", x, 1e-5, bias)
        hidden = F.gelu(w.linear(block + "ffn.up_proj", normed, c.get("expansion_ratio", 4) * width, bias))
        x = x + w.linear(block + "ffn.down_proj", hidden, width, bias)
    return F.linear(w.layer_norm("transformer.norm_f", x, 1e-5, bias), w.tensors["transformer.wte.weight"])


def as_transformers(w, c, ids):
    """Its class takes ALiBi where the config does not say."""
    return hugging_face(w, {**c, "attn_config": {"alibi": True, **c.get("attn_config", {})}}, ids)


HF = {"model_type": "mpt", "vocab_size": 19, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 9, "expansion_ratio": 2,
      "norm_type": "low_precision_layernorm"}
CASES = {
    "ALiBi, no biases": {"release": "cs-2.3", "hf": {**HF, "no_bias": True, "attn_config": {"alibi": True}}},
    "ALiBi, as transformers writes it": {"release": "cs-2.3", "hugging_face": as_transformers,
                                         "hf": {**HF, "no_bias": True, "attn_config": {"model_type": ""}}},
    "learned positions, no scale": {"release": "cs-2.3", "hf": {
        **HF, "no_bias": False, "attn_config": {"alibi": False, "softmax_scale": 1.0}}},
}
