#!/usr/bin/python3
"""H5 files of plain h5py with every structure and filter: they open, are read natively or by the HDF5 library in a child process, tell
what cannot be read and why, and copy without it.

Usage: h5_foreign_interop.py --cbk PATH
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

import h5py
import hdf5plugin  # registers Blosc
import numpy as np
import torch
import zstandard

import harness
import safetensors_file

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


def of_17_bits(f, name):
    """numbers that do not use all of their bits, packed"""
    kind = h5py.h5t.NATIVE_INT32.copy()
    kind.set_precision(17)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((7, 33))
    plist.set_filter(5, h5py.h5z.FLAG_OPTIONAL, ())
    h5py.h5d.create(f.id, name.encode(), kind, h5py.h5s.create_simple(VALUES.shape), plist).write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)


def with_unknown_filter(f, name, number, pack):
    """chunks that this process packs itself, since its library has no such filter"""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((20, 50))
    plist.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
    made = h5py.h5d.create(f.id, name.encode(), h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple(VALUES.shape), plist)
    for row in range(0, 60, 20):
        for column in range(0, 100, 50):
            made.write_direct_chunk((row, column), pack(VALUES[row:row + 20, column:column + 50].tobytes()))


def inside(f, name):
    """a virtual dataset over another one of the same file"""
    layout = h5py.VirtualLayout(shape=VALUES.shape, dtype="i4")
    layout[:] = h5py.VirtualSource(".", "plain", shape=VALUES.shape)
    f.create_virtual_dataset(name, layout)


def growing(f, name, **options):
    """one unlimited extent: the newest library indexes chunks by an extensible array"""
    return with_filter(f, name, maxshape=(None, 100), **options)


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
    "no plugin": (lambda f, n: with_unknown_filter(f, n, 32099, bytes), "filter 32099", True),
    "virtual": (virtual, "'neighbour.h5'", True),
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
    "szip": lambda f, n: with_filter(f, n, compression="szip"),
    "nbit": with_nbit,
    "17 bits": of_17_bits,
    "scaleoffset": lambda f, n: with_filter(f, n, scaleoffset=0),
    "blosc": lambda f, n: with_filter(f, n, **hdf5plugin.Blosc()),
    "zstd": lambda f, n: with_unknown_filter(f, n, 32015, zstandard.compress),
    "inside": inside,
    "growing": growing,
    "growing, packed": lambda f, n: growing(f, n, compression="gzip"),
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
    with h5py.File(path, "w", libver="latest") as f:
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
    with h5py.File(run.path("readable.h5"), "w", libver="latest") as f:
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


def named_types(run):
    """datatypes with a name are no values; datasets of such a type are like others"""
    path = run.path("types.h5")
    with h5py.File(path, "w") as f:
        f["single"], f["group/record"] = np.dtype("i4"), np.dtype([("a", "i4"), ("b", "f8")])
        f.create_dataset("group/w", data=VALUES, dtype=f["single"])

    def opened():
        for args in (["ls", "--json", path], ["check", path], ["stats", path]):
            run.call(*args)
        assert [row["key"] for row in json.loads(run.call("ls", "--json", path))["entries"]] == ["group.w"]
        run.call("export", path, "group.w", "-o", run.path("w.npy"))
        assert (np.load(run.path("w.npy")) == VALUES).all()
    run.check("files with named datatypes are read", opened)


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


def library():
    """the HDF5 library that h5py uses, for what h5py has no words for"""
    return ctypes.CDLL([line.split()[-1] for line in open("/proc/self/maps") if "libhdf5_serial.so" in line][0])


def shared_messages(run):
    """types, shapes, fills, filters and attributes in the file's table of shared messages, and groups with packed heaps"""
    h5, path = library(), run.path("shared.h5")
    with_table = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    assert h5.H5Pset_shared_mesg_nindexes(ctypes.c_int64(with_table.id), 2) >= 0
    assert h5.H5Pset_shared_mesg_index(ctypes.c_int64(with_table.id), 0, 0x1000, 1) >= 0  # attributes
    assert h5.H5Pset_shared_mesg_index(ctypes.c_int64(with_table.id), 1, 0x082A, 1) >= 0  # all others
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    with h5py.File(h5py.h5f.create(path.encode(), h5py.h5f.ACC_TRUNC, with_table, access)) as f:
        packed = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        assert h5.H5Pset_deflate(ctypes.c_int64(packed.id), 6) >= 0
        f["w0"] = VALUES
        for i in range(1, 40):
            d = with_filter(f, f"w{i}", compression="gzip", fillvalue=7)
            for j in range(20):
                d.attrs[f"note {j}"] = "the same text at each dataset"
        many = h5py.Group(h5py.h5g.create(f.id, b"group", gcpl=packed))
        for i in range(200):
            many[f"a rather long name of a dataset {i}"] = np.int32(i)

    def values():
        flat = run.path("flat.h5")
        with h5py.File(path) as f, h5py.File(flat, "w") as out:
            for name in f:
                if name != "group":
                    out[name] = f[name][()]
        run.call("copy", path, run.path("shared.pt"), "--exclude", "group")
        run.call("diff", run.path("shared.pt"), flat)
    with h5py.File(path, "r+") as f:
        group = {name: f["group"][name][()] for name in f["group"]}
        del f["group"]
    run.check("shared messages are read", values)

    def heap():
        with h5py.File(run.path("heap.h5"), "w", libver="latest") as f:
            made = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
            assert h5.H5Pset_deflate(ctypes.c_int64(made.id), 6) >= 0
            g = h5py.Group(h5py.h5g.create(f.id, b"group", gcpl=made))
            for name, value in group.items():
                g[name] = value
            for name in group:
                f[f"to {name}"] = h5py.SoftLink(f"/group/{name}")
        rows = {row["key"]: row["shape"] for row in json.loads(run.call("ls", "--json", run.path("heap.h5")))["entries"]}
        assert rows == {f"{place}{name}": [] for name in group for place in ("group.", "to ")}, rows
        run.call("copy", run.path("heap.h5"), run.path("heap.pt"), "--rename", "group.*=*", "--include", "group")
        with h5py.File(run.path("heap flat.h5"), "w") as f:
            for name, value in group.items():
                f[name] = value
        run.call("diff", run.path("heap.pt"), run.path("heap flat.h5"))
    run.check("links in packed heaps are followed", heap)


