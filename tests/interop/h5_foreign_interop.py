#!/usr/bin/python3
"""H5 files of plain h5py, of which cbk can read a part: they open, tell what cannot be read and why, and copy without it.

Usage: h5_foreign_interop.py --cbk PATH
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

import harness

VALUES = np.arange(6000, dtype=np.int32).reshape(60, 100) % 977


def with_filter(f, name, **options):
    return f.create_dataset(name, data=VALUES, chunks=(7, 33), **options)


def with_nbit(f, name):
    """nbit has no word in h5py's create_dataset"""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((7, 33))
    plist.set_filter(5, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple(VALUES.shape)
    h5py.h5d.create(f.id, name.encode(), h5py.h5t.NATIVE_INT32, space, plist).write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)


def dangling_soft(f, name):
    f[name] = h5py.SoftLink("/nowhere/at/all")


def soft_circle(f, name):
    f[name] = h5py.SoftLink("/" + name)


def no_such_file(f, name):
    f[name] = h5py.ExternalLink("missing.h5", "/w")


def no_such_object(f, name):
    f[name] = h5py.ExternalLink("neighbour.h5", "/not there")


def raw_file_missing(f, name):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(b"missing.raw", 0, VALUES.nbytes)
    h5py.h5d.create(f.id, name.encode(), h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple(VALUES.shape), plist)


def virtual(f, name):
    layout = h5py.VirtualLayout(shape=VALUES.shape, dtype="i4")
    layout[:] = h5py.VirtualSource("neighbour.h5", "w", shape=VALUES.shape)
    f.create_virtual_dataset(name, layout)


# name: (maker, words that tell why, whether dtype and shape are known all the same)
UNREADABLE = {
    "szip": (lambda f, n: with_filter(f, n, compression="szip"), "filter 4 (szip)", True),
    "nbit": (with_nbit, "filter 5 (nbit)", True),
    "scaleoffset": (lambda f, n: with_filter(f, n, scaleoffset=0), "filter 6 (scaleoffset)", True),
    "virtual": (virtual, "virtual", True),
    "raw": (raw_file_missing, "missing.raw", True),
    "soft": (dangling_soft, "/nowhere/at/all", False),
    "circle": (soft_circle, "circle", False),
    "external": (no_such_file, "missing.h5", False),
    "elsewhere": (no_such_object, "not there", False),
    "record": (lambda f, n: f.create_dataset(n, data=np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])), "dtype", False),
    "empty": (lambda f, n: f.create_dataset(n, data=h5py.Empty("f4")), "no data", False),
}
READABLE = {
    "plain": lambda f, n: f.create_dataset(n, data=VALUES),
    "fletcher32": lambda f, n: with_filter(f, n, fletcher32=True),
    "fletcher32 after gzip": lambda f, n: with_filter(f, n, compression="gzip", shuffle=True, fletcher32=True),
    "a link": lambda f, n: f.__setitem__(n, h5py.SoftLink("/plain")),
    "beside": lambda f, n: f.__setitem__(n, h5py.ExternalLink("neighbour.h5", "/w")),
}


def reported(words, text):
    assert words in text, text


class Suite(harness.Run):
    def refused(self, words, *args):
        """exit code 1 and one line that has all the words"""
        r = subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and r.stderr.count("\n") == 1, (r.returncode, r.stderr[-300:])
        for word in words:
            assert word in r.stderr, (word, r.stderr)


