#!/usr/bin/python3
"""Torch checkpoints between cbk and PyTorch, both ways.

What torch.save writes, `cbk dump` shows exactly and `cbk copy` writes again; torch.load reads the copy and finds the
same values, ties, shared storages and strides. Files that torch would execute are refused in one line.

Usage: torch_interop.py --cbk PATH [--seed N]
"""
import argparse
import collections
import hashlib
import json
import os
import random
import struct
import sys
import tempfile
import warnings
import zipfile

import numpy as np
import torch

import harness

warnings.filterwarnings("ignore")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.bool, torch.complex64, torch.complex128]


class Different(Exception):
    pass


def need(condition, *text):
    if not condition:
        raise Different(" ".join(str(t) for t in text))


# ------------------------------------------------------------------ comparing what torch loads
def raw(t):
    t = t.detach().contiguous()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.int16)
    return t.numpy().tobytes()


class Same:
    """Equality with identity: what is one object, or one storage, on one side must be one on the other."""

    def __init__(self, strides=True):
        self.strides, self.objects, self.storages = strides, {}, {}

    def paired(self, table, a, b, what):
        need(table.setdefault(("a", a), b) == b and table.setdefault(("b", b), a) == a, what)

    def __call__(self, a, b, path="root"):
        need(type(a) is type(b), path, "is a", type(b).__name__, "instead of a", type(a).__name__)
        if isinstance(a, torch.Tensor):
            return self.tensor(a, b, path)
        if isinstance(a, dict):
            need(list(map(repr, a)) == list(map(repr, b)), path, "has the keys", list(b)[:20], "instead of", list(a)[:20])
            for k, j in zip(a, b):
                self(a[k], b[j], f"{path}.{k}")
            if hasattr(a, "_metadata"):
                self(a._metadata, b._metadata, path + "._metadata")
        elif isinstance(a, (set, frozenset)):
            need(a == b, path, "is", b)
        elif isinstance(a, (list, tuple, collections.deque)):
            need(len(a) == len(b), path, "has", len(b), "items")
            for i, (x, y) in enumerate(zip(a, b)):
                self(x, y, f"{path}.{i}")
        elif isinstance(a, (np.ndarray, np.generic)):
            native = a.astype(a.dtype.newbyteorder("="))  # cbk writes little-endian arrays
            need(native.dtype == b.dtype and a.shape == b.shape and native.tobytes() == b.tobytes(), path, "is", b)
        elif isinstance(a, float):
            need(struct.pack("<d", a) == struct.pack("<d", b), path, "is", b, "instead of", a)
        else:
            need(a == b, path, "is", repr(b)[:80], "instead of", repr(a)[:80])

    def tensor(self, a, b, path):
        self.paired(self.objects, id(a), id(b), f"{path} is tied differently")
        need(a.dtype == b.dtype and a.shape == b.shape and a.layout == b.layout, path, "is", b.dtype, tuple(b.shape), b.layout)
        need(a.requires_grad == b.requires_grad, path, "has another requires_grad")
        if a.is_quantized:
            need(a.qscheme() == b.qscheme(), path, "has another scheme")
            need(torch.equal(a.dequantize(), b.dequantize()) and torch.equal(a.int_repr(), b.int_repr()), path, "has other values")
        elif a.layout == torch.sparse_coo:
            need(raw(a._indices()) == raw(b._indices()) and raw(a._values()) == raw(b._values()), path, "has other values")
        elif a.layout != torch.strided:
            need(torch.equal(a.to_dense(), b.to_dense()), path, "has other values")
        else:
            need(raw(a) == raw(b), path, "has other values")
            self.paired(self.storages, a.storage()._cdata, b.storage()._cdata, f"{path} shares its storage differently")
            if self.strides:
                need(a.stride() == b.stride(), path, "has the strides", b.stride(), "instead of", a.stride())


