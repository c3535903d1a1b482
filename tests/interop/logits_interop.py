#!/usr/bin/python3
"""Converted models compute what they computed before: logits of the Hugging Face layout against those of the Model Zoo's.

Each family is a file in models/: two forward passes, written from the published definitions of either side and not from the
converter, and configs. For each of its cases random weights are made on one side, `cbk convert` makes the other side of them (the
Model Zoo's in H5), the other forward pass reads what came out, with the config that came out, and must give the same logits; then
the way back. Then the test shows that it would notice: conventions are broken one at a time, and the logits must move.

To add a family, write models/NAME.py (about thirty lines where the Model Zoo's class is in models/zoo.py already):

    MODEL = "name"                              # what `cbk convert --model` calls it
    def hugging_face(w, c, ids): ...            # logits; `c` is config.json
    def model_zoo(w, c, ids): ...               # logits; `c` is the model section of the YAML file
    CASES = {"what it is about": {"hf": {...}}, "muP": {"cs": {...}, "release": "cs-2.2"}}

`w.linear(name, x, size)`, `w.layer_norm(name, x, eps)` and the like ask for tensors by their names in the checkpoint. Asked for
the first time they are made, so a forward pass is also the list of keys and shapes. A case gives the config of the side that it
starts from; `model`, `model_zoo` and `hugging_face` where they are not the file's; a `tolerance` where the two sides differ by what
no converter can change, and in `warning` what the warnings say of that (a regular expression). Every case is also converted without each field that its definition has a default for (`c.get`): what comes out must
mean that default, or is refused with the field's name (or the one that `instead` has for it); not so without the fields in `keep`.
`RELEASES = ["cs-1.8", "cs-2.0"]`: every case that starts with Hugging Face also goes to these releases (those with tables of their
own), from there to the newest one, and back the same way. Of a case, `releases` are its own, `refused` says what some of them cannot
hold ({"cs-1.9": "field"}), `one_way` what Hugging Face cannot once the newest release has it, and `outputs` how many outputs are the
same where a release computes the others in its own way.
`FOLDERS` names the parts of a model of several configs, each in a folder of its own with Hugging Face; `SECTIONS` those in one config.
Below a folder, names of tensors begin with its name and a slash. `NEWEST` is the newest format where it has another name, `TRAINED` what a trainer puts before names where it is not `model.`.
`COMPUTED = False` where `cstorch.models` does not have the classes; other families are computed by cbk, too, on both sides.
`inputs(random)` where a model takes more than one row of tokens (each has 19), with their names in a batch in `INPUTS`, `BUFFERS` (a regular expression) where a side writes constants that no forward
pass needs, and more outputs than one (a tuple) are possible. Take unusual values (an epsilon of 0.1, a base of 50): defaults that
are wrong show only then.

Usage: logits_interop.py --cbk PATH [NAME]
"""
import argparse
import importlib
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from urllib.parse import unquote

import h5py
import torch
import yaml

from logits_mistakes import mistakes
from models.layers import Different, Weights

NEWEST = "cs-2.9"
TOLERANCE = 1e-5  # of the largest logit, or of 1
SMALL = 1e-3


def need(condition, text):
    if not condition:
        raise Different(text)


# ------------------------------------------------------------------ files
def read_h5(path):
    """The tensors below `model`, with h5py. Format 0.5 (since release 2.5) has in attributes of the root what each leaf is, a tied
    one by the name of another (here the same object); in 0.4 it is an attribute of the dataset, and a tied one is a hard link."""
    out, read = {}, {}
    with h5py.File(path, "r") as f:
        if "__SUCCESS__" not in f.attrs:
            names = {unquote(name): name for name in f if f[name].attrs["__H5_TYPE__"] == "TorchTensorH5Type"}
            return {key[6:]: torch.from_numpy(f[name][()]) for key, name in names.items() if key.startswith("model.")}
        for name in f.attrs:
            key = name[: -len(".__metadata__")]
            if not re.fullmatch(r"model\..*\.__metadata__", name):
                continue
            about = json.loads(f.attrs[name])[name]
            while about["__TYPE__"] == "LinkedObject":
                key = about["key"]
                about = json.loads(f.attrs[key + ".__metadata__"])[key + ".__metadata__"]
            if key not in read:
                values = torch.from_numpy(f[key][()])
                read[key] = values.view(torch.bfloat16) if "torch.bfloat16" in f[key].attrs["dtypes"] else values
            out[name[6:-len(".__metadata__")]] = read[key]
    return out


