#!/usr/bin/python3
"""`cbk merge` against the formulas of mergekit, computed here in NumPy over whole tensors: random models, methods, gradients, filters and
slices. Sums in float32 must have the same bits; what is divided by norms or sums of whole tensors has a bound.

Usage: merge_interop.py --cbk PATH [--cases N] [--seed N]
"""
import argparse
import hashlib
import json
import os
import random
import sys
import tempfile

import numpy as np
import torch
import yaml

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_file  # noqa: E402  pylint: disable=wrong-import-position
from harness import Run  # noqa: E402  pylint: disable=wrong-import-position

F = np.float32
WIDTH, INNER, WORDS = 8, 12, 11
LAYER = {"self_attn.q_proj.weight": (WIDTH, WIDTH), "self_attn.q_proj.bias": (WIDTH,), "mlp.up_proj.weight": (INNER, WIDTH),
         "mlp.down_proj.weight": (WIDTH, INNER), "input_layernorm.weight": (WIDTH,)}
BOUND = 4e-6  # of the largest element: norms and sums of sizes are added here in another order


# ------------------------------------------------------------------ models
def tensors_of(seed, layers=3, dtype=torch.float32, tied=False, words=WORDS, coarse=False):
    made = torch.Generator().manual_seed(seed)

    def number(*shape):
        values = torch.randn(*shape, generator=made)
        return ((values * 4).round() / 4 if coarse else values).to(dtype)  # coarse: many differences have one size
    out = {"model.embed_tokens.weight": number(words, WIDTH)}
    for i in range(layers):
        out.update({f"model.layers.{i}.{name}": number(*shape) for name, shape in LAYER.items()})
    out["model.norm.weight"] = number(WIDTH)
    if not tied:
        out["lm_head.weight"] = number(words, WIDTH)
    return out


def write(run, name, tensors, **config):
    folder = run.path(name)
    os.makedirs(folder)
    if config.pop("pickled", False):
        torch.save(tensors, os.path.join(folder, "pytorch_model.bin"))
    else:
        safetensors_file.save(os.path.join(folder, "model.safetensors"), tensors)
    layers = 1 + max(int(key.split(".")[2]) for key in tensors if ".layers." in key)
    words = tensors["model.embed_tokens.weight"].shape[0]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "vocab_size": words,
                   "tie_word_embeddings": "lm_head.weight" not in tensors, "layer_types": [f"kind {i}" for i in range(layers)], **config}, file)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write('{"words": 1}')
    return folder


def read(folder):
    out = {}
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        names = json.load(file)["weight_map"]
    for name in sorted(set(names.values())):
        out.update(safetensors_file.load(os.path.join(folder, name))[0])
    assert set(out) == set(names)
    return out


