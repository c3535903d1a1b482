#!/usr/bin/python3
"""LoRA adapters in PEFT's files, folded by cbk, against modules that add the low-rank product as PEFT's layers do, in PyTorch.

Usage: peft_interop.py --cbk PATH
"""
import argparse
import itertools
import json
import math
import os
import random
import re
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Run  # noqa: E402  pylint: disable=wrong-import-position
from safetensors_interop import content, read_safetensors, write_safetensors  # noqa: E402  pylint: disable=wrong-import-position

WIDTH, INNER, WORDS = 8, 12, 10
LINEARS = {"attn.q_proj": (WIDTH, WIDTH), "mlp.up": (INNER, WIDTH), "mlp.down": (WIDTH, INNER)}


def base_model(layers=2):
    torch.manual_seed(1)
    out = {"model.embed_tokens.weight": torch.randn(WORDS, WIDTH)}
    for i in range(layers):
        for name, (rows, columns) in LINEARS.items():
            out[f"model.layers.{i}.{name}.weight"] = torch.randn(rows, columns)
            out[f"model.layers.{i}.{name}.bias"] = torch.randn(rows)
    return out


def rank_of(config, module, patterns, usual):
    for pattern, value in config.get(patterns, {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):  # peft.utils.other.get_pattern_key
            return value
    return config[usual]


def adapter_for(base, config, modules):
    """Tensors with PEFT's names, and the scale of each module."""
    tensors, scales = {}, {}
    for module in modules:
        rank, alpha = rank_of(config, module, "rank_pattern", "r"), rank_of(config, module, "alpha_pattern", "lora_alpha")
        rows, columns = base[module + ".weight"].shape
        if config.get("fan_in_fan_out"):
            rows, columns = columns, rows
        scales[module] = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        if "embed" in module:
            tensors[f"base_model.model.{module}.lora_embedding_A"] = torch.randn(rank, rows)
            tensors[f"base_model.model.{module}.lora_embedding_B"] = torch.randn(columns, rank)
        else:
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, columns)
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, rank)
    return tensors, scales


def write(run, name, config, tensors):
    folder = run.path(name)
    os.makedirs(folder)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True, "lora_dropout": 0.05, **config}, file)
    torch.save(tensors, os.path.join(folder, "adapter_model.bin"))
    return folder


def close(a, b):
    assert a.dtype == b.dtype, (a.dtype, b.dtype)
    assert torch.allclose(a, b, rtol=2e-5, atol=2e-5), (a - b).abs().max()


def conv1d(name):
    for old, new in {"attn.q_proj": "attn.c_attn", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}.items():
        name = name.replace(old, new)
    return name