def read_shards(folder):
    out = {}
    if os.path.exists(os.path.join(folder, "pytorch_model.bin")):
        return torch.load(os.path.join(folder, "pytorch_model.bin"))
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), encoding="utf-8") as f:
        placed = json.load(f)["weight_map"]
    for shard in sorted(set(placed.values())):
        out.update(torch.load(os.path.join(folder, shard)))
    need(sorted(out) == sorted(placed), "the index names other keys than the shards hold")
    return out


def read_hugging_face(config, checkpoint):
    with open(config, encoding="utf-8") as f:
        return json.load(f), read_shards(checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint))


def read_folders(folder, names):
    """The config of a model of several folders, and its tensors."""
    configs, tensors = {}, {}
    for name in names:
        part = os.path.join(folder, name)
        configs[name], own = read_hugging_face(os.path.join(part, "config.json"), part)
        tensors.update({f"{name}/{key}": tensor for key, tensor in own.items()})
    return configs, tensors


def read_model_zoo(config, checkpoint):
    """The model section of the YAML file, in either of its layouts."""
    with open(config, encoding="utf-8") as f:
        whole = yaml.safe_load(f)
    return whole["trainer"]["init"]["model"] if "trainer" in whole else whole["model"], read_h5(checkpoint)


def save_folder(folder, config, tensors):
    """Where config and weights are."""
    os.makedirs(folder, exist_ok=True)
    paths = os.path.join(folder, "config.json"), os.path.join(folder, "pytorch_model.bin")
    with open(paths[0], "w", encoding="utf-8") as f:
        json.dump(config, f)
    torch.save(tensors, paths[1])
    return paths


