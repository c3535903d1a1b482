#!/usr/bin/python3
"""All advice that messages give is followed, on the input that provoked it: what comes of it is right, or a further clear error.

A situation is a command that ends in an error or a warning. Each option and each command line that its message advises is tried:
the command again with the option, or the advised command and then the first one on its output. Where a file comes out, the
situation's check looks at its values. At the end the sources are searched for advice that no situation has heard.

Usage: advice_interop.py --cbk PATH [NAME]
"""
import argparse
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import uuid

import h5py
import numpy as np
import torch

import safetensors_file
from logits_interop import read_h5
from meaning import Family, read_written

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLAMA, GPT2 = Family("llama"), Family("gpt2")
CONFIG, WEIGHTS = LLAMA.model("grouped queries, stretched positions")
LOGITS = LLAMA.logits(CONFIG, WEIGHTS)[0]
RAW = re.compile(r"\.lua:\d|attempt to |\[string|C\+\+ exception|Traceback")


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


# ------------------------------------------------------------------ what a message advises
class Advice:
    """Follow-up commands, each a list of commands; the first command's words are `words`."""

    def __init__(self, values):
        self.values = {"SIZE": "100GB", "cs-X.Y": "cs-2.5", **values}

    def value(self, option, given):
        """What to pass: as the situation knows, or as the message says."""
        if option in self.values:
            return [self.values[option]]
        return [self.values.get(given, given)] if given else []

    def options(self, text, words):
        """The command again, with each option that the message mentions as a remedy."""
        found = re.finditer(r"(?:\b(?:add|pass|use|with|name \w+(?: \w+)? with|adding|allows|and|or|again,|\() ?|; |, )['`]?(--[a-z][a-z_-]*)"
                            r"(?: (?!(?:to|or|and|is|in|if|for|with|adds|takes|reads|lists|allows|leaves|stores|shows|from|on|has|names|chooses|draws|in)\b)([\w.*/-]+))?", text)
        for match in found:
            option, given = match.group(1), match.group(2)
            value = self.value(option, given)
            if option not in words:
                yield [[*words, option, *value]]
            elif value:
                at = words.index(option)
                yield [[*words[:at], option, *value, *words[at + 2:]]]

    def commands(self, text, words, checkpoint, new):
        """Command lines in quotes; of a template, CHECKPOINT is the input and the capitals behind it are the output."""
        for match in re.finditer(r"`cbk ([a-z-]+ [^`]*)`|'cbk ([a-z-]+ [^`]*?)'(?=[;,. )]|$)", text):
            line = match.group(1) or match.group(2)
            if line.startswith("help") or re.fullmatch(r"[a-z-]+( --help)?", line):
                continue
            parts = shlex.split(line)
            parts = [{"CHECKPOINT": checkpoint, "NEW": new, "FLAT": new}.get(part, part) for part in parts]
            if new in parts:
                yield [parts, [new if word == checkpoint else word for word in words]]
            elif parts[0] == words[0] and len(parts) > 1 and not parts[1].startswith("-"):
                yield [parts]

    def all(self, text, words, checkpoint, new):
        return [*self.options(text, words), *self.commands(text, words, checkpoint, new)]


