#!/usr/bin/python3
"""`cbk infer` with checkpoints of other programs: PyTorch pickles, H5 by h5py, NumPy's npz, and safetensors written here. Layouts are
invented; what a converter makes of a larger model is compared with the same transformation in Python.

Usage: infer_interop.py --cbk PATH
"""
import argparse
import json
import struct
import sys
import tempfile

import h5py
import numpy as np
import torch

import harness

SMALL = {"layers": 2, "width": 32, "heads": 4, "keys": 2, "inner": 48, "words": 19, "experts": 3}
SAME = dict(SMALL, layers=5, inner=80, words=23)
LARGE = {"layers": 3, "width": 72, "heads": 6, "keys": 3, "inner": 56, "words": 29, "experts": 5}


def model(sizes, seed):
    """A decoder with grouped queries, in float32, by names of its own."""
    rng, out = np.random.default_rng(seed), {}

    def add(name, *shape):
        out[name] = rng.standard_normal(shape).astype("f4")
    width, head = sizes["width"], sizes["width"] // sizes["heads"]
    add("embed.weight", sizes["words"], width)
    for i in range(sizes["layers"]):
        at = f"blocks.{i}."
        add(at + "q", width, width)
        add(at + "k", sizes["keys"] * head, width)
        add(at + "v", sizes["keys"] * head, width)
        add(at + "out", width, width)
        add(at + "gate", sizes["inner"], width)
        add(at + "up", sizes["inner"], width)
        add(at + "down", width, sizes["inner"])
        add(at + "scale", width)
        out[at + "one"] = np.ones(width, "f4")
        for e in range(sizes["experts"]):
            add(f"{at}experts.{e}.w", width, 5)
    out["final.scale"] = np.zeros(width, "f4")
    return out


