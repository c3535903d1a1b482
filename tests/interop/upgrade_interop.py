#!/usr/bin/python3
"""`cbk upgrade` from a checkpoint of release 1.8, written here as that release wrote it (a pickled tree with TensorScalarDict nodes,
tied weights stored once, data loader states beside it), to 2.5: h5py finds every value where it belongs.

Usage: upgrade_interop.py --cbk PATH
"""
import argparse
import io
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import yaml
from torch.utils import _pytree

import harness
from upgrade_tools_interop import DillLike, TensorScalarDict


# ------------------------------------------------------------------ writing as old releases did
class Bf16:
    """The bits of a bfloat16 tensor."""

    def __init__(self, bits):
        self.bits = np.asarray(bits, np.int16)


def flatten(tree, prefix=""):
    """(dotted key, leaf) pairs and the spec."""
    if isinstance(tree, dict):
        items, kind, context = list(tree.items()), type(tree), list(tree)
    elif isinstance(tree, (list, tuple)):
        items, kind, context = list(enumerate(tree)), type(tree), None
    else:
        return [(prefix, tree)], _pytree.LeafSpec()
    leaves, specs = [], []
    for key, value in items:
        inner, spec = flatten(value, f"{prefix}.{key}" if prefix else str(key))
        leaves += inner
        specs.append(spec)
    return leaves, _pytree.TreeSpec(kind, context, specs)


def save_old(path, tree, version, omit=()):
    leaves, spec = flatten(tree)
    stream = io.BytesIO()
    DillLike(stream, 4).dump(spec)
    with h5py.File(path, "w") as f:
        f.attrs["__spec__"] = stream.getvalue().hex()
        if version > 0.1:
            f.attrs["__version__"] = version
        for key, leaf in leaves:
            if key in omit:
                continue
            if leaf is None:
                f[key] = h5py.Empty("f4")
                f[key].attrs["is_none"] = True
            elif isinstance(leaf, str):
                f[key] = h5py.Empty("f4")
                f[key].attrs["is_string"], f[key].attrs["string_val"] = True, leaf
            elif isinstance(leaf, Bf16):
                f[key] = leaf.bits
                f[key].attrs["is_bfloat16"] = True
            else:
                f[key] = leaf
                if not isinstance(leaf, np.ndarray):
                    f[key].attrs["is_scalar"] = True


# ------------------------------------------------------------------ reading format 0.5
def read_new(path):
    """Key → leaf; a link is the very object that it names. Also the kind of tree: the keys with their order."""
    with h5py.File(path, "r") as f:
        assert f.attrs["__version__"] == 0.5 and f.attrs["__SUCCESS__"]
        found, links = {}, {}
        for name, text in f.attrs.items():
            if not name.endswith(".__metadata__"):
                continue
            key, leaf = name[: -len(".__metadata__")], json.loads(text)
            meta = leaf[f"{key}.__metadata__"]
            kind = meta["__TYPE__"]
            if kind == "TorchTensorSerializer":
                found[key] = Bf16(f[key][()]) if meta["dtypes"] == ["torch.bfloat16"] else np.asarray(f[key][()])
            elif kind == "LinkedObject":
                links[key] = meta["key"]
            else:
                found[key] = {"ScalarSerializer": "scalar_value", "StringSerializer": "string_value", "NoneSerializer": None}[kind]
                found[key] = meta[found[key]] if found[key] else None
        for key, source in links.items():
            found[key] = found[source]
        return found, links, str(f.attrs["__cstorch_version__"]), json.loads(f.attrs["__spec__"])


def containers(tree):
    """A tree of plain containers, its leaves left out; a TensorScalarDict has become a dict."""
    if isinstance(tree, dict):
        return {key: containers(value) for key, value in tree.items()}
    return type(tree)(containers(value) for value in tree) if isinstance(tree, (list, tuple)) else None


def containers_of_spec(node):
    """The same from a node of the `__spec__` of format 0.5."""
    children = [containers_of_spec(child) for child in node["children_spec"]]
    if node["type"] is None:
        return None
    if node["type"] == "builtins.dict":
        keys = json.loads(node["context"])
        assert len(keys) == len(children)
        return dict(zip(keys, children))
    return {"builtins.list": list, "builtins.tuple": tuple}[node["type"]](children)


def same(a, b):
    if isinstance(a, Bf16) or isinstance(b, Bf16):
        return isinstance(a, Bf16) and isinstance(b, Bf16) and same(a.bits, b.bits)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
                and a.tobytes() == b.tobytes())
    return type(a) is type(b) and a == b


# ------------------------------------------------------------------ the run of 1.8
HIDDEN, VOCAB, POSITIONS, LAYERS, STEP = 8, 11, 6, 2, 150
TIED = {"model.model.lm_head.weight": "model.model.embedding_layer.word_embeddings.weight",
        "model.model.ln_f.weight": "model.model.transformer_decoder.norm.weight",
        "model.model.transformer_decoder.norm.bias": "model.model.ln_f.bias"}


