#!/usr/bin/python3
"""`cbk copy` between all formats: what PyTorch, h5py and an own safetensors parser find in the copies is what was written.

Usage: copy_interop.py --cbk PATH
"""
import argparse
import collections
import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
import warnings

import h5py
import numpy as np
import torch

import harness

warnings.filterwarnings("ignore")

TARGETS = {"pt": ["x.pt"], "h5": ["x.mdl"], "h5_04": ["x.mdl", "--h5-version", "0.4"], "safetensors": ["x.safetensors"],
           "torch_shards": ["x", "--format", "torch", "--shard-size", "2KB"],
           "safetensors_shards": ["x", "--format", "safetensors", "--shard-size", "2KB"]}
ST_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
             "I32": torch.int32, "I16": torch.int16, "U8": torch.uint8, "BOOL": torch.bool}


def raw(tensor):
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def facts(tensor):
    return str(tensor.dtype), tuple(tensor.shape), raw(tensor)


# ------------------------------------------------------------------ independent readers: key → facts of the tensor
def from_torch(path):
    return {k: facts(v) for k, v in torch.load(path).items()}


def from_safetensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    return {k: (str(ST_DTYPES[v["dtype"]]), tuple(v["shape"]), data[slice(*v["data_offsets"])])
            for k, v in header.items() if k != "__metadata__"}


def from_h5(path):
    found = {}
    with h5py.File(path, "r") as f:
        for key in f:
            dataset = f[key]
            values = np.asarray(dataset[()])
            bfloat16 = dataset.attrs.get("is_bfloat16", False) or "torch.bfloat16" in dataset.attrs.get("dtypes", [])
            dtype = torch.bfloat16 if bfloat16 else torch.from_numpy(values.reshape(-1)[:0].copy()).dtype
            found[key] = (str(dtype), tuple(values.shape), values.tobytes())
    return found


def from_shards(folder):
    index = next(n for n in os.listdir(folder) if n.endswith(".index.json"))
    with open(os.path.join(folder, index)) as f:
        places = json.load(f)["weight_map"]
    found = {}
    for name in sorted(set(places.values())):
        reader = from_safetensors if name.endswith(".safetensors") else from_torch
        part = reader(os.path.join(folder, name))
        assert set(part) == {k for k, v in places.items() if v == name}, f"the index and {name} differ"
        found.update(part)
    assert len(set(places.values())) > 1, "there is one shard only"
    return found


def read(target, path):
    if "shards" in target:
        return from_shards(path)
    return {"pt": from_torch, "safetensors": from_safetensors}.get(target, from_h5)(path)


# ------------------------------------------------------------------ the tests
def make_state(dtypes):
    generator = torch.Generator().manual_seed(7)
    state = collections.OrderedDict()
    for i, dtype in enumerate(dtypes):
        values = torch.randn(16, 9, generator=generator) * 3
        state[f"layers.{i}.weight"] = values.to(dtype) if dtype != torch.bool else values > 0
        state[f"layers.{i}.empty"] = torch.zeros(0, 3).to(dtype)
        state[f"layers.{i}.scalar"] = torch.tensor(1).to(dtype)
    state["transposed"] = torch.randn(5, 7, generator=generator).t()
    state["tied"] = state["layers.0.weight"]
    return state


