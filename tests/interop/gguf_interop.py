#!/usr/bin/python3
"""GGUF files, made here from the format's description: every type decoded by NumPy and by cbk, metadata, and files that lie.

Usage: gguf_interop.py --cbk PATH
"""
import argparse
import json
import os
import struct
import sys
import tempfile

import numpy as np

import harness
import safetensors_file

F32, F16, I8, I16, I32, I64, F64, BF16 = 0, 1, 24, 25, 26, 27, 28, 30


# --- the types of metadata

def text(value, order="<"):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack(order + "Q", len(data)) + data


SCALARS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
           "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}


def typed(kind, value, order="<"):
    """The number of a type, and the bytes of a value of it."""
    if kind == "str":
        return 8, text(value, order)
    if kind.startswith("["):
        inner = [typed(kind[1:], each, order) for each in value]
        number = inner[0][0] if inner else typed(kind[1:], [] if kind[1] == "[" else "" if kind[1:] == "str" else 0, order)[0]
        return 9, struct.pack(order + "IQ", number, len(value)) + b"".join(data for _, data in inner)
    number, code = SCALARS[kind]
    return number, struct.pack(order + code, value)


def file_of(tensors, values=(), version=3, order="<", alignment=32, counts=None):
    """tensors: name -> (type, shape as NumPy has it, bytes)."""
    counts = counts or (len(tensors), len(values))
    out = b"GGUF" + struct.pack(order + "IQQ", version, *counts)
    for key, kind, value in values:
        number, data = typed(kind, value, order)
        out += text(key, order) + struct.pack(order + "I", number) + data
    data = b""
    for name, (number, shape, content) in tensors.items():
        out += text(name, order) + struct.pack(order + "I", len(shape)) + struct.pack(f"{order}{len(shape)}Q", *reversed(shape))
        out += struct.pack(order + "IQ", number, len(data))
        data += content + b"\0" * (-len(content) % alignment)
    return out + b"\0" * (-len(out) % alignment) + data


# --- blocks: each function takes uint8 [blocks, bytes] and gives float32 [blocks, elements]

def half(blocks, at):
    return blocks[:, at:at + 2].copy().view("<f2").astype("f4")


def spread(data, shifts, mask):
    """Every shift of all bytes, one behind the other: [blocks, bytes] to [blocks, shifts * bytes]."""
    return np.concatenate([(data >> np.uint8(shift)) & np.uint8(mask) for shift in shifts], axis=1).astype("i4")


def halves(data, width, shifts, mask):
    """The same for each run of `width` bytes."""
    return np.concatenate([spread(data[:, at:at + width], shifts, mask) for at in range(0, data.shape[1], width)], axis=1)


def bits(data):
    return np.unpackbits(data, axis=1, bitorder="little").astype("i4")


def by_group(scales, size):
    return np.repeat(scales.astype("f4"), size, axis=1)


def q4_0(b):
    return half(b, 0) * (spread(b[:, 2:], (0, 4), 15) - 8).astype("f4")


def q4_1(b):
    return half(b, 0) * spread(b[:, 4:], (0, 4), 15).astype("f4") + half(b, 2)


def q5_0(b):
    return half(b, 0) * (spread(b[:, 6:], (0, 4), 15) + 16 * bits(b[:, 2:6]) - 16).astype("f4")


def q5_1(b):
    return half(b, 0) * (spread(b[:, 8:], (0, 4), 15) + 16 * bits(b[:, 4:8])).astype("f4") + half(b, 2)


def q8_0(b):
    return half(b, 0) * b[:, 2:].view("i1").astype("f4")


def q8_1(b):
    return half(b, 0) * b[:, 4:].view("i1").astype("f4")


def q2_k(b):
    numbers = halves(b[:, 16:80], 32, (0, 2, 4, 6), 3).astype("f4")
    scales, minima = half(b, 80) * (b[:, :16] & 15).astype("f4"), half(b, 82) * (b[:, :16] >> 4).astype("f4")
    return by_group(scales, 16) * numbers - by_group(minima, 16)


def q3_k(b):
    low = halves(b[:, 32:96], 32, (0, 2, 4, 6), 3)
    high = spread(b[:, :32], range(8), 1)
    scales = spread(b[:, 96:104], (0, 4), 15) | spread(b[:, 104:108], (0, 2, 4, 6), 3) << 4
    return by_group(half(b, 108) * (scales - 32).astype("f4"), 16) * (low - 4 * (1 - high)).astype("f4")


def scales_and_minima(packed):
    packed = packed.astype("i4")
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1).astype("f4"),
            np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1).astype("f4"))