def make_tree():
    random = np.random.default_rng(3)

    def tensor(*shape):
        return random.standard_normal(shape).astype(np.float32)

    model = {"model.embedding_layer.word_embeddings.weight": tensor(VOCAB, HIDDEN),
             "model.embedding_layer.position_embeddings.weight": tensor(POSITIONS, HIDDEN)}
    for i in range(LAYERS):
        layer = f"model.transformer_decoder.layers.{i}."
        for name in ("q", "k", "v", "output"):
            model[f"{layer}self_attn.proj_{name}_dense_layer.weight"] = tensor(HIDDEN, HIDDEN)
        model[layer + "ffn.ffn.0.linear_layer.weight"] = Bf16(random.integers(-30000, 30000, (2 * HIDDEN, HIDDEN)))
        model[layer + "norm1.weight"] = tensor(HIDDEN)
    for key in ("transformer_decoder.norm.weight", "transformer_decoder.norm.bias", "lm_head.weight", "ln_f.weight", "ln_f.bias"):
        model["model." + key] = tensor(VOCAB, HIDDEN) if "head" in key else tensor(HIDDEN)
    state = {i: TensorScalarDict(exp_avg=tensor(3, 2), exp_avg_sq=tensor(3, 2), step=np.array(STEP, np.int64)) for i in range(2)}
    group = {"lr": np.array(0.01, np.float32), "eps": 1e-6, "betas": (0.9, 0.95), "name": "all", "closure": None, "params": [0, 1]}
    return {
        "model": model,
        "optimizer": {"state": state, "param_groups": [group]},
        "lr_scheduler": {
            "_milestones": [100, 130],
            "_schedulers": [{"last_epoch": np.array(7, np.int64), "base": 0.1}, {"last_epoch": 7},
                            {"last_epoch": np.array(0.0, np.float32), "base": 0.3}],
            "last_epoch": np.array(7, np.int64),
        },
        "global_step": np.array(STEP, np.int64),
    }


def make_config(states=None, processor="GptHDF5DataProcessor"):
    config = {
        "model": {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_heads": 2, "vocab_size": VOCAB, "use_rms_norm": False,
                  "max_position_embeddings": POSITIONS, "share_embedding_weights": True, "filter_size": 16, "dropout_rate": 0.0,
                  "use_position_embedding": True, "mixed_precision": True, "precision_opt_level": 1, "use_bfloat16": True},
        "optimizer": {"optimizer_type": "AdamW", "beta1": 0.9, "beta2": 0.95, "weight_decay_rate": 1e-2,
                      "learning_rate": {"scheduler": "Linear", "initial_learning_rate": 1e-3, "end_learning_rate": 0.0, "steps": 90}},
        "runconfig": {"max_steps": 1000, "checkpoint_steps": 100, "keep_checkpoint_max": 2, "num_wgt_servers": 4, "seed": 1},
        "train_input": {"data_processor": processor, "data_dir": "x", "batch_size": 4},
    }
    if states:
        config["cerebras"] = {"save_iter_state_path": states}
    return config


def prepared(cbk, folder, checkpoint, states, *commands):
    """The checkpoint after some commands that write a new one."""
    for i, command in enumerate(commands):
        new = os.path.join(folder, f"prepared_{i}.mdl")
        arguments = {"fix-checkpoint-spec": [checkpoint, "--fixed_checkpoint_path", new, "--overwrite"], "copy": [checkpoint, new, "--overwrite"],
                     "data-iter-state-conversion": ["-c", checkpoint, "-w", states, "-o", new, "-d", "iterable", "--overwrite"]}[command]
        subprocess.run([cbk, command, *arguments], check=True, timeout=60, stdout=subprocess.DEVNULL)
        checkpoint = new
    return checkpoint


