#!/usr/bin/python3
"""Statistics, differences and lost values of random tensors of every dtype, against NumPy and exact fractions.

Usage: numbers_interop.py --cbk PATH
"""
import argparse
import fractions
import json
import math
import struct
import sys
import tempfile

import numpy as np
import torch

import harness

DTYPES = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32, "I32": np.int32,
          "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64}
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (3, 5), (60, 90)]


def save(path, tensors):
    """A safetensors file of {name: (dtype, array)}."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def random_array(rng, dtype, shape, kind):
    """Any bits, a narrow range far from 0, or the ends of the range."""
    count = math.prod(shape)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if kind == "bits":
        return np.frombuffer(rng.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    info = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    if kind == "ends":
        ends = [info.min, info.max, 0] + ([info.smallest_subnormal, -0.0] if hasattr(info, "tiny") else [])
        return np.array([ends[i] for i in rng.integers(0, len(ends), count)], dtype).reshape(shape)
    low = int(info.max) - 9 if isinstance(info, np.iinfo) else 1000
    return np.array([low + int(i) for i in rng.integers(0, 9, count)], dtype).reshape(shape)


def close(found, expected, ulps, what):
    assert abs(found - expected) <= ulps * math.ulp(expected), f"{what}: {found!r}, not {expected!r}"


def check_statistics(stats, array):
    """Against exact fractions; NumPy has the last word where its own sums are exact enough."""
    flat = array.reshape(-1)
    is_float = np.issubdtype(array.dtype, np.floating)
    nan, inf = (int(np.isnan(flat).sum()), int(np.isinf(flat).sum())) if is_float else (0, 0)
    finite = flat[np.isfinite(flat)] if is_float else flat
    assert (stats["numel"], stats["nan"], stats["inf"]) == (flat.size, nan, inf), stats
    assert stats["zeros"] == int((flat == 0).sum()), stats
    if finite.size == 0:
        assert [stats[name] for name in ("min", "max", "mean", "std")] == [None] * 4, stats
        return
    numbers = [float(x) if is_float else int(x) for x in finite.tolist()]
    for name, expected in (("min", min(numbers)), ("max", max(numbers))):
        is_text = not is_float and abs(expected) >= 2**53
        assert stats[name] == (str(expected) if is_text else expected), f"{name}: {stats[name]!r}, not {expected!r}"
    exact = [fractions.Fraction(x) for x in numbers]
    mean = sum(exact) / len(exact)
    scale = max(abs(x) for x in exact)  # what cancels is as exact as the largest number
    assert abs(fractions.Fraction(stats["mean"]) - mean) <= scale / 2**52 + fractions.Fraction(1, 2**1075), (stats["mean"], float(mean))
    variance = sum((x - mean) ** 2 for x in exact) / len(exact)
    if variance == 0:
        assert stats["std"] == 0, stats["std"]
    else:
        power = max(variance.numerator.bit_length() - variance.denominator.bit_length() - 100, -4000) // 2 * 2
        std = math.sqrt(variance / fractions.Fraction(2) ** power) * 2.0 ** (power // 2)
        close(stats["std"], std, 8, "std")
    if is_float and array.dtype != np.float64 and finite.size < 10000:
        assert np.isclose(stats["std"], np.std(finite.astype(np.float64)), rtol=1e-9, atol=0), stats["std"]


def statistics(run, rng):
    for kind in ("bits", "narrow", "ends"):
        tensors = {}
        for name, dtype in DTYPES.items():
            for shape in SHAPES if kind == "bits" else SHAPES[3:6]:
                tensors[f"{name}.{'x'.join(map(str, shape))}"] = (name, random_array(rng, dtype, shape, kind))
        path = run.path(kind + ".safetensors")
        save(path, tensors)
        shown = {}
        run.check(f"show {kind}", lambda: shown.update((e["key"], e["stats"]) for e in json.loads(run.call("show", "--json", path, "*"))))
        spread = {}
        quantiles = ",".join(map(str, SHARES))
        run.check(f"stats {kind}", lambda: spread.update(
            (e["key"], e) for e in json.loads(run.call("stats", "--json", "--quantiles", quantiles, path))["tensors"]))
        for name, (_, array) in tensors.items():
            run.check(f"{kind} {name}", lambda: check_statistics(shown[name], array))
            run.check(f"stats {kind} {name}", lambda: (check_statistics(spread[name], array), check_spread(spread[name], array)))


SHARES = [0, 0.01, 0.5, 0.99, 1]
LEAST_NORMAL = {np.float16: 2.0**-14, np.float32: 2.0**-126, np.float64: 2.0**-1022}


def check_spread(entry, array):
    """What `stats` has beside `show`: the norm, subnormal numbers, quantiles, and a histogram whose counts are exact for its edges."""
    flat = array.reshape(-1)
    is_float = np.issubdtype(array.dtype, np.floating)
    finite = flat[np.isfinite(flat)] if is_float else flat
    histogram = entry["histogram"]
    if finite.size == 0:
        assert entry["norm"] is None and set(entry["quantiles"].values()) == {None} and histogram == {"edges": [], "counts": []}, entry
        return
    numbers = [float(x) if is_float else int(x) for x in finite.tolist()]
    squares = sum(fractions.Fraction(x) ** 2 for x in numbers)
    power = max(squares.numerator.bit_length() - squares.denominator.bit_length() - 100, -4000) // 2 * 2 if squares else 0
    norm = math.sqrt(squares / fractions.Fraction(2) ** power) * 2.0 ** (power // 2)
    if math.isinf(norm):
        assert entry["norm"] == "inf", entry["norm"]
    else:
        close(entry["norm"], norm, 8, "norm")
    if is_float:
        assert entry["subnormal"] == sum(0 < abs(x) < LEAST_NORMAL[array.dtype.type] for x in numbers), entry
    ordered = sorted(float(x) for x in numbers)
    for share, found in entry["quantiles"].items():
        place = float(share) * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[min(math.floor(place) + 1, len(ordered) - 1)]
        is_counted = is_float and flat.size > 4096 and array.dtype.itemsize > 2
        width = 2.0**-7 if is_counted else 2.0**-50
        least = 2.0**-133 if is_counted else 0  # the width of the ranges of subnormal numbers
        assert low - abs(low) * width - least <= found <= high + abs(high) * width + least or (
            array.dtype == np.float64 and flat.size > 4096 and abs(found) > 3e38), (share, found, low, high)
    edges, counts = histogram["edges"], histogram["counts"]
    assert sum(counts) == finite.size and edges[0] == ordered[0] and edges[-1] == ordered[-1], histogram
    if len(edges) > 2 or edges[0] < edges[-1]:
        assert sorted(set(edges)) == edges, edges
        assert [int(n) for n in np.histogram(np.array(ordered), edges)[0]] == counts, (edges, counts)


def differences(run, rng):
    for dtype in ("I8", "U8", "I32", "I64", "U64"):
        left, right = (random_array(rng, DTYPES[dtype], (50,), "bits") for _ in range(2))
        paths = run.path(dtype + "a.safetensors"), run.path(dtype + "b.safetensors")
        for path, array in zip(paths, (left, right)):
            save(path, {"w": (dtype, array)})

        def check():
            entry = json.loads(run.run("diff", "--json", *paths).stdout)["different"][0]
            expected = max(abs(int(a) - int(b)) for a, b in zip(left, right))
            assert int(entry["max_abs"]) == expected and entry["different"] == int((left != right).sum()), entry
        run.check(f"diff {dtype}", check)


# Of every dtype the most extreme elements; of those that NumPy does not know, the bits.
EXTREMES = {
    "BOOL": [False, True], "U8": [0, 255], "I8": [-128, 127], "U16": [0, 2**16 - 1], "I16": [-2**15, 2**15 - 1], "U32": [0, 2**32 - 1],
    "I32": [-2**31, 2**31 - 1], "U64": [0, 2**64 - 1, 2**53 + 1], "I64": [-2**63, 2**63 - 1, 2**53 + 1],
    "F64": [1.7976931348623157e308, 5e-324, -0.0, math.inf, -math.inf, math.nan, 1e100], "F32": [3.4e38, 1e-45, -0.0, math.inf, -math.inf, math.nan],
    "F16": [65504, 6e-8, -0.0, -math.inf, math.nan], "BF16": [0x7f7f, 1, 0x8000, 0x7f80, 0xff80, 0x7fc0],
    "F8_E4M3": [0x7e, 1, 0x80, 0x7f], "F8_E5M2": [0x7b, 1, 0x80, 0x7c, 0xfc, 0x7f],
    "C64": [complex(3.4e38, -1e-45), complex(math.inf, math.nan), complex(-0.0, 1)],
    "C128": [complex(1.7e308, -5e-324), complex(-math.inf, math.nan), complex(2**53 + 2, -0.0), 1e100j],
}
RAW = {"BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "C64": np.complex64, "C128": np.complex128}
LACKING = {"a.safetensors": ("C128",), "0.4": ("F8_E4M3", "F8_E5M2"), "flat": ("F8_E4M3", "F8_E5M2"), "tensorflow": (),
           "0.5": ("F8_E4M3", "F8_E5M2", "C128", "C64", "I8", "U16", "U32", "U64")}
ODD_SHAPES = [(), (0,), (2**58, 0), (0, 2**58), (1,) * 30, (3, 0, 2)]


def extremes_of(name):
    """{key: array}: each extreme element alone, all of them, and the first one in odd shapes."""
    every = np.array(EXTREMES[name], {**DTYPES, **RAW}[name])
    arrays = {f"element.{i}": every[i:i + 1] for i in range(len(every))}
    arrays["every"] = every
    for shape in ODD_SHAPES:
        arrays["shape." + "x".join(map(str, shape))] = np.empty(shape, every.dtype) if 0 in shape else every[:1].reshape(shape)
    return arrays


def save_as(run, name, stem, arrays):
    """The arrays in a file; safetensors has no complex128."""
    if name == "C128":
        path = run.path(stem + ".pt")
        torch.save({key: torch.from_numpy(array.copy()) for key, array in arrays.items()}, path)
    else:
        path = run.path(stem + ".safetensors")
        save(path, {key: (name, array) for key, array in arrays.items()})
    return path


def contents(path):
    """{key: (shape, bytes)}."""
    if path.endswith(".pt"):
        return {key: (list(tensor.shape), tensor.numpy().tobytes()) for key, tensor in torch.load(path).items()}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {key: (entry["shape"], data[slice(*entry["data_offsets"])]) for key, entry in header.items() if key != "__metadata__"}


def extremes(run):
    """Every command that prints or copies numbers takes any of them, in any shape, and keeps its bits."""
    script = run.path("print.lua")
    with open(script, "w", encoding="ascii") as file:
        file.write("local cbk = require 'cbk'\n"
                   "for key, t in cbk.open(arg[1]):tensors() do print(key, t, t:tolist(), t:compare(t).different) end\n")
    for name in EXTREMES:
        arrays = extremes_of(name)
        source = save_as(run, name, name, arrays)

        def printed():
            for words in (["ls"], ["ls", "--flat"], ["ls", "--all"], ["show", source, "*"], ["dump"], ["diff", source], ["diff", source, "--rtol", "1e-3"],
                          ["run", script, source]):
                run.call(words[0], source, *words[1:]) if words[0] in ("ls", "dump", "diff") else run.call(*words)
            for words in (["ls", "--json", source], ["show", "--json", source, "*"], ["diff", "--json", source, source]):
                json.loads(run.call(*words))
        run.check(f"{name}: printed", printed)

        def copied():
            back = run.path("back" + (".pt" if name == "C128" else ".safetensors"))
            for target, *more in (("a.pt",), ("a.mdl", "--h5-version", "0.4"), ("a.mdl", "--h5-version", "0.5"), ("a.h5", "--h5-version", "flat"),
                                  ("a.safetensors",), ("a.ckpt", "--format", "tensorflow")):
                done = run.run("copy", source, run.path(target), "--overwrite", *more)
                if name in LACKING.get(more[-1] if more else target, ()):
                    assert done.returncode == 1 and ("which H5 0.5 has no form for" in done.stderr or "no such dtype" in done.stderr
                                                     or "no type for" in done.stderr), (target, more, done)
                    continue
                assert done.returncode == 0, (target, more, done.stderr)
                run.call("copy", run.path(target), back, "--overwrite")
                found, expected = contents(back), contents(source)
                for key, value in expected.items():
                    assert found[key] == value, (target, more, key, found[key], value)
        run.check(f"{name}: copied", copied)

        def compared():
            first = arrays["every"].copy()
            first[0] = first[1]
            other = save_as(run, name, "other", {**arrays, "every": first})
            done = run.run("diff", "--json", source, other)
            entries = [(entry["key"], entry["different"]) for entry in json.loads(done.stdout)["different"]]
            assert done.returncode == 1 and entries == [("every", 1)], (done.stderr, entries)
        run.check(f"{name}: compared", compared)


def lost_values(run, rng):
    """Counts of `commit`, for any number of threads, against torch's casts."""
    bits = rng.bytes(4 * 100003)
    source = np.frombuffer(bits, np.float32)
    path = run.path("source.safetensors")
    save(path, {"w": ("F32", source)})
    script = run.path("cast.lua")
    with open(script, "w", encoding="ascii") as file:
        file.write("local cbk = require 'cbk'\n"
                   "local out = cbk.create(arg[2], { overwrite = true, root = cbk.dict { w = cbk.open(arg[1]).root.w:to(arg[3]) } })\n"
                   "local lost = out:commit({ allow_overflow = true, threads = tonumber(arg[4]), memory = '1MiB' }).lost[1]\n"
                   "lost = lost or { overflowed = 0, changed = 0, vanished = 0 }\n"
                   "print(lost.overflowed, lost.changed, lost.vanished)\n")
    tensor = torch.from_numpy(source.copy())
    for name in ("float16", "bfloat16", "int8", "int32", "int64", "uint8"):
        if "int" in name:
            info = np.iinfo(name)
            with np.errstate(invalid="ignore"):
                same = (np.trunc(source) == source) & (source >= info.min) & (source < float(info.max) + (1 if info.bits < 64 else 0))
            expected = [0, int((~same).sum()), 0]
        else:
            cast = tensor.to(getattr(torch, name))
            expected = [int((tensor.isfinite() & ~cast.isfinite()).sum()), 0, int(((tensor != 0) & (cast == 0)).sum())]

        def check():
            for threads in "1", "2", "5":
                found = run.call("run", script, path, run.path("out.pt"), name, threads).split()
                assert found == [str(x) for x in expected], (threads, found, expected)
        run.check(f"lost values in {name}", check)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        rng = np.random.default_rng(12)
        statistics(run, rng)
        differences(run, rng)
        lost_values(run, rng)
        extremes(run)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
