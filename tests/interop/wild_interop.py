#!/usr/bin/python3
"""Checkpoints as people find and make them: what public bug reports are about. Each situation ends in the right values, or in an
error that says what it is.

Usage: wild_interop.py --cbk PATH
"""
import argparse
import collections
import datetime
import decimal
import enum
import functools
import json
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import types
import uuid

import numpy as np
import torch

import safetensors_file
from harness import Run
from meaning import Family, read_written

LLAMA = Family("llama")
CONFIG, WEIGHTS = LLAMA.model("grouped queries, stretched positions")
CONFIG["architectures"] = ["LlamaForCausalLM"]
LOGITS = LLAMA.logits(CONFIG, WEIGHTS)[0]
KEYS = list(WEIGHTS)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def shards(folder, names=SHARDS, index=INDEX, about=None, config=None):
    """A model in two shards; the map of its index."""
    os.makedirs(folder)
    placed = {}
    for i, name in enumerate(names):
        own = KEYS[i::2]
        safetensors_file.save(f"{folder}/{name}", {key: WEIGHTS[key] for key in own})
        placed.update({key: name for key in own})
    write_json(f"{folder}/{index}", {**({} if about is None else {"metadata": about}), "weight_map": placed})
    write_json(f"{folder}/config.json", config or CONFIG)
    return placed


def add_to_shard(folder, number, **tensors):
    own = safetensors_file.load(f"{folder}/{SHARDS[number]}")[0]
    own.update({key.replace("__", "."): value for key, value in tensors.items()})
    safetensors_file.save(f"{folder}/{SHARDS[number]}", own)


# ------------------------------------------------------------------ folders of Hugging Face
def zero_based(d):
    shards(d, ("model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"))


def other_names(d):
    shards(d, ("mtp.safetensors", "pytorch-weights-a.safetensors"))


def extra_tensor(d):
    shards(d)
    add_to_shard(d, 1, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))


def key_in_two_shards(d, change=lambda weight: weight):
    shards(d)
    key = KEYS[0]
    own = safetensors_file.load(f"{d}/{SHARDS[1]}")[0]
    safetensors_file.save(f"{d}/{SHARDS[1]}", {**own, key: change(WEIGHTS[key])})


def consolidated_beside(d):
    shards(d)
    safetensors_file.save(f"{d}/consolidated.safetensors", {"tok_embeddings.weight": WEIGHTS[KEYS[0]]})
    write_json(f"{d}/params.json", {"dim": 32})


def folders_below(d):
    shards(d)
    for name in ("original/model.safetensors", "metal/model.safetensors"):
        os.makedirs(os.path.dirname(f"{d}/{name}"))
        safetensors_file.save(f"{d}/{name}", {"block.0.x": torch.ones(3)})


def variant_alone(d):
    os.makedirs(d)
    safetensors_file.save(f"{d}/model.fp16.safetensors", WEIGHTS)
    write_json(f"{d}/config.json", CONFIG)


def cache(d):
    """A snapshot of links to blobs, as the hub's cache has it."""
    shards(d + "/real")
    os.makedirs(f"{d}/blobs")
    os.makedirs(f"{d}/snapshots/0123abcd")
    for i, name in enumerate(sorted(os.listdir(d + "/real"))):
        os.rename(f"{d}/real/{name}", f"{d}/blobs/{i:064x}")
        os.symlink(f"../../blobs/{i:064x}", f"{d}/snapshots/0123abcd/{name}")
    return f"{d}/snapshots/0123abcd"


def both_formats(d):
    """The same model twice, each time in shards with an index."""
    placed = shards(d)
    for number, name in enumerate(SHARDS):
        torch.save({key: WEIGHTS[key] * 2 for key in KEYS[number::2]}, f"{d}/pytorch_{name[:-len('safetensors')]}bin")
    write_json(f"{d}/pytorch_model.bin.index.json", {"weight_map": {key: f"pytorch_{name[:-len('safetensors')]}bin" for key, name in placed.items()}})