def merged(run, name, config, *options):
    with open(run.path(name + ".yml"), "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    run.call("merge", run.path(name + ".yml"), "-o", run.path(name), "--no-progress-bar", *options)
    return read(run.path(name))


def config_of(run, name):
    with open(os.path.join(run.path(name), "config.json"), encoding="utf-8") as file:
        return json.load(file)


# ------------------------------------------------------------------ formulas (mergekit's)
def evaluated(setting, name, t):
    if isinstance(setting, (int, float)):
        return setting
    if all(isinstance(one, (int, float)) for one in setting):
        at = t * (len(setting) - 1)
        first = int(at)
        return (1 - (at - first)) * setting[first] + (at - first) * setting[min(len(setting) - 1, first + 1)]
    for one in setting:
        if one.get("filter") in (None, "*") or one["filter"] in name:
            return evaluated(one["value"], name, t)
    return None


def parameter(sections, name, key, t, default=None):
    for section in sections:
        if name in (section or {}):
            value = evaluated(section[name], key, t)
            if value is not None:
                return value
    return default


def linear(values, weights, normalize):
    total, divisor = F(weights[0]) * values[0], F(weights[0])
    for value, weight in zip(values[1:], weights[1:]):
        total, divisor = total + F(weight) * value, divisor + F(weight)
    return total / divisor if normalize else total


def slerp(a, b, t):
    wide = [x.astype(np.float64).ravel() for x in (a, b)]
    unit = [x / (np.linalg.norm(x) if np.linalg.norm(x) > 1e-8 else 1) for x in wide]
    cosine = float(unit[0] @ unit[1])
    if abs(cosine) > 0.9995:
        return F(1 - t) * a + F(t) * b
    angle = np.arccos(cosine)
    return F(np.sin(angle - angle * t) / np.sin(angle)) * a + F(np.sin(angle * t) / np.sin(angle)) * b


def scrambled(x):
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def kept(delta, density, kind, stream):
    """Which elements of a difference are kept."""
    if kind == "random":
        start = np.frombuffer(hashlib.sha256(stream.encode()).digest()[:8], "<u8")[0]
        with np.errstate(over="ignore"):
            counters = start + np.arange(delta.size, dtype=np.uint64)
        return ((scrambled(counters) >> np.uint64(11)) * 2.0 ** -53 < density).reshape(delta.shape)
    mask = np.zeros(delta.size, bool)
    mask[np.argsort(-np.abs(delta.ravel()), kind="stable")[:int(density * delta.size)]] = True
    return mask.reshape(delta.shape)


def task(base, values, weights, densities, kind, consensus, normalize, rescale, factor, seed, key):
    deltas = []
    for place, (value, density) in enumerate(zip(values, densities)):
        delta = value - base
        if kind and density < 1:
            masked = np.where(kept(delta, density, kind, f"{seed}\n{place}\n{key}"), delta, F(0))
            before, after = (np.abs(x.astype(np.float64)).sum() for x in (delta, masked))
            delta = masked * F(before / after) if rescale and before >= 1e-7 and after >= 1e-7 else masked
        deltas.append(delta)
    weighted = [delta * F(weight) for delta, weight in zip(deltas, weights)]
    if consensus:
        total = sum(weighted[1:], weighted[0])
        sign = np.where(total >= 0, F(1), F(-1))
        masks = [np.sign(one) == sign for one in weighted]
        mixed = sum((np.where(mask, one, F(0)) for mask, one in zip(masks, weighted)), np.zeros_like(base))
        divisor = sum((np.where(mask, F(weight), F(0)) for mask, weight in zip(masks, weights)), np.zeros_like(base))
        divisor = np.where(divisor == 0, F(1), divisor)
    else:
        mixed = sum(weighted[1:], weighted[0])
        divisor = F(0)
        for weight in weights:
            divisor = divisor + F(weight)
        divisor = F(1) if abs(divisor) < 1e-8 else divisor
    return base + (mixed / divisor if normalize else mixed) * F(factor)


METHODS = {  # of the differences: trim, consensus, normalize, rescale
    "task_arithmetic": (None, False, False, False), "ties": ("magnitude", True, True, False),
    "dare_linear": ("random", False, False, True), "dare_ties": ("random", True, False, True),
}


def expected(config, models, key, keys, sources, t, seed, own=None):
    """The tensor of one key. `models`: path -> tensors; `own`: parameters of the slice."""
    method, top = config["merge_method"], config.get("parameters")
    parts = [(source, models[source["model"]][name].to(torch.float32).numpy(), name) for source, name in zip(sources, keys)]

    def of(name, source, key, default=None):
        return parameter([source.get("parameters"), own, top], name, key, t, default)
    if method == "linear":
        return linear([value for _, value, _ in parts], [of("weight", source, name) for source, _, name in parts],
                      parameter([own, top], "normalize", key, t, True))
    base = [value for source, value, _ in parts if source["model"] == config.get("base_model")]
    others = [part for part in parts if part[0]["model"] != config.get("base_model")]
    if method == "slerp":
        return slerp(base[0], others[0][1], parameter([own, top], "t", key, t))
    if method == "passthrough":
        scale = of("scale", sources[0], keys[0])
        return parts[0][1] if scale is None else parts[0][1] * F(scale)
    trim, consensus, normalize, rescale = METHODS[method]
    return task(base[0], [value for _, value, _ in others], [of("weight", source, name) for source, _, name in others],
                [of("density", source, name, 1.0) for source, _, name in others], trim, consensus,
                parameter([own, top], "normalize", key, t, normalize), parameter([own, top], "rescale", key, t, rescale),
                parameter([own, top], "lambda", key, t, 1.0), seed, key)


def is_bounded(method):
    return method == "slerp" or method.startswith("dare")


def compare(got, want, config, key):
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.get("out_dtype") or config.get("dtype") or "float32"]
    assert got.dtype == dtype, (key, got.dtype)
    rescaled = config["merge_method"] == "ties" and str(config.get("parameters")).find("rescale") >= 0
    if is_bounded(config["merge_method"]) or rescaled:
        bound = BOUND if dtype == torch.float32 else 2.0 ** -7
        assert np.abs(got.float().numpy() - want).max() <= bound * max(1, np.abs(want).max()), key
    else:
        assert torch.equal(got, torch.from_numpy(np.ascontiguousarray(want)).to(dtype)), (key, np.abs(got.float().numpy() - want).max())