class Run:
    """The calls of cbk for one case. `number` is that of the case, so that cases begin with other layouts."""
    def __init__(self, cbk, folder, number, family):
        self.cbk, self.folder, self.count, self.written, self.said = cbk, folder, 0, number, ""
        self.parts, self.trained = getattr(family, "FOLDERS", ()), getattr(family, "TRAINED", "model.")

    def make_folder(self):
        self.count += 1
        out = os.path.join(self.folder, str(self.count))
        os.mkdir(out)
        return out

    def call(self, *args):
        done = subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=60, check=False)
        self.said = done.stderr
        need(done.returncode == 0, f"cbk {args[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def outputs(self, model, layout, config, checkpoint, batch):
        """What cbk computes itself, in the checkpoint's own layout."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "logits_of.lua")
        texts = [word for name, rows in batch.items() for word in
                 (name, ",".join(" ".join(str(token.item()) for token in row) for row in rows))]
        lines, out = self.call("run", script, model, layout, config, checkpoint, *texts).split("\n"), []
        while lines[0]:
            shape = [int(extent) for extent in lines[0].split()]
            count = math.prod(shape)
            out.append(torch.tensor([float(number) for number in lines[1:count + 1]]).reshape(shape))
            lines = lines[count + 1:]
        return out

    def convert(self, model, src, tgt, config, checkpoint):
        """What is written: config and checkpoint."""
        output = self.call("convert", "--model", model, "--src-fmt", src, "--tgt-fmt", tgt, "--config", config, checkpoint,
                         "--output-dir", self.make_folder())
        return [re.search(what + " saved to (.*)", output).group(1) for what in ("Config", "Checkpoint")]

    def save_hugging_face(self, config, tensors):
        out = self.make_folder()
        if not self.parts:
            return save_folder(out, config, tensors)
        for part in self.parts:
            own = {key[len(part) + 1:]: tensor for key, tensor in tensors.items() if key.startswith(part + "/")}
            save_folder(os.path.join(out, part), config[part], own)
        return out, out

    def read_hugging_face(self, config, checkpoint):
        first = checkpoint.split(", ")[0]  # of the parts
        return read_folders(os.path.dirname(first), self.parts) if self.parts else read_hugging_face(config, checkpoint)

    def to_model_zoo(self, model, release, config, tensors):
        """What came out, and the files of both sides."""
        files = self.save_hugging_face(config, tensors)
        made = self.convert(model, "hf", release, *files)
        return read_model_zoo(*made), {"hf": files, release: made}

    def to_hugging_face(self, model, release, config, tensors, pickle):
        """Every other time as a trainer writes it: a file of the trainer layout, keys that begin with `model.`"""
        self.written += 1
        if by_trainer := self.written % 2 == 0 and release != "cs-2.2":
            tensors = {self.trained + key: tensor for key, tensor in tensors.items()}
        out = self.make_folder()
        pickled, checkpoint = os.path.join(out, "pickled.mdl"), os.path.join(out, "checkpoint.mdl")
        torch.save({"model": tensors}, checkpoint if pickle else pickled)
        if not pickle:
            self.call("copy", pickled, checkpoint)
            need(h5py.is_hdf5(checkpoint), "the copy is no H5 file")
        with open(os.path.join(out, "params.yaml"), "w", encoding="utf-8") as f:
            yaml.safe_dump({"trainer": {"init": {"model": config}}} if by_trainer else {"model": config}, f)
        files = os.path.join(out, "params.yaml"), checkpoint
        made = self.convert(model, release, "hf", *files)
        return self.read_hugging_face(*made), {release: files, "hf": made}


# ------------------------------------------------------------------ logits
def compute(forward, weights, config, tokens):
    logits = forward(weights, config, *tokens)
    return logits if isinstance(logits, tuple) else (logits,)


def distance(a, b, least=1.0):
    """The largest difference of any logit, as a share of the largest one (at least `least`)."""
    return max(((x - y).abs().max() / max(least, x.abs().max())).item() for x, y in zip(a, b))


def read_back(forward, config, tensors, tokens, buffers):
    weights = Weights(tensors)
    logits = compute(forward, weights, config, tokens)
    left = [name for name in weights.unused() if not (buffers and re.search(buffers + "$", name))]
    need(not left, f"nobody asks for {', '.join(left)}")
    return logits


def equal(want, got, tolerance, least):
    need(distance(want, got, least) <= tolerance, f"logits differ by {distance(want, got, least):.1e}")


class Case:
    """One config of a family, from the side that it is given for to the other one and back."""

    def __init__(self, run, family, case, embedding_std=1.0):
        self.model, self.release = case.get("model", family.MODEL), case.get("release", getattr(family, "NEWEST", NEWEST))
        self.zoo, self.hf = case.get("model_zoo") or family.model_zoo, case.get("hugging_face") or family.hugging_face
        self.buffers = getattr(family, "BUFFERS", None)
        random = torch.Generator().manual_seed(7)
        self.tolerance, self.warning = case.get("tolerance", TOLERANCE), case.get("warning")
        self.tokens = family.inputs(random) if hasattr(family, "inputs") else (torch.randint(19, (2, 7), generator=random),)
        self.batch = dict(zip(getattr(family, "INPUTS", ("input_ids",)), self.tokens))
        self.run, self.config, self.starts_with_hf = run, case.get("hf") or case["cs"], "hf" in case
        weights, self.least = Weights(seed=5, embedding_std=embedding_std), embedding_std
        self.logits = compute(self.hf if self.starts_with_hf else self.zoo, weights, self.config, self.tokens)
        self.tensors = weights.tensors
        self.zoo_side = None if self.starts_with_hf else (self.config, self.tensors)
        self.hf_side = (self.config, self.tensors) if self.starts_with_hf else None
        self.start, self.outputs = (self.config, self.tensors), case.get("outputs", {})
        self.one_way = case.get("one_way", {})

    def there(self):
        (self.to_model_zoo if self.starts_with_hf else self.to_hugging_face)()
        need(re.search(self.warning or "", self.run.said), f"no warning says '{self.warning}': {self.run.said}")

    def back(self):
        (self.to_hugging_face if self.starts_with_hf else self.to_model_zoo)()

    def to_model_zoo(self):
        self.zoo_side, self.files = self.run.to_model_zoo(self.model, self.release, *self.hf_side)
        equal(self.logits, read_back(self.zoo, *self.zoo_side, self.tokens, None), self.tolerance, self.least)

    def to_hugging_face(self):
        self.hf_side, self.files = self.run.to_hugging_face(self.model, self.release, *self.zoo_side, self.least != 1)
        equal(self.logits, read_back(self.hf, *self.hf_side, self.tokens, self.buffers), self.tolerance, self.least)

    def computed_here(self):
        """cbk computes the same logits on either side."""
        for layout, (config, checkpoint) in self.files.items():
            got = self.run.outputs(self.model, layout, config, checkpoint, self.batch)
            need([one.shape for one in got] == [one.shape for one in self.logits], f"cbk computes other shapes of {layout}")
            moved = distance(self.logits, got, self.least)
            need(moved <= self.tolerance, f"cbk computes other logits of {layout}: they differ by {moved:.1e}")

    def through(self, release):
        """To the newest release by an old one, of which nothing is known but its files, and back."""
        old = self.run.convert(self.model, "hf", release, *self.run.save_hugging_face(*self.start))
        new = self.run.convert(self.model, release, self.release, *old)
        config, tensors = read_model_zoo(*new)
        count = self.outputs.get(release, len(self.logits))
        got = read_back(self.zoo, config, tensors, self.tokens, None)
        equal(self.logits[:count], got[:count], self.tolerance, self.least)
        need(count == len(got) or distance(self.logits[count:], got[count:]) > self.tolerance, "the other outputs are the same, too")
        again = self.run.convert(self.model, self.release, release, *new)
        try:
            back = self.run.read_hugging_face(*self.run.convert(self.model, release, "hf", *again))
            need(release not in self.one_way, "the way back is not refused")
        except Different as problem:
            if release not in self.one_way or self.one_way[release] not in str(problem):
                raise
            back = self.run.read_hugging_face(*self.run.convert(self.model, release, "hf", *old))
        equal(self.logits, read_back(self.hf, *back, self.tokens, self.buffers), self.tolerance, self.least)

    def notices(self):
        """Every way to get a convention wrong that this case has a place for moves the logits."""
        config, tensors = self.zoo_side
        tried = 0
        for what, wrong_config, wrong_tensors in mistakes(config, tensors):
            tried += 1
            moved = distance(self.logits, compute(self.zoo, Weights(wrong_tensors), wrong_config, self.tokens))
            need(moved > max(100 * TOLERANCE, 3 * self.tolerance), f"{what} would not be noticed: logits differ by {moved:.1e}")
        need(tried >= 4, f"only {tried} mistakes were tried")


# ------------------------------------------------------------------ old releases
def through_old(one, family, case):
    """A step for each old release, also for those that cannot say what the case is about."""
    for release in case.get("releases", getattr(family, "RELEASES", [])) if one.starts_with_hf else []:
        def step(release=release, refused=case.get("refused", {}).get(release)):
            try:
                one.through(release)
            except Different as problem:
                if not refused or refused not in str(problem):
                    raise
            else:
                need(not refused, f"'{refused}' is not refused")
        step.__name__ = "through " + release
        yield step


# ------------------------------------------------------------------ fields that a config may leave out
def without_each(config, sections):
    """Each field, and the config without it; those of sections, too."""
    for field in config:
        if field not in sections:
            yield field, {name: value for name, value in config.items() if name != field}
        else:
            for inner, rest in without_each(config[field], ()):
                yield inner, {**config, field: rest}


def left_out(run, family, case):
    """A step for each field of a case's config that the definition has a default for; without any mup_base field there is no muP.
    What is embedded is small, so that norms show their epsilon."""
    side, tolerance = "hf" if "hf" in case else "cs", 10 * case.get("tolerance", TOLERANCE)
    for field, config in without_each(case[side], getattr(family, "FOLDERS", getattr(family, "SECTIONS", ()))):
        if field.startswith("mup_base_") or field in ("model_type", *case.get("keep", ())):
            continue
        try:
            one = Case(run, family, {**case, side: config, "warning": None, "tolerance": tolerance}, SMALL)
        except (KeyError, RuntimeError):  # it has none, or one that these sizes do not suit
            continue

        def step(one=one, field=field):
            try:
                one.there()
                one.back()
            except Different as problem:
                refused = str(problem).splitlines()[-1] if str(problem).startswith("cbk convert: ") else ""
                need(case.get("instead", {}).get(field, field) in refused, str(problem))
        step.__name__ = "without " + field
        yield step


# ------------------------------------------------------------------ all cases
def families(only):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
    for name in sorted(f[:-3] for f in os.listdir(folder) if f.endswith(".py")):
        if only in (None, name) and hasattr(importlib.import_module("models." + name), "CASES"):
            yield name


def steps_of(run, family, case):
    one = Case(run, family, case)
    here = [one.computed_here] if getattr(family, "COMPUTED", True) and case.get("computed", True) else []
    return [one.there, *here, one.back, *here, *([one.notices] if not one.warning or one.starts_with_hf else []), *through_old(one, family, case),
            *left_out(run, family, case)]


def test_case(job):
    """How many steps of a case pass, and what is wrong with the others."""
    cbk, folder, module, name, number = job
    family = importlib.import_module("models." + module)
    own = os.path.join(folder, str(number))
    os.mkdir(own)
    passed, failed = 0, []
    for step in steps_of(Run(cbk, own, number, family), family, family.CASES[name]):
        try:
            step()
            passed += 1
        except Exception as problem:  # whatever a definition or a file runs into
            failed.append(f"FAILED {family.MODEL}, {name}, {step.__name__}: {type(problem).__name__}: {problem}")
    return passed, failed


def start_worker():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("family", nargs="?", help="only this file of models/")
    options = parser.parse_args()
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(initializer=start_worker) as pool:
        cases = [(name, case) for name in families(options.family) for case in importlib.import_module("models." + name).CASES]
        jobs = [(os.path.abspath(options.cbk), folder, *case, number) for number, case in enumerate(cases)]
        for right, wrong in pool.imap_unordered(test_case, jobs):
            passed, failed = passed + right, failed + len(wrong)
            print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