def q4_k(b):
    scales, minima = scales_and_minima(b[:, 4:16])
    numbers = halves(b[:, 16:], 32, (0, 4), 15).astype("f4")
    return by_group(half(b, 0) * scales, 32) * numbers - by_group(half(b, 2) * minima, 32)


def q5_k(b):
    scales, minima = scales_and_minima(b[:, 4:16])
    numbers = (halves(b[:, 48:], 32, (0, 4), 15) + 16 * spread(b[:, 16:48], range(8), 1)).astype("f4")
    return by_group(half(b, 0) * scales, 32) * numbers - by_group(half(b, 2) * minima, 32)


def q6_k(b):
    numbers = halves(b[:, :128], 64, (0, 4), 15) + 16 * halves(b[:, 128:192], 32, (0, 2, 4, 6), 3) - 32
    return by_group(half(b, 208) * b[:, 192:208].view("i1").astype("f4"), 16) * numbers.astype("f4")


def q8_k(b):
    return b[:, :4].copy().view("<f4") * b[:, 4:260].view("i1").astype("f4")


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "f4")


def iq4_nl(b):
    return half(b, 0) * IQ4[spread(b[:, 2:], (0, 4), 15)]


def iq4_xs(b):
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype("i4")
    high = np.stack([b[:, 2:4] >> np.uint8(shift) & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 8).astype("i4")
    scales = half(b, 0) * ((low | high << 4) - 32).astype("f4")
    return by_group(scales, 32) * IQ4[halves(b[:, 8:], 16, (0, 4), 15)]


def digits(data, count):
    powers = np.array([1, 3, 9, 27, 81][:count])
    return np.concatenate([(data.astype("i4") * power % 256) * 3 // 256 for power in powers], axis=1)


def tq1_0(b):
    numbers = np.concatenate([digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)], axis=1)
    return half(b, 52) * (numbers - 1).astype("f4")


def tq2_0(b):
    return half(b, 64) * (halves(b[:, :64], 32, (0, 2, 4, 6), 3) - 1).astype("f4")


def mxfp4(b):
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "f8")
    values = np.concatenate([values, 0 - values])  # ggml has no negative zero
    return (np.ldexp(1.0, b[:, :1].astype("i4") - 127) * values[spread(b[:, 1:], (0, 4), 15)]).astype("f4")


def nvfp4(b):
    exponents, mantissas = (b[:, :4] >> 3 & 15).astype("i4"), (b[:, :4] & 7).astype("f8")
    scales = np.where(exponents == 0, np.ldexp(mantissas, -9), np.ldexp(1 + mantissas / 8, exponents - 7))
    scales = np.where(b[:, :4] == 0x7F, 0, scales)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "f8")
    values = np.concatenate([values, 0 - values])
    codes = np.concatenate([spread(b[:, 4 + 8 * i:12 + 8 * i], (0, 4), 15) for i in range(4)], axis=1)
    return (np.repeat(scales, 16, axis=1) * values[codes]).astype("f4")


def low_first(b, count):
    """Codes of some bits, the low bits first."""
    return np.stack([b >> shift & (2 ** count - 1) for shift in range(0, 8, count)], axis=2).reshape(len(b), -1).astype("f4")


def q1_0(b):
    return np.where(low_first(b[:, 2:], 1) == 1, half(b, 0), -half(b, 0))


def q2_0(b):
    return half(b, 0) * (low_first(b[:, 2:], 2) - 1)


QUANTISED = {
    "Q4_0": (2, 32, 18, q4_0), "Q4_1": (3, 32, 20, q4_1), "Q5_0": (6, 32, 22, q5_0), "Q5_1": (7, 32, 24, q5_1), "Q8_0": (8, 32, 34, q8_0),
    "Q8_1": (9, 32, 36, q8_1), "Q2_K": (10, 256, 84, q2_k), "Q3_K": (11, 256, 110, q3_k), "Q4_K": (12, 256, 144, q4_k),
    "Q5_K": (13, 256, 176, q5_k), "Q6_K": (14, 256, 210, q6_k), "Q8_K": (15, 256, 292, q8_k), "IQ4_NL": (20, 32, 18, iq4_nl),
    "IQ4_XS": (23, 256, 136, iq4_xs), "TQ1_0": (34, 256, 54, tq1_0), "TQ2_0": (35, 256, 66, tq2_0), "MXFP4": (39, 32, 17, mxfp4),
    "NVFP4": (40, 64, 36, nvfp4), "Q1_0": (41, 128, 18, q1_0), "Q2_0": (42, 64, 18, q2_0),
}
LISTED = {"IQ2_XXS": (16, 66), "IQ2_XS": (17, 74), "IQ3_XXS": (18, 98), "IQ1_S": (19, 50), "IQ3_S": (21, 110), "IQ2_S": (22, 82), "IQ1_M": (29, 56)}
PLAIN = {"F32": (F32, "f4"), "F16": (F16, "f2"), "I8": (I8, "i1"), "I16": (I16, "i2"), "I32": (I32, "i4"), "I64": (I64, "i8"), "F64": (F64, "f8")}