def pickles_beside(d):
    shards(d)
    torch.save({key: value * 2 for key, value in WEIGHTS.items()}, f"{d}/pytorch_model.bin")


GOOD_FOLDERS = {
    "pickles beside safetensors": pickles_beside, "pickles beside safetensors, in shards": both_formats,
    "two shards": lambda d: shards(d) and None, "numbers from 0": zero_based, "other names of shards": other_names,
    "an underscore": lambda d: shards(d, ("model_00001-of-00002.safetensors", "model_00002-of-00002.safetensors")) and None,
    "a wrong total": lambda d: shards(d, about={"total_size": 12345}) and None, "a total of a float": lambda d: shards(d, about={"total_size": 5e4}) and None,
    "a total of text": lambda d: shards(d, about={"total_size": "12345"}) and None, "a tensor that the index lacks": extra_tensor,
    "a key in two shards": key_in_two_shards, "consolidated.safetensors beside": consolidated_beside, "checkpoints in folders below": folders_below,
    "a variant alone": variant_alone, "a variant in shards": lambda d: shards(d, index="model.safetensors.index.fp16.json") and None,
    "a cache of the hub": cache,
}


def stale_index(d):
    placed = shards(d)
    write_json(f"{d}/{INDEX}", {"weight_map": {key: f"model-{i % 4 + 1:05}-of-00004.safetensors" for i, key in enumerate(placed)}})


def wrong_shard(d):
    placed = shards(d)
    write_json(f"{d}/{INDEX}", {"weight_map": {**placed, KEYS[0]: SHARDS[1]}})


def two_spellings(d):
    placed = shards(d)
    write_json(f"{d}/{INDEX}", {"weight_map": {**placed, KEYS[0]: "./" + placed[KEYS[0]]}})


def endless_twice(d):
    """Of a few bytes: to compare them all would take an hour."""
    os.makedirs(d)
    write_json(f"{d}/config.json", CONFIG)
    for name in "ab":
        torch.save({"k": torch.zeros(1).expand(10**12), name: torch.ones(1)}, f"{d}/{name}.bin")
    write_json(f"{d}/pytorch_model.bin.index.json", {"weight_map": {"k": "a.bin", "a": "a.bin", "b": "b.bin"}})


def without_shard(d):
    shards(d)
    os.remove(f"{d}/{SHARDS[1]}")


def incomplete_download(d):
    shards(d)
    os.rename(f"{d}/{SHARDS[1]}", f"{d}/{SHARDS[1]}.incomplete")


def cut_shard(d):
    shards(d)
    os.truncate(f"{d}/{SHARDS[1]}", os.path.getsize(f"{d}/{SHARDS[1]}") - 100)


