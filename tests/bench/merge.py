#!/usr/bin/python3
"""`cbk merge` and `cbk extract-lora` against `cp` of as many bytes as a merge reads and writes, in turn.

Usage: merge.py CBK FOLDER [--gb 1] [--rounds 5]   (FOLDER keeps the models between runs)
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import safetensors_file  # noqa: E402  pylint: disable=wrong-import-position

WIDTH, INNER, WORDS = 2048, 5504, 32000
LAYER = {**{f"self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}, "mlp.gate_proj.weight": (INNER, WIDTH),
         "mlp.up_proj.weight": (INNER, WIDTH), "mlp.down_proj.weight": (WIDTH, INNER), "input_layernorm.weight": (WIDTH,)}
CONFIGS = {  # tuned models have 'base' and noise in their layers
    "linear": "models: [{model: base, parameters: {weight: 0.6}}, {model: tuned1, parameters: {weight: 0.4}}]",
    "slerp": "base_model: base\nparameters: {t: 0.4}\nmodels: [{model: base}, {model: tuned1}]",
    "task_arithmetic": "base_model: base\nparameters: {weight: 0.5}\nmodels: [{model: tuned1}, {model: tuned2}]",
    "ties": "base_model: base\nparameters: {weight: 0.5, density: 0.4}\nmodels: [{model: tuned1}, {model: tuned2}]",
    "dare_ties": "base_model: base\nparameters: {weight: 0.5, density: 0.4}\nmodels: [{model: tuned1}, {model: tuned2}]",
}


def shapes(gigabytes):
    out = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (WORDS, WIDTH)}
    layers = round((gigabytes * 5e8 - 2 * WORDS * WIDTH) / (4 * WIDTH * WIDTH + 3 * WIDTH * INNER))
    for i in range(max(layers, 1)):
        out.update({f"model.layers.{i}.{name}": shape for name, shape in LAYER.items()})
    return out


def make_models(folder, gigabytes):
    torch.manual_seed(1)
    base = {key: (torch.randn(shape) * 0.02).to(torch.bfloat16) for key, shape in shapes(gigabytes).items()}
    for name in ("base", "tuned1", "tuned2"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            continue
        os.makedirs(path)
        tensors = base if name == "base" else {
            key: (value.float() + torch.randn(value.shape) * 0.001).to(torch.bfloat16) if ".layers." in key else value for key, value in base.items()}
        safetensors_file.save(os.path.join(path, "model.safetensors"), tensors)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "llama", "num_hidden_layers": sum("layernorm" in key for key in base)}, file)
    for method, text in CONFIGS.items():
        with open(os.path.join(folder, method + ".yml"), "w", encoding="utf-8") as file:
            file.write(f"merge_method: {method}\n{text}\n")


def timed(folder, *command):
    begin = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def copied(folder, models):
    """Seconds that `cp` takes for the bytes that a merge of so many models reads and writes: half of them are read."""
    size = os.path.getsize(os.path.join(folder, "base", "model.safetensors")) * (models + 1) // 2
    source = os.path.join(folder, "bytes.bin")
    if not os.path.exists(source) or os.path.getsize(source) != size:
        with open(source, "wb") as out:
            left = size
            while left > 0:
                with open(os.path.join(folder, "base", "model.safetensors"), "rb") as file:
                    left -= out.write(file.read(left))
    seconds = timed(folder, "cp", "bytes.bin", "copy.bin")
    os.remove(os.path.join(folder, "copy.bin"))
    return seconds


def race(folder, rounds, models, command):
    pairs = []
    for _ in range(rounds + 1):
        pairs.append((copied(folder, models), timed(folder, *command)))
        shutil.rmtree(os.path.join(folder, "out"))
        time.sleep(0.5)
    cp, cbk = zip(*pairs[1:])  # the first round warms the page cache
    return statistics.median(cp), statistics.median(cbk), min(cbk), max(cbk), statistics.median(b / a for a, b in pairs[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cbk")
    parser.add_argument("folder")
    parser.add_argument("--gb", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cbk = os.path.abspath(args.cbk)
    os.makedirs(args.folder, exist_ok=True)
    make_models(args.folder, args.gb)
    jobs = [(method, 2 if method in ("linear", "slerp") else 3, [cbk, "merge", method + ".yml", "-o", "out", "-q"]) for method in CONFIGS]
    jobs += [(f"extract-lora --rank {rank}", 2, [cbk, "extract-lora", "base", "tuned1", "-o", "out", "--rank", str(rank), "-q"]) for rank in (16, 64)]
    for name, models, command in jobs:
        cp, middle, least, most, ratio = race(args.folder, args.rounds, models, command)
        print(f"| {name} | {cp:.2f} s | {middle:.2f} s ({least:.2f} to {most:.2f}) | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