class Tests:
    def __init__(self, cbk, folder):
        self.cbk, self.folder = cbk, folder
        self.state = make_state(list(ST_DTYPES.values()))
        self.source = os.path.join(folder, "source.pt")
        torch.save(self.state, self.source)
        self.expected = {k: facts(v) for k, v in self.state.items()}

    def run(self, *arguments, code=0):
        r = subprocess.run([self.cbk, *arguments], capture_output=True, text=True, timeout=120)
        assert r.returncode == code, f"cbk {' '.join(arguments)}: exit code {r.returncode}: {r.stderr.strip()}"
        return r

    def copy(self, source, target, name):
        """Copies into a folder of its own; the path of the copy."""
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        file, *options = TARGETS[target]
        path = os.path.join(folder, file)
        self.run("copy", source, path, *options, "--no-progress-bar")
        assert os.listdir(folder) == [file], f"left behind: {os.listdir(folder)}"
        return path

    def same(self, found, expected, what):
        assert set(found) == set(expected), f"{what}: keys differ: {sorted(set(found) ^ set(expected))[:3]}"
        for key, value in expected.items():
            assert found[key] == value, f"{what}: {key} differs: {found[key][:2]}, expected {value[:2]}"

    def stored(self, target, source="pt"):
        """H5 0.5 has no dataset of its own for a tied tensor, where the source can tell that it is tied: safetensors cannot,
        nor can shards whose two tensors lie in different files."""
        tied = target == "h5" and source in ("pt", "h5", "h5_04")
        return {k: v for k, v in self.expected.items() if not (tied and k == "tied")}

    def test_every_format_to_every_format(self):
        first = {t: self.copy(self.source, t, "from_pt_to_" + t) for t in TARGETS}
        for target, path in first.items():
            self.same(read(target, path), self.stored(target), f"torch.save -> {target}")
        for a, b in itertools.product(TARGETS, TARGETS):
            self.same(read(b, self.copy(first[a], b, f"{a}_to_{b}")), self.stored(b, a), f"{a} -> {b}")
            self.run("diff", first[a], os.path.join(self.folder, f"{a}_to_{b}", TARGETS[b][0]))

    def test_cast_is_that_of_torch(self):
        for name in ("bfloat16", "float16", "float64"):
            dtype = getattr(torch, name)
            path = os.path.join(self.folder, name + ".pt")
            self.run("copy", self.source, path, "--to-dtype", name)
            expected = {k: facts(v.to(dtype) if v.is_floating_point() else v) for k, v in self.state.items()}
            self.same(from_torch(path), expected, "--to-dtype " + name)

    def test_ties_and_views_survive_a_cast_and_a_rename(self):
        base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        torch.save({"model": {"a": base, "b": base, "row": base[1], "t": base.t()}, "step": 3, "lr": 0.5}, self.source)
        path = os.path.join(self.folder, "x.pt")
        self.run("copy", self.source, path, "--rename", "model.b=model.c")
        got = torch.load(path)
        assert list(got) == ["model", "step", "lr"] and list(got["model"]) == ["a", "c", "row", "t"], list(got["model"])
        assert got["model"]["a"] is got["model"]["c"]
        pointers = {t.storage().data_ptr() for t in got["model"].values()}
        assert len(pointers) == 1 and got["model"]["t"].stride() == (1, 4)
        path = os.path.join(self.folder, "half.pt")
        self.run("copy", self.source, path, "--to-dtype", "float16")
        got = torch.load(path)
        assert got["model"]["a"] is got["model"]["b"]
        assert torch.equal(got["model"]["t"], base.t().half()) and got["step"] == 3 and got["lr"] == 0.5

    def test_diff_knows_objects_that_formats_write_differently(self):
        torch.save({"dtype": torch.float16, "layout": torch.strided, "span": range(3)}, self.source)
        copies = [self.source]
        for target in ("pt", "h5", "h5_04"):
            copies.append(self.copy(self.source, target, "objects_" + target))
        for a, b in itertools.combinations(copies, 2):
            self.run("diff", a, b)
        torch.save({"dtype": torch.bfloat16, "layout": torch.strided, "span": range(3)}, self.source)
        for copy in copies[1:]:
            self.run("diff", self.source, copy, code=1)

    def test_filters_and_names(self):
        path = os.path.join(self.folder, "x.safetensors")
        self.run("copy", self.source, path, "--include", "layers.*.weight", "--exclude", "layers.{0,1}", "--rename",
                 "layers.*.weight=block*")
        expected = {f"block{i}": self.expected[f"layers.{i}.weight"] for i in range(2, len(ST_DTYPES))}
        self.same(from_safetensors(path), expected, "filters and names")

    def test_records_are_read_and_written_only_if_allowed(self):
        torch.save({"args": argparse.Namespace(lr=0.5, name="x"), "w": torch.ones(3)}, self.source)
        path = os.path.join(self.folder, "x.pt")
        assert "argparse.Namespace" in self.run("ls", self.source).stdout
        assert "lr: 0.5" in self.run("show", self.source, "args").stdout
        for target in path, os.path.join(self.folder, "x.mdl"):
            refusal = self.run("copy", self.source, target, code=1).stderr
            assert "argparse.Namespace" in refusal and "--allow-records" in refusal and not os.path.exists(target), refusal
        self.run("copy", self.source, path, "--allow-records")
        got = torch.load(path)
        assert got["args"] == argparse.Namespace(lr=0.5, name="x") and torch.equal(got["w"], torch.ones(3))
        self.run("diff", self.source, path, "--allow-records")

    def test_sparse_and_quantised_weights_are_never_left_out_by_advice(self):
        for weight in torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8):
            torch.save({"a": torch.ones(2), "w": weight}, self.source)
            refusal = self.run("copy", self.source, os.path.join(self.folder, "x.safetensors"), code=1).stderr
            assert "write a PyTorch file (.pt)" in refusal and "--exclude" not in refusal, refusal
            path = os.path.join(self.folder, "x.pt")
            self.run("copy", self.source, path, "--overwrite")
            got = torch.load(path)["w"]
            assert got.layout == weight.layout and got.dtype == weight.dtype, got
        torch.save({"a": torch.ones(2), "epoch": 3}, self.source)
        refusal = self.run("copy", self.source, os.path.join(self.folder, "x.safetensors"), code=1).stderr
        assert "cbk copy --exclude" in refusal, refusal

    def test_targets_that_exist(self):
        path = os.path.join(self.folder, "x.pt")
        with open(path, "w") as f:
            f.write("mine")
        r = self.run("copy", self.source, path, code=1)
        assert "--overwrite" in r.stderr and open(path).read() == "mine"
        self.run("copy", self.source, path, "--overwrite")
        self.same(from_torch(path), self.expected, "--overwrite")
        self.run("copy", path, path, "--overwrite", "--to-dtype", "float64")  # onto itself
        assert torch.load(path)["transposed"].dtype == torch.float64
        deep = os.path.join(self.folder, "no", "such", "x.pt")
        self.run("copy", self.source, deep)
        self.same(from_torch(deep), self.expected, "folders are made")
        self.run("copy", self.source, os.path.join(path, "x.pt"), code=1)  # a file is no folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    options = parser.parse_args()
    passed = failed = 0
    for name in sorted(n for n in dir(Tests) if n.startswith("test_")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                harness.checked(getattr(Tests(os.path.abspath(options.cbk), folder), name))
                passed += 1
            except Exception as problem:
                failed += 1
                print(f"FAIL {name}: {type(problem).__name__}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
