"""CodeGen: GPT-J whose queries, values and keys are one matrix, a quarter of the heads after the other."""
from .gptj import HF as GPTJ
from .layers import ACTIVATIONS, angles, attention, rotate_pairs, split
from .zoo import gptj_model as model_zoo  # noqa: F401  the other side

MODEL = "codegen"
RELEASES = ["cs-1.7", "cs-2.0"]
BUFFERS = r"\.attn\.causal_mask"  # constants that old Hugging Face files hold


def hugging_face(w, c, ids):
    width, heads, eps = c["n_embd"], c["n_head"], c.get("layer_norm_epsilon", 1e-5)
    angle = angles(ids.shape[1], c.get("rotary_dim", 64), 10000.0)
    x = w.embedding("transformer.wte", ids, c["vocab_size"], width)
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        normed = w.layer_norm(layer + "ln_1", x, eps)
        quarters = w.linear(layer + "attn.qkv_proj", normed, 3 * width, False).unflatten(-1, (4, 3, -1))
        q, v, k = (split(quarters[..., part, :].flatten(-2), heads) for part in range(3))
        out = attention(rotate_pairs(q, angle), rotate_pairs(k, angle), v, (width // heads) ** -0.5, causal=True)
        hidden = ACTIVATIONS[c.get("activation_function", "gelu_new")](w.linear(layer + "mlp.fc_in", normed, c.get("n_inner") or 4 * width))
        x = x + w.linear(layer + "attn.out_proj", out, width, False) + w.linear(layer + "mlp.fc_out", hidden, width)
    return w.head("lm_head", w.layer_norm("transformer.ln_f", x, eps), c["vocab_size"], bias=True)


HF = {**{name: value for name, value in GPTJ.items() if name != "rotary"}, "model_type": "codegen"}
CASES = {"a head for each quarter": {"hf": HF}, "8 heads, relu": {"hf": {**HF, "n_head": 8, "activation_function": "relu", "n_inner": 24}}}
