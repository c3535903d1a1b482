#!/usr/bin/python3
"""How a copy of a large model scales over ranks, by simulation: plans of cbk itself, replayed against a model of a file system.

    scale.py [--build build/release] [--models 70B,405B,1T,1T-experts] [--ranks 1,2,4,…,1024] [--systems NAME,…] [--transposed] [--one-file]
    scale.py --check FOLDER [--rounds 9]

`cbk_plan` (plan.cpp) makes the plans: with the host's own code it cuts the model's tensors into blocks, gives each rank its share, and
prints the ranges that each rank reads and writes, how long planning takes, and the memory that rank 0 needs to complete the output.

Model. Each rank goes through its ranges in their order, reading and writing at one rate (bytes of output per second). This rate is limited by
  the rank's copying    what one process copies in the page cache: `rank`
  its network           of the client, one rank each: `client`, bytes per second in each direction, and `client_iops`
  its connection        to one server: `pair`, times the servers that its range is striped over
  the servers           each has its part of `total` (bytes per second, reads and writes together) and of `total_iops`
A file is striped over as many servers as the layout says for each part of it, from a server on that is drawn by lot with a fixed seed. A server
that is asked for more than it can serve slows down all that ask it in proportion. A request moves `request` bytes at most; of a matrix that is transposed,
each row is a request of its own of whole pages. Read-ahead beyond that is not modelled.

The simulation goes from event to event: the end of a range, of which the rates change. Events are one if less than 1/4000 of the
whole time is between them, or 1/100 of the mean time of a range.

Locks. Before its first byte in an object (the part of a file on one server), a rank asks for a lock: one round trip, and another one to
recall it if the object has another writer. If two ranks write the same stripe, the second one waits until the first one's bytes are written.

Besides, one after the other: the start of the launcher; each rank plans and opens all files (`OPENS`, counted in a trace of system calls of
`cbk copy` of a folder of shards); rank 0 creates the files, gathers the records of all blocks, completes the output and renames it.

Units are bytes and seconds. Sources of the figures are beside them; what has none is called an assumption.

--check measures `cbk copy` with 1 and 2 ranks here, simulates both with what a loop of pread and pwrite measures here, and fails if they
differ by more than 15 %.
"""
import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

MOST = 0.15  # difference of simulated and measured seconds
LINEAR = 0.9  # efficiency that is called linear
OPENS = 5  # of one rank for each shard: three for the source, one for the target, one to see whether the source has changed
PAGE = 4096
TICKS = 4000
LEG = np.dtype([("rank", "u4"), ("file", "u4"), ("offset", "u8"), ("bytes", "u8"), ("run", "u8"), ("blocks", "u8")])
MPI = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")


@dataclasses.dataclass
class System:
    name: str
    total: float
    total_iops: float
    servers: int
    client: float
    client_iops: float
    pair: float
    layout: list  # (bytes of a file up to which, servers), ascending
    rank: float = 3e9  # assumption; RESULTS.md has 4 GB in 1.0 to 1.2 s, read and written by two threads
    stripe: int = 1 << 20
    request: int = 4 << 20  # assumption: max_pages_per_rpc is 1,024 pages in common setups
    lock: float = 200e-6  # a round trip; assumption
    opens: float = 1e5  # of all clients, a second; assumption
    open_trip: float = 500e-6  # of one client, one after the other; assumption: 2,000 a second
    launch: float = 1.0  # assumption: srun
    launch_rank: float = 2e-3  # assumption: a second or two for a thousand ranks


