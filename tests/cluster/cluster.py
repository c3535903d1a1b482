#!/usr/bin/python3
"""cbk on two nodes of MPI and under a real Slurm, both on this machine (mpi-nodes.sh, slurm-here.sh): nodes, ranks and tasks that die at
random moments. Needs root.

Usage: cluster.py --cbk PATH [--seed N] [--kills N] [nodes] [slurm]
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "interop"))

import harness  # noqa: E402  pylint: disable=wrong-import-position
from cluster_interop import SCRIPT, same  # noqa: E402  pylint: disable=wrong-import-position

TIMEOUT = 4  # seconds without an answer of a rank
LONGEST = 60


class Site(harness.Run):
    def __init__(self, cbk, folder, rng):
        super().__init__(cbk, folder)
        self.rng = rng
        with open(self.path("make.lua"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        subprocess.run([self.cbk, "run", "make.lua", "wanted.safetensors"], cwd=folder, check=True, capture_output=True)

    def left(self, *known):
        return sorted(set(os.listdir(self.folder)) - {"make.lua", "wanted.safetensors", "nodes", "slurm", *known})

    def clear(self):
        for name in self.left():
            path = self.path(name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    # --- nodes of MPI

    def nodes(self, *words):
        return subprocess.run(["bash", os.path.join(HERE, "mpi-nodes.sh"), words[0], self.path("nodes"), *words[1:]],
                              capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout

    def start(self, ranks, *options):
        with open(self.path("nodes/output"), "w", encoding="utf-8") as output:  # a lost daemon of MPI would keep a pipe open
            return subprocess.Popen([self.path("nodes/mpirun"), "-n", str(ranks), "-x", f"CBK_TEAM_TIMEOUT={TIMEOUT}", self.cbk, "run",
                                     *options, "make.lua", "x.safetensors"], cwd=self.folder, stdout=output, stderr=subprocess.STDOUT,
                                    start_new_session=True)

    def ended(self, job):
        try:
            job.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            running = subprocess.run(["pgrep", "-fa", "make.lua|orted"], capture_output=True, text=True, check=False).stdout
            os.killpg(job.pid, signal.SIGKILL)
            raise AssertionError(f"it hangs for {LONGEST} s: {self.output()[-800:]}\n{running}") from None
        return self.output()

    def output(self):
        with open(self.path("nodes/output"), encoding="utf-8", errors="replace") as output:
            return output.read()

    def is_right(self):
        """The target is whole or not there, and nothing else is left once the last rank has ended."""
        deadline = time.monotonic() + 30
        while self.left("x.safetensors") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.left("x.safetensors") == [], self.left()
        if os.path.exists(self.path("x.safetensors")):
            same(self.path("wanted.safetensors"), self.path("x.safetensors"))

    def runs(self):
        self.clear()
        job = self.start(4)
        text = self.ended(job)
        assert job.returncode == 0, text
        self.is_right()
        assert os.path.exists(self.path("x.safetensors"))

    def ranks(self, node):
        return [pid for pid in self.nodes("pids", node).split() if name_of(pid) == "cbk"]

    def dies(self, how, times):
        for _ in range(times):
            self.clear()
            job = self.start(4)
            node = self.rng.choice(["node1", "node2"])
            while job.poll() is None and not self.ranks(node):  # a network that is lost earlier is a matter of mpirun alone
                time.sleep(0.02)
            time.sleep(self.rng.uniform(0, 1.5))
            ranks = self.ranks(node)
            if how == "network":
                self.nodes("down", node)
            elif ranks:
                os.kill(int(self.rng.choice(ranks)), how)
            try:
                text = self.ended(job)
            finally:
                if how == "network":
                    self.nodes("up", node)
            self.is_right()
            is_there = os.path.exists(self.path("x.safetensors"))  # also if a rank died when all was done
            assert is_there if job.returncode == 0 or "done" in text else True, text
        self.runs()

    def lost_at_end(self, times):
        """A node is lost when all work is done, and MPI or the launcher waits for it."""
        for _ in range(times):
            self.clear()
            job = self.start(4)
            while "done" not in self.output() and job.poll() is None:
                time.sleep(0.001)
            time.sleep(self.rng.uniform(0, 0.06))
            node = self.rng.choice(["node1", "node2"])
            self.nodes("down", node)
            try:
                self.ended(job)
            finally:
                self.nodes("up", node)
            self.is_right()
            assert os.path.exists(self.path("x.safetensors"))
        self.runs()

    def resumes(self, times):
        self.clear()
        for _ in range(times):
            job = self.start(self.rng.choice([2, 3, 4]), "--resume")
            time.sleep(self.rng.uniform(0.3, 2))
            ranks = self.ranks("node2")
            if ranks:
                os.kill(int(self.rng.choice(ranks)), signal.SIGKILL)
            self.ended(job)
        job = self.start(3, "--resume")
        text = self.ended(job)
        assert job.returncode == 0, text
        self.is_right()

    # --- Slurm

    def slurm(self, *words):
        environment = dict(os.environ, SLURM_CONF=self.path("slurm/slurm.conf"))
        return subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=True, timeout=400).stdout.strip()

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while self.slurm("squeue", "-h") and time.monotonic() < deadline:
            time.sleep(0.5)
        assert self.slurm("squeue", "-h") == "", self.slurm("squeue")

    def planned(self):
        self.clear()
        subprocess.run([self.cbk, "run", "--plan", "job", "make.lua", "x.safetensors"], cwd=self.folder, check=True, capture_output=True)

    def is_finished(self):
        same(self.path("wanted.safetensors"), self.path("x.safetensors"))
        assert not os.path.exists(self.path("job"))

    def array(self):
        """The three lines of `cbk help cluster`."""
        self.planned()
        number = self.slurm("sbatch", "--parsable", "--array=1-4", "--wrap", f"{self.cbk} work job")
        self.slurm("sbatch", f"--dependency=afterok:{number}", "--wrap", f"{self.cbk} finish job")
        self.wait(120)
        self.is_finished()

    def srun(self):
        self.planned()
        self.slurm("srun", "-n", "2", self.cbk, "work", "job")
        self.slurm("srun", "-n", "1", self.cbk, "finish", "job")
        self.is_finished()

    def team(self):
        """The tasks of a step are the ranks of a team."""
        self.clear()
        self.slurm("srun", "-N", "1", "-n", "2", "-O", "--mpi=pmix", self.cbk, "run", "make.lua", "x.safetensors")
        self.is_right()

    def requeued(self):
        """A task that is killed and runs again: Slurm waits two minutes before that."""
        self.planned()
        number = self.slurm("sbatch", "--parsable", "--requeue", "--array=1-2", "--wrap", f"{self.cbk} work job; sleep 10")
        while self.slurm("squeue", "-h", "-j", f"{number}_1", "-o", "%T") != "RUNNING":
            time.sleep(0.1)
        time.sleep(self.rng.uniform(0, 0.5))
        self.slurm("scontrol", "requeue", f"{number}_1")
        self.wait(300)
        self.slurm("srun", "-n", "1", self.cbk, "finish", "job")
        self.is_finished()

    def limited(self):
        """A task that is stopped and killed at its end, and is sent again."""
        self.planned()
        number = self.slurm("sbatch", "--parsable", "--array=1-2", "--wrap", f"{self.cbk} work job")
        time.sleep(self.rng.uniform(0.2, 1))
        self.slurm("scancel", "--signal=KILL", "--full", f"{number}_2")
        self.wait(60)
        self.slurm("sbatch", "--array=1-2", "--wrap", f"{self.cbk} work job")
        self.wait(60)
        self.slurm("srun", "-n", "1", self.cbk, "finish", "job")
        self.is_finished()


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def on_nodes(site, kills):
    site.nodes("start", "2")
    try:
        site.check("two nodes", site.runs)
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, "network"):
            site.check(f"{getattr(how, 'name', how)} on two nodes", lambda h=how: site.dies(h, kills))
        site.check("a node is lost at the end", lambda: site.lost_at_end(kills))
        site.check("two nodes resume", lambda: site.resumes(kills))
    finally:
        site.nodes("stop")


def under_slurm(site, is_long):
    script = ["bash", os.path.join(HERE, "slurm-here.sh")]
    started = subprocess.run([*script, "start", site.path("slurm"), "2"], capture_output=True, text=True, check=False, timeout=120)
    if started.returncode != 0:
        site.skip("Slurm", f"it does not start here: {started.stderr.strip()[-200:]}")
        return
    try:
        for name in ("array", "srun", "team", "limited") + (("requeued",) if is_long else ()):
            site.check(f"Slurm: {name}", getattr(site, name))
    finally:
        subprocess.run([*script, "stop", site.path("slurm")], capture_output=True, check=False, timeout=60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a daemon of Slurm may still write
        os.chmod(folder, 0o755)
        site = Site(args.cbk, folder, random.Random(args.seed))
        if "nodes" in args.what or not args.what:
            on_nodes(site, args.kills)
        if "slurm" in args.what or not args.what:
            under_slurm(site, args.kills > 1)
        return site.close()


if __name__ == "__main__":
    sys.exit(main())