def same_bits(found, expected):
    """Equal bits, but for those of NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.shape, expected.shape, found.dtype, expected.dtype)
    is_nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), is_nan)
    unsigned = f"u{expected.dtype.itemsize}"
    different = (found.view(unsigned) != expected.view(unsigned)) & ~is_nan
    assert not different.any(), (np.argwhere(different)[:5], found[different][:5], expected[different][:5])


def save(run, name, content):
    path = run.path(name)
    with open(path, "wb") as f:
        f.write(content)
    return path


def all_types(run, rng):
    """Random blocks of every type; with any scales, and with those of usual size."""
    tensors, expected = {}, {}
    for name, (number, elements, size, decode) in QUANTISED.items():
        for kind in "any", "usual":
            blocks = rng.integers(0, 256, size=(2400, size), dtype="u1")
            if kind == "usual":  # the high byte of a scale decides on NaN and infinity
                for at in {"Q2_K": (81, 83), "Q3_K": (109,), "Q6_K": (209,), "Q8_K": (), "TQ1_0": (53,), "TQ2_0": (65,), "MXFP4": (), "NVFP4": ()}.get(name, (1, 3)):
                    blocks[:, at] &= 0xBB
            tensors[f"{name}.{kind}"] = (number, (60, 40 * elements), blocks.tobytes())
            with np.errstate(all="ignore"):
                expected[f"{name}.{kind}"] = decode(blocks).astype("f4").reshape(60, -1)
    for order in "<>":
        for name, (number, code) in PLAIN.items():
            array = rng.integers(-100, 100, size=(2, 3, 4)).astype(order + code)
            tensors[f"{name}.plain"] = (number, array.shape, array.tobytes())
            expected[f"{name}.plain"] = array.astype("<" + code)
        half_floats = rng.integers(0, 0x7F80, size=(5,)).astype(order + "u2")
        tensors["BF16.plain"] = (BF16, (5,), half_floats.tobytes())
        expected["BF16.plain"] = (half_floats.astype("<u4") << 16).view("<f4")
        chosen = {key: value for key, value in tensors.items() if order == "<" or key.endswith("plain")}
        path, out = save(run, "types.gguf", file_of(chosen, version=3, order=order)), run.path("types.npz")
        run.check(f"{order} opens", lambda path=path, out=out: run.call("export", path, *chosen, "-o", out, "--overwrite"))
        with np.load(out) as found:
            for key in chosen:
                run.check(f"{order} {key}", lambda key=key, found=found: same_bits(found[key], expected[key]))
    path = save(run, "types.gguf", file_of(tensors := {key: value for key, value in tensors.items() if not key.endswith("plain")}))
    listed = {entry["key"]: entry for entry in json.loads(run.call("ls", "--json", path))["entries"]}
    for key, (_, shape, content) in tensors.items():
        def check(key=key, shape=shape, content=content):
            entry = listed[key]
            assert (entry["encoding"], entry["shape"], entry["bytes"]) == (key.split(".")[0], list(shape), len(content)), entry
        run.check(f"ls {key}", check)
    run.check("copy and export agree", lambda: agree(run, path))
    run.check("blocks", lambda: raw_blocks(run, path, tensors))


def agree(run, path):
    run.call("copy", "-q", path, run.path("all.npz"), "--exclude", "metadata")
    run.call("copy", "-q", run.path("all.npz"), run.path("all.safetensors"))
    assert run.run("diff", run.path("types.gguf"), run.path("all.safetensors")).stdout.count("different") == 0


def raw_blocks(run, path, tensors):
    _, shape, content = tensors["Q6_K.any"]
    run.call("export", path, "Q6_K.any", "-o", run.path("blocks.npy"), "--raw")
    found = np.load(run.path("blocks.npy"))
    assert found.dtype == np.uint8 and found.shape == (shape[0], len(content) // shape[0]) and found.tobytes() == content


def listed_only(run):
    tensors = {name: (number, (2, 256), bytes(2 * size)) for name, (number, size) in LISTED.items()}
    tensors["strange"] = (99, (3,), b"abc")
    tensors["good"] = (F32, (2,), struct.pack("<2f", 1, 2))
    path = save(run, "listed.gguf", file_of(tensors))

    def check():
        done = run.run("ls", path)
        assert done.returncode == 0, done.stderr
        for name in LISTED:
            assert name in done.stdout and f"blocks of the type {name} cannot be decoded" in done.stderr, (name, done)
        assert "'strange': its type has the number 99, which is not known" in done.stderr, done.stderr
        assert run.call("export", path, "good", "-o", run.path("good.csv")) and open(run.path("good.csv"), encoding="utf-8").read() == "1\n2\n"
        assert run.run("copy", path, run.path("listed.npz"), "--exclude", "metadata").returncode == 1
    run.check("types that cannot be decoded", check)


def metadata(run):
    words = [f"word {i} ü" for i in range(50_000)]
    values = [("general.architecture", "str", "llama"), ("a.u8", "u8", 200), ("a.i8", "i8", -3), ("a.u16", "u16", 60000), ("a.i16", "i16", -300),
              ("a.u32", "u32", 4_000_000_000), ("a.i32", "i32", -7), ("a.u64", "u64", 2 ** 64 - 1), ("a.i64", "i64", -2 ** 62), ("a.f32", "f32", 0.5),
              ("a.f64", "f64", 1e300), ("a.yes", "bool", 1), ("a.none", "[u32", []), ("a.tags", "[str", ["x", "y"]), ("a.nested", "[[i16", [[1, 2], [], [3]]),
              ("tokenizer.ggml.tokens", "[str", words), ("tokenizer.ggml.scores", "[f32", [0.5] * 50_000), ("odd", "str", b"\xff\xfe")]
    expected = dict((key, value) for key, _, value in values)
    for version, order in (2, "<"), (3, "<"), (3, ">"):
        path = save(run, "meta.gguf", file_of({}, values, version, order))

        def check(path=path):
            script = save(run, "meta.lua", b"""local cbk = require "cbk"
