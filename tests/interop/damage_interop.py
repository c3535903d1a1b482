#!/usr/bin/python3
"""A small model with random damage goes through the commands: what comes out has the values that the damaged input means, or the
command refuses. What it means is known here: the damage says which tensors are left, and a forward pass from the published
definition (models/) says whether these are a whole model, and computes its logits.

Usage: damage_interop.py --cbk PATH [--seeds N] [--first SEED] [--keep FOLDER]
"""
import argparse
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile

import torch

import safetensors_file
from quantised_interop import FLOATS, float8
from meaning import Family, read_file, read_written
from models.layers import Different

RELEASE = "cs-2.9"
# Family, case of it. Models with heads that may be left out (BERT) are no part: which tensors they need is no matter of the definition.
CASES = [("llama", "a key head for each query"), ("llama", "grouped queries, stretched positions"), ("mistral", "a window of 5"),
         ("qwen2", "grouped queries"), ("gpt2", "tied"), ("gpt2", "head of its own, relu, no scale"), ("gpt_neox", "half of each head"),
         ("mixtral", "five experts"), ("qwen3_moe", "five experts")]
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "gpt2": "GPT2LMHeadModel",
                 "gpt_neox": "GPTNeoXForCausalLM", "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}


class Subject:
    """A checkpoint: `stored` is what its files hold, `meaning` which tensors these are; both by name."""

    def __init__(self, rng):
        self.rng, self.notes = rng, []
        self.family, case = rng.choice(CASES)
        self.definition = Family(self.family)
        self.config, self.stored = self.definition.model(case, rng.randrange(1000))
        self.config["architectures"] = [ARCHITECTURES[self.family]]
        self.meaning = dict(self.stored)
        self.aliases, self.prefix, self.container, self.quantised, self.has_scales = {}, "", None, False, False
        if self.config.get("tie_word_embeddings", self.family == "gpt2") and rng.random() < 0.7:
            self.remove(next(key for key in self.stored if key.startswith(("lm_head", "embed_out"))), meaning=False)

    def pick(self, least_dims=0):
        return self.rng.choice([key for key, value in self.stored.items() if isinstance(value, torch.Tensor) and value.dim() >= least_dims])

    def remove(self, key, meaning=True):
        del self.stored[key]
        if meaning:
            self.meaning.pop(key, None)  # codes and adapters have none

    def put(self, key, value):
        self.stored[key] = self.meaning[key] = value

    def write(self, folder):
        """As a folder of Hugging Face: one file or shards."""
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.config, file, indent=1)
        content = {self.prefix + key: value for key, value in self.stored.items()}
        plain = all(isinstance(value, torch.Tensor) for value in content.values())
        if self.container or (plain and not self.aliases and self.rng.random() < 0.3):
            torch.save({self.container: content} if self.container else content, os.path.join(folder, "pytorch_model.bin"))
        elif self.rng.random() < 0.3 and not self.aliases:
            keys = list(content)
            self.rng.shuffle(keys)
            halves = {"model-00001-of-00002.safetensors": keys[::2], "model-00002-of-00002.safetensors": keys[1::2]}
            for name, own in halves.items():
                safetensors_file.save(os.path.join(folder, name), {key: content[key] for key in own})
            with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
                json.dump({"weight_map": {key: name for name, own in halves.items() for key in own}}, file)
        else:
            aliases = {self.prefix + key: self.prefix + value for key, value in self.aliases.items()}
            safetensors_file.save(os.path.join(folder, "model.safetensors"), content, aliases)


# ------------------------------------------------------------------ damage
def remove(s):
    key = s.pick()
    s.remove(key)
    return key


def rename(s):
    key = s.pick()
    new = s.rng.choice([lambda k: k.replace("weight", "wieght"), lambda k: k.upper(), lambda k: re.sub(r"\.1\.", ".7.", k), lambda k: k + ".0",
                        lambda k: "x." + k, lambda k: k.replace(".", "/", 1)])(key)
    if new == key:
        return remove(s)
    value = s.stored[key]
    s.remove(key)
    s.put(new, value)
    return f"{key} -> {new}"