class Tests:
    def __init__(self, cbk, folder):
        self.cbk, self.folder = cbk, folder
        self.tree = make_tree()
        self.checkpoint = os.path.join(folder, "checkpoint_150.mdl")
        self.config = os.path.join(folder, "params.yaml")
        self.out = os.path.join(folder, "out")
        self.write(0.2)
        states = os.path.join(folder, "states")
        os.mkdir(states)
        files = {"data_iter_checkpoint_state_file_global": f"{STEP}\n", "data_iter_state_file_worker_0_step_100.txt": "1\n",
                 f"data_iter_state_file_worker_1_step_{STEP}.txt": " 1_604 \nmore\n",
                 f"data_iter_state_file_worker_0_step_{STEP}.txt": "1600"}
        for name, text in files.items():
            with open(os.path.join(states, name), "w") as f:
                f.write(text)
        self.write_config(make_config(states))
        self.states = states

    def write(self, version, omit=tuple(TIED)):
        save_old(self.checkpoint, self.tree, version, omit)

    def write_config(self, config):
        with open(self.config, "w") as f:
            yaml.safe_dump(config, f, sort_keys=False)

    def upgrade(self, *more, to="cs-2.5", code=0, **options):
        r = subprocess.run([self.cbk, "upgrade", "--model", "gpt2", "--config", self.config, self.checkpoint, "--to", to,
                            "--output-dir", self.out, *more], capture_output=True, text=True, timeout=120,
                           **{"stdin": subprocess.DEVNULL, **options})
        assert r.returncode == code, f"exit code {r.returncode}: {r.stdout} {r.stderr}"
        return r

    def expected(self):
        """What the leaves of the checkpoint must be after the fix and all steps."""
        leaves = dict(flatten(self.tree)[0])
        for key, source in TIED.items():
            leaves[key] = leaves[source]
        leaves["lr_scheduler.last_epoch"] = np.array(STEP, np.int64)
        leaves["lr_scheduler._schedulers.0.last_epoch"] = np.array(STEP, np.int64)
        leaves["lr_scheduler._schedulers.1.last_epoch"] = STEP - 100
        leaves["lr_scheduler._schedulers.2.last_epoch"] = np.array(STEP - 130, np.float32)
        place = "model.model.embedding_layer.position_embeddings"
        leaves[place + ".embed.weight"] = leaves.pop(place + ".weight")
        return leaves

    def result(self):
        files = sorted(os.listdir(self.out))
        assert files == ["checkpoint_150_to_cs-2.5.mdl", "params_to_cs-2.5.yaml"], files
        with open(os.path.join(self.out, files[1])) as f:
            return (*read_new(os.path.join(self.out, files[0])), yaml.safe_load(f))

    def test_every_value_arrives(self):
        self.upgrade("--yes")
        found, links, version, spec, config = self.result()
        metadata = {k: found.pop(k) for k in list(found) if k.startswith("__metadata__.")}
        loader = {k: found.pop(k) for k in list(found) if k.startswith("dataloader.")}
        expected = self.expected()
        assert list(found) and set(found) == set(expected), sorted(set(found) ^ set(expected))
        for key, value in expected.items():
            assert same(found[key], value), f"{key}: {found[key]!r}, expected {value!r}"
        for key, source in TIED.items():
            assert found[key] is found[source] and (key in links or source in links), f"{key} is tied no more"
        assert loader == {"dataloader.all_worker_states.0.samples_streamed": 1600, "dataloader.all_worker_states.0.shard_index": 0,
                          "dataloader.all_worker_states.1.samples_streamed": 1604, "dataloader.all_worker_states.1.shard_index": 1}, loader
        protocol, node = json.loads(spec[1])
        tree, expected = containers_of_spec(node), containers(self.tree)
        place = "model.embedding_layer.position_embeddings"
        expected["model"][place + ".embed.weight"] = expected["model"].pop(place + ".weight")
        expected["dataloader"] = {"all_worker_states": [{"samples_streamed": None, "shard_index": None}] * 2}
        assert isinstance(tree.pop("__metadata__"), list)
        assert protocol == 1 and tree == expected, f"the tree is {tree}"
        assert version == "2.5.0"
        releases = [v for k, v in metadata.items() if k.count(".") == 2 and k.endswith(".version")]
        assert sorted(releases) == ["1.9.0", "2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.4.0", "2.5.0"], releases
        init = config["trainer"]["init"]
        assert init["model"] == {"name": "gpt2", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_heads": 2,
                                 "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "share_embedding_weights": True,
                                 "filter_size": 16, "dropout_rate": 0.0, "norm_type": "layernorm"}, init["model"]
        assert init["precision"] == {"enabled": True, "fp16_type": "bfloat16", "precision_opt_level": 1}, init["precision"]
        assert init["optimizer"] == {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.01}}, init["optimizer"]
        assert init["schedulers"] == [{"LinearLR": {"initial_learning_rate": 1e-3, "end_learning_rate": 0.0, "total_iters": 90}}]
        assert init["callbacks"] == [{"KeepNCheckpoints": {"n": 2}}] and "cerebras" not in config

    def test_map_data_loaders(self):
        self.write_config(make_config(None, "GptHDF5MapDataProcessor"))
        self.upgrade("--yes", "-w", self.states)
        found = self.result()[0]
        assert {k: v for k, v in found.items() if k.startswith("dataloader")} == {"dataloader.samples_streamed": 3204, "dataloader.seed": 0}

    def test_files_of_another_step(self):
        """What the state files and the checkpoint say of the step is compared by all three commands."""
        state = os.path.join(self.states, "data_iter_checkpoint_state_file_global")
        worker = f"'{self.states}' has no worker's file of step 60"
        with open(state, "w") as f:
            f.write("100")
        other = "are of step 100, but the checkpoint is of step 150"
        text = self.upgrade("--dry-run").stdout  # the checkpoint's own are there too
        assert f"files of step {STEP} in '{self.states}' are used, as the checkpoint is of that step; the last checkpoint was of step 100" in text, text
        assert "samples streamed 1600, 1604" in text, text
        shown = subprocess.run([self.cbk, "show", "--dataloader", self.states], capture_output=True, text=True, check=True)
        assert "step 100, 1 workers; there are also files of step 150" in shown.stdout and "state of worker 1" in shown.stderr, shown
        ready = os.path.join(self.folder, "ready.mdl")

        def by_tool():
            return subprocess.run([self.cbk, "data-iter-state-conversion", "-c", self.checkpoint, "-w", self.states, "-o", ready, "--overwrite"],
                                  capture_output=True, text=True)

        def by_convert():
            subprocess.run([self.cbk, "fix-checkpoint-spec", self.checkpoint, "--fixed_checkpoint_path", ready, "--overwrite"], check=True, capture_output=True)
            return subprocess.run([self.cbk, "convert", "--model", "gpt2", "--src-fmt", "cs-1.9", "--tgt-fmt", "cs-2.0", "--config",
                                   self.config, ready, "-o", self.out, "--overwrite"], capture_output=True, text=True)

        self.write(0.2, ())
        for run in (by_tool(), by_convert()):
            assert run.returncode == 0 and other in run.stderr, run.stderr
        shutil.rmtree(self.out)
        with open(state, "w") as f:
            f.write("60")
        run = by_tool()
        assert run.returncode == 0 and worker in run.stderr and "are of step 60, but" in run.stderr, run.stderr
        text = by_convert().stderr
        assert worker in text and "are of step 60, but the checkpoint is of step 150" in text and "100, 150" in text, text
        for name in ("0", "1"):
            os.rename(os.path.join(self.states, f"data_iter_state_file_worker_{name}_step_150.txt"),
                      os.path.join(self.states, f"data_iter_state_file_worker_{name}_step_140.txt"))
        text = self.upgrade("--yes", code=1).stderr
        assert "are of step 60, but the checkpoint is of step 150" in text and "100, 140" in text, text
        with open(state, "w") as f:
            f.write("140")
        text = self.upgrade("--yes", code=1).stderr
        assert "are of step 140, but the checkpoint is of step 150" in text and "--no-dataloader-state" in text, text
        assert "no state: a run" in self.upgrade("--dry-run", "--no-dataloader-state").stdout
        with open(state, "w") as f:
            f.write("60")
        assert not os.path.exists(self.out)
        self.tree["global_step"] = np.array(60, np.int64)
        self.tree["lr_scheduler"]["_milestones"] = [10, 20]
        self.write(0.2, ())
        assert "warning: " + worker in self.upgrade("--dry-run").stdout and "warning: " + worker in by_convert().stderr
        for bad, text in (("", "found an empty text"), ("nowhere", "--worker_data_iter_files_dir: 'nowhere' is not a folder")):
            assert text in self.upgrade("--yes", "-w", bad, code=2 if bad == "" else 1).stderr

    def test_plan(self):
        text = self.upgrade("--dry-run").stdout
        for part in ("of release 1.8", "H5 format 0.2: 1.8", "TensorScalarDict becomes dict",
                     "restored: model.model.lm_head.weight, tied to model.model.embedding_layer.word_embeddings.weight",
                     "lr_scheduler._schedulers.1.last_epoch: 7 -> 50", "cs-1.8 -> cs-1.9",
                     "dataloader: 2 workers, samples streamed 1600, 1604",
                     "config: model.use_rms_norm = false -> model.norm_type = \"layernorm\"", "config: runconfig.checkpoint_steps -> trainer.init.checkpoint.steps",
                     "config: optimizer.weight_decay_rate -> optimizer.weight_decay",
                     "embedding_layer.position_embeddings.weight -> model.embedding_layer.position_embeddings.embed.weight",
                     "config: model -> trainer.init.model: hidden_size", "cs-2.4 -> cs-2.5",
                     "data loader        iterable, states of 2 workers\n",
                     "task 0 resumes after 1,600 samples (400 batches of 4)", "task 1 resumes after 1,604 samples (401 batches of 4)"):
            assert part in text, f"{part!r} is not in the plan:\n{text}"
        assert not os.path.exists(self.out)

    def test_plan_tells_where_the_run_resumes(self):
        """As `cbk show --dataloader` does of the result, and where that run would be wrong."""
        self.write_config(make_config(None, "GptHDF5MapDataProcessor"))
        text = self.upgrade("--yes", "-w", self.states).stdout
        lines = ["data loader        map style, seed 0", "all workers together resume after 3,204 samples (801 batches of 4)"]
        assert all(line in text for line in lines), text
        shown = subprocess.run([self.cbk, "show", "--dataloader", os.path.join(self.out, "checkpoint_150_to_cs-2.5.mdl"), "--batch-size", "4"],
                               capture_output=True, text=True, check=True).stdout
        assert all(line.replace("data loader        ", "") in shown for line in lines), shown
        config = make_config(None, "GptHDF5MapDataProcessor")
        config["train_input"] |= {"shuffle": True, "shuffle_seed": 7}
        self.write_config(config)
        text = self.upgrade("--dry-run", "-w", self.states).stdout
        assert "data loader        map style, seed 7\n" in text and "warning: the state has" not in text, text
        text = self.upgrade("--dry-run", "-w", self.states, "-s", "8").stdout
        assert "map style, seed 8\n" in text and "warning: the state has seed 8, but the run has seed 7" in text, text
        self.write_config(make_config())
        assert "data loader        no state: a run that loads the checkpoint begins at sample 0" in self.upgrade("--dry-run").stdout
        # A state of later releases stays as it is, and is reported too.
        self.tree["dataloader"] = {"all_worker_states": [{"samples_streamed": 9, "shard_index": 0}, {"samples_streamed": 4, "shard_index": 1}]}
        self.write(0.3)
        text = self.upgrade("--dry-run").stdout
        assert "task 0 resumes from worker 1's state after 4 samples (1 batch of 4)" in text, text

    def test_runs_that_do_not_load_the_state(self):
        """What the new config says of the run: which states it loads, and how many tasks it has."""
        for value, is_told in (("model,optimizer", True), (["model"], True), ("all", False), ("model, dataloader", False)):
            config = make_config(self.states)
            config["runconfig"]["load_checkpoint_states"] = value
            self.write_config(config)
            for to, name in (("cs-2.2", "runconfig.load_checkpoint_states"), ("cs-2.5", "LoadCheckpointStates")):
                if to == "cs-2.5" and isinstance(value, list):
                    continue  # the trainer's layout has no place for a list: the run loads all
                text = self.upgrade("--dry-run", to=to).stdout
                assert ("begins at sample 0; add dataloader there" in text) == is_told and (name in text or not is_told), text
                assert ("task 0 resumes" in text) != is_told, text
        for systems, warning in ((2, ""), (3, "the state is of 2 workers, but the run has 3: all of them start from sample 0")):
            config = make_config(self.states)
            config["runconfig"] |= {"num_csx": systems, "num_workers_per_csx": 1}
            self.write_config(config)
            for to in ("cs-2.2", "cs-2.5"):
                text = self.upgrade("--dry-run", to=to).stdout
                assert (warning or "task 1 resumes after 1,604") in text and ("start from sample 0" in text) == bool(warning), text

    def test_other_data_processors(self):
        for config in (make_config(self.states, "BertCSVDynamicMaskDataProcessor"), make_config(self.states)):
            if config["train_input"]["data_processor"].startswith("Gpt"):
                config["eval_input"] = config.pop("train_input")
            self.write_config(config)
            text = self.upgrade("--yes", code=1).stderr
            assert "--dataloader_type map or iterable" in text and "--no-dataloader-state" in text, text
            assert "dataloader: 3204 samples" in self.upgrade("--dry-run", "-d", "map").stdout
            assert "no state: a run" in self.upgrade("--dry-run", "--no-dataloader-state").stdout
        assert "cannot be combined with" in self.upgrade("--no-dataloader-state", "-d", "map", code=2).stderr
        self.write_config(make_config())
        assert "needs a folder of states" in self.upgrade("-d", "map", code=2).stderr

    def carried(self, model, weights, config, version=0.1, omit=()):
        """The weights of a checkpoint (H5 0.1: of 1.6 or 1.7) after an upgrade to 2.5, the config, and what was reported."""
        self.write_config(config)
        self.tree = {"model": weights}
        save_old(self.checkpoint, self.tree, version, [f"model.{name}" for name in omit])
        r = subprocess.run([self.cbk, "upgrade", "--model", model, "--config", self.config, self.checkpoint, "--to", "cs-2.5", "--output-dir",
                            self.out, "--yes", "--overwrite"], capture_output=True, text=True, timeout=120, check=False)
        assert r.returncode == 0, r.stderr
        found, _, _, _, config = self.result()
        return {k.removeprefix("model."): v for k, v in found.items() if k.startswith("model.")}, config, r.stdout + r.stderr

    def test_bert_and_t5_of_1_6_and_1_7(self):
        """Every weight is the same tensor under the name that its module has had since 2.1."""
        random = np.random.default_rng(5)
        h, f, vocab, heads = 8, 12, 11, 2

        def named(*names, shape):
            """Triples of a weight's names in 1.6, in 1.7 and in 2.5, with one tensor."""
            return (*names, random.standard_normal(shape).astype(np.float32))

        def linear(old, mid, new=None, shape=(h, h), bias=True):
            out = [named(old + ".weight", mid + ".weight", (new or mid) + ".weight", shape=shape)]
            return out + [named(old + ".bias", mid + ".bias", (new or mid) + ".bias", shape=shape[:1])] * bias

        def norm(old, mid):
            return [named(f"{old}.{a}", f"{mid}.{b}", f"{mid}.{b}", shape=(h,)) for a, b in (("gamma", "weight"), ("beta", "bias"))]

        embed = "bert_encoder.embedding_layer."
        bert = [named("bert.embeddings.word_embeddings.weight", *[embed + "word_embeddings.weight"] * 2, shape=(vocab, h)),
                named("bert.embeddings.token_type_embeddings.weight", *[embed + "segment_embeddings.weight"] * 2, shape=(2, h)),
                named("bert.embeddings.position_embeddings.weight", embed + "position_embeddings.weight",
                      embed + "position_embeddings.embed.weight", shape=(6, h)),
                *norm("bert.embeddings.LayerNorm", "bert_encoder.embed_ln_f"),
                *linear("bert.pooler.dense", "bert_encoder.pooler.pooler.ffn.0.linear_layer"),
                *linear("cls.predictions.transform.dense", "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer"),
                *norm("cls.predictions.transform.LayerNorm", "bert_mlm_head.mlm_transform.ln"),
                *linear("cls.predictions.decoder", "bert_mlm_head.classifier.ffn.0.linear_layer", shape=(vocab, h)),
                *linear("cls.seq_relationship", "bert_cls_head.classifier.ffn.0.linear_layer", shape=(2, h))]
        for i in range(2):
            old, new = f"bert.encoder.layer.{i}.", f"bert_encoder.transformer_encoder.layers.{i}."
            for a, b in (("query", "q"), ("key", "k"), ("value", "v")):
                bert += linear(f"{old}attention.self.{a}", f"{new}self_attn.proj_{b}_dense_layer")
            bert += linear(old + "attention.output.dense", new + "self_attn.proj_output_dense_layer")
            bert += norm(old + "attention.output.LayerNorm", new + "norm1") + norm(old + "output.LayerNorm", new + "norm2")
            bert += linear(old + "intermediate.dense", new + "ffn.ffn.0.linear_layer", shape=(f, h))
            bert += linear(old + "output.dense", new + "ffn.ffn.1.linear_layer", shape=(h, f))
        t5 = []
        for side, parts in (("encoder", ("self_attn", "ffn")), ("decoder", ("self_attn", "multihead_attn", "ffn"))):
            t5 += [named(f"{side}_token_embedding.weight", *[f"{side}_embeddings.word_embeddings.weight"] * 2, shape=(vocab, h)),
                   named(f"{side}.final_layer_norm.weight", *[f"{side}.norm.weight"] * 2, shape=(h,)),
                   named(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                         f"relative_position_{side}.relative_attention_bias.weight",
                         f"{side}_embeddings.position_embed_helper.relative_attention_bias.weight", shape=(8, heads))]
            for j, part in enumerate(parts):
                old, new = f"{side}.block.0.layer.{j}.", f"{side}.layers.0."
                t5.append(named(old + "layer_norm.weight", *[f"{new}norm{j + 1}.weight"] * 2, shape=(h,)))
                if part == "ffn":
                    t5 += linear(old + "DenseReluDense.wi", new + "ffn.ffn.0.linear_layer", shape=(f, h), bias=False)
                    t5 += linear(old + "DenseReluDense.wo", new + "ffn.ffn.1.linear_layer", shape=(h, f), bias=False)
                    continue
                for name in "qkvo":
                    attention = {"self_attn": "SelfAttention", "multihead_attn": "EncDecAttention"}[part]
                    long = "output" if name == "o" else name
                    t5 += linear(f"{old}{attention}.{name}", f"{new}{part}.proj_{long}_dense_layer", bias=False)
        t5.append(named("lm_head.weight", "lm_head.weight", "lm_head.weight", shape=(vocab, h)))
        configs = {
            "bert": {"hidden_size": h, "filter_size": f, "num_heads": heads, "num_hidden_layers": 2, "vocab_size": vocab,
                     "max_position_embeddings": 6, "share_embedding_weights": False, "encoder_nonlinearity": "gelu"},
            "t5": {"d_model": h, "d_ff": f, "d_kv": 4, "num_heads": heads, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1,
                   "src_vocab_size": vocab, "tgt_vocab_size": vocab, "share_embedding_weights": False,
                   "share_encoder_decoder_embedding": False, "use_pre_encoder_decoder_layer_norm": False,
                   "relative_attention_num_buckets": 8},
        }
        for model, weights in (("bert", bert), ("t5", t5)):
            for release, place in (("1.6", 0), ("1.7", 1)):
                found, config, text = self.carried(model, {w[place]: w[3] for w in weights}, {"model": dict(configs[model])})
                assert f"names of weights: {release}" in text, text
                found = {k.removeprefix("model."): v for k, v in found.items()}
                expected = {w[2]: w[3] for w in weights}
                assert set(found) == set(expected), (model, release, sorted(set(found) ^ set(expected)))
                different = [k for k, v in expected.items() if not same(found[k], v)]
                assert not different, (model, release, different)
                new = config["trainer"]["init"]["model"]
                assert new["num_heads"] == heads and (model == "bert" or new["use_pre_encoder_decoder_layer_norm"] is True), new

    def test_tied_weights_that_are_stored_once(self):
        """BERT's head and T5's three embeddings are no aliases of the spec fix: the step to 2.0 ties what the file does not hold."""
        random = np.random.default_rng(6)
        words, head = random.standard_normal((11, 8)).astype(np.float32), "bert_mlm_head.classifier.ffn.0.linear_layer.weight"
        bert = {"bert_encoder.embedding_layer.word_embeddings.weight": words, head: words}
        t5 = {name: words for name in ("encoder_embeddings.word_embeddings.weight", "decoder_embeddings.word_embeddings.weight",
                                       "lm_head.weight")}
        settings = {"share_embedding_weights": True, "share_encoder_decoder_embedding": True, "use_pre_encoder_decoder_layer_norm": True,
                    "vocab_size": 11, "hidden_size": 8, "src_vocab_size": 11, "d_model": 8}
        of_t5 = ("share_encoder_decoder_embedding", "use_pre_encoder_decoder_layer_norm", "src_vocab_size", "d_model")
        of_bert = {name: value for name, value in settings.items() if name not in of_t5}
        of_t5 = {name: value for name, value in settings.items() if name not in ("vocab_size", "hidden_size")}
        for model, weights, own in (("bert", bert, of_bert), ("t5", t5, of_t5)):
            for version in (0.2, 0.3):
                for prefix in ("", "model."):
                    names = [prefix + name for name in weights]
                    for omit in ([name] for name in names) if model == "bert" else (names[1:], names[2:], names[1:2]):
                        found, _, text = self.carried(model, dict.fromkeys(names, words), {"model": dict(own)}, version, omit)
                        assert set(found) == set(names), (model, version, omit, set(found))
                        assert all(same(value, words) for value in found.values()), (model, version, omit)
                        assert all(name in text for name in omit) and "read as None" in text, text
        self.write_config({"model": settings | {"share_embedding_weights": False}})
        save_old(self.checkpoint, {"model": bert}, 0.2, ["model." + head])
        r = subprocess.run([self.cbk, "upgrade", "--model", "bert", "--config", self.config, self.checkpoint, "--to", "cs-2.5", "--yes",
                            "-o", os.path.join(self.folder, "none")], capture_output=True, text=True, check=False)
        assert r.returncode == 1 and f"incomplete: no data is stored for model.{head}" in r.stderr, r

    def test_state_that_is_not_stored(self):
        """A leaf of the run's state that is missing is never passed over; accepted, the optimizer's begin anew."""
        lost = ["optimizer.state.1.exp_avg", "optimizer.param_groups.0.lr", "lr_scheduler._schedulers.0.last_epoch"]
        self.write(0.2, [*TIED, *lost])
        text = self.upgrade("--yes", code=1).stderr
        assert f"no data is stored for {lost[0]}, {lost[1]}: " in text and "--accept-missing" in text, text
        text = self.upgrade("--yes", "--accept-missing").stderr
        assert "parts of optimizer.state.1 are not stored" in text and f"no data is stored for {lost[1]}: it is None" in text, text
        found = self.result()[0]
        expected = self.expected()
        for name, value in self.tree["optimizer"]["state"][1].items():
            expected[f"optimizer.state.1.{name}"] = np.zeros_like(value)
        expected |= {lost[1]: None, lost[2]: STEP}
        for key, value in expected.items():
            assert same(found[key], value), f"{key}: {found[key]!r}, expected {value!r}"
        # what later releases wrote as 0.4 may lack leaves too
        new = os.path.join(self.folder, "of_2_0.mdl")
        subprocess.run([self.cbk, "copy", self.checkpoint, new, "--h5-version", "0.4"], check=True, timeout=60, capture_output=True)
        with h5py.File(new, "a") as f:
            del f["optimizer.state.0.step"]
        self.checkpoint = new
        text = self.upgrade("--yes", "--overwrite", "--from", "cs-2.0", code=1).stderr
        assert "no data is stored for optimizer.state.0.step, optimizer.state.1.exp_avg:" in text, text

    def test_mup(self):
        """A run of 1.8 with muP: the tensors stay, its scales become those of 2.3."""
        self.tree = make_tree()
        config = make_config()
        config["model"] |= {"embeddings_scale": 2.0, "output_logits_scale": 0.25, "scale_qk_dot_by_d": True}
        config["optimizer"]["adjust_learning_rate"] = {"decoder_kernel": 0.5}
        self.write_config(config)
        self.write(0.2)
        self.upgrade("--yes")
        found, _, _, _, config = self.result()
        for key, value in self.expected().items():
            assert same(found[key], value), key
        model = config["trainer"]["init"]["model"]
        # the learning rate's factor is the base width's part of the width: 0.5 · 8 = 4; logits are scaled by alpha · 4 / 8
        assert model["mup_base_hidden_size"] == 4 and model["output_logits_alpha"] == 0.5, model
        assert model["embeddings_scale"] == 2.0 and "output_logits_scale" not in model, model

    def same_by_another_way(self, model, *prepare):
        """An upgrade of what other commands made of the checkpoint writes what the upgrade of the checkpoint itself does."""
        results = []
        for checkpoint in (self.checkpoint, prepared(self.cbk, self.folder, self.checkpoint, self.states, *prepare)):
            subprocess.run([self.cbk, "upgrade", "--model", model, "--config", self.config, checkpoint, "--to", "cs-2.5", "-o", self.out,
                            "--yes", "-q"], check=True, timeout=120, stdout=subprocess.DEVNULL)
            found, links, _, spec = read_new(os.path.join(self.out, os.path.basename(checkpoint)[:-4] + "_to_cs-2.5.mdl"))
            with open(os.path.join(self.out, "params_to_cs-2.5.yaml")) as f:
                results.append((found, {frozenset(link) for link in links.items()}, containers_of_spec(json.loads(spec[1])[1]), f.read()))
            shutil.rmtree(self.out)
        for found, _, tree, _ in results:  # a file that may be of 1.8 and 1.9 alike has one release more behind it
            for key in [key for key in found if key.startswith("__metadata__.")]:
                del found[key]
            del tree["__metadata__"]
        (a, links, tree, config), (b, other_links, other_tree, other_config) = results
        assert set(a) == set(b), sorted(set(a) ^ set(b))
        different = [key for key in a if not same(a[key], b[key])]
        assert not different and links == other_links and tree == other_tree, different
        assert config == other_config
        return a

    def test_the_way_by_single_tools(self):
        """Their files are 0.4 without a release, as the tools of 2.0 wrote them: the model in them is still of 1.8 or 1.9."""
        chain = ("fix-checkpoint-spec", "data-iter-state-conversion")
        self.same_by_another_way("gpt2", *chain)
        self.same_by_another_way("gpt2", *chain, "copy")
        self.same_by_another_way("gpt2", "data-iter-state-conversion")  # which wrote None for the tied weights
        random = np.random.default_rng(4)

        def tensor(*shape):
            return random.standard_normal(shape).astype(np.float32)

        config = make_config(self.states)
        config["model"]["use_rms_norm"] = True
        self.write_config(config)
        model = {k: v for k, v in self.tree["model"].items() if "position" not in k and not k.endswith("norm.bias")}
        self.tree["model"] = {k.removeprefix("model."): v for k, v in model.items()}
        save_old(self.checkpoint, self.tree, 0.3)
        found = self.same_by_another_way("llama", *chain)
        assert "model.ln_f.weight" in found
        self.same_by_another_way("llama", *chain, "copy")
        config["model"] = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 4, "encoder_num_hidden_layers": 1, "src_vocab_size": 29,
                           "decoder_num_hidden_layers": 1, "share_embedding_weights": True, "use_t5_layer_norm": True,
                           "relative_attention_num_buckets": 8, "share_encoder_decoder_embedding": True, "use_pre_encoder_decoder_layer_norm": True}
        self.write_config(config)
        self.tree["model"] = {f"model.relative_position_{side}.relative_attention_bias.weight": tensor(8, 4) for side in ("encoder", "decoder")}
        self.tree["model"] |= {f"model.{side}_embeddings.word_embeddings.weight": tensor(29, 16) for side in ("encoder", "decoder")}
        self.tree["model"] |= {"model.lm_head.weight": tensor(29, 16), "model.encoder.norm.weight": tensor(16)}
        save_old(self.checkpoint, self.tree, 0.3)
        found = self.same_by_another_way("t5", *chain)
        assert "model.model.encoder_embeddings.position_embed_helper.relative_attention_bias.weight" in found, sorted(found)
        self.same_by_another_way("t5", *chain, "copy")

    def test_what_may_be_of_several_releases(self):
        config = make_config()
        del config["model"]["use_rms_norm"]
        self.write_config(config)
        self.checkpoint = prepared(self.cbk, self.folder, self.checkpoint, self.states, "fix-checkpoint-spec", "data-iter-state-conversion")
        assert "1.8 to 2.0, which may give different results" in self.upgrade("--yes", to="cs-2.0", code=1).stderr
        text = self.upgrade("--yes", code=1).stderr
        for part in ("1.8 to 2.0, which may give different results", "H5 format 0.4 without a release: up to 2.0 (usually)", "--src-fmt cs-X.Y"):
            assert part in text, text
        assert not os.path.exists(self.out)
        self.upgrade("--yes", "--from", "cs-1.8")
        self.checkpoint = os.path.join(self.out, "prepared_1_to_cs-2.5.mdl")
        self.config = os.path.join(self.out, "params_to_cs-2.5.yaml")
        text = self.upgrade("--yes", code=2).stderr
        assert all(part in text for part in ("is already of release 2.5", "__metadata__ says 2.5.0: 2.5", "--src-fmt cs-X.Y")), text

    def test_it_asks_first(self):
        assert "--yes" in self.upgrade(code=2).stderr and not os.path.exists(self.out)
        for answer, code in (("n", 1), ("", 1), ("y", 0)):
            ours, theirs = pty.openpty()
            os.write(ours, (answer + "\n").encode())
            r = self.upgrade(code=code, stdin=theirs)
            os.close(ours)
            os.close(theirs)
            assert r.stdout.count("Go ahead?") == 1 and os.path.exists(self.out) == (code == 0), r.stdout
        self.upgrade("--yes", code=1)
        self.upgrade("--yes", "--overwrite")

    def test_formats_before_and_after(self):
        expected = self.expected()
        self.write(0.3)  # markers of 0.2 are understood in 0.3 too
        self.upgrade("--yes")
        found = self.result()[0]
        assert all(same(found[k], v) for k, v in expected.items())
        self.upgrade("--yes", "--overwrite", "--from", "cs-1.8", to="cs-2.3")
        new = os.path.join(self.out, "checkpoint_150_to_cs-2.3.mdl")
        with h5py.File(new, "r") as f:
            assert f.attrs["__version__"] == 0.4 and f.attrs["__cstorch_version__"] == "2.3.0"
        self.checkpoint, self.config = new, os.path.join(self.out, "params_to_cs-2.3.yaml")
        assert "__metadata__ says 2.3.0: 2.3" in self.upgrade("--yes").stdout
        found = read_new(os.path.join(self.out, "checkpoint_150_to_cs-2.3_to_cs-2.5.mdl"))[0]
        assert all(same(found[k], v) for k, v in expected.items())

    def test_refusals(self):
        def refused(*parts, more=(), code=1, **options):
            text = self.upgrade("--yes", *more, code=code, **options).stderr
            assert all(part in text for part in parts), text
            assert "traceback" not in text and not os.path.exists(self.out), text

        self.write(0.1)
        assert "is of release 1.7" in self.upgrade("--dry-run").stdout  # of 1.6 there is no gpt2
        self.write(0.2, omit=["model.model.transformer_decoder.layers.0.norm1.weight"])
        refused("incomplete", "model.model.transformer_decoder.layers.0.norm1.weight")
        self.write(0.2, omit=["model.model.lm_head.weight", TIED["model.model.lm_head.weight"]])
        refused("incomplete", "lm_head.weight", TIED["model.model.lm_head.weight"])
        self.write(0.2)
        refused("already", more=("--from", "cs-2.5"), code=2)
        refused("is not a release", more=("--from", "hf"), code=2)
        refused("states in the checkpoint", more=("--from", "cs-2.0", "-w", self.states), code=2)
        os.remove(os.path.join(self.states, "data_iter_checkpoint_state_file_global"))
        refused("data_iter_checkpoint_state_file_global")
        config = make_config()
        self.write_config({"trainer": {"init": {"model": config["model"]}}})
        refused("is of 1.8 (H5 format 0.2)", "has a trainer section (2.3 and later)", "or pass --src-fmt cs-1.8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    cbk = os.path.abspath(parser.parse_args().cbk)
    failed = 0
    names = [name for name in dir(Tests) if name.startswith("test_")]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                harness.checked(getattr(Tests(cbk, folder), name))
                print(f"ok   {name}")
            except Exception as e:  # noqa: BLE001 a failed test is a result
                failed += 1
                print(f"FAIL {name}: {type(e).__name__}: {e}")
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
