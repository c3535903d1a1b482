#!/usr/bin/python3
"""`cbk check` and the numbers of `cbk diff`, with other programs as judges: NumPy and torch for values, Python's zipfile and h5py for
damage, pickletools for what a pickle names.

Usage: check_interop.py --cbk PATH
"""
import argparse
import collections
import json
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile
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
        assert sorted(rules) == ["nan", "unsafe-global"], rules
        assert [one["rule"] for one in findings(run, path, "--allow-records")] == ["nan"]
    run.check("classes that may be records", only_records)

    def inside_records():
        path = run.path("inside.pt")
        inner = argparse.Namespace(v=torch.tensor([float("inf"), 2.0]))
        torch.save({"m": argparse.Namespace(w=torch.tensor([1.0, float("nan")]), part={"x": [inner]})}, path)
        found = sorted((one["rule"], one["key"]) for one in findings(run, path, "--allow-records"))
        assert found == [("infinity", "m.part.x.0.v"), ("nan", "m.w")], found
    run.check("tensors inside records", inside_records)

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
        damaged_chunks(run)
        unsafe_pickles(run)
        differences(run, rng)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