# ------------------------------------------------------------------ situations
class Situations:
    def __init__(self, cbk, folder):
        self.cbk, self.folder, self.heard, self.passed, self.failed, self.count, self.followed = os.path.abspath(cbk), folder, [], 0, 0, 0, 0

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, *words):
        done = subprocess.run([self.cbk, *words], capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        text = done.stdout + done.stderr
        self.heard.append(text)
        assert done.returncode in (0, 1, 2), f"status {done.returncode}: {text}"
        assert not RAW.search(text), f"a raw error: {text}"
        return done.returncode, text

    def situation(self, name, words, says, check=None, values=None, checkpoint=None, status=None, least=1):
        """`words` with OUT in the place of the output. `says`: what the message has to have. `check(path)` looks at what is written.
        `values`: what to pass to options that are advised without a value, and what to put for the message's placeholders."""
        try:
            self.count += 1
            out = self.path(f"out{self.count}")
            code, text = self.run(*[word.replace("OUT", out) for word in words])
            assert re.search(says, text), f"expected /{says}/, found: {text.strip()[-600:]}"
            assert status is None or code == status, f"status {code}: {text}"
            assert "unknown option" not in text
            ways = Advice(values or {}).all(text, list(words), checkpoint or words[1], self.path(f"new{self.count}.bin"))
            assert len(ways) >= least, f"nothing to follow in: {text.strip()}"
            for number, way in enumerate(ways):
                self.follow(name, way, f"{out}-{number}", check)
            self.passed += 1
        except Exception as problem:  # pylint: disable=broad-except
            self.failed += 1
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:700]}")

    def follow(self, name, way, out, check):
        self.followed += 1
        for words in way:
            words = [word.replace("OUT", out) for word in words]
            if words[0] in ("convert", "copy", "fold-lora-checkpoint"):
                words.append("--no-progress-bar")
            code, text = self.run(*words)
            assert not re.search("unknown option|unexpected|too many arguments|missing option", text), f"advice that is no command: {words}: {text.strip()}"
            if code != 0:
                assert re.search("^cbk|\ncbk", text), f"no clear error: {words}: {text.strip()}"
                return
        written = [p for p in (out, *(out + s for s in (".bin", ".safetensors", ".mdl", ".npy", ".npz", ".pt"))) if os.path.exists(p)]
        if check and written:
            check(written[0])


def folder(s, name, config, tensors, file="pytorch_model.bin"):
    d = s.path(name)
    os.makedirs(d)
    if config:
        write_json(d + "/config.json", config)
    if file.endswith(".safetensors"):
        safetensors_file.save(f"{d}/{file}", tensors)
    else:
        torch.save(tensors, f"{d}/{file}")
    return d


def is_llama(path):
    """The output folder of a conversion to the Model Zoo."""
    names = os.listdir(path)
    config, checkpoint = (os.path.join(path, next(n for n in names if n.endswith(end))) for end in (".yaml", ".mdl"))
    LLAMA.same_in_model_zoo(LOGITS, f"Config saved to {config}\nCheckpoint saved to {checkpoint}")


def convert(d, *more):
    return ["convert", d, "--to", "cs-2.9", "-o", "OUT", *more]