# ------------------------------------------------------------------ comparing what cbk shows
def shown(value, node, path="root"):
    kind = node["kind"]
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        need(kind == ("parameter" if isinstance(value, torch.nn.Parameter) else "tensor"), path, "is shown as", kind)
        need(node["dtype"] == str(value.dtype)[6:] and node["shape"] == list(value.shape), path, "is shown as", node["dtype"], node["shape"])
        data = raw(value)
        need(node.get("hex", "") == data.hex() if "hex" in node else node["sha256"] == hashlib.sha256(data).hexdigest(), path, "is shown with other bytes")
    elif isinstance(value, np.ndarray):
        need(kind == "ndarray" and node["dtype"] == value.dtype.name and node["shape"] == list(value.shape), path, "is shown as", node)
        need(node.get("hex", "") == value.astype(value.dtype.newbyteorder("<")).tobytes().hex(), path, "is shown with other elements")
    elif isinstance(value, dict):
        need(kind in ("dict", "ordereddict") and len(node["items"]) == len(value), path, "is shown as", kind)
        for (k, v), (key, inner) in zip(value.items(), node["items"]):
            readable = {range: str, torch.device: str, frozenset: lambda key: str(tuple(key)), torch.Size: lambda key: str(tuple(key))}.get(type(k))
            need(readable is None or key["v"] == readable(k), path, "has a key that is shown as", key)
            shown(v, inner, f"{path}.{k}")
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        need(len(node["items"]) == len(value), path, "is shown with", len(node["items"]), "items")
        for i, (v, inner) in enumerate(zip(value, node["items"])):
            shown(v, inner, f"{path}.{i}")
    elif isinstance(value, bool) or value is None:
        need(node.get("value") == value, path, "is shown as", node)
    elif isinstance(value, int):
        need(kind == "int" and int(node["value"]) == value, path, "is shown as", node)
    elif isinstance(value, float) and not isinstance(value, np.generic):
        need(kind == "float" and struct.pack("<d", float.fromhex(node["hex"])) == struct.pack("<d", value) or value != value, path, "is shown as", node)


# ------------------------------------------------------------------ samples
def sample(r, dtype, shape):
    n = int(np.prod(shape))
    if dtype == torch.bool:
        return torch.tensor([r.random() < 0.5 for _ in range(n)], dtype=dtype).reshape(shape)
    if dtype.is_complex:
        return torch.randn(n, dtype=dtype).reshape(shape)
    if dtype.is_floating_point:
        return (torch.randn(n, dtype=torch.float64) * 10).to(dtype).reshape(shape)
    return torch.tensor([r.randrange(100) for _ in range(n)]).to(dtype).reshape(shape)


def views(r):
    base = torch.arange(60.0)
    grid = base.reshape(5, 12)
    return {"base": base, "grid": grid, "t": grid.t(), "row": grid[2], "col": grid[:, 3], "step": base[1:50:7], "one": grid[3, 3],
            "none": base[7:7], "wide": torch.tensor([[1.0], [2.0]]).expand(2, 5), "block": grid[1:3, 2:5], "again": base}


def sparse_use(r):
    """Small parts of large storages: sharing stays, the rest need not."""
    big = torch.randn(4000)
    other = torch.randn(100, 100)
    alone = torch.randn(1000, 8)
    return {"head": big[:3], "tail": big[3990:], "mid": big[1500:1600].reshape(10, 10), "inside": big[1510:1520], "column": other[:, 7],
            "slice": alone[500:510], "whole": torch.randn(9)}


def python_values(r):
    shared = [1, {"x": 2}]
    return {"ints": [0, 255, 256, 65535, 65536, -1, -128, -129, 2**31 - 1, 2**31, -2**31, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**100, -2**100, 2**2040],
            "floats": [0.0, -0.0, 1e-310, float("inf"), float("-inf"), float("nan"), 0.1], "text": ["", "äöü", "x" * 300, "\u2603\U0001d11e", "a\nb\tc\0d"],
            "bytes": [b"", b"\0\xff", b"x" * 1000, bytearray(b"abc"), bytearray()], "sets": [{1, 2, 3}, frozenset({"a"}), set()],
            "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "complex": 3 - 4j, "flags": [True, False, None], 7: "int key", (1, "a"): "tuple key",
            None: "none key", 2.5: "float key",
            range(3): "range key", torch.device("cpu"): "device key", frozenset({1}): "set key", torch.Size([1, 2]): "size key", "shared": [shared, shared], "size": torch.Size([3, 4]), "device": torch.device("cpu"),
            "cuda": torch.device("cuda", 1), "dtypes": [torch.float16, torch.int64, torch.quint8], "od": collections.OrderedDict([("b", 1), ("a", 2)]),
            "counter": collections.Counter("abca"), "many": list(range(2500)), "dict": {str(i): i for i in range(2500)}, "range": range(3, 9, 2)}


