#!/usr/bin/python3
"""NumPy's .npy and .npz files, written by NumPy and by cbk, read by the other one; and files that lie.

Usage: npy_interop.py --cbk PATH
"""
import argparse
import os
import sys
import tempfile
import zipfile

import numpy as np

import harness

CODES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (4, 0, 2), (3, 4, 5), (1,) * 20]


def both_ways(run, rng):
    """Every dtype, byte order and shape, in C and in column-major order: what cbk makes of it is the same array."""
    for code in CODES:
        for order in "<>" if code[-1] not in "?1" or code == "c16" else "|":
            for shape in SHAPES:
                dtype = np.dtype(order + code)
                raw = rng.integers(0, 2 if code == "?" else 100, size=shape)
                array = np.asarray(raw.astype(dtype), order="F" if rng.integers(2) else "C")
                path, again = run.path("in.npy"), run.path("out.npy")

                def check(array=array, path=path, again=again):
                    np.save(path, array)
                    run.call("copy", "-q", "--overwrite", path, again)
                    found = np.load(again)
                    assert found.dtype == array.dtype.newbyteorder("<") and found.shape == array.shape, (found.dtype, found.shape)
                    assert np.array_equal(found, array), (found, array)
                    assert (os.path.getsize(again) - array.nbytes) % 64 == 0, "the elements begin at a multiple of 64"
                run.check(f"{order}{code} {shape}", check)


def versions(run):
    array = np.arange(6, dtype="f4").reshape(2, 3)
    for version in (1, 0), (2, 0), (3, 0):
        path = run.path("version.npy")
        with open(path, "wb") as f:
            np.lib.format.write_array(f, array, version=version)
        run.check(f"version {version}", lambda: run.call("show", path, "version").index("[3, 4, 5]"))


def file_of(header, data=b"\0" * 24, version=b"\x01\x00", length=None):
    text = header.encode() + b"\n"
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version[0] == 1 else 4, "little") + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
LIES = {
    "a short file": (b"\x93NUMPY\x01", "needs 12 bytes"),
    "version 9": (file_of(GOOD, version=b"\x09\x00"), "version 9.0"),
    "a header beyond the end": (file_of(GOOD, length=999), "the header needs 1009 bytes"),
    "a huge header": (file_of(GOOD, version=b"\x02\x00", length=1 << 31), "1000000 are allowed"),
    "too few elements": (file_of(GOOD, b"\0" * 23), "needs 24 bytes, and 23 follow the header; is the file cut short?"),
    "too many elements": (file_of(GOOD, b"\0" * 25), "needs 24 bytes, and 25 follow"),
    "too many dims": (file_of(GOOD.replace("(2, 3)", "(" + "1, " * 65 + ")")), "has 65 dims; 64 are allowed"),
    "a negative extent": (file_of(GOOD.replace("2", "-2")), "a whole number"),
    "a huge extent": (file_of(GOOD.replace("2", "9" * 30)), "a whole number"),
    "an overflow": (file_of(GOOD.replace("2", str(1 << 62))), "[4611686018427387904, 3]"),
    "a missing member": (file_of("{'descr': '<f4', 'shape': (2, 3)}"), "lacks"),
    "a member twice": (file_of("{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3)}"), "second member 'descr'"),
    "code": (file_of("__import__('os')"), "'{' is expected"),
    "more after the dict": (file_of(GOOD + " + 1"), "the end is expected"),
    "objects": (file_of(GOOD.replace("<f4", "|O")), "Python objects"),
    "texts": (file_of(GOOD.replace("<f4", "<U8")), "texts or raw bytes"),
    "dates": (file_of(GOOD.replace("<f4", "<M8[ns]")), "dates ('<M8[ns]')"),
    "a long double": (file_of(GOOD.replace("<f4", "<f16")), "numbers of a size that no dtype has ('<f16')"),
    "records": (file_of(GOOD.replace("'<f4'", "[('a', '<f4')]")), "records of several fields"),
}


def lies(run):
    for name, (content, message) in LIES.items():
        path = run.path("lie.npy")
        with open(path, "wb") as f:
            f.write(content)

        def check(path=path, message=message):
            done = run.run("ls", path)
            assert done.returncode == 1 and done.stderr.count("\n") == 1 and message in done.stderr, (done.returncode, done.stderr)
        run.check(name, check)


