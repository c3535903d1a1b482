#!/usr/bin/python3
"""Safetensors and sharded folders between cbk and Python: an independent parser (struct, json, numpy) and torch.

Usage: safetensors_interop.py --cbk PATH
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

import torch

import harness

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
         "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8}
RANKS = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]
TORCH = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32",
         torch.complex64: "C64", torch.float64: "F64", torch.int64: "I64"}

COPY = """
local cbk = require "cbk"
local source = cbk.open(arg[1])
local options = { root = source.root, overwrite = true }
if arg[3] then options.shard_size, options.format = arg[3], arg[4] end
cbk.create(arg[2], options):commit { progress = false }
"""


def write_safetensors(path, tensors, metadata=None, order=None, pad=0):
    """tensors: {name: (dtype, shape, bytes)}; the header lists them in `order`, the data in their own order."""
    entries, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = {} if metadata is None else {"__metadata__": metadata}
    header.update({name: entries[name] for name in order or entries})
    text = json.dumps(header).encode() + b" " * pad
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """(metadata, {name: (dtype, shape, bytes)}); checks what the format demands, and the layout of the reference."""
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    assert n % 8 == 0, "the header is not padded"
    text = raw[8:8 + n].decode()
    assert text.startswith("{") and ": " not in text.split('"__metadata__"')[0], "not compact"
    header = json.loads(text)
    metadata = header.pop("__metadata__", None)
    out, end, last = {}, 0, None
    for name, e in header.items():
        begin, stop = e["data_offsets"]
        count = 1
        for extent in e["shape"]:
            count *= extent
        assert begin == end and stop - begin == count * SIZES[e["dtype"]], f"span of {name}"
        place = (-RANKS.index(e["dtype"]), name.encode())
        assert last is None or last < place, f"order of {name}"
        out[name], end, last = (e["dtype"], e["shape"], raw[8 + n + begin:8 + n + stop]), stop, place
    assert 8 + n + end == len(raw), "size of the file"
    return metadata, out


def content(tensor):
    """(dtype, shape, bytes) of a torch tensor."""
    t = tensor.detach().contiguous()
    raw = t.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.numpy()
    return TORCH[t.dtype], list(t.shape), raw.tobytes()


class Suite(harness.Run):
    def __init__(self, cbk, folder):
        super().__init__(cbk, folder)
        with open(self.path("copy.lua"), "w") as f:
            f.write(COPY)

    def copy(self, source, target, *rest):
        done = subprocess.run([self.cbk, "run", self.path("copy.lua"), self.path(source), self.path(target), *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[:300])
        return done.stderr

    def refused(self, source, target, *rest):
        try:
            self.copy(source, target, *rest)
        except RuntimeError as error:
            assert not os.path.exists(self.path(target)), "something was written"
            return str(error)
        raise AssertionError("was not refused")


def samples():
    g = torch.Generator().manual_seed(5)
    out = {"model.w": torch.randn(33, 17, generator=g), "model.t": torch.randn(8, 6, generator=g).t(), "scalar": torch.tensor(3.5), "none": torch.empty(0, 4), "mask": torch.tensor([True, False, True])}
    for dtype in TORCH:
        if dtype != torch.bool:
            out[f"dtype.{str(dtype)[6:]}"] = torch.arange(-3, 4).abs().to(dtype) if dtype == torch.uint8 else torch.arange(-3, 4).to(dtype)
    return out


def run(s):
    tensors = samples()
    wanted = {name: content(t) for name, t in tensors.items()}
    torch.save(tensors, s.path("x.pt"))

    def torch_to_safetensors():
        s.copy("x.pt", "x.safetensors")
        metadata, found = read_safetensors(s.path("x.safetensors"))
        assert found == wanted, "content"
    s.check("torch to safetensors", torch_to_safetensors)

    def safetensors_to_torch():
        s.copy("x.safetensors", "back.pt")
        assert {k: content(t) for k, t in torch.load(s.path("back.pt")).items()} == wanted, "content"
    s.check("safetensors to torch", safetensors_to_torch)

    def foreign():
        names = list(wanted)[::-1]
        write_safetensors(s.path("foreign.safetensors"), wanted, {"format": "pt", "k": "ü"}, names, pad=13)
        s.copy("foreign.safetensors", "foreign.pt")
        found = torch.load(s.path("foreign.pt"))
        assert list(found) == names and {k: content(t) for k, t in found.items()} == wanted, "content or order"
        s.copy("foreign.safetensors", "again.safetensors")
        assert read_safetensors(s.path("again.safetensors"))[1] == wanted, "content"
    s.check("a file of another writer", foreign)

    def other_dtypes():
        odd = {name: (name, [2, 3], bytes((i * 37 + k) % 256 for k in range(6 * SIZES[name]))) for i, name in enumerate(SIZES) if name != "BOOL"}
        write_safetensors(s.path("odd.safetensors"), odd)
        s.copy("odd.safetensors", "odd2.safetensors")
        assert read_safetensors(s.path("odd2.safetensors"))[1] == odd, "content"
    s.check("every dtype", other_dtypes)

    def names():
        odd = {name: ("U8", [1], b"x") for name in ["", "a b", "ü", "𝄞", 'q"\\', "a/b", "\n\t\x01", "x" * 5000, "a.b.c"]}
        write_safetensors(s.path("names.safetensors"), odd)
        s.copy("names.safetensors", "names2.safetensors")
        assert read_safetensors(s.path("names2.safetensors"))[1] == odd, "content"
    s.check("odd names", names)

    def nested():
        torch.save({"model": {"a": tensors["model.w"], "b": {"c": tensors["scalar"]}}, "d": torch.nn.Parameter(tensors["model.w"])}, s.path("nested.pt"))
        s.copy("nested.pt", "nested.safetensors")
        assert set(read_safetensors(s.path("nested.safetensors"))[1]) == {"model.a", "model.b.c", "d"}
    s.check("nested dicts", nested)

    def tied():
        torch.save({"a": tensors["model.w"], "b": tensors["model.w"]}, s.path("tied.pt"))
        s.copy("tied.pt", "tied.safetensors")
        found = read_safetensors(s.path("tied.safetensors"))[1]
        assert found["a"] == found["b"] == wanted["model.w"]
    s.check("ties", tied)

    for name, value in {"step": {"a": tensors["scalar"], "step": 3}, "a list": [tensors["scalar"]], "complex128": {"z": torch.zeros(1, dtype=torch.complex128)}, "empty inside": {"a": {}}}.items():
        def refuse(value=value):
            torch.save(value, s.path("bad.pt"))
            s.refused("bad.pt", "bad.safetensors")
        s.check(f"refused: {name}", refuse)

    for form in ("torch", "safetensors"):
        s.check(f"{form} shards, written", lambda form=form: written_shards(s, form, tensors, wanted))
        s.check(f"{form} shards, read", lambda form=form: read_shards(s, form, tensors, wanted))


def split(tensors, limit):
    """The reference's rule, written again, but without an empty first shard."""
    shards, current = [[]], 0
    for name, t in tensors.items():
        size = -(-t.numel() // 8) if t.dtype == torch.bool else t.numel() * t.element_size()
        if current > 0 and current + size > limit:
            shards.append([])
            current = 0
        shards[-1].append(name)
        current += size
    return shards


def written_shards(s, form, tensors, wanted):
    stem, suffix = ("pytorch_model", ".bin") if form == "torch" else ("model", ".safetensors")
    for limit in (100, 2300, 10 ** 6):
        out = f"{form}-{limit}"
        s.copy("x.pt", out, str(limit), form)
        shards = split(tensors, limit)
        files = [f"{stem}-{i + 1:05}-of-{len(shards):05}{suffix}" for i in range(len(shards))]
        assert sorted(os.listdir(s.path(out))) == sorted(files + [f"{stem}{suffix}.index.json"]), os.listdir(s.path(out))
        with open(s.path(f"{out}/{stem}{suffix}.index.json")) as f:
            text = f.read()
        index = json.loads(text)
        assert text.strip() == json.dumps(index, indent=4)
        assert index["weight_map"] == {k: f for f, keys in zip(files, shards) for k in keys}
        assert index["metadata"]["total_size"] == sum(-(-t.numel() // 8) if t.dtype == torch.bool else t.numel() * t.element_size() for t in tensors.values())
        for file, keys in zip(files, shards):
            if form == "torch":
                found = {k: content(t) for k, t in torch.load(s.path(f"{out}/{file}")).items()}
            else:
                metadata, found = read_safetensors(s.path(f"{out}/{file}"))
                assert metadata == {"format": "pt"}
            assert found == {k: wanted[k] for k in keys}, file


def read_shards(s, form, tensors, wanted):
    stem, suffix = ("pytorch_model", ".bin") if form == "torch" else ("model", ".safetensors")
    folder = f"hand-{form}"
    os.mkdir(s.path(folder))
    names = list(tensors)
    parts = [names[::2], names[1::2]]
    files = [f"{stem}-{i + 1:05}-of-00002{suffix}" for i in range(2)]
    for file, keys in zip(files, parts):
        extra = {**{k: tensors[k] for k in keys}, "not.in.the.index": torch.zeros(3)}
        if form == "torch":
            torch.save(extra, s.path(f"{folder}/{file}"))
        else:
            write_safetensors(s.path(f"{folder}/{file}"), {k: content(t) for k, t in extra.items()}, {"format": "pt"})
    order = parts[1][::-1] + parts[0]
    index = f"{folder}/{stem}{suffix}.index.json"
    with open(s.path(index), "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": {k: files[k in parts[1]] for k in order}}, f)
    s.copy(index, f"{folder}.pt")
    found = torch.load(s.path(f"{folder}.pt"))
    assert list(found) == parts[0] + parts[1][::-1], "order"
    assert {k: content(t) for k, t in found.items()} == wanted, "content"
    s.copy(folder, f"{folder}.safetensors")
    assert read_safetensors(s.path(f"{folder}.safetensors"))[1] == wanted, "content of the folder"
    os.remove(s.path(f"{folder}/{files[1]}"))
    assert files[1] in s.refused(index, "gone.pt"), "the missing shard is not named"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--cbk", required=True)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(o.cbk, folder)
        run(suite)
    return suite.close()


if __name__ == "__main__":
    sys.exit(main())