local m = cbk.open(arg[1]).root.metadata
local out = cbk.dict()
for key, value in cbk.items(m) do
  if type(value) == "userdata" and cbk.kind(value) == "tensor" then value = cbk.list(value:tolist()) end
  out[key] = value
end
out["tokenizer.ggml.tokens"] = cbk.list(cbk.gguf.texts(m["tokenizer.ggml.tokens"]))
local nested = cbk.list()
for _, each in cbk.items(m["a.nested"]) do nested[#nested + 1] = cbk.list(each:tolist()) end
out["a.nested"], out.odd = nested, nil
print(cbk.json(out))""")
            found = json.loads(run.call("run", script, path))
            wanted = {key: value for key, value in expected.items() if key != "odd"}
            wanted["a.yes"] = True
            assert found == wanted, [(key, found.get(key), wanted[key]) for key in wanted if found.get(key) != wanted[key]][:1]
        run.check(f"metadata, version {version} {order}", check)
        run.check("a vocabulary is one row", lambda path=path: run.call("ls", path).index("50000 texts"))


def lies(run):
    good = {"w": (F32, (2, 4), bytes(32))}
    content = file_of(good, [("general.alignment", "u32", 64)], alignment=64)
    at = content.index(text("w")) + 9
    cases = {
        "version 1": (file_of(good, version=1), "version 1 of GGUF is not read; known are 2 and 3"),
        "cut data": (content[:-40], "tensor 'w': it should end at byte"),
        "cut header": (content[:60], "is the file cut short?"),
        "many tensors": (file_of(good, counts=(2 ** 60, 0)), "announces 1152921504606846976 tensors"),
        "many values": (file_of({}, counts=(0, 2 ** 63)), "metadata values"),
        "a long text": (content[:24] + struct.pack("<Q", 2 ** 63) + content[32:], "the header needs"),
        "a type of metadata": (file_of({}, [("k", "u8", 1)]).replace(text("k") + bytes(4), text("k") + b"\x63\0\0\0"), "99 is not a type"),
        "a bool": (file_of({}, [("k", "bool", 2)]), "a bool is 2"),
        "dims": (content[:at] + b"\x05" + content[at + 1:], "5 dims; 4 are allowed"),
        "an extent": (content[:at + 4] + b"\xff" * 8 + content[at + 12:], "an extent of"),
        "an overflow": (content[:at + 4] + struct.pack("<QQ", 2 ** 40, 2 ** 40) + content[at + 20:], "the number of elements"),
        "an offset": (content[:at + 24] + struct.pack("<Q", 7) + content[at + 32:], "no multiple of 64"),
        "a huge offset": (content[:at + 24] + struct.pack("<Q", 2 ** 64 - 64) + content[at + 32:], "tensor"),
        "half a block": (file_of({"w": (2, (2, 33), bytes(64))}), "no whole blocks of 32, as Q4_0"),
        "an alignment": (file_of(good, [("general.alignment", "u32", 48)]), "power of two"),
        "a name twice": (file_of({"w": good["w"], "v": good["w"]}).replace(text("v"), text("w")), "two values are named 'w'"),
        "a key twice": (file_of({}, [("k", "u8", 1), ("k", "u8", 1)]), "occurs twice"),
        "deep arrays": (file_of({}, [("k", "[" * 6 + "u8", [[[[[[1]]]]]])]), "nested deeper than 4"),
        "overlap": (file_of({"a": (F32, (16,), bytes(64)), "b": (F32, (16,), b"")}).replace(struct.pack("<QIQ", 16, 0, 64), struct.pack("<QIQ", 16, 0, 32)), "overlap"),
    }
    for name, (file, message) in cases.items():
        path = save(run, "lie.gguf", file)

        def check(path=path, message=message):
            done = run.run("ls", path)
            assert done.returncode == 1 and done.stderr.count("\n") == 1 and message in done.stderr, (done.returncode, done.stderr, done.stdout)
        run.check(name, check)


def rest(run):
    """Bytes that are in no tensor are a warning: between two, and behind the last one."""
    whole = file_of({"a": (F32, (8,), bytes(range(32))), "b": (F32, (8,), bytes(range(32)))})
    moved = whole[:-64].replace(struct.pack("<QIQ", 8, 0, 32), struct.pack("<QIQ", 8, 0, 96)) + whole[-64:-32] + bytes(64) + whole[-32:]
    for name, file, size in ("whole", whole, 0), ("a hole", moved, 64), ("bytes behind", whole + bytes(40), 40):
        path = save(run, "rest.gguf", file)

        def check(path=path, size=size):
            done = run.run("check", path)
            said = f"{size} B of the file are in no tensor" in done.stdout
            assert said == (size > 0) and done.returncode == (1 if size else 0), (done.returncode, done.stdout, done.stderr)
        run.check(name, check)


def in_parts(run):
    """A model in several files opens as its folder; what is missing, or said of it wrongly, is an error by name."""
    def made(name, numbers=(0, 1, 2), total=6, lost=()):
        folder = run.path(name)
        os.makedirs(folder, exist_ok=True)
        for i, number in enumerate(numbers):
            tensors = {f"t{2 * i + k}": (F32, (8,), bytes([2 * i + k] * 32)) for k in range(2)}
            if i not in lost:
                save(run, f"{name}/m-{i + 1:05}-of-00003.gguf", file_of(
                    tensors, [("split.no", "u16", number), ("split.count", "u16", 3), ("split.tensors.count", "i32", total)]))
        return folder

    def whole(folder):
        run.call("copy", folder, run.path("parts.safetensors"), "--exclude", "metadata", "--overwrite")
        found = safetensors_file.load(run.path("parts.safetensors"))[0]
        assert sorted(found) == [f"t{i}" for i in range(6)] and all(safetensors_file.raw(found[f"t{i}"]) == bytes([i] * 32) for i in range(6)), found
        done = run.run("ls", folder + "/m-00002-of-00003.gguf")
        assert done.returncode == 0 and "one of 3 files" in done.stderr and "open their folder" in done.stderr, done
    run.check("a model in parts", lambda: whole(made("parts")))
    for name, folder, words in (
            ("a lost part", made("lost", lost=(1,)), ["is in 3 files, and the folder has 2", "'m-00002-of-00003.gguf' is missing"]),
            ("parts with one number", made("equal", (0, 0, 2)), ["m-00002-of-00003.gguf", "file 0 of the model"]),
            ("other tensors than are said", made("fewer", total=7), ["has 7 tensors (split.tensors.count), and its files have 6"])):
        def check(folder=folder, words=words):
            done = run.run("copy", folder, run.path("x.safetensors"))
            assert done.returncode == 1 and all(word in done.stderr for word in words) and not os.path.exists(run.path("x.safetensors")), done
        run.check(name, check)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(parser.parse_args().cbk, folder)
        all_types(run, np.random.default_rng(1))
        listed_only(run)
        metadata(run)
        lies(run)
        rest(run)
        in_parts(run)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