# ------------------------------------------------------------------ random cases
def setting(chance, low, high):
    def number():
        return round(chance.uniform(low, high), 3)
    kind = chance.randrange(4)
    if kind < 2:
        return number()
    gradient = [number() for _ in range(chance.randint(1, 5))]
    return gradient if kind == 2 else [{"filter": chance.choice(["mlp", "self_attn", "norm", ".1."]), "value": gradient}, {"value": number()}]


def random_config(chance, paths):
    method = chance.choice(["linear", "slerp", *METHODS])
    count = 2 if method == "slerp" else chance.randint(2, len(paths))
    chosen = chance.sample(paths, count)
    config = {"merge_method": method, "parameters": {}}
    if method != "linear":
        config["base_model"] = chance.choice(chosen)
    sources = []
    for path in chosen:
        own = {}
        if method == "linear" or method in METHODS and path != config["base_model"]:
            own["weight"] = setting(chance, 0.1, 1.5)
            if method in METHODS and method != "task_arithmetic":
                own["density"] = setting(chance, 0.3, 1)
        sources.append({"model": path, **({"parameters": own} if own else {})})
    if method == "slerp":
        config["parameters"]["t"] = setting(chance, 0, 1)
    elif chance.random() < 0.5:
        config["parameters"]["normalize"] = chance.random() < 0.5
    if method in METHODS and chance.random() < 0.5:
        config["parameters"]["lambda"] = setting(chance, 0.2, 1.5)
    if method in METHODS and chance.random() < 0.4:
        config["parameters"]["rescale"] = chance.random() < 0.5
    if chance.random() < 0.3:
        config["out_dtype"] = chance.choice(["bfloat16", "float16", "float32"])
    return config, sources


def random_case(run, number, models, seed):
    chance = random.Random(seed * 1000 + number)
    config, sources = random_config(chance, sorted(models))
    layers = 3
    if chance.random() < 0.4:
        slices = []
        for _ in range(chance.randint(1, 3)):
            length = chance.randint(1, layers)
            starts = [chance.randint(0, layers - length) for _ in sources]
            slices.append({"sources": [{**source, "layer_range": [start, start + length]} for source, start in zip(sources, starts)]})
            if config["merge_method"] == "slerp" and chance.random() < 0.5:
                slices[-1]["parameters"] = {"t": setting(chance, 0, 1)}
        config["slices"] = slices
    else:
        config["models"] = sources
    got = merged(run, f"random{number}", config, "--seed", str(number))
    slices = config.get("slices") or [{"sources": [{**source, "layer_range": [0, layers]} for source in sources]}]
    want, depth = {}, 0
    for key, piece in (("model.embed_tokens.weight", slices[0]), ("model.norm.weight", slices[-1]), ("lm_head.weight", slices[-1])):
        want[key] = expected(config, models, key, [key] * len(sources), piece["sources"], 0, number, piece.get("parameters"))
    for piece in slices:
        first, last = piece["sources"][0]["layer_range"]
        for offset in range(last - first):
            for name in LAYER:
                key = f"model.layers.{depth}.{name}"
                keys = [f"model.layers.{source['layer_range'][0] + offset}.{name}" for source in piece["sources"]]
                want[key] = expected(config, models, key, keys, piece["sources"], offset / (last - first - 1) if last - first > 1 else 1, number,
                                     piece.get("parameters"))
            depth += 1
    assert set(got) == set(want), set(got) ^ set(want)
    for key, value in want.items():
        compare(got[key], value, config, key)
    assert config_of(run, f"random{number}")["num_hidden_layers"] == depth


