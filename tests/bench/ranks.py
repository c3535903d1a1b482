#!/usr/bin/python3
"""What a second rank gains, and what a journal costs: cbk with two ranks on a core each against one process.

    ranks.py CBK FOLDER [--gb 2] [--rounds 5] [--quiet MINUTES] [JOB…]

Each rank has one thread on one core, as has the one process beside it, so the ratio is that of two machines with one core. Plain copies are
also measured against one process that has both cores. Whole processes in turn, warm page cache, nothing to write back, memory touched
before each run (families.py says why). The start of `mpirun` is measured beside each run, and taken off in the second ratio. Ratios are
taken round by round; the tables have medians. The last ratio is the processor time of both ranks, without that of an empty job, to that of one
process. Others disturb it less: up to 1.25, two ranks can be 1.6 times as fast. "apart" is what the machine gives to two such processes that know
nothing of each other: each does every second matrix, on a core of its own. FOLDER gets about three times --gb. A run during which other processes used more than a tenth of a
core is measured again, for --quiet minutes in all; the last line says how many were, and how many such runs are in the tables.

Goals: transposing, casting and packing 1.6 times as fast with two ranks; copies at most 1.05 times as slow as one process; `--resume` below 1 %.
The last cannot be seen in few rounds where copies swing by more: the table says how much two copies without it differ.
"""
import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
FASTER, SLOWER, JOURNAL = 1.6, 1.05, 1.01
MOST_OTHERS = 0.1  # cores
# Matrices of 64 MiB with the values of weights.
MAKE = """
local cbk = require "cbk"
local out = cbk.create(arg[1])
for i = 1, tonumber(arg[2]) do out["w" .. i] = cbk.randn({ 4096, 4096 }, { seed = i, dtype = "float32" }) * 0.02 end
out:commit { progress = false }
"""
HERE = os.path.dirname(os.path.abspath(__file__))


def jobs(source, folder):
    """The words of each job without the target, the target's name, and the goal."""
    small = os.path.join(folder, "small.safetensors")
    return {
        "transpose": (["run", os.path.join(HERE, "turn.lua"), source], "t.safetensors", FASTER),
        "cast to bfloat16": (["copy", source, "--to-dtype", "bfloat16"], "t.safetensors", FASTER),
        "deflate": (["copy", small, "--compress", "deflate"], "t.mdl", FASTER),
        "zstd": (["copy", small, "--compress", "zstd"], "t.mdl", FASTER),
        "copy": (["copy", source], "t.safetensors", 1 / SLOWER),
    }


