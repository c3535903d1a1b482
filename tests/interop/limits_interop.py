#!/usr/bin/python3
"""What a small file can make a command take: data that it repeats, never wrote or packs, HDF5's virtual datasets and huge chunks. Memory is
that of cbk and of its child together.

Usage: limits_interop.py --cbk PATH [FILTER]
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile

import h5py
import numpy as np
import torch

import harness
import safetensors_file
import samples
import tensorflow_interop as tf

LONGEST = 60  # seconds
UNLIMITED = {"libver": "latest"}
REFUSED = "--max-expansion"


# ------------------------------------------------------------------ files

def never_written(path, shape, count=1, file={}, **options):
    with h5py.File(path, "w", **file) as f:
        for i in range(count):
            f.create_dataset(f"w{i:03}", shape, "f4", **options)


def same_bytes(path):
    """Datasets that have their data at one place: the address of the first one is written into the others."""
    with h5py.File(path, "w") as f:
        for i in range(40):
            dataset = f.create_dataset(f"w{i:02}", (2 ** 24,), "f4")
            if i == 0:
                dataset[:] = 0
        place = f["w00"].id.get_offset()
        headers = [h5py.h5o.get_info(f[name].id).addr for name in f]
    with open(path, "r+b") as f:
        bytes_of = f.read()
        for header in headers[1:]:
            at = bytes_of.index(b"\xff" * 8, header)
            f.seek(at)
            f.write(place.to_bytes(8, "little"))
        f.truncate(max(f.seek(0, 2), place + 2 ** 26))


def same_chunk(path):
    """Chunks that are all the same one in the file."""
    with h5py.File(path, "w") as f:
        dataset = f.create_dataset("w", (2 ** 31,), "f4", chunks=(2 ** 20,), compression="gzip")
        chunk = np.zeros(2 ** 20, "f4")
        for i in range(0, 2 ** 31, 2 ** 24):
            dataset[i:i + 2 ** 20] = chunk
        places = [dataset.id.get_chunk_info(i).byte_offset for i in range(dataset.id.get_num_chunks())]
    with open(path, "r+b") as f:
        content = f.read()
        for place in places[1:]:
            content = content.replace(place.to_bytes(8, "little"), places[0].to_bytes(8, "little"))
        f.seek(0)
        f.write(content)


def virtual_single(path):
    """Each level has every element of the one below by a mapping of its own."""
    with h5py.File(path, "w", **UNLIMITED) as f:
        f["l0"] = np.arange(64, dtype="f4")
        for level in range(1, 14):
            layout = h5py.VirtualLayout((64,), "f4")
            for k in range(64):
                layout[k:k + 1] = h5py.VirtualSource(".", f"l{level - 1}", (64,))[63 - k:64 - k]
            f.create_virtual_dataset(f"l{level}", layout)


def virtual_large(path):
    with h5py.File(path, "w", **UNLIMITED) as f:
        f["l0"] = np.zeros(1024, "f4")
        size = 1024
        for level in range(1, 6):
            layout = h5py.VirtualLayout((size * 16,), "f4")
            for k in range(16):
                layout[k * size:(k + 1) * size] = h5py.VirtualSource(".", f"l{level - 1}", (size,))
            size *= 16
            f.create_virtual_dataset(f"l{level}", layout)


def huge_chunk(path, **options):
    with h5py.File(path, "w", **UNLIMITED) as f:
        dataset = f.create_dataset("w", (2 ** 25,), "f4", chunks=(2 ** 25,), maxshape=(None,), compression="gzip", **options)
        dataset[:] = np.zeros(2 ** 25, "f4")


def chunks_of_three_filters(path):
    """What is unpacked is there several times."""
    with h5py.File(path, "w", **UNLIMITED) as f:
        size = 1_250_000
        dataset = f.create_dataset("w", (6 * size,), "f4", chunks=(size,), maxshape=(None,), compression="gzip", shuffle=True, fletcher32=True)
        for i in range(6):
            dataset[i * size:(i + 1) * size] = np.full(size, i, "f4")


def tall_chunks(path, file):
    with h5py.File(path, "w", **file) as f:
        dataset = f.create_dataset("w", (1024, 2 ** 18), "f4", chunks=(1024, 512), maxshape=(None, 2 ** 18), compression="gzip")
        for i in range(0, 2 ** 18, 512):
            dataset[:, i:i + 512] = np.zeros((1024, 512), "f4")


def expanded(path, **options):
    torch.save({"w": torch.zeros(1).expand(2 ** 20, 2 ** 20), "small": torch.ones(3)}, path, **options)


def shared(path):
    storage = torch.zeros(2 ** 20)
    torch.save({f"w{i}": storage[i:] for i in range(2000)}, path)


def deflated_and_transposed(path):
    """The bytes of a packed storage, wanted in another order: each row of the tensor lies scattered over all of them."""
    torch.save({"w": torch.zeros(4096, 8192).t()}, path)
    with zipfile.ZipFile(path) as f:
        members = {name: f.read(name) for name in f.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as f:
        for name, data in members.items():
            f.writestr(name, data)


def tiny_chunks(path):
    with h5py.File(path, "w", **UNLIMITED) as f:
        dataset = f.create_dataset("w", (600_000,), "u1", chunks=(1,))
        for i in range(600_000):
            dataset.id.write_direct_chunk((i,), b"\0")


# name: (what makes it, what the commands that read its values say, the suffix)
FILES = {
    "never written, extensible array": (lambda p: never_written(p, (2 ** 42,), file=UNLIMITED, chunks=(1024,), maxshape=(None,)), REFUSED, ".h5"),
    "never written, two unlimited dimensions": (lambda p: never_written(p, (2 ** 21, 2 ** 21), file=UNLIMITED, chunks=(512, 512), maxshape=(None, None)), REFUSED, ".h5"),
    "never written, contiguous": (lambda p: never_written(p, (2 ** 42,), fillvalue=3), REFUSED, ".h5"),
    "never written, 200 datasets": (lambda p: never_written(p, (2 ** 28,), 200), REFUSED, ".h5"),
    "never written, 200 datasets, by the library": (lambda p: never_written(p, (2 ** 28,), 200, file=UNLIMITED, chunks=(2 ** 18,), maxshape=(None,)), REFUSED, ".h5"),
    "the same bytes in 40 datasets": (same_bytes, "overlap", ".h5"),
    "the same chunk again and again": (same_chunk, "overlap", ".h5"),
    "virtual, each element by itself": (virtual_single, "seconds", ".h5"),
    "virtual, 16 times as large on each level": (virtual_large, REFUSED, ".h5"),
    "a huge chunk": (huge_chunk, "h5repack", ".h5"),
    "a huge chunk of two filters": (lambda p: huge_chunk(p, shuffle=True), "h5repack", ".h5"),
    "chunks of three filters": (chunks_of_three_filters, "h5repack", ".h5"),
    "tall chunks": (lambda p: tall_chunks(p, {}), "h5repack", ".h5"),
    "tall chunks, by the library": (lambda p: tall_chunks(p, UNLIMITED), "h5repack", ".h5"),
    "an expanded tensor": (expanded, REFUSED, ".pt"),
    "an expanded tensor, legacy": (lambda p: expanded(p, _use_new_zipfile_serialization=False), REFUSED, ".pt"),
    "one storage in 2,000 tensors": (shared, REFUSED, ".pt"),
    "packed and transposed": (deflated_and_transposed, "without compression", ".pt"),
}


def commands(path, out):
    return {
        "ls": ["ls", path], "stats": ["stats", path], "show": ["show", path, "*"], "check": ["check", path], "plot": ["plot", path, "w*"],
        "report": ["report", path, "-o", out + ".html", "--overwrite"], "diff": ["diff", path, path], "copy": ["copy", path, out + ".safetensors"],
        "copy --dry-run": ["copy", path, out + ".safetensors", "--dry-run"], "export": ["export", path, "*", "-o", out + ".npz"],
    }


# ------------------------------------------------------------------ measuring

def children_of(pid):
    out = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as f:
                out += map(int, f.read().split())
    except OSError:
        pass  # it has ended
    return out


def peak_of(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def measured(argv):
    """(status, seconds, bytes of the peaks of the program and its children, stdout + stderr)"""
    start, peaks, output = time.monotonic(), {}, []
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    reader = threading.Thread(target=lambda: output.append(process.communicate()[0]))
    reader.start()
    while reader.is_alive():
        for pid in (process.pid, *children_of(process.pid)):
            peaks[pid] = max(peaks.get(pid, 0), peak_of(pid))
        if time.monotonic() - start > 2 * LONGEST:
            process.kill()
        reader.join(0.005)
    return process.returncode, time.monotonic() - start, sum(peaks.values()), output[0].decode(errors="replace")


def check_command(run, path, words, name, argv):
    limit = 100_000_000 + 4 * os.path.getsize(path)
    status, seconds, memory, text = measured([run.cbk, *argv])
    has_own_status = name == "diff" or name == "plot" and "several keys" in text  # 1 means that they differ; a wrong command line
    assert status in (0, 1) or has_own_status and status == 2, f"status {status}, {text[-300:]}"
    assert memory <= limit, f"{memory / 1e6:.0f} MB, where {limit / 1e6:.0f} are allowed"
    assert seconds <= LONGEST, f"{seconds:.0f} seconds"
    if name == "report" and status == 0:
        with open(run.path("out.html"), encoding="utf-8") as f:
            text += f.read()
    is_chosen = name != "plot" or "several keys" not in text and "has no key" not in text
    is_quick = name == "copy --dry-run" and words == "seconds"
    assert name == "ls" or not is_chosen or is_quick or words in text, text[-300:]
    is_refused = words == "overlap" and words in text  # as soon as the file is opened
    assert name != "ls" or is_refused or status == 0 and "float32" in text, text[-300:]
    assert not os.path.exists(run.path("out.safetensors"))


def check_allowed(run):
    """What the user allows is read, and is what the file says."""
    path = run.path("allowed.h5")
    never_written(path, (2 ** 28 + 2 ** 20,), file=UNLIMITED, chunks=(2 ** 18,), maxshape=(None,), fillvalue=2)
    refused = run.run("show", path, "w000")
    assert REFUSED in refused.stdout + refused.stderr, refused
    run.call("copy", path, run.path("x.safetensors"), "--dry-run", "--max-expansion", "2GB")
    done = run.run("copy", path, run.path("x.safetensors"), "--dry-run", "--max-expansion", "1GB")
    assert done.returncode == 1 and REFUSED in done.stderr and "2GiB" in done.stderr, done.stderr
    assert "min 2, max 2" in run.call("show", path, "w000", "--max-expansion", "2GB")


def check_ordinary(run):
    """Sparse and packed checkpoints of ordinary sizes are read without an option."""
    path = run.path("ordinary.h5")
    with h5py.File(path, "w", **UNLIMITED) as f:
        f.create_dataset("never", (2 ** 20,), "f4")
        f.create_dataset("packed", data=np.zeros(2 ** 22, "f4"), chunks=(2 ** 18,), maxshape=(None,), compression="gzip")
        f.create_dataset("tall", data=np.ones((512, 512), "f4"), chunks=(512, 8), compression="gzip")
        noise = np.random.default_rng(1).standard_normal(6 << 18).astype("f4")
        f.create_dataset("noise", data=noise, chunks=(3 << 18,), maxshape=(None,), compression="gzip", shuffle=True, fletcher32=True)
    for _ in range(3):
        run.call("stats", path)
        run.call("diff", path, path)
    tied = run.path("tied.pt")
    weight = torch.zeros(2 ** 20)
    torch.save({f"w{i}": weight for i in range(1000)}, tied)  # read once
    run.call("stats", tied)


def check_inferred(run):
    """Tensors of one number: as many as the promised memory allows are compared, more are refused."""
    for count, words in ((12000, "Converter saved"), (20000, "more memory than")):
        for side in "ab":
            safetensors_file.save(run.path(side + ".safetensors"), {f"{side}.{i}": torch.ones(1) for i in range(count)})
        sizes = sum(os.path.getsize(run.path(side + ".safetensors")) for side in "ab")
        argv = [run.cbk, "infer", run.path("a.safetensors"), run.path("b.safetensors"), "-o", run.path("out.lua"), "--no-progress-bar"]
        _, _, memory, text = measured(argv)
        assert words in text and os.path.exists(run.path("out.lua")) == (count == 12000), text
        assert memory <= 100_000_000 + 4 * sizes, memory
        if count == 12000:
            os.remove(run.path("out.lua"))
    path = run.path("many.pt")
    torch.save({f"m{i}": torch.ones(1) for i in range(20000)}, path)
    _, _, memory, text = measured([run.cbk, "infer", path, path, "-o", run.path("out.lua"), "--no-progress-bar"])
    assert "more memory than" in text and memory <= 100_000_000 + 8 * os.path.getsize(path), f"{memory / 1e6:.0f} MB, {text[-300:]}"


def check_shared(run):
    """A tensor of 8 MB under 6,000 names, tied and as views of one storage: it is read once, or a few times."""
    for side, value in (("a", 1.0), ("b", 2.0)):
        weight = torch.full((2 ** 21,), value)
        torch.save({f"w{i}": weight for i in range(6000)}, run.path(f"tied_{side}.pt"))
        torch.save({f"w{i}": weight.view(-1) for i in range(6000)}, run.path(f"views_{side}.pt"))
    for kind in "tied", "views":
        a, b = (run.path(f"{kind}_{side}.pt") for side in "ab")
        for command in (["dump", a], ["diff", a, b], ["infer", a, a, "-o", run.path("out.lua"), "--overwrite"], ["check", a]):
            status, seconds, _, text = measured([run.cbk, *command])
            assert status in (0, 1) and seconds < LONGEST / 3, f"{kind}, {command[0]}: status {status}, {seconds:.0f} s, {text[-300:]}"


def check_sections(run):
    """Configs of 300 sections, each with sizes of heads, which are asked for with each size of a rotation that is tried."""
    config = {"hidden_size": 16, "num_attention_heads": 2, **{f"s{i}": {"head_dim": 8, "hidden_size": 16, "num_attention_heads": 2,
              **{f"patch{k}": 4 for k in range(60)}} for i in range(300)}}
    rotated = {f"h.{i}.q.weight": torch.randn(16, 16) for i in range(9)}
    turned = {f"l.{i}.q.weight": t.view(2, 2, 4, 16).transpose(1, 2).reshape(16, 16).contiguous() for i, t in enumerate(rotated.values())}
    for side, tensors in (("a", rotated), ("b", turned)):
        safetensors_file.save(run.path(f"sections_{side}.safetensors"), tensors)
        with open(run.path(f"sections_{side}.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
    status, seconds, _, text = measured([run.cbk, "infer", run.path("sections_a.safetensors"), run.path("sections_b.safetensors"), "-o",
                                         run.path("out.lua"), "--overwrite", "--src-fmt", "a", "--src-config", run.path("sections_a.json"),
                                         "--tgt-config", run.path("sections_b.json")])
    assert status == 0 and seconds < LONGEST / 3, f"status {status}, {seconds:.0f} s, {text[-300:]}"


def check_chunks(run):
    """Chunks of one byte, of which the file has 600,000."""
    path = run.path("chunks.h5")
    tiny_chunks(path)
    limit = 100_000_000 + 4 * os.path.getsize(path)
    for command in ("stats", "check"):
        status, _, memory, text = measured([run.cbk, command, path])
        assert status == 0 and memory <= limit, f"{command}: status {status}, {memory / 1e6:.0f} MB of {limit / 1e6:.0f}, {text[-200:]}"


def check_layers(run):
    """A config of 4,000 layers beside a checkpoint that has none of them."""
    folder = run.path("layers")
    os.mkdir(folder)
    torch.save({"bert.embeddings.word_embeddings.weight": torch.zeros(30522, 8)}, os.path.join(folder, "pytorch_model.bin"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["BertForPreTraining"], "model_type": "bert", "num_hidden_layers": 4000, "hidden_size": 8,
                   "num_attention_heads": 2, "intermediate_size": 8}, f)
    status, seconds, _, text = measured([run.cbk, "check", folder])
    assert status == 1 and "the layer is missing" in text and seconds < LONGEST / 3, f"status {status}, {seconds:.0f} s, {text[-300:]}"


LONG = 300_000  # characters of a name


def check_names(run):
    """Names that are much longer than those of any model: what is looked for at their ends is found in one pass."""
    half, nan = torch.full((2,), 0.5), torch.full((2,), float("nan"))
    codes = ("F8_E4M3", [4, 4], bytes(16))
    files = {"part": {"a" * LONG + ".w": half}, "mask": {"mask" * (LONG // 4) + ".w": nan}, "spaces": {" " * LONG + "x": half},
             "dots": {"." * LONG + "w": half}, "scales": {"a" * LONG: half, "x.weight": codes, "x.weight_scale_inv": half}}
    for name, tensors in files.items():
        path = run.path(name + ".safetensors")
        safetensors_file.save(path, tensors)
        for command in (["check", path], ["stats", path], ["identify", path], ["infer", path, path, "-o", run.path("o.lua")],
                        ["convert", path, "--to", "cs-2.5", "-o", run.path("o")], ["ls", path], ["diff", path, path]):
            status, seconds, memory, text = measured([run.cbk, *command])
            assert 0 <= status <= 2 and seconds < LONGEST / 3 and memory < 100_000_000, f"{name} {command[0]}: {status}, {seconds:.0f} s, {memory}: {text[-300:]}"


def check_damaged_index(run):
    """A block of TensorFlow's index with a wrong checksum and very many entries: messages name some of them."""
    def stored(body, crc=None):
        return body + b"\0" + struct.pack("<I", tf.masked(tf.crc32c(body + b"\0")) if crc is None else crc)
    entry = b"\x78\0\0"  # it shares the 120 bytes of the key before it, and is empty
    data = b"\0\0\x06\x08\1\x1a\2\x08\1" + b"\0\x78\2" + b"a" * 120 + b"\x08\1" + entry * 1_500_000 + struct.pack("<II", 0, 1)
    out, empty = stored(data, 1), struct.pack("<II", 0, 1)
    meta = tf.varint(len(out)) + tf.varint(len(empty))
    out += stored(empty)
    handle = tf.varint(0) + tf.varint(len(data))
    index = b"\0\1" + tf.varint(len(handle)) + b"b" + handle + struct.pack("<II", 0, 1)
    end = meta + tf.varint(len(out)) + tf.varint(len(index))
    out += stored(index) + end.ljust(40, b"\0") + struct.pack("<Q", tf.MAGIC)
    path = run.path("bad.ckpt.index")
    with open(path, "wb") as f:
        f.write(out)
    with open(run.path("bad.ckpt.data-00000-of-00001"), "wb") as f:
        f.write(bytes(64))
    for command in ("ls", "check", "identify"):
        status, seconds, memory, text = measured([run.cbk, command, path])
        limit = 100_000_000 + 4 * len(out)
        assert status == 1 and "checksum of a block" in text, f"{command}: {status}, {text[-300:]}"
        assert seconds < LONGEST / 3 and memory < limit, f"{command}: {seconds:.0f} s, {memory / 1e6:.0f} of {limit / 1e6:.0f} MB"