def conversions(s):
    good = folder(s, "good", CONFIG, WEIGHTS)
    config = good + "/config.json"
    alone = folder(s, "alone", None, WEIGHTS)
    s.situation("no config", convert(alone, "--model", "llama", "--src-fmt", "hf"), "with --config", is_llama, {"--config": config})
    two = folder(s, "two", CONFIG, WEIGHTS)
    shutil.copy(config, two + "/other_config.json")
    os.rename(two + "/config.json", two + "/one_config.json")
    s.situation("no config.json", convert(two, "--model", "llama"), "name it with --config", is_llama, {"--config": config})
    for name, content in {"body": {k.replace("model.", "", 1): v for k, v in WEIGHTS.items()},
                          "part": {k.replace("model.", "model.language_model.", 1): v for k, v in WEIGHTS.items()}}.items():
        d = folder(s, name, CONFIG, content)
        s.situation("keys " + name, convert(d, "--model", "llama", "--config", config), "cbk copy CHECKPOINT", is_llama)
        s.situation("keys identified: " + name, ["identify", d], "cbk copy", None, least=0)
    other = folder(s, "other", {**CONFIG, "model_type": "mistral"}, WEIGHTS)
    s.situation("another model", convert(other, "--model", "llama", "--src-fmt", "hf", "--config", other + "/config.json"), "use --model mistral", None)
    few = folder(s, "few", CONFIG, {**WEIGHTS, "v_head.weight": torch.ones(1, 32)})
    s.situation("a foreign key", convert(few), "add --drop-unmatched-keys", is_llama)
    renamed = folder(s, "renamed", CONFIG, {k.replace("norm.weight", "norm.wieght") if k == "model.norm.weight" else k: v for k, v in WEIGHTS.items()})
    s.situation("a weight has another name", convert(renamed, "--model", "llama", "--config", config), "rename", is_llama, least=0)
    os.makedirs(s.path("taken"))
    s.run("convert", good, "--to", "cs-2.9", "-o", s.path("taken"))
    s.situation("output exists", ["convert", good, "--to", "cs-2.9", "-o", s.path("taken")], "add --overwrite", lambda _: is_llama(s.path("taken")))
    s.situation("output exists, dry", ["convert", good, "--to", "cs-2.9", "-o", s.path("taken"), "--dry-run"], "add --overwrite", None)
    s.situation("the same format", ["convert", good, "--to", "hf", "-o", "OUT"], "in hf already; choose --to cs-", is_llama, {"--to": "cs-2.9"}, least=0)
    checkpoint = next(s.path("taken", n) for n in os.listdir(s.path("taken")) if n.endswith(".mdl"))
    params = next(s.path("taken", n) for n in os.listdir(s.path("taken")) if n.endswith(".yaml"))
    s.situation("the wrong release", ["convert", checkpoint, "--config", params, "--model", "llama", "--src-fmt", "cs-2.0", "--tgt-fmt", "hf", "-o", "OUT"], "--src-fmt", None)
    two_releases = s.path("two_releases.yaml")
    with open(params, encoding="utf-8") as old, open(two_releases, "w", encoding="utf-8") as new:
        new.write(old.read() + "\ncsconfig:\n  a: 1\nmodel:\n  use_bfloat16: true\n")
    s.situation("a config of another release", ["convert", checkpoint, "--config", two_releases, "--model", "llama", "--to", "hf", "-o", "OUT"],
                "is of 2.9 .*use_bfloat16|is of different releases", None)
    s.situation("options of the other direction", convert(good, "--single-file"), "--single-file is ignored", is_llama, least=0)
    s.situation("a checkpoint of Hugging Face", convert(good, "--src-fmt", "cs-2.5"), "use --src-fmt hf", is_llama)
    unknown = folder(s, "unknown", {**CONFIG, "model_type": "xyz", "architectures": ["XyzForCausalLM"]}, WEIGHTS)
    s.situation("an unknown model_type", convert(unknown), "--config", is_llama, {"--config": config, "--model": "llama"})
    other_shape = folder(s, "wider", {**CONFIG, "hidden_size": 64}, WEIGHTS)
    s.situation("a config of other sizes", convert(other_shape), "--config", is_llama, {"--config": config, "--model": "llama"}, least=0)
    s.situation("the parameters of an unknown model", ["params", unknown + "/config.json"], "--model", None, {"--model": "llama"}, least=0)
    s.situation("a format of the other side", ["params", params, "--format", "hf"], "use --src-fmt cs-X.Y", None)
    s.situation("a format of the other side, hf", ["params", config, "--format", "cs-2.5"], "use --src-fmt hf", None)
    strange = folder(s, "strange", CONFIG, {"x.y": torch.ones(2), "z": torch.ones(2)})
    s.situation("tensors of nothing known", convert(strange), "name the model with --model", is_llama, {"--config": config, "--model": "llama"})
    zoo = s.path("below.mdl")
    torch.save({"state_dict": read_h5(checkpoint)}, zoo)
    s.situation("a Model Zoo's weights below another name", ["convert", zoo, "--config", params, "--model", "llama", "--src-fmt", "cs-2.9", "--to", "hf", "-o", "OUT"],
                "below|expected a Cerebras checkpoint", None, least=0)
    lacking = folder(s, "lacking", CONFIG, {k: v for k, v in WEIGHTS.items() if k != "model.norm.weight"})
    s.situation("a weight is missing", convert(lacking, "--model", "llama", "--config", config), "use a complete checkpoint", None, least=0)
    partial = folder(s, "partial", CONFIG, {"state_dict": {k: v for k, v in WEIGHTS.items() if k != "model.norm.weight"}})
    s.situation("a part of a model below a name", convert(partial, "--model", "llama", "--config", config), "use a complete checkpoint", None, least=0)
    many = folder(s, "many", CONFIG, {**WEIGHTS, **{f"x{name}.weight": torch.ones(2) for name in "abcdef"}})
    s.situation("many foreign keys", convert(many, "--model", "llama", "--config", config), "check with `cbk identify`", None, least=0)
    os.makedirs(s.path("yamls"))
    s.run("copy", checkpoint, s.path("yamls", "x.mdl"), "--exclude", "__metadata__")  # which has its own config
    for name in ("a", "b"):
        shutil.copy(params, s.path("yamls", name + ".yaml"))
    s.situation("two YAML files", ["convert", s.path("yamls", "x.mdl"), "--src-fmt", "cs-2.9", "--to", "hf", "-o", "OUT"], "name one with --config|--config", None, {"--config": params}, least=0)
    s.situation("two YAML files, the model given", ["convert", s.path("yamls", "x.mdl"), "--model", "llama", "--src-fmt", "cs-2.9", "--to", "hf", "-o", "OUT"], "--config", None, {"--config": params}, least=0)
    s.situation("a config of the Model Zoo", ["convert", good, "--config", params, "--model", "llama", "--src-fmt", "hf", "--to", "cs-2.9", "-o", "OUT"],
                "pass its format", None, {"--src-fmt": "hf"}, least=0)
    s.situation("a stated release", ["convert", checkpoint, "--config", params, "--model", "llama", "--src-fmt", "cs-2.5", "--tgt-fmt", "hf", "-o", "OUT"], "--src-fmt", None, least=0)
    return good, checkpoint, params