def child(run):
    """what the child process may do, and what is said when it is not well"""
    program = os.path.join(os.path.dirname(os.path.realpath(run.cbk)), "cbk-hdf5")

    def locked_in():
        path = run.path("one.h5")
        with h5py.File(path, "w") as f:
            d = with_filter(f, "w", compression="szip")
            address = h5py.h5o.get_info(d.id).addr
        ours, theirs = socket.socketpair()
        with open(path, "rb") as f:
            saved = os.dup(3) if os.path.exists("/proc/self/fd/3") else None
            os.dup2(f.fileno(), 3)
            # A shell's other descriptors are no business of the library's.
            process = subprocess.Popen([program, str(1 << 28), "4"], stdin=theirs, pass_fds=(3, ours.fileno()))
            if saved is not None:
                os.dup2(saved, 3)
                os.close(saved)
        ours.settimeout(60)
        ours.sendall(struct.pack("<QQQIIII", address, 130, 40, 1, 0, 4, 0))
        status = 3  # it reads new bytes of the file
        while status == 3:
            status, size = struct.unpack("<II", ours.recv(8, socket.MSG_WAITALL))
        assert (status, size) == (0, 160), (status, size)
        got = np.frombuffer(ours.recv(size, socket.MSG_WAITALL), dtype="<i4")
        assert (got == VALUES.reshape(-1)[130:170]).all(), got
        assert set(os.listdir(f"/proc/{process.pid}/fd")) <= set("0123"), os.listdir(f"/proc/{process.pid}/fd")
        proc = open(f"/proc/{process.pid}/status").read()
        assert "Seccomp:\t2" in proc, proc
        limits = open(f"/proc/{process.pid}/limits").read()
        assert re.search("Max data size +268435456 ", limits) and re.search("Max address space +536870912 ", limits), limits
        ours.close()
        theirs.close()
        assert process.wait(timeout=20) == 0
    run.check("the child is locked in, and ends with cbk", locked_in)

    def own_libraries():
        place = run.path("with libraries")
        os.mkdir(place)
        shutil.copy(run.path("one.h5"), place)
        for line in subprocess.run(["ldd", program, run.cbk], capture_output=True, text=True, check=True).stdout.splitlines():
            if "=>" in line:
                with open(os.path.join(place, line.split()[0]), "wb") as f:
                    f.write(b"none of ours")
        for words in ["ls", "one.h5"], ["show", "one.h5", "w"]:
            r = subprocess.run([run.cbk, *words], capture_output=True, text=True, cwd=place)
            assert r.returncode == 0 and "cannot" not in r.stdout + r.stderr, r
    run.check("libraries in the current folder are not loaded", own_libraries)

    def itself():
        path = run.path("circle.h5")
        with h5py.File(path, "w", libver="latest") as f:
            layout = h5py.VirtualLayout(shape=VALUES.shape, dtype="i4")
            layout[:] = h5py.VirtualSource(".", "w", shape=VALUES.shape)
            f.create_virtual_dataset("w", layout)
        r = subprocess.run([run.cbk, "copy", path, run.path("x.pt")], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and "HDF5 library" in r.stderr and r.stderr.count("\n") == 1, r
        assert not os.path.exists(run.path("x.pt"))
    run.check("a virtual dataset over itself is an error", itself)

    def elsewhere():
        path = run.path("elsewhere.h5")
        with h5py.File(path, "w", libver="latest") as f:
            f["fine"] = VALUES
            layout = h5py.VirtualLayout(shape=VALUES.shape, dtype="i4")
            layout[:] = h5py.VirtualSource("\x1b[2J/etc/passwd\nFORGED", "w", shape=VALUES.shape)
            f.create_virtual_dataset("w", layout)
        for words in ["ls", path], ["check", path], ["stats", path], ["show", path, "w"]:
            r = subprocess.run([run.cbk, *words], capture_output=True, text=True, timeout=120)
            text = r.stdout + r.stderr
            assert "\x1b" not in text and "\nFORGED" not in text, r
            assert words[0] != "ls" or "in another file" in text and r"\x1b[2J/etc/passwd\x0aFORGED" in text, r
    run.check("a virtual dataset over another file says so, and no terminal obeys its name", elsewhere)

    def cut():
        path = run.path("cut.h5")
        with h5py.File(path, "w") as f:
            place = with_filter(f, "w", compression="szip").id.get_chunk_info(11).byte_offset
        with open(path, "r+b") as f:
            f.seek(place)
            f.write(b"\xff" * 40)
        r = subprocess.run([run.cbk, "copy", path, run.path("x.pt")], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and "'w'" in r.stderr or "HDF5 library" in r.stderr, r
    run.check("a damaged chunk that the library reads is an error", cut)


SHAPES = [(1,), (5000,), (3, 700000), (2, 3, 300, 400), (700, 1025), (60, 100), (), (0, 4), (1 << 21,), (3, 1 << 19)]


def compressed(run):
    """chunks that cbk packs, read by h5py (deflate), by cbk (all), and by the codecs themselves"""
    random = np.random.default_rng(5)
    arrays = {f"w{i}": (random.standard_normal(shape) * 8).round().astype(kind) for i, (shape, kind) in
              enumerate((shape, kind) for shape in SHAPES for kind in ("f4", "i8", "f2", "u1"))}
    arrays["noise"] = np.frombuffer(random.bytes(3 << 20), dtype="u1")  # does not get smaller
    arrays["many"] = np.tile(np.arange(4096, dtype="f4"), 5 * 1024)  # 80 chunks: more than one node of the tree
    source = run.path("plain.h5")
    with h5py.File(source, "w") as f:
        for name, array in arrays.items():
            f[name] = array
    with h5py.File(run.path("one.h5"), "w") as f:
        f["w"] = arrays["w5"]

    def by_h5py(version):
        target = run.path(f"deflate-{version}.h5")
        run.call("copy", source, target, "--compress", "deflate", "--h5-version", version, "--overwrite")
        with h5py.File(target) as f:
            for name, array in arrays.items():
                assert np.array_equal(f[name][()], array) and f[name].dtype == array.dtype, name
                assert (f[name].compression == "gzip") == (array.nbytes >= 4096 and array.ndim > 0), name
            assert f["many"].id.get_num_chunks() == 80
        assert os.path.getsize(target) < os.path.getsize(source) / 2
        assert "deflate" in subprocess.run(["h5dump", "-p", "-H", "-d", "many", target], capture_output=True, text=True).stdout.lower()

    def by_cbk(how, version):
        target = run.path(f"{how}-{version}.mdl")
        run.call("copy", source, target, "--format", "h5", "--compress", how, "--h5-version", version, "--overwrite")
        run.call("diff", source, target)

    for version in ("flat", "0.4", "0.5"):
        run.check(f"h5py reads deflate {version}", lambda: by_h5py(version))
        for how in ("deflate", "lz4", "zstd"):
            run.check(f"cbk reads {how} {version}", lambda: by_cbk(how, version))

    def codec():
        run.call("copy", run.path("one.h5"), run.path("one.zstd.h5"), "--compress", "zstd", "--h5-version", "flat")
        with h5py.File(run.path("one.zstd.h5")) as f:
            chunk = f["w"].id.read_direct_chunk((0,))[1]
            itemsize = f["w"].dtype.itemsize
        bytes_ = np.frombuffer(zstandard.decompress(chunk), dtype="u1").reshape(itemsize, -1).T.tobytes()
        assert np.frombuffer(bytes_, dtype=arrays["w5"].dtype)[:5000].tobytes() == arrays["w5"].tobytes()
    run.check("a Zstandard chunk is a frame", codec)

    def same_bytes():
        made = []
        for threads in (1, 2, 3, 7):
            target = run.path(f"threads-{threads}.h5")
            run.call("copy", source, target, "--compress", "zstd", "--threads", str(threads))
            made.append(open(target, "rb").read())
        assert made.count(made[0]) == 4
    run.check("the same bytes for any number of threads", same_bytes)

    def sharded():
        folder = run.path("folder")
        run.call("copy", source, folder, "--format", "h5", "--h5-version", "flat", "--shard-size", "40MB", "--compress", "deflate")
        run.call("diff", source, folder)
        assert sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)) < os.path.getsize(source) / 2
    run.check("shards are packed too", sharded)

    def elsewhere():
        r = subprocess.run([run.cbk, "copy", source, run.path("x.pt"), "--compress", "zstd"], capture_output=True, text=True)
        assert r.returncode != 0 and "only H5" in r.stderr and not os.path.exists(run.path("x.pt")), r
    run.check("only H5 has compressed chunks", elsewhere)