SYSTEMS = {
    # docs.nersc.gov/filesystems/perlmutter-scratch: 274 servers, "> 5 TB/s", 4 million IOPS of 4 KiB, and this layout for growing files.
    # docs.nersc.gov/systems/perlmutter/architecture: one Slingshot 11 adapter for each CPU node; it has 200 Gb/s.
    # That one connection fills the adapter is an assumption; so is half of it for one client.
    "perlmutter": System("Perlmutter scratch (NERSC)", 5e12, 4e6, 274, 12.5e9, 5e4, 12.5e9,
                         [(1e9, 1), (10e9, 8), (100e9, 24), (1e18, 72)]),
    # docs.aws.amazon.com/fsx/latest/LustreGuide, "SSD and HDD storage classes": PERSISTENT-1000 has 1,000 MB/s of disk for each TiB;
    # "Performance": 100 Gb/s for a client without EFA and 5 Gb/s of it to one server; storage targets of 1.2 TiB. 96 TiB are
    # our choice, and the layout is an assumption. "Hundreds of thousands" of IOPS: 3e5 is an assumption.
    "fsx": System("FSx for Lustre, 96 TiB at 1,000 MB/s each (AWS)", 96e9, 3e5, 80, 12.5e9, 5e4, 625e6,
                  [(100e6, 1), (10e9, 8), (100e9, 16), (1e18, 32)]),
}


# ------------------------------------------------------------------ plans
def plan(program, model, ranks, *options):
    """What cbk_plan says of the model, and its legs."""
    done = subprocess.run([program, model, str(ranks), "--legs", *options], capture_output=True, check=True)
    line, _, legs = done.stdout.partition(b"\n")
    return json.loads(line), np.frombuffer(legs, LEG)


# ------------------------------------------------------------------ the file system
def components(system):
    """(begin, end, servers) of the parts of a file."""
    begin = 0
    for end, servers in system.layout:
        yield begin, int(end), min(servers, system.servers)
        begin = int(end)


def cut(system, legs):
    """Legs that do not cross a part of the layout, with the first server of source and target, and the number of servers."""
    lots = np.random.default_rng(1)
    out = []
    for begin, end, servers in components(system):
        low = np.maximum(legs["offset"], begin)
        high = np.minimum(legs["offset"] + legs["bytes"], end)
        inside = high > low
        part = legs[inside]
        piece = np.zeros(len(part), [*LEG.descr, ("order", "u4"), ("source", "i4"), ("target", "i4"), ("servers", "i4")])
        for name in LEG.names:
            piece[name] = part[name]
        piece["offset"], piece["bytes"] = low[inside], (high - low)[inside]
        piece["order"] = np.nonzero(inside)[0]
        piece["servers"] = servers
        for side in "source", "target":
            piece[side] = lots.integers(system.servers, size=int(legs["file"].max()) + 1)[part["file"]]
        out.append(piece)
    pieces = np.concatenate(out)
    return pieces[np.lexsort((pieces["offset"], pieces["order"]))]


def lock_seconds(system, pieces):
    """Seconds that each piece waits for its locks, and the number of stripes with two writers."""
    objects = np.minimum(pieces["servers"], np.ceil(pieces["bytes"] / system.stripe) + 1)
    writers = {}
    for rank, file in set(zip(pieces["rank"].tolist(), pieces["file"].tolist())):
        writers[file] = writers.get(file, 0) + 1
    trips = np.array([1 if writers[file] == 1 else 2 for file in pieces["file"].tolist()])
    wait = objects * trips * system.lock
    follows = np.zeros(len(pieces), bool)
    follows[1:] = ((pieces["file"][1:] == pieces["file"][:-1]) & (pieces["rank"][1:] != pieces["rank"][:-1])
                   & (pieces["offset"][1:] % system.stripe != 0))
    wait[follows] += system.lock + system.stripe / min(system.pair, system.client, system.total / system.servers)
    return wait, int(follows.sum())