def copies(s):
    d = s.path("copies")
    os.makedirs(d)

    def file(name, tensors, save=torch.save):
        save(tensors, f"{d}/{name}")
        return f"{d}/{name}"

    plain = file("plain.pt", {"a": torch.arange(6.0), "b": torch.ones(2, 3)})
    half = {"a": torch.arange(6.0).to(torch.bfloat16)}

    def has(**want):
        def check(path):
            got = read_written(path) if not path.endswith((".npy", ".npz", ".mdl", ".pt")) else torch.load(path) if path.endswith(".pt") else None
            if path.endswith(".npy"):
                got = {"a": torch.from_numpy(np.load(path))}
            if path.endswith(".mdl"):
                with h5py.File(path) as f:
                    got = {k: torch.from_numpy(f[k][()]) for k in f}
            for key, value in want.items():
                assert (key in got) == (value is not None), f"{key} in {sorted(got)}"
                assert value is None or torch.equal(got[key].float(), value.float()), f"{key} is {got[key]}"
        return check

    s.situation("several tensors for .npy", ["copy", plain, "OUT.npy"], "choose one with --include", has(a=torch.arange(6.0)), {"--include": "a"})
    s.situation("bfloat16 for NumPy", ["copy", file("half.pt", half), "OUT.npy"], "--to-dtype float32", has(a=torch.arange(6.0)))
    s.situation("no format", ["copy", plain, "OUT"], "--format", None, {"--format": "torch"}, least=0)
    s.situation("an existing file", ["copy", plain, plain], "--overwrite", None)
    big = file("big.pt", {"a": torch.tensor([1e30, 1.0])})
    s.situation("values that overflow", ["copy", big, "OUT.pt", "--to-dtype", "float16"], "--allow-overflow", has(a=torch.tensor([float("inf"), 1.0])))
    wide = file("wide.pt", {str(i): torch.zeros(1024).expand(1 << 20, 1024) for i in range(5)})
    s.situation("a repeated value", ["copy", wide, "OUT.pt", "--dry-run"], "--max-expansion", None, {"SIZE": "100GB"})
    records = file("records.pt", {"w": torch.ones(3), "args": argparse.Namespace(lr=1)})
    s.situation("instances of classes", ["copy", records, "OUT.pt"], "--allow-records", has(w=torch.ones(3)))
    s.situation("instances in safetensors", ["copy", records, "OUT.safetensors", "--allow-records"], "cbk copy --exclude", has(w=torch.ones(3)), {"--exclude": "args", "--include": "w"}, least=0)
    cut = d + "/cut.pt"
    torch.save({"a": torch.arange(1000.0), "b": torch.arange(1000.0)}, cut)
    os.truncate(cut, os.path.getsize(cut) - 4500)
    s.situation("a file that is cut", ["copy", cut, "OUT.pt"], "cbk copy --salvage", None, least=0)
    old = d + "/old.pt"
    torch.save({"a": torch.arange(1000.0), "b": torch.arange(1000.0)}, old, _use_new_zipfile_serialization=False)
    os.truncate(old, os.path.getsize(old) - 100)
    cut_too = d + "/cut.safetensors"
    safetensors_file.save(cut_too, {"a": torch.arange(1000.0), "b": torch.arange(1000.0)})
    os.truncate(cut_too, os.path.getsize(cut_too) - 100)
    s.situation("numbers of a file that is cut", ["stats", cut_too], "cbk copy --salvage", None, least=0)
    s.situation("an old file that is cut", ["copy", old, "OUT.pt"], "cbk copy --salvage", None, least=0)
    float8 = d + "/float8.safetensors"
    safetensors_file.save(float8, {"a": torch.ones(2), "q": ("F8_E4M3", [2], b"\0\0")})
    s.situation("float8 in H5", ["copy", float8, "OUT.mdl"], "HDF5 has no type for", has(a=torch.ones(2)), {"--exclude": "q"}, least=0)
    wide_integers = file("uint16.safetensors", {"a": torch.ones(2), "u": ("U16", [2], b"\1\0\2\0")}, lambda content, path: safetensors_file.save(path, content))
    s.situation("unsigned numbers in H5 0.5", ["copy", wide_integers, "OUT.mdl"], "which H5 0.5 has no form for", has(a=torch.ones(2)), {"--exclude": "u"}, least=0)
    s.situation("a class that is made of arguments", ["copy", file("uuid.pt", {"w": torch.ones(3), "id": uuid.UUID(int=5)}), "OUT.pt", "--allow-records"],
                "leave it out|cbk copy --exclude|Copied|saved", has(w=torch.ones(3)), {"--exclude": "id"}, least=0)
    s.situation("nothing is left", ["copy", plain, "OUT.pt", "--include", "a", "--exclude", "a"], "--exclude leaves out all of them", None, least=0)
    s.situation("no key matches", ["copy", plain, "OUT.pt", "--include", "c"], "matches --include", None, least=0)
    s.situation("a rename without effect", ["copy", plain, "OUT.pt", "--rename", "x=y"], "changes no key", None, least=0)
    external = d + "/external.h5"
    os.makedirs(d + "/elsewhere")
    with open(d + "/elsewhere/data.raw", "wb") as f:
        f.write(struct.pack("<4f", 1, 2, 3, 4))
    with h5py.File(external, "w") as f:
        f.create_dataset("a", (4,), "<f4", external=[(d + "/elsewhere/data.raw", 0, 16)])
    s.situation("external data", ["copy", external, "OUT.pt"], "--allow-external", has(a=torch.tensor([1.0, 2, 3, 4])), {"--allow-external": d + "/elsewhere"})


