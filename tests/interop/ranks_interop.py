#!/usr/bin/python3
"""Folders in which each rank of a training run wrote a file: DTensors (FSDP2, tensor parallelism), DeepSpeed's ZeRO, Megatron and Meta. The tensors
are whole, bit for bit, in every command; a missing part, one of another size, or parallelism that is not joined is an error by name. The classes
of newer packages are stand-ins with the same names and states.

Usage: ranks_interop.py --cbk PATH [--seed N]
"""
import argparse
import collections
import enum
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time

import torch

import harness
import safetensors_file
from stand_ins import instance, stand_in

TENSOR = "torch.distributed.tensor"
Spec, Mesh = stand_in(TENSOR + "._dtensor_spec", "DTensorSpec"), stand_in("torch.distributed.device_mesh", "DeviceMesh")
Shard, Strided, Replicate, Partial = (stand_in(TENSOR + ".placement_types", name) for name in ("Shard", "_StridedShard", "Replicate", "Partial"))
Info = collections.namedtuple("TensorMeta", "shape stride dtype")
Info.__module__ = Spec.__module__
sys.modules[Spec.__module__].TensorMeta = Info
if not hasattr(torch._utils, "_rebuild_wrapper_subclass"):  # pylint: disable=protected-access
    def wrapper(*_):
        raise RuntimeError("only its name is written")
    wrapper.__module__, wrapper.__name__, wrapper.__qualname__ = "torch._utils", "_rebuild_wrapper_subclass", "_rebuild_wrapper_subclass"
    torch._utils._rebuild_wrapper_subclass = wrapper  # pylint: disable=protected-access


def reduced(self, _):
    # pylint: disable=protected-access
    local = self.local
    return torch._tensor._rebuild_from_type_v2, (torch._utils._rebuild_wrapper_subclass, DTensor, (
        DTensor, local.dtype, tuple(self.size), (), 0, torch.strided, torch.device("cpu"), False), ({}, {"_local_tensor": local, "_spec": self.spec}))


