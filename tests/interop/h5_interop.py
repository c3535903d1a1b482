#!/usr/bin/python3
"""H5 checkpoints between cbk and real h5py: files in the layout of every version are dumped by cbk, and files that cbk
writes are read by h5py and h5dump.

Usage: h5_interop.py --cbk PATH
"""
import argparse
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.parse

import h5py
import numpy as np
import torch
from torch.utils._pytree import TreeSpec, LeafSpec

import harness

CODES = {"bool": 1, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}
LZ4 = 32004


def sample(dtype, shape, seed):
    """(array as it is stored, little-endian bytes); bfloat16 is stored as int16"""
    rng = np.random.default_rng(seed)
    stored = {"bfloat16": "int16"}.get(dtype, dtype)
    if stored == "bool":
        a = rng.integers(0, 2, shape).astype(bool)
    elif stored.startswith("float"):
        a = np.asarray(rng.standard_normal(shape)).astype(stored)
    elif stored.startswith("complex"):
        a = np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(stored)
    else:
        info = np.iinfo(stored)
        a = np.asarray(rng.integers(max(info.min, -1000), min(info.max, 1000), shape)).astype(stored)
    return a, a.tobytes()


# ------------------------------------------------------------------ LZ4 chunks, encoded here: h5py has no such filter
def lz4_block(raw):
    """a valid LZ4 block: runs of one byte as matches, the rest as literals"""
    out, literals, i = b"", b"", 0

    def sequence(lit, match):
        token = min(len(lit), 15) << 4 | (min(match - 4, 15) if match else 0)
        piece = bytes([token])
        if len(lit) >= 15:
            n = len(lit) - 15
            piece += b"\xff" * (n // 255) + bytes([n % 255])
        piece += lit
        if match:
            piece += struct.pack("<H", 1)
            if match - 4 >= 15:
                n = match - 19
                piece += b"\xff" * (n // 255) + bytes([n % 255])
        return piece
    while i < len(raw):
        run = 1
        while i + run < len(raw) - 12 and raw[i + run] == raw[i]:
            run += 1
        if run >= 8:
            out += sequence(literals + raw[i:i + 1], run - 1)
            literals, i = b"", i + run
        else:
            literals, i = literals + raw[i:i + 1], i + 1
    return out + sequence(literals, 0)


def lz4_chunk(raw, block=1 << 30):
    block = min(block, len(raw)) or 1
    out = struct.pack(">QI", len(raw), block)
    for at in range(0, len(raw), block):
        part = raw[at:at + block]
        packed = lz4_block(part)
        packed = part if len(packed) >= len(part) else packed
        out += struct.pack(">I", len(packed)) + packed
    return out


def add_lz4(f, name, a, chunk, block, masked):
    """as h5py with the filter plugin stores it; every third chunk unfiltered if `masked`"""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(chunk)
    plist.set_filter(LZ4, h5py.h5z.FLAG_OPTIONAL, (0,))
    dtype = h5py.h5t.py_create(a.dtype, logical=True)
    d = h5py.Dataset(h5py.h5d.create(f.id, name.encode(), dtype, h5py.h5s.create_simple(a.shape), plist))
    for n, at in enumerate(itertools.product(*(range(0, s, c) for s, c in zip(a.shape, chunk)))):
        part = np.zeros(chunk, a.dtype)
        source = a[tuple(slice(o, o + c) for o, c in zip(at, chunk))]
        part[tuple(slice(0, s) for s in source.shape)] = source
        raw = part.tobytes()
        if masked and n % 3 == 0:
            d.id.write_direct_chunk(at, raw, 1)
        else:
            d.id.write_direct_chunk(at, lz4_chunk(raw, block))
    return d


STORAGES = {
    "contiguous": {}, "auto": {"chunks": True}, "gzip": {"compression": "gzip"}, "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "lzf": {"compression": "lzf"}, "lzf+shuffle": {"compression": "lzf", "shuffle": True}, "lz4": None, "lz4 blocks": None, "lz4 masked": None,
}


def add(f, name, a, storage):
    if a.ndim == 0 or a.size == 0:
        return f.create_dataset(name, data=a)
    if storage.startswith("lz4"):
        chunk = tuple(max(1, s // 2 + 1) for s in a.shape)
        return add_lz4(f, name, a, chunk, 100 if "blocks" in storage else 1 << 30, "masked" in storage)
    return f.create_dataset(name, data=a, **STORAGES[storage])


# ------------------------------------------------------------------ files as the savers lay them out
def spec05(keys):
    leaf = {"type": None, "context": None, "children_spec": []}
    node = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf] * len(keys)}
    return json.dumps([{k: "*" for k in keys}, json.dumps([1, node])], indent=4)


def make05(path, arrays, storage, libver):
    with h5py.File(path, "w", libver=libver) as f:
        f.attrs["__spec__"], f.attrs["__version__"], f.attrs["__cstorch_version__"] = spec05(list(arrays)), 0.5, "2.10.0"
        for key, (dtype, a) in arrays.items():
            d = add(f, key, a, storage)
            m = {"__TORCH__": True, "shapes": [list(a.shape)], "dtypes": ["torch." + dtype], "rtfx_dtypes": [CODES[dtype]],
                 "__TYPE__": "TorchTensorSerializer", "__NUMPY__": True, "compressed": False}
            for k, v in m.items():
                d.attrs[k] = [tuple(v[0])] if k == "shapes" else v
            f.attrs[key + ".__metadata__"] = json.dumps({"__spec__": json.loads(spec05([key])), "__objects__": [key], key + ".__metadata__": m}, indent=4)
        f.attrs["__SUCCESS__"] = True


def make04(path, arrays, storage, version):
    with h5py.File(path, "w") as f:
        f.attrs["__spec__"] = pickle.dumps(TreeSpec(dict, list(arrays), [LeafSpec() for _ in arrays]), 4).hex()
        if version != 0.1:
            f.attrs["__version__"] = version
        for key, (dtype, a) in arrays.items():
            d = add(f, urllib.parse.quote(key, safe=""), a, storage)
            d.attrs["is_bfloat16"] = dtype == "bfloat16"
            if version > 0.25:
                d.attrs["__H5_TYPE__"] = "TorchTensorH5Type" if version > 0.35 else "NumpyArrayH5Type"


def make_flat(path, arrays, storage):
    with h5py.File(path, "w") as f:
        for key, (dtype, a) in arrays.items():
            add(f, urllib.parse.quote(key, safe=""), a, storage).attrs["is_bfloat16"] = dtype == "bfloat16"


class SpecUnpickler(pickle.Unpickler):
    """dill need not be installed for the one function of it that a spec names"""

    def find_class(self, module, name):
        if (module, name) == ("dill._dill", "_load_type"):
            return {"dict": dict, "list": list, "tuple": tuple}.__getitem__
        return super().find_class(module, name)


class Suite(harness.Run):
    def read(self, path):
        """{key: (kind, dtype, shape, digest)} of a flat dict of tensors"""
        root = json.loads(self.call("dump", path))["root"]
        return {k["v"]: (n["dtype"], n["shape"], n.get("hex"), n.get("sha256")) for k, n in root["items"]}


def arrays_of(dtypes, shapes):
    out = {}
    for i, (dtype, shape) in enumerate(itertools.product(dtypes, shapes)):
        out[f"{dtype}/{'x'.join(map(str, shape)) or 'scalar'}.w é%"] = (dtype, sample(dtype, shape, i)[0])
    return out


def same(run, path, arrays):
    got = run.read(path)
    assert sorted(got) == sorted(arrays), f"keys differ: {sorted(set(got) ^ set(arrays))[:4]}"
    for key, (dtype, a) in arrays.items():
        d, shape, text, digest = got[key]
        assert (d, shape) == (dtype, list(a.shape)), f"{key}: {d} {shape}"
        raw = a.tobytes()
        assert text == raw.hex() if text is not None else digest == hashlib.sha256(raw).hexdigest(), f"{key}: the elements differ"


def reading(run):
    shapes = [(), (0,), (3, 0, 2), (1,), (1000,), (37, 53), (5, 7, 3), (150, 170)]
    slashless = {k.replace("/", "_"): v for k, v in arrays_of(list(CODES), shapes).items()}
    flat = arrays_of(["float32", "bfloat16", "int8", "uint16", "uint64", "complex64", "bool"], shapes)
    for storage in STORAGES:
        for libver in ("earliest", "latest"):
            p = run.path(f"05-{storage}-{libver}.mdl")
            make05(p, slashless, storage, libver)
            run.check(f"read 0.5 {storage} {libver}", lambda: same(run, p, slashless))
        for version in (0.1, 0.2, 0.3, 0.4):
            p = run.path(f"{version}-{storage}.h5")
            make04(p, flat, storage, version)
            run.check(f"read {version} {storage}", lambda: same(run, p, flat))
        p = run.path(f"flat-{storage}.h5")
        make_flat(p, flat, storage)
        run.check(f"read flat {storage}", lambda: same(run, p, flat))


def torch_sample(tensor_dtypes):
    torch.manual_seed(1)
    tree = {"model": {}, "step": 7, "lr": 1e-05, "name": "größe", "none": None, "flags": [True, (1, 2.5)]}
    for name in tensor_dtypes:
        for shape in [(), (0, 3), (5,), (70, 33)]:
            tree["model"][f"{name}.{len(shape)}"] = (torch.randn(shape) * 50).to(getattr(torch, name))
    tree["model"]["tied"] = tree["model"]["float32.2"]
    return tree


def leaf_array(d, dtype):
    a = d[()]
    return a.view(np.int16) if dtype == "bfloat16" else a


def expected_array(t):
    return t.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.numpy()


def written05(run, path, tree):
    with h5py.File(path, "r") as f:
        assert bool(f.attrs["__SUCCESS__"]) and float(f.attrs["__version__"]) == 0.5
        node = json.loads(json.loads(f.attrs["__spec__"])[1])[1]
        assert json.loads(node["context"]) == list(tree)
        for key, t in tree["model"].items():
            meta = json.loads(f.attrs[f"model.{key}.__metadata__"])
            m = meta[f"model.{key}.__metadata__"]
            if key == "tied":
                assert m["__TYPE__"] == "LinkedObject" and m["key"] == "model.float32.2", m
                continue
            d = f[f"model.{key}"]
            assert list(d.shape) == list(t.shape) == m["shapes"][0], d.shape
            assert m["dtypes"] == [str(t.dtype)] and list(d.attrs["dtypes"]) == m["dtypes"], m["dtypes"]
            assert d.attrs["shapes"].tolist() == [list(t.shape)] and bool(d.attrs["__NUMPY__"])
            assert leaf_array(d, str(t.dtype)[6:]).tobytes() == expected_array(t.contiguous()).tobytes(), key
        scalar = json.loads(f.attrs["lr.__metadata__"])["lr.__metadata__"]
        assert scalar == {"scalar_value": 1e-05, "__TYPE__": "ScalarSerializer", "__NONE__": True}, scalar
        # The text is what Python's json module would write.
        for k, v in f.attrs.items():
            if k.endswith("__metadata__") or k == "__spec__":
                assert json.dumps(json.loads(v), indent=4) == v, k


def written04(run, path, tree):
    with h5py.File(path, "r") as f:
        spec = SpecUnpickler(io.BytesIO(bytes.fromhex(f.attrs["__spec__"]))).load()
        assert spec.type is dict and spec.context == list(tree) and spec.children_specs[0].context == list(tree["model"])
        assert spec.num_leaves == len(tree["model"]) + 7, spec.num_leaves
        for key, t in tree["model"].items():
            d = f[urllib.parse.quote(f"model.{key}", safe="")]
            assert d.attrs["__H5_TYPE__"] == "TorchTensorH5Type" and bool(d.attrs["is_bfloat16"]) == (t.dtype == torch.bfloat16)
            assert leaf_array(d, str(t.dtype)[6:]).tobytes() == expected_array(t.contiguous()).tobytes(), key
        assert f["model.tied"] == f["model.float32.2"], "tied weights are one dataset"
        assert f["step"][()] == 7 and f["lr"][()] == 1e-05 and f["name"].attrs["string_value"] == "größe"
        assert f["none"].attrs["__H5_TYPE__"] == "NoneH5Type" and f["flags.0"][()] == np.True_


def editable(path):
    """libhdf5 may change what cbk wrote"""
    with h5py.File(path, "r+") as f:
        f.attrs["added"] = "x" * 5000
        f.create_dataset("added", data=np.arange(10000))
        del f["model.float32.1"]
    with h5py.File(path, "r") as f:
        assert f["added"][-1] == 9999 and f.attrs["added"] == "x" * 5000 and "model.float32.1" not in f


def h5dump(path):
    r = subprocess.run(["h5dump", path], capture_output=True, timeout=120)
    assert r.returncode == 0 and not r.stderr, r.stderr[:300]


def writing(run):
    tree = torch_sample(list(CODES))
    source = run.path("in.pt")
    torch.save(tree, source)
    for version, verify in (("0.5", written05), ("0.4", written04)):
        p = run.path(f"out-{version}.mdl")
        run.check(f"copy to {version}", lambda: run.call("copy", source, p, "--h5-version", version))
        run.check(f"{version} read by h5py", lambda: verify(run, p, tree))
        if shutil.which("h5dump"):
            run.check(f"{version} read by h5dump", lambda: h5dump(p))
        run.check(f"{version} edited by h5py", lambda: editable(p))
    many = {f"layer.{i}.{'weight' if i % 2 else 'bias'}": torch.full((i % 5, 3), float(i)) for i in range(3000)}
    torch.save(many, run.path("many.pt"))
    p = run.path("many.mdl")

    def check_many():
        run.call("copy", run.path("many.pt"), p)
        with h5py.File(p, "r") as f:
            assert sorted(f) == sorted(many) and len(f.attrs) == 3004
            for k in list(many)[::97]:
                assert f[k][()].tobytes() == many[k].numpy().tobytes(), k
    run.check("3000 datasets", check_many)


def writing_flat(run):
    """Named arrays without a tree: percent-encoded datasets, nothing at the root."""
    torch.manual_seed(2)
    names = {"plain": "float32", "a/b c%é.w": "bfloat16", "layer.0": "int64", "deep/x": "float16", "byte": "int8", "z": "complex64", "yes": "bool"}
    tree = {n: (torch.randn(3, 4, dtype=torch.complex64) if d == "complex64" else (torch.randn(3, 4) * 9).to(getattr(torch, d))) for n, d in names.items()}
    tree.update(scalar=torch.tensor(2.5), empty=torch.zeros(0, 3), turned=torch.arange(12.0).reshape(3, 4).t(), array=np.arange(5, dtype=np.uint8))
    tree["tied"] = tree["plain"]
    source, target = run.path("flat.pt"), run.path("flat-out.h5")
    torch.save(tree, source)

    def check():
        run.call("copy", source, target, "--h5-version", "flat")
        with h5py.File(target, "r") as f:
            assert not f.attrs and sorted(f) == sorted(urllib.parse.quote(k, safe="") for k in tree), sorted(f)
            for key, value in tree.items():
                d = f[urllib.parse.quote(key, safe="")]
                is_bfloat = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
                want = value if isinstance(value, np.ndarray) else expected_array(value.contiguous())
                assert d.shape == want.shape and d.dtype == want.dtype and d[()].tobytes() == want.tobytes(), key
                assert d.attrs["__H5_TYPE__"] == "NumpyArrayH5Type" and bool(d.attrs["is_bfloat16"]) == is_bfloat, key
            assert f["tied"] == f["plain"], "tied weights are one dataset"
        found = run.read(target)
        assert sorted(found) == sorted(tree) and found["a/b c%é.w"][:2] == ("bfloat16", [3, 4]), found
        back = run.path("flat-back.pt")
        run.call("copy", target, back)
        loaded = torch.load(back)
        for key, value in tree.items():
            assert torch.equal(torch.as_tensor(loaded[key]), torch.as_tensor(value)), key
    run.check("flat file read by h5py and by cbk", check)
    if shutil.which("h5dump"):
        run.check("flat file read by h5dump", lambda: h5dump(target))

    def refused(value, word):
        path, never = run.path("refused.pt"), run.path("never.h5")
        torch.save(value, path)
        r = subprocess.run([run.cbk, "copy", path, never, "--h5-version", "flat"], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and r.stderr.count("\n") == 1 and word in r.stderr and not os.path.exists(never), r.stderr[-300:]
    for value, word in (({"model": {"w": torch.ones(2)}}, "model"), ({"step": 3}, "step"), ([torch.ones(2)], "list"), ({"": torch.ones(2)}, "name")):
        run.check(f"flat: {word} is refused", lambda: refused(value, word))


def writing_many(run):
    """More root attributes and datasets than 16 bits count."""
    count = 70000
    script = run.path("many.lua")
    with open(script, "w") as f:
        f.write("local cbk = require 'cbk'\nlocal out = cbk.create(arg[1], { h5_version = arg[2] })\nout.steps = cbk.dict()\n"
                f"for i = 0, {count - 1} do if i % 2 == 0 then out['w' .. i] = cbk.full({{ 2 }}, i, {{ dtype = 'int32' }}) else out.steps['s' .. i] = i end end\n"
                "out:commit()\n")

    def check(version):
        path = run.path(f"many-{version}.mdl")
        run.call("run", script, path, version)
        with h5py.File(path, "r") as f:
            if version == "0.5":
                assert len(f.attrs) == count + 4 and len(f) == count // 2, (len(f.attrs), len(f))
            else:
                assert len(f) == count, len(f)
            for i in range(0, count, 9973):
                if i % 2 == 0:
                    assert f[f"w{i}"][()].tolist() == [i, i], i
                elif version == "0.5":
                    assert json.loads(f.attrs[f"steps.s{i}.__metadata__"])[f"steps.s{i}.__metadata__"]["scalar_value"] == i, i
                else:
                    assert f[f"steps.s{i}"][()] == i, i
        found = run.call("-e", f"(function() local root, sum, n = cbk.open('{path}').root, 0, 0; for k, v in cbk.items(root) do "
                               "if k == 'steps' then for _, s in cbk.items(v) do sum, n = sum + s, n + 1 end else sum, n = sum + v:stats().max, n + 1 end end; "
                               "return n .. ' ' .. sum end)()").split()
        assert found == [str(count), str(sum(range(count)))], found
    for version in ("0.5", "0.4"):
        run.check(f"{count} values in {version}", lambda: check(version))


def surrogates(run):
    """Lone surrogates, which Python's text may hold, survive every format that can hold them; the others refuse them."""
    texts = {"high": "\ud800", "inside": "a\udfffb", "zero": "\x00\udc00\x00", "split": "\ud800" + "\udc00", "pair": "\U00010000 \ud83d",
             "empty": {"\udcff": {}}, "list": ["\udc80", "é"]}
    leaves = {**{k: v for k, v in texts.items() if isinstance(v, str)}, "list.0": "\udc80", "list.1": "é"}
    source = run.path("surrogates.pt")
    torch.save({**texts, "w": torch.ones(2)}, source)

    def back(path):
        copy = run.path("surrogates-back.pt")
        run.call("copy", path, copy, "--overwrite")
        found = torch.load(copy)
        assert found.pop("w").tolist() == [1, 1] and found == texts, ascii(found)

    def copied(version):
        path = run.path(f"surrogates-{version}.mdl")
        run.call("copy", source, path, "--h5-version", version)
        back(path)
        with h5py.File(path, "r") as f:
            for key, text in leaves.items():
                if version == "0.4":
                    found = f[key].attrs.get("string_value")
                    found = pickle.loads(bytes.fromhex(f[key].attrs["object_value"])) if found is None else found
                else:
                    meta = json.loads(f.attrs[key + ".__metadata__"])[key + ".__metadata__"]
                    found = meta.get("string_value")
                    found = pickle.loads(b"".join(bytes(x) for x in f[key].attrs["__BYTES__"])) if found is None else found
                assert found == text, f"{key}: {ascii(found)}"
    for version in ("0.4", "0.5"):
        run.check(f"surrogates to {version} and back", lambda: copied(version))

    def from_python():
        """What the original writes: json.dumps of such a text."""
        path = run.path("surrogates-python.mdl")
        with h5py.File(path, "w") as f:
            f.attrs["__spec__"], f.attrs["__version__"], f.attrs["__cstorch_version__"] = spec05(["t", "\u00fc"]), 0.5, "2.10.0"
            for key, text in (("t", "x\udabc"), ("\u00fc", "\udc00\ud800")):
                m = {"string_value": text, "__TYPE__": "StringSerializer", "__NONE__": True}
                f.attrs[key + ".__metadata__"] = json.dumps({"__spec__": json.loads(spec05([key])), "__objects__": [key], key + ".__metadata__": m}, indent=4)
            f.attrs["__SUCCESS__"] = True
        run.call("copy", path, run.path("surrogates-python.pt"))
        assert torch.load(run.path("surrogates-python.pt")) == {"t": "x\udabc", "\u00fc": "\udc00\ud800"}
    run.check("surrogates written by Python", from_python)

    def refused(what, tree, target, *options):
        path, target = run.path("refused.pt"), run.path(target)
        torch.save(tree, path)
        r = subprocess.run([run.cbk, "copy", path, target, *options], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and r.stderr.count("\n") == 1 and what in r.stderr and not os.path.exists(target), r.stderr[-300:]
    for version in ("0.4", "0.5", "flat"):
        run.check(f"a key with a surrogate is refused by {version}", lambda: refused("not Unicode", {"a\ud800": torch.ones(2)}, "refused.mdl", "--h5-version", version))
    run.check("a name with a surrogate is refused by safetensors", lambda: refused("not Unicode", {"a\ud800": torch.ones(2)}, "refused.safetensors"))

    def metadata():
        script, target = run.path("metadata.lua"), run.path("metadata.safetensors")
        with open(script, "w") as f:
            f.write("local cbk = require 'cbk'\nlocal t = cbk.open(arg[1])\n"
                    "cbk.create(arg[2], { root = { w = t.root.w }, metadata = { note = t.root.high } }):commit()")
        r = subprocess.run([run.cbk, "run", script, source, target], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and "note" in r.stderr and not os.path.exists(target), r.stderr
    run.check("metadata with a surrogate is refused by safetensors", metadata)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cbk-h5-") as folder:
        run = Suite(args.cbk, folder)
        reading(run)
        writing(run)
        writing_flat(run)
        writing_many(run)
        surrogates(run)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
