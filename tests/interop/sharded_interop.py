#!/usr/bin/python3
"""Checkpoints in many pieces, as ranks of a training run write them: the tensors are whole, bit for bit, in every command; a hole, an overlap,
a missing or damaged piece is an error by name. The classes of PyTorch 2 are stand-ins with the same names and states.

Usage: sharded_interop.py --cbk PATH [--seed N]
"""
import argparse
import enum
import functools
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import time

import torch

import harness
import safetensors_file
from stand_ins import instance, stand_in


METADATA = "torch.distributed.checkpoint.metadata"
Metadata, Tensor, Other, Chunk = (stand_in(METADATA, name) for name in (
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"))
Index = stand_in(METADATA, "MetadataIndex", __hash__=lambda self: hash(self.fqn), __eq__=lambda a, b: a is b)
Properties = stand_in(METADATA, "TensorProperties", __getstate__=lambda self: (self.dtype, torch.strided_layout(), False, Format.CONTIGUOUS, False),
                      __setstate__=lambda self, state: None)
Place = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")


class Format(enum.Enum):
    CONTIGUOUS = 0


Format.__module__, Format.__qualname__ = METADATA, "_MEM_FORMAT_ENCODING"
sys.modules[METADATA]._MEM_FORMAT_ENCODING = Format  # pylint: disable=protected-access


class Strided:
    def __reduce__(self):
        return torch.serialization._get_layout, ("torch.strided",)  # pylint: disable=protected-access


def get_layout(name):
    return getattr(torch, name.split(".")[1])


if not hasattr(torch.serialization, "_get_layout"):
    get_layout.__module__, get_layout.__name__, get_layout.__qualname__ = "torch.serialization", "_get_layout", "_get_layout"
    torch.serialization._get_layout = get_layout  # pylint: disable=protected-access
torch.strided_layout = Strided


def cuts(rng, size):
    """Where an extent is cut: uneven, as the last of several ranks has less."""
    places = sorted(rng.sample(range(1, size), min(rng.randrange(4), size - 1))) if size > 1 else []
    return list(zip([0, *places], [*places, size]))


def boxes(rng, shape):
    """A tensor's pieces: a grid, or bands that are cut differently."""
    if not shape:
        return [()]
    out = []
    for band in cuts(rng, shape[0]):
        rest = [[]]
        for size in shape[1:]:
            rest = [box + [cut] for box in rest for cut in cuts(rng, size)]
        out += [(band, *box) for box in rest]
    return out


class Folder:
    """A folder of torch.distributed.checkpoint under construction."""

    def __init__(self, path, rng, ranks=3):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        self.path, self.rng, self.files = path, rng, [bytearray() for _ in range(ranks)]
        self.described, self.plan, self.places = {}, {}, {}

    def stored(self, value, **more):
        rank, data = self.rng.randrange(len(self.files)), io.BytesIO()
        torch.save(value, data)
        place = instance(Place, relative_path=f"__{rank}_0.distcp", offset=len(self.files[rank]), length=len(data.getvalue()), **more)
        self.files[rank] += data.getvalue()
        return place

    def add(self, path, tensor, pieces=None):
        name = ".".join(path)
        chunks = []
        for i, box in enumerate(pieces or boxes(self.rng, tensor.shape)):
            piece = tensor[tuple(slice(*cut) for cut in box)].clone()
            if not pieces and self.rng.random() < .3 and piece.dim() == 2:
                piece = piece.T.contiguous().T  # the same elements in another order
            offsets = torch.Size(begin for begin, _ in box)
            chunks.append(instance(Chunk, offsets=offsets, sizes=piece.shape))
            self.places[instance(Index, fqn=name, offset=offsets, index=i)] = self.stored(piece)
        self.rng.shuffle(chunks)
        self.described[name] = instance(Tensor, properties=instance(Properties, dtype=tensor.dtype), size=tensor.shape, chunks=chunks)
        self.plan[name] = path

    def add_other(self, path, value):
        name = ".".join(str(part) for part in path)
        self.described[name], self.plan[name] = instance(Other), path
        self.places[instance(Index, fqn=name, offset=None, index=None)] = self.stored(value)

    def place_of(self, name, number=0):
        return [place for index, place in self.places.items() if index.fqn == name][number]

    def write(self, has_plan=True, protocol=4):
        for i, data in enumerate(self.files):
            with open(os.path.join(self.path, f"__{i}_0.distcp"), "wb") as file:
                file.write(data)
        with open(os.path.join(self.path, ".metadata"), "wb") as file:
            pickle.dump(instance(Metadata, state_dict_metadata=self.described, planner_data=self.plan if has_plan else None,
                                 storage_data=self.places, version="1.0"), file, protocol=protocol)
        return self.path


class Sharded(harness.Run):
    def __init__(self, cbk, folder, rng):
        super().__init__(cbk, folder)
        self.rng = rng

    def weights(self, *dtypes):
        generator = torch.Generator().manual_seed(self.rng.randrange(2 ** 31))
        shapes = {"model.embed.weight": (23, 12), "model.layers.0.q.weight": (12, 12), "model.layers.0.norm.weight": (12,),
                  "model.layers.1.q.weight": (12, 12), "lm_head.weight": (23, 12), "model.scale": (), "model.conv": (4, 3, 5), "model.none": (0, 3)}
        return {name: torch.randn(shape, generator=generator).to(self.rng.choice(dtypes)) for name, shape in shapes.items()}

    def copied(self, source, *options):
        out = self.path("out.safetensors")
        said = self.call("copy", source, out, "--overwrite", *options)
        return safetensors_file.load(out)[0], said

    @staticmethod
    def same(found, wanted):
        assert sorted(found) == sorted(wanted), (sorted(found), sorted(wanted))
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name

    # --- torch.distributed.checkpoint

    def made(self, prefix=(), weights=None, nested=False):
        made = Folder(self.path("dcp"), self.rng)
        for name, tensor in (weights or self.weights(torch.float32, torch.bfloat16)).items():
            made.add((*prefix, *(name.split(".") if nested else [name])), tensor)
        return made

    def dcp(self, prefix, nested, has_plan, protocol):
        weights = self.weights(torch.float32, torch.bfloat16, torch.float16, torch.int64)
        folder = self.made(prefix, weights, nested)
        folder.add(("optimizer", "state", "model.embed.weight", "exp_avg"), torch.ones(23, 12))
        folder.add_other(("step",), 7)
        folder.add_other(("optimizer", "param_groups", 0, "lr"), 0.5)
        folder.add_other(("optimizer", "param_groups", 1, "lr"), 0.25)
        source = folder.write(has_plan, protocol)
        self.same(self.copied(source, "--weights")[0], weights)
        whole = self.path("whole.pt")
        self.call("copy", source, whole, "--overwrite")
        tree = torch.load(whole)
        if has_plan:
            assert tree["step"] == 7 and [group["lr"] for group in tree["optimizer"]["param_groups"]] == [0.5, 0.25]
        assert "in 3 files" in self.call("ls", source)
        done = self.run("diff", source, whole)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "mean" in self.call("stats", source)

    def conversions(self):
        """A conversion finds the weights in the folder, below dicts of modules, too; a copy into a folder takes config and tokenizer along."""
        layer = "model.layers.0."
        shapes = {"model.embed_tokens.weight": (5, 8), "model.norm.weight": (8,), "lm_head.weight": (5, 8), layer + "input_layernorm.weight": (8,),
                  layer + "post_attention_layernorm.weight": (8,), **{f"{layer}self_attn.{name}_proj.weight": (8, 8) for name in "qkvo"},
                  layer + "mlp.gate_proj.weight": (16, 8), layer + "mlp.up_proj.weight": (16, 8), layer + "mlp.down_proj.weight": (8, 16)}
        weights = {name: torch.randn(shape, generator=torch.Generator().manual_seed(len(name))) for name, shape in shapes.items()}
        config = {"model_type": "llama", "vocab_size": 5, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16,
                  "max_position_embeddings": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
        wanted = self.path("wanted")
        os.makedirs(wanted, exist_ok=True)
        torch.save(weights, wanted + "/pytorch_model.bin")
        for folder in (wanted, self.path("dcp")):
            shutil.rmtree(folder + "-cs", ignore_errors=True)
        files = {"config.json": json.dumps(config), "tokenizer.json": "{}", "tekken.json": "[]"}

        def converted(source):
            for name, text in files.items():
                with open(f"{source}/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
            self.call("convert", source, "--to", "cs-2.4", "-o", source + "-cs")
            return next(f"{source}-cs/{name}" for name in os.listdir(source + "-cs") if name.endswith(".mdl"))
        one = converted(wanted)
        adapter, name = self.path("adapter"), "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        os.makedirs(adapter, exist_ok=True)
        torch.save({name + "A.weight": torch.randn(2, 8), name + "B.weight": torch.randn(8, 2), "base_model.model.lm_head.weight": torch.randn(5, 8)}, adapter + "/adapter_model.bin")
        with open(adapter + "/adapter_config.json", "w", encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "modules_to_save": ["lm_head"]}, file)
        self.call("fold-lora-checkpoint", "--adapter", adapter, wanted, "-o", self.path("folded"))
        self.call("convert", self.path("folded"), "--to", "cs-2.4", "-o", self.path("in-two"))
        self.call("convert", wanted, "--adapter", adapter, "--to", "cs-2.4", "-o", self.path("at-once"))
        both = [next(f"{folder}/{file}" for file in os.listdir(folder) if file.endswith(".mdl")) for folder in (self.path("in-two"), self.path("at-once"))]
        done = self.run("diff", *both)
        assert done.returncode == 0 and self.run("diff", one, both[1]).returncode == 1, done.stdout
        done = self.run("convert", both[0], "--adapter", adapter, "--to", "hf", "-o", self.path("back"))
        assert done.returncode == 2 and "--adapter: it is folded into a Hugging Face model" in done.stderr, done.stderr
        for prefix, nested in (((), False), ((), True), (("model",), False), (("model",), True), (("app", "model"), False)):
            folder = self.made(prefix, weights, nested)
            folder.add(("optimizer", "state", "lm_head.weight", "exp_avg"), torch.ones(5, 8))
            if not prefix:
                folder.add_other(("train_state",), b"torchtitan's step")
            source = folder.write()
            shutil.rmtree(source + "-cs", ignore_errors=True)
            done = self.run("diff", one, converted(source))
            assert done.returncode == 0, (prefix, nested, done.stdout)
            shutil.rmtree(self.path("model"), ignore_errors=True)
            self.call("copy", source, self.path("model"), "--weights", "--format", "safetensors", "--shard-size", "1KB")
            assert all(open(self.path("model/" + name), encoding="utf-8").read() == text for name, text in files.items()), os.listdir(self.path("model"))
            done = self.run("diff", self.path("model"), wanted)
            assert done.returncode == 0, (prefix, nested, done.stdout)

    def by_ranks_and_jobs(self):
        """Every way to write has the same bytes."""
        source = self.made(("model",)).write()
        wanted = None
        for options in ((), ("--plan", "job"), ("--resume",)):
            target = self.path("way.safetensors")
            done = self.run("copy", source, target, "--overwrite", *(self.path(one) if one == "job" else one for one in options))
            assert done.returncode == 0, done.stderr
            if "--plan" in options:
                self.call("work", self.path("job"), "--part", "2/2")
                self.call("work", self.path("job"), "--part", "1/2")
                self.call("finish", self.path("job"))
            with open(target, "rb") as file:
                data = file.read()
            wanted = wanted or data
            assert data == wanted, options
            os.remove(target)

    def refused(self, words, source, *options):
        out = self.path("refused.safetensors")
        done = self.run("copy", source, out, *options)
        assert done.returncode == 1 and all(word in done.stderr for word in words), (words, done.stderr)
        assert not os.path.exists(out)

    def dcp_damage(self):
        name = "model.embed.weight"

        def whole():
            folder = Folder(self.path("dcp"), self.rng)
            tensor = torch.arange(48.).reshape(8, 6)
            folder.add((name,), tensor, [((0, 4), (0, 6)), ((4, 8), (0, 2)), ((4, 8), (2, 6))])
            return folder, folder.described[name]
        for what, words in (("no place", ["no file has its piece"]), ("no chunk", ["no piece has the elements ["]), ("overlap", ["overlap"]),
                            ("outside", ["reaches beyond"]), ("file", ["__", "does not exist"]), ("cut", ["cut short"]),
                            ("dtype", ["is float32", "instead of float16"]), ("shape", ["instead of"]), ("few", ["too few"]),
                            ("twice", ["a piece has two places"]), ("negative", ["negative"]), ("away", ["outside"]), ("packed", ["compressed"]),
                            ("damaged", ["CRC-32"]), ("plan", ["two values have its path"])):
            folder, described = whole()
            first = next(index for index in folder.places if list(index.offset) == [4, 0])
            if what == "no place":
                del folder.places[first]
            elif what == "no chunk":
                described.chunks = [chunk for chunk in described.chunks if list(chunk.offsets) != [4, 0]]
            elif what in ("overlap", "outside"):
                chunk = next(chunk for chunk in described.chunks if list(chunk.offsets) == ([4, 0] if what == "overlap" else [4, 2]))
                chunk.sizes = torch.Size([4, 3 if what == "overlap" else 5])
                folder.places[next(i for i in folder.places if i.offset == chunk.offsets)] = folder.stored(torch.zeros(*chunk.sizes))
            elif what == "dtype":
                described.properties.dtype = torch.float16
            elif what == "shape":
                folder.places[first] = folder.stored(torch.zeros(2, 4))
            elif what == "few":
                folder.places[first].length = 20
            elif what == "twice":
                folder.places[instance(Index, fqn=name, offset=first.offset, index=9)] = folder.places[first]
            elif what == "negative":
                folder.places[first].offset = -1
            elif what == "away":
                folder.places[first].relative_path = "../secret.distcp"
            elif what == "packed":
                folder.places[first].transform_descriptors = ["zstd"]
            elif what == "plan":
                folder.add_other(("other",), 1)
                folder.plan["other"] = folder.plan[name]
            source = folder.write()
            path = os.path.join(source, folder.places[first].relative_path) if first in folder.places else None
            if what == "file":
                os.remove(path)
            elif what == "cut":
                biggest = max(folder.places.values(), key=lambda place: place.offset)
                os.truncate(os.path.join(source, biggest.relative_path), biggest.offset + biggest.length - 1)
            elif what == "damaged":
                place = folder.places[first]
                with open(path, "r+b") as file:
                    data = file.read()
                    at = data.index(torch.arange(48.).reshape(8, 6)[4:8, 0:2].contiguous().numpy().tobytes()[:8], place.offset)
                    file.seek(at)
                    file.write(b"\xff")
            self.refused(words if what in ("plan", "packed") else [name if what != "away" else "secret", *words], source)

    def dcp_foreign(self):
        """What is no data is shown, and runs nowhere; the weights beside it are copied."""
        weights = self.weights(torch.float32)
        folder = self.made(("model",), weights)
        marker = self.path("marker")
        folder.add_other(("hook",), functools.partial(os.system, f"touch {marker}"))
        folder.add_other(("where",), pathlib.PurePosixPath("/data"))
        source = folder.write()
        assert "hook" in self.call("ls", source)
        self.same(self.copied(source, "--weights")[0], weights)
        self.refused(["hook"], source)
        assert not os.path.exists(marker)

    def of_hugging_face(self):
        """Pieces in files of safetensors, with and without the metadata; a hole is an error by name."""
        weights, folder = self.weights(torch.float32, torch.bfloat16), self.path("hf")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        made, names = Folder(self.path("dcp"), self.rng), [f"shard-{rank + 1:05}-model-00001-of-00001.safetensors" for rank in range(3)]
        for rank, name in enumerate(names):
            part, info = {}, {}
            for key, tensor in weights.items():
                pieces = tensor.chunk(3) if tensor.dim() else (tensor,)
                begin = sum(len(piece) for piece in pieces[:rank]) if tensor.dim() else 0
                if rank >= len(pieces) or rank and not tensor.numel():
                    continue
                part[key], offsets = pieces[rank], [begin] + [0] * (tensor.dim() - 1) if tensor.dim() else []
                info[key] = {"saved_offsets": offsets}
                described = made.described.setdefault(key, instance(Tensor, properties=instance(Properties, dtype=tensor.dtype), size=tensor.shape, chunks=[]))
                described.chunks.append(instance(Chunk, offsets=torch.Size(offsets), sizes=pieces[rank].shape))
                made.places[instance(Index, fqn=key, offset=torch.Size(offsets), index=rank)] = instance(Place, relative_path=name, offset=0, length=0)
            safetensors_file.save(f"{folder}/{name}", part, {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0"})
        found, _ = self.copied(folder)
        self.same(found, weights)
        assert "in 3 files are joined" in self.run("ls", folder).stderr
        assert "open the folder" in self.run("ls", f"{folder}/{names[1]}").stderr
        shutil.move(made.write(False) + "/.metadata", folder + "/.metadata")
        self.same(self.copied(folder)[0], weights)
        os.remove(f"{folder}/{names[1]}")
        self.refused([names[1]], folder)
        os.remove(folder + "/.metadata")
        self.refused(["no piece has the elements"], folder)

    def of_accelerate(self):
        """FSDP as the Trainer of transformers saves it: a folder of pieces for the model beside its optimizer, or one file."""
        weights, run = self.weights(torch.float32), self.path("checkpoint-10")
        shutil.rmtree(run, ignore_errors=True)
        for inner, prefix in (("pytorch_model_fsdp_0", ("model",)), ("optimizer_0", ("optimizer",))):
            folder = Folder(f"{run}/{inner}", self.rng)
            for name, tensor in weights.items():
                folder.add((*prefix, name), tensor if prefix == ("model",) else tensor * 2)
            folder.write()
        for name in ("rng_state_0.pth", "scheduler.pt", "training_args.bin"):
            torch.save({"x": 1}, f"{run}/{name}")
        self.same(self.copied(run, "--weights")[0], weights)
        shutil.rmtree(run + "/pytorch_model_fsdp_0")
        torch.save(weights, run + "/pytorch_model_fsdp.bin")
        self.same(self.copied(run)[0], weights)

    def repeated_state(self):
        """A state with a long path that many places share takes its memory once: 7 bytes of the pickle for each of them."""
        source = self.path("repeated")
        os.makedirs(source, exist_ok=True)

        def text(value):
            return b"X" + len(value).to_bytes(4, "little") + value.encode()
        state = b"}(" + text("relative_path") + text("x" * 200000) + text("offset") + b"K\0" + text("length") + b"K\1u"
        classes = b"c" + Index.__module__.encode() + b"\nMetadataIndex\n0c" + Place.__module__.encode() + b"\n_StorageInfo\nq\0" + b"0" + state + b"q\1" + b"0"
        fields = b"".join(text(name) + b"}" for name in ("state_dict_metadata", "planner_data", "storage_data"))
        places = b"(" + b"h\0)\x81h\1b" * 3000 + b"l0"
        with open(source + "/.metadata", "wb") as file:
            file.write(b"\x80\x02" + classes + places + b"c" + METADATA.encode() + b"\nMetadata\n)\x81}(" + fields + b"ub.")
        done = subprocess.run(["/bin/sh", "-c", f"ulimit -d {60 << 10}; exec '{self.cbk}' ls '{source}'"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done

    def hostile_metadata(self):
        """Whatever a pickle calls, nothing is run; sizes that no file has cost nothing."""
        marker = self.path("marker")

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {marker}",)
        folder = self.made()
        folder.described["evil"] = Evil()
        self.refused(["posix.system", "nothing was executed"], folder.write())
        assert not os.path.exists(marker)
        folder = self.made()
        folder.described["lm_head.weight"].size = torch.Size([2 ** 40, 2 ** 30])
        self.refused(["lm_head.weight"], folder.write())

    def many_pieces(self):
        """Pieces are opened when they are read: 3,000 are listed although none of them is whole."""
        folder = Folder(self.path("dcp"), self.rng, 1)
        places = [folder.stored(torch.ones(1))]
        folder.files[0] *= 3000
        tensor = instance(Tensor, properties=instance(Properties, dtype=torch.float32), size=torch.Size([3000]),
                          chunks=[instance(Chunk, offsets=torch.Size([i]), sizes=torch.Size([1])) for i in range(3000)])
        folder.described["w"], folder.plan["w"] = tensor, ("w",)
        for i in range(3000):
            places.append(instance(Place, **dict(vars(places[0]), offset=i * places[0].length)))
            folder.places[instance(Index, fqn="w", offset=torch.Size([i]), index=i)] = places[-1]
        self.same(self.copied(folder.write())[0], {"w": torch.ones(3000)})
        folder.files[0] = bytearray(len(folder.files[0]))
        source = folder.write()
        assert "[3000]" in self.call("ls", source)
        self.refused(["the piece of 'w' at byte 0 of '__0_0.distcp'"], source)

    # --- weights out of containers and wrappers

    def containers(self):
        weights = {name: tensor for name, tensor in self.weights(torch.float32).items() if tensor.numel()}
        for container in ("state_dict", "model_state_dict", "model", "module", "net", "params", "ema", None):
            for prefix in ("", "module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module.", "model."):
                state = {prefix + name: tensor for name, tensor in weights.items()}
                torch.save({container: state, "epoch": 3, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}} if container else state,
                           self.path("wrapped.pt"))
                self.same(self.copied(self.path("wrapped.pt"), "--weights")[0], weights)

    def beside(self):
        """What usual training loops keep beside the weights is no weight; a model's own modules are, whatever they are called."""
        weights = {"embed.weight": torch.ones(3, 2), "scaler.weight": torch.ones(2), "model.head": torch.ones(1)}
        moments = {"state": {0: {"exp_avg": torch.zeros(3, 2)}}, "param_groups": [{"lr": 0.1}]}
        for name in "model_state_dict", "state_dict", "model", "net":
            torch.save({"epoch": 3, name: weights, "optimizer_state_dict": moments, "optim": moments, "loss": torch.tensor(0.5),
                        "cuda_rng_state": torch.zeros(8, dtype=torch.uint8), "lr_scheduler_state": {"x": torch.ones(1)}}, self.path("loop.pt"))
            done = self.run("copy", self.path("loop.pt"), self.path("loop.safetensors"), "--weights", "--overwrite")
            assert done.returncode == 0 and "not copied: loss" in done.stderr, done.stderr
            self.same(safetensors_file.load(self.path("loop.safetensors"))[0], weights)
        torch.save({"model": {"embed": {"weight": torch.ones(2)}}, "lm_head": {"weight": torch.ones(3)}}, self.path("nested.pt"))
        self.same(self.copied(self.path("nested.pt"), "--weights")[0], {"model.embed.weight": torch.ones(2), "lm_head.weight": torch.ones(3)})

    def inner_wrappers(self):
        weights = {f"model.layers.{i}.{part}.weight": torch.full((2,), float(i)) for i in range(2) for part in ("q", "norm")}
        weights["lm_head.weight"] = torch.ones(3)
        for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
            torch.save({"model": {name.replace(".q.", f".{wrapper}.q."): tensor for name, tensor in weights.items()}}, self.path("wrapped.pt"))
            self.same(self.copied(self.path("wrapped.pt"), "--weights")[0], weights)

    def ambiguous(self):
        """Names stay where a wrapper is not sure, and what is not copied is named."""
        tied = {"model.embed_tokens.weight": torch.ones(3), "model.norm.weight": torch.ones(1)}
        torch.save(tied, self.path("tied.pt"))
        self.same(self.copied(self.path("tied.pt"), "--weights")[0], tied)
        torch.save({"model": {"w": torch.ones(2)}, "net": {"w": torch.zeros(2)}, "ema": {"w": torch.zeros(2)}}, self.path("two.pt"))
        done = self.run("copy", self.path("two.pt"), self.path("two.safetensors"), "--weights", "--overwrite")
        assert done.returncode == 0 and "other tensors as well, which are not copied: net" in done.stderr, done.stderr
        self.same(safetensors_file.load(self.path("two.safetensors"))[0], {"w": torch.ones(2)})
        torch.save({"a._orig_mod.w": torch.ones(2), "a.w": torch.ones(2)}, self.path("clash.pt"))
        self.refused(["are one name"], self.path("clash.pt"), "--weights")
        torch.save({"step": 3, "optimizer": {"m": torch.ones(2)}}, self.path("none.pt"))
        self.refused(["no dict of tensors"], self.path("none.pt"), "--weights")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Sharded(args.cbk, folder, random.Random(args.seed))
        for prefix in ((), ("model",), ("app", "model")):
            for nested in (False, True):
                for has_plan, protocol in ((True, 2), (True, 4), *(() if nested else ((False, 4),))):
                    test.check(f"dcp below {prefix}, nested: {nested}, plan: {has_plan}, protocol {protocol}",
                               lambda p=prefix, n=nested, h=has_plan, v=protocol: test.dcp(p, n, h, v))
        for name in ("by_ranks_and_jobs", "conversions", "dcp_damage", "dcp_foreign", "of_hugging_face", "of_accelerate", "repeated_state", "hostile_metadata", "many_pieces", "containers",
                     "beside", "inner_wrappers", "ambiguous"):
            test.check(name, getattr(test, name))
        return test.close()


if __name__ == "__main__":
    sys.exit(main())