def adapted(run, name, modules, more=None, beside=None):
    """The folders of a model and of an adapter of PEFT for its modules, and the command that folds it."""
    base, adapter = run.path(name + "_base"), run.path(name + "_adapter")
    os.mkdir(base)
    os.mkdir(adapter)
    weights = {f"{module}.weight": torch.ones(1, 1) for module in modules} | (beside or {})
    matrices = {f"base_model.model.{module}.lora_{x}.weight": torch.ones(1, 1) for module in modules for x in "AB"}
    safetensors_file.save(os.path.join(base, "model.safetensors"), weights)
    safetensors_file.save(os.path.join(adapter, "adapter_model.safetensors"), matrices)
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, **(more or {})}
    for folder, file, config in ((base, "config.json", {"model_type": "llama"}), (adapter, "adapter_config.json", settings)):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
            json.dump(config, f)
    return [run.cbk, "fold-lora-checkpoint", base, "--adapter", adapter, "-o", run.path(name + "_folded")]


def check_adapters(run):
    """Adapters of very many modules, with very many patterns, and beside a very long name."""
    many = [f"m{i}" for i in range(6000)]
    patterns = {f"q{i}.*z": 1 for i in range(10000)}
    for name, modules, more, beside, words in (("many", many, None, None, "6,000 weights were folded"),
                                               ("patterns", many, {"rank_pattern": patterns}, None, "too many to try"),
                                               ("long", ["m"], None, {"a" * LONG + ".x.bias": torch.ones(1)}, "1 weight was folded")):
        status, seconds, memory, text = measured(adapted(run, name, modules, more, beside))
        assert words in text and seconds < LONGEST / 3 and memory < 110_000_000, f"{name}: {status}, {seconds:.0f} s, {memory}: {text[-300:]}"


