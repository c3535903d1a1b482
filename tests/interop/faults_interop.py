#!/usr/bin/python3
"""Every call that a command makes on its own files goes wrong once: an error, a signal, half of what was asked, `kill -9`. Afterwards the
files are the old ones or the new ones, whole, and nothing else is there; after a kill, nothing that the next run does not remove. Also: systems
that lack things, what `--sync` syncs and when, and sources that change while they are read.

Usage: faults_interop.py --cbk PATH [FILTER]
"""
import argparse
import concurrent.futures
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch

import upgrade_tools_interop as old_files
from harness import Run
from kills_interop import TEMPORARY, ByContent, digests, from_cerebras, is_whole, to_cerebras
from streaming_interop import llama_folder

WRITES, READS = ("EIO", "ENOSPC", "EINTR", "short"), ("EIO", "EINTR", "short")
KINDS = {
    "open": ("EIO", "EINTR"), "opentmp": ("EIO", "EINTR"), "mmap": ("EIO",), "flock": ("EINTR",), "fchmod": ("EIO",),
    "read": READS, "pread": READS, "pread64": READS,
    "write": WRITES, "pwrite": WRITES, "pwrite64": WRITES, "copy_file_range": ("ENOSPC", "EINTR", "short"),
    "posix_fallocate": ("ENOSPC", "EINTR"), "posix_fallocate64": ("ENOSPC", "EINTR"), "ftruncate": ("EIO", "EINTR"), "ftruncate64": ("EIO", "EINTR"),
    "fsync": ("EIO", "EINTR"), "sync_file_range": ("EIO", "EINTR"),
    "mkdir": ("EIO", "ENOSPC"), "linkat": ("EIO", "ENOSPC"), "rename": ("EIO",), "renameat2": ("EIO", "ENOSPC"),
    "unlink": ("EIO",), "unlinkat": ("EIO",), "rmdir": ("EIO",), "remove": ("EIO",),
}
HARMLESS = ("EINTR", "short")  # the program goes on
CLEANING = ("unlink", "unlinkat", "rmdir", "remove", "open")  # when these fail, something may be left


class Sweep:
    """One command over one folder of outputs, which `before` shows as it is at first."""

    def __init__(self, run, name, argv, before, inputs, more):
        self.run, self.name, self.before, self.inputs = run, name, before, inputs
        self.folder = run.path(f"out {name}".replace(" ", "_").replace("/", "_"))
        self.argv = [run.cbk, *argv(self.folder), "--overwrite"] if more["overwrite"] else [run.cbk, *argv(self.folder)]
        self.look = more["look"]
        self.problems = []

    def reset(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)

    def start(self, more=(), **faults):
        env = dict(os.environ, LD_PRELOAD=self.run.path("faults.so"), FAULT_FOLDERS=f"{self.folder}:{self.inputs}",
                   **{f"FAULT_{key.upper()}": str(value) for key, value in faults.items()})
        return subprocess.run([*self.argv, *more], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, env=env)

    def calls(self, *more):
        """(number, name, path) of each call of a run that nothing happens to; of a call made many times, the first and the last one."""
        log = self.folder + ".log"
        self.reset()
        if os.path.exists(log):
            os.remove(log)
        done = self.start(more, log=log)
        assert done.returncode == 0, done.stderr
        with open(log, encoding="utf-8") as lines:
            found = [(i, *line.rstrip("\n").split(" ", 1)) for i, line in enumerate(lines, 1)]
        return found

    def temporaries(self):
        return [name for name in os.listdir(self.folder) if TEMPORARY.search(name)]

    def expect(self, is_right, what):
        if not is_right:
            self.problems.append(what)

    def inject(self, number, name, path, kind):
        self.reset()
        done = self.start(at=number, kind=getattr(errno, kind, kind))
        now, what = self.look(self.folder), f"{kind} at call {number}, {name} {os.path.basename(path)}: status {done.returncode}, {done.stderr.strip()}"
        if kind == "kill":
            self.expect(done.returncode == -9, f"{what}: not killed")
            self.expect(is_whole(self.old, self.new, now), f"{what}: {sorted(now)}")
            done = self.start()
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

    def sweep(self):
        self.reset()
        self.old = self.look(self.folder)
        found = self.calls()
        self.new = self.look(self.folder)
        assert self.old != self.new
        places = {}
        for number, name, path in found:
            places.setdefault((name, TEMPORARY.sub("", path)), []).append(number)
        jobs = [(number, name, path, kind) for (name, path), numbers in places.items() for number in sorted({numbers[0], numbers[-1]})
                for kind in (*KINDS[name], "kill")]
        for job in jobs:
            self.inject(*job)
        assert not self.problems, f"{len(self.problems)} of {len(jobs)}: " + "\n  ".join(self.problems[:6])
        for without in ("tmpfile", "proc", "flags", "tmpfile,flags"):
            self.reset()
            done = self.start(without=without)
            assert done.returncode == 0 and self.look(self.folder) == self.new and not self.temporaries(), f"without {without}: {done.stderr}"

    def check_sync(self):
        """Every file is synced before the first new name, and the folder after the last one."""
        names = [(name, path) for _, name, path in self.calls("--sync")]
        new = [os.path.join(base, file) for base, _, files in os.walk(self.folder) for file in files]
        renames = [i for i, (name, _) in enumerate(names) if name in ("rename", "renameat2")]
        syncs = [i for i, (name, _) in enumerate(names) if name == "fsync"]
        assert renames and syncs, names
        files = [i for i in syncs if names[i][1] != self.folder]
        folders = {os.path.dirname(path) for path in new} - {self.folder}
        assert len(files) == len(new) + len(folders), f"{len(files)} fsyncs for {len(new)} files in {len(folders)} folders: {names}"
        assert max(files) < min(renames), names
        assert max(syncs) > max(renames) and names[max(syncs)][1] == self.folder, names

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