def training(r):
    torch.manual_seed(r.randrange(10000))
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4, bias=False))
    net[2].weight = torch.nn.Parameter(net[0].weight.t().contiguous())
    opt = torch.optim.Adam([{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 1e-4}], lr=1e-3)
    for _ in range(2):
        net(torch.randn(5, 4)).sum().backward()
        opt.step()
    sched = torch.optim.lr_scheduler.StepLR(opt, 3)
    return {"model": net.state_dict(), "optimizer": opt.state_dict(), "scheduler": {k: v for k, v in sched.state_dict().items()},
            "params": dict(net.named_parameters()), "global_step": 2}


def tied(r):
    w = torch.nn.Parameter(torch.randn(3, 4))
    t = torch.randn(5)
    return {"a": w, "b": w, "plain": t, "same": t, "alias": t[:], "list": [t, w], "data": w.data, "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
            "grad": torch.ones(3, requires_grad=True)}


def quantized(r):
    x = torch.randn(4, 6)
    return {"tensor": torch.quantize_per_tensor(x, 0.05, 10, torch.quint8), "signed": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            "wide": torch.quantize_per_tensor(x, 0.001, 0, torch.qint32),
            "channel": torch.quantize_per_channel(x, torch.rand(4) + 0.01, torch.zeros(4, dtype=torch.int64), 0, torch.qint8),
            "float points": torch.quantize_per_channel(x, torch.rand(4) + 0.01, torch.rand(4), 0, torch.quint8)}


def sparse(r):
    dense = torch.relu(torch.randn(5, 7))
    return {"coo": dense.to_sparse(), "loose": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (4,)),
            "hybrid": torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 3), (4, 3)), "dense": dense}


def numpy_values(r):
    return {"a": np.arange(12.0).reshape(3, 4), "f": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)), "s": np.float32(1.5),
            "i": np.int64(-3), "b": np.bool_(True), "big": np.arange(5, dtype=">i4"), "zero": np.zeros((0, 3)), "c": np.complex64(1 + 2j)}


def numpy_dtypes(r):
    dtypes = [np.dtype(code) for code in ("f4", ">i8", "bool", "S5", "U3", "c16", "i1", ">f2")]
    return {"dtypes": dtypes, "again": dtypes[0], "array": np.zeros(2, ">i8")}


def fortran_arrays(r):
    """numpy keeps the column-major order in the pickle; the elements must be those of the same positions."""
    cube = np.arange(24.0).reshape(2, 3, 4)
    column = np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4))
    return {"cube": np.asfortranarray(cube), "swapped": np.asfortranarray(cube.astype(">f4")), "permuted": cube.transpose(1, 2, 0), "turned": cube.T,
            "sliced": column[:, ::2], "reversed": column[::-1], "bools": np.asfortranarray(cube > 7), "complex": np.asfortranarray(cube * 1j), "row": np.asfortranarray(cube[:1, :, 0]),
            "empty": np.zeros((3, 0, 2), order="F"), "tensor": Evil(torch._utils._rebuild_device_tensor_from_numpy, np.asfortranarray(cube[0]), torch.float64, "cpu", False)}