def groups(run):
    """groups are dicts, as in the files of Keras"""
    path = run.path("groups.h5")
    with h5py.File(path, "w") as f:
        f["a/b/c"], f["a/d"], f["e"] = VALUES, VALUES, VALUES
        f.create_group("none")
        f["a/again"] = f["a/d"]

    def tree():
        rows = [row["key"] for row in json.loads(run.call("ls", "--json", path))["entries"]]
        assert sorted(rows) == ["a.again", "a.b.c", "a.d", "e", "none"], rows
        run.call("copy", path, run.path("groups.pt"))
        run.call("diff", path, run.path("groups.pt"))
    run.check("groups are dicts", tree)

    def keras():
        bits = np.arange(6, dtype="<u2").reshape(2, 3) + 0x3f80
        with h5py.File(run.path("keras.weights.h5"), "w") as f:
            f.create_dataset("layers/dense/vars/0", data=bits.view("V2")).attrs["dtype"] = "bfloat16"
            f.create_dataset("layers/dense/vars/1", data=VALUES).attrs["dtype"] = "bfloat16"  # which says nothing of its elements
            f.create_dataset("other", data=bits.view("V2"))
        rows = {row["key"]: row for row in json.loads(run.call("ls", "--json", run.path("keras.weights.h5")))["entries"]}
        assert rows["layers.dense.vars.0"]["dtype"] == "bfloat16" and rows["layers.dense.vars.0"]["shape"] == [2, 3], rows
        assert rows["layers.dense.vars.1"]["dtype"] == VALUES.dtype.name and "dtype" not in rows["other"], rows
        run.call("copy", run.path("keras.weights.h5"), run.path("keras.safetensors"), "--include", "layers.*")
        assert np.array_equal(safetensors_file.load(run.path("keras.safetensors"))[0]["layers.dense.vars.0"].view(torch.int16).numpy(), bits.view("<i2"))
    run.check("bfloat16 of Keras 3", keras)

    def circle():
        with h5py.File(run.path("round.h5"), "w") as f:
            f["a/b/w"] = VALUES
            f["a/b/up"] = f["a"]
        run.refused(["'up'", "a group is inside itself"], "ls", run.path("round.h5"))
    run.check("a group inside itself is an error", circle)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cbk-h5-foreign-") as folder:
        run = Suite(args.cbk, folder)
        one_of_each(run)
        named_types(run)
        damage(run)
        shared_messages(run)
        child(run)
        groups(run)
        compressed(run)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
