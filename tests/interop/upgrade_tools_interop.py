#!/usr/bin/python3
"""The upgrade tools beside real h5py: what `cbk fix-checkpoint-spec` makes of files that h5py wrote in every style, read,
changed and dumped by HDF5's own tools; a change in place that ends half-way; data loader states; all errors.

Usage: upgrade_tools_interop.py --cbk PATH
"""
import argparse
import fcntl
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import types

import h5py
import numpy as np
import torch
from torch.utils import _pytree

passed, failed = 0, 0


def check(name, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {name}: {str(detail)[:600]}")


# ------------------------------------------------------------------ checkpoints as releases before 2.0 wrote them

def fake_module(name, **members):
    for i in range(len(name.split("."))):
        part = ".".join(name.split(".")[:i + 1])
        sys.modules.setdefault(part, types.ModuleType(part))
    for key, value in members.items():
        value.__module__, value.__qualname__ = name, key
        setattr(sys.modules[name], key, value)


class TensorScalarDict(dict):
    pass


class Stranger(dict):
    pass


def _load_type(name):
    return {"dict": dict, "list": list, "tuple": tuple}[name]


fake_module("cerebras_pytorch.utils.tensor_scalar_dict", TensorScalarDict=TensorScalarDict)
fake_module("somewhere.else_", Stranger=Stranger)
fake_module("dill._dill", _load_type=_load_type)


class DillLike(pickle.Pickler):
    def reducer_override(self, obj):
        return (_load_type, (obj.__name__,)) if isinstance(obj, type) and obj in (dict, list, tuple) else NotImplemented


def spec_of(tree, odd=TensorScalarDict):
    """The TreeSpec of a tree; a dict with the key "!" is one of the class `odd`."""
    if isinstance(tree, dict):
        kind = odd if "!" in tree else dict
        keys = [k for k in tree if k != "!"]
        return _pytree.TreeSpec(kind, keys, [spec_of(tree[k], odd) for k in keys])
    if isinstance(tree, (list, tuple)):
        return _pytree.TreeSpec(type(tree), None, [spec_of(x, odd) for x in tree])
    return _pytree.LeafSpec()


def spec_hex(tree, odd=TensorScalarDict):
    out = io.BytesIO()
    DillLike(out, protocol=4).dump(spec_of(tree, odd))
    return out.getvalue().hex()


def decoded(text):
    """A spec as nested lists: type name, keys, children."""
    def plain(spec):
        return [spec.type.__name__ if spec.type else None, spec.context, [plain(c) for c in spec.children_specs], spec.num_leaves]
    return plain(pickle.loads(bytes.fromhex(text)))


def tree_with(milestones=2, step=True):
    return {k: {**v, "milestones": [0] * milestones} if k == "lr_scheduler" else v for k, v in TREE.items() if step or k != "global_step"}


TREE = {
    "model": {"embedding_layer.word_embeddings.weight": 0, "w": 0, "lm_head.weight": 0, "my_ln_f.weight": 0,
              "my_transformer_decoder.norm.weight": 0, "ln_f.bias": 0, "transformer_decoder.norm.bias": 0},
    "optimizer": {"state": {0: {"exp_avg": 0, "!": 1}}, "param_groups": [{"lr": 0, "params": [0], "!": 1}]},
    "lr_scheduler": {"!": 1, "last_epoch": 0, "_schedulers": ({"last_epoch": 0}, {"last_epoch": 0}, {"last_epoch": 0}), "milestones": [0, 0]},
    "global_step": 0,
}


def datasets(extra=0):
    rng = np.random.default_rng(3)
    values = {
        "model.embedding_layer.word_embeddings.weight": rng.random((7, 4), dtype=np.float32),
        "model.w": rng.random((130, 70), dtype=np.float32),
        "model.my_transformer_decoder.norm.weight": rng.random(4, dtype=np.float32),
        "model.ln_f.bias": rng.random(4, dtype=np.float32),
        "optimizer.state.0.exp_avg": rng.random((5, 5)),
        "optimizer.param_groups.0.lr": np.float64(0.5),
        "optimizer.param_groups.0.params.0": np.int64(3),
        "lr_scheduler.last_epoch": np.int64(0),
        "lr_scheduler._schedulers.0.last_epoch": np.array(1, dtype=">i4"),
        "lr_scheduler._schedulers.1.last_epoch": np.array([[2, 3]], dtype=np.float32),
        "lr_scheduler._schedulers.2.last_epoch": np.array([1], dtype=np.int16),
        "lr_scheduler.milestones.1": np.int64(100),
        "lr_scheduler.milestones.0": np.int64(30),
        "global_step": np.array([120]),
    }
    for i in range(extra):
        values[f"extra.{i}.weight"] = np.float32(i)
    return values


def expected(values):
    """What the fixed file holds."""
    out = dict(values)
    out["model.lm_head.weight"] = values["model.embedding_layer.word_embeddings.weight"]
    out["model.my_ln_f.weight"] = values["model.my_transformer_decoder.norm.weight"]
    out["model.transformer_decoder.norm.bias"] = values["model.ln_f.bias"]
    for name, epoch in (("", 120), ("_schedulers.0.", 120), ("_schedulers.1.", 90), ("_schedulers.2.", 20)):
        name = f"lr_scheduler.{name}last_epoch"
        out[name] = np.full_like(values[name], epoch)
    return out


def write(path, values, options=None, tree=None, odd=TensorScalarDict, **more):
    with h5py.File(path, "w", **(options or {})) as f:
        f.attrs["__spec__"] = spec_hex(tree or TREE, odd)
        f.attrs["origin"] = "ünï"
        f.attrs["numbers"] = [1, 2, 3]
        for name, value in values.items():
            chunked = {"chunks": True, "compression": "gzip"} if np.ndim(value) and np.size(value) > 1 else {}
            f.create_dataset(name, data=value, **chunked).attrs["is_bfloat16"] = False
        for name, link in more.items():
            f[name] = link


def content(path):
    """Everything h5py sees: attributes of the root, and type, value, attributes and object of each name."""
    with h5py.File(path, "r") as f:
        names = {}
        for name in f:
            if isinstance(f.get(name, getlink=True), h5py.ExternalLink):
                names[name] = ("external", f.get(name, getlink=True).path)
                continue
            info = h5py.h5o.get_info(f[name].id)
            names[name] = (str(f[name].dtype), f[name][()].tolist(), {k: str(v) for k, v in f[name].attrs.items()}, info.rc)
        return {k: str(v) for k, v in f.attrs.items()}, names


def same_values(path, values):
    with h5py.File(path, "r") as f:
        missing = set(values) ^ {n for n in f if not n.startswith("link")}
        if missing:
            return f"names differ: {missing}"
        for name, value in values.items():
            if f[name].dtype != np.asarray(value).dtype or not np.array_equal(f[name][()], value):
                return f"{name}: {f[name][()]} is not {value}"
    return ""


class Tool:
    def __init__(self, cbk):
        self.cbk = cbk

    def run(self, *args, stdin=""):
        return subprocess.run([self.cbk, *args], input=stdin, capture_output=True, text=True, check=False, timeout=60)

    def fix(self, *args, stdin=""):
        return self.run("fix-checkpoint-spec", *args, stdin=stdin)


# ------------------------------------------------------------------ styles of files

STYLES = {
    "superblock 0": {},
    "superblock 3, links in messages": {"libver": "latest"},
    "superblock 2": {"libver": ("v108", "v108")},
    "creation order": {"track_order": True},
    "a user block": {"userblock_size": 512},
    "a user block, superblock 3": {"userblock_size": 2048, "libver": "latest"},
}


def styles(tool, top):
    for label, options in STYLES.items():
        for extra in (0, 700):  # few links in messages, many in heaps and deep trees
            name = f"{label}, {extra} more"
            path, copy = os.path.join(top, "a.b.mdl"), os.path.join(top, "a.b_fixed.mdl")
            values = datasets(extra)
            write(path, values, options)
            with open(path, "rb") as f:
                before = f.read()
            for options_of_dry in ([], ["--fix_inplace"]):
                run = tool.fix(path, "--dry-run", *options_of_dry)
                with open(path, "rb") as f:
                    check(f"{name}: dry {options_of_dry}", run.returncode == 0 and "would be saved to" in run.stdout
                          and f.read() == before and not os.path.exists(copy), run.stderr)
            run = tool.fix(path)
            check(f"{name}: exit status", run.returncode == 0, run.stderr)
            check(f"{name}: lines", run.stdout.splitlines() == ["Fixing spec...", "Copying keys...", "Fixing duplicate weights...",
                                                                "Fixing last_epochs...", f"Fixed checkpoint saved to: {copy}"], run.stdout)
            with open(path, "rb") as f:
                check(f"{name}: the input stays", f.read() == before)
            if not os.path.exists(copy):
                continue
            check(f"{name}: values", not same_values(copy, expected(values)), same_values(copy, expected(values)))
            with h5py.File(copy, "r") as f, h5py.File(path, "r") as g:
                check(f"{name}: the spec", decoded(f.attrs["__spec__"]) == decoded(spec_hex(TREE, dict)), decoded(f.attrs["__spec__"]))
                check(f"{name}: other attributes", f.attrs["origin"] == "ünï" and list(f.attrs["numbers"]) == [1, 2, 3])
                tied = ["model.lm_head.weight", "model.embedding_layer.word_embeddings.weight"]
                infos = [h5py.h5o.get_info(f[n].id) for n in tied]
                check(f"{name}: one dataset, two links", infos[0].addr == infos[1].addr and infos[0].rc == infos[1].rc == 2, [i.rc for i in infos])
                check(f"{name}: attributes of datasets", all(dict(f[n].attrs) == {"is_bfloat16": False} for n in f))
                check(f"{name}: storage is kept", all(f[n].chunks == g[n].chunks and f[n].compression == g[n].compression
                                                      for n in g if "last_epoch" not in n))
            dump = subprocess.run(["h5dump", "-H", copy], capture_output=True, text=True, check=False)
            check(f"{name}: h5dump", dump.returncode == 0 and "HARDLINK" in dump.stdout and not dump.stderr, dump.stderr)

            # In place: the same, and once more without a change.
            run = tool.fix(path, "--fix_inplace", stdin="y\n")
            check(f"{name}: in place", run.returncode == 0 and run.stdout.endswith(f"Fixed checkpoint saved to: {path}\n"), run.stderr)
            check(f"{name}: in place, the same content", content(path) == content(copy))
            size = os.path.getsize(path)
            run = tool.fix(path, "--fix_inplace", "--yes", "--sync")
            check(f"{name}: a second time", run.returncode == 0 and os.path.getsize(path) == size, run.stderr)

            # HDF5 goes on working with it: links and datasets come and go.
            with h5py.File(path, "r+") as f:
                del f["model.embedding_layer.word_embeddings.weight"]
                check(f"{name}: the other link holds the data",
                      np.array_equal(f["model.lm_head.weight"][()], values["model.embedding_layer.word_embeddings.weight"]))
                f["again"] = f["model.lm_head.weight"]
                del f["model.lm_head.weight"]
                f["new"] = np.arange(1000)
                f["lr_scheduler.last_epoch"][...] = 5
                f.attrs["__spec__"] = "x" * 70000 if options == {} else "x"
                del f.attrs["origin"]
            with h5py.File(path, "r") as f:
                check(f"{name}: changed by h5py", np.array_equal(f["again"][()], values["model.embedding_layer.word_embeddings.weight"])
                      and f["new"][999] == 999 and f["lr_scheduler.last_epoch"][()] == 5)
            os.remove(path)
            os.remove(copy)


def links(tool, top):
    """Soft and external links stay, names of one dataset keep one count, and odd attributes come along."""
    path, out = os.path.join(top, "l.mdl"), os.path.join(top, "l_fixed.mdl")
    for options in ({}, {"libver": "latest"}):
        values = datasets()
        source = values.pop("model.ln_f.bias")
        write(path, values, options, link_soft=h5py.SoftLink("/model.w"), **{"model.ln_f.bias": h5py.SoftLink("/hidden/bias")})
        with h5py.File(path, "r+", **options) as f:
            f["hidden/bias"] = source
            f["link_hard"] = f["model.my_transformer_decoder.norm.weight"]
            f["link_ext"] = h5py.ExternalLink("elsewhere.h5", "/x")
            f["link_same"] = f["lr_scheduler.last_epoch"]
            for i in range(30):
                f.attrs[f"attribute {i}"] = np.arange(i)
            f.attrs.create("fixed text", np.bytes_(b"abc"))
            if options:
                f.attrs["large"] = np.arange(20000)  # beyond what a message holds
        run = tool.fix(path, "--fixed-checkpoint-path", out)
        if not options:
            # The dataset behind the soft link has a name in a group: its count could not be right.
            check("a dataset with names below", run.returncode == 1 and "groups below" in run.stderr and not os.path.exists(out), run.stderr)
            with h5py.File(path, "r+") as f:
                del f["model.ln_f.bias"], f["hidden/bias"]
                f["model.ln_f.bias"] = source
            run = tool.fix(path, "--fixed-checkpoint-path", out)
        else:
            with h5py.File(path, "r+", **options) as f:
                f["kept"] = f["hidden/bias"]
                del f["hidden/bias"], f["model.ln_f.bias"]
                f["model.ln_f.bias"] = h5py.SoftLink("/kept")
            run = tool.fix(path, "--fixed-checkpoint-path", out)
        check("links: exit status", run.returncode == 0, run.stderr)
        if run.returncode:
            continue
        with h5py.File(out, "r") as f, h5py.File(path, "r") as g:
            check("links: soft", f.get("link_soft", getlink=True).path == "/model.w" and np.array_equal(f["link_soft"][()], values["model.w"]))
            external = f.get("link_ext", getlink=True)
            check("links: external", isinstance(external, h5py.ExternalLink) and (external.filename, external.path) == ("elsewhere.h5", "/x"))
            rc = [h5py.h5o.get_info(f[n].id).rc for n in ("link_hard", "model.my_ln_f.weight", "model.my_transformer_decoder.norm.weight")]
            check("links: three names are counted", rc == [3, 3, 3], rc)
            check("links: another name keeps its value", f["link_same"][()] == 0 and f["lr_scheduler.last_epoch"][()] == 120
                  and h5py.h5o.get_info(f["link_same"].id).rc == 1)
            check("links: the bias", np.array_equal(f["model.transformer_decoder.norm.bias"][()], source))
            check("links: attributes", set(f.attrs) == set(g.attrs) and all(np.array_equal(f.attrs[n], g.attrs[n]) for n in g.attrs if n != "__spec__"))
        dump = subprocess.run(["h5dump", "-A", out], capture_output=True, text=True, check=False)
        check("links: h5dump", dump.returncode == 0, dump.stderr)
        shown = tool.run("ls", out)
        check("links: cbk reads it", shown.returncode == 0, shown.stderr)
        os.remove(path)
        os.remove(out)


def large_steps(tool, top):
    """Step counts are whole numbers, which a double does not hold from 2^53 on."""
    path, out = os.path.join(top, "s.mdl"), os.path.join(top, "s_fixed.mdl")
    step = 2**53 + 1
    values = {**datasets(), "global_step": np.int64(step), "lr_scheduler._schedulers.2.last_epoch": np.int64(0)}
    write(path, values)
    run = tool.fix(path)
    says = f"'lr_scheduler._schedulers.0.last_epoch': {step} does not fit int32"
    check("large steps: one that its dataset does not hold", run.returncode == 1 and says in run.stderr and not os.path.exists(out), run)
    write(path, {**values, "lr_scheduler._schedulers.0.last_epoch": np.int64(0)})
    run = tool.fix(path)
    check("large steps: exit status", run.returncode == 0, run.stderr)
    with h5py.File(out, "r") as f:
        names = {"last_epoch": step, "_schedulers.2.last_epoch": step - 100}
        found = {name: int(f["lr_scheduler." + name][()]) for name in names}
        check("large steps: exact", found == names, found)
    run = tool.fix(path, "--fixed_checkpoint_path", "")
    check("an empty output path", run.returncode == 2 and run.stdout == "" and "--fixed_checkpoint_path: expected a path" in run.stderr, run)


# ------------------------------------------------------------------ in place, killed

def tails(tool, top):
    """Every point at which the change of a file in place may end, as no kill hits them all (kills_interop.py): before the superblock is
    written, the old file counts."""
    path = os.path.join(top, "k.mdl")
    rng = random.Random(11)
    for options in ({}, {"libver": "latest"}):
        write(path, datasets(500), options)
        old = content(path)
        with open(path, "rb") as f:
            first = f.read()
        tool.fix(path, "--fix_inplace", "--yes")
        with open(path, "rb") as f:
            whole = f.read()
        check("old and new differ", old != content(path))
        head = bytearray(whole)
        head[:512] = first[:512]
        check("only the superblock changes in what was there", bytes(head[:len(first)]) == first)
        for cut in sorted({len(first), len(whole), *(rng.randrange(len(first), len(whole)) for _ in range(20))}):
            with open(path, "wb") as f:
                f.write(head[:cut])
            check(f"a tail of {cut - len(first)} bytes: the old file", content(path) == old)
            run = tool.fix(path, "--fix_inplace", "--yes")
            with open(path, "rb") as f:
                check("... and the fix works again", run.returncode == 0 and f.read() == whole, run.stderr)
        os.remove(path)


# ------------------------------------------------------------------ errors

def errors(tool, top):
    path, out = os.path.join(top, "e.mdl"), os.path.join(top, "e_fixed.mdl")

    def refused(name, part, *args, stdin="", make=None, status=1):
        for in_place in (False, True):
            if make:
                make()
            before = None
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    before = f.read()
            run = tool.fix(*(args or (path,)), *(["--fix_inplace", "--yes"] if in_place else []), stdin=stdin)
            check(f"error: {name}: exit status", run.returncode == status, f"{run.returncode} {run.stderr}")
            check(f"error: {name}: one line", run.stderr.count("\n") == 1 and part in run.stderr, run.stderr)
            after = None
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    after = f.read()
            check(f"error: {name}: nothing changed", after == before and not os.path.exists(out))

    def without(*names, tree=None, **changed):
        def make():
            values = {k: v for k, v in datasets().items() if k not in names}
            values.update(changed)
            write(path, values, tree=tree)
        return make

    def with_tree(tree, odd=TensorScalarDict):
        return lambda: write(path, datasets(), tree=tree, odd=odd)

    def text():
        with open(path, "w", encoding="ascii") as f:
            f.write("no HDF5")

    def spec(value):
        def make():
            write(path, datasets())
            with h5py.File(path, "r+") as f:
                del f.attrs["__spec__"]
                if value is not None:
                    f.attrs["__spec__"] = value
        return make

    def newest():
        if os.path.exists(path):
            os.remove(path)
        torch.save({"a": torch.zeros(2)}, path + ".pt")
        tool.run("copy", path + ".pt", path)
        os.remove(path + ".pt")

    class Evil:
        def __reduce__(self):
            return (os.system, ("touch " + os.path.join(top, "evil"),))

    refused("missing file", "e.mdl", path)
    refused("not HDF5", "not an HDF5 file", make=text)
    refused("a folder", "directory", top)
    refused("no spec", "__spec__", make=spec(None))
    refused("the spec is a number", "__spec__", make=spec(4))
    refused("not hex", "hex", make=spec("xyz"))
    refused("an evil spec", "__spec__", make=spec(pickle.dumps(Evil()).hex()))
    check("error: nothing was executed", not os.path.exists(os.path.join(top, "evil")))
    refused("another class", "Stranger", make=with_tree(TREE, Stranger))
    refused("a newer format", "2.5", make=newest)
    refused("no alias", "'unknown'", make=with_tree({**TREE, "unknown": 0}))
    refused("no source", "model.embedding_layer.word_embeddings.weight", make=without("model.embedding_layer.word_embeddings.weight"))
    refused("milestone without a number", "milestones.x", make=without(**{"lr_scheduler.milestones.x": np.int64(1)}))
    refused("too few milestones", "_schedulers.2", make=without("lr_scheduler.milestones.1", tree=tree_with(1)))
    refused("several global steps", "global_step", make=without(**{"global_step": np.array([1, 2])}))
    refused("a text for a step", "last_epoch", make=without(**{"lr_scheduler.last_epoch": "text"}))
    refused("managed free space", "h5repack", make=lambda: write(path, datasets(), {"fs_strategy": "fsm", "fs_persist": True}))
    refused("pages", "h5repack", make=lambda: write(path, datasets(), {"fs_strategy": "page"}))

    write(path, datasets())
    run = tool.fix(path, "--fixed_checkpoint_path", path)
    check("error: output is the input", run.returncode == 1 and "itself" in run.stderr, run.stderr)
    for answer in ("\n", "n\n", "yes\n", " y\n"):
        before = content(path)
        run = tool.fix(path, "--fix_inplace", stdin=answer)
        check(f"answer {answer!r}", run.returncode == 0 and content(path) == before and run.stdout ==
              "Are you sure you want to fix the checkpoint inplace? [y/N]: Aborting...\n", run.stdout + run.stderr)
    before = content(path)
    run = tool.fix(path, "--fix_inplace")
    check("no answer", run.returncode == 2 and "pass --yes (nothing was written)" in run.stderr and content(path) == before, run.stderr)
    with h5py.File(path, "r+"):
        run = tool.fix(path, "--fix_inplace", "--yes")
        check("error: open elsewhere", run.returncode == 1 and "another program" in run.stderr, run.stderr)
    with open(path, "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH)
        check("a copy needs no lock", tool.fix(path).returncode == 0)
    check("usage", tool.fix().returncode == 2 and tool.fix(path, "--nosuch").returncode == 2)

    # Without a global step the counts stay; an existing output is replaced with --overwrite only.
    values = datasets()
    del values["global_step"]
    write(path, values, tree=tree_with(step=False))
    before = content(out)
    run = tool.fix(path)
    check("an existing output", run.returncode == 1 and "--overwrite" in run.stderr and content(out) == before, run.stderr)
    run = tool.fix(path, "--overwrite")
    check("no global step", run.returncode == 0 and "Cannot fix last epoch(s) without a global_step key. Skipping...\n" in run.stdout, run.stdout)
    with h5py.File(out, "r") as f:
        check("no global step: unchanged", f["lr_scheduler.last_epoch"][()] == 0 and "model.lm_head.weight" in f)
    # Without milestones all schedules get the global step; a null dataset takes no value.
    values = {k: v for k, v in datasets().items() if "milestones" not in k}
    values["lr_scheduler.last_epoch"] = h5py.Empty("i8")
    write(path, values, tree=tree_with(0))
    run = tool.fix(path, "--fix_inplace", "--fixed_checkpoint_path", out, stdin="Y\n")
    with h5py.File(path, "r") as f:
        check("no milestones", run.returncode == 0 and f["lr_scheduler._schedulers.2.last_epoch"][0] == 120
              and f["lr_scheduler._schedulers.1.last_epoch"][()].tolist() == [[120, 120]], run.stderr)
        check("a null dataset stays", f["lr_scheduler.last_epoch"].shape is None)
    os.remove(path)
    os.remove(out)


# ------------------------------------------------------------------ data loaders

def data_iter(tool, top):
    """Inputs in every format, an entry that is there already, and the files that no golden has."""
    folder = os.path.join(top, "state")
    os.mkdir(folder)

    def put(name, text):
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as f:
            f.write(text)

    put("data_iter_checkpoint_state_file_global", " +1_0 \r\nsecond line")
    for worker, samples in ((11, "7\n"), (2, "1_000"), (0, "\t5\nx")):
        put(f"data_iter_state_file_worker_{worker}_step_10.txt", samples)
    put("data_iter_state_file_worker_2_step_9.txt", "not a number, and not read")
    put("notes.md", "")
    pt, mdl = os.path.join(top, "in.pt"), os.path.join(top, "in.mdl")
    torch.save({"model": {"w": torch.arange(6.0)}, "dataloader": {"old": 1}, "global_step": 10}, pt)
    tool.run("copy", pt, mdl)
    for source in (pt, mdl):
        for kind, entry in (("map", {"samples_streamed": 1012, "seed": 7}),
                            ("iterable", {"all_worker_states": [{"samples_streamed": 5, "shard_index": 0}, {"samples_streamed": 1000, "shard_index": 2},
                                                                {"samples_streamed": 7, "shard_index": 11}]})):
            out, back = os.path.join(top, "out.x"), os.path.join(top, "back.pt")
            run = tool.run("data-iter-state-conversion", "-c", source, "-w", folder, "-o", out, "-d", kind, "-s", "7")
            check(f"data loader, {kind}: exit status", run.returncode == 0, run.stderr)
            with h5py.File(out, "r") as f:
                check(f"data loader, {kind}: an H5 file of format 0.4", abs(f.attrs["__version__"] - 0.4) < 1e-6)
            tool.run("copy", out, back)
            state = torch.load(back)
            check(f"data loader, {kind}: the state", state["dataloader"] == entry and list(state) == ["model", "dataloader", "global_step"], state)
            check(f"data loader, {kind}: the rest", torch.equal(state["model"]["w"], torch.arange(6.0)) and state["global_step"] == 10)
            run = tool.run("data-iter-state-conversion", "-c", source, "-w", folder, "-o", out)
            check("data loader: an output that is there", run.returncode == 1 and "exists" in run.stderr and run.stderr.count("\n") == 1, run.stderr)
            shown = tool.run("show", "--dataloader", "--json", out, "--batch-size", "4")
            report = json.loads(shown.stdout) if shown.returncode == 0 else {}
            check(f"data loader, {kind}: where it resumes", report.get("samples_streamed") == 1012 and report.get("kind") == kind, shown.stderr)
            os.remove(out)
            os.remove(back)

    seeds(tool, top, pt, folder)
    data_iter_errors(tool, top, pt, folder, put)


def seeds(tool, top, checkpoint, states):
    """Whatever Python's int() takes, in every spelling of the option."""
    out, back = os.path.join(top, "seed.mdl"), os.path.join(top, "seed.pt")
    largest = 2**63 - 1
    for args, seed in ((("-s", "-5"), -5), (("-s-5",), -5), (("--shuffle_seed", "-5"), -5), (("--shuffle-seed=-5",), -5), (("-s", " +1_0 "), 10),
                       (("-s", str(2**53 + 1)), 2**53 + 1), (("--shuffle_seed", str(largest)), largest), (("-s", str(-largest - 1)), -largest - 1),
                       (("-s", str(2**64 - 1), "--h5-version", "0.5"), 2**64 - 1)):
        run = tool.run("data-iter-state-conversion", "-c", checkpoint, "-w", states, "-o", out, "--overwrite", *args)
        check(f"seed {args}: exit status", run.returncode == 0, run.stderr)
        tool.run("copy", out, back, "--overwrite")
        check(f"seed {args}", torch.load(back)["dataloader"] == {"samples_streamed": 1012, "seed": seed}, torch.load(back)["dataloader"])
        shown = tool.run("show", "--dataloader", out)
        check(f"seed {args}: shown", shown.returncode == 0 and (abs(seed) > 2**53 or f"seed {seed}" in shown.stdout), shown.stdout + shown.stderr)
    os.remove(out)
    run = tool.run("data-iter-state-conversion", "-c", checkpoint, "-w", states, "-o", out, "-s", str(2**64))
    check("a seed beyond 64 bits", run.returncode == 1 and "dataloader.seed" in run.stderr and "64 bits" in run.stderr and not os.path.exists(out), run.stderr)
    for text in ("x", "1.0", "1e3", "0x10", "", "_1", "--", "-"):
        run = tool.run("data-iter-state-conversion", "-c", checkpoint, "-w", states, "-o", out, "-s", text)
        check(f"seed {text!r}", run.returncode == 2 and run.stderr.count("\n") == 1 and ("seed" in run.stderr or "-s" in run.stderr), run.stderr)


def data_iter_errors(tool, top, pt, folder, put):
    out, last = os.path.join(top, "never.mdl"), os.path.join(folder, "data_iter_checkpoint_state_file_global")

    def refused(name, *parts, checkpoint=pt, states=folder, target=out):
        run = tool.run("data-iter-state-conversion", "-c", checkpoint, "-w", states, "-o", target)
        good = run.returncode == 1 and run.stderr.count("\n") == 1 and all(part in run.stderr for part in parts)
        check(f"data loader error: {name}", good and "traceback" not in run.stderr and not run.stdout, run.stderr)
        check(f"data loader error: {name}: nothing is left", not os.path.exists(out))

    def other(name, content):
        path = os.path.join(top, name)
        if isinstance(content, bytes):
            with open(path, "wb") as f:
                f.write(content)
        else:
            torch.save(content, path)
        return path
    refused("a folder as checkpoint", f"'{top}' is a folder", checkpoint=top)
    refused("no checkpoint", "in.ptx' does not exist", checkpoint=pt + "x")
    refused("no name of a checkpoint", "'' does not exist", checkpoint="")
    refused("a text as checkpoint", "text.mdl", checkpoint=other("text.mdl", b"some text"))
    refused("an empty checkpoint", "empty.mdl", checkpoint=other("empty.mdl", b""))
    with open(pt, "rb") as f:
        refused("a checkpoint cut short", "cut.pt", checkpoint=other("cut.pt", f.read()[:-100]))
    refused("a list as checkpoint", "list.pt' is not a dict (list)", checkpoint=other("list.pt", [1, 2]))
    refused("a file as folder", f"'{pt}' is not a folder", states=pt)
    refused("no folder", "statex' is not a folder", states=folder + "x")
    refused("a folder without the file of the step", "data_iter_checkpoint_state_file_global' is missing", states=top)
    refused("a file in place of the output's folder", "cannot write into", target=os.path.join(pt, "x.mdl"))
    refused("a folder as output", "exists already", target=folder)
    for bad, text, *parts in (("a_1_b_10.txt", "1.0", "'1.0'"), ("a_1_b_10.txt", ""), ("a_1_b_10.txt", "\n5"), ("x_y.txt", "1"), ("1_b_x.txt", "1"),
                              ("a_b_c_10.txt", "1"), (".txt", "1"), ("a_1_b_10.txt", str(2**63), "more than a checkpoint can hold"), ("notes.txt", "")):
        put(bad, text)
        refused(f"{bad!r} with {text!r}", bad, *parts)
        os.remove(os.path.join(folder, bad))
    os.mkdir(os.path.join(folder, "a_1_b_10.txt"))
    refused("a folder as a worker's file", "a_1_b_10.txt")
    os.rmdir(os.path.join(folder, "a_1_b_10.txt"))
    os.symlink("gone", os.path.join(folder, "a_1_b_10.txt"))
    refused("a link that leads nowhere", "a_1_b_10.txt")
    os.remove(os.path.join(folder, "a_1_b_10.txt"))
    for text in ("", "ten", "1 0", "1.5"):
        put(os.path.basename(last), text)
        refused(f"a step {text!r}", "data_iter_checkpoint_state_file_global", "first line")
    os.remove(last)
    os.mkdir(last)
    refused("a folder as the step", "data_iter_checkpoint_state_file_global")
    for args in (("-w", folder, "-o", out), ("-c", pt, "-o", out), ("-c", pt, "-w", folder), ("-c", pt, "-w", folder, "-o", out, "-d", "other"),
                 ("-c", pt, "-w", folder, "-o", out, "more"), ("-c", pt, "-w", folder, "-o", out, "-x")):
        run = tool.run("data-iter-state-conversion", *args)
        check(f"data loader usage: {args}", run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    tool = Tool(os.path.abspath(parser.parse_args().cbk))
    for part in (styles, links, large_steps, tails, errors, data_iter):
        top = tempfile.mkdtemp(prefix="cbk-upgrade-")
        try:
            part(tool, top)
        finally:
            shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