def samples(r):
    for dtype in DTYPES:
        yield str(dtype)[6:], {str(s): sample(r, dtype, s) for s in [(), (1,), (0,), (3, 0, 2), (2, 3), (7, 1, 5), (17, 33)]}
    for make in (views, sparse_use, python_values, training, tied, quantized, sparse, numpy_values, numpy_dtypes, fortran_arrays):
        yield make.__name__, make(r)
    yield "channels last", {"w": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    yield "bare tensor", torch.arange(6)
    yield "bare list", [torch.ones(2), 3, None]
    yield "empty dict", {}
    yield "scalar root", 42
    deep = {"x": torch.ones(1)}
    for i in range(60):
        deep = {"d": deep} if i % 2 else [deep]
    yield "deep", deep
    yield "many tensors", {f"layers.{i}.weight": torch.full((3, i % 5), float(i)) for i in range(1000)}


# ------------------------------------------------------------------ files that torch.save of this release does not write
def rezipped(path, method=zipfile.ZIP_DEFLATED, top=None, change=None):
    """The archive written again by another zip program."""
    with zipfile.ZipFile(path) as z:
        records = [(n, z.read(n)) for n in z.namelist()]
    if change:
        records = change(records)
    with zipfile.ZipFile(path, "w", method) as z:
        for name, data in records:
            z.writestr((top + name[name.index("/"):]) if top else name, data)


def big_endian(itemsize):
    def change(records):
        out = []
        for name, data in records:
            if "/data/" in name and itemsize > 1:
                data = np.frombuffer(data, f"u{itemsize}").byteswap().tobytes()
            out.append((name, data))
        return out + [(records[0][0].split("/")[0] + "/byteorder", b"big")]
    return change


def modern(path, dtype, data, shape):
    """A dtype without a storage class: untyped storage and _rebuild_tensor_v3, as newer releases write it."""
    def uni(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()
    strides, n = [], 1
    for s in reversed(shape):
        strides.insert(0, n)
        n *= s
    pack = lambda t: b"(" + b"".join(b"J" + struct.pack("<i", x) for x in t) + b"t"
    body = b"\x80\x02}" + uni("w") + b"ctorch._utils\n_rebuild_tensor_v3\n((" + uni("storage") + b"ctorch.storage\nUntypedStorage\n" + uni("0") + uni("cpu") + b"J" + \
        struct.pack("<i", len(data)) + b"tQK\x00" + pack(shape) + pack(strides) + b"\x89ccollections\nOrderedDict\n)Rctorch\n" + dtype.encode() + b"\ntRs."
    with zipfile.ZipFile(path, "w") as z:
        for name, content in (("data.pkl", body), (".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"), ("data/0", data), ("version", b"3\n")):
            z.writestr("m/" + name, content)


def compressed_rows(run, r, path):
    """Releases since 2.0 rebuild every sparse layout with one function, which 1.13 knows for coo only: look at the file."""
    torch.save({"x": torch.relu(torch.randn(5, 7)).to_sparse_csr()}, path)
    out = os.path.join(run.folder, "csr.pt")

    def body():
        need(run.run("copy", path, out).returncode == 0, "not copied")
        a, b = (json.loads(run.run("dump", p).stdout)["root"] for p in (path, out))
        need(a == b, "shown as", b)
    run.check("sparse csr", body)


class Evil:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))


# ------------------------------------------------------------------ the run
class Suite(harness.Run):
    def dump(self, name, path, value):
        def body():
            done = self.run("dump", path)
            need(done.returncode == 0, done.stderr.strip()[:300])
            shown(value, json.loads(done.stdout)["root"])
        self.check(name + ", shown", body)

    def copy(self, name, path, value, strides=True):
        def body():
            out = os.path.join(self.folder, "copy.pt")
            if os.path.exists(out):
                os.remove(out)
            done = self.run("copy", path, out)
            need(done.returncode == 0, done.stderr.strip()[:300])
            with zipfile.ZipFile(out) as z:
                need(z.testzip() is None, "checksum of", z.testzip())
                for info in z.infolist():
                    with open(out, "rb") as f:
                        f.seek(info.header_offset + 26)
                        n, extra = struct.unpack("<HH", f.read(4))
                    need((info.header_offset + 30 + n + extra) % 64 == 0, info.filename, "is not aligned")
            Same(strides)(value, torch.load(out))
            return out
        self.check(name + ", copied", body)

    def refused(self, name, path, *mention):
        def body():
            for done in (self.run("dump", path), self.run("copy", path, os.path.join(self.folder, "never.pt"))):
                need(done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, "status", done.returncode, done.stderr[:300])
                need(all(m in done.stderr for m in mention), "the message is", done.stderr.strip())
            need(not os.path.exists(os.path.join(self.folder, "never.pt")), "a file was left")
        self.check(name, body)


