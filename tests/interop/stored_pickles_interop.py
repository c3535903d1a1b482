#!/usr/bin/python3
"""The pickles inside H5 checkpoints: what is no plain data is refused by every command, and no file that cbk writes has it.

Usage: stored_pickles_interop.py --cbk PATH
"""
import argparse
import collections
import os
import pickle
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch

import harness


class Call:
    """Unpickling it calls posix.system."""
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


RECORD = pickle.dumps(argparse.Namespace(lr=0.5, name="x"), protocol=4)


class Suite(harness.Run):
    def make(self, version, data, name="a.mdl"):
        """A checkpoint whose value 'thing' is kept as these pickled bytes."""
        torch.save({"w": torch.zeros(4), "thing": b"to be replaced"}, self.path("a.pt"))
        path = self.path(name)
        self.call("copy", self.path("a.pt"), path, "--h5-version", version, "--overwrite")
        with h5py.File(path, "r+") as f:
            attrs = f["thing"].attrs
            if version == "0.4":
                attrs["object_value"] = data.hex()
            else:
                del attrs["__BYTES__"]
                attrs.create("__BYTES__", np.frombuffer(data, "V1"))
        return path

    def refused(self, *args, words=("'thing'", "posix.system")):
        before = sorted(os.listdir(self.folder))
        done = subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=120, check=False, cwd=self.folder)
        assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, (args, done.returncode, done.stderr[-500:])
        for word in words:
            assert word in done.stderr, (word, done.stderr)
        assert sorted(os.listdir(self.folder)) == before, os.listdir(self.folder)


def commands(path, out):
    return [("dump", path), ("ls", path), ("show", path, "w"), ("diff", path, path), ("copy", path, out + ".pt"),
            ("copy", path, out + ".mdl"), ("copy", path, out + ".mdl", "--h5-version", "0.4"), ("copy", path, out + ".mdl", "--exclude", "thing"),
            ("h5-to-tensorflow", path, out)]


class Made:
    """Made of its arguments: a call of the class whenever it is unpickled."""
    def __new__(cls, *args, **keywords):
        return super().__new__(cls)


class ByArguments(Made):
    def __getnewargs__(self):
        return "x", 1


class ByKeywords(Made):
    def __getnewargs_ex__(self):
        return (), {"x": 1}


class ByCall(Made):
    def __reduce__(self):
        return ByCall, ("x",)


Pair = collections.namedtuple("Pair", "a b")


def check_instances(run):
    """Of instances, those pass on that are an attribute dict; what is made of arguments would be a call."""
    def case(instance):
        name = type(instance).__name__
        torch.save({"w": torch.zeros(4), "thing": {"inner": instance}}, run.path("made.pt"), pickle_protocol=4)
        is_read = name != "ByCall"
        for target in ("out.pt", "out.mdl"):
            words = ("thing.inner", "made of arguments") if is_read and target == "out.pt" else ()
            run.refused("copy", run.path("made.pt"), run.path(target), "--allow-records", words=(f"{name}'", *words))
        if is_read:
            run.call("copy", run.path("made.pt"), run.path("rest.pt"), "--allow-records", "--exclude", "thing", "--overwrite")
            assert list(torch.load(run.path("rest.pt"))) == ["w"]

    for instance in (Pair(1, 2), ByArguments(), ByKeywords(), ByCall()):
        run.check(f"an instance made of arguments: {type(instance).__name__}", lambda instance=instance: case(instance))


def check_several(run, version):
    """One error names the first value that is refused, and how many more there are."""
    evil = pickle.dumps(Call("true"), protocol=4)
    torch.save({"w": torch.zeros(4), **{f"thing.{i}": b"to be replaced %d" % i for i in range(4)}}, run.path("a.pt"))
    path = run.path("several.mdl")
    run.call("copy", run.path("a.pt"), path, "--h5-version", version, "--overwrite")
    with h5py.File(path, "r+") as f:
        for i in range(4):
            attrs = f[f"thing.{i}"].attrs
            if version == "0.4":
                attrs["object_value"] = evil.hex()
            else:
                del attrs["__BYTES__"]
                attrs.create("__BYTES__", np.frombuffer(evil, "V1"))
    run.refused("ls", path, words=("'thing.0'", "posix.system", "; 3 more values are refused"))
    if version == "0.4":
        with h5py.File(path, "r+") as f:
            f.attrs["__version__"] = 0.3
        run.refused("fix-checkpoint-spec", path, "--yes", words=("posix.system", "; 3 more values are refused"))


