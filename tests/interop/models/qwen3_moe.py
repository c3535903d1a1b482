"""Qwen3-MoE: Qwen3 with a mixture of experts."""
from . import qwen3
from .layers import ACTIVATIONS
from . import llama
from .zoo import chosen, gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "qwen3-moe"
RELEASES = ["cs-2.8"]


def feed_forward(w, layer, x, c):
    width, inner, name = c["hidden_size"], c["moe_intermediate_size"], layer + "mlp."
    scores = w.linear(name + "gate", x, c["num_experts"], False)
    weights, out = chosen(scores, c["num_experts_per_tok"], c.get("norm_topk_prob", False)), 0
    for i in range(c["num_experts"]):
        expert = f"{name}experts.{i}."
        gate = ACTIVATIONS["silu"](w.linear(expert + "gate_proj", x, inner, False))
        out = out + weights[..., i, None] * w.linear(expert + "down_proj", gate * w.linear(expert + "up_proj", x, inner, False), width, False)
    return out


def hugging_face(w, c, ids):
    usual = {"num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
    return llama.hugging_face(w, {**usual, **c, "sliding_window": None}, ids, feed_forward, c.get("attention_bias", False), head_norms=True)


HF = {**qwen3.HF, "model_type": "qwen3_moe", "moe_intermediate_size": 10, "num_experts": 5, "num_experts_per_tok": 3,
      "norm_topk_prob": True}
del HF["intermediate_size"]
KEEP = (*qwen3.KEEP, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
CASES = {
    "five experts": {"hf": HF, "keep": KEEP},
    "weights that do not add up to 1": {"hf": {**HF, "norm_topk_prob": False, "tie_word_embeddings": True}, "keep": KEEP},
}
