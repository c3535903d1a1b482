#!/usr/bin/python3
"""Every call that a command makes on its own files goes wrong once: an error, a signal, half of what was asked, `kill -9`. Afterwards the
files are the old ones or the new ones, whole, and nothing else is there; after a kill, nothing that the next run does not remove. Also: systems
that lack things, what `--sync` syncs and when, and sources that change while they are read.

Of a call made many times, the first, the middle and the last one go wrong; with --every, each.

Usage: faults_interop.py --cbk PATH [--every] [FILTER]
"""
import argparse
import concurrent.futures
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import yaml

import upgrade_interop as old_run
import upgrade_tools_interop as old_files
from harness import Run
from kills_interop import TEMPORARY, ByContent, digests, from_cerebras, is_whole, to_cerebras, units
from streaming_interop import llama_folder

WRITES, READS = ("EIO", "ENOSPC", "EINTR", "short"), ("EIO", "EINTR", "short")
KINDS = {
    "open": ("EIO", "EINTR"), "opentmp": ("EIO", "EINTR"), "mmap": ("EIO",), "flock": ("EINTR",), "fchmod": ("EIO",),
    "read": READS, "pread": READS, "write": WRITES, "pwrite": WRITES, "copy_file_range": ("ENOSPC", "EINTR", "short"),
    "posix_fallocate": ("ENOSPC", "EINTR"), "ftruncate": ("EIO", "EINTR"),
    "fsync": ("EIO", "EINTR"), "sync_file_range": ("EIO", "EINTR"),
    "mkdir": ("ENOSPC",), "linkat": ("ENOSPC",), "rename": ("EIO",), "renameat2": ("ENOSPC",),
    "unlink": ("EIO",), "unlinkat": ("EIO",), "rmdir": ("EIO",), "remove": ("EIO",),
}
HARMLESS = ("EINTR", "short")  # the program goes on
READING = ("mmap", "flock", "read", "pread")  # killed there, the files are as before the next call of another kind
CLEANING = ("unlink", "unlinkat", "rmdir", "remove", "open")  # when these fail, something may be left