# ------------------------------------------------------------------ single rules
def passthrough(run, models):
    a, b = sorted(models)[:2]
    config = {"merge_method": "passthrough", "slices": [
        {"sources": [{"model": a, "layer_range": [0, 2]}]},
        {"sources": [{"model": b, "layer_range": [1, 3], "parameters": {"scale": [{"filter": "down_proj", "value": 0.5}]}}]},
        {"sources": [{"model": a, "layer_range": [0, 2]}]}]}
    got = merged(run, "passthrough", config)
    for out, (model, layer) in enumerate([(a, 0), (a, 1), (b, 1), (b, 2), (a, 0), (a, 1)]):
        for name in LAYER:
            want = models[model][f"model.layers.{layer}.{name}"] * (0.5 if model == b and "down_proj" in name else 1)
            assert torch.equal(got[f"model.layers.{out}.{name}"], want), (out, name)
    assert torch.equal(got["model.embed_tokens.weight"], models[a]["model.embed_tokens.weight"])
    assert torch.equal(got["lm_head.weight"], models[a]["lm_head.weight"])
    made = config_of(run, "passthrough")
    assert made["num_hidden_layers"] == 6 and made["layer_types"] == [f"kind {i}" for i in (0, 1, 1, 2, 0, 1)]
    assert os.path.exists(run.path("passthrough/tokenizer.json"))


def equal_sizes(run):
    """Many differences of one size: exactly the first ones are kept, over many tasks and blocks."""
    torch.manual_seed(5)
    base = {"model.embed_tokens.weight": torch.zeros(WORDS, WIDTH), "model.layers.0.big.weight": torch.zeros(301, 997)}
    tuned = [{key: (torch.randn(*value.shape) * 2).round() / 4 for key, value in base.items()} for _ in range(2)]
    paths = [write(run, f"equal_{i}", tensors) for i, tensors in enumerate([base, *tuned])]
    models = dict(zip(paths, [base, *tuned]))
    for density in (0.2, 0.5, 0.77):
        config = {"merge_method": "ties", "base_model": paths[0], "parameters": {"normalize": False},
                  "models": [{"model": path, "parameters": {"weight": 1, "density": density}} for path in paths[1:]]}
        got = merged(run, f"equal_{density}", config)
        for key in base:
            want = expected(config, models, key, [key] * 3, config["models"] + [{"model": paths[0]}], 0, 0)
            assert torch.equal(got[key], torch.from_numpy(want)), key


def narrow(run):
    """16 bits: computed in float32 and rounded once; the dtype of the config rounds the inputs first."""
    models = {write(run, f"narrow_{i}", tensors): tensors for i, tensors in enumerate(
        [tensors_of(20, dtype=torch.bfloat16), tensors_of(21, dtype=torch.bfloat16), tensors_of(22, dtype=torch.float32)])}
    a, b, c = models
    for name, chosen, more, dtype in (("same", (a, b), {}, torch.bfloat16), ("mixed", (a, c), {}, torch.float32),
                                      ("given", (a, c), {"dtype": "float16"}, torch.float16)):
        config = {"merge_method": "linear", "models": [{"model": path, "parameters": {"weight": 0.3 + i}} for i, path in enumerate(chosen)], **more}
        got = merged(run, "narrow_" + name, config)
        for key, value in got.items():
            inputs = [models[path][key].to(torch.float16 if more else models[path][key].dtype).float().numpy() for path in chosen]
            want = torch.from_numpy(linear(inputs, [0.3, 1.3], True)).to(dtype)
            assert torch.equal(value, want), (name, key)
    assert config_of(run, "narrow_given")["torch_dtype"] == "float16"