class Fill:
    """All ranks read and write their pieces."""

    def __init__(self, system, legs):
        self.system = system
        self.pieces = pieces = cut(system, legs)
        self.locks, self.shared = lock_seconds(system, pieces)
        size, run = pieces["bytes"].astype(float), pieces["run"].astype(float)
        # Bytes and requests that are read for each byte that is written.
        rows = run > 0
        self.read = np.ones(len(pieces))
        self.read[rows] = np.ceil(run[rows] / PAGE + 0.5) * PAGE / run[rows]
        requests = np.full(len(pieces), 1 / system.request)
        reads = requests.copy()
        reads[rows] = 1 / run[rows]
        self.requests = requests + reads
        servers = pieces["servers"]
        caps = np.stack([np.full(len(pieces), system.rank), system.client / self.read, servers * system.pair / self.read,
                         system.client_iops / self.requests])
        self.kind, self.cap = caps.argmin(0), caps.min(0)
        self.size = size
        offsets = np.arange(servers.max())
        self.inside = offsets < servers[:, None]
        self.source = (pieces["source"][:, None] + offsets) % system.servers
        self.target = (pieces["target"][:, None] + offsets) % system.servers

    KINDS = ["each rank's copying", "the clients' network", "the connection to one server", "the clients' IOPS", "the servers' bandwidth",
             "the servers' IOPS", "locks"]

    def rates(self, at):
        """Bytes a second of the pieces `at`, and what limits each: an index of KINDS."""
        system, cap, inside = self.system, self.cap[at], self.inside[at]
        source, target = self.source[at], self.target[at]
        servers = self.pieces["servers"][at]
        requests, read = self.requests[at], self.read[at]
        limit, limit_iops = system.total / system.servers, system.total_iops / system.servers

        def load(read_part, write_part):
            out = np.zeros(system.servers)
            for places, part in ((source, read_part), (target, write_part)):
                out += np.bincount(places[inside], np.repeat(part / servers, servers), system.servers)
            return out
        rate = cap
        for turn in range(5):
            half = rate * requests / 2
            loads = load(rate * read, rate) / limit, load(half, half) / limit_iops
            worst = np.stack([np.maximum(*(np.where(inside, one[places], 0).max(1) for places in (source, target))) for one in loads])
            factor = worst.max(0)
            if turn < 4:  # what a server holds back is free for others at its other servers
                rate = np.minimum(cap, rate / np.maximum(factor, 1e-9))
        rate = rate / np.maximum(1, factor)
        return rate, np.where(rate < 0.999 * cap, 4 + worst.argmax(0), self.kind[at])

    def run(self):
        """The seconds of each rank, and of all ranks together for each of KINDS."""
        ranks = self.pieces["rank"].astype(int)
        names, begins, counts = np.unique(ranks[np.argsort(ranks, kind="stable")], return_index=True, return_counts=True)
        order = np.argsort(ranks, kind="stable")
        position, last = begins.copy(), begins + counts
        current = order[position]
        left, wait = self.size[current].copy(), self.locks[current].copy()
        ends, spent, now = np.zeros(len(names)), np.zeros(len(self.KINDS)), 0.0
        tick = self.size.sum() / len(names) / self.cap.mean() / max(TICKS, 100 * counts.max())
        active = np.arange(len(names))
        while len(active):
            at = order[position[active]]
            rate, kind = self.rates(at)
            need = wait[active] + left[active] / rate
            step = max(need.min(), tick)
            waited = np.minimum(wait[active], step)
            spent[6] += waited.sum()
            spent += np.bincount(kind, np.minimum(step, need) - waited, len(spent))
            wait[active] -= waited
            left[active] -= (step - waited) * rate
            now += step
            for index in np.nonzero(left[active] <= 1e-3)[0]:
                rank = active[index]
                while left[rank] <= 1e-3 and position[rank] < last[rank]:
                    position[rank] += 1
                    if position[rank] < last[rank]:  # what was written beyond the end is of the next one
                        left[rank] += self.size[order[position[rank]]]
                        wait[rank] += self.locks[order[position[rank]]]
                if position[rank] == last[rank]:
                    ends[rank] = now + min(0, left[rank] / rate[index])
            active = active[position[active] < last[active]]
        return ends, spent


