#!/usr/bin/python3
"""Objects beside the weights of a pickle: trainers keep callbacks, enums, paths and random states there. They are shown, block nothing, are
never written unless that is asked for, and nothing of them runs.

Usage: records_interop.py --cbk PATH
"""
import argparse
import builtins
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import json
import math
import os
import pathlib
import random
import re
import sys
import tempfile
import types
import uuid

import numpy as np
import torch

import harness
import safetensors_file

WEIGHTS = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3)}


def stand_in(name, base=(object,), **members):
    """A class of a package that is not installed."""
    package = sys.modules.setdefault("some_package", types.ModuleType("some_package"))
    made = type(name, base, {"__module__": "some_package", "__qualname__": name, **members})
    setattr(package, name, made)
    return made


class Mode(str, enum.Enum):
    MIN = "min"


class Kind(enum.Enum):
    CAUSAL = 2


@dataclasses.dataclass
class Config:
    depth: int = 3


Pair = collections.namedtuple("Pair", "a b")
Attributes, Items, Members = stand_in("Attributes", (dict,)), stand_in("Items", (list,)), stand_in("Members", (set,))
Node, Slots = stand_in("Node"), stand_in("Slots", __slots__=("x", "y"))


def node():
    """A tree of instances that know their owners."""
    root, child = Node(), Node()
    root.children, child.owner, root.itself = {"a": [child]}, root, root
    return root


def with_attributes(made):
    made.note = "kept by Python"
    return made


def slots():
    made = Slots()
    made.x = torch.full((2,), 7.0)
    return made


class Flags(enum.Flag):
    A, B = 1, 2


# The value, and texts of what `cbk ls` and `cbk show` show of it.
VALUES = {
    "a subclass of dict": (Attributes(lr=0.5), ["lr", "0.5"]),
    "a subclass of dict with attributes": (with_attributes(Attributes(lr=0.5)), ["lr", "0.5"]),
    "a subclass of list": (Items([1, 2]), ["1"]),
    "a subclass of set": (Members([1]), []),
    "a namespace": (argparse.Namespace(arch="bert"), ["argparse.Namespace", "bert"]),
    "a path": (pathlib.PosixPath("/data/train"), ["pathlib.PosixPath", "train"]),
    "an enum": (Kind.CAUSAL, ["CAUSAL"]),
    "an enum of texts": (Mode.MIN, ["MIN"]),
    "a dataclass": (Config(), ["Config", "depth"]),
    "a named tuple": (Pair(1, 2), ["1"]),
    "instances that contain each other": (node(), ["which contains this"]),
    "an instance with slots": (slots(), ["float32"]),
    "a function": (torch.nn.functional.mse_loss, ["mse_loss"]),
    "a class": (torch.optim.AdamW, ["AdamW"]),
    "the class of whole numbers": (int, ["int"]),
    "the class of texts": ({"type": str}, ["str"]),
    "flags of an enum": (Flags.A | Flags.B, ["_operator.or_"]),
    "a function of Python": ([math.sqrt, len], ["math.sqrt", "builtins.len"]),
    "a call with arguments": (functools.partial(torch.nn.functional.gelu), ["functools.partial"]),
    "a method": (torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1), 0.1, 10).state_dict(), ["total_steps"]),
    "a date": (datetime.datetime(2025, 1, 2), ["datetime.datetime"]),
    "a number": (decimal.Decimal("0.1"), ["decimal.Decimal", "0.1"]),
    "an id": (uuid.UUID(int=5), ["uuid.UUID"]),
    "a slice": (slice(1, 2), ["builtins.slice"]),
    "an ellipsis": (..., ["Ellipsis"]),
    "a buffer": (io.BytesIO(b"abc"), ["_io.BytesIO"]),
    "a pattern": (re.compile("a+"), ["a+"]),
    "a generator of numpy": (np.random.RandomState(3), ["MT19937"]),
    "another generator of numpy": (np.random.default_rng(3), ["PCG64"]),
    "a generator of Python": (random.Random(1), ["random.Random"]),
    "a factory": (collections.defaultdict(Config, {"a": 1}), ["a"]),
    "an optimizer": (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))]), ["lr"]),
    "a module": (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), ["weight", "parameter"]),
}
READ_AS_DATA = {"the class of whole numbers", "the class of texts", "a subclass of dict", "a subclass of dict with attributes", "a subclass of list", "a module"}


