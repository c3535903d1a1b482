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
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (3, 5), (60, 50)]


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
        for name, (_, array) in tensors.items():
            run.check(f"{kind} {name}", lambda: check_statistics(shown[name], array))


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
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