def looking(s, good, checkpoint):
    model = good + "/pytorch_model.bin"
    s.situation("no tensor is chosen", ["stats", model, "--key", "nothing"], "'cbk ls' lists", None, least=0)
    s.situation("a key as a file", ["stats", model, "lm_head.weight"], "a key is chosen with --key", None)
    s.situation("no such key to plot", ["plot", model, "nothing"], "'cbk ls' lists", None, least=0)
    s.situation("a plot of many layers", ["plot", model, "model.layers.*.self_attn.q_proj.weight"], "--by-layer", None)
    s.situation("one config for two files", ["check", model, model, "--config", good + "/config.json"], "give one FILE", None, least=0)
    s.situation("one config for two files, identify", ["identify", model, model, "--config", good + "/config.json"], "give one FILE", None, least=0)
    s.situation("an unknown suffix of a tensor", ["export", model, "lm_head.weight", "-o", "OUT.xyz"], "pass --format", None, {"--format": "npy"})
    s.situation("no H5", ["h5-to-tensorflow", model, s.path("tf")], "'cbk copy' reads others", None, least=0)
    s.situation("no TensorFlow", ["tensorflow-to-h5", model, s.path("tf.h5")], "'cbk copy' reads others", None, least=0)
    os.makedirs(s.path("arrays", "more"))
    for place in ("arrays", "arrays/more"):
        np.save(s.path(place, "a.npy"), np.ones(3))
    arrays = [s.path("arrays", "a.npy"), s.path("arrays", "more", "a.npy")]
    s.situation("two arrays of a name", ["import", *arrays, "-o", "OUT.pt"], "give one another name with --key", None, {"--key": "b"})
    s.situation("the same format twice", ["diff", model, model, "--model", "llama"], "without --model|equal|the same", None, least=0)
    s.situation("keys in a checkpoint", ["rules", "llama", "--keys", model], "give a checkpoint without --keys", None, least=0)
    s.situation("a comparison of one", ["report", model, "-o", "OUT.html", "--model", "llama"], "give OTHER", None, least=0)
    code, text = s.run("infer", model, checkpoint, "--src-config", good + "/config.json", "--tgt-config", os.path.join(os.path.dirname(checkpoint), next(
        n for n in os.listdir(os.path.dirname(checkpoint)) if n.endswith(".yaml"))), "-o", s.path("inferred.lua"))
    assert code == 0, text
    s.situation("an inferred converter", ["infer", model, checkpoint, "-o", "OUT.lua"], "check it with", None, least=0)
    s.situation("formats that differ", ["diff", model, checkpoint], "--model|different|only in", None, least=0)
    s.situation("identify", ["identify", good], "cbk convert", None, least=0)


