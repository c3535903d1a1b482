#!/usr/bin/python3
"""`kill -9` at 50 random moments of every command that writes: whatever is there afterwards is the old file or the new one, byte by
byte, and the next run makes the new one out of it. Moments are drawn from the time that the job takes; runs that end before they are
killed do not count.

Usage: kills_interop.py --cbk PATH [--seed N] [--kills N] [FILTER]
"""
import argparse
import concurrent.futures
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import torch

import upgrade_tools_interop as old_files
from streaming_interop import llama_folder
from tensorflow_interop import write_bundle

TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.(tmp|old)$")
passed, failed, counting = 0, 0, threading.Lock()


def check(name, ok, detail=""):
    global passed, failed
    with counting:
        passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {name}: {str(detail)[:600]}")


def digests(folder):
    """{path: digest} of all that can be seen: no data files of a bundle whose index is not there."""
    seen = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            prefix = re.match(r"(.*)\.data-\d{5}-of-\d{5}$", path)
            if any(TEMPORARY.search(part) for part in os.path.relpath(path, folder).split(os.sep)):
                continue
            if prefix and not os.path.exists(prefix.group(1) + ".index"):
                continue
            with open(path, "rb") as f:
                seen[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
    return seen


class ByContent:
    """As `digests`, but H5 files are what h5py sees in them: a file that is changed in place may have bytes behind its end."""

    def __init__(self):
        self.known = {}

    def __call__(self, folder):
        seen = digests(folder)
        for name, digest in seen.items():
            if digest not in self.known:
                self.known[digest] = str(old_files.content(os.path.join(folder, name)))
            seen[name] = self.known[digest]
        return seen


def units(seen):
    """What appears as one: a file, a folder of shards, a bundle. {unit: {path: digest}}"""
    out = {}
    for path, digest in seen.items():
        out.setdefault(re.sub(r"(/.*|\.index|\.data-[^/]*)$", "", path), {})[path] = digest
    return out


def is_whole(old, new, now):
    """All old or all new. Of several units that belong together, others than the first may be missing for a moment; so may a bundle, which is
    found by the last of its files. Never is an old one there beside a new one."""
    if now in (old, new):
        return True
    is_bundle = any(path.endswith(".index") for path in old)
    is_part = any(all(units(state).get(unit) == files for unit, files in units(now).items()) for state in (old, new))
    return is_part and (is_bundle or bool(now) and len(units(new)) > 1)


def storm(options, name, argv, folder, before, look=digests):
    """`argv` writes into `folder`; `before` holds what lies there at first."""
    rng = random.Random(f"{options.seed} {name}")

    def reset():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)

    def run():
        start = time.monotonic()
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return time.monotonic() - start, done

    reset()
    old = look(folder)
    seconds, done = run()
    new, names = look(folder), sorted(os.listdir(folder))
    check(f"{name}: it works", done.returncode == 0 and old != new, done.stderr)
    if done.returncode != 0:
        return
    for _ in range(2):
        reset()
        seconds = min(seconds, run()[0])

    killed, wrong, left, seen = 0, [], [], {"old": 0, "new": 0}
    reset()
    for _ in range(20 * options.kills):
        if killed == options.kills:
            break
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        error = process.communicate()[1]
        if process.returncode not in (0, -9):
            wrong.append(f"the next run ended with {process.returncode}: {error}")
            break
        killed += process.returncode == -9
        now = look(folder)
        if not is_whole(old, new, now):
            wrong.append(f"after {killed} kills: {sorted(now)}, of them old {sorted(name for name in now if now[name] == old.get(name))}")
        seen["new" if now == new else "old"] += 1
        left = max(left, [path for path in os.listdir(folder) if TEMPORARY.search(path)], key=len)
        if now != old or rng.random() < 0.5:  # else the next one finds what this one left
            reset()
    check(f"{name}: the old file or the new one", not wrong, wrong)
    check(f"{name}: {options.kills} kills", wrong or killed == options.kills, f"{killed} kills, {seen}")
    # Temporary names are there between the system calls of a commit, one for each new file and one for each old one but the first; the
    # next run removes them before it makes its own: they never pile up.
    check(f"{name}: no debris", len(left) < 2 * len(names), left)
    done = run()[1]
    check(f"{name}: the next run", done.returncode == 0 and look(folder) == new and sorted(os.listdir(folder)) == names,
          f"{done.returncode}, {sorted(os.listdir(folder))}: {done.stderr}")


