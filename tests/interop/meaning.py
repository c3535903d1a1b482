"""What a Hugging Face checkpoint means: the logits that its published definition (models/) computes with the tensors it has. And
whether what `cbk convert` wrote means the same."""
import importlib
import json
import os
import re

import torch
import torch.nn.functional as F

import safetensors_file
from logits_interop import TOLERANCE, compute, distance, read_model_zoo
from models.layers import Different, Weights

TOKENS = (torch.randint(19, (2, 7), generator=torch.Generator().manual_seed(7)),)


class Loaded(Weights):
    """Tensors as transformers loads them: with tied weights the head is the embedding, whatever the file has."""

    def head(self, name, x, count, embedding=None, bias=False):
        if not embedding:
            return super().head(name, x, count, None, bias)
        self.used.add(self.prefix + name + ".weight")
        return F.linear(x, self.get(embedding, count, x.shape[-1]), self.bias(name, count) if bias else None)


class Family:
    """A file of models/: its definitions of both sides, and a model of random weights."""

    def __init__(self, name):
        self.name, self.module = name, importlib.import_module("models." + name)

    def model(self, case, seed=5):
        """Config and tensors."""
        config = json.loads(json.dumps(self.module.CASES[case]["hf"]))
        weights = Weights(seed=seed)
        compute(self.module.hugging_face, weights, config, TOKENS)
        return config, dict(weights.tensors)

    def logits(self, config, tensors):
        """And the names that the model does not need. Raises Different if it is not whole."""
        weights, buffers = Loaded({key: value.float() for key, value in tensors.items()}), getattr(self.module, "BUFFERS", None)
        try:
            out = compute(self.module.hugging_face, weights, config, TOKENS)
        except (KeyError, RuntimeError, IndexError, AttributeError, ZeroDivisionError, ValueError) as problem:
            raise Different(f"{type(problem).__name__}: {problem}") from problem
        return out, [name for name in weights.unused() if not (buffers and re.search(buffers + "$", name))]

    def same_in_model_zoo(self, logits, said):
        """What `cbk convert` said that it wrote: config and checkpoint, which compute the same."""
        config, checkpoint = (re.search(what + " saved to (.*)", said).group(1) for what in ("Config", "Checkpoint"))
        zoo_config, tensors = read_model_zoo(config, checkpoint)
        got = compute(self.module.model_zoo, Loaded({k: v.float() for k, v in tensors.items()}), zoo_config, TOKENS)
        assert distance(logits, got) <= TOLERANCE, "the logits differ"
        return config, checkpoint


def read_file(path):
    return torch.load(path) if path.endswith(".bin") else safetensors_file.with_aliases(*safetensors_file.load(path))


def read_written(path):
    """The tensors of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return read_file(path)
    out = {}
    for name in os.listdir(path):
        if name.endswith((".safetensors", ".bin")):
            out.update(read_file(os.path.join(path, name)))
    return out