class Sweep:
    """One command over one folder of outputs, which `before` shows as it is at first."""

    def __init__(self, run, name, argv, before, inputs, look=digests):
        self.run, self.name, self.before, self.inputs, self.look = run, name, before, inputs, look
        self.folder = run.path(f"out {name}".replace(" ", "_").replace("/", "_"))
        self.argv = [run.cbk, *argv(self.folder)]
        self.problems = []

    def reset(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)

    def start(self, more=(), **faults):
        env = dict(os.environ, LD_PRELOAD=self.run.path("faults.so"), FAULT_FOLDERS=f"{self.folder}:{self.inputs}",
                   **{f"FAULT_{key.upper()}": str(value) for key, value in faults.items()})
        return subprocess.run([*self.argv, *more], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, env=env)

    def calls(self, *more, **faults):
        """(number, name, path) of each call of a run that nothing happens to."""
        log = self.folder + ".log"
        self.reset()
        if os.path.exists(log):
            os.remove(log)
        done = self.start(more, log=log, **faults)
        assert done.returncode == 0, done.stderr
        with open(log, encoding="utf-8") as lines:
            return [(i, *line.rstrip("\n").split(" ", 1)) for i, line in enumerate(lines, 1)]

    def entries(self):
        """What lies in the folder, and when it was written."""
        paths = [os.path.join(base, name) for base, folders, names in os.walk(self.folder) for name in (*folders, *names)]
        return {path: None if os.path.isdir(path) else os.stat(path).st_mtime_ns for path in paths}

    def temporaries(self):
        return [name for name in os.listdir(self.folder) if TEMPORARY.search(name)]

    def is_aside(self):
        """Nothing is at its place, but a folder is there twice, old and new, each whole under a temporary name."""
        aside = [{f"{TEMPORARY.sub('', name)}/{path}": digest for path, digest in digests(os.path.join(self.folder, name)).items()}
                 for name in self.temporaries()]
        return not self.look(self.folder) and any(old in aside and units(self.new)[unit] in aside for unit, old in units(self.old).items())

    def expect(self, is_right, what):
        if not is_right:
            self.problems.append(what)

    def inject(self, number, name, path, kind, **faults):
        self.reset()
        done = self.start(at=number, kind=getattr(errno, kind, kind), **faults)
        now, what = self.look(self.folder), f"{kind} at call {number}, {name} {os.path.basename(path)}: status {done.returncode}, {done.stderr.strip()}"
        if kind == "kill":
            self.expect(done.returncode == -9, f"{what}: not killed")
            self.expect(is_whole(self.old, self.new, now) or faults and self.is_aside(), f"{what}: {sorted(now)}")
            if self.entries() == self.untouched:
                return
            done = self.start(**faults)
            self.expect(done.returncode == 0 and self.look(self.folder) == self.new and not self.temporaries(),
                        f"{what}; the next run: status {done.returncode}, {done.stderr.strip()}, {os.listdir(self.folder)}")
            return
        errors = [line for line in done.stderr.splitlines() if line.startswith("cbk: ")]
        self.expect(done.returncode in (0, 1), what)
        self.expect(done.returncode == 0 or kind not in HARMLESS, what)
        self.expect(len(errors) == done.returncode, f"{what}: {len(errors)} errors")
        is_there = now == self.new if done.returncode == 0 else now == self.old or name == "fsync" and now == self.new
        self.expect(is_there, f"{what}: {sorted(now)} are neither")
        self.expect(name in CLEANING or not self.temporaries(), f"{what}: {self.temporaries()}")

    def inject_all(self, found, every, **faults):
        places = {}
        for number, name, path in found:
            places.setdefault((name, TEMPORARY.sub("", path)), []).append(number)
        def sample(numbers):
            return numbers if every else sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]})

        jobs = [(number, name, path, kind) for (name, path), numbers in places.items() for number in sample(numbers)
                for kind in (*KINDS[name], *(("kill",) if name not in READING and path.startswith(self.folder) else ()))]
        for job in jobs:
            self.inject(*job, **faults)
        assert not self.problems, f"{len(self.problems)} of {len(jobs)}: " + "\n  ".join(self.problems[:6])

    def sweep(self, every):
        self.reset()
        self.old, self.untouched = self.look(self.folder), self.entries()
        found = self.calls()
        self.new = self.look(self.folder)
        assert self.old != self.new
        self.inject_all(found, every)
        for without in ("tmpfile", "proc", "tmpfile,flags"):
            self.reset()
            done = self.start(without=without)
            assert done.returncode == 0 and self.look(self.folder) == self.new and not self.temporaries(), f"without {without}: {done.stderr}"
        found = self.calls(without="flags")
        self.inject_all([call for call in found if call[1] in ("renameat2", "linkat", "unlink")], every, without="flags")

    def check_sync(self):
        """Every file is synced before the first new name, and the folder after the last one."""
        names = [(name, path) for _, name, path in self.calls("--sync")]
        new = [os.path.join(self.folder, path) for path in self.look(self.folder)]
        renames = [i for i, (name, _) in enumerate(names) if name in ("rename", "renameat2")]
        syncs = [i for i, (name, _) in enumerate(names) if name == "fsync"]
        assert renames and syncs, names
        files = [i for i in syncs if names[i][1] != self.folder]
        folders = {os.path.dirname(path) for path in new} - {self.folder}
        listed = 1 if len(new) > 1 else 0  # the list of files that get their names together
        assert len(files) - len(new) - len(folders) in (0, listed), f"{len(files)} fsyncs for {len(new)} files in {len(folders)} folders: {names}"
        assert max(files) < min(renames), names
        assert max(syncs) > max(renames) and names[max(syncs)][1] == self.folder, names

    def check_unsynced_folder(self):
        """The names are there, but may be lost: an error that says so."""
        self.reset()
        number = [i for i, name, path in self.calls("--sync") if name == "fsync" and path == self.folder][-1]
        new = self.look(self.folder)
        self.reset()
        done = self.start(("--sync",), at=number, kind=errno.EIO)
        says = f"cannot sync '{self.folder}': {os.strerror(errno.EIO)}; the output exists, but may be lost if the power fails"
        assert done.returncode == 1 and says in done.stderr, done
        assert self.look(self.folder) == new and not self.temporaries(), os.listdir(self.folder)

    def check_config_first(self):
        """Killed at any moment in a folder without older files: there is never a new checkpoint without its config."""
        self.reset()
        assert self.start().returncode == 0
        new, log, seen = self.look(self.folder), self.folder + ".log", set()
        shutil.rmtree(self.folder)
        if os.path.exists(log):
            os.remove(log)
        assert self.start(log=log).returncode == 0
        with open(log, encoding="utf-8") as lines:
            calls = [line.split(" ", 1)[0] for line in lines]
        for number in [i for i, name in enumerate(calls, 1) if name in ("linkat", "rename", "renameat2", "unlink")]:
            shutil.rmtree(self.folder)
            assert self.start(at=number, kind="kill").returncode == -9
            now = self.look(self.folder)
            assert all(new[path] == digest for path, digest in now.items()), f"call {number}: {sorted(now)}"
            seen.add(tuple(sorted(os.path.splitext(path)[1] for path in now)))
        assert seen == {(), (".yaml",), (".mdl", ".yaml")} or seen == {(), (".yaml",)}, seen

    def check_changed_config(self, config):
        """Another program writes the config while the checkpoint is written: nothing is changed."""
        self.reset()
        old, number = self.look(self.folder), next(i for i, name, _ in self.calls() if name == "pwrite")
        self.reset()
        done = self.start(at=number, kind="touch", file=config)
        assert done.returncode == 1 and f"cannot use '{config}': it was changed or replaced after it was opened" in done.stderr, done
        assert self.look(self.folder) == old and not self.temporaries()

    def check_other_count(self):
        """A bundle that replaces one of fewer data files can be read at every moment."""
        def values():
            self.run.call("copy", os.path.join(self.folder, "x.ckpt"), self.run.path("read.safetensors"), "--overwrite")
            with open(self.run.path("read.safetensors"), "rb") as f:
                return hashlib.sha256(f.read()).hexdigest()

        more = ("--shard-size", "30KB")
        self.reset()
        old, found = values(), self.calls(*more)
        new, seen = values(), []
        for number, name, _ in found:
            if name in ("renameat2", "unlink", "remove"):
                self.reset()
                assert self.start(more, at=number, kind="kill").returncode == -9
                seen.append(values())
        assert old != new and seen == [old] * seen.count(old) + [new] * seen.count(new) and set(seen) == {old, new}, seen


