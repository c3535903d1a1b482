#!/usr/bin/python3
"""The Python module and `cbk serve`: what they read is what torch, NumPy and h5py read; slices, keys, memory; requests that are none.

Usage: python_interop.py --cbk PATH
"""
import argparse
import collections
import gc
import importlib.util
import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import h5py
import numpy as np
import torch

import gguf_interop
import harness
import quantised_interop
import recipes_interop
import safetensors_file

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts/python"))
import cbk  # noqa: E402  pylint: disable=wrong-import-position

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
          torch.complex64, torch.complex128]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (4, 0, 2), (3, 4, 5), (1,) * 9]


def same(found, wanted):
    wanted = np.asarray(wanted)
    assert isinstance(found, (np.ndarray, np.generic)), type(found)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.dtype, wanted.shape)
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes(), (found, wanted)


def raises(kind, action, text=""):
    try:
        action()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"no {kind.__name__}")


# ------------------------------------------------------------------ tensors
def all_dtypes(run, rng):
    tensors = {f"{dtype}.{shape}": torch.from_numpy(np.asarray(rng.integers(0, 100, shape) - 50)).to(dtype)
               for dtype in DTYPES for shape in SHAPES}
    torch.save(tensors, run.path("all.pt"))

    def equal():
        with cbk.open(run.path("all.pt")) as c:
            assert list(c) == list(tensors) and len(c) == len(tensors)
            for key, tensor in c.items():
                wanted = tensors[key].numpy()
                same(np.asarray(tensor), wanted)
                assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.ndim, tensor.size) == (
                    wanted.shape, wanted.dtype, wanted.nbytes, wanted.ndim, wanted.size), key
    run.check("every dtype and shape", equal)

    def narrow():
        codes = np.arange(256, dtype=np.uint8)
        bits = rng.integers(0, 1 << 16, 100).astype(np.uint16)
        safetensors_file.save(run.path("narrow.safetensors"), {
            "bf": ("BF16", (4, 25), bits.tobytes()), "e4": ("F8_E4M3", (256,), codes.tobytes()),
            "e5": ("F8_E5M2", (256,), codes.tobytes())})
        with cbk.open(run.path("narrow.safetensors")) as c:
            numbers = (bits.astype(np.uint32) << 16).view(np.float32).reshape(4, 25)
            assert np.array_equal(np.asarray(c["bf"]), numbers, equal_nan=True)
            assert np.array_equal(c["bf"][1:3, ::5], numbers[1:3, ::5], equal_nan=True)
            same(c["bf"].stored(), bits.reshape(4, 25))
            assert c["bf"].dtype == np.float32 and c["bf"].stored_dtype == "bfloat16" and c["bf"].nbytes == 400
            for key, wanted in ("e4", quantised_interop.float8(codes, 3, 7, 126)), ("e5", quantised_interop.float8(codes, 2, 15, 123)):
                found = np.asarray(c[key])
                assert found.dtype == np.float32 and c[key].stored_dtype.startswith("float8")
                assert np.array_equal(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)]), key
                same(c[key].stored(), codes)
    run.check("bfloat16 and 8-bit floats", narrow)

    def as_numpy_says():
        with cbk.open(run.path("all.pt")) as c:
            tensor = c["torch.int64.(2, 3)"]
            same(np.asarray(tensor, np.float32), tensors["torch.int64.(2, 3)"].numpy().astype(np.float32))
            same(np.add(tensor, 1), tensors["torch.int64.(2, 3)"].numpy() + 1)
            assert len(tensor) == 2 and [row.tolist() for row in tensor] == tensors["torch.int64.(2, 3)"].tolist()
            assert repr(tensor) == "<cbk.Tensor int64 [2, 3]>", tensor
            assert isinstance(c["torch.float64.()"][()], np.float64)
            raises(TypeError, lambda: len(c["torch.float64.()"]))
    run.check("a Tensor where NumPy expects an array", as_numpy_says)

    def unknown_option():
        raises(cbk.Error, lambda: cbk.open(run.path("all.pt"), foo=1), "'open' has no option 'foo'")
        raises(cbk.Error, lambda: cbk.open(run.path("all.pt"), allow_record=True), "did you mean 'allow_records'?")
    run.check("options that do not exist", unknown_option)