def exchange(s):
    key = s.pick()
    shape = s.stored[key].shape  # codes that PyTorch has no dtype for stay where they are
    other = s.rng.choice([k for k, v in s.stored.items() if isinstance(v, torch.Tensor) and v.shape == shape])
    one, two = s.stored[key], s.stored[other]
    s.put(key, two)
    s.put(other, one)
    return f"{key} <-> {other}"


def linears(s):
    return [k for k, v in s.stored.items() if isinstance(v, torch.Tensor) and v.dim() == 2 and k.endswith(".weight") and not re.search("embed|wte|wpe|head", k)]


def quantise(s):
    """Codes and scales in place of matrices; the scales may be lost, and the config may not say so."""
    keys = linears(s)
    if not keys:
        return "nothing to quantise"
    keys = keys if s.rng.random() < 0.5 else [s.rng.choice(keys)]
    method, lost = s.rng.choice(["fp8 blocks", "fp8 rows", "int8"]), s.rng.random() < 0.3
    for key in keys:
        rows, columns = s.stored[key].shape
        codes = torch.randint(-100, 100, (rows, columns), dtype=torch.int8)
        s.remove(key)
        s.stored[key] = codes if method == "int8" else ("F8_E4M3", [rows, columns], (codes.numpy() & 0x77).tobytes())  # without NaN
        scale = {"fp8 blocks": (key + "_scale_inv", [1, 1]), "fp8 rows": (key + "_scale", [rows, 1]), "int8": (key[:-6] + "SCB", [rows])}[method]
        if not lost:
            s.stored[scale[0]] = scales = (torch.rand(scale[1]) + 0.5) / (1 if method == "int8" else 200)
            numbers = codes.float() if method == "int8" else torch.from_numpy(float8(codes.numpy().view("u1") & 0x77, *FLOATS["F8_E4M3"]))
            dtype = {"float32": torch.float32, "float16": torch.float16}.get(s.config.get("torch_dtype"), torch.bfloat16)
            numbers = numbers * (scales.reshape(-1, 1) if len(scale[1]) == 1 else scales)
            s.meaning[key] = (numbers * (1 / 127) if method == "int8" else numbers).to(dtype)
    if s.rng.random() < 0.5:
        s.config["quantization_config"] = {"quant_method": "bitsandbytes" if method == "int8" else "fp8"}
    s.quantised, s.has_scales = True, not lost
    return f"{method}, {len(keys)} matrices, scales lost: {lost}"


def alias(s):
    """As safetensors' save_model writes tied tensors."""
    key = s.rng.choice([k for k in s.stored if k in s.meaning])
    like = [k for k in s.stored if k in s.meaning and k != key and s.meaning[k].shape == s.meaning[key].shape]
    if not like:
        return "no tie"
    other = s.rng.choice(like)
    del s.stored[key]
    s.aliases[key], s.meaning[key] = other, s.meaning[other]
    return f"{key} = {other}"


def tie_flag(s):
    s.config["tie_word_embeddings"] = not s.config.get("tie_word_embeddings", s.family == "gpt2")
    return str(s.config["tie_word_embeddings"])


def reshape(s):
    key = s.pick(1)
    value = s.stored[key]
    changes = [lambda t: t.reshape(-1), lambda t: t.unsqueeze(0), lambda t: torch.cat([t, t[:1]]), lambda t: t[:-1], lambda t: t[..., :-1]]
    if value.dim() == 2:
        changes += [lambda t: t.t().contiguous(), lambda t: t.reshape(t.shape[1], t.shape[0])]
    s.put(key, s.rng.choice(changes)(value).clone())
    return f"{key}: {list(value.shape)} -> {list(s.stored[key].shape)}"


def wrap(s):
    if s.rng.random() < 0.5:
        s.prefix = s.rng.choice(["module.", "_orig_mod.", "model.", "base_model.model.", "x."])
    elif all(isinstance(v, torch.Tensor) for v in s.stored.values()) and not s.aliases:
        s.container = s.rng.choice(["state_dict", "model", "module", "weights"])
    else:
        for key in list(s.stored)[::2]:  # half of them: nobody knows what that means
            s.stored["module." + key] = s.stored.pop(key)
            s.meaning.pop(key, None)
    return s.prefix or s.container or "half"