def round_trips(run, r, path):
    for name, value in samples(r):
        forms = [("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})]
        if name in ("python_values", "tied", "numpy_values", "fortran_arrays", "training", "views"):
            forms += [(f"{form}, protocol {p}", {**options, "pickle_protocol": p}) for form, options in forms for p in (1, 3, 4, 5)]
        for form, options in forms:
            if form.startswith("legacy") and name == "quantized":
                value = {k: v for k, v in value.items() if k != "float points"}
            torch.save(value, path, **options)
            loaded = torch.load(path)
            loose = name == "sparse_use"  # parts may be packed more tightly
            run.dump(f"{name} ({form})", path, loaded)
            run.copy(f"{name} ({form})", path, loaded, strides=not loose)


def other_writers(run, r, path):
    value = {"a": torch.randn(50, 40), "b": torch.arange(7), "e": torch.zeros(0)}
    torch.save(value, path)
    rezipped(path, top="another name")
    run.copy("deflated", path, value)
    run.dump("deflated", path, value)
    texts = {"plain": "text", "escapes": "a\\n\n\t\\u0041 'q' \"\0é€😀", "bytes": b"\x00\\\xff", "list": [1, -2.5, True, None, 2 ** 70, (1, "é")]}
    for form, legacy in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
        torch.save(texts, path, pickle_protocol=0, **legacy)
        run.dump(f"protocol 0 ({form})", path, torch.load(path))
    for dtype in DTYPES:
        item = dtype.itemsize if hasattr(dtype, "itemsize") else torch.empty(0, dtype=dtype).element_size()
        value = {"x": sample(r, dtype, (3, 5))}
        value["y"] = value["x"].t()
        torch.save(value, path)
        rezipped(path, zipfile.ZIP_STORED, change=big_endian(item // 2 if dtype.is_complex else item))
        run.copy(f"big-endian {dtype}", path, value, strides=False)
    for dtype, item in (("uint16", 2), ("uint32", 4), ("uint64", 8), ("float8_e4m3fn", 1), ("float8_e5m2", 1)):
        data = bytes(r.randrange(256) for _ in range(6 * item))
        modern(path, dtype, data, [2, 3])

        def body():
            out = os.path.join(run.folder, "modern.pt")
            if os.path.exists(out):
                os.remove(out)
            need(run.run("copy", path, out).returncode == 0, "not copied")
            for source in (path, out):
                node = json.loads(run.run("dump", source).stdout)["root"]["items"][0][1]
                need(node["dtype"] == dtype and node["shape"] == [2, 3] and node["hex"] == data.hex(), "shown as", node)
        run.check(dtype, body)


def unreadable_parts(run, r, path):
    """A tensor without data or an array of texts makes nothing else unreadable."""
    whole = torch.arange(6.0)
    parts = {"meta": torch.ones(3, device="meta"), "parameter": torch.nn.Parameter(torch.ones(2, 2, device="meta")),
             "texts": np.array(["a", "b"]), "objects": np.array([{"a": 1}, None], dtype=object), "rows": np.array([(1, 2.0)], dtype="i4,f4"),
             "text": np.str_("x"), "times": np.array(["2020-01-01"], dtype="M8[D]"), "long": np.array([1], dtype=np.longdouble)}
    for options in ({}, {"pickle_protocol": 5}, {"_use_new_zipfile_serialization": False}):
        torch.save({"w": whole, **parts}, path, **options)

        def body():
            listed = run.run("ls", "--json", path)
            rows = {row["key"]: row for row in json.loads(listed.stdout)["entries"]}
            need(set(rows) == {"w", *parts} and all(("problem" in rows[key]) == (key != "w") for key in rows), "listed as", rows)
            need(all(f"'{key}': " in listed.stderr for key in parts), "the warnings are", listed.stderr)
            json.loads(run.run("dump", path).stdout)
            out = os.path.join(run.folder, "rest.pt")
            need(run.run("copy", path, out).returncode == 1 and not os.path.exists(out), "what cannot be read was copied")
            copied = run.run("copy", path, out, "--include", "w")
            need(copied.returncode == 0, copied.stderr)
            need(torch.equal(torch.load(out)["w"], whole), "the rest is lost")
            os.remove(out)
        run.check(f"unreadable parts {options}", body)


def refusals(run, r, path):
    for legacy in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save({"w": torch.ones(2)}, path, pickle_protocol=0, **legacy)  # and torch.load fails on these
        run.refused("tensors of protocol 0", path, "protocol 0")
    canary = os.path.join(run.folder, "canary")
    evil = {"os.system": Evil(os.system, f"touch {canary}"), "builtins.eval": Evil(eval, f"open({canary!r},'w')"), "getattr": Evil(getattr, [], "append")}
    for name, value in evil.items():
        for options in ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}):
            torch.save({"w": torch.ones(2), "x": value}, path, **options)
            run.refused(f"{name} {options}", path, name.split(".")[-1])
    run.check("nothing was executed", lambda: need(not os.path.exists(canary), "the canary is there"))
    torch.save([evil["os.system"], evil["builtins.eval"]], path)
    run.refused("two globals at once", path, "system", "eval")
    torch.save(Net(), path)
    run.copy("a whole module", path, {"w": Net().w})
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    run.refused("TorchScript", path, "TorchScript")
    with open(path, "wb") as f:
        f.write(b"PYTORCH1" + b"\0" * 600)
    run.refused("preview", path)
    value = {"w": torch.randn(2000)}
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(value, path, **options)
        with open(path, "rb") as f:
            whole = f.read()
        for cut in (10, len(whole) // 3, len(whole) - 5):
            with open(path, "wb") as f:
                f.write(whole[:cut])
            run.refused(f"cut at {cut} {options}", path)
    torch.save(value, path)
    with open(path, "rb") as f:
        whole = bytearray(f.read())
    at = whole.index(raw(value["w"])[:16])
    whole[at + 4000] ^= 1
    with open(path, "wb") as f:
        f.write(whole)
    run.refused("a flipped byte", path, "CRC")


def sizes(run, r, path):
    """A small part of a large storage is written without the rest; a large part keeps the whole."""
    big = torch.randn(100000)
    torch.save({"a": big[:10], "b": big[500:600]}, path)
    out = os.path.join(run.folder, "small.pt")

    def body():
        need(run.run("copy", path, out).returncode == 0, "not copied")
        need(os.path.getsize(out) < 5000, os.path.getsize(out), "bytes")
        loaded = torch.load(out)
        need(torch.equal(loaded["a"], big[:10]) and torch.equal(loaded["b"], big[500:600]), "other values")
        need(loaded["a"].storage()._cdata == loaded["b"].storage()._cdata, "no longer one storage")
    run.check("parts of a storage", body)


def quantised_weights(run, r, path):
    """Tensors that PyTorch has quantised are named as such, and nothing beside them is cast."""
    torch.save({"a.weight": quantized(r)["channel"], "b.weight": torch.randn(4, 6)}, path)

    def body():
        need("quantised: quantised tensors of PyTorch (1 weight)" in run.run("ls", path).stdout, "ls does not say it")
        checked = run.run("check", path).stdout
        need("[quantised]" in checked and "clean" not in checked, checked)
        need(run.run("copy", path, os.path.join(run.folder, "same.pt")).returncode == 0, "not copied")
        done = run.run("copy", path, os.path.join(run.folder, "cast.pt"), "--to-dtype", "bfloat16")
        need(done.returncode == 1 and "quantised tensors of PyTorch" in done.stderr, done.stderr)
    run.check("quantised weights", body)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cbk", required=True)
    p.add_argument("--seed", type=int, default=0)
    o = p.parse_args()
    torch.manual_seed(o.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Suite(o.cbk, folder)
        for part in (round_trips, other_writers, compressed_rows, unreadable_parts, refusals, sizes, quantised_weights):
            part(run, random.Random(o.seed), os.path.join(folder, "model.pt"))
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