def slices(run, rng):
    array = rng.random((5, 7, 6)).astype(np.float32)
    np.save(run.path("a.npy"), array)
    np.save(run.path("f.npy"), np.asfortranarray(array))
    parts = [slice(None), slice(1, 3), slice(-2, None), slice(None, None, 2), slice(None, None, -1), slice(4, 0, -3), slice(3, 3),
             slice(9, 20), 0, 2, -1, np.int64(3), Ellipsis]

    def random_index():
        index = [parts[i] for i in rng.integers(0, len(parts), rng.integers(0, 4))]
        return tuple(one for i, one in enumerate(index) if one is not Ellipsis or not any(x is Ellipsis for x in index[:i]))

    def equal(name):
        tensor = cbk.open(run.path(name))[name[0]]
        for _ in range(150):
            index = random_index()
            same(np.asarray(tensor[index]), array[index])
        same(tensor[1], array[1])
        same(tensor[::-1], array[::-1])
    for name in "a.npy", "f.npy":
        run.check(f"random slices of {name}", lambda name=name: equal(name))

    def refused():
        tensor = cbk.open(run.path("a.npy"))["a"]
        for index in [1, 2], True, np.array([1]), None, "x", 1.5:
            raises(TypeError, lambda index=index: tensor[index], "np.asarray")
        raises(IndexError, lambda: tensor[5])
        raises(IndexError, lambda: tensor[0, 0, -7])
        raises(IndexError, lambda: tensor[0, 0, 0, 0])
        raises(ValueError, lambda: tensor[::0])
    run.check("indices that are refused", refused)


# ------------------------------------------------------------------ trees
def trees(run):
    content = collections.OrderedDict({
        "a.b": torch.ones(2), "a": {"b": torch.zeros(2), "c": {"d.e": torch.arange(3)}},
        "list": [1, 2.0, "x", None, [torch.ones(1)], {"k": 2}],
        "tuple": (1, (2,)), 3: "three", -1: "minus", (1, "x"): "tuple", None: "none", 1.5: "float", True and "true": True, "big": 2 ** 70,
        "small": -2 ** 63, "inf": float("inf"), "complex": 1 + 2j, "bytes": b"\0\xff", "size": torch.Size([2, 3]), "set": {1, 2}, "": 5,
        "é☃\n": "\"\\\x01é", "scalar": np.float32(1.5), "empty": {}, "none": [], "dtype": torch.float16})
    torch.save(content, run.path("tree.pt"))

    def same_value(found, wanted):
        if isinstance(wanted, torch.Tensor):
            return same(np.asarray(found), wanted.numpy())
        if isinstance(wanted, torch.dtype):
            assert found == cbk.Object("torch.dtype", "torch.float16", None), found
        elif isinstance(wanted, dict):
            assert list(found) == list(wanted) and len(found) == len(wanted), (list(found), list(wanted))
            for key, value in found.items():
                same_value(value, wanted[key])
                same_value(found[key], wanted[key])
        elif isinstance(wanted, (list, tuple)) and not isinstance(wanted, torch.Size):
            assert type(found) is type(wanted) and len(found) == len(wanted), (found, wanted)
            for one, other in zip(found, wanted):
                same_value(one, other)
        else:
            assert found == wanted and type(found) is (tuple if isinstance(wanted, torch.Size) else type(wanted)), (found, wanted)
        return None

    def equal():
        with cbk.open(run.path("tree.pt")) as c:
            same_value(c, content)
    run.check("keys and values of all kinds", equal)

    def dotted():
        with cbk.open(run.path("tree.pt")) as c:
            same(np.asarray(c["a.b"]), np.ones(2, np.float32))
            same(np.asarray(c["a"]["b"]), np.zeros(2, np.float32))
            same(np.asarray(c["a.c.d.e"]), np.arange(3))
            assert c["list.5.k"] == 2 and c["3"] == "three" and "a.c" in c and "a.x" not in c and c.get("zz", 7) == 7
            assert [key for key, _ in c.tensors("a.c*")] == ["a.c.d.e"] and len(list(c.tensors())) == 4 + 1
    run.check("keys with dots", dotted)

    def missing():
        with cbk.open(run.path("tree.pt")) as c:
            error = raises(KeyError, lambda: c["lst"], "did you mean 'list'?")
            assert isinstance(error, cbk.Error) and error.code == "key" and str(pickle.loads(pickle.dumps(error))) == str(error)
            raises(cbk.MissingKey, lambda: c[2.5])
            raises(cbk.MissingKey, lambda: c["a"][(1, 2)])
            raises(cbk.MissingKey, lambda: c["list.9"])
    run.check("keys that are missing", missing)


