"""DRAGON+: DPR of two BertModels, whose poolers nothing is made of."""
from . import bert, dpr
from .dpr import BUFFERS, FOLDERS, inputs, model_zoo  # noqa: F401  the other side

MODEL = "dragon"
COMPUTED = False
RELEASES = ["cs-2.3"]


def hugging_face(w, c, *tokens):
    return dpr.hugging_face(w, c, *tokens, names=("", ""))


CASES = {
    "two encoders": {"hf": {"q_encoder": bert.HF, "ctx_encoder": {**bert.HF, "hidden_act": "relu"}}},
}
