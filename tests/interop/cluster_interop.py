#!/usr/bin/python3
"""Several processes on one output: jobs (--plan, work, finish, --resume) and ranks of MPI. Whatever is killed, repeated or cut otherwise, the
bytes are those of one process; what has changed is refused in words; nothing is left behind.

Usage: cluster_interop.py --cbk PATH [--seed N] [--kills N]
"""
import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import torch

import harness
import ranks_interop
import safetensors_file
import sharded_interop

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                   CBK_TEAM_TIMEOUT="4")
ENVIRONMENT.pop("SLURM_ARRAY_TASK_ID", None)

# Elements that take time to make: a random number costs as much as a hundred bytes of copying.
SCRIPT = """
local cbk = require "cbk"
local out = cbk.create(arg[1], { overwrite = true, compression = arg[2] })
for i = 1, 4 do out["w" .. i] = cbk.randn({ 1500, 2000 }, { seed = i, dtype = "float32" }):to "float16" end
out:commit { threads = 1 }
print "done"
"""
FAILING = SCRIPT.replace("out:commit", 'if (os.getenv "OMPI_COMM_WORLD_RANK" or os.getenv "PMI_RANK") == arg[3] then error "no room" end\nout:commit')


def content(path):
    """{name: bytes} of a file, or of all files in a folder and below."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            return {"": file.read()}
    inner = {name: content(os.path.join(path, name)) for name in sorted(os.listdir(path))}
    return {f"{name}/{rest}".rstrip("/"): data for name, files in inner.items() for rest, data in files.items()}


def same(one, other):
    a, b = content(one), content(other)
    assert list(a) == list(b), (list(a), list(b))
    for name, data in a.items():
        assert data == b[name], f"{name}: {len(data)} and {len(b[name])} bytes that differ"


def planned(command, target):
    """The options of `cbk run` come before the script."""
    return ("run", "--plan", "job", *command[1:], target) if command[0] == "run" else (*command, target, "--plan", "job")


class Cluster(harness.Run):
    def __init__(self, cbk, folder, rng):
        super().__init__(cbk, folder)
        self.rng, self.launcher = rng, "mpirun"
        generator = torch.Generator().manual_seed(7)
        weights = {f"layers.{i}.weight": torch.randn(300, 700, generator=generator) for i in range(12)}
        weights["embed"] = torch.randn(4000, 700, generator=generator).to(torch.bfloat16)
        weights["head"] = weights["embed"]
        weights["small"] = torch.arange(5)
        weights["empty"] = torch.zeros(0, 3)
        torch.save(weights, self.path("source.pt"))
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.path("faults.so"), source, "-ldl"], check=True)
        for name, text in (("make.lua", SCRIPT), ("fail.lua", FAILING)):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)
        self.make_given(weights["layers.0.weight"])

    def make_given(self, tensor):
        """Folders of many files, quantised weights, and models to merge."""
        made = ranks_interop.Ranks(self.cbk, self.path("."), self.rng)
        os.mkdir(self.path("given"))
        for kind, make in {"zero": lambda: made.zero(3, 3), "dtensors": lambda: made.made_dtensors(torch.Size((2, 2))), "meta": lambda: made.made_meta(2, False),
                           "megatron": lambda: made.made_megatron(2, 2, True, False)}.items():
            os.rename(make()[0], self.path("given/" + kind))
        folder = sharded_interop.Folder(self.path("given/dcp"), self.rng)
        for i in range(3):
            folder.add(("model", f"w{i}"), tensor * i)
        folder.write()
        for name in ("fp8", "a", "b"):
            os.mkdir(self.path("given/" + name))
        safetensors_file.save(self.path("given/fp8/model.safetensors"), {
            key: value for i in range(6) for key, value in (
                (f"w{i}.weight", ("F8_E4M3", [300, 700], bytes(range(120)) * 1750)), (f"w{i}.weight_scale_inv", torch.rand(3, 6)))})
        with open(self.path("given/fp8/config.json"), "w", encoding="utf-8") as file:
            file.write('{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}')
        for i, name in enumerate("ab"):
            layers = {f"model.layers.{layer}.w.weight": tensor + i + layer for layer in range(6)}  # enough for each part to have some
            safetensors_file.save(self.path(f"given/{name}/model.safetensors"), {**layers, "lm_head.weight": tensor * 2})
        with open(self.path("given/merge.yml"), "w", encoding="utf-8") as file:
            file.write("merge_method: linear\nmodels: [{model: given/a, parameters: {weight: 0.6}}, {model: given/b, parameters: {weight: 0.4}}]\n")

    def has_module(self, implementation):
        return os.path.exists(os.path.join(os.path.dirname(self.cbk), f"libcbk-{implementation}.so"))

    def run(self, *args):
        return subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=300, check=False, cwd=self.folder, env=ENVIRONMENT)

    def left(self, *known):
        """What is in the folder besides its sources and what is known."""
        ours = {"source.pt", "make.lua", "fail.lua", "faults.so", "given", *known}
        return sorted(set(os.listdir(self.folder)) - ours)

    def clear(self):
        for name in self.left():
            path = self.path(name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def refused(self, words, *args):
        done = self.run(*args)
        assert done.returncode == 1 or done.returncode == 2, (done.returncode, done.stdout)
        assert words in done.stderr, done.stderr
        return done.stderr

    # --- jobs

    def parts(self, command, target, count):
        """The parts of a job in any order, one of them twice: the bytes of one process."""
        self.clear()
        self.call(*command, "one" + target)
        os.rename(self.path("one" + target), self.path("wanted"))
        self.call(*planned(command, "one" + target))
        assert not os.path.exists(self.path("one" + target))
        numbers = list(range(1, count + 1))
        self.rng.shuffle(numbers)
        missing = numbers.pop()
        for number in [*numbers, numbers[0]] if numbers else []:
            self.call("work", "job", "--part", f"{number}/{count}")
        if numbers:
            assert f"part {missing}/{count} is missing" in self.refused("is not done", "finish", "job")
        self.call("work", "job", "--part", f"{missing}/{count}")
        self.call("finish", "job")
        same(self.path("wanted"), self.path("one" + target))
        assert self.left("wanted", "one" + target) == [], self.left()

    def status(self):
        self.clear()
        self.call("copy", "source.pt", "x.safetensors", "--plan", "job")
        assert " 0 % " in self.call("status", "job").replace("(", " ").replace(")", " ")
        self.call("work", "job", "--part", "2/2")
        state = json.loads(self.call("status", "job", "--json"))
        assert 0.4 < state["done"] / state["bytes"] < 0.6, state
        assert [part["part"] for part in state["parts"]] == ["2-of-2"], state
        assert "part 2/2" in self.call("status", "job").replace("  ", " ")

    def refusals(self):
        self.clear()
        shutil.copy(self.path("source.pt"), self.path("other.pt"))
        command = ("copy", "other.pt", "x.safetensors", "--plan", "job")
        self.call(*command)
        self.refused("expects K/N", "work", "job", "--part", "3/2")
        self.refused("pass --part K/N", "work", "job")
        self.refused("is not a job", "work", "source.pt", "--part", "1/2")
        self.refused("has another plan", "copy", "other.pt", "x.safetensors", "--to-dtype", "float16", "--plan", "job")
        with open(self.path("job/plan.json"), encoding="utf-8") as file:
            plan = file.read()
        with open(self.path("job/plan.json"), "w", encoding="utf-8") as file:
            file.write(re.sub(r'"cbk": "[^"]*"', '"cbk": "0.0.9"', plan))
        assert "was begun by cbk 0.0.9" in self.refused("use the same version", "work", "job", "--part", "1/2")
        with open(self.path("job/plan.json"), "w", encoding="utf-8") as file:
            file.write(plan)
        weights = torch.load(self.path("other.pt"))
        weights["layers.3.weight"][5, 7] = 0
        torch.save(weights, self.path("other.pt"))
        self.refused("has another plan", "work", "job", "--part", "1/2")

    def tasks(self):
        """Tasks of a Slurm array, and of srun, know their parts."""
        self.clear()
        self.call("copy", "source.pt", "wanted.mdl")
        self.call("copy", "source.pt", "x.mdl", "--plan", "job")
        for number in (10, 12):
            task = dict(ENVIRONMENT, SLURM_ARRAY_TASK_ID=str(number), SLURM_ARRAY_TASK_COUNT="2", SLURM_ARRAY_TASK_MIN="10",
                        SLURM_ARRAY_TASK_STEP="2")
            done = subprocess.run([self.cbk, "work", "job"], cwd=self.folder, env=task, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        self.call("finish", "job")
        same(self.path("wanted.mdl"), self.path("x.mdl"))

    def together(self):
        """Who commits must be alone in the job."""
        self.clear()
        self.call("run", "make.lua", "wanted.safetensors")
        os.rename(self.path("wanted.safetensors"), self.path("wanted"))
        self.call("run", "--plan", "job", "make.lua", "x.safetensors")
        with subprocess.Popen([self.cbk, "work", "job", "--part", "1/1"], cwd=self.folder, env=ENVIRONMENT,
                              stdout=subprocess.DEVNULL) as worker:
            while not any(name.endswith(".done") for name in os.listdir(self.path("job"))) and worker.poll() is None:
                time.sleep(0.01)
            assert worker.poll() is None
            self.refused("is being worked on", "finish", "job")
            assert worker.wait() == 0
        assert self.call("finish", "job") == "done\n"
        same(self.path("wanted"), self.path("x.safetensors"))

    def changes(self):
        """What differs between two steps, though no file of the plan has another size: refused."""
        self.clear()
        for name, text in (("note.lua", 'out["note"] = os.getenv "NOTE"'), ("value.lua", 'out["w"] = cbk.full({ 3 }, tonumber(os.getenv "NOTE"))')):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(f'local cbk = require "cbk"\nlocal out = cbk.create("x.pt")\nout["v"] = cbk.full({{ 4 }}, 2)\n{text}\nout:commit()\n')
            for note, status in (("1", 0), ("2", 1)):
                shutil.rmtree(self.path("job"), ignore_errors=True)
                for left in self.left("note.lua", "value.lua"):
                    os.remove(self.path(left))
                plan = subprocess.run([self.cbk, "run", "--plan", "job", name], cwd=self.folder, env=dict(ENVIRONMENT, NOTE="1"),
                                      capture_output=True, text=True, check=False)
                assert plan.returncode == 0, plan.stderr
                work = subprocess.run([self.cbk, "work", "job", "--part", "1/1"], cwd=self.folder, env=dict(ENVIRONMENT, NOTE=note),
                                      capture_output=True, text=True, check=False)
                assert work.returncode == status and (status == 0 or "has another plan" in work.stderr), (name, work.stderr)
        self.clear()
        self.call("copy", "source.pt", "other.safetensors")
        self.call("copy", "other.safetensors", "x.pt", "--plan", "job")
        self.call("work", "job", "--part", "1/2")
        with open(self.path("other.safetensors"), "r+b") as file:  # of the same size, and with the same ends
            file.seek(1 << 20)
            file.write(b"12345678")
        self.refused("has another plan", "work", "job", "--part", "2/2")

    def damage(self):
        """A worker may note blocks, and end before it has verified the checksum of their source: who finishes verifies that."""
        for is_verified in (True, False):
            self.clear()
            torch.save({"w": torch.zeros(3000, 5000), "v": torch.ones(3)}, self.path("other.pt"))
            self.call("copy", "other.pt", "x.safetensors", "--plan", "job")
            for number in (1, 2, 3):
                self.call("work", "job", "--part", f"{number}/3")
            if not is_verified:
                journals = [name for name in os.listdir(self.path("job")) if name.endswith(".done")]
                assert sum(self.forget_verified(self.path("job/" + name)) for name in journals) == 2  # one of each tensor
            times = os.stat(self.path("other.pt"))
            with open(self.path("other.pt"), "r+b") as file:
                file.seek(30 << 20)
                file.write(b"1")
            os.utime(self.path("other.pt"), ns=(times.st_atime_ns, times.st_mtime_ns))
            if is_verified:
                self.call("finish", "job")
            else:
                self.refused("damaged", "finish", "job")
            assert os.path.exists(self.path("x.safetensors")) == is_verified

        self.clear()
        self.call("copy", "source.pt", "x.mdl", "--plan", "job")
        self.call("work", "job", "--part", "1/1")
        staged = next(name for name in self.left() if name.startswith("x.mdl."))
        os.truncate(self.path(staged), os.path.getsize(self.path(staged)) - 1)
        self.refused("another program cut it while it was written", "finish", "job")
        assert not os.path.exists(self.path("x.mdl"))

    @staticmethod
    def forget_verified(journal, size=120):
        """Removes the records of a journal whose end, their fourth number, is -1; returns how many."""
        with open(journal, "rb") as file:
            data = file.read()
        records = [data[at:at + size] for at in range(0, len(data), size)]
        kept = [one for one in records if int.from_bytes(one[24:32], "little", signed=True) >= 0]
        with open(journal, "wb") as file:
            file.write(b"".join(kept))
        return len(records) - len(kept)

    def foreign(self):
        """Folders and links that somebody else has put there."""
        self.clear()
        os.mkdir(self.path("mine"))
        with open(self.path("mine/plan.txt"), "w", encoding="utf-8") as file:
            file.write("dear diary")
        self.refused("is not empty, and no job", "copy", "source.pt", "x.mdl", "--plan", "mine")
        assert content(self.path("mine")) == {"plan.txt": b"dear diary"}
        self.call("copy", "source.pt", "x.mdl", "--plan", "job")
        staged = next(name for name in self.left() if name.startswith("x.mdl."))
        with open(self.path("victim"), "wb") as file:
            file.write(b"x" * os.path.getsize(self.path(staged)))
        os.remove(self.path(staged))
        os.symlink(self.path("victim"), self.path(staged))
        self.refused("", "work", "job", "--part", "1/1")
        os.remove(self.path(staged))
        os.link(self.path("victim"), self.path(staged))
        self.refused("not a file of its own", "work", "job", "--part", "1/1")
        assert set(content(self.path("victim"))[""]) == {ord("x")}
        for text, words in (("[]", "is not the plan of a job"), ("{", "is not the plan of a job, or damaged: remove the folder"),
                            ('{"command": [], "folder": "", "bytes": 1, "items": 1}', "is not the plan of a job"),
                            ('{"cbk": "0.2.0", "command": ["work", "job", "--part", "1/1"], "folder": "/", "bytes": 1, "items": 1}',
                             "writes no output"),
                            ('{"cbk": "0.2.0", "command": ["ls", "%s"], "folder": "/", "bytes": 1, "items": 1}' % self.path("source.pt"),
                             "has written nothing")):
            with open(self.path("job/plan.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.refused(words, "work", "job", "--part", "1/1")

    def commits(self):
        """A script with two outputs: the first is the job's, the second is written when that is finished."""
        self.clear()
        with open(self.path("two.lua"), "w", encoding="utf-8") as file:
            file.write('local cbk = require "cbk"\nfor _, name in ipairs { "p.pt", "q.pt" } do\n'
                       'cbk.create(name, { root = cbk.dict { w = cbk.full({ 3 }, 1) }, overwrite = true }):commit()\nend\n')
        self.call("run", "--plan", "job", "two.lua")
        self.call("work", "job", "--part", "1/1")
        self.call("finish", "job")
        assert self.left() == ["p.pt", "q.pt", "two.lua"], self.left()
        self.refused("needs a script in a file", "run", "--plan", "job", "-")
        self.refused("--plan needs a folder", "run", "--plan")

    def replaced(self):
        """Old outputs are replaced, and nothing of them is left."""
        for target, options in (("x", ["--shard-size", "2MB", "--format", "safetensors"]), ("x.mdl", [])):
            self.clear()
            self.call("copy", "source.pt", "wanted.mdl", "--include", "l*") if target == "x.mdl" else None
            for way in ("--resume", "--plan"):
                self.call("copy", "source.pt", target, *options, "--overwrite")
                self.call("copy", "source.pt", target, *options, "--overwrite", "--include", "l*", way, *(["job"] if way == "--plan" else []))
                if way == "--plan":
                    self.call("work", "job", "--part", "1/1")
                    self.call("finish", "job")
                assert self.left("wanted.mdl") == [target], self.left()
        same(self.path("wanted.mdl"), self.path("x.mdl"))

    def resume(self, kills):
        """kill -9 at random moments, again and again, until it gets to its end."""
        self.clear()
        start = time.monotonic()
        self.call("run", "make.lua", "wanted.safetensors")
        whole = time.monotonic() - start
        command = [self.cbk, "run", "--resume", "make.lua", "x.safetensors"]
        killed = 0
        while killed < kills:
            with subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
                try:
                    process.wait(self.rng.uniform(0, whole * 1.2))
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
                was_killed = process.wait() != 0
            if os.path.exists(self.path("x.safetensors")):
                same(self.path("wanted.safetensors"), self.path("x.safetensors"))
                if was_killed:  # maybe before it could remove the job's folder
                    continue
                assert self.left("wanted.safetensors", "x.safetensors") == [], self.left()
                os.remove(self.path("x.safetensors"))
        self.call("run", "--resume", "make.lua", "x.safetensors")
        same(self.path("wanted.safetensors"), self.path("x.safetensors"))
        assert self.left("wanted.safetensors", "x.safetensors") == [], self.left()

    # --- provenance

    def provenance(self, command, target):
        """Every byte of an output is under some digest, which parts and one process compute alike."""
        self.clear()
        name, record = "one" + target, "one" + target + ".provenance.json"
        self.call(*command, name, "--provenance", "--overwrite")
        self.own_origin(name, record)
        self.call("verify", name)
        self.call("verify", name, "--replay", "--yes")
        os.rename(self.path(record), self.path("record"))
        self.call(*command, name, "--provenance", "--overwrite", "--plan", "job")
        for number in (2, 1):
            self.call("work", "job", "--part", f"{number}/2")
        self.call("finish", "job")
        with open(self.path(record), encoding="utf-8") as now, open(self.path("record"), encoding="utf-8") as before:
            assert json.load(now)["files"] == json.load(before)["files"]
        path = self.path(name)
        files = [os.path.join(path, one) for one in os.listdir(path) if not one.endswith(".json")] if os.path.isdir(path) else [path]
        for _ in range(8):
            file = self.rng.choice(files)
            at, size = self.rng.randrange(os.path.getsize(file)), os.path.getsize(file)
            with open(file, "r+b") as damaged:
                damaged.seek(at)
                byte = damaged.read(1)
                damaged.seek(at)
                damaged.write(bytes([byte[0] ^ 1 << self.rng.randrange(8)]))
                damaged.flush()
                done = self.run("verify", name)
                assert done.returncode == 1 and "other bytes" in done.stdout, (at, done.stdout, done.stderr)
                damaged.seek(at)
                damaged.write(byte)
            assert os.path.getsize(file) == size
        self.call("verify", name)
        with open(files[0], "ab") as longer:
            longer.write(b"x")
        assert "bytes instead of" in self.run("verify", name).stdout
        os.remove(files[0])
        assert "is missing" in self.run("verify", name).stdout

    def own_origin(self, name, record):
        """What a file of safetensors or H5 says itself, to other programs, too; a copy does not keep it."""
        with open(self.path(record), encoding="utf-8") as file:
            wanted = {name: value for name, value in json.load(file).items() if name not in ("files", "output")}
        folder = self.path(name)
        files = sorted(os.path.join(folder, one) for one in os.listdir(folder) if not one.endswith(".json")) if os.path.isdir(folder) else [folder]
        for path in files:
            if path.endswith(".safetensors"):
                text = safetensors_file.load(path)[1]["cbk_provenance"]
            elif path.endswith(".mdl"):
                with h5py.File(path, "r") as file:
                    text = file.attrs["cbk_provenance"]
            else:
                continue
            assert json.loads(text) == wanted, text
            assert "written by cbk " in self.call("ls", path)
            self.call("copy", path, "again" + os.path.splitext(path)[1])
            assert "written by" not in self.call("ls", "again" + os.path.splitext(path)[1])
            os.remove(self.path("again" + os.path.splitext(path)[1]))

    def replay(self):
        """What a changed source would lead to now; a script is run again, too."""
        self.clear()
        shutil.copy(self.path("source.pt"), self.path("other.pt"))
        self.call("copy", "other.pt", "x.safetensors", "--provenance")
        weights = torch.load(self.path("other.pt"))
        weights["layers.3.weight"][5, 7] += 1
        torch.save(weights, self.path("other.pt"))
        assert "Run it?" in self.run("verify", "x.safetensors", "--replay").stdout
        done = self.run("verify", "x.safetensors", "--replay", "--yes")
        assert done.returncode == 1 and done.stdout.split("\n  ")[1:] == ["'layers.3.weight' has other bytes\n"], done.stdout
        self.call("verify", "x.safetensors")
        assert "pass --provenance" in self.refused("there is no", "verify", "source.pt")
        with open(self.path("x.safetensors.provenance.json"), encoding="utf-8") as file:
            text = file.read()
        for old, new, words in (("x.safetensors\",\n   \"size", "../x.safetensors\",\n   \"size", "not in the folder"), ('"files"', '"fils"', "no provenance"),
                                ("layers.3", "", ""), (" 4194304 ", " x ", "is no number")):
            assert old in text, old
            with open(self.path("x.safetensors.provenance.json"), "w", encoding="utf-8") as file:
                file.write(text.replace(old, new, 1))
            done = self.run("verify", "x.safetensors")
            assert (words in done.stderr and done.returncode == 1) if words else done.returncode == 0, (old, done.stderr)

    def moved_provenance(self):
        """An output that got another name is verified itself, and so is the one of several outputs that is asked for."""
        self.clear()
        self.call("copy", "source.pt", "x.safetensors", "--provenance")
        self.call("copy", "source.pt", "shards", "--provenance", "--shard-size", "2MB", "--format", "safetensors")
        assert "exists already" in self.refused("y.pt.provenance.json", *self.with_file("y.pt.provenance.json", "copy", "source.pt", "y.pt", "--provenance"))
        for name, new in ("x.safetensors", "y.safetensors"), ("shards", "others"):
            os.rename(self.path(name), self.path(new))
            os.rename(self.path(name + ".provenance.json"), self.path(new + ".provenance.json"))
            self.call("verify", new)
            self.call("verify", new, "--replay", "--yes")
        shard = self.path("others/" + sorted(os.listdir(self.path("others")))[0])
        for file, new in (self.path("y.safetensors"), "y.safetensors"), (shard, "others"):
            with open(file, "r+b") as damaged:
                damaged.seek(os.path.getsize(file) - 100)
                damaged.write(b"damaged")
            for more in ((), ("--replay", "--yes")):
                done = self.run("verify", new, *more)
                assert done.returncode == 1 and "has other bytes" in done.stdout, (new, more, done)
            os.remove(file)
            assert "is missing" in self.run("verify", new).stdout
        with open(self.path("two.lua"), "w", encoding="utf-8") as file:
            file.write('local cbk = require "cbk"\nfor i = 1, 2 do\n  local out = cbk.create(i .. ".pt", { overwrite = true })\n'
                       '  out["w"] = cbk.tensor { i }\n  out:commit { provenance = { "run", "two.lua" } }\nend\n')
        self.call("run", "two.lua")
        self.call("verify", "2.pt", "--replay", "--yes")
        with open(self.path("2.pt.provenance.json"), encoding="utf-8") as file:
            text = file.read()
        digest = re.search(r" (\w{64}) ", text).group(1)
        for old, new, words in ((digest, "0" * 64, "has other bytes"), ('"two.lua"', '"make.lua", "z.safetensors"', "has not written"),
                                ('"run"', '"plot", "1.pt", "w", "-o"', "does not write a provenance")):
            with open(self.path("2.pt.provenance.json"), "w", encoding="utf-8") as file:
                file.write(text.replace(old, new, 1))
            done = self.run("verify", "2.pt", "--replay", "--yes")
            assert done.returncode == 1 and words in done.stdout + done.stderr, (words, done)
        assert not os.path.exists(self.path("two.lua.png")) and not os.path.exists(self.path("z.safetensors"))

    def hostile_provenance(self):
        """What verifying takes is bounded by the file; a pipe does not stop it."""
        self.clear()
        with open(self.path("big"), "wb") as file:
            file.truncate(5 << 20)
        for items, words in ((["0 5242880 1 ab f [1] x"], "blocks of 1 bytes"), (["0 5242880 4194304 ab f [1] x"] * 2, "the same bytes"), ([], "other bytes")):
            with open(self.path("big.provenance.json"), "w", encoding="utf-8") as file:
                json.dump({"cbk": "1", "command": [], "folder": "/", "output": "/big",
                           "files": [{"file": "big", "size": 5 << 20, "rest": "", "items": items}]}, file)
            done = self.run("verify", "big")
            assert done.returncode == 1 and words in done.stdout + done.stderr, done
        os.remove(self.path("big"))
        os.mkfifo(self.path("big"))
        self.refused("not a regular file", "verify", "big")

    def with_file(self, name, *args):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("mine")
        return args

    def others_journal(self):
        """The journal of a killed commit that another user wrote moves nothing."""
        folder = self.path("shared")
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
        os.mkdir(os.path.join(folder, "victim"))

        def write(name, data):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
            os.chown(os.path.join(folder, name), 65534, 65534)
            return str(os.lstat(os.path.join(folder, name)).st_ino).encode()
        one, other = write("z", b"z"), write("victim.aaaaaaaa.tmp", b"theirs")
        steps = (one, b"z.cccccccc.tmp", b"z", b"0"), (other, b"victim.aaaaaaaa.tmp", b"victim", b"1")
        write("z.bbbbbbbb.tmp", b"cbk: files that get their names together\0" + b"".join(b"\0".join(step) + b"\0" for step in steps))
        self.call("copy", "source.pt", "shared/x.pt")
        assert os.path.isdir(os.path.join(folder, "victim"))
        shutil.rmtree(folder)

    # --- ranks

    def processes(self, parent):
        """The ranks below a launcher, in their order; MPICH's has a process between."""
        pids = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout.split()
        own = subprocess.run(["pgrep", "-x", "cbk", "-P", str(parent)], capture_output=True, text=True, check=False).stdout.split()
        return own or [rank for pid in pids for rank in self.processes(pid)]

    def ranks(self, count, *args, rank_kill=None):
        """The exit status and the output of ranks; to one of which a signal is sent after a while, or after a line with a word."""
        with subprocess.Popen([self.launcher, "-n", str(count), self.cbk, *args], cwd=self.folder, env=ENVIRONMENT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
            if rank_kill:
                rank, number, delay = rank_kill
                if isinstance(delay, str):
                    while delay not in (line := job.stdout.readline()):
                        assert line, "it has ended"
                else:
                    time.sleep(delay)
                pids = self.processes(job.pid)
                if len(pids) > rank:
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(int(pids[rank]), number)
            try:
                text = job.communicate(timeout=60)[0]
            except subprocess.TimeoutExpired:
                job.kill()
                raise AssertionError("it hangs") from None
        return job.returncode, text

    def by_ranks(self, command, target, count):
        self.clear()
        alone = self.run(*command, "one" + target)
        said = alone.stderr + alone.stdout
        assert alone.returncode == 0, said
        os.rename(self.path("one" + target), self.path("wanted"))
        status, text = self.ranks(count, *command, "one" + target)
        assert status == 0, text
        assert sorted(text.splitlines()) == sorted(said.splitlines()), (text, said)
        same(self.path("wanted"), self.path("one" + target))
        assert self.left("wanted", "one" + target) == [], self.left()

    def rank_fails(self, rank):
        self.clear()
        status, text = self.ranks(3, "run", "fail.lua", "x.mdl", "lz4", str(rank))
        assert status != 0
        line = next(line for line in text.splitlines() if line.startswith("cbk: "))
        assert line.endswith("fail.lua:5: no room"), line
        assert text.count("no room") == 1, text
        assert rank == 0 or line.startswith(f"cbk: rank {rank} on "), line
        assert self.left() == [], self.left()

    def rank_alone(self):
        """A rank that writes what the others do not, other values of a rank, and a script on standard input."""
        body = 'local cbk = require "cbk"\nlocal rank = os.getenv "OMPI_COMM_WORLD_RANK"\n'
        write = 'local out = cbk.create("x.pt")\nout["note"] = ("x"):rep({})\nout:commit()\n'
        for rank in ("0", "1"):
            for text, words in ((f'if rank == "{rank}" then {write.format(1)} end', "has ended"),
                                (write.format(f'rank == "{rank}" and 3000 or 1'), "something else than rank 0")):
                self.clear()
                with open(self.path("rank.lua"), "w", encoding="utf-8") as file:
                    file.write(body + text)
                status, said = self.ranks(2, "run", "rank.lua")
                assert status != 0 and words in said, (rank, said)
                assert self.left("rank.lua") == [], self.left()
        self.clear()
        self.call("copy", "source.pt", "x.mdl", "--plan", "job")
        status, said = self.ranks(2, "work", "job")  # each rank is a part
        assert status == 0 and "Part 1 of 2" in said and "Part 2 of 2" in said, said
        self.call("finish", "job")
        self.clear()
        with subprocess.Popen(["mpirun", "-n", "2", self.cbk, "run", "-"], cwd=self.folder, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
            said = job.communicate(f'local cbk = require "cbk"\n{write.format(1)}', timeout=60)[0]
        assert job.returncode == 0, said
        assert self.left() == ["x.pt"]

    def left_by_ranks(self, name):
        """MPICH's launcher kills the other ranks at once: what they had begun stays until the next run."""
        begun = re.escape(name) + r"\.[0-9a-f]{8}\.tmp"
        return [one for one in self.left("wanted" + name, name) if self.launcher != "mpirun.mpich" or not re.fullmatch(begun, one)]

    def rank_dies(self, number, times, name="x.safetensors", *options):
        self.clear()
        self.call("run", "make.lua", "wanted" + name, *options)
        for _ in range(times):
            start = time.monotonic()
            status, _ = self.ranks(2, "run", "make.lua", name, *options,
                                   rank_kill=(self.rng.randrange(2), number, self.rng.uniform(0.2, 1.2)))
            assert time.monotonic() - start < 60
            deadline = time.monotonic() + 15  # a rank that outlives its launcher needs a moment
            while self.left_by_ranks(name) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert self.left_by_ranks(name) == [], self.left()
            assert status != 0 or os.path.exists(self.path(name))
            if os.path.exists(self.path(name)):
                same(self.path("wanted" + name), self.path(name))
                os.remove(self.path(name))
        status, text = self.ranks(2, "run", "make.lua", name, *options)
        assert status == 0, text
        same(self.path("wanted" + name), self.path(name))
        assert self.left("wanted" + name, name) == [], self.left()

    def stopped_at_the_end(self):
        """A rank that stops when all is written: no other one waits for it, nor the launcher."""
        for rank in 0, 1:
            self.clear()
            start = time.monotonic()
            self.ranks(2, "run", "make.lua", "x.safetensors", rank_kill=(rank, signal.SIGSTOP, "done"))
            assert time.monotonic() - start < 30
            assert self.left("x.safetensors") == [], self.left()
            self.call("check", "x.safetensors")

    def slow_reader(self):
        """A launcher that waits for the reader of its output may take its time."""
        self.clear()
        with open(self.path("long.lua"), "w", encoding="utf-8") as file:
            file.write('for i = 1, 100000 do print(("x"):rep(20)) end\n')
        command = f"mpirun -n 2 {self.cbk} run long.lua | (sleep 14; wc -l)"
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=dict(ENVIRONMENT, CBK_TEAM_TIMEOUT="2"), capture_output=True, text=True,
                              timeout=60, check=False)
        assert int(done.stdout) >= 100000, done

    def commands_of_ranks(self):
        """Every command that writes a model, by three ranks: the bytes of one process."""
        self.clear()
        self.llama(1)
        os.mkdir(self.path("adapter"))
        generator, adapter = torch.Generator().manual_seed(3), {}
        for layer in range(LLAMA["num_hidden_layers"]):
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj."
            adapter[name + "lora_A.weight"] = torch.randn(4, 64, generator=generator)
            adapter[name + "lora_B.weight"] = torch.randn(64, 4, generator=generator)
        torch.save(adapter, self.path("adapter/adapter_model.bin"))
        with open(self.path("adapter/adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, file)
        self.call("new", "hf/config.json", "-o", "tuned/model.safetensors", "--seed", "7")
        shutil.copy(self.path("hf/config.json"), self.path("tuned/config.json"))
        with open(self.path("merge.yml"), "w", encoding="utf-8") as file:
            file.write("merge_method: dare_ties\nbase_model: hf\nparameters: {weight: 0.7, density: 0.4}\nmodels: [{model: tuned}]\n")
        for name, command in (("new", ("new", "hf/config.json", "-o", "{}.pt", "--seed", "3")),
                              ("convert", ("convert", "hf", "--model", "llama", "--tgt-fmt", "cs-2.1", "-o", "{}")),
                              ("upgrade", ("upgrade", "--yes", "--model", "llama", "--config", "convert/config_to_cs-2.1.yaml", "convert/hf_to_cs-2.1.mdl", "--to",
                                           "cs-2.5", "-o", "{}")),
                              ("back", ("convert", "convert/hf_to_cs-2.1.mdl", "--config", "convert/config_to_cs-2.1.yaml", "--model", "llama", "--src-fmt",
                                        "cs-2.1", "--tgt-fmt", "hf", "-o", "{}")),
                              ("fold", ("fold-lora-checkpoint", "--adapter", "adapter", "hf", "-o", "{}")),
                              ("merge", ("merge", "merge.yml", "-o", "{}")),
                              ("extract", ("extract-lora", "hf", "tuned", "-o", "{}", "--rank", "3", "--matrices-only"))):
            self.call(*(word.format(name) for word in command))
            written = name + ".pt" if name == "new" else name
            os.rename(self.path(written), self.path("one." + name))
            status, text = self.ranks(3, *(word.format(name) for word in command))
            assert status == 0, text
            same(self.path("one." + name), self.path(written))

    def reading_by_ranks(self):
        """What commands find that read a part each, and their status."""
        self.clear()
        weights = torch.load(self.path("source.pt"))
        weights["layers.3.weight"][0, 5] += 1
        weights["moved"] = weights.pop("layers.5.weight")
        weights["bad"] = torch.tensor([1.0, float("nan")])
        torch.save(weights, self.path("other.pt"))
        for command in (("stats", "source.pt", "other.pt"), ("stats", "--json", "other.pt", "--top", "9", "--sort", "norm"), ("check", "other.pt"),
                        ("check", "--json", "source.pt"), ("check", "source.pt", "missing.pt"), ("diff", "source.pt", "other.pt"),
                        ("diff", "--json", "source.pt", "other.pt"), ("diff", "source.pt", "source.pt"), ("diff", "source.pt", "missing.pt")):
            one = self.run(*command)
            status, text = self.ranks(3, *command)
            assert status == one.returncode, (command, status, one.returncode)
            text = re.sub(r"cbk: rank \d on \S+: ", "cbk: ", text)  # of a failure of all, which came first
            for line in (one.stdout + one.stderr).splitlines():
                assert text.count(line) == (one.stdout + one.stderr).count(line), (command, line, text)

    def other_files(self):
        """Ranks that see other files under one name are refused, as when each node has its own disk."""
        self.clear()
        for name, scale in ("a", 1), ("b", 2):
            os.mkdir(self.path(name))
            torch.save({f"w{i}": torch.ones(300) * scale for i in range(4)}, self.path(f"{name}/x.pt"))
        for command in ("stats", "x.pt"), ("check", "x.pt"), ("diff", "x.pt", "x.pt"), ("copy", "x.pt", "y.pt"):
            ranks = [["-n", "1", "--wdir", self.path(name), self.cbk, *command] for name in ("a", "b")]
            done = subprocess.run(["mpirun", *ranks[0], ":", *ranks[1]], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode != 0 and "all must see the same files" in done.stderr, done

    def training(self):
        """Each rank is a system: what one process computes for as many systems, up to rounding; the same bytes each time, also in two runs."""
        self.clear()
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cluster_training.lua")
        self.call("run", program, "one", "systems=3")
        for name, steps in ("three", ()), ("again", ()), ("half", ("steps=5",)), ("half", ("steps=5", "load=half_5.mdl")):
            status, text = self.ranks(3, "run", program, name, *steps)
            assert status == 0 and text.count("step 5 ") <= 1 and "size\t16" in text, text
        self.call("diff", "one_10.mdl", "three_10.mdl", "--rtol", "1e-4", "--atol", "1e-6")
        same(self.path("three_10.mdl"), self.path("again_10.mdl"))
        same(self.path("three_10.mdl"), self.path("half_10.mdl"))
        wide = ("width=60000", "steps=5")  # its gradients are added up in parts
        self.call("run", program, "wide", "systems=3", *wide)
        assert self.ranks(3, "run", program, "parts", *wide)[0] == 0
        self.call("diff", "wide_5.mdl", "parts_5.mdl", "--rtol", "1e-4", "--atol", "1e-6")
        for words, *options in (("has other values on rank", "seed=7"), ("num_csx is 3, but 2 ranks", "systems=3"),
                                ("the ranks add up different tensors", "apart=1")):
            status, text = self.ranks(2, "run", program, "x", *options)
            assert status != 0 and words in text, text

        def losses(ranks, *options):
            return re.findall(r"step .*", self.ranks(ranks, "run", program, "x", "alike=1", "steps=5", *options)[1])

        assert losses(1) == losses(2)
        assert losses(1, "dropout=0.5") != losses(2, "dropout=0.5")

    def training_dies(self, times):
        """A rank of a training run is killed: the run ends, and its checkpoints are whole."""
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cluster_training.lua")
        for _ in range(times):
            self.clear()
            start = time.monotonic()
            status, text = self.ranks(2, "run", program, "x", "steps=30", "slow=0.1",
                                      rank_kill=(self.rng.randrange(2), signal.SIGKILL, f"step {self.rng.randrange(1, 20)} "))
            assert status != 0 and time.monotonic() - start < 30, text
            for name in self.left():
                self.call("ls", name)

    # --- commits that are killed

    def faulty(self, *args, **faults):
        """The arguments of a run in which calls that change names are counted, and one of them is a kill (faults.c)."""
        settings = {f"FAULT_{key.upper()}": str(value) for key, value in faults.items()}
        return ["env", f"LD_PRELOAD={self.path('faults.so')}", f"FAULT_FOLDERS={self.folder}", *(f"{k}={v}" for k, v in settings.items()), self.cbk, *args]

    def naming_calls(self, *args):
        """Runs a command; the numbers of its calls that change names."""
        log = self.path("log")
        done = subprocess.run(self.faulty(*args, log=log), cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with open(log, encoding="utf-8") as file:
            lines = file.read().splitlines()
        os.remove(log)
        return [i + 1 for i, line in enumerate(lines) if re.match("rename|unlink|linkat|link |rmdir|remove|mkdir", line)]

    def llama(self, seed):
        """A small model in the folder `hf`; another seed gives other weights and another config."""
        os.makedirs(self.path("hf"), exist_ok=True)
        with open(self.path("hf/config.json"), "w", encoding="utf-8") as file:
            json.dump(dict(LLAMA, rms_norm_eps=seed * 1e-5), file)
        self.call("new", "hf/config.json", "-o", "hf/model.safetensors", "--overwrite", "--seed", str(seed))

    def made_of(self, seed, command, target, name):
        """The output of a command for a model, under another name."""
        self.llama(seed)
        self.call(*command, target)
        os.rename(self.path(target), self.path(name))

    def put(self, name, target):
        """A copy in the place of whatever is there."""
        if os.path.isdir(self.path(target)):
            shutil.rmtree(self.path(target))
        (shutil.copytree if os.path.isdir(self.path(name)) else shutil.copy)(self.path(name), self.path(target))

    def killed_commits(self, command, target, has_old, how):
        """Killed at any change of a name while a job commits: the next step has the whole new output, and leaves nothing else."""
        self.clear()
        self.made_of(4, command, target, "old")
        self.made_of(3, command, target, "wanted")
        job = (*command, target, *(["--overwrite"] if has_old else []))

        def begin():
            for name in self.left("wanted", "old", "hf"):
                (shutil.rmtree if os.path.isdir(self.path(name)) else os.remove)(self.path(name))
            if has_old:
                self.put("old", target)
            if how == "resume":
                return (*job, "--resume")
            self.call(*job, "--plan", "job")
            self.call("work", "job", "--part", "1/1")
            return ("finish", "job")

        step = begin()
        numbers = self.naming_calls(*step)
        for number in numbers:
            step = begin()
            done = subprocess.run(self.faulty(*step, at=number, kind="kill"), cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done
            again = self.run(*step)
            is_gone = "is not a job" in again.stderr or "should be a job" in again.stderr or "exists already" in again.stderr
            assert again.returncode == 0 or is_gone, (number, numbers, again.stderr)
            same(self.path("wanted"), self.path(target))
            rest = [name for name in self.left("wanted", "old", "hf", target) if not is_gone or os.listdir(self.path(name))]
            assert rest == [], (number, self.left())

    def killed_team_commits(self):
        """Rank 0 is killed at any change of a name: the old files or the new ones, at the latest when the next command looks there."""
        self.clear()
        command = (*CONVERT, "out", "--overwrite")
        self.made_of(4, CONVERT, "out", "old")
        self.made_of(3, CONVERT, "out", "new")
        old, new = content(self.path("old")), content(self.path("new"))
        self.put("old", "out")
        for number in self.naming_calls(*command):
            self.put("old", "out")
            first, other = self.faulty(*command, at=number, kind="kill"), [self.cbk, *command]
            subprocess.run(["mpirun", "-n", "1", *first, ":", "-n", "1", *other], cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True,
                           timeout=60, check=False)
            self.run("ls", "out")  # which finishes a commit that was killed
            found = {name: data for name, data in content(self.path("out")).items() if not re.search(r"\.(tmp|old)$", name)}
            assert found in (old, new), (number, sorted(found))

    def forged_commit(self):
        """A note of a commit that names files of others moves and removes nothing."""
        self.clear()
        for name in "victim", "other":
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(name)
        os.mkdir(self.path("x.pt.job"))
        numbers = [str(os.stat(self.path(name)).st_ino) for name in ("victim", "other")]
        for temporary, target, number in (("victim", "new", numbers[0]), ("victim", "other", numbers[1]), ("new", "victim", numbers[0])):
            with open(self.path("x.pt.job/commit"), "wb") as file:
                fields = number, self.path(temporary), self.path(target), "1"
                file.write(b"cbk: files that get their names together\0" + b"".join(field.encode() + b"\0" for field in fields))
            self.refused("is not a commit of cbk", "copy", "source.pt", "x.pt", "--resume")
            self.refused("is not a commit of cbk", "finish", "x.pt.job")
            for name in "victim", "other":
                assert content(self.path(name))[""] == name.encode()

    def ended_early(self):
        """A step that is asked to end notes what it has written: a time limit that is always the same is enough in the end."""
        self.clear()
        self.call("run", "make.lua", "wanted.mdl", "zstd")
        noted = 0
        for i in range(60):
            with subprocess.Popen([self.cbk, "run", "--resume", "make.lua", "x.mdl", "zstd"], cwd=self.folder, env=ENVIRONMENT,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
                try:
                    job.communicate(timeout=0.4 + i / 20)
                    break
                except subprocess.TimeoutExpired:
                    job.send_signal(signal.SIGTERM)
            if os.path.exists(self.path("x.mdl.job")):
                noted += sum(os.path.getsize(self.path(f"x.mdl.job/{name}")) for name in os.listdir(self.path("x.mdl.job")) if name.endswith(".done"))
        assert job.returncode == 0 and noted > 0, (job, noted)
        same(self.path("wanted.mdl"), self.path("x.mdl"))
        assert self.left("wanted.mdl", "x.mdl") == [], self.left()

    def without_module(self):
        """Started by a launcher whose module is not installed."""
        program = self.path("cbk")
        shutil.copy(os.path.realpath(self.cbk), program)
        for words, status in ({"CBK_TEAM": "0"}, 0), ({}, 1):
            done = subprocess.run([program, "ls", self.path("source.pt")], env={**ENVIRONMENT, "PMI_SIZE": "2", **words, "LD_LIBRARY_PATH": "/nowhere"},
                                  capture_output=True, text=True, check=False)
            assert done.returncode == status and (status == 0 or "pass --mpi=pmix to srun" in done.stderr), done
        os.remove(program)

    def two_outputs(self):
        """A script that fails after its first output: the same again writes the others, and keeps the first."""
        self.clear()
        with open(self.path("two.lua"), "w", encoding="utf-8") as file:
            file.write('local cbk = require "cbk"\nfor _, name in ipairs { "p.pt", "q.pt" } do\n'
                       'cbk.create(name, { root = cbk.dict { w = cbk.full({ 3 }, 1) } }):commit()\nend\n')
        for step in (["run", "--resume", "two.lua"],), (["run", "--plan", "job", "two.lua"], ["work", "job", "--part", "1/1"], ["finish", "job"]):
            with open(self.path("q.pt"), "w", encoding="utf-8") as file:
                file.write("in the way")
            for command in step[:-1]:
                self.call(*command)
            self.refused("exists already", *step[-1])
            time_of_p = os.stat(self.path("p.pt")).st_mtime_ns
            os.remove(self.path("q.pt"))
            self.call(*step[-1])
            assert os.stat(self.path("p.pt")).st_mtime_ns == time_of_p
            assert self.left() == ["p.pt", "q.pt", "two.lua"], self.left()
            os.remove(self.path("p.pt"))

    def two_folders(self):
        """Two jobs of one output do not touch each other."""
        self.clear()
        self.call("copy", "source.pt", "wanted.safetensors")
        for job in "one", "two":
            self.call("copy", "source.pt", "x.safetensors", "--plan", job)
        self.call("work", "one", "--part", "1/1")
        self.call("copy", "source.pt", "y.safetensors", "--plan", "three")
        self.call("finish", "one")
        same(self.path("wanted.safetensors"), self.path("x.safetensors"))
        self.refused("cannot be in its output", "copy", "source.pt", "shards", "--format", "safetensors", "--shard-size", "2MB", "--plan", "shards/job")

    def steps_in_json(self):
        """Steps of a job report as their command's options say."""
        self.clear()
        assert json.loads(self.call("copy", "source.pt", "x.pt", "--json", "--plan", "job")) == {"written": False, "job": self.path("job")}
        assert json.loads(self.call("work", "job", "--part", "1/1")) == {"written": False, "job": self.path("job"), "part": 1, "parts": 1}
        assert json.loads(self.call("finish", "job"))["written"]
        assert self.call("copy", "source.pt", "y.pt", "-q", "--plan", "job") == self.call("work", "job", "--part", "1/1") == ""

    def ranks_resume(self, times):
        """Killed with two ranks, continued with three, two or one."""
        self.clear()
        self.call("run", "make.lua", "wanted.safetensors")
        for _ in range(times):
            self.ranks(2, "run", "--resume", "make.lua", "x.safetensors", rank_kill=(1, signal.SIGKILL, self.rng.uniform(0.3, 1.2)))
        status, text = self.ranks(3, "run", "--resume", "make.lua", "x.safetensors")
        assert status == 0, text
        same(self.path("wanted.safetensors"), self.path("x.safetensors"))
        assert self.left("wanted.safetensors", "x.safetensors") == [], self.left()


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

COPIES = {  # a command, up to its output, and how that ends
    "safetensors": (("copy", "source.pt"), ".safetensors"),
    "PyTorch": (("copy", "source.pt", "--to-dtype", "float16"), ".pt"),
    "H5": (("copy", "source.pt"), ".mdl"),
    "compressed H5": (("copy", "source.pt", "--compress", "deflate"), ".mdl"),
    "shards": (("copy", "source.pt", "--shard-size", "2MB", "--format", "safetensors"), "folder"),
    "a script": (("run", "make.lua"), ".safetensors"),
    **{f"weights of {kind}": (("copy", "given/" + kind, "--weights"), ".safetensors") for kind in ("zero", "dtensors", "meta", "megatron", "dcp")},
    "quantised weights": (("copy", "given/fp8", "--dequantize", "bfloat16"), ".safetensors"),
    "a merge": (("merge", "given/merge.yml", "-o"), "folder"),
}


CONVERT = ("convert", "hf", "--model", "llama", "--tgt-fmt", "cs-2.1", "-o")
SHARDS = ("copy", "hf/model.safetensors", "--format", "safetensors", "--shard-size", "200KB")
COMMITS = {  # a command up to its output, the output, whether it replaces one
    "a file": (("copy", "hf/model.safetensors"), "x.mdl", False), "a file that is replaced": (("copy", "hf/model.safetensors"), "x.mdl", True),
    "a folder that is replaced": (SHARDS, "shards", True), "a conversion": (CONVERT, "out", False), "a conversion again": (CONVERT, "out", True),
}


def ranks_of_mpich(test):
    if not test.has_module("mpich") or not shutil.which("mpirun.mpich"):
        test.skip("ranks of MPICH", "MPICH, or the module for it, is not there")
        return
    test.launcher = "mpirun.mpich"
    for name in "compressed H5", "shards":
        test.check(f"MPICH: {name} by 3 ranks", lambda case=COPIES[name]: test.by_ranks(*case, 3))
    for rank in 0, 2:
        test.check(f"MPICH: rank {rank} fails", lambda r=rank: test.rank_fails(r))
    test.check("MPICH: a rank is killed", lambda: test.rank_dies(signal.SIGKILL, 4))
    test.check("MPICH: training", test.training)
    test.check("MPICH: ranks resume", lambda: test.ranks_resume(1))
    test.launcher = "mpirun"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400)
    parser.add_argument("--kills", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Cluster(args.cbk, folder, random.Random(args.seed))
        for name, (command, target) in COPIES.items():
            for count in (1, 3):
                test.check(f"{name} in {count} parts", lambda c=command, t=target, n=count: test.parts(c, t, n))
        for name in ("status", "refusals", "tasks", "together", "changes", "damage", "foreign", "commits", "replaced"):
            test.check(name, getattr(test, name))
        test.check("resume", lambda: test.resume(args.kills))
        for name, (command, target) in COPIES.items():
            if command[0] == "copy":
                test.check(f"provenance of {name}", lambda c=command, t=target: test.provenance(c, t))
        for name in ("replay", "moved_provenance", "hostile_provenance"):
            test.check(name, getattr(test, name))
        if os.geteuid() == 0:
            test.check("others_journal", test.others_journal)
        else:
            test.skip("others_journal", "only root can make files of others")
        ranks_of_mpich(test)
        if not shutil.which("mpirun") or not test.has_module("openmpi"):
            test.skip("ranks of Open MPI", "Open MPI, or the module for it, is not there")
            return test.close()
        for name, (command, target) in COPIES.items():
            test.check(f"{name} by 3 ranks", lambda c=command, t=target: test.by_ranks(c, t, 3))
        for rank in (0, 2):
            test.check(f"rank {rank} fails", lambda r=rank: test.rank_fails(r))
        for number in (signal.SIGKILL, signal.SIGTERM):
            test.check(f"a rank gets {number.name}", lambda n=number: test.rank_dies(n, max(1, args.kills // 4)))
        test.check("a rank that packs gets SIGKILL", lambda: test.rank_dies(signal.SIGKILL, max(1, args.kills // 4), "x.mdl", "zstd"))
        test.check("a rank alone", test.rank_alone)
        test.check("steps in JSON", test.steps_in_json)
        test.check("a forged commit", test.forged_commit)
        test.check("a step that is ended early", test.ended_early)
        test.check("without the module", test.without_module)
        test.check("two folders", test.two_folders)
        test.check("two outputs, the second one fails", test.two_outputs)
        for name, case in COMMITS.items():
            for how in "finish", "resume":
                test.check(f"{how}, killed: {name}", lambda c=case, h=how: test.killed_commits(*c, h))
        test.check("a rank commits, killed", test.killed_team_commits)
        test.check("commands of ranks", test.commands_of_ranks)
        test.check("ranks that read", test.reading_by_ranks)
        test.check("other files", test.other_files)
        test.check("training", test.training)
        test.check("training that dies", lambda: test.training_dies(max(1, args.kills // 4)))
        test.check("a rank is stopped", lambda: test.rank_dies(signal.SIGSTOP, 1))
        test.check("a rank is stopped at the end", test.stopped_at_the_end)
        test.check("a launcher with a slow reader", test.slow_reader)
        test.check("ranks resume", lambda: test.ranks_resume(max(1, args.kills // 4)))
        return test.close()


if __name__ == "__main__":
    sys.exit(main())
