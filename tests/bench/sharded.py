#!/usr/bin/python3
"""`cbk copy --weights` of folders of 8 ranks, and of quantised weights, against `cp` of the result, in turn.

Usage: sharded.py CBK FOLDER [--gb 4] [--rounds 5] [--only KIND] [--touch GB]   (FOLDER needs twice the size of one kind; each is made, raced, removed)
"""
import argparse
import collections
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import ranks_interop as of_ranks  # noqa: E402  pylint: disable=wrong-import-position
import safetensors_file  # noqa: E402  pylint: disable=wrong-import-position
import sharded_interop as of_pieces  # noqa: E402  pylint: disable=wrong-import-position
from stand_ins import instance  # noqa: E402  pylint: disable=wrong-import-position

RANKS, WIDTH, INNER, WORDS = 8, 4096, 11008, 32000
LAYER = {**{f"attention.w{name}.weight": (WIDTH, WIDTH) for name in "qkvo"}, "feed_forward.w1.weight": (INNER, WIDTH),
         "feed_forward.w2.weight": (WIDTH, INNER), "feed_forward.w3.weight": (INNER, WIDTH), "attention_norm.weight": (WIDTH,)}


def shapes(gigabytes, size):
    """LLaMA's, in Meta's names, of about so many bytes."""
    out = {"tok_embeddings.weight": (WORDS, WIDTH), "norm.weight": (WIDTH,), "output.weight": (WORDS, WIDTH)}
    of_layer = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER
    for i in range(max(1, round((gigabytes * 1e9 / size - 2 * WORDS * WIDTH) / of_layer))):
        out.update({f"layers.{i}.{name}": shape for name, shape in LAYER.items()})
    return out


