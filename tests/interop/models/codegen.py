"""CodeGen: GPT-J whose queries, values and keys are one matrix, a quarter of the heads after the other."""
from . import gptj
from .layers import split
from .zoo import gptj_model as model_zoo  # noqa: F401  the other side

MODEL = "codegen"
RELEASES = ["cs-1.7", "cs-2.0"]
BUFFERS = r"\.attn\.causal_mask"  # constants that old Hugging Face files hold


def projections(w, name, x, width, heads):
    quarters = w.linear(name + "qkv_proj", x, 3 * width, False).unflatten(-1, (4, 3, -1))
    q, v, k = (split(quarters[..., part, :].flatten(-2), heads) for part in range(3))
    return q, k, v


def hugging_face(w, c, ids):
    return gptj.hugging_face(w, c, ids, projections)


HF = {**{name: value for name, value in gptj.HF.items() if name != "rotary"}, "model_type": "codegen"}
CASES = {"a head for each quarter": {"hf": HF}, "8 heads, relu": {"hf": {**HF, "n_head": 8, "activation_function": "relu", "n_inner": 24}}}
