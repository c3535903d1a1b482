#!/usr/bin/python3
"""What streaming promises, counted on whole processes: anonymous memory that does not grow with the checkpoint, the same
bytes for any number of threads, exact round trips, and a target that is whole or absent when the process is killed.

Usage: streaming_interop.py --cbk PATH
"""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import torch

MEMORY_LIMIT = 100e6
passed, failed = 0, 0


def check(name, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {name}: {detail}")


def anonymous_peak(argv):
    """Runs argv; (exit status, stderr, the largest RssAnon seen in bytes)."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                found = re.search(r"RssAnon:\s+(\d+)", f.read())
            peak = max(peak, int(found.group(1)) * 1024 if found else 0)
        except (OSError, ProcessLookupError):
            pass
        time.sleep(0.002)
    return process.returncode, process.stderr.read(), peak


def digest(path):
    if os.path.isdir(path):
        return [(name, digest(os.path.join(path, name))) for name in sorted(os.listdir(path))]
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def llama_folder(folder, layers, hidden, vocabulary, tied=False):
    """A Hugging Face LLaMA with grouped queries, written by torch in one pickle."""
    os.makedirs(folder)
    heads, kv_heads, filter_size = 8, 2, hidden * 2
    head = hidden // heads
    g = torch.Generator().manual_seed(1)

    def w(*shape):
        return torch.randn(*shape, generator=g)

    state = {"model.embed_tokens.weight": w(vocabulary, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        state[p + "self_attn.q_proj.weight"] = w(heads * head, hidden)
        state[p + "self_attn.k_proj.weight"] = w(kv_heads * head, hidden)
        state[p + "self_attn.v_proj.weight"] = w(kv_heads * head, hidden)
        state[p + "self_attn.o_proj.weight"] = w(hidden, heads * head)
        state[p + "mlp.gate_proj.weight"] = w(filter_size, hidden)
        state[p + "mlp.up_proj.weight"] = w(filter_size, hidden)
        state[p + "mlp.down_proj.weight"] = w(hidden, filter_size)
        state[p + "input_layernorm.weight"] = w(hidden)
        state[p + "post_attention_layernorm.weight"] = w(hidden)
    state["model.norm.weight"] = w(hidden)
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if tied else w(vocabulary, hidden)
    torch.save(state, os.path.join(folder, "pytorch_model.bin"))
    config = {"model_type": "llama", "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": filter_size,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "initializer_range": 0.02, "tie_word_embeddings": tied}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return state


def convert(cbk, src, tgt, config, checkpoint, out, *more):
    return [cbk, "convert", "--model", "llama", "--src-fmt", src, "--tgt-fmt", tgt, "--config", config, checkpoint,
            "--output-dir", out, "--no-progress-bar", *more]


def memory(cbk, top):
    """Every job on a checkpoint whose largest tensor alone is beyond the limit."""
    big = os.path.join(top, "big")
    llama_folder(big, layers=2, hidden=512, vocabulary=80000)  # two tensors of 164 MB
    source = os.path.join(big, "pytorch_model.bin")
    config = os.path.join(big, "config.json")
    h5 = os.path.join(top, "in.mdl")
    out = os.path.join(top, "out")
    turn = os.path.join(top, "turn.lua")
    with open(turn, "w", encoding="utf-8") as f:
        f.write('local cbk = require "cbk"\nlocal out = cbk.create(arg[2])\n'
                'for k, t in cbk.open(arg[1]):tensors() do out[k] = t:dim() == 2 and t:transpose(0, 1) or t end\nout:commit()\n')
    jobs = [("pickle to H5", [cbk, "copy", source, h5]),
            ("pickle to safetensors", [cbk, "copy", source, out + ".safetensors"]),
            ("pickle to pickle", [cbk, "copy", source, out + ".pt"]),
            ("cast to bfloat16", [cbk, "copy", source, out + "16.pt", "--to-dtype", "bfloat16"]),
            ("H5 to pickle", [cbk, "copy", h5, out + "h.pt"]),
            ("H5 to H5", [cbk, "copy", h5, out + ".mdl", "--rename", "model=decoder"]),
            ("shards", [cbk, "copy", source, out + "shards", "--format", "safetensors", "--shard-size", "100MB"]),
            ("LLaMA to Cerebras", convert(cbk, "hf", "cs-2.5", config, source, out + "cs")),
            ("every matrix transposed", [cbk, "run", turn, source, out + "turned.safetensors"]),
            ("statistics", [cbk, "show", source, "lm_head.weight"]),
            ("difference", [cbk, "diff", source, h5])]
    for name, argv in jobs:
        status, error, peak = anonymous_peak(argv)
        check(f"memory: {name}", status == 0, f"exit status {status}: {error[-300:]}")
        check(f"memory: {name}", peak <= MEMORY_LIMIT, f"{peak / 1e6:.0f} MB of anonymous memory")
        for entry in os.listdir(top):
            if entry.startswith("out"):
                path = os.path.join(top, entry)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    os.remove(h5)
    shutil.rmtree(big)


def exactness(cbk, top):
    """HF → CS → HF gives the same bits back, with any number of threads, through pickles and through H5 0.4 and 0.5."""
    for tied in (False, True):
        folder = os.path.join(top, f"small{tied}")
        state = llama_folder(folder, layers=2, hidden=64, vocabulary=100, tied=tied)
        for release in ("cs-2.4", "cs-2.5"):
            seen = set()
            for threads in (1, 2, 7):
                out = os.path.join(top, f"{release}-{tied}-{threads}")
                run = subprocess.run(convert(cbk, "hf", release, os.path.join(folder, "config.json"), os.path.join(folder, "pytorch_model.bin"),
                                             out, "--threads", str(threads), "--memory", "8MiB"), capture_output=True, text=True, check=False)
                check(f"{release}: exit status", run.returncode == 0, run.stderr[-300:])
                seen.add(json.dumps(digest(out)))
            check(f"{release}: the same bytes for 1, 2 and 7 threads", len(seen) == 1)
            back = os.path.join(top, f"back-{release}-{tied}")
            run = subprocess.run(convert(cbk, release, "hf", os.path.join(out, f"config_to_{release}.yaml"),
                                         os.path.join(out, f"pytorch_model_to_{release}.mdl"), back), capture_output=True, text=True, check=False)
            check(f"{release}: back to HF", run.returncode == 0, run.stderr[-300:])
            shard = os.path.join(back, f"pytorch_model_to_{release}_to_hf", "pytorch_model-00001-of-00001.bin")
            again = torch.load(shard) if os.path.exists(shard) else {}
            check(f"{release}: the same keys", set(again) == set(state), str(set(again) ^ set(state))[:300])
            check(f"{release}: the same bits", all(torch.equal(state[k], again[k]) for k in state if k in again))
            with h5py.File(os.path.join(out, f"pytorch_model_to_{release}.mdl"), "r") as f:
                name = "model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight"
                expected = state["model.layers.0.self_attn.q_proj.weight"].reshape(8, 2, 4, 64).permute(0, 2, 1, 3).reshape(64, 64)
                check(f"{release}: rotary rows are interleaved", np.array_equal(f[name][()], expected.numpy()))


def kills(cbk, top):
    """`kill -9` at any moment: the target is the old file, the new one, or absent, and nothing lies beside it."""
    folder = os.path.join(top, "kill")
    llama_folder(folder, layers=4, hidden=256, vocabulary=20000)
    source = os.path.join(folder, "pytorch_model.bin")
    rng = random.Random(5)
    for target, more in (("new.mdl", []), ("new.pt", []), ("old.safetensors", ["--overwrite"])):
        out = os.path.join(top, "killed")
        os.makedirs(out)
        path = os.path.join(out, target)
        start = time.monotonic()
        subprocess.run([cbk, "copy", source, path, *more], check=True, capture_output=True)
        whole, seconds = digest(path), time.monotonic() - start
        ok, detail = True, ""
        for _ in range(12):
            old = None
            if os.path.exists(path):
                os.remove(path)
            if more:
                with open(path, "w", encoding="ascii") as f:
                    f.write("old")
                old = digest(path)
            process = subprocess.Popen([cbk, "copy", source, path, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0, seconds))
            process.kill()
            process.wait()
            left = os.listdir(out)
            state = digest(path) if os.path.exists(path) else None
            if state not in (whole, old) or set(left) - {target}:
                ok, detail = False, f"left behind: {left}, target {'partly written' if state not in (whole, old) else 'fine'}"
        check(f"kill -9 while writing {target}", ok, detail)
        shutil.rmtree(out)

    out = os.path.join(top, "interrupted")
    os.makedirs(out)
    process = subprocess.Popen([cbk, "copy", source, os.path.join(out, "x.mdl")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.03)
    process.send_signal(signal.SIGINT)
    error = process.communicate()[1]
    check("Ctrl-C ends with 130 and leaves nothing", process.returncode == 130 and not os.listdir(out) or
          process.returncode == 0 and os.listdir(out) == ["x.mdl"], f"{process.returncode}, {os.listdir(out)}, {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    cbk = os.path.abspath(parser.parse_args().cbk)
    top = tempfile.mkdtemp(prefix="cbk-streaming-")
    try:
        exactness(cbk, top)
        kills(cbk, top)
        memory(cbk, top)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
