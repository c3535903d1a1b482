#!/usr/bin/python3
"""`cbk train`, `eval` and `generate` against PyTorch and against themselves.

- Each family that `models/` defines for logits_interop.py and cbk computes: a tiny model is trained for some steps by cbk, and by PyTorch
  from the same first values on the same batches: losses and weights must be the same. The trained checkpoint is converted to Hugging
  Face, where its definition must give the same logits, and `cbk eval` the loss that PyTorch has.
- The demo's run, and PyTorch's from the same weights on the same batches, have losses that differ by less than 1 %.
- A run that is killed at random moments ends with the bytes of one that was not.
- The disk is full at any write of a run: the run stops with a message, its checkpoints are whole, and it continues to the same bytes.
- CSV files that Python's csv module wrote, with tokens of all kinds of letters: BERT's samples are those that Python reads.
- Event files of TensorBoard, read by the published description of their records.

Usage: runs_interop.py --cbk PATH [--kills N] [--demo-steps N] [FAMILY]
"""
import argparse
import copy
import csv
import errno
import glob
import importlib
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import torch
import yaml

import logits_interop as logits
import runs_tasks
import upgrade_interop as old
from cluster_interop import ENVIRONMENT
from harness import Run
from models import gpt2
from models.layers import Weights
from runs_tasks import LENGTH, SAMPLES, WORDS, Text

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

STEPS, BATCH = 4, 4
RATE, DECAY, BETAS, EPS = 0.01, 0.1, (0.9, 0.95), 1e-8


# ------------------------------------------------------------------ data and files
NAMES = {"bert-sequence-classifier": "bert/classifier"}  # that the Model Zoo has in its files


def params_of(name, config, folder, **more):
    """A file in the trainer's layout."""
    loader = {"data_processor": runs_tasks.of_model(name).PROCESSOR, "data_dir": os.path.join(folder, "data"), "batch_size": BATCH}
    init = {"model_dir": os.path.join(folder, "run"), "seed": 1, "model": {**config, "name": NAMES.get(name, name)},
            "optimizer": {"AdamW": {"betas": list(BETAS), "eps": EPS, "weight_decay": DECAY, "correct_bias": True}},
            "schedulers": [{"ConstantLR": {"learning_rate": RATE}}], "loop": {"max_steps": STEPS, **more.get("loop", {})},
            "checkpoint": {"steps": more.get("checkpoint", STEPS), "save_initial_checkpoint": True}, "logging": {"log_steps": 1}}
    return {"trainer": {"init": init, "fit": {"train_dataloader": {**loader, **more.get("loader", {})}, "val_dataloader": loader}}}


def save(path, tree):
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(tree, file, sort_keys=False)
    return path