def check_version(run, version):
    canary = run.path("canary")
    evil = run.make(version, pickle.dumps(Call(f"touch {canary}"), protocol=4))

    def calls():
        for words in commands(evil, run.path("out")):
            run.refused(*words)
            run.refused(*words, "--allow-records")
        assert not os.path.exists(canary)
    run.check(f"{version}: a call is refused", calls)

    def records():
        path = run.make(version, RECORD, "record.mdl")
        run.refused("copy", path, run.path("out.pt"), words=("'thing'", "argparse.Namespace", "--allow-records"))
        run.call("copy", path, run.path("record.pt"), "--allow-records", "--overwrite")
        assert torch.load(run.path("record.pt"))["thing"] == argparse.Namespace(lr=0.5, name="x")
        for to in ("0.4", "0.5"):
            copy = run.path(f"copy{to}.mdl")
            run.call("copy", path, copy, "--allow-records", "--h5-version", to, "--overwrite")
            run.call("copy", copy, run.path("record.pt"), "--allow-records", "--overwrite")
            assert torch.load(run.path("record.pt"))["thing"] == argparse.Namespace(lr=0.5, name="x")
    run.check(f"{version}: a record is read and written with --allow-records", records)

    def mixed():
        path = run.make(version, pickle.dumps([argparse.Namespace(a=1), Call("true"), Call("true")], protocol=4), "mixed.mdl")
        run.refused("copy", path, run.path("out.pt"), words=("'thing'", "'argparse.Namespace'", "'posix.system'"))
        run.refused("copy", path, run.path("out.pt"), "--allow-records", words=("'thing'", "'posix.system'"))
    run.check(f"{version}: all that is refused is named together", mixed)


def check_edits(run):
    """fix-checkpoint-spec copies the file as a file."""
    def edits():
        path = run.make("0.4", pickle.dumps(Call("true"), protocol=4), "old.mdl")
        with h5py.File(path, "r+") as f:
            f.attrs["__version__"] = 0.3
        with open(path, "rb") as f:
            before = f.read()
        for option in ((), ("--fix_inplace", "--yes"), ("--fixed_checkpoint_path", run.path("fixed.mdl"))):
            for more in ((), ("--allow-records",)):
                done = run.run("fix-checkpoint-spec", path, *option, *more)
                assert done.returncode == 1 and "'thing'" in done.stderr and "posix.system" in done.stderr, done
        with open(path, "rb") as f:
            assert f.read() == before
        assert not os.path.exists(run.path("fixed.mdl")) and not os.path.exists(run.path("old_fixed.mdl"))
    run.check("an edit passes on no call", edits)

    def hidden():
        for place in ("below/thing", "extra"):
            for name, value in (("object_value", pickle.dumps(Call("true")).hex()), ("object_value", " ".join(pickle.dumps(Call("true")).hex())),
                                ("dtype", pickle.dumps(Call("true"), protocol=4).hex()), ("__BYTES__", np.frombuffer(pickle.dumps(Call("true")), "u1"))):
                path = run.make("0.4", pickle.dumps(b"x", protocol=4), "old.mdl")
                with h5py.File(path, "r+") as f:
                    f.attrs["__version__"] = 0.3
                    f.create_dataset(place, data=h5py.Empty("f4")).attrs[name] = value
                done = run.run("fix-checkpoint-spec", path, "--fix_inplace", "--yes")
                spaced = isinstance(value, str) and " " in value and value[1] == " "
                assert done.returncode == 1 and (spaced or "posix.system" in done.stderr), (place, name, done)
    run.check("an edit finds calls wherever they are", hidden)

    def record():
        path = run.make("0.4", RECORD, "old.mdl")
        with h5py.File(path, "r+") as f:
            f.attrs["__version__"] = 0.3
        assert run.run("fix-checkpoint-spec", path, "--fix_inplace", "--yes").returncode == 1
        run.call("fix-checkpoint-spec", path, "--fix_inplace", "--yes", "--allow-records")
    run.check("an edit passes on records with --allow-records", record)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory(prefix="cbk-pickles-") as folder:
        run = Suite(parser.parse_args().cbk, folder)
        for version in ("0.4", "0.5"):
            check_version(run, version)
            run.check(f"{version}: the number of values that are refused", lambda version=version: check_several(run, version))
        check_instances(run)
        check_edits(run)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