def check_changed_source(run, suffix):
    """Another program writes into the source, or into its index, while it is read: a progress function stands still until it has."""
    source, target, script = run.path(f"source{suffix}"), run.path("target.safetensors"), run.path("change.lua")
    more = {".index": ("--format", "tensorflow"), ".index.json": ("--format", "safetensors", "--shard-size", "50KB")}.get(suffix, ())
    made = {".index": run.path("source"), ".index.json": run.path("shards")}.get(suffix, source)
    run.call("copy", os.path.join(run.folder, "inputs1", "in.pt"), made, "--overwrite", *more)
    if suffix == ".index.json":
        source = os.path.join(made, "model.safetensors.index.json")
    with open(script, "w", encoding="utf-8") as f:
        f.write("""
local cbk = require "cbk"
local checkpoint = cbk.open(arg[1])
local output = cbk.create(arg[2], { root = checkpoint:raw_root() })
output:commit { progress = function()
  local file = assert(io.open(arg[1], "r+b"))
  file:seek("end", -1)
  file:write "x"
  file:close()
end }
""")
    done = run.run("run", script, source, target)
    assert done.returncode == 1 and "was changed or replaced after it was opened" in done.stderr and source in done.stderr, done
    assert not os.path.exists(target)


def check_lost_bytes(run):
    """A mapped file that lost bytes: the message says which byte of which file."""
    source, script = run.path("lost.safetensors"), run.path("lost.lua")
    run.call("copy", os.path.join(run.folder, "inputs1", "in.pt"), source, "--overwrite")
    with open(script, "w", encoding="utf-8") as f:
        f.write("""
local cbk = require "cbk"
local tensor = cbk.open(arg[1]):get "h.1.weight"
os.execute(("truncate -s 4096 '%s'"):format(arg[1]))
print(tensor:transpose(0, 1):stats().min)
""")
    done = run.run("run", script, source)
    said = re.search(r"cannot read byte (\d+) of \S*lost.safetensors: it became shorter", done.stderr)
    assert done.returncode == 1 and said and int(said[1]) >= 4096, done