# ------------------------------------------------------------------ inputs and commands

def make_inputs(cbk, folder, seed):
    """A pickle, a bundle, a flat H5 file, and a LLaMA model in both layouts."""
    def path(*names):
        return os.path.join(folder, *names)

    rng = np.random.default_rng(seed)
    os.mkdir(folder)
    torch.save({f"h.{i}.weight": torch.tensor(rng.random((256, 256), dtype=np.float32)) for i in range(6)}, path("in.pt"))
    write_bundle(path("in.ckpt"), {f"layer_{i}/kernel": rng.random((24, 24), dtype=np.float32) for i in range(20)})
    subprocess.run([cbk, "copy", path("in.pt"), path("in.h5"), "--h5-version", "flat"], check=True, capture_output=True)
    llama_folder(path("hf"), layers=2, hidden=64 * seed, vocabulary=500)
    subprocess.run([cbk, *to_cerebras(folder, folder)], check=True, capture_output=True)


def to_cerebras(inputs, out):
    return ["convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", os.path.join(inputs, "hf", "config.json"),
            os.path.join(inputs, "hf", "pytorch_model.bin"), "--output-dir", out]


def from_cerebras(inputs, out):
    return ["convert", "--model", "llama", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--config", os.path.join(inputs, "config_to_cs-2.4.yaml"),
            os.path.join(inputs, "pytorch_model_to_cs-2.4.mdl"), "--output-dir", out, "--hf-shard-size", "100KB"]


JOBS = {
    "copy to H5": lambda inputs, out: ["copy", f"{inputs}/in.pt", f"{out}/x.mdl"],
    "copy to shards": lambda inputs, out: ["copy", f"{inputs}/in.pt", f"{out}/x", "--format", "safetensors", "--shard-size", "600KB"],
    "convert": to_cerebras,
    "convert to shards": from_cerebras,
    "tensorflow-to-h5": lambda inputs, out: ["tensorflow-to-h5", f"{inputs}/in.ckpt", f"{out}/x.h5"],
    "h5-to-tensorflow": lambda inputs, out: ["h5-to-tensorflow", f"{inputs}/in.h5", f"{out}/x.ckpt"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("filter", nargs="?", default="")
    options = parser.parse_args()
    cbk = os.path.abspath(options.cbk)
    print(f"seed {options.seed}")
    top = tempfile.mkdtemp(prefix="cbk-kills-")

    def folder(name):
        path = os.path.join(top, name.replace("/", "_"))
        os.mkdir(path)
        return path

    try:
        storms, inputs, empty = [], [os.path.join(top, f"inputs{seed}") for seed in (1, 2)], folder("empty")
        for seed, path in enumerate(inputs, 1):
            make_inputs(cbk, path, seed)
        for style, more in (("superblock 0", {}), ("superblock 3", {"libver": "latest"})):
            before = folder(style)
            old_files.write(os.path.join(before, "k.mdl"), old_files.datasets(300), more)
            name = f"fix-checkpoint-spec --fix_inplace, {style}"
            out = folder(name)
            storms.append((name, [cbk, "fix-checkpoint-spec", os.path.join(out, "k.mdl"), "--fix_inplace", "--yes"], out, before, ByContent()))
        out = folder("fix-checkpoint-spec")
        storms.append(("fix-checkpoint-spec", [cbk, "fix-checkpoint-spec", os.path.join(out, "k.mdl")], out, before))
        for name, job in JOBS.items():
            out, earlier = folder(name), folder(f"earlier {name}")
            storms.append((name, [cbk, *job(inputs[0], out)], out, empty))
            subprocess.run([cbk, *job(inputs[1], earlier)], check=True, capture_output=True)
            name += " --overwrite"
            out = folder(name)
            storms.append((name, [cbk, *job(inputs[0], out), "--overwrite"], out, earlier))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = [pool.submit(storm, options, *each) for each in storms if options.filter in each[0]]
            for each in running:
                each.result()
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