def busy():
    """Seconds that all cores were busy, and those of our processes that have ended."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), ours.ru_utime + ours.ru_stime


class Bench:
    def __init__(self, cbk, folder, gigabytes, minutes):
        self.cbk, self.folder = os.path.realpath(cbk), folder
        self.touched = int((gigabytes + 0.5) * 1e9)
        self.end = time.monotonic() + minutes * 60
        self.repeated = self.disturbed = self.runs = 0

    def fresh(self, source):
        """No outputs, nothing to write back, the source in the page cache, memory that a hypervisor has not taken back."""
        for name in os.listdir(self.folder):
            if name.startswith("t."):
                path = os.path.join(self.folder, name)
                (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
        os.sync()
        with open(source, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        subprocess.run([sys.executable, "-c", f"x = b'x' * {self.touched}"], check=True)

    def timed(self, *words):
        start = time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT, cwd=self.folder)
        return time.perf_counter() - start

    def apart(self, words, target):
        """Seconds until two processes, on a core each, have done every second matrix each."""
        start = time.perf_counter()
        both = [subprocess.Popen(["taskset", "-c", str(core), self.cbk, *(f"t.{core}-{target}" if word == target else word for word in words),
                                  "--include", f"w*[{digits}]"], stdout=subprocess.DEVNULL, env=ENVIRONMENT, cwd=self.folder)
                for core, digits in enumerate(("13579", "02468"))]
        if any([process.wait() for process in both]):
            raise SystemExit("ranks.py: one of two processes failed: " + " ".join(words))
        return time.perf_counter() - start

    def run(self, how, words, source, target="t.safetensors"):
        """Seconds, and processor time, of one process on one core ("one"), on all ("all"), of two ranks on a core each ("two"), or of two
        processes ("apart")."""
        prefix = {"one": ["taskset", "-c", "0"], "all": [], "two": ["mpirun", "-n", "2", "--bind-to", "core"], "apart": []}[how]
        self.runs += 1
        while True:
            self.fresh(source)
            all_before, ours_before = busy()
            seconds = self.apart(words, target) if how == "apart" else self.timed(*prefix, self.cbk, *words)
            all_after, ours_after = busy()
            others = (all_after - all_before - (ours_after - ours_before)) / seconds
            if others <= MOST_OTHERS:
                return seconds, ours_after - ours_before
            if time.monotonic() > self.end:
                self.disturbed += 1
                return seconds, ours_after - ours_before
            self.repeated += 1
            time.sleep(1)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def against_ranks(bench, name, job, rounds):
    words, target, goal = job
    source = next(word for word in words if word.endswith(".safetensors"))
    words = [*words[:2], target, *words[2:]] if words[0] == "copy" else [*words, target]
    ways = ("one", "two", "apart") if name != "copy" else ("one", "two", "apart", "all")
    times = {way: [] for way in (*ways, "start")}
    spent = {way: [] for way in times}
    for turn in range(rounds + 1):
        for way in ways:
            seconds, processor = bench.run(way, words, source, target)
            if turn > 0:  # the first one warms the caches
                times[way].append(seconds)
                spent[way].append(processor)
        if turn > 0:
            before = busy()[1]
            times["start"].append(bench.timed("mpirun", "-n", "2", "--bind-to", "core", bench.cbk, "-e", "1"))
            spent["start"].append(busy()[1] - before)
    apart = [one / both for one, both in zip(times["one"], times["apart"])]
    for base in ways:
        if base in ("two", "apart"):
            continue
        whole = [one / two for one, two in zip(times[base], times["two"])]
        inner = [one / (two - start) for one, two, start in zip(times[base], times["two"], times["start"])]
        processor = statistics.median((two - start) / one for one, two, start in zip(spent[base], spent["two"], spent["start"]))
        what = name if base == "one" else name + ", one process with all cores"
        met = "met" if statistics.median(whole) >= goal else "met without the start" if statistics.median(inner) >= goal else "missed"
        print(f"| {what} | {spread(times[base])} | {spread(times['two'])} | {statistics.median(times['start']):.2f} | {spread(whole)} | {spread(inner)} | "
              f"{spread(apart)} | {goal:.2f}: {met} | {processor:.2f} |", flush=True)


def journal(bench, source, rounds):
    """A copy with --resume against one without, and that against another one without."""
    times = {way: [] for way in ("without", "with", "again")}
    for turn in range(rounds + 1):
        order = list(times) if turn % 2 else list(times)[::-1]  # each is as often the first
        for way in order:
            seconds, _ = bench.run("all", ["copy", source, "t.safetensors", *(["--resume"] if way == "with" else [])], source)
            if turn > 0:
                times[way].append(seconds)
    cost = [a / b for a, b in zip(times["with"], times["without"])]
    noise = [a / b for a, b in zip(times["again"], times["without"])]
    print(f"\n`--resume`: {spread(times['with'])} s, without {spread(times['without'])} s; ratio {statistics.median(cost):.3f} "
          f"({min(cost):.3f} to {max(cost):.3f}), goal {JOURNAL}; of two copies without {statistics.median(noise):.3f} ({min(noise):.3f} to {max(noise):.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cbk")
    parser.add_argument("folder")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="those with this in their names; journal is one")
    parser.add_argument("--gb", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=0, metavar="MINUTES", help="repeat runs that others disturbed, for so long (default: 0)")
    arguments = parser.parse_intermixed_args()
    os.makedirs(arguments.folder, exist_ok=True)
    folder = os.path.realpath(arguments.folder)
    bench = Bench(arguments.cbk, folder, arguments.gb, arguments.quiet)
    source, script = os.path.join(folder, "source.safetensors"), os.path.join(folder, "make.lua")
    with open(script, "w", encoding="utf-8") as file:
        file.write(MAKE)
    for path, share in ((source, 1), (os.path.join(folder, "small.safetensors"), 4)):  # packing takes ten times as long
        if not os.path.exists(path):
            bench.timed(bench.cbk, "run", script, path, str(max(2, round(arguments.gb * 1e9 / share / (1 << 26)))))
    wanted = arguments.jobs or [""]
    print("| job | one process, s | two ranks, s | start, s | times as fast | without the start | apart | goal | processor time |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, job in jobs(source, folder).items():
        if any(text in name for text in wanted):
            against_ranks(bench, name, job, arguments.rounds)
    if any(text in "journal" for text in wanted):
        journal(bench, source, arguments.rounds)
    print(f"\n{bench.runs} runs; {bench.repeated} were repeated, and others used more than {MOST_OTHERS} cores in {bench.disturbed} of these runs")


if __name__ == "__main__":
    main()