def check_changed_source(run, cbk, suffix):
    """Another program writes into the source while it is read: a progress function stands still until it has."""
    source, target, script = run.path(f"source{suffix}"), run.path(f"target{suffix}"), run.path("change.lua")
    run.call("copy", os.path.join(run.folder, "inputs1", "in.pt"), source, "--overwrite")
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
    assert done.returncode == 1 and "changed it while it was read" in done.stderr and f"source{suffix}" in done.stderr, done
    assert not os.path.exists(target)


def make_inputs(run, seed):
    folder = run.path(f"inputs{seed}")
    os.mkdir(folder)
    rng = np.random.default_rng(seed)
    torch.save({f"h.{i}.weight": torch.tensor(rng.random((64, 80 * seed), dtype=np.float32)) for i in range(3)}, os.path.join(folder, "in.pt"))
    run.call("copy", os.path.join(folder, "in.pt"), os.path.join(folder, "in.h5"), "--h5-version", "flat")
    llama_folder(os.path.join(folder, "hf"), layers=1, hidden=32 * seed, vocabulary=100)
    run.call(*to_cerebras(folder, folder))
    return folder


def jobs(inputs):
    return {
        "copy to H5": lambda out: ["copy", f"{inputs}/in.pt", f"{out}/x.mdl"],
        "copy to torch": lambda out: ["copy", f"{inputs}/in.h5", f"{out}/x.pt"],
        "copy to safetensors": lambda out: ["copy", f"{inputs}/in.pt", f"{out}/x.safetensors"],
        "copy to shards": lambda out: ["copy", f"{inputs}/in.pt", f"{out}/x", "--format", "safetensors", "--shard-size", "50KB"],
        "convert": lambda out: to_cerebras(inputs, out),
        "convert to shards": lambda out: from_cerebras(inputs, out),
        "h5-to-tensorflow": lambda out: ["h5-to-tensorflow", f"{inputs}/in.h5", f"{out}/x.ckpt"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("filter", nargs="?", default="")
    options = parser.parse_args()
    top = tempfile.mkdtemp(prefix="cbk-faults-")
    run = Run(options.cbk, top)
    try:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", run.path("faults.so"), source, "-ldl"], check=True)
        new, earlier = make_inputs(run, 1), make_inputs(run, 2)
        sweeps = []
        for (name, job), old_job in zip(jobs(new).items(), jobs(earlier).values()):
            before = run.path(f"before {name}")
            os.mkdir(before)
            run.call(*old_job(before))
            sweeps.append(Sweep(run, name, lambda out, job=job: [*job(out), "--threads", "1"], before, new, {"overwrite": True, "look": digests}))
        before = run.path("before fix")
        os.mkdir(before)
        old_files.write(os.path.join(before, "k.mdl"), old_files.datasets())
        sweeps.append(Sweep(run, "fix in place", lambda out: ["fix-checkpoint-spec", f"{out}/k.mdl", "--fix_inplace", "--yes"], before,
                            run.path("none"), {"overwrite": False, "look": ByContent()}))
        sweeps = [sweep for sweep in sweeps if options.filter in sweep.name]
        for sweep in sweeps:
            if sweep.name != "fix in place":
                run.check(f"{sweep.name}: --sync", sweep.check_sync)
        for sweep in sweeps:
            if sweep.name == "h5-to-tensorflow":
                run.check(f"{sweep.name}: other data files", sweep.check_other_count)
        for suffix in (".safetensors", ".h5", ".pt"):
            run.check(f"a source that changes: {suffix}", lambda suffix=suffix: check_changed_source(run, options.cbk, suffix))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(run.check, sweep.name, sweep.sweep) for sweep in sweeps]:
                done.result()
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