def outputs_agree(run, name, config, modules, fan=False):
    """Each module's output, with the product added as PEFT's forward does, and with the folded weight."""
    base = base_model()
    if "model.embed_tokens" in modules:  # without a head, a config would have to say whether it is tied
        base[HEAD] = torch.randn(WORDS, WIDTH)
    if fan:  # transformers' Conv1D has these names
        base = {conv1d(key): value.t().contiguous() if value.dim() == 2 and "embed" not in key else value for key, value in base.items()}
        modules = [conv1d(name) for name in modules]
    tensors, scales = adapter_for(base, config, modules)
    torch.save(base, run.path(name + ".bin"))
    run.call("fold-lora-checkpoint", "--adapter", write(run, name, config, tensors), run.path(name + ".bin"), "-o",
             run.path(name + "_merged.bin"), "--no-progress-bar")
    merged = torch.load(run.path(name + "_merged.bin"), weights_only=True)
    assert list(merged) == list(base)
    for key, weight in base.items():
        module = key[:-len(".weight")]
        if not key.endswith(".weight") or module not in scales:
            assert torch.equal(merged[key], weight), key
        elif "embed" in module:
            a, b = (tensors[f"base_model.model.{module}.lora_embedding_{letter}"] for letter in "AB")
            ids = torch.arange(WORDS)
            want = weight[ids] + torch.nn.functional.embedding(ids, a.t()) @ b.t() * scales[module]
            close(merged[key][ids], want)
        else:
            a, b = (tensors[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
            x = torch.randn(5, a.shape[1])
            want = x @ (weight if fan else weight.t()) + x @ a.t() @ b.t() * scales[module]
            close(x @ (merged[key] if fan else merged[key].t()), want)


def replaced(run):
    """modules_to_save, a trained bias, and a head that is new."""
    base, config = base_model(1), {"r": 2, "lora_alpha": 4, "modules_to_save": ["score", "embed_tokens"]}
    tensors, _ = adapter_for(base, config, ["model.layers.0.mlp.up"])
    more = {"model.embed_tokens.weight": torch.randn(WORDS, WIDTH), "model.layers.0.mlp.up.base_layer.bias": torch.randn(INNER),
            "score.weight": torch.randn(3, WIDTH)}
    tensors.update({"base_model.model." + key: value for key, value in more.items()})
    torch.save(base, run.path("replaced.bin"))
    run.call("fold-lora-checkpoint", "--adapter", write(run, "replaced", config, tensors), run.path("replaced.bin"), "-o",
             run.path("replaced_merged.bin"), "--no-progress-bar")
    merged = torch.load(run.path("replaced_merged.bin"), weights_only=True)
    for key, value in more.items():
        assert torch.equal(merged[key.replace(".base_layer", "")], value), key


HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
NEW = {HEAD: 2.0, EMBED: 3.0}


def tied_adapter(kind, trained, base):
    """An adapter of the head or the embeddings, by LoRA or saved whole; and what the adapted model has for them."""
    config, tensors, want = {"r": 2, "lora_alpha": 4}, {}, {}
    up, _ = adapter_for(base, config, ["model.layers.0.mlp.up"])
    tensors.update(up)
    for key in trained:
        module, old = key[:-len(".weight")], base[EMBED]
        if kind == "save":
            want[key] = torch.full_like(old, NEW[key])
            tensors["base_model.model." + key] = want[key]
            config["modules_to_save"] = config.get("modules_to_save", []) + [module.split(".")[-1]]
        else:
            a, b = torch.randn(2, WORDS if key == EMBED else WIDTH), torch.randn(WIDTH if key == EMBED else WORDS, 2)
            names = ("lora_embedding_A", "lora_embedding_B") if key == EMBED else ("lora_A.weight", "lora_B.weight")
            tensors.update({f"base_model.model.{module}.{name}": value for name, value in zip(names, (a, b))})
            update = (b @ a).t() if key == EMBED else b @ a
            want[key] = old + 2 * update
    return config, tensors, want


def tied(run, name, kind, trained, form, settings):
    """A head that is the embedding: what the adapter trained of the two changes, as in the adapted model; then they are two, and
    the config says so. With ensure_weight_tying they stay one."""
    base = base_model(1)
    config, tensors, want = tied_adapter(kind, trained, base)
    folder = run.path(name)
    os.makedirs(folder)
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "tie_word_embeddings": True}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(fields, file)
    if form == "shared":
        torch.save({**base, HEAD: base[EMBED]}, os.path.join(folder, "pytorch_model.bin"))
    elif form == "copies":
        kept = {**base, HEAD: base[EMBED]}
        write_safetensors(os.path.join(folder, "model.safetensors"), {key: content(value) for key, value in kept.items()}, {"format": "pt"})
    elif form == "alias":
        kept = {**base, HEAD: base[EMBED]}
        del kept[EMBED]
        write_safetensors(os.path.join(folder, "model.safetensors"), {key: content(value) for key, value in kept.items()},
                          {"format": "pt", EMBED: HEAD})
    else:
        torch.save(base, os.path.join(folder, "pytorch_model.bin"))
    adapter = write(run, name + "_adapter", {**config, **settings}, tensors)
    done = run.run("fold-lora-checkpoint", "--adapter", adapter, folder, "-o", run.path(name + "_out"), "--no-progress-bar")
    assert done.returncode == 0, done.stderr
    stays = settings and len(trained) == 1
    got = folder_of(run.path(name + "_out"))
    for key in (HEAD, EMBED):
        expected = want[trained[0]] if stays else want.get(key, base[EMBED])
        if key in got or not stays:
            close(got[key], expected)
    with open(run.path(name + "_out/config.json"), encoding="utf-8") as file:
        assert json.load(file) == {**fields, "tie_word_embeddings": bool(stays)}
    assert stays or f"the adapter's weights untie '{HEAD}' from '{EMBED}'" in done.stderr, done.stderr
    one = run.run("fold-lora-checkpoint", "--adapter", adapter, folder, "-o", run.path(name + "_one.bin"), "--no-progress-bar")
    assert one.returncode == 0 and (stays or "needs tie_word_embeddings: false" in one.stderr), one.stderr


def folded_folder(run, name, fields, base, config, tensors):
    """What folding an adapter into a base folder gives: the tensors, the config, and what was said."""
    folder = run.path(name)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(fields, file)
    torch.save(base, os.path.join(folder, "pytorch_model.bin"))
    done = run.run("fold-lora-checkpoint", "--adapter", write(run, name + "_adapter", config, tensors), folder, "-o", run.path(name + "_out"))
    assert done.returncode == 0, done.stderr
    with open(run.path(name + "_out/config.json"), encoding="utf-8") as file:
        return folder_of(run.path(name + "_out")), json.load(file), done.stderr


def saved_below(run):
    """PEFT saves embeddings and heads that it adapts whole, beside their matrices: the product is added to what was saved."""
    base = {**base_model(1), HEAD: torch.randn(WORDS, WIDTH)}
    config, tensors, want = tied_adapter("lora", [EMBED, HEAD], base)
    want[HEAD] = want[HEAD] - base[EMBED] + base[HEAD]
    trained = {EMBED: base[EMBED] + 1, HEAD: base[HEAD]}
    for key, value in trained.items():
        tensors["base_model.model." + key.replace(".weight", ".base_layer.weight")] = value
    got, _, _ = folded_folder(run, "below", {"model_type": "llama", "tie_word_embeddings": False}, base, config, tensors)
    close(got[EMBED], want[EMBED] + 1)
    close(got[HEAD], want[HEAD])


def saved_below_a_tie(run):
    """Loading such embeddings writes into the parameter that the tied head shares: the head is what was saved, without the product."""
    base = base_model(1)
    config, tensors, want = tied_adapter("lora", [EMBED], base)
    saved = torch.randn_like(base[EMBED])
    tensors["base_model.model." + EMBED.replace(".weight", ".base_layer.weight")] = saved
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    got, fields, said = folded_folder(run, "below_tie", fields, base, config, tensors)
    close(got[EMBED], want[EMBED] - base[EMBED] + saved)
    close(got[HEAD], saved)
    assert fields["tie_word_embeddings"] is False and "untie" in said, (fields, said)


def tied_by_default(run):
    """Where a config says nothing, its class does: GPT-2's head is tied, LLaMA's is not; a model that is unknown is as transformers has it."""
    for kind, is_tied in {"gpt2": True, "gemma2": True, "llama": False, "unheard": True}.items():
        base = {**base_model(1), HEAD: base_model(1)[EMBED].clone()}
        config, tensors, want = tied_adapter("lora", [HEAD], base)
        got, fields, said = folded_folder(run, "default_" + kind, {"model_type": kind}, base, config, tensors)
        close(got[HEAD], want[HEAD])
        close(got[EMBED], base[EMBED])
        assert fields == ({"model_type": kind, "tie_word_embeddings": False} if is_tied else {"model_type": kind}), fields
        assert ("untie" in said) == is_tied, said


def tied_and_different(run):
    """A base model that contradicts its config: its weights are written as they are, and both commands that change it say so."""
    base = {**base_model(1), HEAD: torch.randn(WORDS, WIDTH)}
    up, _ = adapter_for(base, {"r": 2, "lora_alpha": 4}, ["model.layers.0.mlp.up"])
    fields = {"model_type": "llama", "tie_word_embeddings": True}
    got, config, said = folded_folder(run, "contradiction", fields, base, {"r": 2, "lora_alpha": 4}, up)
    assert config == fields and torch.equal(got[HEAD], base[HEAD]) and torch.equal(got[EMBED], base[EMBED])
    assert f"'{EMBED}' differs from '{HEAD}', though the config ties them; the values are not changed" in said, said
    _, _, said = folded_folder(run, "agreement", fields, {**base, HEAD: base[EMBED]}, {"r": 2, "lora_alpha": 4}, up)
    assert "differs" not in said, said


def not_folded(run, name, fields, base, config, tensors, words):
    """What cannot be folded is an error that says why, and leaves nothing."""
    folder = run.path(name)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(fields, file)
    torch.save(base, os.path.join(folder, "pytorch_model.bin"))
    done = run.run("fold-lora-checkpoint", "--adapter", write(run, name + "_adapter", config, tensors), folder, "-o", run.path(name + "_out"))
    assert done.returncode == 1 and words in done.stderr and not os.path.exists(run.path(name + "_out")), (name, done.stderr)


def unknown_ties(run):
    """Of a class whose head has a name that is not known, neither the tied embeddings nor the head can be trained."""
    words = "has a row for each word"
    for kind, klass, embedding, head in [
        ("distilbert", "DistilBertForMaskedLM", "distilbert.embeddings.word_embeddings", "vocab_projector"),
        ("albert", "AlbertForMaskedLM", "albert.embeddings.word_embeddings", "predictions.decoder"),
        ("whisper", "WhisperForConditionalGeneration", "model.decoder.embed_tokens", "proj_out"),
        ("mamba", "MambaForCausalLM", "backbone.embeddings", "lm_head"),
    ]:
        table = torch.randn(WORDS, WIDTH)
        layer = torch.randn(INNER, WIDTH)
        base = {embedding + ".weight": table, "layers.0.up.weight": layer}
        fields = {"model_type": kind, "architectures": [klass], "vocab_size": WORDS}
        up, _ = adapter_for(base, {"r": 2, "lora_alpha": 4}, ["layers.0.up"])
        a, b = torch.randn(2, WORDS), torch.randn(WIDTH, 2)
        trained = {**up, f"base_model.model.{embedding}.lora_embedding_A": a, f"base_model.model.{embedding}.lora_embedding_B": b}
        settings = {"r": 2, "lora_alpha": 4}
        not_folded(run, kind, fields, base, settings, trained, words)
        saved = {**up, f"base_model.model.{head}.weight": table + 1}
        whole = {**settings, "modules_to_save": [head.split(".")[-1]]}
        if kind not in ("mamba", "albert"):  # whose heads have usual names
            not_folded(run, kind + "_head", fields, base, whole, saved, words)
            not_folded(run, kind + "_stored", fields, {**base, head + ".weight": table.clone()}, whole, saved, words)
        got, config, _ = folded_folder(run, kind + "_untied", {**fields, "tie_word_embeddings": False}, base, settings, trained)
        close(got[embedding + ".weight"], table + 2 * (b @ a).t())
        assert config["tie_word_embeddings"] is False


def bare_body(run):
    """The files of openai-community/gpt2 and the like have no prefix: beside a head that was trained, their keys get it."""
    for kind, klass, embedding, prefix in [("gpt2", "GPT2LMHeadModel", "wte", "transformer."), ("bloom", "BloomForCausalLM",
                                           "word_embeddings", "transformer."), ("qwen2", "Qwen2ForCausalLM", "embed_tokens", "model.")]:
        base = {embedding + ".weight": torch.randn(WORDS, WIDTH), "h.0.up.weight": torch.randn(INNER, WIDTH)}
        fields = {"model_type": kind, "architectures": [klass], "vocab_size": WORDS, "tie_word_embeddings": True}
        up, _ = adapter_for(base, {"r": 2, "lora_alpha": 4}, ["h.0.up"])
        a, b = torch.randn(2, WIDTH), torch.randn(WORDS, 2)
        trained = {**up, "base_model.model.lm_head.lora_A.weight": a, "base_model.model.lm_head.lora_B.weight": b}
        got, config, said = folded_folder(run, "bare_" + kind, fields, base, {"r": 2, "lora_alpha": 4}, trained)
        assert set(got) == {HEAD} | {prefix + key for key in base}, set(got)
        close(got[HEAD], base[embedding + ".weight"] + 2 * b @ a)
        close(got[prefix + embedding + ".weight"], base[embedding + ".weight"])
        assert config["tie_word_embeddings"] is False and f"get the prefix '{prefix}'" in said, said
        got, _, said = folded_folder(run, "plain_" + kind, fields, base, {"r": 2, "lora_alpha": 4}, up)
        assert set(got) == set(base) and "prefix" not in said, set(got)


def pattern_rule(run):
    """Patterns and names at random: a module fits where PEFT's regular expression does."""
    rng, cases = random.Random(7), []
    while len(cases) < 3000:
        pattern = "".join(rng.choice([r"\d+", ".*", r"\.", "a", "b", "1", "11", "a1", r"\.a"]) for _ in range(rng.randint(1, 4)))
        name = "".join(rng.choice(["a", "b", "1", "2", ".", "11", "a1"]) for _ in range(rng.randint(1, 7)))
        if pattern.count(r"\d+") > 3 or ".." in name or name[0] == "." or name[-1] == ".":
            continue
        whole = rng.random() < 0.1
        cases.append([("^" if whole else "") + pattern, name, bool(re.match(("" if whole else r"(.*\.)?") + f"({pattern})$", name))])
    with open(run.path("patterns.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file)
    with open(run.path("patterns.lua"), "w", encoding="utf-8") as file:
        file.write("""local cbk = require "cbk"
local settings = require "cbk.peft.settings"
for _, case in ipairs(cbk.totable(cbk.config.load(arg[1]))) do
  local one = settings.of(cbk.dict { peft_type = "LORA", rank_pattern = cbk.dict { [case[1]] = 5 } })
  if settings.fits(one.ranks[1], case[2]) ~= case[3] then error(case[1] .. " of " .. case[2]) end
end
""")
    run.call("run", run.path("patterns.lua"), run.path("patterns.json"))


def hard_patterns(run):
    """Patterns of modules that a matcher with backtracking would try for years; what is between `.*` is found all the same."""
    name = "a" * 60
    base = {name + ".weight": torch.randn(INNER, WIDTH)}
    a, b = torch.randn(2, WIDTH), torch.randn(INNER, 2)
    tensors = {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
    for number, (pattern, alpha) in enumerate([(".*a" * 25 + "b", 4), (".*a" * 25, 8), (r"\d+.*", 4), ("a.*a.*" * 10, 8), ("^a.*", 8), ("b.*", 4), (".*", 8)]):
        config = {"r": 2, "lora_alpha": 4, "alpha_pattern": {pattern: 8}}
        got, _, _ = folded_folder(run, f"hard_{number}", {"model_type": "llama"}, base, config, tensors)
        close(got[name + ".weight"], base[name + ".weight"] + alpha / 2 * (b @ a))


def one_weight_twice(run):
    """Two modules of an adapter that are one weight of the base model, names of modules in memory, and a flag that is a text."""
    base, config = {"layers.0.mlp.up.weight": torch.randn(INNER, WIDTH), "norm.weight": torch.randn(WIDTH)}, {"r": 2, "lora_alpha": 4}
    a, b = torch.randn(2, WIDTH), torch.randn(INNER, 2)
    both = {f"base_model.model.{name}.layers.0.mlp.up.lora_{letter}.weight": value
            for name in ("model", "draft") for letter, value in (("A", a), ("B", b))}
    fields = {"model_type": "llama"}
    not_folded(run, "twice", fields, base, config, both, "'draft.layers.0.mlp.up.weight' and 'model.layers.0.mlp.up.weight' would both change")
    one = {key: value for key, value in both.items() if "draft" not in key}
    whole = {**one, "base_model.model.draft.norm.weight": torch.ones(WIDTH), "base_model.model.model.norm.weight": torch.ones(WIDTH)}
    not_folded(run, "twice_whole", fields, base, config, whole, "would both change 'norm.weight'")
    two = {**{re.sub("(lora_[AB])", r"\1.second", key): value for key, value in one.items()},
           "base_model.model.model.norm.modules_to_save.first.weight": torch.ones(WIDTH)}
    not_folded(run, "two_adapters", fields, base, config, two, "the file has two adapters")
    empty = {key: torch.zeros(0) for key in one}
    not_folded(run, "empty", fields, base, config, empty, "DeepSpeed's ZeRO 3")
    for number in (float("nan"), float("inf"), 0, -1, "2"):
        for field in ("alpha_pattern", "rank_pattern"):
            not_folded(run, f"{field}_{number}", fields, base, {**config, field: {"up": number}}, one, "expected a number above 0")
    for flag in ("use_rslora", "fan_in_fan_out", "ensure_weight_tying"):
        not_folded(run, flag, fields, base, {**config, flag: "true"}, one, f'{flag}="true": expected true or false')


def merged_by_hand(base, tensors, scales):
    """The folded weights of linear layers, by their keys."""
    product = lambda module: tensors[f"base_model.model.{module}.lora_B.weight"] @ tensors[f"base_model.model.{module}.lora_A.weight"]
    return {module + ".weight": base[module + ".weight"] + scale * product(module) for module, scale in scales.items()}


def names_in_memory(run):
    """Names that PEFT has in memory, prefixes that the base model's files lack or have, and those that transformers renames."""
    base, config = {**base_model(), "model.norm.weight": torch.zeros(WIDTH)}, {"r": 2, "lora_alpha": 4}
    modules = ["model.layers.0.mlp.up", "model.layers.1.mlp.down"]
    tensors, scales = adapter_for(base, config, modules)
    wanted = merged_by_hand(base, tensors, scales)
    saved = {"base_model.model.model.norm.weight": torch.ones(WIDTH)}

    def folded(name, change_adapter, change_base, files=None):
        adapter = {change_adapter(key): value for key, value in {**tensors, **saved}.items()}
        return folded_folder(run, name, files or {"model_type": "llama"}, {change_base(key): value for key, value in base.items()}, config, adapter)
    in_memory = lambda key: re.sub(r"\.(lora_[AB])\.weight$", r".\1.default.weight", key).replace(".norm.weight", ".norm.modules_to_save.default.weight")
    cases = {
        "in_memory": (in_memory, lambda key: key, None),
        "without_prefix": (lambda key: key.replace("base_model.model.model.", "base_model.model."), lambda key: key, "'…' there is 'model.…' here"),
        "with_more": (lambda key: key.replace("base_model.model.model.", "base_model.model.outer.inner.model."), lambda key: key, "'outer.inner.…' there is '…' here"),
        "renamed": (lambda key: key.replace("base_model.model.model.", "base_model.model.model.language_model."), lambda key: "language_model." + key,
                    "'model.language_model.…' there is 'language_model.model.…' here"),
        "renamed_since": (lambda key: key.replace("base_model.model.model.", "base_model.model.language_model.model."),
                          lambda key: key.replace("model.", "model.language_model.", 1), "'language_model.model.…' there is 'model.language_model.…' here"),
        "of_text_alone": (lambda key: key, lambda key: key.replace("model.", "model.language_model.", 1), "'model.…' there is 'model.language_model.…' here"),
        "for_text_alone": (lambda key: key.replace("base_model.model.model.", "base_model.model.model.language_model."), lambda key: key,
                           "'model.language_model.…' there is 'model.…' here"),
    }
    for name, (change_adapter, change_base, text) in cases.items():
        got, _, said = folded(name, change_adapter, change_base)
        assert (text in said) if text else "differ" not in said, said
        for key, value in wanted.items():
            close(got[change_base(key)], value)
        assert torch.equal(got[change_base("model.norm.weight")], saved["base_model.model.model.norm.weight"]), name
    of_trainer = run.path("of_trainer.ckpt")
    torch.save({"state_dict": {"model." + key: value for key, value in base.items()}, "epoch": 3, "optimizer_states": [{"state": {0: torch.ones(3)}}]}, of_trainer)
    run.call("fold-lora-checkpoint", "--adapter", write(run, "of_trainer", config, tensors), of_trainer, "-o", run.path("of_trainer.bin"))
    got = torch.load(run.path("of_trainer.bin"))
    for key, value in wanted.items():
        close(got[key], value)
    double = {**base, **{"draft." + key: value for key, value in base.items()}}
    not_folded(run, "ambiguous", {"model_type": "llama"}, double, config, {key.replace("base_model.model.model.", "base_model.model."): value for key, value in tensors.items()},
               "the base model lacks 2 weights")


def resized(run):
    """Embeddings and head of another number of words replace the base model's, and the config says so."""
    base, config = base_model(), {"r": 2, "lora_alpha": 4, "modules_to_save": ["embed_tokens", "lm_head"]}
    base["lm_head.weight"] = torch.randn(10, WIDTH)
    tensors, scales = adapter_for(base, config, ["model.layers.1.mlp.up"])
    wanted = merged_by_hand(base, tensors, scales)
    for rows in (13, 7):
        both = {"base_model.model.model.embed_tokens.weight": torch.randn(rows, WIDTH), "base_model.model.lm_head.weight": torch.randn(rows, WIDTH)}
        got, fields, said = folded_folder(run, f"resized_{rows}", {"model_type": "llama", "vocab_size": 10, "tie_word_embeddings": False}, base, config, {**tensors, **both})
        assert fields["vocab_size"] == rows and f"{rows} words" in said, (fields, said)
        for key, value in both.items():
            assert torch.equal(got[key.removeprefix("base_model.model.")], value), key
        for key, value in wanted.items():
            close(got[key], value)
        for key, value in both.items():
            not_folded(run, f"half_{rows}_{key[-16:]}", {"model_type": "llama", "vocab_size": 10, "tie_word_embeddings": False}, base, config, {**tensors, key: value}, "has only one of them")
    got, fields, said = folded_folder(run, "resized_tied", {"model_type": "llama", "vocab_size": 10, "tie_word_embeddings": True},
                                      {key: value for key, value in base.items() if key != "lm_head.weight"}, config, {**tensors, **both})
    assert fields["vocab_size"] == rows and fields["tie_word_embeddings"] is False and got["lm_head.weight"].shape[0] == rows, fields


def head_of_an_encoder(run):
    """BERT's head is `decoder`, tied to the embeddings by default."""
    words, head = "bert.embeddings.word_embeddings", "cls.predictions.decoder"
    base = {words + ".weight": torch.randn(WORDS, WIDTH)}
    base[head + ".weight"] = base[words + ".weight"].clone()
    a, b = torch.randn(2, WIDTH), torch.randn(WORDS, 2)
    tensors = {f"base_model.model.{head}.lora_A.weight": a, f"base_model.model.{head}.lora_B.weight": b}
    got, fields, _ = folded_folder(run, "bert_head", {"model_type": "bert"}, base, {"r": 2, "lora_alpha": 4}, tensors)
    close(got[head + ".weight"], base[head + ".weight"] + 2 * (b @ a))
    close(got[words + ".weight"], base[words + ".weight"])
    assert fields == {"model_type": "bert", "tie_word_embeddings": False}, fields


def anchored_patterns(run):
    """`^` excludes modules with a longer name."""
    names = ("model.layers.0.mlp.up", "tower.model.layers.0.mlp.up")
    base = {name + ".weight": torch.randn(INNER, WIDTH) for name in names}
    config = {"r": 2, "lora_alpha": 4, "alpha_pattern": {"^model.layers.0.mlp.up": 64, "^up": 8}}
    tensors, _ = adapter_for(base, {"r": 2, "lora_alpha": 4}, names)
    got, _, _ = folded_folder(run, "anchored", {"model_type": "llama"}, base, config, tensors)
    for name, scale in zip(names, (32, 2)):
        a, b = (tensors[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
        close(got[name + ".weight"], base[name + ".weight"] + scale * (b @ a))


def transposed_by_class(run):
    """The module says whether its weight is transposed; PEFT's config has fan_in_fan_out of the last module alone."""
    names = {"gpt2": ("attn.c_proj", True), "jais": ("mlp.c_fc2", True), "gpt_bigcode": ("attn.c_proj", False), "llama": ("attn.q_proj", False)}
    for (kind, (name, is_transposed)), said in itertools.product(names.items(), (False, True)):
        base, module = {"x.y": torch.ones(1)}, "model.layers.0." + name
        base[module + ".weight"] = torch.randn(WIDTH, WIDTH)
        if name != "attn.q_proj":  # the layer that shows what they are
            base.update({"h.0.mlp.c_fc.weight": torch.ones((WIDTH, INNER) if is_transposed else (INNER, WIDTH)), "h.0.mlp.c_fc.bias": torch.ones(INNER)})
        config = {"r": 2, "lora_alpha": 4, "fan_in_fan_out": said}
        a, b = torch.randn(2, WIDTH), torch.randn(WIDTH, 2)
        tensors = {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
        got, _, _ = folded_folder(run, f"square_{kind}_{said}", {"model_type": kind}, base, config, tensors)
        product = 2 * (b @ a)
        close(got[module + ".weight"], base[module + ".weight"] + (product.t() if is_transposed else product))


def absent_heads(run):
    """The head that files lack has its own name, where its embeddings are trained."""
    cases = {
        "bert.embeddings.word_embeddings": ("bert", "BertForMaskedLM", "cls.predictions.decoder"),
        "roberta.embeddings.word_embeddings": ("roberta", "RobertaForMaskedLM", "lm_head.decoder"),
        "gpt_neox.embed_in": ("gpt_neox", "GPTNeoXForCausalLM", "embed_out"),
        "model.language_model.embed_tokens": ("llava", "LlavaForConditionalGeneration", "lm_head"),
        "language_model.model.embed_tokens": ("llava", "LlavaForConditionalGeneration", "language_model.lm_head"),
        "transformer.wte": ("gpt2", "GPT2LMHeadModel", "lm_head"),
    }
    for i, (words, (kind, architecture, head)) in enumerate(cases.items()):
        base = {words + ".weight": torch.randn(WORDS, WIDTH)}
        a, b = torch.randn(2, WORDS), torch.randn(WIDTH, 2)
        tensors = {f"base_model.model.{words}.lora_embedding_A": a, f"base_model.model.{words}.lora_embedding_B": b}
        fields = {"model_type": kind, "architectures": [architecture], "tie_word_embeddings": True}
        got, after, _ = folded_folder(run, f"absent_{i}", fields, base, {"r": 2, "lora_alpha": 4}, tensors)
        assert set(got) == {words + ".weight", head + ".weight"}, list(got)
        close(got[head + ".weight"], base[words + ".weight"])
        close(got[words + ".weight"], base[words + ".weight"] + 2 * (b @ a).t())
        assert after["tie_word_embeddings"] is False


def without_config(run):
    """A folder of weights alone stays one."""
    base, config = base_model(1), {"r": 2, "lora_alpha": 4}
    tensors, _ = adapter_for(base, config, ["model.layers.0.mlp.up"])
    os.makedirs(run.path("bare"))
    torch.save(base, run.path("bare/pytorch_model.bin"))
    run.call("fold-lora-checkpoint", "--adapter", write(run, "bare_adapter", config, tensors), run.path("bare"), "-o", run.path("bare_out"))
    assert set(folder_of(run.path("bare_out"))) == set(base)


def embeddings_without_config(run):
    """Whether a head that is not in the file is tied to trained embeddings, only a config says."""
    base, config = base_model(1), {"r": 2, "lora_alpha": 4}
    tensors, _ = adapter_for(base, config, ["model.embed_tokens"])
    folder = run.path("unsaid")
    os.makedirs(folder)
    torch.save(base, os.path.join(folder, "pytorch_model.bin"))
    words = ["fold-lora-checkpoint", "--adapter", write(run, "unsaid_adapter", config, tensors), folder, "-o", run.path("unsaid_out")]
    done = run.run(*words)
    assert done.returncode == 1 and "no config says whether one is tied" in done.stderr, done.stderr
    assert "put the base model's config.json beside it" in done.stderr and not os.path.exists(run.path("unsaid_out"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}, file)
    run.call(*words)
    assert set(folder_of(run.path("unsaid_out"))) == {*base, HEAD}


def new_head(run):
    base, module = base_model(1), "model.layers.0.mlp.up"
    tensors, _ = adapter_for(base, {"r": 2, "lora_alpha": 4}, [module])
    tensors["base_model.model.score.weight"] = torch.randn(3, WIDTH)
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
    got, after, said = folded_folder(run, "score", fields, base, {"r": 2, "lora_alpha": 4}, tensors)
    assert "score.weight" in got and after == fields
    assert "does not have: score.weight; the config still says architectures=LlamaForCausalLM" in said, said


def scaled_head(run):
    """T5 scales a tied head: an adapter of it, or of the embeddings, cannot be folded, however the files have them."""
    shared = torch.randn(WORDS, WIDTH)
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    bases = {"alone": {names[0]: shared}, "copies": {name: shared.clone() for name in names}, "one": {name: shared for name in names}}
    for (form, base), key in itertools.product(bases.items(), (names[0], names[3])):
        folder = run.path(f"t5_{form}_{key}")
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, file)
        torch.save({**base, "x.weight": torch.ones(WIDTH, WIDTH)}, os.path.join(folder, "pytorch_model.bin"))
        tensors = {"base_model.model.x.lora_A.weight": torch.ones(2, WIDTH), "base_model.model.x.lora_B.weight": torch.ones(WIDTH, 2),
                   "base_model.model." + key: torch.randn(WORDS, WIDTH)}
        adapter = write(run, f"t5_{form}_{key}_adapter", {"r": 2, "lora_alpha": 4}, tensors)
        done = run.run("fold-lora-checkpoint", "--adapter", adapter, folder, "-o", run.path("t5_out"))
        assert done.returncode == 1 and "that encoder, decoder and head share" in done.stderr, done.stderr
        assert not os.path.exists(run.path("t5_out"))


def folder_of(path):
    """All tensors of a folder of shards, or of one file."""
    out = {}
    for name in os.listdir(path):
        if name.endswith(".bin"):
            out.update(torch.load(os.path.join(path, name), weights_only=True))
        elif name.endswith(".safetensors"):
            for key, (_, shape, raw) in read_safetensors(os.path.join(path, name))[1].items():
                out[key] = torch.from_numpy(np.frombuffer(raw, np.float32).copy()).reshape(shape)
    return out


def folders(run):
    """A folder of shards in, a folder of shards out, with the files beside it."""
    base, config = base_model(), {"r": 2, "lora_alpha": 4}
    tensors, _ = adapter_for(base, config, ["model.layers.1.mlp.up"])
    source = run.path("sharded")
    os.makedirs(source)
    torch.save(base, os.path.join(source, "pytorch_model.bin"))
    for name, text in {"config.json": '{"model_type": "llama"}', "tokenizer.json": "{}", "notes.txt": "no"}.items():
        with open(os.path.join(source, name), "w", encoding="utf-8") as file:
            file.write(text)
    adapter = write(run, "sharded_adapter", config, tensors)
    with open(os.path.join(adapter, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write('{"of": "adapter"}')
    for folder, name in ((source, "rag"), (source, "tool_use"), (adapter, "rag")):
        os.makedirs(os.path.join(folder, "additional_chat_templates"), exist_ok=True)
        with open(os.path.join(folder, "additional_chat_templates", name + ".jinja"), "w", encoding="utf-8") as file:
            file.write(f"{name} of {os.path.basename(folder)}")
    done = run.run("fold-lora-checkpoint", "--adapter", adapter, source, "-o", run.path("out"), "--shard-size", "1KB", "--no-progress-bar")
    assert done.returncode == 0, done
    templates = {}
    for name in os.listdir(run.path("out/additional_chat_templates")):
        with open(run.path("out/additional_chat_templates/" + name), encoding="utf-8") as file:
            templates[name] = file.read()
    assert templates == {"rag.jinja": "rag of sharded_adapter", "tool_use.jinja": "tool_use of sharded"}, templates
    with open(run.path("out/pytorch_model.bin.index.json"), encoding="utf-8") as file:
        files = set(json.load(file)["weight_map"].values())
    assert len(files) > 1
    merged = {}
    for name in files:
        merged.update(torch.load(run.path("out/" + name), weights_only=True))
    assert set(merged) == set(base)
    with open(run.path("out/tokenizer.json"), encoding="utf-8") as file:
        assert json.load(file) == {"of": "adapter"}
    assert os.path.exists(run.path("out/config.json")) and not os.path.exists(run.path("out/notes.txt"))


REFUSED = {
    "use_dora": ({"use_dora": True}, {}, "DoRA rescales"),
    "peft_type": ({"peft_type": "IA3"}, {}, "only LORA"),
    "unknown": ({"layer_replication": [[0, 2]]}, {}, "layer_replication=[[0, 2]] is not supported"),
    "a map": ({"some_new_config": {"scale": 3}}, {}, "some_new_config={"),
    "pissa": ({"init_lora_weights": "pissa"}, {}, "changes the base model"),
    "regex": ({"rank_pattern": {"(q|k)_proj": 4}}, {}, "regular expression '(q|k)_proj'"),
    "rank": ({"r": 3}, {}, "do not have the rank 3"),
    "magnitude": ({}, {"base_model.model.model.layers.0.mlp.up.lora_magnitude_vector": torch.ones(INNER)}, "lora_magnitude_vector"),
    "stranger": ({}, {"base_model.model.other.x.lora_A.weight": torch.ones(2, 8), "base_model.model.other.x.lora_B.weight": torch.ones(8, 2)},
                 "the base model lacks 1 weight that the adapter adapts: other.x.weight"),
    "half": ({}, {"base_model.model.model.layers.0.mlp.down.lora_A.weight": torch.ones(2, INNER)}, "but not lora_B"),
    "shape": ({}, {"base_model.model.model.embed_tokens.weight": torch.ones(11, WIDTH + 1)}, "is [11, 9] in the adapter, but [10, 8]"),
    "whole and matrices": ({}, {"base_model.model.model.layers.0.mlp.up.weight": torch.ones(INNER, WIDTH)}, "both a whole"),
    "nan": ({}, {"base_model.model.model.layers.0.mlp.up.lora_B.weight": torch.full((INNER, 2), float("nan"))}, "24 NaN"),
}


def refused(run, name, changes, more, message):
    base, config = base_model(1), {"r": 2, "lora_alpha": 4}
    tensors, _ = adapter_for(base, config, ["model.layers.0.mlp.up"])
    tensors.update(more)
    torch.save(base, run.path(f"refused_{name}.bin"))
    out = run.path(f"refused_{name}_merged.bin")
    done = run.run("fold-lora-checkpoint", "--adapter", write(run, "refused_" + name, {**config, **changes}, tensors),
                   run.path(f"refused_{name}.bin"), "-o", out)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert not os.path.exists(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.cbk, folder)
        every = [f"model.layers.{i}.{name}" for i in range(2) for name in LINEARS]
        plain = {"r": 2, "lora_alpha": 3}
        for name, config, modules, fan in [
            ("plain", plain, every, False), ("embedding", plain, ["model.embed_tokens", *every[:2]], False),
            ("stabilized", {**plain, "r": 4, "use_rslora": True}, every, False),
            ("patterns", {**plain, "rank_pattern": {"mlp.up": 4, r"model.layers.0.attn.q_proj": 1, r"layers\.\d+\.mlp\.down": 3},
                          "alpha_pattern": {"^model.layers.1.mlp.up": 7}}, every, False),
            ("conv1d", {**plain, "fan_in_fan_out": True}, every, True),
        ]:
            run.check(name, lambda n=name, c=config, m=modules, f=fan: outputs_agree(run, n, c, m, f))
        for action in (replaced, folders, scaled_head, saved_below, saved_below_a_tie, tied_by_default, tied_and_different, unknown_ties, bare_body, pattern_rule, hard_patterns, one_weight_twice, names_in_memory, resized, transposed_by_class, new_head, head_of_an_encoder,
                       anchored_patterns, absent_heads, without_config, embeddings_without_config):
            run.check(action.__name__, lambda a=action: a(run))
        for kind, trained, form, settings in itertools.product(
                ("lora", "save"), ([HEAD], [EMBED], [HEAD, EMBED]), ("shared", "alias", "copies", "absent"), ({}, {"ensure_weight_tying": True})):
            name = "_".join(["tied", kind, *(key.split(".")[-2] for key in trained), form, *settings])
            run.check(name, lambda a=(name, kind, trained, form, settings): tied(run, *a))
        for name, (changes, more, message) in REFUSED.items():
            run.check("refused: " + name, lambda n=name, c=changes, m=more, t=message: refused(run, n, c, m, t))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