def pointer(d):
    shards(d)
    write_text(f"{d}/{SHARDS[1]}", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 4976698672\n")


def web_page(d):
    os.makedirs(d)
    write_json(f"{d}/config.json", CONFIG)
    write_text(f"{d}/model.safetensors", "<!doctype html>\n<html><head><title>Access denied</title></head></html>\n")


def stray_file(d):
    shards(d)
    safetensors_file.save(f"{d}/model.safetensors", {key: value * 2 for key, value in WEIGHTS.items()})


BAD_FOLDERS = {
    "an index of another download": (stale_index, "4 of 4 shards are missing"), "an index with the wrong shard": (wrong_shard, "lacks a key that the index lists"),
    "another tensor of a listed name": (lambda d: key_in_two_shards(d, lambda weight: weight * 2), "has another "),
    "a shard under two spellings": (two_spellings, "names one file as"), "endless tensors in two shards": (endless_twice, "has another 'k'"),
    "a missing shard": (without_shard, f"missing: '{SHARDS[1]}'"), "an incomplete download": (incomplete_download, f"missing: '{SHARDS[1]}'"),
    "a shard that is cut": (cut_shard, "cut short"), "a pointer of Git LFS": (pointer, "git lfs pull"), "a web page": (web_page, "web page"),
    "a file beside the shards": (stray_file, "several checkpoints"),
}


def folders(run):
    for name, make in GOOD_FOLDERS.items():
        def test(make=make, name=name):
            d = run.path(name)
            said = run.call("convert", make(d) or d, "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar")
            LLAMA.same_in_model_zoo(LOGITS, said)
        run.check(name, test)
    for name, (make, why) in BAD_FOLDERS.items():
        def test(make=make, why=why, name=name):
            d = run.path(name)
            make(d)
            for command in (["convert", d, "--to", "cs-2.9", "-o", d + ".out"], ["copy", d, d + ".bin"], ["stats", d]):
                done = run.run(*command)
                assert done.returncode in (1, 2) and why in done.stderr, f"{command[0]}: {done.stderr}"
            assert not os.path.exists(d + ".out") and not os.path.exists(d + ".bin")
        run.check(name, test)


# ------------------------------------------------------------------ names that training wrappers leave
def inside_layers(name):
    return {re.sub(r"^(model\.layers\.\d+\.)", r"\1" + name, key): value for key, value in WEIGHTS.items()}


def with_prefix(prefix):
    return {prefix + key: value for key, value in WEIGHTS.items()}


WRAPPED = {
    "torch.compile": with_prefix("_orig_mod."), "DDP": with_prefix("module."), "DDP of compiled": with_prefix("module._orig_mod."),
    "FSDP": with_prefix("_fsdp_wrapped_module."), "compiled layers": inside_layers("_orig_mod."), "Fabric": with_prefix("_forward_module."),
    "checkpointed layers": inside_layers("_checkpoint_wrapped_module."), "Lightning": {"state_dict": with_prefix("model."), "epoch": 1},
    "a dict with the model": {"model": WEIGHTS, "step": 5}, "PEFT's wrapper": with_prefix("base_model.model."),
    "DeepSpeed's container": {"module": WEIGHTS, "global_steps": 5, "optimizer": None}, "a value head": {**with_prefix("pretrained_model."), "v_head.summary.weight": torch.zeros(1, 32)},
}


def follow(run, text, checkpoint, new):
    """Runs the `cbk copy` that a message gives."""
    command = re.search(r"`cbk (copy CHECKPOINT (\w+) [^`]*)`", text)
    if not command:
        return False
    words = [word.strip("'") for word in command.group(1).split()]
    run.call(*[{"CHECKPOINT": checkpoint, command.group(2): new}.get(word, word) for word in words])
    return True


def wrappers(run):
    """The model inside is converted, or what `convert` advises makes it so."""
    for name, content in WRAPPED.items():
        def test(name=name, content=content):
            d = run.path(name)
            os.makedirs(d)
            write_json(f"{d}/config.json", CONFIG)
            checkpoint = f"{d}/pytorch_model.bin"
            torch.save(content, checkpoint)
            for dropping in ([], ["--drop-unmatched-keys"]):
                for step in range(3):
                    done = run.run("convert", checkpoint, "--config", f"{d}/config.json", "--model", "llama", "--to", "cs-2.9", "-o", f"{d}/out{step}{len(dropping)}",
                                   "--no-progress-bar", *dropping)
                    if done.returncode == 0:
                        LLAMA.same_in_model_zoo(LOGITS, done.stdout)
                        break
                    assert "drop-unmatched" not in done.stderr, done.stderr
                    new = f"{d}/step{step}{len(dropping)}.bin"
                    if not follow(run, done.stderr, checkpoint, new):
                        break
                    checkpoint = new
            identified = run.run("identify", d)
            assert "drop-unmatched" not in identified.stdout, identified.stdout
            new = f"{d}/identified.bin"
            if follow(run, identified.stdout, d, new):
                said = run.call("convert", new, "--config", f"{d}/config.json", "--model", "llama", "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar")
                LLAMA.same_in_model_zoo(LOGITS, said)
            checked = run.run("check", d)
            if name == "a value head":
                assert checked.returncode == 1 or "are not checked against it" in checked.stdout, "check calls it clean"
            else:
                assert checked.returncode == 0 and "the names are those without" in checked.stdout, checked.stdout
                assert "model    llama" in identified.stdout and "`cbk copy" not in identified.stdout, identified.stdout
        run.check("wrapped: " + name, test)


# ------------------------------------------------------------------ foreign objects beside the weights
def stand_in(module, name, base=(object,), **members):
    """A class of a module that is not here."""
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    made = type(name, base, {"__module__": module, "__qualname__": name, **members})
    setattr(sys.modules[module], name, made)
    return made


class Mode(enum.Enum):
    MIN = 1


def beside():
    """What trainers keep beside the weights."""
    attributes, node = stand_in("lightning_fabric.utilities.data", "AttributeDict", (dict,)), stand_in("omegaconf.nodes", "AnyNode")()
    node.__dict__.update(_val=0.1)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    return {
        "a dict's subclass": attributes(lr=1e-3), "a namespace": argparse.Namespace(lr=[0.1]), "a path": pathlib.PosixPath("/data"), "an enum": Mode.MIN,
        "omegaconf": node, "a partial": functools.partial(torch.nn.functional.gelu), "a function": torch.nn.functional.mse_loss, "a class": torch.optim.AdamW,
        "a date": datetime.datetime(2025, 1, 2), "a counter": collections.Counter(a=3), "an id": uuid.UUID(int=5), "a decimal": decimal.Decimal("0.1"),
        "a number of NumPy": np.float64(0.5), "random states": [np.random.get_state(), random.getstate(), torch.get_rng_state()],
        "a generator": np.random.RandomState(3), "a module": torch.nn.Sequential(torch.nn.Linear(4, 3)), "an optimizer": optimizer.state_dict(),
        "a schedule": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10).state_dict(), "Python's own": [None, (1, (2,)), 1 << 80, {1}, 1j, b"\0", range(3)],
        "a slice": slice(1, 2), "an ellipsis": ...,
    }