DUO = """
local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
local function part(name)
  return { left = name .. "_model", right = name, keys = rules.keys { { "w", name .. ".weight" } },
    config = fields.config { { "size", "hidden_size" } } }
end
return { { model = "duo", { "hf", "cs-2.4", components = { part "eye", part "tongue" }, config = fields.config {} } } }
"""


def make_inputs(run, seed):
    """For each command its inputs; those of a smaller seed are smaller."""
    folder = run.path(f"inputs{seed}")
    os.makedirs(os.path.join(folder, "lora"))
    rng = np.random.default_rng(seed)

    def tensor(*shape):
        return torch.tensor(rng.random(shape, dtype=np.float32))

    def write(name, text):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    torch.save({f"h.{i}.weight": tensor(64, 80 * seed) for i in range(3)}, os.path.join(folder, "in.pt"))
    run.call("copy", os.path.join(folder, "in.pt"), os.path.join(folder, "in.h5"), "--h5-version", "flat")
    llama_folder(os.path.join(folder, "hf"), layers=1, hidden=32 * seed, vocabulary=100)
    run.call(*to_cerebras(folder, folder))

    linear = "model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer."
    torch.save({"model": {f"{linear}weight": tensor(20, 30), f"{linear}lora_A": tensor(1, 30), f"{linear}lora_B": tensor(20, 1)}},
               os.path.join(folder, "lora", "model.mdl"))
    write("lora/params.yaml", yaml.safe_dump({"model": {"hidden_size": 20 + seed, "lora_params": {"r": 1}}}))

    write("duo.lua", DUO)
    for name in ("eye", "tongue"):
        os.makedirs(os.path.join(folder, "duo", f"{name}_model"))
        torch.save({"w": tensor(30, 20 * seed)}, os.path.join(folder, "duo", f"{name}_model", "pytorch_model.bin"))
        write(f"duo/{name}_model/config.json", json.dumps({"size": 20 * seed}))
    run.call(*duo(folder, os.path.join(folder, "cs")))

    states = os.path.join(folder, "states")
    os.mkdir(states)
    write("states/data_iter_checkpoint_state_file_global", f"{old_run.STEP}\n")
    write(f"states/data_iter_state_file_worker_0_step_{old_run.STEP}.txt", f"{1600 * seed}\n")
    write("params.yaml", yaml.safe_dump(dict(old_run.make_config(states), seed=seed)))
    old_run.save_old(os.path.join(folder, "old.mdl"), old_run.make_tree(), 0.2, tuple(old_run.TIED))
    return folder


def duo(inputs, out):
    return ["convert", "--converter", f"{inputs}/duo.lua", "--model", "duo", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", f"{inputs}/duo",
            f"{inputs}/duo", "--output-dir", out]


def from_duo(inputs, out):
    return ["convert", "--converter", f"{inputs}/duo.lua", "--model", "duo", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--config",
            f"{inputs}/cs/config_to_cs-2.4.yaml", f"{inputs}/cs/pytorch_model_to_cs-2.4.mdl", "--output-dir", out]