def formats(run, rng):
    array = rng.random((30, 20)).astype(np.float32)

    def h5():
        with h5py.File(run.path("a.h5"), "w") as file:
            file.create_dataset("plain", data=array)
            file.create_dataset("packed", data=array, chunks=(7, 9), compression="gzip")
            file.create_dataset("half", data=array.astype(np.float16))
        with cbk.open(run.path("a.h5")) as c:
            assert c.format == "flat-h5" and c.files == [run.path("a.h5")]
            with h5py.File(run.path("a.h5")) as file:
                for key in file:
                    same(np.asarray(c[key]), file[key][()])
                    same(c[key][3:20:4, -5:], file[key][3:20:4, -5:])

    def gguf():
        blocks = rng.integers(0, 256, (6, 34)).astype(np.uint8)
        blocks[:, 1] &= 0x3F  # finite scales
        with open(run.path("a.gguf"), "wb") as file:
            file.write(gguf_interop.file_of({"q": (8, (2, 96), blocks.tobytes())}, [
                ("general.architecture", "str", "llama"), ("tokenizer.ggml.tokens", "[str", [f"é{i}" for i in range(3000)])]))
        with cbk.open(run.path("a.gguf")) as c:
            wanted = gguf_interop.q8_0(blocks).reshape(2, 96)
            same(np.asarray(c["q"]), wanted)
            same(c["q"][1, 30:70], wanted[1, 30:70])
            same(c["q"].stored(), blocks.reshape(2, 102))
            assert (c["q"].stored_dtype, c["q"].dtype, c["metadata"]["general.architecture"]) == ("Q8_0", np.float32, "llama")
            assert c["metadata"]["tokenizer.ggml.tokens"] == [f"é{i}" for i in range(3000)]

    def fp8():
        files, settings, weight = quantised_interop.fp8(rng, "row")
        os.mkdir(run.path("fp8"))
        safetensors_file.save(run.path("fp8/model.safetensors"), files)
        with open(run.path("fp8/config.json"), "w", encoding="utf-8") as file:
            json.dump({"quantization_config": settings}, file)
        key = quantised_interop.KEY + ".weight"
        with cbk.open(run.path("fp8")) as c, cbk.open(run.path("fp8"), stored=True) as codes:
            assert list(c) == [key] and list(codes) == list(files)
            assert np.array_equal(np.asarray(c[key]), weight, equal_nan=True)
            assert codes[key].stored().tobytes() == files[key][2]

    def codes_without_numbers():
        os.mkdir(run.path("cut"))
        safetensors_file.save(run.path("cut/model.safetensors"), {
            "w.weight": ("F8_E4M3", (4, 4), b"\1" * 16), "w.weight_scale": torch.ones(3), "v": torch.ones(2)})
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            c = cbk.open(run.path("cut"))
        assert any("stored" in str(one.message) for one in heard), heard
        assert raises(cbk.Error, lambda: np.asarray(c["w.weight"]), "scales").code == "unsupported"
        same(c["w.weight"].stored(), np.full((4, 4), 1, np.uint8))
        same(np.asarray(c["v"]), np.ones(2, np.float32))

    def metadata():
        safetensors_file.save(run.path("m.safetensors"), {"w": torch.ones(2)}, {"title": "é"})
        with cbk.open(run.path("m.safetensors")) as c:
            assert dict(c.metadata) == {"format": "pt", "title": "é"} and c.format == "safetensors"

    for test in h5, gguf, fp8, codes_without_numbers, metadata:
        run.check(test.__name__, test)