def foreign_objects(run):
    """The two weights are read, or the refusal names the class; nothing is executed."""
    for name, value in beside().items():
        def test(name=name, value=value):
            path, out = run.path(name + ".ckpt"), run.path(name + ".safetensors")
            torch.save({"state_dict": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3)}, "beside": value}, path)
            for options in ([], ["--allow-records"]):
                done = run.run("copy", path, out, "--include", "state_dict", "--rename", "state_dict.*=*", "--overwrite", *options)
                if done.returncode == 0:
                    assert {k: v.tolist() for k, v in read_written(out).items()} == {"w": torch.arange(12.0).reshape(3, 4).tolist(), "b": [1.0] * 3}
                else:
                    assert re.search("which (is|are) not plain data; nothing was executed|items are set in a", done.stderr), done.stderr
                    assert not os.path.exists(out)
        run.check("beside the weights: " + name, test)


# ------------------------------------------------------------------ single files
def safetensors_bytes(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin, end, dtype="F32", shape=(1,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


FILES = {
    "null as metadata": (safetensors_bytes({"__metadata__": None, "a": entry(0, 4)}, bytes(4)), None),
    "a number in metadata": (safetensors_bytes({"__metadata__": {"step": 5}, "a": entry(0, 4)}, bytes(4)), "only text is allowed"),
    "a hole": (safetensors_bytes({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)), "a hole"),
    "bytes at the end": (safetensors_bytes({"a": entry(0, 4)}, bytes(8)), "follow the last tensor"),
    "a name twice": (safetensors_bytes(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)), "repeated"),
    "two names of the same bytes": (safetensors_bytes({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)), "overlaps"),
    "a dtype of later": (safetensors_bytes({"a": entry(0, 1, "I4", (2,))}, bytes(1)), "unknown dtype 'I4'"),
    "no tensors": (safetensors_bytes({}, b""), None),
    "odd names": (safetensors_bytes({"a/b": entry(0, 4), "größe": entry(4, 8), "模型": entry(8, 12), "with space": entry(12, 16)}, bytes(16)), None),
}


def files(run):
    for name, (content, why) in FILES.items():
        def test(name=name, content=content, why=why):
            path = run.path(name + ".safetensors")
            with open(path, "wb") as file:
                file.write(content)
            out = run.path(name + ".copy.safetensors")
            done = run.run("copy", path, out)
            if why:
                assert done.returncode == 1 and why in done.stderr, done.stderr
                assert run.run("check", path).returncode == 1
            else:
                assert done.returncode == 0, done.stderr
                got, want = safetensors_file.load(out), safetensors_file.load(path)
                assert {k: v.tolist() for k, v in got[0].items()} == {k: v.tolist() for k, v in want[0].items()}
        run.check("safetensors: " + name, test)


# ------------------------------------------------------------------ configs
def plain_fields(**fields):
    return {**CONFIG, **fields}


# Fields of families that compute otherwise, under the names of those that do not: refused, or the model means what LLaMA's class says.
FOREIGN_FIELDS = {"multipliers": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}, "layers without positions": {"no_rope_layers": [1, 0]},
                  "norms of heads": {"use_qk_norm": True}, "scales of MiniCPM": {"scale_emb": 12, "scale_depth": 1.4}}