def weights(gigabytes, dtype):
    generator = torch.Generator().manual_seed(1)
    size = torch.empty(0, dtype=dtype).element_size()
    return {name: torch.randint(-2 ** 15, 2 ** 15 - 1, (torch.Size(shape).numel() * size // 2,), dtype=torch.int16, generator=generator)
            .view(dtype).reshape(shape) for name, shape in shapes(gigabytes, size).items()}


# --- folders of ranks; each returns what to open

def dcp(path, tensors):
    folder = of_pieces.Folder(path, random.Random(1), RANKS)
    for name, tensor in tensors.items():
        edges = [i * len(tensor) // RANKS for i in range(RANKS + 1)]
        rest = [(0, size) for size in tensor.shape[1:]]
        folder.add(("model", name), tensor, [((a, b), *rest) for a, b in zip(edges, edges[1:])])
    return folder.write()


def dtensor(path, tensors):
    os.makedirs(path)
    for rank in range(RANKS):
        state = {name: of_ranks.dtensor(tensor, torch.arange(RANKS), rank, [instance(of_ranks.Shard, dim=0)]) for name, tensor in tensors.items()}
        torch.save(state, f"{path}/model_world_size_{RANKS}_rank_{rank}.pt")
    return path


def zero(stage):
    def piece(tensor, rank):
        size = -(-tensor.numel() // RANKS)
        return torch.nn.functional.pad(tensor.reshape(-1)[rank * size:(rank + 1) * size], (0, max(0, min(size, (rank + 1) * size - tensor.numel()))))

    def make(path, tensors):
        top = path + "/global_step1"
        os.makedirs(top)
        module = collections.OrderedDict((name, torch.empty(0 if stage == 3 else 1, dtype=torch.bfloat16).expand(0 if stage == 3 else tensor.shape))
                                         for name, tensor in tensors.items())
        model = dict(module=module, buffer_names=[], param_shapes=[collections.OrderedDict((name, tensor.shape) for name, tensor in tensors.items())],
                     shared_params={}, frozen_param_shapes=None, frozen_param_fragments=None, optimizer=None, ds_version="0.16.4", dp_world_size=RANKS,
                     mp_world_size=1)
        if stage < 3:
            total = sum(tensor.numel() for tensor in tensors.values())
            whole = torch.zeros(total + -total % (2 * RANKS))
            torch.cat([tensor.reshape(-1) for tensor in tensors.values()], out=whole[:total])
        for rank in range(RANKS):
            flat = torch.cat([piece(tensor, rank) for tensor in tensors.values()]) if stage == 3 else whole.chunk(RANKS)[rank].clone()
            if stage == 3 or rank == 0:
                torch.save(model, f"{top}/" + (f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"))
            torch.save(dict(optimizer_state_dict={
                "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups": [flat], "zero_stage": of_ranks.Stage(stage),
                "partition_count": RANKS if stage == 3 else [RANKS]}, ds_version="0.16.4"), f"{top}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        with open(path + "/latest", "w", encoding="utf-8") as file:
            file.write("global_step1")
        return path
    return make


def meta(path, tensors):
    os.makedirs(path)
    for rank in range(RANKS):
        part = {}
        for name, tensor in tensors.items():
            along = None if "norm" in name else 1 if any(word in name for word in (".wo.", ".w2.", "tok_")) else 0
            part[name] = tensor if along is None else of_ranks.cut(tensor, along, RANKS, rank).clone()
        torch.save(part, f"{path}/consolidated.{rank:02}.pth")
    return path


def megatron(path, tensors):
    names = {"tok_embeddings.weight": "embedding.word_embeddings.weight", "output.weight": "output_layer.weight", "norm.weight": "decoder.final_layernorm.weight"}
    for rank in range(RANKS):
        part = {}
        for name, tensor in tensors.items():
            if name in names:
                part[names[name]] = tensor if "norm" in name else of_ranks.cut(tensor, 0, RANKS, rank).clone()
                continue
            layer = "decoder." + ".".join(name.split(".")[:2])
            if "w2" in name:
                part[layer + ".mlp.linear_fc2.weight"] = of_ranks.cut(tensor, 1, RANKS, rank).clone()
            elif "w1" in name:
                up = tensors[name.replace("w1", "w3")]
                part[layer + ".mlp.linear_fc1.weight"] = torch.cat([of_ranks.cut(tensor, 0, RANKS, rank), of_ranks.cut(up, 0, RANKS, rank)])
            elif "wq" in name:
                three = torch.cat([tensors[name.replace("wq", one)] for one in ("wq", "wk", "wv")])
                part[layer + ".self_attention.linear_qkv.weight"] = of_ranks.cut(three, 0, RANKS, rank).clone()
            elif "wo" in name:
                part[layer + ".self_attention.linear_proj.weight"] = of_ranks.cut(tensor, 1, RANKS, rank).clone()
            elif "norm" in name:
                part[layer + ".input_layernorm.weight"] = tensor
        place = f"{path}/mp_rank_{rank:02}"
        os.makedirs(place)
        made = argparse.Namespace(num_layers=2, tensor_model_parallel_size=RANKS, pipeline_model_parallel_size=1, swiglu=True)
        torch.save(dict(checkpoint_version=3.0, args=made, model=part, iteration=1), place + "/model_optim_rng.pt")
    return path


def fp8_blocks(path, tensors):
    """Codes and scales of which the numbers are as many bytes as the tensors."""
    os.makedirs(path)
    out = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            out[name] = tensor
            continue
        codes = tensor.view(torch.uint8).reshape(-1)[:tensor.numel()] & 0x77  # no NaN
        out[name] = ("F8_E4M3", list(tensor.shape), codes.numpy().tobytes())
        out[name + "_scale_inv"] = torch.rand([-(-size // 128) for size in tensor.shape])
    safetensors_file.save(path + "/model.safetensors", out)
    with open(path + "/config.json", "w", encoding="utf-8") as file:
        file.write('{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}')
    return path


KINDS = {  # how it is made, and the dtype of the weights
    "DCP": (dcp, torch.bfloat16), "DTensors of FSDP2": (dtensor, torch.bfloat16), "ZeRO 2": (zero(2), torch.float32), "ZeRO 3": (zero(3), torch.float32),
    "Meta": (meta, torch.bfloat16), "Megatron": (megatron, torch.bfloat16), "FP8 in blocks, to bfloat16": (fp8_blocks, torch.bfloat16),
}


def timed(touched, source, *command):
    """Seconds of a command whose source is in the page cache. Memory is touched before: a hypervisor takes back what nobody uses, and who writes
    first pays for it."""
    os.sync()
    subprocess.run([sys.executable, "-c", f"b'x' * {int(touched * 1e9)}"], check=True)
    files = [source] if os.path.isfile(source) else [os.path.join(at, name) for at, _, names in os.walk(source) for name in names]
    subprocess.run(["cat", *files], check=True, stdout=subprocess.DEVNULL)
    begin = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def anonymous_peak(*command):
    """Peak of the memory that is not of files, in MB: looked up every few milliseconds."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
                    peak = max(peak, *(int(line.split()[1]) for line in file if line.startswith("RssAnon")), 0)
            except (FileNotFoundError, ProcessLookupError, TypeError):
                pass
            time.sleep(0.002)
    return peak / 1024


def race(cbk, source, folder, touched, rounds, options):
    out, copy = os.path.join(folder, "out.safetensors"), os.path.join(folder, "copy.bin")
    command = (cbk, "copy", source, out, "--overwrite", "-q", *options)
    peak = anonymous_peak(*command)
    pairs = []
    for _ in range(rounds):
        theirs = timed(touched, out, "cp", out, copy)
        os.remove(copy)
        os.remove(out)
        pairs.append((theirs, timed(touched, source, *command)))
    size = os.path.getsize(out)
    os.remove(out)
    return pairs, peak, size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cbk")
    parser.add_argument("folder")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--touch", type=float, default=0, help="GB of memory that are touched before each command")
    args = parser.parse_args()
    print("| folder | result | cp | cbk (min to max) | cbk ÷ cp | of the fastest | peak |\n|---|---|---|---|---|---|---|")
    for kind, (make, dtype) in KINDS.items():
        if args.only not in kind:
            continue
        path = os.path.join(args.folder, "made")
        shutil.rmtree(path, ignore_errors=True)
        source = make(path, weights(args.gb, dtype))
        options = ("--dequantize", "bfloat16") if "FP8" in kind else ("--weights",)
        pairs, peak, size = race(args.cbk, source, args.folder, args.touch, args.rounds, options)
        ours = [one for _, one in pairs]
        print(f"| {kind} | {size / 1e9:.1f} GB | {statistics.median(theirs for theirs, _ in pairs):.2f} s | {statistics.median(ours):.2f} s "
              f"({min(ours):.2f} to {max(ours):.2f}) | **{statistics.median(b / a for a, b in pairs):.2f}** | {min(ours) / min(a for a, _ in pairs):.2f} | {peak:.0f} MB |", flush=True)
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