DTensor = stand_in(TENSOR, "DTensor", __reduce_ex__=reduced)
Sharded = stand_in("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
Scaler = stand_in("deepspeed.runtime.fp16.loss_scaler", "LossScaler")


class Stage(enum.IntEnum):
    OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3


Stage.__module__, Stage.__qualname__ = "deepspeed.runtime.zero.config", "ZeroStageEnum"
stand_in(Stage.__module__, "x")
sys.modules[Stage.__module__].ZeroStageEnum = Stage


def cut(tensor, dim, count, place):
    pieces = tensor.chunk(count, dim)
    return pieces[place] if place < len(pieces) else tensor.narrow(dim, 0, 0)


def dtensor(tensor, mesh, rank, placements):
    """The part of a rank: plain cuts in the order of the mesh's dims, then strided ones."""
    made = DTensor()
    place = (mesh == rank).nonzero()[0].tolist()
    order = [i for i, one in enumerate(placements) if isinstance(one, Shard)] + [i for i, one in enumerate(placements) if isinstance(one, Strided)]
    local = tensor
    for i in order:
        local = cut(local, placements[i].dim, mesh.shape[i], place[i])
    made.local, made.size = local.clone(), tensor.shape
    made.spec = instance(Spec, mesh=instance(Mesh, device_type="cuda", mesh=mesh), placements=tuple(placements),
                         tensor_meta=Info(tensor.shape, tensor.stride(), tensor.dtype))
    return made


class Ranks(harness.Run):
    def __init__(self, cbk, folder, rng):
        super().__init__(cbk, folder)
        self.rng = rng

    def fresh(self, *names):
        path = self.path("run")
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(os.path.join(path, *names))
        return path

    def random(self, *shape, dtype=torch.float32):
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.rng.randrange(2 ** 31))).to(dtype)

    def weights(self, dtype=torch.float32):
        rows = self.rng.randrange(1, 30)
        shapes = {"embed.weight": (rows, 12), "layers.0.q.weight": (12, 12), "layers.0.norm.weight": (12,), "lm_head.weight": (rows, 12), "conv": (4, 3, 5)}
        return {name: self.random(*shape, dtype=dtype) for name, shape in shapes.items()}

    def copied(self, source, *options):
        self.call("copy", source, self.path("out.safetensors"), "--overwrite", *options)
        return safetensors_file.load(self.path("out.safetensors"))[0]

    def tree(self, source):
        self.call("copy", source, self.path("out.pt"), "--overwrite", "--exclude", "args", "--exclude", "optimizer.loss_scaler")
        return torch.load(self.path("out.pt"))

    @staticmethod
    def same(found, wanted):
        assert sorted(found) == sorted(wanted), (sorted(found), sorted(wanted))
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name

    def refused(self, words, source, *options):
        target = self.path("refused.safetensors")
        done = self.run("copy", source, target, *options)
        assert done.returncode == 1 and not os.path.exists(target), done
        for word in words:
            assert word in done.stderr, (word, done.stderr)

    # --- DTensors

    def placements(self, tensor, mesh):
        """Random ones that cut dims of the tensor, once each but for a strided cut."""
        dims = list(range(tensor.dim()))
        self.rng.shuffle(dims)
        out = [instance(Shard, dim=dims.pop() - self.rng.choice([0, tensor.dim()])) if dims and self.rng.random() < .7 else instance(Replicate)
               for _ in range(mesh.dim())]
        if mesh.dim() == 2 and self.rng.random() < .3:  # FSDP over tensor parallelism
            out = [instance(Strided, dim=0, split_factor=mesh.shape[1]), instance(Shard, dim=0)]
        elif mesh.dim() == 2 and self.rng.random() < .3:
            out = [instance(Shard, dim=0), instance(Shard, dim=0)]
        return out

    def made_dtensors(self, shape):
        mesh = torch.randperm(shape.numel(), generator=torch.Generator().manual_seed(self.rng.randrange(99))).reshape(shape)
        weights, folder = self.weights(self.rng.choice([torch.bfloat16, torch.float32])), self.fresh()
        places = {name: self.placements(tensor, mesh) for name, tensor in weights.items()}
        for rank in range(mesh.numel()):
            state = {name: dtensor(tensor, mesh, rank, places[name]) for name, tensor in weights.items()}
            torch.save({**state, "step": torch.tensor(7)}, f"{folder}/model_world_size_{mesh.numel()}_rank_{rank}.pt")
        return folder, mesh, weights

    def dtensors(self, shape):
        folder, mesh, weights = self.made_dtensors(shape)
        self.same(self.copied(folder, "--weights"), {**weights, "step": torch.tensor(7)})
        self.same(self.copied(folder, "--exclude", "step"), weights)
        assert mesh.numel() == 1 or f"in {mesh.numel()} files" in self.call("ls", folder)
        done = self.run("diff", folder, self.path("out.safetensors"), "--keys-only")
        assert done.returncode == 1 and "step" in done.stdout, done.stdout

    def of_a_trainer(self):
        """The files of model, optimizer and the rest are one tree; moments have the names of their parameters."""
        mesh, weights, folder = torch.arange(3), self.weights(), self.fresh()
        for rank in range(3):
            state = {name: dtensor(tensor, mesh, rank, [instance(Shard, dim=0)]) for name, tensor in weights.items()}
            moments = {name: {"step": torch.tensor(1.0), "exp_avg": dtensor(tensor * 2, mesh, rank, [instance(Shard, dim=0)])} for name, tensor in weights.items()}
            for kind, value in {"model": state, "optim": {"state": moments, "param_groups": [{"lr": 0.5, "params": list(weights)}]}, "extra_state": {"rng": rank}}.items():
                torch.save(value, f"{folder}/{kind}_world_size_3_rank_{rank}.pt")
        tree = self.tree(folder)
        self.same(tree["model"], weights)
        self.same({name: state["exp_avg"] for name, state in tree["optim"]["state"].items()}, {name: tensor * 2 for name, tensor in weights.items()})
        assert tree["extra_state"] == {"rng": 0}
        self.same(self.copied(folder, "--weights"), weights)

    def dtensor_damage(self):
        def made(change=None, placements=None, ranks=4):
            mesh, weights, folder = torch.arange(4), {"w": torch.ones(10, 3), "v": torch.ones(2)}, self.fresh()
            for rank in range(ranks):
                state = {name: dtensor(tensor, mesh, rank, placements or [instance(Shard, dim=0)]) for name, tensor in weights.items()}
                if change:
                    change(rank, state)
                torch.save(state, f"{folder}/model_world_size_4_rank_{rank}.pt")
            return folder
        self.refused(["3 of 4 ranks", "none of rank 3", "copy the files of all ranks"], made(ranks=3))
        self.refused(["'w'", "rank_2.pt", "its part is [2, 3], and should be [3, 3]"],
                     made(lambda rank, state: rank == 2 and setattr(state["w"], "local", torch.ones(2, 3))))
        self.refused(["'w'", "Partial"], made(placements=[instance(Partial, reduce_op="sum")]))
        self.refused(["'w'", "rank_1.pt", "rank_0.pt"], made(lambda rank, state: rank == 1 and state.pop("w")))
        self.refused(["'x'", "rank_3.pt", "rank_0.pt"], made(lambda rank, state: rank == 3 and state.update(x=torch.ones(1))))
        self.refused(["'w'", "rank_1.pt"], made(lambda rank, state: rank == 1 and state.update(w=torch.ones(3, 3))))
        self.refused(["'w'", "another shape"], made(lambda rank, state: rank == 1 and setattr(state["w"].spec, "tensor_meta", Info(torch.Size([9, 3]), (), torch.float32))))
        self.refused(["'w'", "dim 5 of 2"], made(lambda rank, state: setattr(state["w"].spec, "placements", (instance(Shard, dim=5),))))
        self.refused(["'w'", "a strided cut in 3"], made(placements=[instance(Strided, dim=0, split_factor=3)]))
        self.refused(["'w'", "0 placements"], made(lambda rank, state: setattr(state["w"].spec, "placements", ())))
        self.refused(["'w'", "no attribute 'mesh'"], made(lambda rank, state: setattr(state["w"].spec, "mesh", instance(Mesh))))
        folder = made()
        torch.save({}, folder + "/model_world_size_2_rank_0.pt")
        self.refused(["are both of rank 0"], folder)
        os.remove(folder + "/model_world_size_2_rank_0.pt")
        with open(folder + "/model_world_size_4_rank_1.pt", "r+b") as file:
            file.truncate(100)
        self.refused(["model_world_size_4_rank_1.pt"], folder)
        self.refused(["'w'", "differ in the files"], made(lambda rank, state: state.update(w=torch.full((3,), float(rank)))))
        self.refused(["ShardedTensor"], made(lambda rank, state: state.update(w=instance(Sharded))))
        self.refused(["has tensors, and another length"], made(lambda rank, state: state.update(l=[torch.ones(2)] * (rank + 1))))
        self.refused(["'l.0'", "rank_0.pt"], made(lambda rank, state: state.update(l=[torch.ones(2) if rank else None])))
        tied = torch.full((4,), 3.0)  # one object in rank 0 alone

        def apart(rank, state):
            state.update(x=tied, y=tied if rank == 0 else torch.full((4,), 5.0))
        self.refused(["'y'", "differ in the files"], made(apart))
        random_states = made(lambda rank, state: state.update(rng=torch.tensor([rank], dtype=torch.uint8)))
        self.call("ls", random_states)
        one = made()
        done = self.run("copy", one + "/model_world_size_4_rank_2.pt", self.path("part.safetensors"), "--weights")
        assert done.returncode == 1 and "DTensor" in done.stderr, done
        alone = made()
        done = self.run("ls", alone + "/model_world_size_4_rank_2.pt")
        assert done.returncode == 0 and "part 3 of 4" in done.stderr and "DTensor" in done.stdout, done

    # --- DeepSpeed

    def zero(self, stage, ranks, change=None, dtype=torch.bfloat16):
        """A run's folder, and its weights in float32."""
        folder, weights = self.fresh("global_step7"), self.weights()
        top, names = folder + "/global_step7", list(weights)
        self.rng.shuffle(names)
        groups = [names[:2], names[2:4]]
        frozen, buffers = {names[4]: weights[names[4]]}, {"rotary.freq": torch.arange(4.0).to(dtype)}
        moments = {kind: {name: self.random(*weights[name].shape) for name in names[:4]} for kind in ("exp_avg", "exp_avg_sq")}

        def piece(tensor, rank):
            size = -(-tensor.numel() // ranks)
            return torch.cat([tensor.reshape(-1), torch.zeros(size * ranks - tensor.numel())])[rank * size:(rank + 1) * size]

        def flat(values, rank):
            if stage == 3:
                return [torch.cat([piece(values[name], rank) for name in group]) for group in groups]
            out = []
            for group in groups:
                whole = torch.cat([values[name].reshape(-1) for name in group])
                out.append(torch.cat([whole, torch.zeros(-len(whole) % (2 * ranks))]).chunk(ranks)[rank].clone())
            return out

        module = collections.OrderedDict((name, torch.empty(0, dtype=dtype) if stage == 3 else tensor.to(dtype)) for name, tensor in weights.items())
        if stage < 3:
            module["tied.weight"] = module[names[0]]
        module.update(buffers)
        models, optimizers = [], []
        for rank in range(ranks):
            fragments = {name: piece(tensor, rank) if stage == 3 else tensor for name, tensor in frozen.items()}
            models.append(dict(
                module=module, buffer_names=list(buffers), param_shapes=[collections.OrderedDict((name, weights[name].shape) for name in group) for group in groups],
                shared_params={"alias.weight": names[1]}, frozen_param_shapes={name: tensor.shape for name, tensor in frozen.items()},
                frozen_param_fragments=fragments, optimizer=None, ds_version="0.16.4", dp_world_size=ranks, mp_world_size=1, global_steps=7))
            kinds = {kind: flat(values, rank) for kind, values in moments.items()}
            states = {j: {"step": 7, **{kind: values[j] for kind, values in kinds.items()}} for j in range(2)}
            optimizers.append(dict(optimizer_state_dict={
                ("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"): flat(weights, rank), "loss_scaler": instance(Scaler, cur_scale=1.0),
                "zero_stage": Stage(stage), "partition_count": ranks if stage == 3 else [ranks] * 2,
                ("optimizer_state_dict" if stage == 3 else "base_optimizer_state"): {"state": states, "param_groups": [{"lr": 0.5}]}}, ds_version="0.16.4"))
        if change:
            change(models, optimizers)
        for rank, value in enumerate(models):
            if stage == 3 or rank == 0:
                torch.save(value, f"{top}/" + (f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"))
        for rank, value in enumerate(optimizers):
            torch.save(value, f"{top}/{self.rng.choice(['', 'bf16_'])}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        with open(folder + "/latest", "w", encoding="utf-8") as file:
            file.write("global_step7\n")
        wanted = {**weights, **{name: tensor.float() for name, tensor in buffers.items()}, "alias.weight": weights[names[1]]}
        if stage < 3:
            wanted["tied.weight"] = weights[names[0]]
        return folder, wanted, moments

    def zero_whole(self, stage, ranks):
        folder, weights, moments = self.zero(stage, ranks)
        for source in (folder, folder + "/latest", folder + "/global_step7"):
            self.same(self.copied(source, "--weights"), weights)
        tree = self.tree(folder)
        self.same(tree["module"], weights)
        assert tree["global_steps"] == 7 and tree["optimizer"]["param_groups"] == [{"lr": 0.5}], tree
        assert "param_shapes" not in tree
        for kind, values in moments.items():
            self.same({name: state[kind] for name, state in tree["optimizer"]["state"].items()}, values)
        assert all(state["step"] == 7 for state in tree["optimizer"]["state"].values())
        rows = json.loads(self.call("stats", "--json", folder, "--key", "module.*"))["tensors"]
        assert {row["key"].removeprefix("module.") for row in rows} == set(weights), rows

    def zero_damage(self):
        for stage in (2, 3):
            folder = self.zero(stage, 3)[0]
            lost = next(name for name in os.listdir(folder + "/global_step7") if "rank_1_mp_rank_00_optim" in name)
            os.remove(f"{folder}/global_step7/{lost}")
            self.refused(["in 3 partitions", "the folder has 2 (files", "copy the files of all ranks"], folder)
            key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"

            def longer(_, optimizers, key=key):
                groups = optimizers[1]["optimizer_state_dict"][key]
                groups[1] = torch.cat([groups[1], torch.ones(9)])
            self.refused(["elements"], self.zero(stage, 3, longer)[0])

            def shorter(_, optimizers, key=key):
                groups = optimizers[1]["optimizer_state_dict"][key]
                groups[1] = groups[1][:1].clone()
            self.refused(["elements"], self.zero(stage, 3, shorter)[0])

            def without(_, optimizers, key=key):
                del optimizers[2]["optimizer_state_dict"][key]
            self.refused([f"'{key}'", "rank_2"], self.zero(stage, 3, without)[0])

            def unknown(models, _):
                models[0]["shared_params"] = {"alias.weight": "nowhere"}
            self.refused(["'alias.weight'", "'nowhere'"], self.zero(stage, 3, unknown)[0])
        def placeholder(models, _):
            for one in models:
                one["module"]["extra.weight"] = torch.empty(0, dtype=torch.bfloat16)
        self.refused(["'extra.weight' has no elements"], self.zero(3, 2, placeholder)[0])
        folder = self.zero(2, 2)[0]
        safetensors_file.save(folder + "/model.safetensors", {"w": torch.ones(2)})
        done = self.run("ls", folder)
        assert done.returncode == 0 and "'latest' is not read: 'model.safetensors' beside it is" in done.stderr, done
        folder = self.zero(2, 2)[0]
        os.remove(folder + "/global_step7/mp_rank_00_model_states.pt")
        self.refused(["no *_model_states.pt"], folder)
        folder = self.zero(2, 2)[0]
        shutil.copy(folder + "/global_step7/mp_rank_00_model_states.pt", folder + "/global_step7/mp_rank_01_model_states.pt")
        self.refused(["mp_rank_01_model_states.pt", "tensor parallelism"], folder)
        folder = self.zero(2, 2)[0]
        open(folder + "/global_step7/layer_00-model_00-model_states.pt", "wb").close()
        self.refused(["layer_00-model_00-model_states.pt"], folder)
        folder = self.zero(2, 2)[0]
        name = next(name for name in os.listdir(folder + "/global_step7") if "rank_1_mp" in name)
        shutil.copy(f"{folder}/global_step7/{name}", f"{folder}/global_step7/" + (name[5:] if name.startswith("bf16_") else "bf16_" + name))
        self.refused(["are both of rank 1"], folder)
        os.symlink(self.zero(2, 2)[0] + "/global_step7", self.path("link"))

        def shuffled(_, optimizers):  # states are numbered, and more than moments does not block the weights
            for one in optimizers:
                base = one["optimizer_state_dict"]["base_optimizer_state"]
                base["state"] = {j: {**base["state"][j], "qmap1": torch.ones(256)} for j in (1, 0)}
        folder, weights, moments = self.zero(2, 2, shuffled)
        self.same(self.copied(folder, "--weights"), weights)
        self.same({name: state["exp_avg"] for name, state in self.tree(folder)["optimizer"]["state"].items()}, moments["exp_avg"])

        def strange(_, optimizers):
            del optimizers[1]["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"]
        folder, weights, _ = self.zero(2, 2, strange)
        self.same(self.copied(folder, "--weights"), weights)
        self.refused(["optimizer"], folder)
        for tag in ("../run/global_step7", "/etc", ".", "", "gone"):
            folder = self.zero(2, 2)[0]
            with open(folder + "/latest", "w", encoding="utf-8") as file:
                file.write(tag)
            self.refused(["no checkpoint" if tag == "" else "is not there"], folder)

    # --- tensor-parallel parts

    def made_meta(self, ranks, is_third):
        folder, dim, wide = self.fresh(), 8, 24
        weights = {"tok_embeddings.weight": (16, dim), "norm.weight": (dim,), "output.weight": (16, dim), "rope.freqs": (3,)}
        for name in ("wq", "wk", "wv", "wo"):
            weights[f"layers.0.attention.{name}.weight"] = (dim, dim)
        weights.update({"layers.0.feed_forward.w1.weight": (wide, dim), "layers.0.feed_forward.w2.weight": (dim, wide), "layers.0.feed_forward.w3.weight": (wide, dim),
                        "layers.0.attention_norm.weight": (dim,)})
        weights = {name: self.random(*shape, dtype=torch.bfloat16) for name, shape in weights.items()}

        def along(name):
            if "norm" in name or "rope" in name:
                return None
            return 1 if ".wo." in name or ".w2." in name or (name.startswith("tok") and not is_third) else 0
        for rank in range(ranks):
            part = {name: tensor if along(name) is None else cut(tensor, along(name), ranks, rank).clone() for name, tensor in weights.items()}
            torch.save(part, f"{folder}/consolidated.{rank:02}.pth")
        return folder, weights

    def meta(self, ranks, is_third):
        folder, weights = self.made_meta(ranks, is_third)
        self.same(self.copied(folder), weights)
        if ranks > 1:
            parts = [torch.load(f"{folder}/consolidated.{rank:02}.pth") for rank in range(ranks)]
            for name, shapes, word in (("strange.weight", (4, 4), "no rule"), ("norm.weight", (8, 8), "no rule"), ("norm.weight", (8, 3), "[3]")):
                for rank, part in enumerate(parts):
                    torch.save({**part, name: self.random(shapes[rank > 0])}, f"{folder}/consolidated.{rank:02}.pth")
                self.refused([f"'{name}'", word], folder)
                for rank, part in enumerate(parts):
                    torch.save(part, f"{folder}/consolidated.{rank:02}.pth")
            os.remove(f"{folder}/consolidated.{ranks - 1:02}.pth")
            self.refused(["are the files of all ranks there?"], folder)
            torch.save(parts[-1], f"{folder}/consolidated.{2 ** 63 - 1}.pth")
            self.refused(["are the files of all ranks there?"], folder)
            os.remove(f"{folder}/consolidated.00.pth")

    def made_megatron(self, tensor_ranks, stages, is_gated, is_nested):
        folder, hidden, wide, of_stage = self.fresh("iter_0000010"), 8, 16, 2
        whole = {"embedding.word_embeddings.weight": self.random(24, hidden), "output_layer.weight": self.random(24, hidden),
                 "decoder.final_layernorm.weight": self.random(hidden)}
        axes = {"embedding.word_embeddings.weight": 0, "output_layer.weight": 0}
        for layer in range(of_stage * stages):
            for name, shape, axis in (("self_attention.linear_qkv.weight", (3 * hidden, hidden), 0), ("self_attention.linear_qkv.bias", (3 * hidden,), 0),
                                      ("self_attention.linear_proj.weight", (hidden, hidden), 1), ("self_attention.linear_proj.bias", (hidden,), None),
                                      ("mlp.linear_fc1.weight", ((1 + is_gated) * wide, hidden), "fc1"), ("mlp.linear_fc1.bias", ((1 + is_gated) * wide,), "fc1"),
                                      ("mlp.linear_fc2.weight", (hidden, wide), 1), ("input_layernorm.weight", (hidden,), None)):
                whole[f"decoder.layers.{layer}.{name}"], axes[f"decoder.layers.{layer}.{name}"] = self.random(*shape), axis
        for stage in range(stages):
            for rank in range(tensor_ranks):
                part = {}
                for name, tensor in whole.items():
                    words = name.split(".")
                    if words[1] == "layers":
                        if int(words[2]) // of_stage != stage:
                            continue
                        words[2] = str(int(words[2]) % of_stage)
                    elif stage != (0 if name.startswith("embedding") else stages - 1):
                        continue
                    axis = axes.get(name)
                    if axis == "fc1" and is_gated:
                        piece = torch.cat([cut(half, 0, tensor_ranks, rank) for half in tensor.chunk(2)])
                    else:
                        piece = tensor if axis is None else cut(tensor, 0 if axis == "fc1" else axis, tensor_ranks, rank).clone()
                    part[".".join(words)] = piece
                part["decoder.layers.0.mlp._extra_state"] = io.BytesIO(b"")
                if is_nested:
                    part = {first: {name.split(".", 1)[1]: value for name, value in part.items() if name.startswith(first + ".")} for first in {name.split(".")[0] for name in part}}
                place = f"{folder}/iter_0000010/mp_rank_{rank:02}" + (f"_{stage:03}" if stages > 1 else "")
                os.makedirs(place)
                torch.save(dict(checkpoint_version=3.0, args=argparse.Namespace(num_layers=2, tensor_model_parallel_size=tensor_ranks, pipeline_model_parallel_size=stages), model=part, iteration=10, optimizer={"m": torch.ones(3) * rank}), place + "/model_optim_rng.pt")
        with open(folder + "/latest_checkpointed_iteration.txt", "w", encoding="utf-8") as file:
            file.write("10")
        return folder, whole

    def megatron(self, tensor_ranks, stages, is_gated, is_nested):
        folder, whole = self.made_megatron(tensor_ranks, stages, is_gated, is_nested)
        for source in (folder, folder + "/iter_0000010", folder + "/latest_checkpointed_iteration.txt"):
            self.same(self.copied(source, "--weights"), whole)
        self.refused(["optimizer"], folder, "--exclude", "args", "--exclude", "*_extra_state*")
        names = sorted(os.listdir(folder + "/iter_0000010"))
        if stages > 1:  # ranks of experts have the same names as stages
            paths = [f"{folder}/iter_0000010/{name}/model_optim_rng.pt" for name in names]
            values = [torch.load(path) for path in paths]
            for more, word in ((dict(pipeline_model_parallel_size=1, expert_model_parallel_size=stages), "ranks of experts"),
                               (dict(pipeline_model_parallel_size=1), "in 1 pipeline stages")):
                for path, value in zip(paths, values):
                    torch.save({**value, "args": argparse.Namespace(**{**vars(value["args"]), **more})}, path)
                self.refused([word], folder, "--weights")
            for path, value in zip(paths, values):
                torch.save(value, path)
        for lost in (names[0], names[-1]) if len(names) > 1 else ():
            os.rename(f"{folder}/iter_0000010/{lost}", self.path("lost"))
            self.refused(["file", "pipeline stage" if stages > 1 and tensor_ranks == 1 else "rank"], folder, "--weights")
            os.rename(self.path("lost"), f"{folder}/iter_0000010/{lost}")
        if tensor_ranks > 1:
            for name in names:
                path = f"{folder}/iter_0000010/{name}/model_optim_rng.pt"
                value = torch.load(path)
                value["model"]["decoder" if is_nested else "decoder.layers.0.strange"] = {"layers.0.strange": torch.ones(2)} if is_nested else torch.ones(2)
                torch.save(value, path)
            self.refused(["strange", "no rule"], folder, "--weights")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Ranks(args.cbk, folder, random.Random(args.seed))
        for shape in ((1,), (2,), (5,), (2, 2), (3, 2), (2, 1, 3)):
            for _ in range(3):
                test.check(f"DTensors on a mesh {shape}", lambda s=shape: test.dtensors(torch.Size(s)))
        for name in ("of_a_trainer", "dtensor_damage", "zero_damage"):
            test.check(name, getattr(test, name))
        for stage in (1, 2, 3):
            for ranks in (1, 2, 3, 4):
                test.check(f"ZeRO {stage} of {ranks}", lambda s=stage, n=ranks: test.zero_whole(s, n))
        for ranks in (2, 4):
            for is_third in (False, True):
                test.check(f"Meta {ranks} {is_third}", lambda n=ranks, t=is_third: test.meta(n, t))
        for tensor_ranks, stages in ((1, 1), (2, 1), (1, 3), (2, 2), (4, 2)):
            for is_gated in (False, True):
                for is_nested in (False, True):
                    test.check(f"Megatron {tensor_ranks} {stages} {is_gated} {is_nested}",
                               lambda t=tensor_ranks, s=stages, g=is_gated, n=is_nested: test.megatron(t, s, g, n))
        return test.close()


if __name__ == "__main__":
    sys.exit(main())