def simulate(system, facts, legs):
    """Seconds by what takes them, the balance (largest share divided by the mean) and the stripes with two writers."""
    ranks = facts["ranks"]
    fill = Fill(system, legs)
    ends, spent = fill.run()
    parts = {"the launcher": system.launch + system.launch_rank * ranks,
             "planning": facts["making_s"] + facts["planning_s"],
             "opening all files on every rank": max(OPENS * facts["files"] * system.open_trip, OPENS * facts["files"] * ranks / system.opens),
             "rank 0's layout and commit": facts["files"] * 2 * system.open_trip}
    if ranks > 1:
        parts["rank 0's layout and commit"] += facts["gathered_bytes"] / system.client + facts["completing_s"]
    # The last rank ends the filling; what holds up all ranks holds up this one.
    for name, share in zip(Fill.KINDS, spent / spent.sum()):
        parts[name] = parts.get(name, 0) + share * ends.max()
    shares = np.bincount(legs["rank"], legs["bytes"].astype(float), ranks)
    return parts, shares.max() / shares.mean(), fill.shared


# ------------------------------------------------------------------ tables
def table(system, model, counts, program, options):
    print(f"\n### {model} on {system.name}\n")
    print("| ranks | seconds | speed-up | efficiency | balance | shared stripes | planning | rank 0 | bottleneck |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for ranks in counts:
        facts, legs = plan(program, model, ranks, *options)
        parts, balance, shared = simulate(system, facts, legs)
        seconds = sum(parts.values())
        rows.append((ranks, seconds, parts))
        speedup = rows[0][1] * rows[0][0] / seconds
        print(f"| {ranks} | {seconds:.2f} | {speedup:.1f} | {speedup / ranks:.0%} | {balance:.3f} | {shared} | "
              f"{facts['making_s'] + facts['planning_s']:.2f} s | {facts['peak_mb']:.0f} MB | {max(parts, key=parts.get)} |", flush=True)
    after = next((i for i, row in enumerate(rows) if rows[0][1] * rows[0][0] / row[1] / row[0] < LINEAR), None)
    if after is None:
        print(f"\nLinear within {1 - LINEAR:.0%} up to {counts[-1]} ranks.")
        return
    ranks, seconds, parts = rows[after]
    # What the first row has, spread over all ranks; the rest is lost.
    lost = {name: value - rows[0][2].get(name, 0) * rows[0][0] / ranks for name, value in parts.items()}
    name = max(lost, key=lost.get)
    print(f"\nLinear within {1 - LINEAR:.0%} up to {rows[after - 1][0]} rank{'s' * (after > 1)}. With {ranks}, {name} takes {parts[name]:.2f} of {seconds:.2f} s, and would "
          f"take {parts[name] - lost[name]:.2f} s if it scaled.")


# ------------------------------------------------------------------ this machine
COPY = """
import os, sys
source, target, begin, end = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
piece = 256 << 10
a, b = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR)
buffer = memoryview(bytearray(piece))
print(flush=True)
input()
for at in range(begin, end, piece):
    part = buffer[:min(piece, end - at)]
    os.preadv(a, [part], at)
    os.pwritev(b, [part], at)
print(flush=True)
input()
"""


def copied(source, target, ranks):
    """Seconds in which processes copy a file into one whose blocks are reserved: a part for each rank. The threads of a rank take turns in
    the kernel, so that a rank copies as fast as one thread (ranks.py measures both)."""
    size = os.path.getsize(source)
    with open(target, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    bounds = [size * i // ranks for i in range(ranks + 1)]
    running = [subprocess.Popen([sys.executable, "-c", COPY, source, target, str(begin), str(end)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE)
               for begin, end in zip(bounds, bounds[1:])]
    for one in running:
        one.stdout.readline()
    start = time.perf_counter()
    for one in running:
        one.stdin.write(b"\n")
        one.stdin.flush()
    for one in running:
        one.stdout.readline()
    seconds = time.perf_counter() - start
    for one in running:
        one.communicate(b"\n")
    os.remove(target)
    return seconds


def command(cbk, ranks, *words):
    return [*(["mpirun", "-n", str(ranks), "--bind-to", "none"] if ranks > 1 else []), cbk, *words]


def timed(words):
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=MPI)
    return time.perf_counter() - start


def here(rank, total, launch):
    """One server, and ranks that do not wait for each other but for the memory; opening files takes no time that is worth counting."""
    total = 2 * max(rank, total)  # reads and writes, as fast as the faster of both
    return System("this machine", total, 1e12, 1, 1e12, 1e12, 1e12, [(1e18, 1)], rank=rank, lock=0, opens=1e9, open_trip=1e-5,
                  launch=launch, launch_rank=0)


def check(arguments):
    """Measures in turn, so that all see the same hours of a shared machine. What others do on it only adds to times, so the least of each
    are compared."""
    cbk, count, rows, columns = f"{arguments.build}/cbk", 24, 4096, 2048
    os.makedirs(arguments.check, exist_ok=True)
    source, target, script = (os.path.join(arguments.check, name) for name in ("source.safetensors", "target.safetensors", "make.lua"))
    if not os.path.exists(source):
        with open(script, "w", encoding="utf-8") as file:
            file.write('local cbk = require "cbk"\nlocal out = cbk.create(arg[1])\nfor i = 1, tonumber(arg[2]) do\n'
                       '  out["w" .. i] = cbk.randn({ tonumber(arg[3]), tonumber(arg[4]) }, { seed = i, dtype = "float32" })\nend\nout:commit()\n')
        timed([cbk, "run", script, source, str(count), str(rows), str(columns)])
    size = os.path.getsize(source)
    plans = {ranks: plan(f"{arguments.build}/tests/cbk_plan", f"{count}x{rows}x{columns}", ranks, "--shard", "0") for ranks in (1, 2)}

    def fresh():
        """No target, nothing to write back, the source in the page cache, and memory that a hypervisor has not taken back."""
        if os.path.exists(target):
            os.remove(target)
        os.sync()
        with open(source, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        subprocess.run([sys.executable, "-c", f"x = b'x' * {2 * size}"], check=True)
    times = {}
    for turn in range(arguments.rounds + 1):
        for ranks in 1, 2:
            fresh()
            loop = copied(source, target, ranks)
            fresh()
            copy = timed(command(cbk, ranks, "copy", source, target))
            launch = timed(command(cbk, ranks, "-e", "1"))
            if turn > 0:  # the first one warms the caches
                for name, seconds in (("loop", loop), ("copy", copy), ("launch", launch)):
                    times.setdefault((name, ranks), []).append(seconds)
    print(f"{size / 1e6:.0f} MB, {arguments.rounds} rounds in turn; seconds: medians (least to most)")
    for (name, ranks), values in times.items():
        print(f"  {name:6} {ranks}  {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    worst = 0
    for ranks, (facts, legs) in plans.items():
        one, two, launch, copy = (min(times[key]) for key in (("loop", 1), ("loop", 2), ("launch", ranks), ("copy", ranks)))
        parts, _, _ = simulate(here(size / one, size / two, launch), facts, legs)
        simulated = sum(parts.values())
        worst = max(worst, abs(simulated / copy - 1))
        print(f"{ranks} rank{'s' * (ranks > 1)}: simulated {simulated:.3f} s, measured {copy:.3f} s; ratio {simulated / copy:.3f}")
    if not arguments.keep:
        shutil.rmtree(arguments.check)
    if worst > MOST:
        sys.exit(f"simulated and measured seconds differ by {worst:.0%}; at most {MOST:.0%} are expected")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--models", default="70B,405B,1T,1T-experts")
    parser.add_argument("--ranks", default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--transposed", action="store_true", help="every second matrix is transposed")
    parser.add_argument("--one-file", action="store_true", help="one source and one target, instead of shards of 5 GB")
    parser.add_argument("--check", metavar="FOLDER", help="compare with measured copies; the folder gets 1.6 GB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", action="store_true", help="of --check: leave the folder")
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments)
    options = ["--transposed"] * arguments.transposed + ["--shard", "0"] * arguments.one_file
    counts = [int(count) for count in arguments.ranks.split(",")]
    for system in arguments.systems.split(","):
        for model in arguments.models.split(","):
            table(SYSTEMS[system], model, counts, f"{arguments.build}/tests/cbk_plan", options)


if __name__ == "__main__":
    main()