def refusals(run):
    """A file holds one tensor of a dtype that NumPy has."""
    source = run.path("half.npy")
    np.save(source, np.arange(4, dtype="f4"))
    run.call("copy", "-q", source, run.path("half.safetensors"), "--to-dtype", "bfloat16")
    script = run.path("two.lua")
    with open(script, "w", encoding="utf-8") as f:
        f.write('local cbk = require "cbk"\ncbk.create(arg[1], { root = cbk.dict { { "a", cbk.tensor { 1 } }, { "b", cbk.tensor { 2 } } } }):commit()\n')
    for name, call, message in (
        ("two tensors", ["run", script, run.path("two.npy")], "holds one tensor, not 2; choose one with --include"),
        ("bfloat16", ["copy", run.path("half.safetensors"), run.path("b.npy")], "NumPy has no bfloat16, the dtype of 'half'"),
        ("shards", ["copy", source, run.path("c.npy"), "--shard-size", "1MB"], "not as 'npy'"),
    ):
        def check(call=call, message=message):
            done = run.run(*call)
            assert done.returncode != 0 and message in done.stderr and "Traceback" not in done.stderr, (done.returncode, done.stderr)
        run.check(name, check)
    run.check("a cast", lambda: run.call("copy", "-q", run.path("half.safetensors"), run.path("d.npy"), "--to-dtype", "float32"))
    run.check("its elements", lambda: np.testing.assert_array_equal(np.load(run.path("d.npy")), np.arange(4, dtype="f4")))


def archives(run, rng):
    """Archives of NumPy's, stored and deflated, of any dtype and shape: what cbk makes of them are the same arrays."""
    arrays = {f"{code}.{i}": np.asarray(rng.integers(0, 2, size=shape).astype(code), order="F" if i % 2 else "C")
              for code in ["?", "u1", "<i2", ">i4", ">f4", "<f8", ">c8"] for i, shape in enumerate(SHAPES)}
    arrays["a/b"] = rng.standard_normal(300_000)
    arrays["zeros"] = np.zeros((1000, 1000), "f4")
    for name, save in ("stored", np.savez), ("deflated", np.savez_compressed):
        path, again = run.path(name + ".npz"), run.path(name + "-again.npz")
        save(path, **arrays)

        def check(path=path, again=again):
            run.call("copy", "-q", path, again)
            assert zipfile.ZipFile(again).testzip() is None
            with np.load(again) as found:
                assert list(found) == list(arrays), list(found)
                for key, array in arrays.items():
                    assert found[key].dtype == array.dtype.newbyteorder("<"), key
                    np.testing.assert_array_equal(found[key], array, key)
        run.check(name, check)
        run.check(name + ", member by member", lambda path=path: [export(run, path, key, array) for key, array in arrays.items()])
    np.savez(run.path("none.npz"))
    run.check("an empty archive", lambda: run.call("ls", run.path("none.npz")).index("0 tensors"))
    run.check("both forms are equal", lambda: run.call("diff", run.path("stored.npz"), run.path("deflated.npz")))


def export(run, path, key, array):
    run.call("export", path, key, "-o", run.path("one.npy"), "--overwrite")
    np.testing.assert_array_equal(np.load(run.path("one.npy")), array, key)


def damaged_archives(run, rng):
    """Each kind of damage is an error that names the member, also where only a part of a large file is damaged."""
    arrays = {"first": rng.standard_normal(1000), "second": rng.standard_normal(3_000_000)}
    for name, save in ("stored", np.savez), ("deflated", np.savez_compressed):
        path = run.path(name + "-damaged.npz")
        save(path, **arrays)
        with open(path, "r+b") as f:
            f.seek(20_000_000)
            f.write(b"damage")

        def check(path=path):
            for call in (["copy", "-q", path, run.path("damaged.pt")], ["export", path, "second", "-o", run.path("damaged.npy")]):
                done = run.run(*call)
                assert done.returncode == 1 and "second.npy" in done.stderr, (done.returncode, done.stderr)
            run.call("export", path, "first", "-o", run.path("first.npy"), "--overwrite")
        run.check("damaged, " + name, check)
    path = run.path("odd.npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.npy", file_of(GOOD))
        archive.writestr("objects.npy", file_of(GOOD.replace("<f4", "|O")))
        archive.writestr("note.txt", "words")
    run.check("what is no array", lambda: run.call("ls", path).index("1 tensor, 6 elements"))
    run.check("is left out", lambda: run.call("copy", "-q", path, run.path("odd.pt"), "--include", "good"))

    def refused():
        done = run.run("copy", "-q", path, run.path("odd2.pt"))
        assert done.returncode == 1 and "'objects.npy'" in done.stderr, (done.returncode, done.stderr)
    run.check("or refused", refused)
    for name, (content, message) in LIES.items():
        if message.startswith(("Python objects", "texts", "records", "dates", "numbers of")):
            continue
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("lie.npy", content)

        def check_lie(path=path, message=message):
            done = run.run("ls", path)
            assert done.returncode == 1 and "member 'lie.npy'" in done.stderr and message in done.stderr, (done.returncode, done.stderr)
        run.check("in an archive: " + name, check_lie)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(parser.parse_args().cbk, folder)
        both_ways(run, np.random.default_rng(1))
        versions(run)
        lies(run)
        refusals(run)
        archives(run, np.random.default_rng(2))
        damaged_archives(run, np.random.default_rng(3))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