def metrics(folder, name):
    with open(os.path.join(folder, "run", "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row[name] for row in rows if name in row]


# ------------------------------------------------------------------ the same in PyTorch
def outputs_of(task, forward, config, tensors, batch, inputs=None):
    return logits.compute(forward, Weights(tensors), config, [batch[name] for name in inputs or task.INPUTS])


def loss_of(task, forward, config, tensors, batch):
    return task.loss(outputs_of(task, forward, config, tensors, batch), config, batch)


def part(batch, first, count):
    return {name: values[first:first + count] for name, values in batch.items()}


def decays(name, config):
    """Not biases, nor what is below a module that is a LayerNorm; an RMSNorm is none."""
    is_norm = re.search(r"(norm\d?(_post)?|ln(_f)?)\.weight$", name) and config.get("norm_type", "layernorm").endswith("layernorm")
    return not (is_norm or "bias" in name)


def factor_of(task, name, config):
    """With muP, layers that are wider than the base model's learn more slowly."""
    return next((factor for pattern, factor in task.rates(config).items() if re.search(pattern, name)), 1)


def train_in_torch(task, forward, config, tensors, batches, schedule=lambda step: RATE, largest_norm=None):
    """Losses, and the weights at the end. AdamW as the Cerebras API has it: eps outside of the bias correction."""
    leaves = {id(tensor): tensor.requires_grad_() for name, tensor in tensors.items()
              if config.get("alibi_trainable_slopes") or not name.endswith("slopes")}
    names = {id(tensor): name for name, tensor in reversed(list(tensors.items()))}
    state, losses = {key: (torch.zeros_like(leaf), torch.zeros_like(leaf)) for key, leaf in leaves.items()}, []
    for step, batch in enumerate(batches, 1):
        loss = loss_of(task, forward, config, tensors, batch)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        if largest_norm:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            gradients = [gradient * min(1.0, largest_norm / (norm.item() + 1e-6)) for gradient in gradients]
        with torch.no_grad():
            for (key, leaf), gradient in zip(leaves.items(), gradients):
                if gradient is None:
                    continue
                first, second = state[key]
                first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
                second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
                update = first / (second.sqrt() + EPS) * ((1 - BETAS[1] ** step) ** 0.5 / (1 - BETAS[0] ** step))
                leaf.sub_(schedule(step - 1) * factor_of(task, names[key], config) * (update + (DECAY * leaf if decays(names[key], config) else 0)))
    return losses, {name: tensor.detach() for name, tensor in tensors.items()}


# ------------------------------------------------------------------ one family
def train_family(run, name, family, case_name, case):
    folder = run.path(f"{name} {case_name}".replace("/", "_"))
    os.makedirs(folder)
    calls = logits.Run(run.cbk, folder, 0, family)
    with torch.no_grad():
        one = logits.Case(calls, family, case)
        if one.starts_with_hf:
            one.to_model_zoo()
            config = one.zoo_side[0]
        else:
            config = one.config
    model = case.get("model", family.MODEL)
    task = runs_tasks.of_model(model)
    config = {field: value for field, value in config.items() if not field.endswith("dropout_rate") and field != "embd_pdrop"}
    config.update({field: 0.0 for field in task.RATES}, **task.FIELDS)
    if config.get("moe"):
        config["moe"] = {**config["moe"], "load_balancing_loss_coef": 0.0}
    data = task.write(os.path.join(folder, "data"))
    path = save(os.path.join(folder, "params.yaml"), params_of(model, config, folder))
    run.call("train", path)

    tensors = logits.read_h5(os.path.join(folder, "run", "checkpoint_0.mdl"))
    batches = [part(data, i, BATCH) for i in range(0, SAMPLES, BATCH)]
    losses, trained = train_in_torch(task, one.zoo, config, tensors, batches[:STEPS])
    found = metrics(folder, "loss")
    assert len(found) == STEPS and max(abs(a - b) for a, b in zip(losses, found)) < 2e-5, f"losses {found}, in PyTorch {losses}"
    got = logits.read_h5(os.path.join(folder, "run", f"checkpoint_{STEPS}.mdl"))
    assert sorted(got) == sorted(trained), "other names"
    for key, tensor in trained.items():  # where a gradient is nearly 0, its sign may differ
        apart = (got[key] - tensor).abs()
        assert (apart > 1e-4).float().mean() < 0.02 and apart.max() < 2.5 * RATE * STEPS, f"{key} differs by {apart.max():.1e}"

    with torch.no_grad():
        inputs = [name for name in task.INPUTS if name != "attention_mask"]  # all of what Hugging Face's definitions take
        want = outputs_of(task, one.zoo, config, got, part(data, 0, 2), inputs)
        made = calls.convert(model, "cs-2.9", "hf", path, os.path.join(folder, "run", f"checkpoint_{STEPS}.mdl"))
        hf_config, hf_tensors = calls.read_hugging_face(*made)
        apart = logits.distance(want, outputs_of(task, one.hf, hf_config, hf_tensors, part(data, 0, 2), inputs))
        assert apart < max(1e-4, one.tolerance), f"logits of Hugging Face differ by {apart:.1e}"
        found = [(task.loss(own, config, batch), *task.measures(own, batch))
                 for own, batch in ((outputs_of(task, one.zoo, config, got, batch), batch) for batch in batches)]
        mean, entropy, right, count = (torch.stack([torch.as_tensor(one).float() for one in ones]) for ones in zip(*found))
        want = {"loss": mean.mean().item(), "accuracy": (right.sum() / count.sum()).item(),
                "perplexity": (entropy.sum() / count.sum()).exp().item()}
    for checkpoint in (os.path.join(folder, "run", f"checkpoint_{STEPS}.mdl"), os.path.dirname(made[0])):
        found = json.loads(run.call("eval", path, "--checkpoint", checkpoint, "--json"))
        limit = max(1e-4, 10 * one.tolerance)
        assert found["batches"] == len(batches) and abs(found["loss"] - want["loss"]) < limit, f"{checkpoint}: {found}, in PyTorch {want}"
        assert abs(found["accuracy"] - want["accuracy"]) < 1e-4, f"{checkpoint}: {found}, in PyTorch {want}"
        perplexity = found.get("perplexity", want["perplexity"])
        assert abs(perplexity / want["perplexity"] - 1) < 10 * limit, f"{checkpoint}: {found}, in PyTorch {want}"


def families(only):
    for name in logits.families(only):
        family = importlib.import_module("models." + name)
        for case_name, case in family.CASES.items():
            is_computed = getattr(family, "COMPUTED", True) and case.get("computed", True)
            is_newest = case.get("release", logits.NEWEST) == logits.NEWEST and "headless" not in case.get("model", family.MODEL)
            if is_computed and is_newest and case.get("trained", True):
                yield name, family, case_name, case


# ------------------------------------------------------------------ runs
def small_params(folder):
    config = {"vocab_size": WORDS, "hidden_size": 64, "num_heads": 4, "num_hidden_layers": 2, "filter_size": 128,
              "max_position_embeddings": LENGTH, "dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    tree = params_of("gpt2", config, folder, loop={"max_steps": 60, "eval_frequency": 20}, checkpoint=4, loader={"shuffle": True})
    tree["trainer"]["init"]["callbacks"] = [{"KeepNCheckpoints": {"n": 3}}]
    tree["trainer"]["init"]["precision"] = {"fp16_type": "cbfloat16", "loss_scaling_factor": "dynamic", "max_gradient_norm": 1.0}
    return tree


def run_with_kills(run, kills, moments):
    """A run that is killed `kills` times, each time after a part of what a whole run takes."""
    folder = run.path("killed")
    Text.write(os.path.join(folder, "data"))
    path = save(os.path.join(folder, "params.yaml"), small_params(folder))
    start = time.monotonic()
    run.call("train", path)
    whole = time.monotonic() - start
    with open(os.path.join(folder, "run", "checkpoint_60.mdl"), "rb") as file:
        want = file.read()
    losses, done, rounds = metrics(folder, "loss"), 0, 0
    while done < kills:
        for name in os.listdir(os.path.join(folder, "run")):
            os.remove(os.path.join(folder, "run", name))
        rounds += 1
        for _ in range(8):
            with subprocess.Popen([run.cbk, "train", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                try:
                    process.wait(moments.uniform(0, whole))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    done += 1
        run.call("train", path)
        with open(os.path.join(folder, "run", "checkpoint_60.mdl"), "rb") as file:
            assert file.read() == want, f"after {done} kills the last checkpoint is another one"
        assert metrics(folder, "loss") == losses, "other losses, or some of them twice"
        left = [name for name in os.listdir(os.path.join(folder, "run")) if name.endswith((".tmp", ".old"))]
        assert not left, f"left behind: {left}"
    return rounds


def full_disk(run):
    """No space for one write: the first, the middle and the last of each kind and file."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", run.path("faults.so"), source, "-ldl"], check=True)
    folder = run.path("full")
    Text.write(os.path.join(folder, "data"))
    tree = small_params(folder)
    tree["trainer"]["init"]["loop"] = {"max_steps": 8}
    path, target = save(os.path.join(folder, "params.yaml"), tree), os.path.join(folder, "run")

    def train(**faults):
        shutil.rmtree(target, ignore_errors=True)
        os.mkdir(target)
        env = dict(os.environ, LD_PRELOAD=run.path("faults.so"), FAULT_FOLDERS=target, **faults)
        return subprocess.run([run.cbk, "train", path], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, env=env)

    def last():
        with open(os.path.join(target, "checkpoint_8.mdl"), "rb") as file:
            return file.read()

    done = train(FAULT_LOG=run.path("calls"))
    assert done.returncode == 0, done.stderr
    want, places = last(), {}
    with open(run.path("calls"), encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            name, file = line.rstrip("\n").split(" ", 1)
            if name in ("write", "pwrite", "posix_fallocate", "copy_file_range"):
                places.setdefault((name, re.sub(r"[.~]?[0-9a-f]*\.tmp$", "", file)), []).append(number)
    assert len({file for _, file in places}) > 4, places
    for (name, file), numbers in places.items():
        for number in {numbers[0], numbers[len(numbers) // 2], numbers[-1]}:
            done = train(FAULT_AT=str(number), FAULT_KIND=str(errno.ENOSPC))
            what = f"{name} {file}: {done.stderr}"
            if name != "posix_fallocate":  # without it, the disk may have space
                assert done.returncode == 1 and "No space left" in done.stderr, what
            for one in glob.glob(os.path.join(target, "checkpoint_*")):
                run.call("ls", one)
            run.call("train", path)
            assert last() == want, f"{what}: continued, the last checkpoint is another one"
            left = [one for one in os.listdir(target) if one.endswith((".tmp", ".old"))]
            assert not left, f"{what}: left behind: {left}"


# ------------------------------------------------------------------ an old release's run
OLD_STEP, NEW_STEP = 8, 28
SIZES = {"vocab_size": WORDS, "hidden_size": 16, "num_heads": 2, "num_hidden_layers": 2, "filter_size": 32,
         "max_position_embeddings": LENGTH, "share_embedding_weights": True, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}


def age(path, folder):
    """A checkpoint of cbk as release 1.8 had it: a pickled tree, old names, one schedule, and files with the data loader's states."""
    found, links = old.read_new(path)[:2]
    prefix, tree = "optimizer.state.", {"model": {}, "optimizer": {"state": {}, "param_groups": []}}
    for key, value in found.items():
        name = key.replace("position_embeddings.embed.", "position_embeddings.")
        if key.startswith("model."):
            tree["model"]["model." + name[6:]] = value
        elif key.startswith(prefix):
            number, what = key[len(prefix):].split(".")
            tree["optimizer"]["state"].setdefault(int(number), old.TensorScalarDict())[what] = value
    groups = {}
    for key, value in sorted(found.items(), key=lambda item: [int(part) if part.isdigit() else part for part in item[0].split(".")]
                             if item[0].startswith("optimizer.param_groups.") else [item[0]]):
        if match := re.fullmatch(r"optimizer\.param_groups\.(\d+)\.(\w+)(?:\.(\d+))?", key):
            group = groups.setdefault(int(match[1]), {})
            if match[2] not in ("params", "betas"):
                group[match[2]] = value
            else:
                group.setdefault(match[2], []).append(value)
    for number in sorted(groups):
        groups[number].pop("param_names", None)
        tree["optimizer"]["param_groups"].append(groups[number])
    tree["lr_scheduler"] = {key[len("schedulers.0."):]: value for key, value in found.items() if re.fullmatch(r"schedulers\.0\.\w+", key)}
    tree["global_step"] = np.array(OLD_STEP, np.int64)
    ties = {"model.model." + key[6:] for key in links if key.startswith("model.")}
    target = os.path.join(folder, f"checkpoint_{OLD_STEP}.mdl")
    old.save_old(target, tree, 0.2, ties)
    states = os.path.join(folder, "states")
    os.mkdir(states)
    for name, text in (("data_iter_checkpoint_state_file_global", OLD_STEP), (f"data_iter_state_file_worker_0_step_{OLD_STEP}.txt", OLD_STEP * BATCH)):
        with open(os.path.join(states, name), "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    return target, states


def upgrade(run):
    """A run of 1.8 is upgraded, trained for 20 steps and converted: it ends with the weights of a run that never was old."""
    folder = run.path("upgrade")
    Text.write(os.path.join(folder, "data"))
    tree = params_of("gpt2", SIZES, folder, loop={"max_steps": NEW_STEP, "eval_frequency": 0}, checkpoint=OLD_STEP)
    tree["trainer"]["init"]["schedulers"] = [{"LinearLR": {"initial_learning_rate": 0.01, "end_learning_rate": 0.001, "total_iters": 40}}]
    run.call("train", save(os.path.join(folder, "params.yaml"), tree))
    want = logits.read_h5(os.path.join(folder, "run", f"checkpoint_{NEW_STEP}.mdl"))
    checkpoint, states = age(os.path.join(folder, "run", f"checkpoint_{OLD_STEP}.mdl"), folder)
    config = save(os.path.join(folder, "old.yaml"), {
        "model": {**SIZES, "use_position_embedding": True},
        "optimizer": {"optimizer_type": "AdamW", "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay_rate": DECAY, "correct_bias": True,
                      "learning_rate": {"scheduler": "Linear", "initial_learning_rate": 0.01, "end_learning_rate": 0.001, "steps": 40}},
        "runconfig": {"max_steps": NEW_STEP, "checkpoint_steps": 20, "log_steps": 1, "seed": 1, "model_dir": os.path.join(folder, "continued")},
        "train_input": {"data_processor": "GptHDF5MapDataProcessor", "data_dir": os.path.join(folder, "data"), "batch_size": BATCH},
        "cerebras": {"save_iter_state_path": states}})
    run.call("upgrade", "--model", "gpt2", "--config", config, checkpoint, "--to", "cs-2.9", "-o", os.path.join(folder, "new"), "--yes")
    new = os.path.join(folder, "new", "old_to_cs-2.9.yaml")
    said = run.call("train", new, "--checkpoint", os.path.join(folder, "new", f"checkpoint_{OLD_STEP}_to_cs-2.9.mdl"))
    assert f"step {OLD_STEP}\nsteps {OLD_STEP + 1} to {NEW_STEP}," in said, said
    last = os.path.join(folder, "continued", f"checkpoint_{NEW_STEP}.mdl")
    got = logits.read_h5(last)
    for key, tensor in want.items():
        assert torch.equal(got[key], tensor), f"{key} is another one"
    run.call("convert", last, "--config", new, "--to", "hf", "-o", os.path.join(folder, "hf"))
    losses = [json.loads(run.call("eval", new, "--checkpoint", path, "--json", "--data-dir", os.path.join(folder, "data")))["loss"]
              for path in (last, os.path.join(folder, "hf", f"checkpoint_{NEW_STEP}_to_hf"))]
    assert abs(losses[0] - losses[1]) < 1e-6, losses


# ------------------------------------------------------------------ several ranks
def ranks(run):
    """Two ranks train what one process trains for two systems; a run that they continue ends with the same bytes."""
    folder = run.path("ranks")
    Text.write(os.path.join(folder, "data"))
    tree = params_of("gpt2", SIZES, folder, loop={"max_steps": 12, "eval_frequency": 6}, checkpoint=6)
    alone = copy.deepcopy(tree)
    alone["trainer"]["init"].update(model_dir=os.path.join(folder, "alone"), backend={"cluster_config": {"num_csx": 2}})
    path = save(os.path.join(folder, "params.yaml"), tree)
    run.call("train", save(os.path.join(folder, "alone.yaml"), alone))
    command = ["mpirun", "-n", "2", run.cbk, "train", path, "--threads", "1"]
    last, want = os.path.join(folder, "run", "checkpoint_12.mdl"), None
    for i in range(2):
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 and done.stdout.count("| Train Device=CSX, Step=12,") == 1, done
        with open(last, "rb") as file:
            bytes_now = file.read()
        assert i == 0 or bytes_now == want, "the run that was continued has other bytes"
        with open(os.path.join(folder, "run", "run.json"), encoding="utf-8") as file:
            assert json.load(file)["command"].startswith("mpirun -n 2 cbk train "), "the command does not start two ranks"
        want = bytes_now
        os.remove(last)
    with open(os.path.join(folder, "alone", "metrics.jsonl"), encoding="utf-8") as file:
        losses = [row["loss"] for row in map(json.loads, file) if "loss" in row]

    def check_losses():
        found = metrics(folder, "loss")
        assert len(found) == 12 and max(abs(a - b) for a, b in zip(losses, found)) < 1e-4, (losses, found)

    check_losses()
    first = [command[0], "-n", "3", *command[3:], "--model-dir", os.path.join(folder, "uneven"), "--max-steps", "1"]  # 4 samples
    subprocess.run(first, env=ENVIRONMENT, capture_output=True, timeout=120, check=True)
    with open(os.path.join(folder, "uneven", "metrics.jsonl"), encoding="utf-8") as file:
        assert abs(json.loads(file.readline())["loss"] - losses[0]) < 1e-5
    shutil.rmtree(os.path.join(folder, "run"))
    done = subprocess.run([*command, "--activation-checkpointing"], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    check_losses()


# ------------------------------------------------------------------ the demo
def rate_at(step):
    """The learning rate of a step of scripts/examples/params.yaml, from 0."""
    if step < 30:
        return 0.003 * step / 30
    return 0.0003 + 0.0027 * 0.5 * (1 + math.cos(math.pi * min(step - 30, 270) / 270))


def demo(run, steps):
    """The first steps of the demo, and of PyTorch from the same weights on the same batches: the losses differ by less than 1 %."""
    folder = run.path("demo")
    os.makedirs(folder)
    with open(os.path.join(TOP, "scripts", "examples", "params.yaml"), encoding="utf-8") as file:
        tree = yaml.safe_load(file)
    init, fit = tree["trainer"]["init"], tree["trainer"]["fit"]
    init["model_dir"], init["logging"]["log_steps"] = os.path.join(folder, "run"), 1
    init["checkpoint"]["save_initial_checkpoint"] = True
    for name in "train_dataloader", "val_dataloader":
        fit[name]["data_dir"] = os.path.join(folder, "data")
    run.call("make-data", "-o", os.path.join(folder, "data"), "--max-seq-length", "64")
    path = save(os.path.join(folder, "params.yaml"), tree)
    run.call("train", path, "--max-steps", str(steps))
    run.call("run", os.path.join(os.path.dirname(os.path.abspath(__file__)), "batches_of.lua"), path, str(steps), os.path.join(folder, "batches.h5"))
    with h5py.File(os.path.join(folder, "batches.h5"), "r") as file:
        parts = {name: torch.from_numpy(file[name][()]) for name in ("input_ids", "attention_mask", "labels")}
    batches = [{name: values[i] for name, values in parts.items()} for i in range(steps)]
    tensors = logits.read_h5(os.path.join(folder, "run", "checkpoint_0.mdl"))
    torch.set_num_threads(2)
    losses, _ = train_in_torch(Text, gpt2.model_zoo, init["model"], tensors, batches, rate_at, 1.0)
    torch.set_num_threads(1)
    found = metrics(folder, "loss")
    last = [sum(one[-20:]) / 20 for one in (losses, found)]
    assert len(found) == steps and abs(found[0] - losses[0]) < 1e-5, (found[0], losses[0])
    assert abs(last[0] - last[1]) < 0.01 * last[0] and last[1] < 3.2, f"the last losses are {last[1]}, in PyTorch {last[0]}"


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data):
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message: (number, value)."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield tag >> 3, value


def read_events(path):
    """[(step, {tag: value})], after the record with the version."""
    with open(path, "rb") as file:
        data = file.read()
    at, out = 0, []
    while at < len(data):
        length, = struct.unpack("<Q", data[at:at + 8])
        assert struct.unpack("<I", data[at + 8:at + 12])[0] == masked(data[at:at + 8]), "checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert struct.unpack("<I", data[at + 12 + length:at + 16 + length])[0] == masked(body), "checksum of a record"
        at += 16 + length
        event = dict(fields(body))
        values = [dict(fields(value)) for number, value in fields(event.get(5, b"")) if number == 1]
        out.append((event.get(2, 0), {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}, event.get(3)))
    assert out[0][2] == b"brain.Event:2", out[0]
    return [(step, values) for step, values, _ in out[1:]]


def events(run):
    folder = run.path("events")
    Text.write(os.path.join(folder, "data"))
    run.call("train", save(os.path.join(folder, "params.yaml"), small_params(folder)))
    files = glob.glob(os.path.join(folder, "run", "events.out.tfevents.*"))
    assert len(files) == 1, files
    found = [(step, values["loss"]) for step, values in read_events(files[0]) if "loss" in values]
    want = list(enumerate(metrics(folder, "loss"), 1))
    assert len(found) == 60 and all(a[0] == b[0] and abs(a[1] - b[1]) < 1e-5 for a, b in zip(found, want)), found[:3]
    assert [step for step, values in read_events(files[0]) if "eval_loss" in values] == [20, 40, 60], "evaluations"


def csv_files(run):
    """Rows as the Model Zoo's create_csv.py writes them."""
    folder, rng, length = run.path("csv"), random.Random(5), 20
    os.makedirs(os.path.join(folder, "data"))
    letters = "aB'\"\\,[]# \u00c9\u00df\u00e9\u0416\u0416\u03a9\u4e2d\U0001f600\u200b\u00a0\u1ec4\u0152\t"
    words = sorted({"".join(rng.choice(letters) for _ in range(rng.randint(1, 4))) for _ in range(300)})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [word for word in words if word == word.strip() and len(word.split()) == 1]
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(vocabulary) + "\n")
    rows = []
    for i in range(200):
        tokens = ["[CLS]"] + [rng.choice(words) for _ in range(rng.randint(1, length - 2))] + ["[SEP]"]
        rows.append({"tokens": tokens, "segment_ids": [int(t > 5) for t in range(len(tokens))], "is_random_next": i % 2})
    for k in range(2):
        with open(os.path.join(folder, "data", f"part-{k}.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), quoting=csv.QUOTE_MINIMAL)
            writer.writeheader()
            writer.writerows(rows[k * 100:k * 100 + 100])
    with open(os.path.join(folder, "data", "meta.dat"), "w", encoding="utf-8") as file:
        file.write("part-0.csv 100\npart-1.csv 100\n")
    for lower in (False, True):
        loader = {"data_processor": "BertCSVDynamicMaskDataProcessor", "data_dir": os.path.join(folder, "data"), "batch_size": 4,
                  "vocab_file": os.path.join(folder, "vocab.txt"), "max_sequence_length": length, "max_predictions_per_seq": 4,
                  "do_lower": lower}
        config = {"name": "bert", "vocab_size": len(vocabulary), "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2,
                  "filter_size": 8, "max_position_embeddings": length, "pooler_nonlinearity": "tanh"}
        tree = {"trainer": {"init": {"model": config, "optimizer": {"SGD": {"learning_rate": 0.1}}}, "fit": {"train_dataloader": loader}}}
        path = save(os.path.join(folder, f"params-{lower}.yaml"), tree)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "samples_of.lua")
        ids = {}
        for i, word in enumerate(vocabulary):
            ids[word.lower() if lower else word] = i
        for sample, row in zip(json.loads(run.call("run", script, path, "200")), rows):
            want = [ids.get(token.lower() if lower else token, 1) for token in row["tokens"]]
            found = sample["input_ids"][:len(want)]
            for at, label, mask in zip(sample["masked_lm_positions"], sample["labels"], sample["masked_lm_mask"]):
                if mask:
                    assert label == want[at] and 0 < at < len(want) - 1, (row, at)
                    found[at] = label
            assert found == want, (row["tokens"], found, want)
            assert sample["attention_mask"] == [1] * len(want) + [0] * (length - len(want))
            assert sample["token_type_ids"][:len(want)] == row["segment_ids"]
            assert sample["next_sentence_label"] == row["is_random_next"]
            assert sum(sample["masked_lm_mask"]) == min(4, max(1, round(len(want) * 0.15)), len(want) - 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--kills", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--demo-steps", type=int, default=50, help="of 300; PyTorch needs a second for each")
    parser.add_argument("family", nargs="?", help="only this file of models/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options.cbk, folder)
        for name, family, case_name, case in families(options.family):
            run.check(f"{name}, {case_name}", lambda: train_family(run, name, family, case_name, case))
        if not options.family:
            run.check("CSV files", lambda: csv_files(run))
            run.check("events", lambda: events(run))
            run.check("upgrade", lambda: upgrade(run))
            if shutil.which("mpirun") and glob.glob(os.path.join(os.path.dirname(run.cbk), "libcbk-openmpi*")):
                run.check("ranks", lambda: ranks(run))
            else:
                run.skip("ranks", "there is no mpirun, or cbk was built without Open MPI")
            run.check("demo", lambda: demo(run, options.demo_steps))
            run.check("full disk", lambda: full_disk(run))
            run.check("kills", lambda: run_with_kills(run, options.kills, random.Random(options.seed)))
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
