#!/usr/bin/python3
"""How fast a checkpoint is looked into, compared and packed: cbk against `cat` or `cp` of the same bytes, and against h5py and NumPy.

    exploring.py CBK FOLDER [--gb 4] [--rounds 3] [--no-peers] [JOB...]

Whole processes in turn, warm page cache; ratios are taken round by round, the table has medians. Peers run once: they take minutes.
The peak is of anonymous memory. Goals: `stats` 1.5 times `cat`, `diff` 1.5 times reading both files, peaks of at most 100 MB.
"""
import argparse
import os
import statistics
import subprocess
import sys
import threading
import time

import h5py
import numpy as np

PEERS = {
    "stats": """
for name in f:
    a = f[name][()]
    a.min(), a.max(), a.mean(dtype='f8'), a.std(dtype='f8'), np.linalg.norm(a.ravel()), np.isnan(a).sum(), np.isinf(a).sum(), (a == 0).sum()
""",
    "diff": """
g = h5py.File(sys.argv[2])
for name in f:
    a, b = f[name][()], g[name][()]
    np.abs(a - b).max()
""",
    "pack": """
with h5py.File(sys.argv[2], 'w') as g:
    for name in f:
        g.create_dataset(name, data=f[name][()], compression='gzip', compression_opts=4, shuffle=True)
""",
    "read": """
for name in f:
    f[name][()].max()
""",
}


def peer(what, *paths):
    return [sys.executable, "-c", "import sys, h5py, numpy as np\nf = h5py.File(sys.argv[1])\n" + PEERS[what], *paths]


def make(path, gigabytes, seed=1, **options):
    """Matrices like weights: normal numbers, 64 MiB each."""
    block = (np.random.default_rng(seed).standard_normal(1 << 24) * 0.02).astype("f4").reshape(4096, 4096)
    with h5py.File(path, "w", libver="latest" if options else None) as f:
        for i in range(max(1, round(gigabytes * 1e9 / block.nbytes))):
            f.create_dataset(f"w{i}", data=np.roll(block, i), **options)


def timed(command):
    """seconds, and the peak of anonymous memory in MB"""
    peak = 0
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def watch():
        nonlocal peak
        while process.poll() is None:
            try:
                lines = open(f"/proc/{process.pid}/status").read()
                peak = max(peak, int(lines.split("RssAnon:")[1].split()[0]) / 1000)
            except (OSError, IndexError):
                pass
            time.sleep(0.02)
    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    watcher.join()
    if code not in (0, 1):
        sys.exit(f"{command[:3]}: exit status {code}")
    return seconds, peak


def jobs(cbk, a, b, other, out):
    """name: (base, command, peer)"""
    cat, both, cp = ["cat", a], ["cat", a, b], ["cp", a, out]
    table = {
        "stats": (cat, [cbk, "stats", a], peer("stats", a)),
        "stats --json (quantiles, histograms)": (cat, [cbk, "stats", "--json", a], None),
        "check": (cat, [cbk, "check", a], None),
        "check --for float16": (cat, [cbk, "check", a, "--for", "float16"], None),
        "diff of equal files": (both, [cbk, "diff", a, b], None),
        "diff, every element differs": (["cat", a, other], [cbk, "diff", a, other], peer("diff", a, other)),
    }
    for how in ("deflate", "lz4", "zstd"):
        command = [cbk, "copy", a, out, "--h5-version", "flat", "--compress", how, "--overwrite"]
        table[f"copy --compress {how}"] = (cp, command, peer("pack", a, out) if how == "deflate" else None)
    return table


def library_jobs(cbk, folder, gigabytes):
    """What the HDF5 library reads in the child process: against h5py, which reads it in its own."""
    table = {}
    for name, options in {"extensible array": {"chunks": (512, 512), "maxshape": (None, 4096)}, "szip": {"compression": "szip"}}.items():
        path = os.path.join(folder, f"{name.split()[0]}.h5")
        make(path, gigabytes / 4, **options)
        table[f"stats of {name} (a quarter)"] = (["cat", path], [cbk, "stats", path], peer("read", path))
    return table


def row(name, base, command, other, rounds):
    ratios, seconds, peaks = [], [], []
    for _ in range(rounds):
        least = timed(base)[0]
        spent, peak = timed(command)
        ratios.append(spent / least)
        seconds.append(spent)
        peaks.append(peak)
    theirs = f"{timed(other)[0]:.1f} s" if other else ""
    print(f"| {name} | `{base[0]}` of {'both' if len(base) > 2 and base[0] == 'cat' else 'it'} | {statistics.median(seconds):.2f} s | "
          f"**{statistics.median(ratios):.2f}** | {max(peaks):.0f} MB | {theirs} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cbk")
    parser.add_argument("folder")
    parser.add_argument("job", nargs="*", help="the beginning of a job's name (default: all)")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_intermixed_args()
    a, b, other, out = (os.path.join(args.folder, name) for name in ("a.h5", "b.h5", "other.h5", "out.h5"))
    make(a, args.gb)
    make(other, args.gb, seed=2)
    subprocess.run(["cp", a, b], check=True)
    table = {**jobs(args.cbk, a, b, other, out), **library_jobs(args.cbk, args.folder, args.gb)}
    print("| job | base | cbk | ÷ base | peak | h5py, NumPy |\n|---|---|---|---|---|---|")
    for name, (base, command, other) in table.items():
        if not args.job or any(name.startswith(job) for job in args.job):
            row(name, base, command, None if args.no_peers else other, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