def check_configs(run):
    """Configs of some bytes that ask for as many tensors as a config may, of one model or of each."""
    count = 4300
    for name, config in {"bert": {"model_type": "bert", "num_hidden_layers": count},
                         "any": {"num_hidden_layers": count, "n_layer": count, "num_layers": count}}.items():
        folder = run.path("asks_" + name)
        os.mkdir(folder)
        safetensors_file.save(os.path.join(folder, "model.safetensors"), {"model.norm.weight": torch.ones(1)})
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        for command in (["check"], ["identify"], ["convert", "--to", "cs-2.5", "-o", run.path("asked")]):
            status, seconds, memory, text = measured([run.cbk, *command, folder])
            assert 0 <= status <= 2 and memory < 100_000_000 and seconds < LONGEST, f"{name} {command}: {status}, {seconds:.0f} s, {memory}: {text}"


def check_many(run):
    """Files of very many small items: what keeps something of each refuses them, or stays within the promise."""
    count = 60000
    numbers = {f"a.{i}.b.{7 * i}.c": torch.full((1,), float("nan")) for i in range(count)}
    safetensors_file.save(run.path("nan.safetensors"), numbers)
    aliases = {f"k{i}": "w" for i in range(100_000)}
    safetensors_file.save(run.path("alias.safetensors"), {"w": torch.ones(1)}, aliases)
    few = {f"k{i}": "w" for i in range(900)}
    safetensors_file.save(run.path("few.safetensors"), {"w": torch.ones(1)}, few)
    for path, words, listed in ((run.path("nan.safetensors"), "takes more memory than 100 MB", "60,000 tensors"),
                                (run.path("alias.safetensors"), "100000 further names for 1 tensors", None)):
        limit = 100_000_000 + 4 * os.path.getsize(path)
        for command in (["ls"], ["check", "--sarif"], ["check", "--json", "--all"], ["stats", "--json"], ["report", "-o", run.path("o.html")],
                        ["export", "*", "-o", run.path("o.npz")], ["copy", run.path("o.pt"), "--dry-run"],
                        ["convert", "--model", "llama", "--src-fmt", "hf", "--to", "cs-2.4", "--config", path, "-o", run.path("o")]):
            argv = [run.cbk, command[0], *([path] if command[0] != "check" else []), *command[1:], *([path] if command[0] == "check" else [])]
            _, seconds, memory, text = measured(argv)
            assert memory <= limit and seconds < LONGEST, f"{command}: {memory / 1e6:.0f} MB of {limit / 1e6:.0f}, {seconds:.0f} s"
            if command[0] in ("check", "stats", "report", "export") or command[0] == "ls" and not listed:
                assert words in text, (command, text[-300:])
            elif command[0] == "ls":
                assert listed in text, text[-300:]
    run.call("stats", run.path("few.safetensors"))
    check_tiny(run)


