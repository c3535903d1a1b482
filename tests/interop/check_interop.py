#!/usr/bin/python3
"""`cbk check` and the numbers of `cbk diff`, with other programs as judges: NumPy and torch for values, Python's zipfile and h5py for
damage, pickletools for what a pickle names.

Usage: check_interop.py --cbk PATH
"""
import argparse
import collections
import fileinput
import functools
import importlib
import io
import json
import os
import pathlib
import operator
import pickle
import pickletools
import random
import shutil
import subprocess
import sys
import tempfile
import types
import typing
import zipfile

import h5py
import numpy as np
import torch

import harness


def findings(run, *args, codes=(0, 1)):
    done = run.run("check", "--json", *args)
    assert done.returncode in codes, (done.returncode, done.stderr)
    result = json.loads(done.stdout)
    is_finding = any(one["severity"] != "note" for one in result["findings"])
    assert done.returncode == 2 or (done.returncode == 1) == is_finding, done
    return result["findings"]


def strange_values(run, rng):
    """Counts and places of NaN and infinities, and of numbers that a dtype does not hold."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape in ((7,), (60, 90), (3, 400, 500)):
            numbers = torch.from_numpy(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 6, shape)).to(dtype)
            flat = numbers.view(-1)
            for value, count in ((float("nan"), 5), (float("inf"), 3), (float("-inf"), 2)):
                flat[torch.from_numpy(rng.integers(0, flat.numel(), count))] = value
            path = run.path("values.pt")
            torch.save({"w": numbers}, path)

            def check():
                found = {one["rule"]: one["text"] for one in findings(run, path, "--for", "float16")}
                for rule, mask in (("nan", numbers.isnan()), ("infinity", numbers.isinf())):
                    count = int(mask.sum())
                    first = mask.nonzero()[0].tolist()
                    text = found[rule]
                    assert text.startswith(f"{count:,} of {numbers.numel():,} elements "), (text, count)
                    assert text.endswith(f"at [{', '.join(map(str, first))}]"), (text, first)
                    if len(shape) > 1:
                        assert f" in row {first[0]}, " in text, text
                overflowed = int((numbers.isfinite() & ~numbers.to(torch.float16).isfinite()).sum())
                if overflowed:
                    assert found["overflow"].startswith(f"{overflowed:,} of "), (found, overflowed)
                else:
                    assert "overflow" not in found, found
            run.check(f"values {dtype} {shape}", check)


def damaged_archives(run, rng):
    """Whatever byte of a torch file changes: where zipfile finds damage, check does, too. (Padding between members and the
    directory's names have no checksum.)"""
    source = run.path("whole.pt")
    torch.save({f"w{i}": torch.randn(2_000_000, generator=torch.Generator().manual_seed(i)) for i in range(3)}, source)
    with open(source, "rb") as file:
        data = file.read()
    run.check("an intact archive", lambda: findings(run, source, codes=(0,)))
    directory = zipfile.ZipFile(source).start_dir
    for place in [int(x) for x in rng.integers(0, directory, 12)] + [70, 200, directory - 64, len(data) - 20]:
        path = run.path("damaged.pt")
        changed = bytearray(data)
        changed[place] ^= 0x10
        with open(path, "wb") as file:
            file.write(changed)

        def check():
            try:
                is_damaged = zipfile.ZipFile(path).testzip() is not None
            except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, UnicodeDecodeError):
                is_damaged = True
            if is_damaged:
                done = run.run("check", "--json", path)
                rules = [one["rule"] for one in json.loads(done.stdout)["findings"]] if done.returncode < 2 else []
                assert done.returncode == 2 or "damaged" in rules or "unsafe-global" in rules, (place, done)
        run.check(f"a changed byte at {place}", check)


def parts_of_archives(run):
    """What Python's zipfile writes is read if it is the whole file: with a comment, without zip64, packed again; and refused where
    other data are before or behind it."""
    source = run.path("plain.pt")
    torch.save({"w": torch.arange(5.0)}, source)
    np.savez(run.path("plain.npz"), w=np.arange(5.0))
    for path in (source, run.path("plain.npz")):
        ending = os.path.splitext(path)[1]
        with open(path, "rb") as file:
            data = file.read()
        packed, commented, appended = (run.path(name + ending) for name in ("packed", "commented", "appended"))
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        with open(commented, "wb") as file:
            file.write(data)
        with zipfile.ZipFile(commented, "a") as file:
            file.comment = b"PK\5\6 a comment that looks like an end record ......"
        with open(appended, "wb") as file:
            file.write(b"PK\3\4" + bytes(96))
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(appended, "a") as new:  # its places count from the file's beginning
            for name in old.namelist():
                new.writestr(name, old.read(name))
        with open(run.path("joined" + ending), "wb") as file:
            file.write(data + data)
        with open(run.path("followed" + ending), "wb") as file:
            file.write(data + bytes(10))

        def check():
            for good in (path, packed, commented):
                assert "1 tensor, 5 elements" in run.call("ls", good), good
            for name, text in (("appended", "begins at byte 100 "), ("joined", f"begins at byte {len(data)} "),
                               ("followed", f"ends at byte {len(data)} of {len(data) + 10}")):
                for command in ("ls", "stats", "check"):
                    done = run.run(command, run.path(name + ending))
                    assert done.returncode == 1 and text in done.stdout + done.stderr, (name, command, done)
            assert "1 tensor, 5 elements" in run.call("ls", run.path("followed" + ending), "--salvage")
        run.check("whole archives " + ending, check)