class Records(harness.Run):
    def beside(self, name, options):
        value, texts = VALUES[name]
        source, target = self.path("source.pt"), self.path("target.pt")
        torch.save({"state_dict": WEIGHTS, "beside": value, "step": 3}, source, **options)
        shown = self.call("ls", "--all", source) + self.call("show", source, "beside", "step")
        for text in texts:
            assert text in shown, (text, shown)
        json.loads(self.call("ls", "--json", source))
        self.call("diff", source, source)
        self.call("copy", source, self.path("weights.safetensors"), "--weights", "--overwrite")
        got = safetensors_file.load(self.path("weights.safetensors"))[0]
        assert set(got) == set(WEIGHTS) and all(torch.equal(got[key], WEIGHTS[key]) for key in WEIGHTS), got
        for ending in (".pt", ".mdl"):
            done = self.run("copy", source, self.path("target" + ending), "--overwrite")
            if name in READ_AS_DATA or name == "a factory" and ending == ".mdl":  # which is written as a dict, with a warning
                assert done.returncode == 0, done.stderr
                os.remove(self.path("target" + ending))
            else:
                assert done.returncode == 1 and "beside" in done.stderr and not os.path.exists(self.path("target" + ending)), done
        self.call("copy", source, target, "--exclude", "beside", "--overwrite")
        assert set(torch.load(target)) == {"state_dict", "step"}
        os.remove(target)

    def as_data(self):
        """What is read as data is written as such."""
        torch.save({"d": Attributes(a=1), "l": Items([1, torch.ones(2)]), "m": VALUES["a module"][0]}, self.path("data.pt"))
        self.call("copy", self.path("data.pt"), self.path("plain.pt"), "--overwrite")
        got = torch.load(self.path("plain.pt"))
        assert type(got["d"]) is dict and got["d"] == {"a": 1} and type(got["l"]) is list, got
        assert {f"0.{key}" for key in got["m"]["0"]} == set(VALUES["a module"][0].state_dict()), got["m"]

    def compared(self):
        """`diff` names what is an object in one file only."""
        torch.save({"w": torch.ones(2), "dtype": torch.float32}, self.path("typed.pt"))
        torch.save({"w": torch.ones(2), "dtype": None}, self.path("untyped.pt"))
        shown = self.run("diff", self.path("untyped.pt"), self.path("typed.pt")).stdout
        assert "dtype  null  torch.float32\n" in shown, shown

    def buffers(self):
        """The names of a whole module are those of its state dict; buffers that are not persistent are none of them."""
        module = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Sequential(torch.nn.Linear(2, 2)))
        module[1].register_buffer("passing", torch.ones(2), persistent=False)
        module[1].register_parameter("absent", None)
        module.tied = module[1][0]
        torch.save(module, self.path("module.pt"))
        rows = json.loads(self.call("ls", "--json", self.path("module.pt")))["entries"]
        assert {row["key"] for row in rows} == set(module.state_dict()), rows

    def attacks(self):
        """Whatever could run code or touch files is refused, and nothing runs, also where it hides in a record."""
        canary = self.path("canary")

        class Call:
            def __init__(self, function, *arguments):
                self.call = (function, arguments)

            def __reduce__(self):
                return self.call
        calls = {"system": Call(os.system, f"touch {canary}"), "eval": Call(eval, f"open({canary!r}, 'w')"), "open": Call(open, canary, "w"),
                 "getattr": Call(getattr, "text", "upper"), "__import__": Call(builtins.__import__, "os"),
                 "getattr ": Call(getattr, Config, "__subclasses__"), "attrgetter": Call(__import__("operator").attrgetter, "system"),
                 "load": Call(torch.load, canary), "memmap": Call(np.memmap, canary, "u1", "w+", 0, 10)}
        for name, call in calls.items():
            for inside in (call, Attributes(a=call), functools.partial(print, call), [argparse.Namespace(x=call)]):
                torch.save({"state_dict": WEIGHTS, "beside": inside}, self.path("evil.pt"))
                done = self.run("ls", self.path("evil.pt"))
                assert done.returncode == 1 and name.strip() in done.stderr and "nothing was executed" in done.stderr, (name, done)
        assert not os.path.exists(canary)

    def owners(self):
        """An owner under two names, and a key that contains its dict."""
        owner, callback = Node(), Node()
        callback.trainer = callback._owner = owner
        owner.callbacks = [callback]
        torch.save({"w": torch.ones(3), "trainer": owner}, self.path("owners.pt"))
        assert self.call("ls", "--flat", self.path("owners.pt")).count("which contains this") == 2
        self.call("copy", self.path("owners.pt"), self.path("owners.safetensors"), "--weights", "--overwrite")

    def rewritten(self):
        """What was described stays so when a part of it changes: no class comes into a copy with an option."""
        Config.__module__, kept = "__main__", Config.__module__
        torch.save({"w": torch.ones(3), "x": with_attributes(Config(torch.ones(2)))}, self.path("rewritten.pt"))
        Config.__module__ = kept
        for ending in (".pt", ".mdl"):
            for options in (("--to-dtype", "float16"), ("--exclude", "x.note"), ("--rename", "x.note=x.other")):
                done = self.run("copy", self.path("rewritten.pt"), self.path("out" + ending), *options)
                assert done.returncode == 1 and not os.path.exists(self.path("out" + ending)), (options, done)

        class Member:
            def __reduce__(self):
                return getattr, (torch.dtype, "os.system"), {"a": torch.ones(2)}
        torch.save({"w": torch.ones(3), "x": Member()}, self.path("member.pt"))
        for options in ((), ("--to-dtype", "float16"), ("--allow-records",)):
            done = self.run("copy", self.path("member.pt"), self.path("out.pt"), *options)
            assert done.returncode == 1 and not os.path.exists(self.path("out.pt")), (options, done)

    def allowed(self):
        """--allow-records writes instances of which loading sets attributes alone."""
        Config.__module__, kept = "__main__", Config.__module__
        torch.save({"n": argparse.Namespace(a=1), "c": Config(5)}, self.path("allowed.pt"))
        self.call("copy", self.path("allowed.pt"), self.path("again.pt"), "--allow-records", "--overwrite")
        got = torch.load(self.path("again.pt"))
        assert got["n"] == argparse.Namespace(a=1) and got["c"] == Config(5), got
        Config.__module__ = kept


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Records(args.cbk, folder)
        for name in VALUES:
            for options in ({}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}):
                test.check(f"{name} {options}", lambda n=name, o=options: test.beside(n, o))
        for name in ("as_data", "compared", "buffers", "owners", "rewritten", "attacks", "allowed"):
            test.check(name, getattr(test, name))
        return test.close()


if __name__ == "__main__":
    sys.exit(main())