def one_of_each(run):
    path = run.path("all.h5")
    with h5py.File(run.path("neighbour.h5"), "w") as f:
        f["w"] = VALUES
    with h5py.File(path, "w") as f:
        for name, make in READABLE.items():
            make(f, name)
        for name, (make, _, _) in UNREADABLE.items():
            make(f, name)

    def listed():
        rows = {row["key"]: row for row in json.loads(run.call("ls", "--json", path))["entries"]}
        assert set(rows) == set(READABLE) | set(UNREADABLE), sorted(rows)
        for name in READABLE:
            assert rows[name].get("problem") is None and rows[name]["shape"] == [60, 100], rows[name]
        for name, (_, words, is_tensor) in UNREADABLE.items():
            why = rows[name]["problem"]
            assert words in why and f"'{name}'" in why, why
            assert (rows[name].get("shape") == [60, 100] and rows[name]["dtype"] == "int32") == is_tensor, rows[name]
            assert rows[name]["kind"] == ("tensor" if is_tensor else "unreadable"), rows[name]
        for text in (run.call("ls", path), run.call("ls", "--flat", path)):
            for name, (_, words, _) in UNREADABLE.items():
                assert any(name in line and words in line for line in text.splitlines()), (name, text)
    run.check("ls names what cannot be read, and why", listed)

    def to_tensorflow():
        with h5py.File(run.path("null.h5"), "w") as f:
            f["w"], f["none"] = VALUES, h5py.Empty("f4")
        r = subprocess.run([run.cbk, "h5-to-tensorflow", run.path("null.h5"), run.path("bundle")], capture_output=True, text=True, timeout=120)
        assert r.returncode == 0 and "'none' is left out" in r.stderr and "saved to" in r.stdout, r
        assert [row["key"] for row in json.loads(run.call("ls", "--json", run.path("bundle")))["entries"]] == ["w"]
    run.check("h5-to-tensorflow leaves out a dataset without data", to_tensorflow)

    def values():
        root = dict((k["v"], n) for k, n in json.loads(run.call("dump", run.path("readable.h5")))["root"]["items"])
        for name in READABLE:
            assert root[name]["sha256"] == root["plain"]["sha256"], name
    with h5py.File(run.path("readable.h5"), "w") as f:
        for name, make in READABLE.items():
            make(f, name)
    run.check("checksummed chunks and links are read", values)

    for name, (_, words, is_tensor) in UNREADABLE.items():
        for target in ("x.pt", "x.safetensors", "x.mdl", "x.index"):
            def copied():
                run.refused(["--exclude", words, f"'{name}'"], "copy", path, run.path(target), "--include", name, "--include", "plain", "--rename", "plain=other")
                assert not os.path.exists(run.path(target))
            run.check(f"{name} is not copied to {target}", copied)
        run.check(f"show {name} says why", lambda: reported(words, run.call("show", path, name)))
        if is_tensor:
            run.check(f"{name}:stats() says why", lambda: run.refused([words, f"'{name}'"], "-e", f"cbk.open('{path}').root['{name}']:stats()"))
            script = (f"local t = cbk.open('{path}').root['{name}']:to 'float32' * 2; "
                      f"cbk.create('{run.path('x.pt')}', {{ root = {{ t = t }} }}):commit()")
            run.check(f"what is computed from {name} is not written", lambda: run.refused([words], "-e", script))

    def rest():
        target = run.path("rest.pt")
        run.call("copy", path, target, *[word for name in UNREADABLE for word in ("--exclude", name)])
        rows = json.loads(run.call("ls", "--json", target))["entries"]
        assert sorted(row["key"] for row in rows) == sorted(READABLE), rows
        run.call("diff", target, run.path("readable.h5"))
    run.check("--exclude copies the rest", rest)


def damage(run):
    """a flipped byte in a chunk with a checksum"""
    path = run.path("damaged.h5")
    with h5py.File(path, "w") as f:
        d = with_filter(f, "w", fletcher32=True)
        place = d.id.get_chunk_info(11).byte_offset
    with open(path, "r+b") as f:
        f.seek(place + 100)
        byte = f.read(1)
        f.seek(place + 100)
        f.write(bytes([byte[0] ^ 1]))
    run.call("ls", path)

    def found():
        run.refused(["Fletcher", "w"], "copy", path, run.path("x.pt"))
        assert not os.path.exists(run.path("x.pt"))
    run.check("a damaged chunk is found, and leaves no target", found)


def still_refused(run):
    with h5py.File(run.path("group.h5"), "w") as f:
        f["a/b"] = VALUES
    run.check("a group is no variable", lambda: run.refused(["'a'", "not a dataset"], "ls", run.path("group.h5")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cbk-h5-foreign-") as folder:
        run = Suite(args.cbk, folder)
        one_of_each(run)
        damage(run)
        still_refused(run)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
