"""Mixtral: LLaMA with a mixture of experts; tensors for each expert, or in the Model Zoo up to 2.8 one for all."""
from . import llama
from .layers import ACTIVATIONS
from .zoo import chosen, gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "mixtral"
RELEASES = ["cs-2.8"]


def feed_forward(w, layer, x, c):
    width, inner, name = c["hidden_size"], c["intermediate_size"], layer + "block_sparse_moe."
    weights = chosen(w.linear(name + "gate", x, c["num_local_experts"], False), c["num_experts_per_tok"])
    out = 0
    for i in range(c["num_local_experts"]):
        expert = f"{name}experts.{i}."
        gate = ACTIVATIONS["silu"](w.linear(expert + "w1", x, inner, False))
        out = out + weights[..., i, None] * w.linear(expert + "w2", gate * w.linear(expert + "w3", x, inner, False), width, False)
    return out


def hugging_face(w, c, ids):
    usual = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6, "rms_norm_eps": 1e-5}
    return llama.hugging_face(w, {**usual, **c}, ids, feed_forward)


HF = {**llama.HF, "model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 3}
CS = {**llama.CS, "moe": {"num_experts": 3, "top_k": 2, "load_balancing_loss_coef": 0.5}}
KEEP = ("num_key_value_heads", "num_local_experts", "num_experts_per_tok")
CASES = {
    "five experts": {"hf": HF, "keep": KEEP},
    "a window, tied": {"hf": {**HF, "sliding_window": 5, "tie_word_embeddings": True}, "keep": KEEP},
    "a key head for each query": {"cs": {**CS, "attention_module": "aiayn_attention", "extra_attention_params": None}},
}