JOBS = {
    "copy to H5": lambda inputs, out: ["copy", f"{inputs}/in.pt", f"{out}/x.mdl"],
    "copy to torch": lambda inputs, out: ["copy", f"{inputs}/in.h5", f"{out}/x.pt"],
    "copy to safetensors": lambda inputs, out: ["copy", f"{inputs}/in.pt", f"{out}/x.safetensors"],
    "copy to shards": lambda inputs, out: ["copy", f"{inputs}/in.pt", f"{out}/x", "--format", "safetensors", "--shard-size", "50KB"],
    "convert": to_cerebras,
    "convert to shards": from_cerebras,
    "convert from parts": duo,
    "convert to parts": from_duo,
    "h5-to-tensorflow": lambda inputs, out: ["h5-to-tensorflow", f"{inputs}/in.h5", f"{out}/x.ckpt"],
    "upgrade": lambda inputs, out: ["upgrade", "--model", "gpt2", "--config", f"{inputs}/params.yaml", f"{inputs}/old.mdl", "--to", "cs-2.5",
                                    "--yes", "--output-dir", out],
    "fold-lora-checkpoint": lambda _, out: ["fold-lora-checkpoint", "--model", "gpt2", "-p", f"{out}/params.yaml", "--checkpoint_path", f"{out}/model.mdl"],
}


CONFIGS = {"convert": "hf/config.json", "convert to shards": "config_to_cs-2.4.yaml", "convert from parts": "duo/tongue_model/config.json",
           "upgrade": "params.yaml", "fold-lora-checkpoint": "params.yaml"}


def folded(folder):
    """What the command writes; its inputs lie there too."""
    return {path: digest for path, digest in digests(folder).items() if "_folded" in path}


def sweeps_of(run, new, earlier):
    out = []
    for name, job in JOBS.items():
        before, is_fold = run.path(f"before {name}"), name.startswith("fold")
        os.mkdir(before)
        if is_fold:
            shutil.copytree(os.path.join(earlier, "lora"), before, dirs_exist_ok=True)
        run.call(*job(earlier, before))
        if is_fold:
            shutil.copytree(os.path.join(new, "lora"), before, dirs_exist_ok=True)
        out.append(Sweep(run, name, lambda out, job=job: [*job(new, out), "--threads", "1", "--overwrite"], before, new, folded if is_fold else digests))
    before = run.path("before fix")
    os.mkdir(before)
    old_files.write(os.path.join(before, "k.mdl"), old_files.datasets())
    out.append(Sweep(run, "fix in place", lambda out: ["fix-checkpoint-spec", f"{out}/k.mdl", "--fix_inplace", "--yes"], before, run.path("none"), ByContent()))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("filter", nargs="?", default="")
    options = parser.parse_args()
    top = tempfile.mkdtemp(prefix="cbk-faults-")
    run = Run(options.cbk, top)
    try:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", run.path("faults.so"), source, "-ldl"], check=True)
        sweeps = [sweep for sweep in sweeps_of(run, make_inputs(run, 1), make_inputs(run, 2)) if options.filter in sweep.name]
        for sweep in sweeps:
            if sweep.name != "fix in place":
                run.check(f"{sweep.name}: --sync", sweep.check_sync)
                run.check(f"{sweep.name}: a folder that cannot be synced", sweep.check_unsynced_folder)
            if sweep.name in CONFIGS:
                config = os.path.join(sweep.folder if sweep.look is folded else sweep.inputs, CONFIGS[sweep.name])
                run.check(f"{sweep.name}: a config that changes", lambda sweep=sweep, config=config: sweep.check_changed_config(config))
            if sweep.name in ("convert", "convert from parts", "upgrade"):
                run.check(f"{sweep.name}: the config is first", sweep.check_config_first)
            if sweep.name == "h5-to-tensorflow":
                run.check(f"{sweep.name}: other data files", sweep.check_other_count)
        for suffix in (".safetensors", ".h5", ".pt", ".index", ".index.json"):
            run.check(f"a source that changes: {suffix}", lambda suffix=suffix: check_changed_source(run, suffix))
        run.check("a mapped file that loses bytes", lambda: check_lost_bytes(run))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(run.check, sweep.name, lambda sweep=sweep: sweep.sweep(options.every)) for sweep in sweeps]:
                done.result()
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