def tied(run):
    """Tied models stay tied; beside a model with a head of its own, they do not."""
    one, two, three = tensors_of(30, tied=True), tensors_of(31, tied=True), tensors_of(32)
    a, b, c = (write(run, f"tied_{i}", tensors) for i, tensors in enumerate((one, two, three)))
    pickled = dict(one)
    pickled["lm_head.weight"] = pickled["model.embed_tokens.weight"]
    d = write(run, "tied_pickled", pickled, pickled=True, tie_word_embeddings=True)

    def config(first, second):
        return {"merge_method": "linear", "models": [{"model": path, "parameters": {"weight": 1}} for path in (first, second)]}
    for name, first in (("tied_files", a), ("tied_bin", d)):
        got = merged(run, name, config(first, b))
        assert "lm_head.weight" not in got and config_of(run, name)["tie_word_embeddings"] is True
        want = linear([one["model.embed_tokens.weight"].numpy(), two["model.embed_tokens.weight"].numpy()], [1, 1], True)
        assert torch.equal(got["model.embed_tokens.weight"], torch.from_numpy(want))
    done = run.run("merge", run.path("tied_files.yml"), "-o", run.path("tied_files"))
    assert done.returncode == 1 and "exists already" in done.stderr
    got = merged(run, "untied", config(a, c))
    assert config_of(run, "untied")["tie_word_embeddings"] is False
    want = linear([one["model.embed_tokens.weight"].numpy(), three["lm_head.weight"].numpy()], [1, 1], True)
    assert torch.equal(got["lm_head.weight"], torch.from_numpy(want))
    for stated in ({"tie_word_embeddings": False}, {"tie_word_embeddings": None, "text_config": {"tie_word_embeddings": False}}):
        lost = write(run, f"head_lost_{len(stated)}", one, **stated)  # a head that is not in the files, and not tied
        with open(run.path("lost.yml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(config(lost, c), file)
        done = run.run("merge", run.path("lost.yml"), "-o", run.path("lost"))
        assert done.returncode == 1 and "lm_head.weight" in done.stderr, done


def vocabularies(run):
    """Embeddings of other lengths: the rows that all have; with differences, those of the base model."""
    models = {write(run, f"words_{i}", tensors): tensors for i, tensors in enumerate((tensors_of(40), tensors_of(41, words=WORDS + 3)))}
    small, large = models
    config = {"merge_method": "linear", "models": [{"model": path, "parameters": {"weight": 1}} for path in (large, small)]}
    got = merged(run, "words_linear", config)
    key = "model.embed_tokens.weight"
    assert torch.equal(got[key], torch.from_numpy(linear([models[large][key][:WORDS].numpy(), models[small][key].numpy()], [1, 1], True)))
    assert config_of(run, "words_linear")["vocab_size"] == WORDS
    config = {"merge_method": "task_arithmetic", "base_model": small, "models": [{"model": large, "parameters": {"weight": 0.5}}]}
    got = merged(run, "words_task", config)
    base = models[small][key].numpy()
    assert torch.equal(got[key], torch.from_numpy(base + (models[large][key][:WORDS].numpy() - base) * F(0.5)))
    config = {"merge_method": "task_arithmetic", "base_model": large, "models": [{"model": small, "parameters": {"weight": 0.5}}]}
    with open(run.path("words_bad.yml"), "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    done = run.run("merge", run.path("words_bad.yml"), "-o", run.path("words_bad"))
    assert done.returncode == 1 and "other sizes" in done.stderr and not os.path.exists(run.path("words_bad")), done.stderr


def parallel_vectors(run):
    """slerp of nearly parallel tensors is linear; of a zero tensor it has no angle."""
    one = tensors_of(50)
    two = {key: value * 3 + 1e-3 * torch.randn(value.shape) for key, value in one.items()}
    two["model.norm.weight"] = torch.zeros(WIDTH)
    paths = [write(run, f"parallel_{i}", tensors) for i, tensors in enumerate((one, two))]
    config = {"merge_method": "slerp", "base_model": paths[0], "models": [{"model": path} for path in paths], "parameters": {"t": 0.25}}
    got = merged(run, "parallel", config)
    for key, value in got.items():
        want = slerp(one[key].numpy(), two[key].numpy(), 0.25)
        assert np.abs(value.numpy() - want).max() <= BOUND * np.abs(want).max(), key
    key = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(got[key], torch.from_numpy(F(0.75) * one[key].numpy() + F(0.25) * two[key].numpy()))


def whole_numbers(run):
    """Buffers of whole numbers are kept if they are the same everywhere."""
    one, two = tensors_of(60), tensors_of(61)
    for tensors in (one, two):
        tensors["model.position_ids"] = torch.arange(5)
    paths = [write(run, f"whole_{i}", tensors) for i, tensors in enumerate((one, two))]
    config = {"merge_method": "linear", "models": [{"model": path, "parameters": {"weight": 1}} for path in paths]}
    assert torch.equal(merged(run, "whole", config)["model.position_ids"], torch.arange(5))
    two["model.position_ids"] = torch.arange(5) + 1
    paths[1] = write(run, "whole_2", two)
    config["models"][1]["model"] = paths[1]
    with open(run.path("whole_bad.yml"), "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    done = run.run("merge", run.path("whole_bad.yml"), "-o", run.path("whole_bad"))
    assert done.returncode == 1 and "cannot be merged, and differs between" in done.stderr, done.stderr


def threads(run, models):
    """The same bytes for any number of threads, sizes of blocks and ranks of a job; other bytes for another seed."""
    torch.manual_seed(7)
    big = [{key: value.repeat(40, 30) if value.dim() == 2 else value for key, value in tensors.items()} for tensors in list(models.values())[:3]]
    paths = [write(run, f"big_{i}", tensors) for i, tensors in enumerate(big)]
    for method in ("ties", "dare_ties", "slerp", "linear"):
        config = {"merge_method": method, "base_model": paths[0], "parameters": {"t": 0.3, "weight": 0.7, "density": 0.4, "rescale": True},
                  "models": [{"model": path} for path in (paths[:2] if method == "slerp" else paths)]}
        contents = []
        for name, options in (("1", ["--threads", "1"]), ("4", ["--threads", "4", "--memory", "32MB"]), ("resumed", ["--resume"]),
                              ("sharded", ["--shard-size", "300KB"])):
            contents.append(merged(run, f"threads_{method}_{name}", config, *options))
        for other in contents[1:]:
            assert all(torch.equal(value, other[key]) for key, value in contents[0].items()) and set(other) == set(contents[0])
        if method == "dare_ties":
            other = merged(run, "threads_seed", config, "--seed", "9")
            assert not torch.equal(other["lm_head.weight"], contents[0]["lm_head.weight"])


def hostile(run, models):
    """YAML that is deep, long or refers to itself ends with one line, and writes nothing."""
    model = sorted(models)[0]
    texts = {
        "recursion": "&a\nmerge_method: linear\nmodels: [*a]\n",
        "deep": "merge_method: " + "[" * 3000 + "]" * 3000,
        "bomb": "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"{c}: &{c} [{','.join(['*' + b] * 9)}]\n" for b, c in zip("abcdefgh", "bcdefghi"))
                + "merge_method: linear\n",
        "escape": f"merge_method: linear\nmodels: [{{model: '{model}', parameters: {{weight: 1}}}}]\nout: ../../x\n",
        "name": "merge_method: linear\nmodels: [{model: \"\\e[31m\\0x\", parameters: {weight: 1}}]\n",
        "not a map": "- 1\n", "empty": "", "binary": "\x01\x02",
        "huge layer": f"merge_method: passthrough\nslices: [{{sources: [{{model: '{model}', layer_range: [0, 99999999999]}}]}}]\n",
        "nan": f"merge_method: linear\nmodels: [{{model: '{model}', parameters: {{weight: .nan}}}}]\n",
    }
    for name, text in texts.items():
        with open(run.path("hostile.yml"), "w", encoding="utf-8") as file:
            file.write(text)
        done = run.run("merge", run.path("hostile.yml"), "-o", run.path("hostile"))
        assert done.returncode == 1 and done.stderr.startswith("cbk: ") and done.stderr.count("\n") == 1, (name, done.stderr[:500])
        assert "\x1b" not in done.stderr and not os.path.exists(run.path("hostile")), name
    values = ", ".join(["0.5"] * 20000)
    with open(run.path("long.yml"), "w", encoding="utf-8") as file:
        file.write(f"merge_method: linear\nmodels: [{{model: '{model}', parameters: {{weight: [{values}]}}}}]\n")
    run.call("merge", run.path("long.yml"), "-o", run.path("long"), "--no-progress-bar")
    assert torch.equal(read(run.path("long"))["lm_head.weight"], models[model]["lm_head.weight"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.cbk, folder)
        models = {}
        for i in range(4):
            tensors = tensors_of(i, coarse=i > 1)
            models[write(run, f"model_{i}", tensors)] = tensors
        for number in range(args.cases):
            run.check(f"random {number}", lambda number=number: random_case(run, number, models, args.seed))
        run.check("passthrough", lambda: passthrough(run, models))
        run.check("equal sizes", lambda: equal_sizes(run))
        run.check("16 bits", lambda: narrow(run))
        run.check("tied", lambda: tied(run))
        run.check("vocabularies", lambda: vocabularies(run))
        run.check("parallel vectors", lambda: parallel_vectors(run))
        run.check("whole numbers", lambda: whole_numbers(run))
        run.check("threads", lambda: threads(run, models))
        run.check("hostile", lambda: hostile(run, models))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