# ------------------------------------------------------------------ size and speed
def peak_of(process):
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "RssAnon")}


def servers():
    """Our children that read checkpoints."""
    gc.collect()
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "serve --stdio"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def large(run):
    size = 6 << 30
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 15, size >> 17], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(run.path("large.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
        file.seek(8 + len(header) + size - 4)
        file.write(struct.pack("<f", 2.5))

    def in_slices():
        with cbk.open(run.path("large.safetensors")) as c:
            tensor = c["w"]
            assert tensor.nbytes == size
            for first in range(0, len(tensor), 1 << 11):
                assert not tensor[first:first + 64].any()
            same(tensor[:, :3], np.zeros((1 << 15, 3), np.float32))
            same(tensor[-1:, -2:], np.array([[0, 2.5]], np.float32))
            server, = servers()
            assert peak_of(server)["RssAnon"] < 100 << 20, peak_of(server)

    def in_blocks():
        """Through the pipe, as an array of another program: the server has no more than some blocks at once."""
        process = subprocess.Popen([run.cbk, "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        requests = [{"id": 1, "method": "open", "path": run.path("large.safetensors")},
                    {"id": 2, "method": "read", "checkpoint": 1, "at": ["w"], "index": [[0, 1 << 13], [0, size >> 17]]}]
        process.stdin.write("".join(json.dumps(one) + "\n" for one in requests).encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["checkpoint"] == 1
        assert json.loads(process.stdout.readline())["array"]["bytes"] == size // 4
        count, line = 0, json.loads(process.stdout.readline())
        while "bytes" in line:
            count += len(process.stdout.read(line["bytes"]))
            line = json.loads(process.stdout.readline())
        assert count == size // 4 and line == {"id": 2, "result": None}, (count, line)
        assert peak_of(process.pid)["VmHWM"] < 100 << 20, peak_of(process.pid)
        process.stdin.close()
        assert process.wait() == 0
        process.stdout.close()

    run.check("a large tensor in slices", in_slices)
    run.check("a large tensor through the pipe", in_blocks)


def many_keys(run):
    torch.save({f"k.{i}": i for i in range(100000)}, run.path("many.pt"))

    def lazily():
        with cbk.open(run.path("many.pt")) as c:
            sent = []
            call = c._server.call
            c._server.call = lambda *words, **more: sent.append(words) or call(*words, **more)
            assert len(c) == 100000 and next(iter(c)) == "k.0" and c["k.99999"] == 99999
            assert len(sent) == 2, sent
            assert list(c) == [f"k.{i}" for i in range(100000)]
            assert dict(c.items()) == {f"k.{i}": i for i in range(100000)}
            both = zip(c.items(), c)  # two walks at the same time
            assert all(item[0] == key for item, key in (next(both) for _ in range(5000)))
            assert len(sent) < 300, len(sent)
    run.check("100,000 keys", lazily)

    def long_texts():
        torch.save({"a": "x" * (5 << 20), "b": b"y" * (5 << 20), "list": ["é" * (3 << 20)] * 3}, run.path("long.pt"))
        with cbk.open(run.path("long.pt")) as c:
            pages = [len(c._server.call("entries", first=first, values=True)["entries"]) for first in range(3)]
            assert pages == [1, 1, 1], pages
            assert c["list"] == ["é" * (3 << 20)] * 3 and c["a"] == "x" * (5 << 20)
            assert [key for key, _ in c.items()] == ["a", "b", "list"]
    run.check("long texts come one by one", long_texts)

    def through_the_pipe():
        np.save(run.path("piped.npy"), np.arange(1 << 20))
        with cbk.open(run.path("piped.npy")) as c:
            c._server.has_files = False
            same(np.asarray(c["piped"]), np.arange(1 << 20))
            same(c["piped"][5:1 << 19], np.arange(5, 1 << 19))
    run.check("without /proc", through_the_pipe)


# ------------------------------------------------------------------ the protocol
def answers(run, lines):
    done = subprocess.run([run.cbk, "serve", "--stdio"], input=b"\n".join(lines), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def malformed(run):
    np.save(run.path("p.npy"), np.arange(6.0).reshape(2, 3))
    good = json.dumps({"id": 0, "method": "open", "path": run.path("p.npy")}).encode()

    def errors():
        requests = [b"", b"x", b"[]", b"1", b"null", b"{}", b'{"id": 5}', b'{"id": "a", "method": 3}', b'{"method": "read"}', b"\xff\xfe",
                    b'{"method": "open"}', b'{"method": "open", "path": 5}', b'{"method": "open", "path": "/nowhere"}', b"[" * 100000,
                    b'{"method": "__index"}', b'{"method": "reply"}', b'{"method": "open", "path": "x", "salvage": 1}',
                    b'{"method": "open", "path": "x", "max_expansion": {}}', b'{"method": "open", "path": "x", "allow_external": [1]}']
        requests += [json.dumps({"method": method, "checkpoint": 1, **more}).encode() for method, more in [
            ("value", {"at": ["x"]}), ("value", {"at": "x"}), ("value", {"at": [{"entry": 5}]}), ("value", {"at": [{"state": True}]}),
            ("value", {"at": [{}]}), ("value", {"at": [None]}), ("value", {"at": [[1]]}), ("value", {"at": [1.5]}), 
            ("value", {"at": [{"entry": "x"}]}), ("entries", {"first": -1}), ("tensors", {"glob": "["}), ("tensors", {"first": "x"}),
            ("entries", {"at": ["p"]}), ("read", {}), ("read", {"at": ["p"], "stored": 1}),
            *[("read", {"at": ["p"], "index": index}) for index in (5, [5], [[0]], [[0, 1]] * 3, [[0, 1, 0]], [["a", "b"]], [[0, 1, -1]])],
            ("close", {"checkpoint": 2}), ("value", {"checkpoint": [1]})]]
        found = answers(run, [good, *requests, good])
        assert len(found) == len(requests) + 2, len(found)
        assert found[0]["result"]["checkpoint"] == 1 and found[-1]["result"]["checkpoint"] == 2
        for request, reply in zip(requests, found[1:]):
            assert set(reply["error"]) >= {"code", "message"} and reply["error"]["code"] != "internal", (request, reply)
            assert "where" not in reply["error"] and ".lua" not in reply["error"]["message"], (request, reply)
        assert [reply["id"] for reply in found[7:9]] == [5, "a"], found[7:9]

    def closes():
        found = answers(run, [good, b'{"id": 1, "method": "close", "checkpoint": 1}', b'{"id": 2, "method": "value", "checkpoint": 1}'])
        assert found[1] == {"id": 1, "result": None} and found[2]["error"]["code"] == "usage", found

    def needs_stdio():
        done = run.run("serve")
        assert done.returncode == 2 and "--stdio" in done.stderr, done

    run.check("requests that are none", errors)
    run.check("close", closes)
    run.check("without --stdio", needs_stdio)


def damaged(run):
    torch.save({"w": torch.arange(5e6), "v": torch.ones(3)}, run.path("damaged.pt"))
    with open(run.path("damaged.pt"), "r+b") as file:
        at = file.read().index(struct.pack("<2f", 5000, 5001))
        file.seek(at)
        file.write(b"\xff")

    def is_found():
        with cbk.open(run.path("damaged.pt")) as c:
            assert raises(cbk.Error, lambda: np.asarray(c["w"]), "damaged").code == "format"
            same(np.asarray(c["v"]), np.ones(3, np.float32))

    def became_shorter():
        np.save(run.path("short.npy"), np.zeros(1 << 20))
        c = cbk.open(run.path("short.npy"))["short"]
        os.truncate(run.path("short.npy"), 5000)
        assert raises(cbk.Error, lambda: np.asarray(c)).code == "io"

    def was_replaced():
        np.save(run.path("old.npy"), np.zeros(1 << 20))
        c = cbk.open(run.path("old.npy"))["old"]
        np.save(run.path("new.npy"), np.ones(1 << 20))
        os.replace(run.path("new.npy"), run.path("old.npy"))
        assert not np.asarray(c).any(), "an open checkpoint stays what it was"

    run.check("damage", is_found)
    run.check("a file that became shorter", became_shorter)
    run.check("a file that was replaced", was_replaced)


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {tempfile.gettempdir()}/cbk-python-evil",)


def untrusted(run):
    def nothing_runs():
        with open(run.path("evil.pt"), "wb") as file:
            pickle.dump({"w": 1, "evil": Evil()}, file)
        error = raises(cbk.Error, lambda: dict(cbk.open(run.path("evil.pt")).items()))
        assert error.code in ("refused", "format", "unsupported"), error.code
        assert not os.path.exists(f"{tempfile.gettempdir()}/cbk-python-evil")

    def records():
        torch.save({"args": argparse.Namespace(lr=0.5, list=[1, 2])}, run.path("record.pt"))
        with cbk.open(run.path("record.pt")) as c:
            found = c["args"]
            assert isinstance(found, cbk.Object) and found.type == "argparse.Namespace" and dict(found.state) == {"lr": 0.5, "list": [1, 2]}
    run.check("a pickle that would run code", nothing_runs)
    run.check("an instance of a class", records)


# ------------------------------------------------------------------ processes
def processes(run):
    np.save(run.path("q.npy"), np.arange(10.0))

    def closed():
        c = cbk.open(run.path("q.npy"))
        server, = servers()
        c.close()
        c.close()
        raises(ValueError, lambda: c["q"][0], "closed")
        assert not os.path.exists(f"/proc/{server}"), "it was waited for"

    def collected():
        c = cbk.open(run.path("q.npy"))
        assert len(servers()) == 1
        tensor = c["q"]
        del c
        same(tensor[3:5], np.arange(3.0, 5.0))
        del tensor
        assert not servers()

    def killed():
        c = cbk.open(run.path("q.npy"))
        os.kill(servers()[0], signal.SIGKILL)
        assert raises(cbk.Error, lambda: c["q"][0]).code == "io"
        same(c["q"][1:2], np.array([1.0]))

    def interrupted():
        """Ctrl-C while a reply is read: the next request has its own reply."""
        c = cbk.open(run.path("large.safetensors"))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

        def reads():
            for _ in range(1000):
                c["w"][::2, :20000]  # pylint: disable=pointless-statement,expression-not-assigned
        raises(KeyboardInterrupt, reads)
        same(c["w"][-1, -1:], np.array([2.5], np.float32))

    def forked():
        c = cbk.open(run.path("q.npy"))
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if c["q"][7] == 7 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0 and c["q"][8] == 8
        again = pickle.loads(pickle.dumps(c["q"]))
        assert again[9] == 9

    def threaded():
        c = cbk.open(run.path("q.npy"))
        found = []
        threads = [threading.Thread(target=lambda i=i: found.extend(c["q"][i] == i for _ in range(50))) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 400 and all(found)

    def pipe_closed():
        """The reader ends early: so does the server, without a word."""
        process = subprocess.Popen([run.cbk, "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        process.stdin.write(b"{}\n" * 1000)
        process.stdin.close()
        assert process.wait(20) in (-signal.SIGPIPE, 128 + signal.SIGPIPE) and not process.stderr.read()

    def ended_twice():
        """SIGTERM while it ends, at any moment: it does end."""
        for i in range(60):
            process = subprocess.Popen([run.cbk, "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            process.stdin.write(b"{}\n")
            process.stdin.close()
            time.sleep(0.0001 * i)
            process.terminate()
            assert process.wait(20) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)

    for test in ended_twice, closed, collected, killed, interrupted, forked, threaded, pipe_closed:
        run.check(f"process: {test.__name__}", test)


def commands(run):
    torch.save({"a": torch.ones(3), "b": torch.tensor([1.0, float("nan")])}, run.path("one.pt"))
    safetensors_file.save(run.path("two.safetensors"), {"a": torch.ones(3) * 1.01, "b": torch.ones(2)})

    def diff():
        found = cbk.diff(run.path("one.pt"), run.path("two.safetensors"))
        assert found["equal"] is False and {one["key"] for one in found["different"]} == {"a", "b"}
        assert cbk.diff(run.path("one.pt"), run.path("two.safetensors"), rtol=0.1, key="a")["equal"] is True

    def check():
        found = cbk.check(run.path("one.pt"))
        assert [one["key"] for one in found["findings"] if "NaN" in one["text"]] == ["b"], found

    def convert():
        error = raises(cbk.Error, lambda: cbk.convert(run.path("one.pt"), run.path("out"), to="cs-2.4", model="gpt2"))
        assert error.code and not os.path.exists(run.path("out"))
        error = raises(cbk.Error, lambda: cbk.convert(run.path("one.pt"), to="cs-9.9", no_such_option=True), "no-such-option")
        assert error.code == "usage"

    def no_program():
        old = os.environ["CBK"]
        os.environ["CBK"] = ""
        path, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
        try:
            raises(cbk.Error, lambda: cbk.open(run.path("one.pt")), "CBK")
        finally:
            os.environ["CBK"], os.environ["PATH"] = old, path

    def typed():
        assert os.path.exists(os.path.join(os.path.dirname(cbk.__file__), "py.typed"))
        for name in cbk.__all__:
            assert getattr(cbk, name).__doc__, name
        if importlib.util.find_spec("mypy"):
            subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", run.path("mypy"), cbk.__file__], check=True)

    for test in diff, check, convert, no_program, typed:
        run.check(f"cbk.{test.__name__}", test)


def help_page(run):
    """The code of the page about Python, as it is written."""
    page = open(os.path.join(TOP, "scripts/help/python.md"), encoding="utf-8").read()
    code = [re.sub("^  ", "", text, flags=re.M) for text in re.findall(r"(?<=\n\n)((?:  .*\n)+)", page)]
    assert len(code) == 2, code

    def runs():
        os.mkdir(run.path("page"))
        recipe = recipes_interop.Recipe(run.cbk, run.path("page"))
        recipe.prepare("cbk convert llama")
        recipe.prepare("cbk diff a.safetensors b.mdl")
        recipe.prepare("cbk ls model.mdl")
        subprocess.run([sys.executable, "-W", "ignore", "-c", "\n".join(code)], cwd=run.path("page"), check=True, timeout=120, env={
            **os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(cbk.__file__)), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL)
        assert cbk.open(run.path("page/new/llama_to_cs-2.4.mdl")).format == "cerebras-h5"
    run.check("cbk help python", runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(parser.parse_args().cbk, folder)
        os.environ["CBK"] = run.cbk
        rng = np.random.default_rng(int(time.time()) // 86400)
        all_dtypes(run, rng)
        slices(run, rng)
        trees(run)
        formats(run, rng)
        large(run)
        many_keys(run)
        malformed(run)
        damaged(run)
        untrusted(run)
        processes(run)
        commands(run)
        help_page(run)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