UNKNOWN = {"llama4": "llama4", "gpt_oss": "gpt_oss", "qwen3_vl": "qwen3_vl", "deepseek_v3": "deepseek_v3", "gemma3_text": "gemma3_text", "mistral3": "mistral3"}


def configs(run):
    def folder(name, config, tensors):
        d = run.path(name)
        os.makedirs(d)
        write_json(f"{d}/config.json", config)
        safetensors_file.save(f"{d}/model.safetensors", tensors)
        return d

    for name, fields in FOREIGN_FIELDS.items():
        def test(name=name, fields=fields):
            d = folder(name, plain_fields(**fields), WEIGHTS)
            done = run.run("convert", d, "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar")
            assert all(field in done.stderr for field in fields), f"not a word of them: {done.stderr}"
            if done.returncode == 0:
                LLAMA.same_in_model_zoo(LOGITS, done.stdout)
        run.check("config: " + name, test)
    for model_type, named in UNKNOWN.items():
        def test(model_type=model_type, named=named):
            d = folder("unknown " + model_type, plain_fields(model_type=model_type, architectures=["OtherForCausalLM"]), WEIGHTS)
            done = run.run("convert", d, "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar", "--drop-unmatched-keys")
            assert done.returncode != 0 and named in done.stderr, done.stderr
            assert not os.path.exists(d + ".out")
        run.check("config: the model " + model_type, test)

    def old_buffers():
        """LLaMA's first checkpoints hold the frequencies of positions."""
        buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
        d = folder("inv_freq", CONFIG, {**WEIGHTS, **buffers})
        LLAMA.same_in_model_zoo(LOGITS, run.call("convert", d, "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar"))
    run.check("config: frequencies as buffers", old_buffers)

    def classifiers():
        """No class of the Model Zoo: the head must not be made at random."""
        body = {key: value for key, value in WEIGHTS.items() if key != "lm_head.weight"}
        for head, kind in (("score", "SequenceClassification"), ("score", "TokenClassification"), ("qa_outputs", "QuestionAnswering")):
            d = folder(kind, plain_fields(architectures=["LlamaFor" + kind]), {**body, head + ".weight": torch.ones(1, 32)})
            for options in ([], ["--drop-unmatched-keys"]):
                done = run.run("convert", d, "--to", "cs-2.9", "-o", d + ".out", "--no-progress-bar", *options)
                assert done.returncode != 0 and f"{head}.weight" in done.stderr and "LlamaFor" + kind in done.stderr, done.stderr
                assert "drop-unmatched" not in done.stderr and not os.path.exists(d + ".out"), done.stderr
            assert "drop-unmatched" not in run.run("identify", d).stdout
    run.check("config: classifiers", classifiers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    folder = tempfile.mkdtemp()
    run = Run(options.cbk, folder)
    try:
        for part in (folders, wrappers, foreign_objects, files, configs):
            part(run)
    finally:
        shutil.rmtree(folder)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