def pairs_of_rows(array, count):
    """Rotary rows of each head from two halves into pairs."""
    size = array.shape[0] // count
    return array.reshape(count, 2, size // 2, -1).swapaxes(1, 2).reshape(array.shape)


def renamed(given, sizes):
    """Other names, transposed matrices, layers from 1 on with two digits, experts in one tensor, a head that is tied."""
    out = {"tok.w": given["embed.weight"], "head.w": given["embed.weight"].T, "last": given["final.scale"]}
    for i in range(sizes["layers"]):
        at, to = f"blocks.{i}.", f"net.layer_{i + 1:02d}."
        for name in "q", "k", "v", "out", "gate", "up", "down":
            out[to + "lin." + name] = given[at + name].T
        out[to + "norm.g"], out[to + "norm2.g"] = given[at + "scale"], given[at + "one"]
        out[to + "moe"] = np.stack([given[f"{at}experts.{e}.w"].T for e in range(sizes["experts"])])
    return out


def fused(given, sizes):
    """Queries, keys and values in one transposed matrix, with rotary pairs; gate and up below each other."""
    out = {"wte": given["embed.weight"], "ln_f": given["final.scale"]}
    for i in range(sizes["layers"]):
        at, to = f"blocks.{i}.", f"h.{i}."
        q, k = pairs_of_rows(given[at + "q"], sizes["heads"]), pairs_of_rows(given[at + "k"], sizes["keys"])
        out[to + "attn.qkv"] = np.concatenate([q, k, given[at + "v"]]).T
        out[to + "attn.o"] = given[at + "out"]
        out[to + "mlp.in"] = np.concatenate([given[at + "gate"], given[at + "up"]])
        out[to + "mlp.out"] = given[at + "down"]
        out[to + "ln_1"], out[to + "ln_2"] = given[at + "scale"], given[at + "one"]
        for e in range(sizes["experts"]):
            out[f"{to}moe.{e}"] = given[f"{at}experts.{e}.w"]
    return out


def grouped(given, sizes):
    """Each group's queries, then its key and its value; half precision."""
    out, keys = {"emb": given["embed.weight"], "fin": given["final.scale"]}, sizes["keys"]
    for i in range(sizes["layers"]):
        at, to = f"blocks.{i}.", f"stack.{i}."
        q, k, v = (given[at + name].reshape(keys, -1, sizes["width"]) for name in "qkv")
        out[to + "qkv"] = np.concatenate([q, k, v], axis=1).reshape(-1, sizes["width"])
        for name in "out", "gate", "up", "down", "scale", "one":
            out[to + "x." + name] = given[at + name]
        for e in range(sizes["experts"]):
            out[f"{to}e.{e}"] = given[f"{at}experts.{e}.w"]
    return {key: array.astype("f2") for key, array in out.items()}


# --- files


def write_torch(path, arrays):
    torch.save({key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in arrays.items()}, path)


def write_h5(path, arrays):
    with h5py.File(path, "w") as f:
        for key, array in arrays.items():
            f[key] = array


def write_npz(path, arrays):
    np.savez(path, **arrays)


def write_safetensors(path, arrays):
    header, end, codes = {}, 0, {"f4": "F32", "f2": "F16"}
    for key, array in arrays.items():
        header[key] = {"dtype": codes[array.dtype.str[1:]], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            f.write(np.ascontiguousarray(array).tobytes())


WRITERS = {"pt": write_torch, "h5": write_h5, "npz": write_npz, "safetensors": write_safetensors}


def read(run, path):
    """Through a pickle that PyTorch reads."""
    again = run.path("read.pt")
    run.call("copy", "-q", "--overwrite", path, again)
    return {key: value.numpy() for key, value in torch.load(again).items()}


def check_same(found, wanted):
    assert sorted(found) == sorted(wanted), sorted(set(found) ^ set(wanted))[:4]
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype and found[key].shape == array.shape, (key, found[key].shape, array.shape)
        assert found[key].tobytes() == np.ascontiguousarray(array).tobytes(), key


# --- cases


def converted(run, path, target, *options):
    """The file that `cbk convert` writes."""
    printed = run.call("convert", path, "--converter", run.path("mine.lua"), "--to", target, "--overwrite", *options)
    return printed.split(" to ", 1)[1].splitlines()[0]


def rounded(arrays, layout):
    """What survives the way through a layout: float16 rounds."""
    if layout is not grouped:
        return arrays
    return {key: array.astype("f2").astype("f4") for key, array in arrays.items()}


def write_pair(run, name, sizes, seed, layout, formats):
    left = rounded(model(sizes, seed), layout)
    right = layout(left, sizes)
    paths = [run.path(f"{name}_{side}.{kind}") for side, kind in zip("lr", formats)]
    for path, kind, arrays in zip(paths, formats, (left, right)):
        WRITERS[kind](path, arrays)
    return left, right, paths


def there_and_back(run, layout, formats, sizes, refused=None):
    """Infers from a small pair, converts another model in both directions, and compares with Python's own."""
    _, _, pair = write_pair(run, "small", SMALL, 1, layout, formats)
    run.call("infer", *pair, "-o", run.path("mine.lua"), "--overwrite")
    left, right, paths = write_pair(run, "other", sizes, 2, layout, formats)
    for path, target, wanted in ((paths[0], "b", right), (paths[1], "a", left)):
        if refused:
            done = run.run("convert", path, "--converter", run.path("mine.lua"), "--to", target, "--overwrite")
            assert done.returncode == 1 and refused in done.stderr, done.stderr
        else:
            check_same(read(run, converted(run, path, target)), wanted)


def with_configs(run, layout, formats):
    """Configs with names that no program has."""
    paths = {}
    for name, sizes, seed in ("small", SMALL, 1), ("other", LARGE, 2):
        left, right, files = write_pair(run, name, dict(sizes, experts=3), seed, layout, formats)
        configs = [run.path(f"{name}_{side}.json") for side in "ab"]
        for path, fields in zip(configs, (("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab"),
                                          ("depth", "hidden_size", "num_heads", "num_kv_heads", "ffn", "words"))):
            with open(path, "w", encoding="utf-8") as f:
                json.dump(dict(zip(fields, (sizes[name] for name in ("layers", "width", "heads", "keys", "inner", "words")))), f)
        paths[name] = (left, right, files, configs)
    _, _, files, configs = paths["small"]
    run.call("infer", *files, "--src-config", configs[0], "--tgt-config", configs[1], "-o", run.path("mine.lua"), "--overwrite")
    left, right, files, configs = paths["other"]
    check_same(read(run, converted(run, files[0], "b", "--config", configs[0])), right)
    check_same(read(run, converted(run, files[1], "a", "--config", configs[1])), left)


def with_buffers(length, seed):
    """Both layouts of a model whose buffers PyTorch made; the left also has complex frequencies, which the right has under another name."""
    torch.manual_seed(seed)
    ones = torch.ones(length, length)
    left = {"wpe.weight": torch.randn(length, 6), "cis": torch.polar(ones[0], torch.rand(length)), "position_ids": torch.arange(length)[None],
            "inv_freq": 1 / 500000 ** (torch.arange(0, 128, 2).float() / 128)}
    right = {"pos.w": left["wpe.weight"], "freqs": left["cis"], "mask": torch.triu(torch.full((length, length), float("-inf")), 1),
             "above": ones.triu(1).bool(), "steps": torch.arange(length).int(),
             "far": torch.triu(torch.full((length, length), torch.finfo(torch.float32).min), 1)}
    for i in range(seed):
        left[f"h.{i}.w"], left[f"h.{i}.bias"] = torch.randn(5, 6), ones.tril().byte()
        right[f"layers.{i}.w"], right[f"layers.{i}.num_batches_tracked"] = left[f"h.{i}.w"].T.contiguous(), torch.tensor(0)
    return left, right


def buffers(run):
    """Infers from one length, and converts another one."""
    paths = [run.path("left.pt"), run.path("right.pt")]
    for length, seed in (7, 2), (10, 3):
        sides = with_buffers(length, seed)
        for path, tensors in zip(paths, sides):
            torch.save(tensors, path)
        if seed == 2:
            run.call("infer", *paths, "--same-sizes", "-o", run.path("mine.lua"), "--overwrite")
    for path, target, wanted in ((paths[0], "b", sides[1]), (paths[1], "a", sides[0])):
        found = torch.load(converted(run, path, target))
        assert sorted(found) == sorted(wanted), sorted(set(found) ^ set(wanted))[:4]
        for key, tensor in wanted.items():
            assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        for left, right in ("safetensors", "pt"), ("pt", "h5"), ("npz", "safetensors"), ("h5", "npz"):
            for layout in renamed, fused, grouped:
                run.check(f"{layout.__name__} {left} {right}", lambda: there_and_back(run, layout, (left, right), SAME))
        for layout in renamed, fused:
            for count in 2, 11:
                sizes = dict(SMALL, experts=count)
                run.check(f"{layout.__name__}, {count} experts", lambda: there_and_back(run, layout, ("safetensors", "pt"), sizes))
        run.check("buffers and complex numbers", lambda: buffers(run))
        for layout in fused, grouped:
            run.check(f"{layout.__name__}, larger", lambda: there_and_back(run, layout, ("safetensors", "pt"), LARGE, "these numbers may be others"))
        run.check("renamed, larger", lambda: there_and_back(run, renamed, ("safetensors", "pt"), dict(LARGE, experts=3)))
        run.check("fused, with configs", lambda: with_configs(run, fused, ("safetensors", "pt")))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