def adapters(s, good):
    adapter = s.path("adapter")
    os.makedirs(adapter)
    key = "model.layers.0.self_attn.q_proj"
    a, b = torch.randn(2, 32), torch.randn(WEIGHTS[key + ".weight"].shape[0], 2)
    safetensors_file.save(adapter + "/adapter_model.safetensors", {f"base_model.model.{key}.lora_A.weight": a, f"base_model.model.{key}.lora_B.weight": b})
    write_json(adapter + "/adapter_config.json", {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"], "base_model_name_or_path": "x"})

    def folded(path):
        got = read_written(path)
        assert torch.allclose(got[key + ".weight"], WEIGHTS[key + ".weight"] + 2 * (b @ a), atol=1e-5)
        assert all(torch.equal(got[k], v) for k, v in WEIGHTS.items() if k != key + ".weight")

    s.situation("no adapter named", ["fold-lora-checkpoint", good, "-o", "OUT"], "missing option '--adapter'", folded, {"--adapter": adapter}, least=0)
    s.situation("an adapter, identified", ["identify", adapter], "fold", None, least=0)
    s.situation("an adapter alone", convert(adapter, "--config", good + "/config.json", "--model", "llama"), "fold", None, least=0)
    inside = folder(s, "adapted", CONFIG, {**WEIGHTS, key + ".lora_A.weight": a, key + ".lora_B.weight": b})
    s.situation("LoRA weights inside", convert(inside, "--model", "llama", "--config", good + "/config.json"), "cbk fold-lora-checkpoint", is_llama, least=0)


# ------------------------------------------------------------------ what the sources say
REMEDY = re.compile(r"\b(use|pass|add|name|choose|leave|give|try|rename|remove|move|cast|fold|run|make|compare|check|correct|takes|reads|allows|link)\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]+|cbk (?:copy|convert|fold|upgrade|identify|rules|data|fix|new|help)[a-z-]*")
STATED = re.compile(r"\(default|^--[a-z_-]+: |^the |^with --|^no effect|: expected |exclude each other|takes no key|cannot be combined")


def literals(path):
    """Texts with their lines; those that are written in pieces as one."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    comment = r"(?m)^\s*//[^\n]*$" if path.endswith("pp") else r"(?m)^\s*--[^\n]*$"
    text = re.sub(comment, "", text)
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:\.\.)?\s*"(?:[^"\\\n]|\\.)*")*', text):
        yield text.count("\n", 0, match.start()) + 1, "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group()))


def advice_in_sources():
    for base in ("scripts", "converters", "host", "bindings"):
        for place, _, names in os.walk(os.path.join(TOP, base)):
            if re.search("scripts/(help|packaging|examples)|lib/cstorch", place):
                continue
            for name in sorted(names):
                if name.endswith((".lua", ".cpp", ".hpp")):
                    for line, text in literals(os.path.join(place, name)):
                        if OPTION.search(text) and REMEDY.search(text) and not STATED.search(text):
                            yield os.path.relpath(os.path.join(place, name), TOP), line, text


def longest(text):
    """The longest piece of a text between placeholders that has an option or a command."""
    pieces = [p for p in re.split(r"%[-\d.]*[sdq]|\{[^{}]*\}|\\.", text) if OPTION.search(p)]
    return max(pieces, key=len).strip() if pieces else ""


def unheard(s):
    """Advice in the sources that no situation provoked."""
    heard = "\n".join(s.heard)
    for path, line, text in advice_in_sources():
        piece = longest(text)
        if piece and piece not in heard and not any(known in text for known in ELSEWHERE):
            yield f"{path}:{line}: {text}"


# Advice without a situation here, and why.
ELSEWHERE = {
    "evaluates a checkpoint without it": "training_commands_test.lua", "FILE begins with a checkpoint": "training_commands_test.lua",
    "leaves this finding out": "check_interop.py", "--all evaluates the checkpoints": "training_evaluations_test.lua",
    "compare the models inside with --model": "diff_test.lua", "compare it without --model": "training_files_test.lua",
    "name one of its checkpoints": "run_report_test.lua", "--model-dir is empty": "training_test.lua",
    "--steps N takes the first ones": "training_commands_test.lua",
    "--config reads it": "identify_test.lua",
    "leave out --to-dtype": "convert_command_test.lua", "needs tensors: name the checkpoint instead": "round_trip_test.lua",
    "by-layer`, and compare the weight": "check_siblings_test.lua",
    "cbk takes them apart": "stacked_experts_test.lua", "make an adapter of the run's folder": "peft_interop.py", "leave it out with --exclude, without --weights": "ranks_interop.py",
    "reads instances of classes as their attributes": "stored_pickles_interop.py", "name it with --eos-token": "make_data_test.lua",
    # training
    "name params.yaml, or a checkpoint and its data": "training_commands_test.lua", "name what to continue with": "training_commands_test.lua",
    "give --temperature as well": "training_commands_test.lua", "--tokenizer names one; --ids takes": "training_commands_test.lua",
    "--model NAME names it, such as": "training_test.lua", "or --max-steps, continues it": "training_test.lua", "or train with one rank": "runs_interop.py",
    "or name another folder with --model-dir": "training_test.lua", "restore the files, or name another --model-dir": "training_test.lua",
    "has LoRA matrices beside its weights": "training_test.lua",
    # several processes
    "pass --provenance": "cluster_interop.py", "copy them with --include and --rename": "sharded_interop.py",
    "pass --part K/N": "cluster_interop.py", "make one with --plan": "cluster_interop.py",
    "pass --mpi=pmix": "cluster_interop.py", "and begin again with --plan": "cluster_interop.py",
    "run: --plan needs a folder": "cluster_interop.py",
    "make a job in this folder": "an option's help",
    # cerebras: runs of old releases
    "--no-dataloader-state": "upgrade_interop.py", "--dataloader_type needs": "upgrade_interop.py", "--accept-missing": "upgrade_interop.py",
    "pass --yes": "upgrade_interop.py", "name that with --src-fmt cs-X.Y": "upgrade_interop.py", "`cbk fix-checkpoint-spec` can link them": "upgrade_tools_interop.py",
    "alias not found": "upgrade_tools_interop.py",
    "fit; name it with --model": "identify_test.lua",
    "its converter reads the layouts": "own_class_test.lua", "alike; name both formats": "own_class_test.lua", "alike: which one it is": "own_class_test.lua",
    "or name the release with --src-fmt": "own_class_test.lua", "is part of an adapter (PEFT) in the model": "foreign_keys_test.lua",
    "leave the wrong one out of its shard": "wild_interop.py",
    # quantised weights
    "--dequantize": "dequantised_test.lua",
    # a table of one's own
    "and there is no config: name one with --config": "keys_test.lua", "add a config rule that writes it, or write an action": "keys_test.lua",
    # nothing is written
    "are too many for a page": "report_page_test.lua", "--dry-run lists all keys": "dry_run_test.lua", "Not explained.": "infer_test.lua",
    # containers and formats with makers of their own
    "only TensorFlow checkpoints hold quantized tensors": "tensorflow_interop.py", "despite its name; `cbk copy`": "lora_test.lua",
    "are not tensors, and H5 makes an object of each": "limits_interop.py", "a sandboxed converter has no": "sandbox_test.lua",
    "Correct the config, or name another one": "check_test.lua", "Write it as a tree: in a script": "check_test.lua", "begins a new head with random numbers": "identify_test.lua",
    "--config FILE reads it": "external_interop.py", "name the release with --src-fmt cs-X.Y": "identify_test.lua", "to convert it, ": "identify_test.lua",
    "there is no %s beside the checkpoint: name a config": "convert_command_test.lua", "would get random numbers": "foreign_keys_test.lua", "fold them into the weights first": "lora_test.lua",
    "pass --drop-unmatched-keys to do so here": "dry_run_test.lua", "remove the prefix": "identity_test.lua",
    "Nothing has to be done: cbk looks through it": "wild_interop.py", "choose some with --key": "limits_interop.py", "check a part, made with": "limits_interop.py", "keep a few of each kind": "limits_interop.py",
    "take a part with `cbk copy": "limits_interop.py", "--allow-external DIR allows it, where": "external_interop.py",
    "if you trust the file, pass --no-sandbox": "hostile_interop.py", "--max-expansion SIZE (in Lua": "limits_interop.py",
    "'cbk copy --salvage' takes the archive alone": "salvage_interop.py", "that is made of arguments is not written": "pickle_test.cpp",
    "make a copy with `cbk copy CHECKPOINT COPY.safetensors`": "t5_test.lua",
    "--exclude 'optimizer.*'": "training_files_test.lua", "--exclude 'optimizer.state.*'": "training_files_test.lua",
    "is not supported here; fold it first": "merge_test.lua", "takes the weights out of a training checkpoint": "merge_test.lua",
    "make its config for the Model Zoo with `cbk convert-config": "logits_interop.py",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cbk", required=True)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    place = tempfile.mkdtemp()
    s = Situations(options.cbk, place)
    try:
        good, checkpoint, params = conversions(s)
        copies(s)
        looking(s, good, checkpoint)
        adapters(s, good)
    finally:
        shutil.rmtree(place)
    for text in unheard(s):
        s.failed += 1
        print(f"FAIL nobody follows {text}")
    if s.followed * 2 < s.count:
        s.failed += 1
        print(f"FAIL {s.followed} pieces of advice were followed in {s.count} situations")
    print(f"{s.passed} passed, {s.failed} failed")
    return 1 if s.failed or not s.passed else 0


if __name__ == "__main__":
    sys.exit(main())