def extra(s):
    names = s.rng.choice([["score.weight"], ["v_head.weight", "v_head.bias"], ["a.b", "c"], [f"foreign.{i}.weight" for i in range(99)]])
    for name in names:
        s.put(name, torch.randn(2, 3))
    return ", ".join(names[:3])


def adapter_inside(s):
    keys = linears(s)
    if not keys:
        return "no matrix"
    key = s.rng.choice(keys)
    value, module = s.stored[key], key[:-7]
    s.remove(key)
    s.stored[module + ".base_layer.weight"] = value
    s.stored[module + ".lora_A.default.weight"] = torch.randn(2, value.shape[1])
    s.stored[module + ".lora_B.default.weight"] = torch.randn(value.shape[0], 2)
    return key


def number(s):
    fields = [name for name, value in s.config.items() if isinstance(value, int) and not isinstance(value, bool)]
    name = s.rng.choice(fields)
    s.config[name] = max(1, s.rng.choice([s.config[name] + 1, s.config[name] - 1, s.config[name] * 2, s.config[name] // 2]))
    return f"{name}={s.config[name]}"


def less_config(s):
    name = s.rng.choice([name for name in s.config if name not in ("model_type", "architectures")])
    del s.config[name]
    return "without " + name


def dtype(s):
    for key in list(s.stored):
        if isinstance(s.stored[key], torch.Tensor) and key in s.meaning and s.rng.random() < 0.5:
            s.put(key, s.stored[key].to(s.rng.choice([torch.float16, torch.bfloat16, torch.float64])))
    return "mixed"


def classifier(s):
    s.config["architectures"] = [re.sub("For.*|LMHeadModel", "", ARCHITECTURES[s.family]) + "ForSequenceClassification"]
    for key in [k for k in s.stored if k.startswith(("lm_head", "embed_out"))]:
        s.remove(key, key in s.meaning)
    for key in [k for k in s.meaning if k.startswith(("lm_head", "embed_out"))]:
        del s.meaning[key]
    s.put("score.weight", torch.randn(2, 8))
    return s.config["architectures"][0]


DAMAGE = [remove, rename, exchange, quantise, alias, tie_flag, reshape, wrap, extra, adapter_inside, number, less_config, dtype, classifier]


def make(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    s = Subject(rng)
    for damage in rng.sample(DAMAGE, rng.choice([0, 1, 1, 1, 1, 2])):
        s.notes.append(f"{damage.__name__} ({damage(s)})")
    return s


# ------------------------------------------------------------------ what the commands make of it
class Trial:
    def __init__(self, cbk, folder, seed):
        self.cbk, self.folder, self.s = cbk, folder, make(seed)
        self.input = os.path.join(folder, "input")
        self.s.write(self.input)
        self.outcome = {}

    def run(self, *args):
        done = subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 1, 2), f"{args[0]}: status {done.returncode}"
        assert not re.search(r"\.lua:\d|attempt to |\[string|C\+\+ exception", done.stderr + done.stdout), f"a raw error: {done.stderr.strip()}"
        return done

    def path(self, name):
        return os.path.join(self.folder, name)

    def refused(self, command, done, output):
        self.outcome[command] = done.returncode == 0
        if done.returncode == 0:
            return False
        assert done.stderr.startswith("cbk") or "\ncbk" in done.stderr, f"no error: {done.stderr}"
        assert not os.path.exists(output) or not os.listdir(output), f"left behind: {output}"
        return True

    def whole(self):
        """Logits and unneeded names, or None twice and why."""
        try:
            return (*self.s.definition.logits(self.s.config, self.s.meaning), "")
        except Different as problem:
            return None, None, str(problem)

    def convert(self, *options, name="converted"):
        s, out = self.s, self.path(name)
        done = self.run("convert", self.input, "--to", RELEASE, "-o", out, "--no-progress-bar", *options)
        if self.refused(name, done, out):
            return
        logits, unneeded, why = self.whole()
        assert s.has_scales or not s.quantised, "quantised weights were converted"
        is_classifier = "ForSequenceClassification" in s.config["architectures"][0]  # of which a tied head leaves the rest whole
        assert not is_classifier or "--drop-unmatched-keys" in options, "a classifier was converted"
        assert logits, f"no whole model was converted: {why}"
        assert not unneeded or "--drop-unmatched-keys" in options, f"lost in silence: {unneeded}"
        config, checkpoint = s.definition.same_in_model_zoo(logits, done.stdout)
        self.back(config, checkpoint, unneeded, name)

    def back(self, config, checkpoint, unneeded, name):
        """The way back gives what was there, bit for bit."""
        out = self.path(name + "_back")
        done = self.run("convert", checkpoint, "--to", "hf", "--config", config, "-o", out, "--no-progress-bar")
        assert done.returncode == 0, f"no way back: {done.stderr.strip()}"
        got = read_written(re.search("Checkpoint saved to (.*)", done.stdout).group(1))
        with open(re.search("Config saved to (.*)", done.stdout).group(1), encoding="utf-8") as file:
            assert "quantization_config" not in json.load(file)
        for key, value in got.items():
            if key in self.s.meaning:
                want = self.s.meaning[key]
                if re.search("lm_head|embed_out", key) and self.s.config.get("tie_word_embeddings", self.s.family == "gpt2"):
                    continue
                assert value.dtype == want.dtype and torch.equal(value, want), f"{key} came back as another"
        missing = set(self.s.meaning) - set(got) - set(unneeded)
        missing = [key for key in missing if not re.search("lm_head|embed_out|inv_freq|attn.bias|masked_bias", key)]
        assert not missing, f"{missing[:3]} did not come back"

    def look(self):
        """`identify` and `check` say something about what is not whole; the command that `identify` gives is followed."""
        s = self.s
        done = self.run("identify", self.input)
        command = re.search(r"^convert +cbk (.*)$", done.stdout, re.M)
        if command:
            out = self.path("advised")
            words = command.group(1).split()
            followed = self.run(*words, "-o", out, "--no-progress-bar")
            assert followed.returncode == 0, f"identify gives a command that fails: {followed.stderr.strip()}"
            assert self.whole()[0] and (s.has_scales or not s.quantised), "identify gives a command that makes a wrong model"
        assert "drop-unmatched" not in done.stdout or (not s.quantised and self.whole()[0]), "identify advises to drop keys"
        done = self.run("check", self.input, "--json")
        findings = json.loads(done.stdout)["findings"] if done.stdout.strip() else done.stderr
        if s.quantised or not self.whole()[0]:
            assert findings, "check calls it clean"

    def copy(self):
        s = self.s
        if s.container:
            return
        readable = all(isinstance(value, torch.Tensor) for value in s.stored.values())  # PyTorch here has no float8
        suffix, options = s.rng.choice([".safetensors", ".bin"]) if readable else ".safetensors", s.rng.choice([[], ["--to-dtype", "bfloat16"], ["--exclude", "KEY"], ["--rename", "KEY=new.name"]])
        names = [s.prefix + key for key in (*s.stored, *s.aliases)]
        key = s.rng.choice(names)
        if re.search(r"[/*?\[\]{}]", key):
            return
        out = self.path("copy" + suffix)
        done = self.run("copy", self.input, out, *[word.replace("KEY", key) for word in options], "--no-progress-bar")
        if done.returncode != 0:
            assert not os.path.exists(out)
            assert s.quantised, f"copy refused: {done.stderr.strip()}"
            return
        assert not (s.quantised and options[:1] == ["--to-dtype"]), "codes of quantised weights were cast"
        want = {s.prefix + k: v for k, v in s.stored.items()}
        want.update({s.prefix + k: want[s.prefix + v] for k, v in s.aliases.items()})
        if options[:1] == ["--to-dtype"]:
            want = {k: v.to(torch.bfloat16) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in want.items()}
        elif options[:1] == ["--exclude"]:
            want = {k: v for k, v in want.items() if k != key and not k.startswith(key + ".")}
        elif options[:1] == ["--rename"]:
            want = {k.replace(key, "new.name"): v for k, v in want.items()}
        got = read_file(out)
        assert set(got) == set(want), f"copy: keys differ: {sorted(set(got) ^ set(want))[:3]}"
        for k, value in want.items():
            same = got[k] == value if isinstance(value, tuple) else got[k].dtype == value.dtype and torch.equal(got[k], value)
            assert same, f"copy {options}: {k} differs"

    def fold(self):
        s = self.s
        keys = [k for k, v in s.meaning.items() if v.dim() == 2 and not re.search("embed|wte|wpe", k) and k.endswith(".weight")]
        keys = [k for k in keys if k in s.stored or "head" in k]
        if not keys or s.container:
            return
        adapter, out, want = self.path("adapter"), self.path("folded"), {}
        os.makedirs(adapter)
        tensors = {}
        for key in s.rng.sample(keys, min(len(keys), 2)):
            a, b = torch.randn(2, s.meaning[key].shape[1]), torch.randn(s.meaning[key].shape[0], 2)
            want[key] = s.meaning[key].double() + 2 * (b.double() @ a.double())
            if "h." in key and s.family == "gpt2":  # Conv1D
                a, b = b.t().contiguous(), a.t().contiguous()
            name = "base_model.model." + key[:-7]
            tensors[name + ".lora_A.weight"], tensors[name + ".lora_B.weight"] = a, b
        safetensors_file.save(os.path.join(adapter, "adapter_model.safetensors"), tensors)
        with open(os.path.join(adapter, "adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "bias": "none", "fan_in_fan_out": s.family == "gpt2",
                       "target_modules": sorted({key[:-7].split(".")[-1] for key in want})}, file)
        done = self.run("fold-lora-checkpoint", "--adapter", adapter, self.input, "-o", out, "--no-progress-bar")
        if self.refused("folded", done, out):
            return
        if s.has_scales:
            return
        assert not s.quantised, "an adapter was folded into quantised weights"
        got = read_written(out)
        with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
            tied = json.load(file).get("tie_word_embeddings", s.family == "gpt2")
        for key, value in got.items():
            key = key[len(s.prefix):]
            if key in want:
                assert not (tied and re.search("lm_head|embed_out", key)), "the head was folded, and is tied still"
                step = {torch.float64: 1e-7, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[value.dtype]
                assert torch.allclose(value.double(), want[key], rtol=step, atol=step), f"folded: {key} differs"
            elif isinstance(s.stored.get(key), torch.Tensor):
                assert torch.equal(value, s.stored[key]), f"folded: {key} changed"
        lost = [k for k in want if s.prefix + k not in got]
        assert not lost, f"folded: {lost} is missing"

    def all(self):
        problems = []
        for step in (self.convert, lambda: self.convert("--drop-unmatched-keys", name="dropped"), self.look, self.copy, self.fold):
            try:
                step()
            except (AssertionError, Different) as problem:
                problems.append(str(problem))
        if not self.s.notes and not self.outcome.get("converted"):
            problems.append("an undamaged model is refused")
        return problems


def trial(job):
    cbk, folder, seed = job
    own = os.path.join(folder, str(seed))
    os.makedirs(own)
    one = Trial(cbk, own, seed)
    about = f"seed {seed}, {one.s.family}: {', '.join(one.s.notes) or 'whole'}"
    try:
        problems = one.all()
    except Exception as problem:  # pylint: disable=broad-except
        problems = [f"{type(problem).__name__}: {problem}"]
    return [f"FAIL {about}: {problem}" for problem in problems], one.outcome


def start_worker():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--keep", help="write inputs and outputs here, and leave them")
    options = parser.parse_args()
    passed, failed, done = 0, 0, {}
    with tempfile.TemporaryDirectory() as temporary, multiprocessing.Pool(initializer=start_worker) as pool:
        folder = options.keep or temporary
        seeds = range(options.first, options.first + options.seeds)
        for problems, outcome in pool.imap_unordered(trial, [(os.path.abspath(options.cbk), folder, seed) for seed in seeds]):
            passed, failed = passed + (not problems), failed + bool(problems)
            print(*problems, sep="\n", end="\n" if problems else "")
            for command, written in outcome.items():
                done[command] = done.get(command, 0) + written
    # Refusing everything would be no failure of a seed.
    for command in ("converted", "folded"):
        if done.get(command, 0) * 5 < options.seeds:
            print(f"FAIL {command}: written in {done.get(command, 0)} of {options.seeds} cases only")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
