#!/usr/bin/python3
"""Token files: those of `cbk make-data`, read by h5py; and those that h5py writes as the Model Zoo's preprocessing does, read by cbk.

Usage: tokens_interop.py --cbk PATH
"""
import argparse
import json
import os
import sys
import tempfile

import h5py
import numpy as np

import harness

READ = """
local files = require("cstorch.utils.data.token_files").open { data_dir = "%s", batch_size = 3, drop_last = false, shuffle = %s }
local list = cbk.list()
for batch in files:iter() do
  for i = 1, batch.input_ids:size(0) do
    local function row(name) return cbk.list(batch[name]:tolist()[i]) end
    list[#list + 1] = cbk.list { row "input_ids", row "attention_mask", row "labels" }
  end
end
print(cbk.json(list))
"""


def made(run):
    text = ("All the world's a stage, \u00e9t\u00e9.\n" * 400).encode()
    for name in "one.txt", "two.txt":
        with open(run.path(name), "wb") as file:
            file.write(text)
    run.call("make-data", run.path("one.txt"), run.path("two.txt"), "-o", run.path("data"), "--max-seq-length", "64",
             "--samples-per-file", "100", "-q")
    tokens = (list(text) + [256]) * 2
    parts, counts = [], []
    for name in sorted(os.listdir(run.path("data"))):
        if name.endswith(".h5"):
            with h5py.File(run.path(f"data/{name}")) as file:
                assert file["data"].dtype == np.int32 and file.attrs["n_examples"] == len(file["data"]), name
                assert range(file.attrs["n_examples"]), "as the Model Zoo counts"
                counts.append(len(file["data"]))
                parts.append(file["data"][:])
    data = np.concatenate(parts)
    ids, mask, labels = (data[:, i].reshape(-1) for i in range(3))
    seen = int(mask.sum())
    assert counts[:-1] == [100] * (len(counts) - 1) and data.shape[1:] == (3, 64), (counts, data.shape)
    assert seen == len(tokens) - 1 and mask[:seen].all() and len(mask) - seen < 64, seen
    assert ids[:seen].tolist() == tokens[:-1] and labels[:seen].tolist() == tokens[1:]
    with open(run.path("data/data_params.json"), encoding="utf-8") as file:
        params = json.load(file)
    assert params["features"] == ["input_ids", "attention_mask", "labels"], params
    assert params["post-process"]["n_examples"] == len(data), params


def read_back(run, folder, data):
    found = json.loads(run.call("-e", READ % (run.path(folder), "false")))
    assert np.array_equal(np.array(found), data), folder
    mixed = json.loads(run.call("-e", READ % (run.path(folder), "true")))
    assert mixed != found and sorted(mixed) == sorted(found), folder


def foreign(run, rng, name, dtype="i4", split=False, **options):
    """Two files of different lengths, as h5py writes them."""
    os.mkdir(run.path(name))
    parts, libver = [], "latest" if options.pop("latest", False) else None
    for i, count in enumerate((7, 4)):
        data = rng.integers(0, 250, size=(count, 3, 16)).astype(dtype)
        parts.append(data)
        with h5py.File(run.path(f"{name}/examples_{i}.h5"), "w", libver=libver) as file:
            file.attrs["n_examples"] = count
            if split:
                for k, feature in enumerate(("input_ids", "attention_mask", "labels")):
                    file.create_dataset(feature, data=data[:, k])
            else:
                file.create_dataset("data", data=data, **options)
    run.check(name, lambda: read_back(run, name, np.concatenate(parts)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(parser.parse_args().cbk, folder)
        run.check("make-data, read by h5py", lambda: made(run))
        foreign(run, rng, "plain")
        foreign(run, rng, "gzip", chunks=(1, 3, 16), compression="gzip")
        foreign(run, rng, "chunks of several rows", chunks=(3, 2, 5), compression="lzf", shuffle=True)
        foreign(run, rng, "growing", maxshape=(None, 3, 16), chunks=(2, 3, 16))
        foreign(run, rng, "newest", latest=True, chunks=(1, 3, 16), compression="gzip")
        foreign(run, rng, "big-endian", dtype=">i4")
        foreign(run, rng, "bytes", dtype="u1")
        foreign(run, rng, "three datasets", split=True)
    print(f"{run.passed} passed, {run.failed} failed")
    return 1 if run.failed else 0


sys.exit(main())
