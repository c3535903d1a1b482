#!/usr/bin/python3
"""Files of PyTorch, NumPy, h5py and safetensors, cut at many places: with --salvage, cbk reads their whole tensors and names the others.

Usage: salvage_interop.py --cbk PATH
"""
import argparse
import json
import os
import sys
import tempfile
import zipfile

import h5py
import numpy as np
import torch

import harness


def tensors(rng):
    return {f"layer.{i}.weight": rng.standard_normal((20 + i, 30)).astype("f4") for i in range(20)}


def write_torch(path, arrays):
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path)


def write_legacy(path, arrays):
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path, _use_new_zipfile_serialization=False)


def write_h5py(path, arrays):
    with h5py.File(path, "w") as f:
        for key, array in arrays.items():
            f[key] = array


def write_latest(path, arrays):
    with h5py.File(path, "w", libver="latest") as f:
        for key, array in arrays.items():
            f[key] = array


WRITERS = {
    "torch.pt": write_torch,
    "legacy.pt": write_legacy,
    "stored.npz": lambda path, arrays: np.savez(path, **arrays),
    "deflated.npz": lambda path, arrays: np.savez_compressed(path, **arrays),
    "plain.h5": write_h5py,
    "latest.h5": write_latest,
}


def salvage(run, path, arrays):
    """How many tensors are whole; each one must have its values. None: an error, which is one line."""
    done = run.run("copy", "--json", path, run.path("new.npz"), "--salvage", "--overwrite")
    if done.returncode != 0:
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and '"error"' in done.stderr, done
        return None
    with np.load(run.path("new.npz")) as found:
        for key in found:
            np.testing.assert_array_equal(found[key], arrays[key], key)
        count = len(found)
    if count < len(arrays) and path.endswith(".npz"):  # an archive names only what begins before its end
        assert "arrays may be missing" in done.stderr, done
    elif count < len(arrays):
        warning = json.loads(done.stderr.splitlines()[0])["warning"]["message"]
        for key in arrays:
            assert (f"'{key}'" in warning) == (key not in np.load(run.path("new.npz"))), (key, warning)
    return count


def broken_header(run, arrays):
    """One member's header and the end record are damaged: the other members are read, and the gap is reported."""
    whole, path = run.path("whole.npz"), run.path("header.npz")
    np.savez(whole, **arrays)
    with zipfile.ZipFile(whole) as archive:
        second = archive.infolist()[1]
    with open(whole, "rb") as f:
        content = bytearray(f.read())
    content[second.header_offset] ^= 1
    content[-22] ^= 1
    with open(path, "wb") as f:
        f.write(content)
    assert salvage(run, path, arrays) == len(arrays) - 1
    assert second.filename[:-len(".npy")] not in np.load(run.path("new.npz"))
    checked = run.run("check", "--salvage", path)
    assert checked.returncode == 1 and f"at byte {second.header_offset}" in checked.stdout, checked


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(parser.parse_args().cbk, folder)
        arrays = tensors(np.random.default_rng(1))
        for name, write in WRITERS.items():
            whole, path = run.path(name), run.path("cut-" + name)
            write(whole, arrays)
            size, counts = os.path.getsize(whole), []
            with open(whole, "rb") as f:
                content = f.read()
            for share in (0.05, 0.3, 0.5, 0.7, 0.9, 0.99, 1):
                with open(path, "wb") as f:
                    f.write(content[:int(size * share)])
                run.check(f"{name} {share}", lambda path=path, counts=counts: counts.append(salvage(run, path, arrays)))

            def check(counts=counts, name=name):
                known = [count or 0 for count in counts]
                assert known == sorted(known) and known[-1] == len(arrays), counts
                if not name.endswith(".h5"):  # its tables may be at the end
                    assert known[3] >= 10, counts
            run.check(name + ": more is left of a longer file", check)
        run.check("a damaged header between others", lambda: broken_header(run, arrays))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
