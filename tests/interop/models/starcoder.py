"""StarCoder: GPT-2 with Linear layers; one key head below all queries, or three parts in each head."""
from . import gpt2
from .layers import split
from .santacoder import CASES as SANTACODER
from .zoo import gpt2_lm_head_model as model_zoo  # noqa: F401  the other side

MODEL = "starcoder"
RELEASES = ["cs-2.0"]


def projections(linear, name, x, c):
    width, heads = c["n_embd"], c["n_head"]
    size = width // heads
    if c["multi_query"]:
        return [split(t, t.shape[-1] // size) for t in linear(name, x, width + 2 * size).split([width, size, size], -1)]
    return split(linear(name, x, 3 * width), heads).split(size, -1)


def hugging_face(w, c, ids):
    usual = {"multi_query": True, "activation_function": "gelu_pytorch_tanh"}
    return gpt2.hugging_face(w, {**usual, **c}, ids, w.linear, projections)


HF = {**gpt2.HF, "model_type": "gpt_bigcode", "activation_function": "gelu_pytorch_tanh", "multi_query": True}
CASES = {
    "one key head": {"hf": HF},
    "a key head for each, relu, a head of its own": {"hf": {**HF, "multi_query": False, "activation_function": "relu", "n_inner": 24,
                                                            "tie_word_embeddings": False}},
    "no scale": {"hf": {**HF, "scale_attn_weights": False}},
    "muP": SANTACODER["muP"],
}
