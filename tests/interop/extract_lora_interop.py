#!/usr/bin/python3
"""`cbk extract-lora` against singular values computed in NumPy, and folded back by `cbk fold-lora-checkpoint`.

Usage: extract_lora_interop.py --cbk PATH
"""
import argparse
import json
import os
import random
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_file  # noqa: E402  pylint: disable=wrong-import-position
from harness import Run  # noqa: E402  pylint: disable=wrong-import-position

WORDS = 13


def tensors_of(seed, width=24, inner=40, layers=2, tied=False, dtype=torch.float32):
    made = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (WORDS, width)}
    for i in range(layers):
        shapes.update({f"model.layers.{i}.self_attn.q_proj.weight": (width, width), f"model.layers.{i}.self_attn.q_proj.bias": (width,),
                       f"model.layers.{i}.mlp.up_proj.weight": (inner, width), f"model.layers.{i}.mlp.down_proj.weight": (width, inner),
                       f"model.layers.{i}.input_layernorm.weight": (width,)})
    shapes["model.norm.weight"] = (width,)
    if not tied:
        shapes["lm_head.weight"] = (WORDS, width)
    return {key: torch.randn(*shape, generator=made).to(dtype) for key, shape in shapes.items()}


def write(run, name, tensors, **config):
    folder = run.path(name)
    os.makedirs(folder)
    safetensors_file.save(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": "lm_head.weight" not in tensors, **config}, file)
    return folder


def linears(tensors):
    return [key for key, value in tensors.items() if key.endswith("_proj.weight") and value.dim() == 2]


def extracted(run, name, base, tuned, rank, *options):
    """Tensors and config of the adapter, and what was printed."""
    printed = run.call("extract-lora", base, tuned, "-o", run.path(name), "--rank", str(rank), "--no-progress-bar", *options)
    with open(os.path.join(run.path(name), "adapter_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return safetensors_file.load(os.path.join(run.path(name), "adapter_model.safetensors"))[0], config, printed


def folded(run, name, base, adapter):
    run.call("fold-lora-checkpoint", "--adapter", run.path(adapter), base, "-o", run.path(name + ".safetensors"), "--no-progress-bar")
    return safetensors_file.load(run.path(name + ".safetensors"))[0]


def matrices(adapter, key):
    start = "base_model.model." + key[:-len(".weight")]
    return adapter[start + ".lora_A.weight"].double().numpy(), adapter[start + ".lora_B.weight"].double().numpy()


def near(a, b, bound):
    assert a.shape == b.shape
    assert (a.double() - b.double()).abs().max() <= bound * b.double().abs().max(), (a.double() - b.double()).abs().max()


def full_rank(run):
    """All weights differ: at full rank, folding gives the tuned model, embeddings, norms and biases included."""
    for dtype, bound in ((torch.float32, 2e-6), (torch.bfloat16, 2.0 ** -8)):
        name = str(dtype)[6:]
        one, two = tensors_of(1, dtype=dtype), tensors_of(2, dtype=dtype)
        base, tuned = write(run, f"full_base_{name}", one), write(run, f"full_tuned_{name}", two)
        adapter, config, _ = extracted(run, f"full_{name}", base, tuned, 1000)
        assert config["r"] == config["lora_alpha"] == 24 and config["peft_type"] == "LORA" and config["bias"] == "all"
        assert config["target_modules"] == ["down_proj", "q_proj", "up_proj"], config
        assert set(config["modules_to_save"]) == {"embed_tokens", "input_layernorm", "lm_head", "model.norm"}, config
        got = folded(run, f"full_again_{name}", base, f"full_{name}")
        assert set(got) == set(two)
        for key, value in two.items():
            near(got[key], value, bound if key in linears(two) else 0)
        assert all(adapter[name].dtype == torch.float32 for name in adapter if "lora_" in name)


def low_rank(run):
    """A difference of rank r is found at rank r; shapes for the exact and for the randomized decomposition."""
    for width, inner, rank in ((24, 40, 3), (200, 331, 4), (331, 200, 1)):
        name = f"low_{width}_{rank}"
        one = tensors_of(3, width, inner)
        two = dict(one)
        torch.manual_seed(rank)
        for key in linears(one):
            rows, columns = one[key].shape
            two[key] = one[key] + torch.randn(rows, rank) @ torch.randn(rank, columns) * 0.1
        base, tuned = write(run, name + "_base", one), write(run, name + "_tuned", two)
        adapter, config, printed = extracted(run, name, base, tuned, rank)
        assert config["r"] == rank and config["modules_to_save"] is None and config["bias"] == "none"
        assert "100 %" in printed or "99.99" in printed, printed
        for key in linears(one):
            a, b = matrices(adapter, key)
            want = (two[key] - one[key]).double().numpy()
            assert np.abs(b @ a - want).max() <= 4e-6 * np.abs(two[key]).max(), (key, np.abs(b @ a - want).max())
        again = folded(run, name + "_again", base, name)
        for key, value in two.items():
            near(again[key], value, 2e-6 if key in linears(one) else 0)


def best_approximation(run):
    """What is kept of a difference of full rank is nearly the most that any matrix of that rank keeps, and is printed."""
    for width, inner, rank, least in ((40, 60, 10, 1 - 1e-6), (300, 400, 20, 0.985)):
        name = f"best_{width}"
        one = tensors_of(5, width, inner, layers=1)
        two = dict(one)
        chance = np.random.default_rng(1)
        for key in linears(one):
            rows, columns = one[key].shape
            left, _ = np.linalg.qr(chance.normal(size=(rows, min(rows, columns))))
            right, _ = np.linalg.qr(chance.normal(size=(columns, min(rows, columns))))
            values = 1 / np.arange(1, min(rows, columns) + 1) ** 0.5
            two[key] = one[key] + torch.from_numpy((left * values) @ right.T).float()
        base, tuned = write(run, name + "_base", one), write(run, name + "_tuned", two)
        adapter, _, printed = extracted(run, name, base, tuned, rank, "--json")
        groups = {group["name"]: group for group in json.loads(printed)["groups"]}
        for key in linears(one):
            difference = (two[key] - one[key]).double().numpy()
            a, b = matrices(adapter, key)
            kept = (difference ** 2).sum() - ((difference - b @ a) ** 2).sum()
            most = (np.linalg.svd(difference, compute_uv=False)[:rank] ** 2).sum()
            assert least * most <= kept <= most * (1 + 1e-6), (key, kept / most)
            group = groups[key.split(".")[-2]]
            assert abs(group["kept"] - kept) <= 1e-4 * kept and abs(group["energy"] - (difference ** 2).sum()) <= 1e-5 * group["energy"], (group, kept)
            assert np.allclose((a ** 2).sum(1), (b ** 2).sum(0), rtol=1e-4)  # the values are shared


def targets(run):
    """--target-modules and --matrices-only: what is left out is named."""
    one, two = tensors_of(6), tensors_of(7)
    base, tuned = write(run, "targets_base", one), write(run, "targets_tuned", two)
    adapter, config, _ = extracted(run, "targets", base, tuned, 2, "--target-modules", "q_proj,layers.1.mlp.up_proj", "--matrices-only",
                                   "--dtype", "bfloat16")
    assert {name.split(".lora")[0] for name in adapter} == {
        "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.model.layers.1.self_attn.q_proj",
        "base_model.model.model.layers.1.mlp.up_proj"}
    assert config["target_modules"] == ["model.layers.1.mlp.up_proj", "q_proj"], config
    assert all(value.dtype == torch.bfloat16 for value in adapter.values())
    done = run.run("extract-lora", base, tuned, "-o", run.path("targets2"), "--rank", "2", "--matrices-only", "--target-modules", "q_proj")
    assert "11 tensors differ, and are not in the adapter: model.layers.{0,1}" in done.stderr, done.stderr


def some_layers(run):
    """Modules of which only some differ are named in full; other modules that end alike are not saved."""
    one = tensors_of(8)
    two = dict(one)
    two["model.layers.1.mlp.up_proj.weight"] = one["model.layers.1.mlp.up_proj.weight"] + 1
    two["model.norm.weight"] = one["model.norm.weight"] * 2
    base, tuned = write(run, "some_base", one), write(run, "some_tuned", two)
    adapter, config, _ = extracted(run, "some", base, tuned, 2)
    assert config["target_modules"] == ["model.layers.1.mlp.up_proj"] and config["modules_to_save"] == ["model.norm"], config
    assert len(adapter) == 3 and torch.equal(adapter["base_model.model.model.norm.weight"], two["model.norm.weight"])


def small_sides(run):
    """A layer that is smaller than the rank has a rank of its own."""
    one = tensors_of(9)
    two = {key: value + (torch.randn(value.shape) if key in linears(one) else 0) for key, value in one.items()}
    for tensors in (one, two):
        tensors["model.layers.0.mlp.gate_proj.weight"] = torch.randn(3, 24)
    base, tuned = write(run, "small_base", one), write(run, "small_tuned", two)
    _, config, _ = extracted(run, "small", base, tuned, 8)
    assert config["r"] == 8 and config["rank_pattern"] == config["alpha_pattern"] == {"model.layers.0.mlp.gate_proj": 3}, config
    got = folded(run, "small_again", base, "small")
    near(got["model.layers.0.mlp.gate_proj.weight"], two["model.layers.0.mlp.gate_proj.weight"], 2e-6)


def tied(run):
    """Tied embeddings that were tuned stay tied; a head that was untied is saved."""
    one, two = tensors_of(10, tied=True), tensors_of(11, tied=True)
    base, tuned = write(run, "tied_base", one), write(run, "tied_tuned", two)
    _, config, _ = extracted(run, "tied", base, tuned, 100)
    assert config["ensure_weight_tying"] is True and "lm_head" not in config["modules_to_save"]
    got = folded(run, "tied_again", base, "tied")
    assert set(got) >= set(two)
    for key, value in two.items():
        near(got[key], value, 2e-6)
    three = tensors_of(12)
    tuned = write(run, "untied_tuned", three)
    _, config, _ = extracted(run, "untied", base, tuned, 100)
    assert config["ensure_weight_tying"] is False and "lm_head" in config["modules_to_save"]
    got = folded(run, "untied_again", base, "untied")
    for key, value in three.items():
        near(got[key], value, 2e-6)


def conv1d(run):
    """GPT-2's layers have transposed weights."""
    made = torch.Generator().manual_seed(13)
    one = {"transformer.wte.weight": (WORDS, 12), "transformer.h.0.attn.c_attn.weight": (12, 36), "transformer.h.0.attn.c_attn.bias": (36,),
           "transformer.h.0.mlp.c_fc.weight": (12, 48), "transformer.h.0.mlp.c_fc.bias": (48,), "transformer.ln_f.weight": (12,)}
    one = {key: torch.randn(*shape, generator=made) for key, shape in one.items()}
    two = {key: value + torch.randn(value.shape, generator=made) for key, value in one.items()}
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    base, tuned = write(run, "conv_base", one, **config), write(run, "conv_tuned", two, **config)
    adapter, config, _ = extracted(run, "conv", base, tuned, 12)
    assert config["fan_in_fan_out"] is True
    assert adapter["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"].shape == (12, 12)
    assert adapter["base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"].shape == (36, 12)
    got = folded(run, "conv_again", base, "conv")
    for key, value in two.items():
        near(got[key], value, 4e-6)


def threads(run):
    """The same bytes for any number of threads, and in a resumed job; memory that does not grow with the matrix."""
    one = tensors_of(14, 700, 900, layers=1)
    two = {key: value + torch.randn(value.shape) for key, value in one.items()}
    base, tuned = write(run, "threads_base", one), write(run, "threads_tuned", two)
    contents = [extracted(run, f"threads_{i}", base, tuned, 16, *options)[0]
                for i, options in enumerate((["--threads", "1"], ["--threads", "4"], ["--resume"]))]
    for other in contents[1:]:
        assert set(other) == set(contents[0]) and all(torch.equal(other[key], value) for key, value in contents[0].items())


def refused(run):
    one = tensors_of(15)
    base = write(run, "refused_base", one)
    lacking = {key: value for key, value in one.items() if "norm" not in key}
    only_norm = {**one, "model.norm.weight": one["model.norm.weight"] + 1}
    wide = {**one, "model.norm.weight": torch.ones(7)}
    nan = {**one, "model.layers.0.mlp.up_proj.weight": torch.full((40, 24), float("nan"))}
    cases = {
        "same": (one, ["--rank", "2"], "have the same weights"), "lacking": (lacking, ["--rank", "2"], "'model.layers.0.input_layernorm.weight' is missing in"),
        "only norm": (only_norm, ["--rank", "2"], "no linear layer differs"), "wide": (wide, ["--rank", "2"], "'model.norm.weight' is [24] in"),
        "nan": (nan, ["--rank", "2"], "'model.layers.0.mlp.up_proj.weight' is not finite"),
        "target": ({**one, "model.layers.0.mlp.up_proj.weight": torch.ones(40, 24)}, ["--rank", "2", "--target-modules", "k_proj"],
                   "no linear layer is named 'k_proj'; known: down_proj, q_proj, up_proj"),
        "rank": (one, ["--rank", "0"], "--rank: expected at least 1"), "no rank": (one, [], "missing option '--rank'"),
        "dtype": (one, ["--rank", "1", "--dtype", "int8"], "--dtype: expected float32"),
    }
    for name, (tensors, options, message) in cases.items():
        tuned = write(run, "refused " + name, tensors)
        done = run.run("extract-lora", base, tuned, "-o", run.path("refused"), *options)
        assert done.returncode in (1, 2) and message in done.stderr and done.stderr.startswith("cbk: "), (name, done.stderr)
        assert not os.path.exists(run.path("refused")), name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.cbk, folder)
        for test in (full_rank, low_rank, best_approximation, targets, some_layers, small_sides, tied, conv1d, threads, refused):
            run.check(test.__name__, lambda test=test: test(run))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
