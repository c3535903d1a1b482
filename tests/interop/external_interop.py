#!/usr/bin/python3
"""Files that a checkpoint names: nothing outside its own folder is read, unless --allow-external says so.

Usage: external_interop.py --cbk PATH
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch

import harness

SECRET = bytes(range(33, 97))  # 64 bytes, 16 float32
DTYPE_PICKLE = "80049515000000000000008c05746f726368948c07666c6f617433329493942e"  # torch.float32


def replace_by_null(f, name):
    """The dataset as formats up to 0.4 have values that are somewhere else."""
    del f[name]
    f.create_dataset(name, data=h5py.Empty("f4"))
    return f[name].attrs


def file_tensor(f, name, target):
    attrs = replace_by_null(f, name)
    attrs["__H5_TYPE__"] = "DeferredFileTensor"
    attrs["filepath"], attrs["dtype"] = target, DTYPE_PICKLE
    attrs["shape"] = np.array([16])


def linked_tensor(f, name, target):
    attrs = replace_by_null(f, name)
    attrs["__H5_TYPE__"] = "DeferredH5Tensor"
    attrs["filepath"], attrs["key"] = target, "w"


def external_link(f, name, target):
    del f[name]
    f[name] = h5py.ExternalLink(target, "/w")


def external_storage(f, name, target):
    attrs = dict(f[name].attrs)
    del f[name]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(target.encode(), 0, len(SECRET))
    h5py.h5d.create(f.id, name.encode(), h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((16,)), plist)
    f[name].attrs.update(attrs)


def metadata(f, name, **values):
    key = name + ".__metadata__"
    whole = json.loads(f.attrs[key])
    whole[key] = {**values, "__NONE__": True}
    del f[name], f.attrs[key]
    f.attrs[key] = json.dumps(whole, indent=4)


def deferred_object(f, name, target):
    metadata(f, name, __TYPE__="DeferredObject", deferred_object_cls="x", path=target, key="w", index=0, metadata={})


def deferred_safetensor(f, name, target):
    metadata(f, name, __TYPE__="DeferredSafeTensor", path=target, key="w")


def deferred_file(f, name, target):
    metadata(f, name, __TYPE__="DeferredFileTensor", filepath=target, shape=[16], dtype="torch.float32")


# how a file is named: (H5 version, what makes it, the kind of file that is named)
WAYS = {
    "0.4 filepath of raw bytes": ("0.4", file_tensor, "raw"),
    "0.4 filepath of H5": ("0.4", linked_tensor, "h5"),
    "0.4 external link": ("0.4", external_link, "h5"),
    "0.4 external storage": ("0.4", external_storage, "raw"),
    "0.5 link": ("0.5", deferred_object, "h5"),
    "0.5 safetensors": ("0.5", deferred_safetensor, "safetensors"),
    "0.5 filepath": ("0.5", deferred_file, "raw"),
    "0.5 external link": ("0.5", external_link, "h5"),
    "0.5 external storage": ("0.5", external_storage, "raw"),
}
COMMANDS = ["dump", "ls", "show", "check", "diff", "copy", "h5-to-tensorflow"]


def words_of(command, path, out):
    more = {"show": ["w"], "diff": [path], "copy": [out + ".pt"], "h5-to-tensorflow": [out]}
    return [command, path, *more.get(command, [])]


class Suite(harness.Run):
    def setup(self):
        """run/ has the checkpoints, other/ what they shall not reach, and so has here/, where cbk is called."""
        values = np.frombuffer(SECRET, np.float32)
        for folder in ("run", "other", "here", "other/sub"):
            os.makedirs(self.path(folder), exist_ok=True)
        for folder, factor in (("other", 1), ("here", 2)):
            place = self.path(folder)
            torch.save({"w": torch.tensor(values * factor)}, self.path("w.pt"))
            with open(f"{place}/raw", "wb") as f:
                f.write((values * factor).tobytes())
            self.call("copy", self.path("w.pt"), f"{place}/safetensors", "--format", "safetensors")
            with h5py.File(f"{place}/h5", "w") as f:
                f["w"] = values * factor
        torch.save({"w": torch.zeros(16), "v": torch.ones(2)}, self.path("plain.pt"))
        os.symlink("../other", self.path("run/linked"))

    def targets(self, kind):
        """Names that leave the folder, or are symbolic links in it."""
        return [self.path(f"other/{kind}"), f"../other/{kind}", f"linked/{kind}", f"link_{kind}"]

    def make(self, way, target):
        version, change, _ = WAYS[way]
        path = self.path("run/" + way.replace(" ", "_").replace(".", "_") + ".mdl")
        self.call("copy", self.path("plain.pt"), path, "--h5-version", version, "--overwrite")
        with h5py.File(path, "r+") as f:
            change(f, "w", target)
        return path

    def run_here(self, *args):
        return subprocess.run([self.cbk, *args], capture_output=True, text=True, timeout=120, check=False, cwd=self.path("here"))

    def refused(self, done, *words):
        assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, (done.returncode, done.stdout[-200:], done.stderr[-500:])
        for word in words:
            assert word in done.stderr, (word, done.stderr)
        everything = done.stdout + done.stderr
        assert "".join(map(chr, SECRET[:8])) not in everything and SECRET.hex()[:16] not in everything, everything


def refused_names(run, way):
    kind = WAYS[way][2]
    link = run.path(f"run/link_{kind}")
    if not os.path.lexists(link):
        os.symlink(f"../other/{kind}", link)
    for target in run.targets(kind):
        path = run.make(way, target)
        for command in COMMANDS if target.startswith("..") else COMMANDS[:1]:
            run.refused(run.run_here(*words_of(command, path, run.path("out"))), "'w'", f"'{target}'", "--allow-external", os.path.basename(path))
            assert not os.path.exists(run.path("out.pt")) and not os.path.exists(run.path("out.index")), command


def allowed_names(run, way):
    kind = WAYS[way][2]
    for target in run.targets(kind):
        path = run.make(way, target)
        done = run.run_here("copy", path, run.path("got.pt"), "--overwrite", "--allow-external", run.path("here"), "--allow-external", run.path("other"))
        assert done.returncode == 0, done.stderr
        got = torch.load(run.path("got.pt"))["w"].numpy().tobytes()
        assert got == SECRET, (target, got)
        again = run.run_here("-e", f"return cbk.open({json.dumps(path)}, {{ allow_external = {{ {json.dumps(run.path('other'))} }} }}).root.w:hex()")
        assert SECRET.hex() in again.stdout, again
    done = run.run_here("copy", path, run.path("no.pt"), "--allow-external", run.path("other/sub"))
    run.refused(done, "--allow-external")
    assert not os.path.exists(run.path("no.pt"))


def working_directory(run, way):
    """A file of that name where cbk is called is not it."""
    done = run.run_here("copy", run.make(way, WAYS[way][2]), run.path("wd.pt"), "--overwrite")
    assert done.returncode == 1 and f"'{WAYS[way][2]}'" in done.stderr, (done.returncode, done.stderr)
    beside = run.path("run/" + WAYS[way][2])
    with open(run.path("other/" + WAYS[way][2]), "rb") as source, open(beside, "wb") as target:
        target.write(source.read())
    done = run.run_here("copy", run.make(way, WAYS[way][2]), run.path("wd.pt"), "--overwrite")
    assert done.returncode == 0, done.stderr
    assert torch.load(run.path("wd.pt"))["w"].numpy().tobytes() == SECRET
    os.remove(beside)


def indexes(run):
    run.call("copy", run.path("plain.pt"), run.path("other/shard.safetensors"))
    index = run.path("run/model.safetensors.index.json")

    def write(name):
        with open(index, "w", encoding="utf-8") as f:
            json.dump({"metadata": {}, "weight_map": {"w": name}}, f)

    for name in ("../other/shard.safetensors", run.path("other/shard.safetensors"), "linked/shard.safetensors", "a/../../other/shard.safetensors"):
        write(name)
        run.refused(run.run_here("copy", index, run.path("index.pt")), "'w'", name, "--allow-external")
        run.call("copy", index, run.path("index.pt"), "--allow-external", run.path("other"), "--overwrite")
        os.remove(run.path("index.pt"))
    os.symlink("../other/shard.safetensors", run.path("run/shard.safetensors"))
    write("shard.safetensors")
    run.refused(run.run_here("copy", index, run.path("index.pt")), "'shard.safetensors'", "symbolic link", "--allow-external", run.path("other"))
    run.call("copy", index, run.path("index.pt"), "--allow-external", run.path("other"))
    os.remove(index)


def folders(run):
    """A file that is found in a folder, and one that is named; data files of TensorFlow; a config, tokenizer files and an adapter."""
    run.call("copy", run.path("plain.pt"), run.path("other/one.safetensors"))
    run.call("copy", run.path("plain.pt"), run.path("other/t"), "--format", "tensorflow", "--overwrite")
    place = run.path("found")
    os.makedirs(place + "/bundle")
    os.symlink("../other/one.safetensors", place + "/model.safetensors")
    os.symlink("../../other/t.index", place + "/bundle/t.index")
    os.symlink("../../other/t.data-00000-of-00001", place + "/bundle/t.data-00000-of-00001")
    for name in (place, place + "/bundle", place + "/bundle/t", place + "/bundle/t.index"):
        for command in ("ls", "check", "stats"):
            run.refused(run.run_here(command, name), "symbolic link", "--allow-external")
        run.call("ls", name, "--allow-external", run.path("other"))
    run.call("ls", place + "/model.safetensors")


def files_beside(run):
    base, adapter = run.path("base"), run.path("adapter")
    os.makedirs(base), os.makedirs(adapter)
    torch.save({"w.weight": torch.ones(4, 4)}, base + "/pytorch_model.bin")
    torch.save({"base_model.model.w.lora_A.weight": torch.ones(1, 4), "base_model.model.w.lora_B.weight": torch.ones(4, 1)}, adapter + "/adapter_model.bin")
    with open(adapter + "/adapter_config.json", "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["w"]}, f)
    for name in ("tokenizer.json", "config.json"):
        with open(run.path("other/" + name), "wb") as f:
            f.write(b'{"model_type": "llama", "secret": "' + SECRET.replace(b'"', b"").replace(b"\\", b"") + b'"}')
    fold = ["fold-lora-checkpoint", base, "--adapter", adapter, "-o", run.path("folded")]
    for name in ("tokenizer.json", "config.json"):
        os.symlink(f"../other/{name}", f"{base}/{name}")
        run.refused(run.run_here(*fold), f"'{name}'", "symbolic link", "--allow-external")
        assert not os.path.exists(run.path("folded"))
        if name == "tokenizer.json":
            os.remove(f"{base}/{name}")
    done = run.run_here("identify", base)
    assert "".join(map(chr, SECRET[:1] + SECRET[2:8])) not in done.stdout + done.stderr, done
    run.call(*fold, "--allow-external", run.path("other"))


def merged(run):
    """The files beside the weights of models that are merged or compared."""
    a, b = run.path("merge_a"), run.path("merge_b")
    for name, link in (("merge_a", "config.json"), ("merge_b", "tokenizer.json")):
        os.makedirs(run.path(name))
        torch.save({"m.up.weight": torch.ones(4, 4) * len(os.listdir(run.folder))}, run.path(name + "/pytorch_model.bin"))
        os.symlink(f"../other/{link}", run.path(f"{name}/{link}"))
    with open(run.path("merge.yml"), "w", encoding="utf-8") as f:
        f.write(f"merge_method: linear\nparameters: {{weight: 1}}\nmodels: [{{model: {b}}}, {{model: {a}}}]\n")
    merge = ["merge", run.path("merge.yml"), "-o", run.path("merge_out")]
    extract = ["extract-lora", b, a, "-o", run.path("extract_out"), "--rank", "1"]
    run.refused(run.run_here(*merge), "'config.json'", "symbolic link", "--allow-external")
    run.refused(run.run_here(*extract), "'config.json'", "symbolic link", "--allow-external")
    os.remove(run.path("merge_a/config.json"))
    run.refused(run.run_here(*merge), "'tokenizer.json'", "symbolic link", "--allow-external")
    assert not os.path.exists(run.path("merge_out")) and not os.path.exists(run.path("extract_out"))


def parts(run):
    """The configs of a model that has a folder for each part."""
    top = run.path("llava")
    for name in ("text_model", "image_model"):
        os.makedirs(f"{top}/{name}")
        torch.save({"w": torch.ones(1)}, f"{top}/{name}/pytorch_model.bin")
        os.symlink("../../other/config.json", f"{top}/{name}/config.json")
    run.refused(run.run_here("convert", top, "--model", "llava", "--src-fmt", "hf", "--to", "cs-2.3", "-o", run.path("x")), "'config.json'", "symbolic link", "--allow-external")


def beside(run):
    """What commands look for in a folder that the user names, or beside a file: configs, folders of parts, states of data loaders."""
    folder, adapter, parts_of = run.path("beside"), run.path("beside_adapter"), run.path("beside_parts")
    os.makedirs(folder), os.makedirs(adapter), os.makedirs(parts_of)
    hidden = run.path("other/hidden.json")
    with open(hidden, "w", encoding="utf-8") as f:
        json.dump({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "quantization_config": {"quant_method": "HUNTER2"},
                   "peft_type": "HUNTER2", "HUNTER2": "HUNTER2"}, f)
    torch.save({"w.weight": torch.ones(4, 4)}, folder + "/pytorch_model.bin")
    torch.save({"base_model.model.w.lora_A.weight": torch.ones(1, 4)}, adapter + "/adapter_model.bin")
    os.symlink("../other/hidden.json", folder + "/config.json")
    os.symlink("../other/hidden.json", adapter + "/adapter_config.json")
    for command in (["params", folder], ["new", folder, "-o", run.path("beside.pt")], ["fold-lora-checkpoint", folder, "--adapter", adapter, "-o", run.path("o")],
                    ["convert-config", folder, "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "-o", run.path("o")]):
        run.refused(run.run_here(*command), "symbolic link")
    run.call("copy", folder + "/pytorch_model.bin", run.path("other/fixed.mdl"), "--h5-version", "0.4")
    with open(run.path("other/fixed.mdl"), "rb") as f:
        before = f.read()
    os.symlink("../other/fixed.mdl", folder + "/fixed.mdl")
    run.refused(run.run_here("fix-checkpoint-spec", folder + "/fixed.mdl", "--fix_inplace", "--yes"), "symbolic link", "fixed.mdl")
    with open(run.path("other/fixed.mdl"), "rb") as f:
        assert f.read() == before
    for command in (["ls", folder], ["ls", folder + "/pytorch_model.bin"], ["copy", folder, run.path("beside.pt"), "--to-dtype", "float16"], ["identify", adapter],
                    ["check", folder], ["identify", folder]):
        done = run.run_here(*command)
        assert "HUNTER2" not in done.stdout + done.stderr, (command, done)
    for name in ("language_model", "vision_tower"):
        os.symlink("../other", f"{parts_of}/{name}")
    run.refused(run.run_here("check", parts_of), "language_model' is a symbolic link", "--allow-external")
    top = run.path("llava_by_link")
    os.makedirs(top)
    for name in ("text_model", "image_model"):
        os.symlink(f"../llava/{name}", f"{top}/{name}")
    run.refused(run.run_here("convert", top, "--model", "llava", "--src-fmt", "hf", "--to", "cs-2.3", "-o", run.path("x")), "is a symbolic link", "--allow-external")
    shards = run.path("beside_shards")
    run.call("copy", run.path("plain.pt"), shards, "--format", "safetensors", "--shard-size", "32")
    first = sorted(name for name in os.listdir(shards) if name.endswith(".safetensors"))[0]
    os.rename(f"{shards}/{first}", run.path("other/" + first))
    os.symlink("../other/" + first, f"{shards}/{first}")
    run.refused(run.run_here("check", shards), "symbolic link", "--allow-external")
    run.call("check", shards, "--no-values", "--allow-external", run.path("other"))
    index = "model.safetensors.index.json"
    os.rename(f"{shards}/{index}", run.path("other/" + index))
    os.symlink("../other/" + index, f"{shards}/{index}")
    run.refused(run.run_here("check", shards), "symbolic link", "--allow-external")
    states = run.path("states")
    os.makedirs(states)
    os.symlink("../other/hidden.json", states + "/data_iter_checkpoint_state_file_global")
    run.refused(run.run_here("show", "--dataloader", states), "symbolic link")


def cache(run):
    """A model in the cache of Hugging Face, read as a folder, by its index, and by a link to it."""
    top = run.path("cache/models--a--b")
    snapshot, blobs = top + "/snapshots/0123", top + "/blobs"
    run.call("copy", run.path("plain.pt"), run.path("sharded"), "--format", "safetensors", "--shard-size", "32")
    os.makedirs(snapshot), os.makedirs(blobs)
    for number, name in enumerate(sorted(os.listdir(run.path("sharded")))):
        os.rename(run.path("sharded/" + name), f"{blobs}/{number:064}")
        os.symlink(f"../../blobs/{number:064}", f"{snapshot}/{name}")
    os.symlink("cache/models--a--b/snapshots/0123", run.path("model"))
    for name in (snapshot, snapshot + "/model.safetensors.index.json", run.path("model")):
        run.call("stats", name)
    os.rename(blobs, run.path("elsewhere"))
    os.symlink("../../elsewhere", blobs)
    run.refused(run.run_here("ls", snapshot), "symbolic link", "--allow-external")


def state_files(run):
    run.call("copy", run.path("plain.pt"), run.path("other/m"), "--format", "tensorflow")
    folder = run.path("bundles")
    os.makedirs(folder)
    os.symlink("../other", folder + "/linked")
    for name in ("m.index", "m.data-00000-of-00001"):
        os.symlink("../other/" + name, folder + "/" + name)
    for name in ("../other/m", "linked/m", "m", run.path("other/m")):
        with open(folder + "/checkpoint", "w", encoding="utf-8") as f:
            f.write(f'model_checkpoint_path: "{name}"\n')
        run.refused(run.run_here("copy", folder, run.path("state.pt")), "state file 'checkpoint'", "--allow-external")
        run.call("copy", folder, run.path("state.pt"), "--allow-external", run.path("other"), "--overwrite")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    with tempfile.TemporaryDirectory(prefix="cbk-external-") as folder:
        run = Suite(parser.parse_args().cbk, folder)
        run.setup()
        for way in WAYS:
            run.check(f"{way}: refused", lambda way=way: refused_names(run, way))
            run.check(f"{way}: allowed", lambda way=way: allowed_names(run, way))
            run.check(f"{way}: the working directory does not count", lambda way=way: working_directory(run, way))
        run.check("indexes of shards", lambda: indexes(run))
        run.check("files found in folders", lambda: folders(run))
        run.check("files beside a checkpoint", lambda: files_beside(run))
        run.check("models that are merged", lambda: merged(run))
        run.check("configs of parts", lambda: parts(run))
        run.check("what is beside", lambda: beside(run))
        run.check("a cache of Hugging Face", lambda: cache(run))
        run.check("state files", lambda: state_files(run))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
