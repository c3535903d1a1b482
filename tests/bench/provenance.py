#!/usr/bin/python3
"""What digests cost: `cbk copy --provenance` against `cbk copy`, to H5 and to safetensors.

    provenance.py CBK SOURCE FOLDER [--rounds 5]

Both in turn, with all in the page cache, with a source that is not in it (as root), and until all is on the disk; memory is touched before each
run (families.py says why). Ratios are taken round by round; the table has medians. FOLDER gets a copy of SOURCE. The goal is 1.3 times the copy.
"""
import argparse
import os
import statistics
import subprocess
import time

from ranks import Bench, spread


def seconds(bench, source, words, is_cold, is_synced):
    bench.fresh(source)
    if is_cold:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if is_synced:
        os.sync()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cbk")
    parser.add_argument("source")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    bench = Bench(args.cbk, args.folder, os.path.getsize(args.source) / 1e9, 0)
    print("| copy to | how | copy, s | with digests, s | ratio |\n|---|---|---|---|---|")
    for suffix in ("mdl", "safetensors"):
        words = [args.cbk, "copy", args.source, os.path.join(args.folder, "t." + suffix)]
        for how, is_cold, is_synced in (("page cache", False, False), ("source not in it", True, False), ("until on the disk", False, True)):
            rows = [[seconds(bench, args.source, [*words, *options], is_cold, is_synced) for options in ([], ["--provenance"])]
                    for _ in range(args.rounds)]
            plain, whole = zip(*rows)
            print(f"| {suffix} | {how} | {statistics.median(plain):.2f} | {statistics.median(whole):.2f} | "
                  f"{spread([b / a for a, b in rows])} |", flush=True)


if __name__ == "__main__":
    main()
