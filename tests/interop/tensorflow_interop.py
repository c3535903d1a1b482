#!/usr/bin/python3
"""TensorFlow bundles between cbk and an independent reader and writer (struct, numpy), and flat H5 files against h5py.

Usage: tensorflow_interop.py --cbk PATH
"""
import argparse
import json
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import traceback
import urllib.parse

import h5py
import numpy as np

import harness

MAGIC = 0xdb4775248b80fb57
DTYPES = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 19: "float16"}
NUMBERS = {name: number for number, name in DTYPES.items()}

# ------------------------------------------------------------------ checksums, numbers, messages
TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(raw, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in raw:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xFFFFFFFF


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def read_varint(raw, at):
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if raw[at - 1] < 128:
            return value, at


def field(number, value):
    """A protobuf field: a number as a varint, bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(raw):
    out, at = {}, 0
    while at < len(raw):
        tag, at = read_varint(raw, at)
        if tag & 7 == 0:
            value, at = read_varint(raw, at)
        elif tag & 7 == 2:
            size, at = read_varint(raw, at)
            value, at = raw[at:at + size], at + size
        else:
            assert tag & 7 == 5, "wire type"
            value, at = struct.unpack("<I", raw[at:at + 4])[0], at + 4
        out.setdefault(tag >> 3, []).append(value)
    return out


# ------------------------------------------------------------------ tables
def read_block(raw, handle):
    offset, size = handle
    stored, crc = raw[offset:offset + size + 1], struct.unpack("<I", raw[offset + size + 1:offset + size + 5])[0]
    assert masked(crc32c(stored)) == crc, "checksum of a block"
    assert stored[-1] == 0, "a compressed block"
    block = stored[:-1]
    restarts = struct.unpack("<I", block[-4:])[0]
    at, end, key, entries = 0, len(block) - 4 - 4 * restarts, b"", []
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        size, at = read_varint(block, at)
        key = key[:shared] + block[at:at + fresh]
        entries.append((key, block[at + fresh:at + fresh + size]))
        at += fresh + size
    assert at == end, "end of a block"
    return entries


def read_table(raw):
    assert struct.unpack("<Q", raw[-8:])[0] == MAGIC, "magic"
    numbers, at = [], len(raw) - 48
    for _ in range(4):
        number, at = read_varint(raw, at)
        numbers.append(number)
    assert read_block(raw, numbers[:2]) == [], "filters"
    entries = []
    for _, handle in read_block(raw, numbers[2:]):
        offset, at = read_varint(handle, 0)
        entries += read_block(raw, (offset, read_varint(handle, at)[0]))
    assert [key for key, _ in entries] == sorted({key for key, _ in entries}), "order of the keys"
    return entries


def snappy(raw):
    """Literals, and one copy of 64 zeros where there are that many more."""
    out, at = varint(len(raw)), 0
    while at < len(raw):
        if at and raw[at - 1:at + 64] == b"\0" * 65:
            out, at = out + bytes([63 << 2 | 2, 1, 0]), at + 64
            continue
        out, at = out + bytes([59 << 2]) + raw[at:at + 60] if len(raw) - at >= 60 else out + bytes([len(raw) - at - 1 << 2]) + raw[at:], at + 60
    return out


def write_table(entries, compressed, per_block):
    out = b""

    def put(items, kind):
        nonlocal out
        body = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in items) + struct.pack("<II", 0, 1)
        body = (snappy(body) if kind else body) + bytes([kind])
        handle = varint(len(out)) + varint(len(body) - 1)
        out += body + struct.pack("<I", masked(crc32c(body)))
        return handle
    blocks = [entries[i:i + per_block] for i in range(0, len(entries), per_block)]
    index = [(block[-1][0], put(block, int(compressed))) for block in blocks]
    end = put([], 0) + put(index, int(compressed))
    return out + end.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


# ------------------------------------------------------------------ bundles
def read_bundle(prefix):
    """{name: (dtype, shape, bytes)}, header"""
    with open(prefix + ".index", "rb") as f:
        entries = read_table(f.read())
    assert entries[0][0] == b"", "header"
    header, out, files = fields(entries[0][1]), {}, {}
    shards = header[1][0]
    for key, value in entries[1:]:
        e = fields(value)
        shape = [fields(dim).get(1, [0])[0] for dim in fields(e[2][0]).get(2, [])]
        shard, offset, size = (e.get(i, [0])[0] for i in (3, 4, 5))
        if shard not in files:
            with open(f"{prefix}.data-{shard:05d}-of-{shards:05d}", "rb") as f:
                files[shard] = f.read()
        raw = files[shard][offset:offset + size]
        assert len(raw) == size, f"size of {key}"
        if e[1] != [7]:
            assert masked(crc32c(raw)) == e[6][0], f"checksum of {key}"
        out[key.decode()] = (DTYPES.get(e[1][0], e[1][0]), shape, raw)
    return out, header


def extents(start, shape):
    return b"".join(field(1, (field(1, s) if s else b"") + field(2, n)) for s, n in zip(start, shape))


def slice_key(name, start, shape):
    """For small numbers only: -64 <= n < 64 is one byte."""
    return b"\0" + name + b"\0\1" + bytes([1, len(shape)]) + b"".join(bytes([0x80 ^ s, 0x80 ^ n]) for s, n in zip(start, shape))


def write_bundle(prefix, arrays, compressed=False, big_endian=False, texts=None, slices=None, per_block=3, shards=1, header=None, change=None):
    """arrays: {name: array}; texts: {name: list of bytes}; slices: {name: (array, [(start, shape)…])}. `change` makes other entries of the
    index, and `header` replaces its first one."""
    data, entries = [b""] * shards, []

    def place(key, dtype, shape, raw, crc=None):
        shard = len(entries) % shards
        dims = b"".join(field(2, field(1, n) if n else b"") for n in shape)
        entries.append((key, field(1, dtype) + field(2, dims) + (field(3, shard) if shard else b"") + (field(4, len(data[shard])) if data[shard] else b"")
                        + (field(5, len(raw)) if raw else b"") + varint(6 << 3 | 5) + struct.pack("<I", masked(crc32c(raw)) if crc is None else crc)))
        data[shard] += raw

    def bytes_of(array):
        return array.astype(array.dtype.newbyteorder(">" if big_endian else "<")).tobytes()
    for name, array in arrays.items():
        place(name.encode(), NUMBERS[array.dtype.name], array.shape, bytes_of(array))
    order = ">" if big_endian else "<"
    for name, items in (texts or {}).items():
        crc = crc32c(b"".join(struct.pack(order + "I", len(item)) for item in items))
        sum_of_lengths = struct.pack(order + "I", masked(crc))
        raw = b"".join(varint(len(item)) for item in items) + sum_of_lengths + b"".join(items)
        place(name.encode(), 7, [len(items)], raw, masked(crc32c(sum_of_lengths + b"".join(items), crc)))
    for name, (array, boxes) in (slices or {}).items():
        listed = b""
        for start, shape in boxes:
            listed += field(7, extents(start, shape))
            part = array[tuple(slice(s, s + n) for s, n in zip(start, shape))]
            place(slice_key(name.encode(), start, shape), NUMBERS[array.dtype.name], shape, bytes_of(part))
        dims = b"".join(field(2, field(1, n)) for n in array.shape)
        entries.append((name.encode(), field(1, NUMBERS[array.dtype.name]) + field(2, dims) + listed))
    header = header or field(1, shards) + (field(2, 1) if big_endian else b"") + field(3, field(1, 1))
    entries = change(sorted(entries)) if change else sorted(entries)
    with open(prefix + ".index", "wb") as f:
        f.write(write_table([(b"", header)] + sorted(entries), compressed, per_block))
    for shard, raw in enumerate(data):
        with open(f"{prefix}.data-{shard:05d}-of-{shards:05d}", "wb") as f:
            f.write(raw)


# ------------------------------------------------------------------ checks
class Suite:
    def __init__(self, cbk, folder):
        self.cbk, self.folder, self.passed, self.failed = cbk, folder, 0, 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, *args, status=0, **options):
        r = subprocess.run([self.cbk, *args], capture_output=True, text=True, cwd=self.folder, **options)
        assert r.returncode == status, f"cbk {' '.join(args)}: exit status {r.returncode}: {r.stderr.strip()[-300:]}"
        return r

    def refused(self, *args):
        lines = self.call(*args, status=2 if args[0] == "diff" else 1).stderr.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    def dump(self, path):
        """{name: (dtype, shape, bytes)}; texts: list of bytes"""
        out = {}
        for key, node in json.loads(self.call("dump", path).stdout)["root"]["items"]:
            raw = [bytes.fromhex(v) for v in node["values"]] if node["dtype"] == "string" else bytes.fromhex(node["hex"])
            out[key["v"]] = (node["dtype"], node["shape"], raw)
        return out

    def check(self, name, body):
        try:
            harness.checked(body)
            self.passed += 1
        except Exception as x:  # every check is to run
            self.failed += 1
            line = [frame.lineno for frame in traceback.extract_tb(x.__traceback__) if frame.filename == __file__][-1]
            print(f"FAIL {name}, line {line}: {type(x).__name__}: {x}")


def arrays():
    r = np.random.default_rng(1)
    out = {f"layer_{i}/kernel": r.standard_normal((i % 5, 3)).astype(np.float32) for i in range(40)}
    out["layer_0/kernel/Adam_1"] = r.standard_normal((2, 3, 4)).astype(np.float64)
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "float16"):
        out[f"v/{dtype}"] = r.integers(0, 100, (7,)).astype(dtype)
    out["flag"] = np.array([True, False, True])
    out["global_step"] = np.array(1234, np.int64)
    return out


def content(array):
    return array.dtype.name, list(array.shape), array.tobytes()


def reading(s):
    given = {name: content(array) for name, array in arrays().items()}
    for compressed in (False, True):
        for big_endian in (False, True):
            name = f"in-{compressed}-{big_endian}"
            matrix = np.arange(63, dtype=np.float32).reshape(9, 7)
            write_bundle(s.path(name), arrays(), compressed, big_endian, {"names": [b"a", b"", b"\0\xff" * 40]},
                         {"part": (matrix, [((0, 0), (4, 7)), ((4, 0), (5, 3)), ((4, 3), (5, 4))])}, shards=2 if compressed else 1)
            found = s.dump(name)
            assert found.pop("names") == ("string", [3], [b"a", b"", b"\0\xff" * 40]), "texts"
            assert found.pop("part") == content(matrix), "the partitioned variable"
            assert found == given, "content"
            assert s.dump(name + ".index").keys() == found.keys() | {"names", "part"}


def writing(s):
    given = {name: content(array) for name, array in arrays().items()}
    write_bundle(s.path("w"), arrays(), texts={"_CHECKPOINTABLE_OBJECT_GRAPH": [b"graph"]})
    r = s.call("tensorflow-to-h5", "w", "w.h5")
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in r.stderr, "the texts that are left out are not named"
    with h5py.File(s.path("w.h5")) as f:
        found = {urllib.parse.unquote(name): content(np.asarray(data)) for name, data in f.items()}
    assert found == given, "content of the H5 file"
    s.call("h5-to-tensorflow", "w.h5", "back")
    found, header = read_bundle(s.path("back"))
    assert found == given, "content of the bundle"
    assert header == {1: [1], 3: [b"\x08\x01"]}, "header"
    with open(s.path("checkpoint")) as f:
        assert re.match('model_checkpoint_path: "back"\n', f.read()), "state file"
    s.call("diff", "w.h5", "back")
    s.call("copy", "w", "copy", "--format", "tensorflow", "--shard-size", "200")
    found, header = read_bundle(s.path("copy"))
    assert found.pop("_CHECKPOINTABLE_OBJECT_GRAPH") == (7, [1], b"\x05" + struct.pack("<I", masked(crc32c(b"\x05\0\0\0"))) + b"graph"), "texts"
    assert found == given and header[1][0] > 3, "content of the shards"
    s.call("diff", "w", "copy")
    s.call("copy", "w", "copy.index", "--overwrite", "--include", "v", "--include", "flag")
    assert set(read_bundle(s.path("copy"))[0]) == {name for name in given if name.startswith("v/") or name == "flag"}
    assert sum(name.startswith("copy.data") for name in os.listdir(s.folder)) == 1, "data files of the old checkpoint"


def choosing(s):
    write_bundle(s.path("c"), arrays())
    s.call("tensorflow-to-h5", "c", "kernels.h5", "--include", "layer_1*/kernel", "--exclude", "layer_11")
    with h5py.File(s.path("kernels.h5")) as f:
        assert {urllib.parse.unquote(name) for name in f} == {f"layer_{i}/kernel" for i in (1, *range(10, 20)) if i != 11}
    s.call("tensorflow-to-h5", "c", "shards", "--shard-size", "500")
    names = sorted(os.listdir(s.path("shards")))
    assert names[-1] == "model.h5.index.json" and len(names) > 3, names
    s.call("h5-to-tensorflow", "shards", "joined", "--shard-size", "1KB")
    assert read_bundle(s.path("joined"))[0] == {name: content(array) for name, array in arrays().items()}
    assert "matches --include 'nothing'" in s.refused("tensorflow-to-h5", "c", "none.h5", "--include", "nothing", "-q")
    assert "not a TensorFlow" in s.refused("tensorflow-to-h5", "kernels.h5", "x.h5")
    assert "not an H5" in s.refused("h5-to-tensorflow", "c", "x")
    assert "a folder" in s.call("h5-to-tensorflow", "kernels.h5", "shards", status=2).stderr


def damage(s):
    write_bundle(s.path("d"), {"a/kernel": np.arange(3000, dtype=np.float32), "b": np.arange(5)})
    data = s.path("d.data-00000-of-00001")
    with open(data, "rb") as f:
        good = f.read()
    for at in (0, 7000, 11999):
        with open(data, "wb") as f:
            f.write(good[:at] + bytes([good[at] ^ 16]) + good[at + 1:])
        for args in (("tensorflow-to-h5", "d", "x.h5", "-q"), ("copy", "d", "x.pt", "-q"), ("dump", "d"), ("show", "d", "a/kernel")):
            assert "'a/kernel' is damaged" in s.refused(*args), args
        s.call("show", "d", "b")
    with open(data, "wb") as f:
        f.write(good[:-1])
    assert "'b'" in s.refused("ls", "d") and "cut short" in s.refused("ls", "d")
    os.rename(data, s.path("d.data-00000-of-00002"))
    line = s.refused("ls", "d")
    assert "d.data-00000-of-00001" in line and "d.data-00000-of-00002" in line, line
    with open(data, "wb") as f:
        f.write(good)
    with open(s.path("d.index"), "rb") as f:
        index = bytearray(f.read())
    index[index.index(b"a/kernel") + 3] ^= 1
    with open(s.path("d.index"), "wb") as f:
        f.write(index)
    assert "in the entry of 'a/kernel'" in s.refused("ls", "d")
    assert not any(name.startswith("x.") for name in os.listdir(s.folder)), "something was left behind"


def strings(s):
    """Texts come along on request, whatever is in them; the object graph never does."""
    texts = {"vocab": ["the".encode(), "ünï".encode(), b"", b"x" * 70000], "raw": [b"\xff\xfe", b"x"], "zeros": [b"a\0b", b"", b"\0"], "none": []}
    write_bundle(s.path("t"), {"w": np.arange(3)}, texts={**texts, "_CHECKPOINTABLE_OBJECT_GRAPH": [b"graph"]})
    given = read_bundle(s.path("t"))[0]
    del given["_CHECKPOINTABLE_OBJECT_GRAPH"]
    error = s.call("tensorflow-to-h5", "t", "without.h5").stderr
    assert all(f"'{name}' is left out" in error for name in [*texts, "_CHECKPOINTABLE_OBJECT_GRAPH"]) and "--strings" in error, error
    with h5py.File(s.path("without.h5")) as f:
        assert list(f) == ["w"]
    error = s.call("tensorflow-to-h5", "t", "with.h5", "--strings").stderr
    assert error.count("\n") == 1 and "_CHECKPOINTABLE_OBJECT_GRAPH" in error, error
    with h5py.File(s.path("with.h5")) as f:
        assert set(f) == {"w", *texts}
        for name, encoding in (("vocab", "utf-8"), ("raw", "ascii")):
            assert f[name][()].tolist() == texts[name] and h5py.check_string_dtype(f[name].dtype).encoding == encoding, name
        assert [bytes(x) for x in f["zeros"][()]] == texts["zeros"] and h5py.check_vlen_dtype(f["zeros"].dtype) == np.uint8
        assert f["none"].shape == (0,)
    dump = subprocess.run(["h5dump", s.path("with.h5")], capture_output=True, check=False)
    assert dump.returncode == 0 and not dump.stderr, dump.stderr
    s.call("copy", "with.h5", "again.h5", "--h5-version", "flat")
    s.call("diff", "with.h5", "again.h5")
    s.call("h5-to-tensorflow", "with.h5", "texts")
    assert read_bundle(s.path("texts"))[0] == given
    s.call("tensorflow-to-h5", "t", "folder", "--strings", "--shard-size", "10", "-q")
    s.call("h5-to-tensorflow", "folder", "texts", "--overwrite")
    assert read_bundle(s.path("texts"))[0] == given
    # Strings as others write them, in every storage.
    with h5py.File(s.path("own.h5"), "w") as f:
        f["fixed"] = np.array([[b"ab", b""], [b"abcd", b"\xff"]], dtype="S4")
        f.create_dataset("packed", data=np.array(["a" * i for i in range(300)], dtype=object), dtype=h5py.string_dtype(), compression="gzip", chunks=(7,))
        f["one"] = "just one"
        f.create_dataset("absent", (3,), dtype=h5py.string_dtype())
    s.call("h5-to-tensorflow", "own.h5", "own")
    found = s.dump("own")
    assert found == {"absent": ("string", [3], [b""] * 3), "fixed": ("string", [2, 2], [b"ab", b"", b"abcd", b"\xff"]),
                     "one": ("string", [], [b"just one"]), "packed": ("string", [300], [b"a" * i for i in range(300)])}
    with h5py.File(s.path("other.h5"), "w") as f:
        f.create_dataset("ragged", data=np.array([np.arange(2), np.arange(3)], dtype=object), dtype=h5py.vlen_dtype(np.int32))
    assert "'ragged'" in s.refused("h5-to-tensorflow", "other.h5", "other")
    for dtype, shape, part in (("S1", (1 << 27,), "would take more than 40.0 MiB of memory"), ("S1000000", (1 << 20,), "")):
        with h5py.File(s.path("huge.h5"), "w") as f:
            f.create_dataset("huge", shape, dtype=dtype, chunks=(1,))
        assert "'huge'" in s.refused("ls", "huge.h5") and part in s.refused("ls", "huge.h5")


def quantized(s):
    """A variable that H5 cannot say is left out and named; the others arrive."""
    write_bundle(s.path("q"), {"w": np.arange(3), "q": np.arange(4, dtype=np.int8)},
                 change=lambda entries: [(key, field(1, 11) + entry[2:] if key == b"q" else entry) for key, entry in entries])
    error = s.call("tensorflow-to-h5", "q", "q.h5").stderr
    assert "'q' is left out: it is quantized (qint8)" in error, error
    with h5py.File(s.path("q.h5")) as f:
        assert list(f) == ["w"]


def names(s):
    """saver_path: a prefix, its index, a folder with or without a state file; what is none of these is reported with what it may have meant."""
    for name in (".", ".."):
        write_bundle(s.path("dots"), {name: np.arange(1), "a": np.arange(2)})
        assert f"leave it out with --exclude {name}" in s.refused("tensorflow-to-h5", "dots", "dots.h5", "--overwrite")
        s.call("tensorflow-to-h5", "dots", "dots.h5", "--exclude", name, "--overwrite")
    os.mkdir(s.path("run"))
    write_bundle(s.path("run/model.ckpt-1"), {"a": np.arange(1)})
    s.call("tensorflow-to-h5", "run", "only.h5")
    write_bundle(s.path("run/model.ckpt-20"), {"b": np.arange(2)})
    assert "several checkpoints" in s.call("tensorflow-to-h5", "run", "x.h5", status=2).stderr
    with open(s.path("run/checkpoint"), "w") as f:
        f.write('model_checkpoint_path: "model.ckpt-20"\nall_model_checkpoint_paths: "model.ckpt-1"\nall_model_checkpoint_paths: "model.ckpt-20"\n')
    for path, variable in (("run", "b"), ("run/", "b"), ("run/model.ckpt-1", "a"), ("run/model.ckpt-1.index", "a"), (s.path("run/model.ckpt-20"), "b")):
        s.call("tensorflow-to-h5", path, "named.h5", "--overwrite")
        with h5py.File(s.path("named.h5")) as f:
            assert list(f) == [variable], path
    for path, *parts in (("run/model.ckpt", "'run/model.ckpt.index'", "did you mean 'run/model.ckpt-1'"), ("run/model.ckpt-20.meta", "did you mean 'run/model.ckpt-20'"),
                         ("gone/x", "'gone/x.index'")):
        line = s.refused("tensorflow-to-h5", path, "x.h5")
        assert all(part in line for part in parts), line
    assert "open 'run/model.ckpt-1'" in s.call("tensorflow-to-h5", "run/model.ckpt-1.data-00000-of-00001", "x.h5", status=2).stderr
    assert "'named.h5' exists" in s.refused("tensorflow-to-h5", "run", "named.h5")
    assert not os.path.exists(s.path("x.h5"))


TRAINING = """
local cbk = require "cbk"
local w = cbk.tensor({ 1, 2 }, { dtype = "bfloat16" })
local root = cbk.dict { { "model", cbk.dict { ["a.w"] = w, ["b.w"] = w } }, { "optimizer", cbk.list { cbk.dict { lr = 0.5, on = true, name = "x" } } },
  { "step", cbk.int("9007199254740993") }, { "nothing", cbk.null } }
cbk.create(arg[1], { root = root, h5_version = arg[2] }):commit()
"""


def training(s):
    """A training checkpoint of H5 as a bundle: tensors and numbers under their dotted names."""
    with open(s.path("training.lua"), "w") as f:
        f.write(TRAINING)
    for version in ("0.4", "0.5"):
        s.call("run", "training.lua", "training.mdl", version)
        error = s.call("h5-to-tensorflow", "training.mdl", "training").stderr
        assert "'nothing' is left out" in error and "'optimizer.0.name' is left out" in error and "tied" in error and error.count("\n") == 3, error
        w = ("bfloat16", [2], bytes.fromhex("803f0040"))
        assert read_bundle(s.path("training"))[0] == {"model.a.w": w, "model.b.w": w, "optimizer.0.lr": content(np.float64(0.5)), "optimizer.0.on": content(np.bool_(True)),
                                                      "step": content(np.int64(2**53 + 1))}
        for name in ("training.mdl", "training.index", "training.data-00000-of-00001"):
            os.remove(s.path(name))


COMMANDS = (("ls", "{}"), ("show", "{}", "m/w"), ("dump", "{}"), ("copy", "{}", "out.pt"), ("copy", "{}", "out", "--format", "tensorflow"),
            ("tensorflow-to-h5", "{}", "out.h5"), ("diff", "{}", "whole"))


def reported(s, *parts, prefix="p", commands=COMMANDS):
    """Every command says so in one line, and leaves nothing."""
    before = sorted(os.listdir(s.folder))
    for command in commands:
        line = s.refused(*(word.format(prefix) for word in command))
        assert all(part in line for part in parts), f"{command}: {line}"
        assert len(line) < 500, line
    assert sorted(os.listdir(s.folder)) == before, "something was left behind"


def lies(s):
    """Files that are missing, and slices that do not fit."""
    matrix = np.arange(63, dtype=np.float32).reshape(9, 7)
    write_bundle(s.path("whole"), {"m/w": matrix})

    def sliced(*boxes, change=None):
        write_bundle(s.path("p"), {"z": np.arange(3)}, slices={"m/w": (matrix, boxes)}, change=change)
    sliced(((0, 0), (4, 7)), ((4, 0), (5, 7)))
    s.call("diff", "p", "whole", status=1)
    assert s.dump("p")["m/w"] == content(matrix)
    sliced(((0, 0), (5, 7)), ((4, 0), (5, 7)))
    reported(s, "p.index", "variable 'm/w'", "overlap in [4:5, 0:7]")
    sliced(((0, 0), (4, 7)), ((5, 0), (4, 7)))
    reported(s, "variable 'm/w'", "leave out [4:5, 0:7]")
    sliced(((0, 0), (9, 7)), ((0, 0), (9, 7)))
    reported(s, "a slice of 'm/w'", "repeated in the index")
    sliced(((0, 0), (4, 7)), ((4, 0), (5, 7)), change=lambda entries: [e for e in entries if e[0] != slice_key(b"m/w", (4, 0), (5, 7))])
    reported(s, "variable 'm/w'", "its slice [4:9, 0:7] is missing")
    sliced(((0, 0), (4, 7)), ((4, 0), (5, 7)), change=lambda entries: [(k, v.replace(field(1, 1), field(1, 3), 1)) if k[:1] == b"\0" else (k, v)
                                                                      for k, v in entries])
    reported(s, "variable 'm/w'", "is int32 [4, 7] instead of float32 [4, 7]")
    sliced(((0, 0), (4, 7)), ((4, 0), (5, 7)), change=lambda entries: entries + [entries[-1]])
    reported(s, "'z'", "repeated in the index")

    # Data files: one of three is gone, the count is another one, a byte is another one.
    arrays_of_three = {"m/w": matrix, "n": np.arange(5), "o": np.arange(4)}
    write_bundle(s.path("p"), arrays_of_three, shards=3)
    os.rename(s.path("p.data-00000-of-00001"), s.path("stray"))
    s.dump("p")
    os.rename(s.path("p.data-00001-of-00003"), s.path("away"))
    reported(s, "3 files", "1 is missing: 'p.data-00001-of-00003'")
    os.rename(s.path("away"), s.path("p.data-00001-of-00004"))
    reported(s, "1 is missing: 'p.data-00001-of-00003'", "there is 'p.data-00001-of-00004'")
    os.remove(s.path("p.data-00001-of-00004"))
    write_bundle(s.path("p"), arrays_of_three, shards=3, header=field(1, 2) + field(3, field(1, 1)))
    reported(s, "'o'", "data file 2, but there are 2, counted from 0")
    write_bundle(s.path("p"), arrays_of_three, shards=3, header=field(1, 4) + field(3, field(1, 1)))
    reported(s, "4 files", "3 are missing", "there is 'p.data-00000-of-00003'")


def flipped(s):
    """A byte of a slice, of texts, of a second data file, of a big-endian file: the variable is named."""
    matrix = np.arange(63, dtype=np.float32).reshape(9, 7)
    write_bundle(s.path("whole"), {"m/w": matrix})
    reading = (("show", "{}", "m/w"), *COMMANDS[2:])
    for big_endian in (False, True):
        write_bundle(s.path("p"), {"a": np.arange(3)}, big_endian=big_endian, shards=2, slices={"m/w": (matrix, [((0, 0), (4, 7)), ((4, 0), (5, 7))])})
        for shard in (0, 1):
            path = s.path(f"p.data-0000{shard}-of-00002")
            with open(path, "rb") as f:
                good = f.read()
            with open(path, "wb") as f:
                f.write(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
            reported(s, "'m/w' is damaged", f"p.data-0000{shard}-of-00002", commands=reading)
            with open(path, "wb") as f:
                f.write(good)
    write_bundle(s.path("p"), {}, texts={"m/w": [b"alpha", b"beta"]})
    with open(s.path("p.data-00000-of-00001"), "r+b") as f:
        f.seek(-2, os.SEEK_END)
        f.write(b"?")
    reported(s, "'m/w'", "checksum", commands=(("dump", "{}"), ("copy", "{}", "out", "--format", "tensorflow"), ("tensorflow-to-h5", "{}", "out.h5", "--strings")))


def listing(s):
    write_bundle(s.path("many"), {f"layer_{i}/kernel": np.zeros((2,), np.float32) for i in range(2000)}, per_block=50)
    os.truncate(s.path("many.data-00000-of-00001"), 16000)
    text = s.call("ls", "many").stdout
    assert "layer_{0..1999}/kernel" in text and "2,000 tensors" in text, text


def many_files(s):
    """More files than the soft limit of descriptors; beyond the hard one, the shard size that is named fits."""
    with h5py.File(s.path("v.h5"), "w") as f:
        for i in range(1500):
            f[f"v{i}"] = np.full(16, i, "f4")

    def limit(soft, hard):
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}

    commands = [("h5-to-tensorflow", "v.h5", "v.ckpt"), ("tensorflow-to-h5", "t.ckpt", "flat"),
                ("copy", "v.h5", "torch", "--format", "torch"), ("copy", "v.h5", "safe", "--format", "safetensors")]
    s.call("h5-to-tensorflow", "v.h5", "t.ckpt")
    for command in commands:
        s.call(*command, "--shard-size", "64B", **limit(1000, 4000))
        refused = s.call(*command, "--shard-size", "64B", "--overwrite", status=2, **limit(200, 200)).stderr
        assert refused.count("\n") == 1 and "1500 files would be open at once" in refused, refused
        fits = re.search(r"shard size of (\d+B)", refused).group(1)
        s.call(*command, "--shard-size", fits, "--overwrite", **limit(200, 200))
        s.call("diff", "v.h5", command[2])
        assert not [name for name in os.listdir(s.folder) if "tmp" in name]
    assert "too many files are open" in s.call("h5-to-tensorflow", "v.h5", "x.ckpt", status=2, **limit(12, 12)).stderr
    s.call("h5-to-tensorflow", "v.h5", "w.ckpt", "--shard-size", "64B", **limit(1000, 4000))
    assert "`ulimit -n`" in s.call("ls", "w.ckpt", status=1, **limit(200, 200)).stderr


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--cbk", required=True)
    o = p.parse_args()
    assert crc32c(b"123456789") == 0xE3069283
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(os.path.abspath(o.cbk), folder)
        for body in (reading, writing, choosing, strings, quantized, names, training, damage, lies, flipped, listing, many_files):
            suite.check(body.__name__, lambda body=body: body(suite))
    print(f"{suite.passed} passed, {suite.failed} failed")
    return 1 if suite.failed or not suite.passed else 0


if __name__ == "__main__":
    sys.exit(main())