def damaged_chunks(run):
    """A chunk of an H5 file that fails its checksum, as h5py sees it."""
    path = run.path("chunks.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=np.random.default_rng(1).standard_normal((64, 64)), chunks=(16, 16), fletcher32=True)
        file.create_dataset("v", data=np.array([1.0, np.nan]))
        place = file["w"].id.get_chunk_info(5).byte_offset
    run.check("intact chunks", lambda: [one["rule"] for one in findings(run, path)] == ["nan"])
    with open(path, "r+b") as file:
        file.seek(place + 11)
        byte = file.read(1)[0]
        file.seek(place + 11)
        file.write(bytes([byte ^ 1]))

    def check():
        try:
            with h5py.File(path) as file:
                file["w"][:]
        except OSError:
            pass
        else:
            raise AssertionError("h5py reads the damaged chunk")
        assert sorted((one["rule"], one["key"]) for one in findings(run, path)) == [("damaged", "w"), ("nan", "v")], findings(run, path)
    run.check("a damaged chunk", check)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


PLAIN = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch FloatStorage"}


def unsafe_pickles(run):
    """All globals that are not plain data are named, as pickletools names them; none is called."""
    marker = run.path("executed")
    tree = collections.OrderedDict(
        w=torch.ones(3), a=Call(os.system, f"touch {marker}"), b=[Call(eval, f"open({marker!r}, 'w')")], c=Call(subprocess.getoutput, f"touch {marker}"),
        d=argparse.Namespace(x=1), e=Call(os.system, f"touch {marker}"))
    for protocol in (2, 3, 4, 5):
        path = run.path(f"unsafe{protocol}.pt")
        torch.save(tree, path, pickle_protocol=protocol)

        def check():
            with zipfile.ZipFile(path) as archive:
                data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
            named, strings = [], []
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "GLOBAL":
                    named.append(argument)
                elif opcode.name == "STACK_GLOBAL":
                    named.append(" ".join(strings[-2:]))
                elif "UNICODE" in opcode.name:
                    strings.append(argument)
            if protocol < 4:  # otherwise names come from the memo, too, which the lines above do not follow
                expected = {name.replace("__builtin__", "builtins").replace(" ", ".") for name in named if name not in PLAIN}
            else:
                expected = {"posix.system", "builtins.eval", "subprocess.getoutput", "argparse.Namespace"}
            found = findings(run, path)
            assert {one["rule"] for one in found} == {"unsafe-global"}, found
            texts = [one["text"] for one in found]
            assert len(texts) == len(expected) == 4, (texts, expected)
            for name in expected:
                assert sum(name in text for text in texts) == 1, (name, texts)
            assert not os.path.exists(marker)
        run.check(f"globals of protocol {protocol}", check)

    def only_records():
        path = run.path("records.pt")
        torch.save({"args": argparse.Namespace(lr=1), "w": torch.tensor([1.0, float("nan")])}, path)
        rules = [one["rule"] for one in findings(run, path)]
        assert sorted(rules) == ["nan", "record"], rules
        assert [one["rule"] for one in findings(run, path, "--allow-records")] == ["nan"]
        path = run.path("training_args.bin")
        torch.save(argparse.Namespace(lr=1), path)
        found = findings(run, path)
        assert [one["rule"] for one in found] == ["record"] and "--weights" not in found[0]["advice"], found
        assert "--allow-records leaves this finding out" in found[0]["advice"] and findings(run, path, "--allow-records") == [], found
    run.check("classes that may be records", only_records)

    def harmless():
        """Classes that hold data are not said to run code, though their instances are not read; functions beside them are."""
        module = types.ModuleType("torch.distributed.tensor")
        module.DTensor = type("DTensor", (), {"__module__": module.__name__, "__qualname__": "DTensor"})
        data = {"typing.Any": typing.Any, "pathlib.PosixPath": pathlib.PosixPath("a"), "builtins.slice": slice(1), "builtins.Ellipsis": ...,
                "functools.partial": functools.partial(argparse.Namespace), "torch.distributed.tensor.DTensor": module.DTensor,
                "_io.BytesIO": io.BytesIO(b"x"), "random.Random": random.Random(1),
                "operator.itemgetter": operator.itemgetter(1)}
        acts = {"subprocess.Popen": subprocess.Popen, "typing.get_type_hints": typing.get_type_hints, "io.open": open,
                "shutil.rmtree": shutil.rmtree, "pathlib.Path.unlink": pathlib.Path.unlink, "torch.serialization.load": torch.load,
                "importlib.import_module": importlib.import_module, "fileinput.FileInput": fileinput.FileInput, "builtins.getattr": getattr}
        for name, value in (data | acts).items():
            path = run.path("one.pt")
            sys.modules[module.__name__], kept = module, sys.modules.get(module.__name__)
            try:
                torch.save({"x": value}, path, pickle_protocol=4)
            finally:
                sys.modules.pop(module.__name__)
                if kept is not None:
                    sys.modules[module.__name__] = kept
            found = [one for one in findings(run, path) if name in one["text"]]
            assert len(found) == 1, (name, findings(run, path))
            text, advice = found[0]["text"], found[0]["advice"]
            is_named = any(words in text for words in ("can run code or touch files", "gets any function by its name"))
            assert is_named == (name in acts), (name, text)
            is_refused = name in acts and name != "builtins.getattr"  # which is read, as of enums, and never called
            assert (found[0]["rule"] == "unsafe-global") == is_refused, (name, found)
            assert ("that could run code" in advice) == is_refused, (name, advice)
            assert ("full_state_dict=True" in advice) == (name.startswith("torch.distributed")), (name, advice)
    run.check("classes that only hold data", harmless)

    def inside_records():
        path = run.path("inside.pt")
        inner = argparse.Namespace(v=torch.tensor([float("inf"), 2.0]))
        torch.save({"m": argparse.Namespace(w=torch.tensor([1.0, float("nan")]), part={"x": [inner]})}, path)
        found = sorted((one["rule"], one["key"]) for one in findings(run, path, "--allow-records"))
        assert found == [("infinity", "m.part.x.0.v"), ("nan", "m.w")], found
    run.check("tensors inside records", inside_records)

    def whole_module():
        """All commands see the tensors of a pickled module, and the same ones."""
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        state = module.state_dict()
        for name, value in {"module": module, "trainer": {"epoch": 3, "model": module}}.items():
            path, prefix = run.path(name + ".pt"), "model." if name == "trainer" else ""
            torch.save(value, path)
            listed = json.loads(run.call("ls", "--json", path))
            assert listed["totals"]["tensors"] == len(state), listed["totals"]
            keys = {entry["key"] for entry in listed["entries"] if "shape" in entry}
            stats = json.loads(run.call("stats", "--json", path))["tensors"]
            assert {one["key"] for one in stats} == keys, stats
            assert f"{len(state)} tensors" in run.run("check", path).stdout
            bias = prefix + "0.bias"
            assert keys == {prefix + key for key in state}, keys
            shown = json.loads(run.call("show", "--json", path, bias))
            assert shown[0]["shape"] == [4], shown
            run.call("diff", path, path)
            target = run.path(name + ".npz")
            run.call("copy", path, target, "--weights", "-q")
            copied = np.load(target)
            assert set(copied.files) == set(state) and np.array_equal(copied["0.bias"], state["0.bias"].numpy()), copied.files
            module[0].weight.data[0, 0, 0, 0] = float("nan")
            torch.save(value, path)
            found = [one["key"] for one in findings(run, path, "--allow-records")]
            assert found == [prefix + "0.weight"], found
            module[0].weight.data[0, 0, 0, 0] = 0
    run.check("a whole module", whole_module)

    def several_saves():
        """torch.save twice into one legacy file: torch.load reads the first object, and so do we, with a warning."""
        path = run.path("twice.pt")
        with open(path, "wb") as file:
            for count in (1, 2):
                torch.save({f"w{count}": torch.ones(count)}, file, _use_new_zipfile_serialization=False)
        done = run.run("ls", path)
        assert done.returncode == 0 and "behind the last storage are not read" in done.stderr, done.stderr
        assert list(torch.load(path)) == ["w1"] and "w1" in done.stdout, done.stdout
        reported = [(one["rule"], one["severity"]) for one in findings(run, path)]
        assert reported == [("reading", "warning")], reported
    run.check("several objects in a legacy file", several_saves)

    def two_files():
        """A second HDF5 file behind the first, as `cat` makes it: h5py reads the first, and so do we, with a warning."""
        path = run.path("two.h5")
        for libver in ("earliest", "latest"):
            with h5py.File(path, "w", libver=libver) as file:
                file["w"] = np.ones(3, "f4")
            assert findings(run, path) == [], libver
            with open(path, "r+b") as file:
                content = file.read()
                file.write(content)
            done = run.run("ls", path)
            assert done.returncode == 0 and "behind the end that the file states" in done.stderr, done.stderr
            assert [(one["rule"], one["severity"]) for one in findings(run, path)] == [("reading", "warning")], libver
    run.check("another file behind an HDF5 file", two_files)

    def unwritten():
        """Chunks that a program did not come to: h5py reads them as the fill value."""
        path = run.path("sparse.h5")
        for libver in ("earliest", "latest"):
            with h5py.File(path, "w", libver=libver) as file:
                file.create_dataset("some", (100_000,), "f4", chunks=(100,))[:69_950] = np.arange(69_950)
                file.create_dataset("swapped", (40,), ">f4", chunks=(20,))[:20] = np.arange(20)
                file.create_dataset("none", (3,), "i4")
                file.create_dataset("empty", (0, 3), "i4", chunks=(1, 1), maxshape=(5, 3))
                file.create_dataset("all", data=np.arange(40.0), chunks=(15,))
            found = {one["key"]: one["text"] for one in findings(run, path) if one["rule"] == "unwritten"}
            chunks = "%s chunks were never written, and read as the fill value"
            assert found == {"some": chunks % "300 of 1,000", "swapped": chunks % "1 of 2",
                             "none": "it was never written, and reads as the fill value"}, (libver, found)
    run.check("chunks that were never written", unwritten)

    def unreadable():
        path = run.path("links.h5")
        with h5py.File(path, "w") as file:
            file["w"] = np.ones(3, "f4")
            file["long"] = np.ones(3, np.longdouble)
            file["nowhere"] = h5py.SoftLink("/none")
        found = sorted((one["rule"], one["key"]) for one in findings(run, path) if one["rule"] == "unreadable")
        assert found == [("unreadable", "long"), ("unreadable", "nowhere")], found
    run.check("values that cannot be read", unreadable)

    def bare():
        path = run.path("bare.pkl")
        with open(path, "wb") as file:
            pickle.dump({"a": 1}, file)
        assert run.run("check", path).returncode == 2
    run.check("a bare pickle", bare)


def differences(run, rng):
    """Norms, cosine and the largest differences of `cbk diff`, as NumPy has them."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.complex64):
        for shape in ((5,), (300, 700), (7, 200, 300)):
            base = rng.standard_normal(shape) * 100
            noise = rng.standard_normal(shape) * (rng.random(shape) < 0.3)
            extra = 1j * rng.standard_normal(shape) if dtype == torch.complex64 else 0
            a, b = (torch.from_numpy(np.array(x)).to(dtype) for x in (base + extra, base + noise + extra))
            wide = torch.complex128 if dtype == torch.complex64 else torch.float64
            x, y = a.to(wide).numpy(), b.to(wide).numpy()
            if np.array_equal(x, y):
                continue
            torch.save({"w": a}, run.path("a.pt"))
            torch.save({"w": b}, run.path("b.pt"))

            def check():
                entry = json.loads(run.run("diff", "--json", run.path("a.pt"), run.path("b.pt")).stdout)["different"][0]
                distance = np.abs(x - y)
                assert entry["different"] == int((x != y).sum()), entry
                assert np.isclose(float(entry["max_abs"]), distance.max(), rtol=1e-12), (entry, distance.max())
                assert np.isclose(entry["rel_norm"], np.linalg.norm(distance) / np.linalg.norm(y), rtol=1e-9), entry
                cosine = np.vdot(x.ravel(), y.ravel()).real / np.linalg.norm(x) / np.linalg.norm(y)
                assert np.isclose(entry["cosine"], cosine, rtol=1e-9), (entry, cosine)
                largest = [distance[tuple(one["position"])] for one in entry["largest"]]
                assert np.allclose(largest, np.sort(distance[distance > 0])[::-1][:3]), (largest, entry)
                if dtype != torch.complex64:
                    for one in entry["largest"]:
                        at = tuple(one["position"])
                        assert (one["a"], one["b"]) == (x[at], y[at]), (one, x[at], y[at])
            run.check(f"diff {dtype} {shape}", check)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        rng = np.random.default_rng(5)
        strange_values(run, rng)
        damaged_archives(run, rng)
        parts_of_archives(run)
        damaged_chunks(run)
        unsafe_pickles(run)
        differences(run, rng)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