def check_tiny(run):
    """As many tensors of one byte as a file may have, and more: those are refused, also where a command keeps something of each."""
    for count, is_read in ((80_000, True), (300_000, False)):
        path = run.path(f"tiny{count}.safetensors")
        header = ("{" + ",".join(f'"{i:x}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}' for i in range(count)) + "}").encode()
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + bytes(count))
        limit = 100_000_000 + 4 * os.path.getsize(path)
        for command in (["ls", path], ["dump", path], ["diff", path, path], ["copy", path, run.path("o.pt"), "--overwrite"], ["identify", path]):
            status, seconds, memory, text = measured([run.cbk, *command])
            assert memory <= limit and seconds < LONGEST, f"{command}: {memory / 1e6:.0f} MB of {limit / 1e6:.0f}, {seconds:.0f} s"
            assert is_read or status > 0 and "many tiny tensors as one tensor" in text, (command, text[-300:])
            assert not is_read or status == 0 or command[0] == "identify", (command, text[-300:])


def check_texts(run):
    """A text that is nearly the whole file: what is shown of it is short, and the rest is written in pieces."""
    size = 16_000_000
    texts = {"text.pt": "\1" * size, "bytes.pt": b"\1" * (size + size // 4)}
    for name, text in texts.items():
        torch.save({"w": torch.ones(2), "l": text}, run.path(name))
    with h5py.File(run.path("text.h5"), "w") as f:
        f["w"] = np.ones(2, "f4")
        f.create_dataset("l", data="\1" * size, dtype=h5py.string_dtype())
    with open(run.path("text.gguf"), "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 12) + b"general.name" + struct.pack("<IQ", 8, size) + b"\1" * size)
    for name in ("text.pt", "bytes.pt", "text.h5", "text.gguf"):
        path = run.path(name)
        limit = 100_000_000 + 4 * os.path.getsize(path)
        for command in (["ls", path], ["ls", "--json", path], ["show", path, "*"], ["show", "--json", path, "*"], ["dump", path],
                        ["copy", path, run.path("copy.h5"), "--overwrite"], ["copy", path, run.path("old.h5"), "--h5-version", "0.4", "--overwrite"]):
            status, seconds, memory, text = measured([run.cbk, *command])
            assert status == 0 and seconds < LONGEST / 3, f"{name} {command}: status {status}, {seconds:.0f} s, {text[-300:]}"
            assert memory <= limit, f"{name} {command[0]}: {memory / 1e6:.0f} MB of {limit / 1e6:.0f}"
            if command[0] == "dump" and name in texts:
                found = json.loads(text)["root"]["items"][1][1]
                assert found.get("value") == texts[name] or bytes.fromhex(found["hex"]) == texts[name], text[-300:]
        if name in texts:
            for copy in "copy.h5", "old.h5":
                assert "the same" in run.call("diff", path, run.path(copy))


def check_nested(run):
    """Small values in dicts in dicts, as many as H5 may have, and more."""
    for count, is_written in ((21_000, True), (60_000, False)):
        path = run.path("nested.pt")
        torch.save({"w": torch.ones(2), "l": {i: {"a": {"b": 1}} for i in range(count)}}, path)
        limit = 100_000_000 + 4 * os.path.getsize(path)
        for version in "0.5", "0.4":
            status, _, memory, text = measured([run.cbk, "copy", path, run.path("out.h5"), "--h5-version", version, "--overwrite"])
            assert memory <= limit, f"{count}, {version}: {memory / 1e6:.0f} MB of {limit / 1e6:.0f}"
            assert "not tensors, and H5 makes an object of each" in text if status else is_written, text[-300:]
            assert status == 0 or not is_written or version == "0.4", text[-300:]


def check_folders(run):
    """Folders of very many checkpoints: what is beside them is looked at once, and not again for each."""
    torch.save({"model": {"w": torch.ones(2)}}, run.path("zoo.pt"))
    run.call("copy", run.path("zoo.pt"), run.path("zoo.mdl"))
    with open(run.path("zoo.mdl"), "rb") as f:
        zoo = f.read()
    kinds = {
        "empty": (6000, {"f{}.safetensors": struct.pack("<Q", 2) + b"{}"}),
        "index": (6000, {"m{}.safetensors.index.json": b'{"weight_map":{}}'}),
        "broken": (6000, {"checkpoint_{}.mdl": b"\x89HDF\r\n\x1a\n"}),
        "configs": (1200, {"c{}.mdl": zoo, "k{}.yaml": b"model: {}\n"}),
    }
    for name, (count, files) in kinds.items():
        folder = run.path("many_" + name)
        os.mkdir(folder)
        for i in range(count):
            for file, data in files.items():
                with open(os.path.join(folder, file.format(i)), "wb") as f:
                    f.write(data)
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
        status, seconds, memory, text = measured([run.cbk, "check", folder])
        assert status in (0, 1) and f"in {count:,} checkpoints" in text, f"{name}: status {status}, {text[-300:]}"
        assert seconds < LONGEST / 2 and memory < 100_000_000 + 4 * size, f"{name}: {seconds:.0f} s, {memory / 1e6:.0f} MB"


def check_index(run):
    """An index of very many shards, which are all missing."""
    folder = run.path("index")
    os.mkdir(folder)
    path = os.path.join(folder, "model.safetensors.index.json")
    for count, words in ((60_000, "60,000 errors"), (200_000, "takes more memory than 100 MB")):
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"weight_map": {f"k{i}": f"m{i}.safetensors" for i in range(count)}}, f)
        limit = 100_000_000 + 4 * os.path.getsize(path)
        _, seconds, memory, text = measured([run.cbk, "check", folder])
        assert words in text and seconds < LONGEST / 3 and memory <= limit, f"{memory / 1e6:.0f} MB of {limit / 1e6:.0f}, {seconds:.0f} s, {text[-300:]}"


CHECKS = {
    "what the user allows": check_allowed,
    "ordinary checkpoints": check_ordinary,
    "many small tensors": check_inferred,
    "very many items": check_many,
    "a tensor of very many names": check_shared,
    "configs of very many sections": check_sections,
    "very many chunks": check_chunks,
    "very many layers": check_layers,
    "configs of very many tensors": check_configs,
    "very long names": check_names,
    "very long texts": check_texts,
    "very many nested values": check_nested,
    "folders of very many checkpoints": check_folders,
    "an index of very many missing shards": check_index,
    "damaged index of very many entries": check_damaged_index,
    "adapters of very many modules": check_adapters,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("filter", nargs="?", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="cbk-limits-") as folder:
        run = harness.Run(args.cbk, folder)
        for name, (make, words, suffix) in FILES.items():
            if args.filter not in name:
                continue
            path = run.path("file" + suffix)
            make(path)
            only = {"seconds": ("ls", "show"), "without compression": ("ls", "stats")}.get(words)  # each takes the time that there is
            wanted = list(commands(path, run.path("out")).items())
            for command, argv in [one for one in wanted if one[0] in only] if only else samples.sample(wanted, name, 2):
                run.check(f"{name}: {command}", lambda c=command, a=argv, p=path, w=words: check_command(run, p, w, c, a))
            os.remove(path)
        for name, check in CHECKS.items():
            if args.filter in name:
                run.check(name, lambda c=check: c(run))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
