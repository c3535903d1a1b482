#!/usr/bin/python3
"""What streaming promises, counted on whole processes: anonymous memory that does not grow with the checkpoint, the same
bytes for any number of threads, exact round trips, forecasts that hold, and a target that is whole or absent when the process is
killed or its source is cut.

Usage: streaming_interop.py --cbk PATH
"""
import argparse
import hashlib
import json
import os
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
            ("histogram", [cbk, "plot", source, "lm_head.weight"]),
            ("heat map", [cbk, "plot", source, "lm_head.weight", "--heat-map", "-o", out + ".png"]),
            ("report", [cbk, "report", source, h5, "-o", out + ".html"]),
            ("difference", [cbk, "diff", source, h5])]
    many = os.path.join(top, "many.bin")
    torch.save({f"model.layers.{i // 500}.experts.{i % 500}.up_proj.weight": torch.full((4 + i % 36, 64), float(i))
                for i in range(20000)}, many)
    jobs += [("20,000 tensors to H5", [cbk, "copy", many, out + ".mdl"]),
             ("20,000 tensors to safetensors", [cbk, "copy", many, out + ".safetensors"]),
             ("20,000 tensors reported", [cbk, "report", many, "-o", out + ".html"]),
             ("20,000 tensors listed", [cbk, "ls", many])]
    folder = lora_folder(os.path.join(top, "lora"))
    jobs += [("LoRA folded", [cbk, "fold-lora-checkpoint", "--model", "gpt2", "-p", os.path.join(folder, "p.yaml"), "--checkpoint_path",
                              os.path.join(folder, "c.bin")])]
    with h5py.File(os.path.join(folder, "texts.h5"), "w") as f:
        f.create_dataset("texts", data=[b"x" * 100000] * 1200, dtype=h5py.string_dtype())
    bundle = os.path.join(folder, "texts.ckpt")
    subprocess.run([cbk, "h5-to-tensorflow", os.path.join(folder, "texts.h5"), bundle], check=True, capture_output=True)
    jobs += [("120 MB of texts", [cbk, "copy", bundle, out + ".ckpt", "--format", "tensorflow"])]
    for name, argv in jobs:
        status, error, peak = anonymous_peak(argv)
        check(f"memory: {name}", status == 0, f"exit status {status}: {error[-300:]}")
        check(f"memory: {name}", peak <= MEMORY_LIMIT, f"{peak / 1e6:.0f} MB of anonymous memory")
        for entry in os.listdir(top):
            if entry.startswith("out"):
                path = os.path.join(top, entry)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    os.remove(h5)
    os.remove(many)
    check_folded(folder)
    shutil.rmtree(folder)
    shutil.rmtree(big)


def scattered_reads(cbk, top):
    """Where mappings are slow, nothing is read in one: a transposed matrix does not become resident."""
    preload = os.path.join(top, "faults.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", preload, os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c"), "-ldl"],
                   check=True)
    turn = os.path.join(top, "turn_by.lua")
    with open(turn, "w", encoding="utf-8") as f:
        f.write('local cbk = require "cbk"\ncbk.read_by(arg[3])\nlocal out = cbk.create(arg[2], { overwrite = true })\n'
                'for k, t in cbk.open(arg[1]):tensors() do out[k] = t:transpose(0, 1) end\nout:commit()\n'
                'print(io.open("/proc/self/status"):read("*a"):match "VmHWM:%s*(%d+)")\n')
    matrix = torch.arange(4096 * 8192, dtype=torch.float32).reshape(4096, 8192)
    for ending in ".pt", ".mdl", ".safetensors":
        source, out = os.path.join(top, "scattered" + ending), os.path.join(top, "turned.pt")
        torch.save({"w": matrix}, os.path.join(top, "scattered.pt"))
        if ending != ".pt":
            subprocess.run([cbk, "copy", os.path.join(top, "scattered.pt"), source], check=True, capture_output=True)
        peaks = {}
        for name, how, environment in (("mmap", "mmap", {}), ("pread", "pread", {}), ("local", "default", {}),
                                       ("NFS", "default", {"LD_PRELOAD": preload, "FAULT_TYPE": "0x6969"})):
            done = subprocess.run([cbk, "run", turn, source, out, how], env=dict(os.environ, **environment), capture_output=True, text=True,
                                  check=False)
            check(f"{ending} transposed by {name}", done.returncode == 0 and torch.equal(torch.load(out)["w"], matrix.T), done.stderr)
            peaks[name] = int(done.stdout) * 1024  # resident, with what is mapped
        for slow in "pread", "NFS":
            check(f"{ending} by {slow} is not mapped", peaks[slow] < peaks["mmap"] - 20e6 and peaks[slow] < peaks["local"] - 20e6, peaks)


def sent_early(cbk, top):
    """To a file system of a network, what is written is sent on its way before its end, and synced at its end."""
    source, calls = os.path.join(top, "scattered.pt"), os.path.join(top, "calls")
    for kind in "0x6969", None:
        environment = dict(os.environ, LD_PRELOAD=os.path.join(top, "faults.so"), FAULT_FOLDERS=top, FAULT_LOG=calls,
                           **({"FAULT_TYPE": kind} if kind else {}))
        done = subprocess.run([cbk, "copy", source, os.path.join(top, "sent.safetensors"), "--overwrite"], capture_output=True, text=True,
                              check=False, env=environment)
        with open(calls, encoding="utf-8") as f:
            names = [line.split()[0] for line in f]
        os.remove(calls)
        found = "sync_file_range" in names, "fsync" in names
        check(f"sent early: {kind}", done.returncode == 0 and found == (kind is not None, kind is not None), (done.stderr, found))


def lora_folder(folder):
    """Weights of 160 MB each, with LoRA matrices: embeddings, whose product is transposed, and a wide linear layer."""
    os.makedirs(folder)
    g = torch.Generator().manual_seed(2)
    embeddings, linear = "model.embedding_layer.word_embeddings", "model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer"
    state = {f"{embeddings}.weight": torch.randn(80000, 512, generator=g), f"{embeddings}.lora_A": torch.randn(8, 80000, generator=g),
             f"{embeddings}.lora_B": torch.randn(512, 8, generator=g),
             f"{linear}.weight": torch.randn(2048, 40000, generator=g).to(torch.bfloat16), f"{linear}.lora_A": torch.randn(8, 40000, generator=g).to(torch.bfloat16),
             f"{linear}.lora_B": torch.randn(2048, 8, generator=g).to(torch.bfloat16), "model.lm_head.weight": torch.randn(10, 512, generator=g)}
    torch.save({"model": state}, os.path.join(folder, "c.bin"))
    with open(os.path.join(folder, "p.yaml"), "w", encoding="utf-8") as f:
        f.write("model:\n  hidden_size: 512\n  lora_params:\n    r: 8\n    alpha: 4\n")
    return folder


def check_folded(folder):
    state = torch.load(os.path.join(folder, "c.bin"))["model"]
    with h5py.File(os.path.join(folder, "c_folded.bin"), "r") as f:
        names = [name for name in state if name.endswith(".weight")]
        check("LoRA folded: names", sorted(f"model.{name}" for name in names) == sorted(f), sorted(f))
        for name in names:
            a, b = (state.get(name.replace(".weight", part)) for part in (".lora_A", ".lora_B"))
            expected = state[name].float()
            if a is not None:
                update = b.float() @ a.float() * 0.5
                expected = (expected + (update.T if "embed" in name else update)).to(state[name].dtype)
            given = torch.from_numpy(f[f"model.{name}"][()])
            given = given.view(torch.bfloat16) if state[name].dtype == torch.bfloat16 else given
            # Sums in another order may round to the neighbour: how many do depends on the BLAS that PyTorch finds.
            near = torch.isclose(given.float(), expected.float(), rtol=2**-7 if given.dtype == torch.bfloat16 else 1e-6, atol=2e-6)
            check(f"LoRA folded: {name}", near.all(), f"{(~near).sum()} elements differ")


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


def interrupted(cbk, top):
    """Ctrl-C: exit status 130, and nothing is left (`kill -9`: kills_interop.py)."""
    source = os.path.join(top, "interrupted.pt")
    torch.save({f"w{i}": torch.randn(500, 1000) for i in range(15)}, source)
    out = os.path.join(top, "interrupted")
    os.makedirs(out)
    process = subprocess.Popen([cbk, "copy", source, os.path.join(out, "x.mdl")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.03)
    process.send_signal(signal.SIGINT)
    error = process.communicate()[1]
    check("Ctrl-C ends with 130 and leaves nothing", process.returncode == 130 and not os.listdir(out) or
          process.returncode == 0 and os.listdir(out) == ["x.mdl"], f"{process.returncode}, {os.listdir(out)}, {error}")


FORECAST = """
local cbk = require "cbk"
local source, target, job, threads, memory, mode = unpack(arg)
local jobs = {
  copy = function(t) return t end,
  cast = function(t) return t:to "bfloat16" end,
  turn = function(t) return t:transpose(0, 1) end,
  scale = function(t) return t:affine(2, 1) end,
  multiply = function(t) return cbk.tensor({ 0, 1, 2, 3 }, { shape = { 2, 2 }, dtype = "float32" }):matmul(t:slice(0, 0, 2)) end,
}
local out = cbk.create(target)
for key, t in cbk.open(source):tensors() do out[key] = jobs[job](t) end
local options = { threads = tonumber(threads), memory = memory }
local plan = mode == "run" and out:commit(options) or out:plan(options)
print(("%d %d"):format(plan.peak_memory, plan.bytes_written))
"""


def forecasts(cbk, top):
    """What a plan says it needs covers what the run then takes on top of making the plan, and is kept to --memory."""
    source, script = os.path.join(top, "forecast.pt"), os.path.join(top, "forecast.lua")
    torch.save({"small": torch.randn(3, 5), "wide": torch.randn(1500, 9000), "square": torch.randn(3000, 3000)}, source)
    with open(script, "w", encoding="utf-8") as f:
        f.write(FORECAST)
    for job in ("copy", "cast", "turn", "scale", "multiply"):
        for suffix in (".mdl", ".pt", ".safetensors"):
            threads, memory, limit = {".mdl": ("1", "8MiB", 8 << 20), ".pt": ("2", "64MiB", 64 << 20), ".safetensors": ("7", "16MiB", 16 << 20)}[suffix]
            name, target = f"forecast: {job} to {suffix}, {threads} threads, {memory}", os.path.join(top, "forecast-out" + suffix)
            argv = [cbk, "run", script, source, target, job, threads, memory]
            said = subprocess.run([*argv, "plan"], capture_output=True, text=True, check=False)
            planned = [int(x) for x in said.stdout.split()]
            check(name, said.returncode == 0 and len(planned) == 2 and not os.path.exists(target), said.stderr[-300:])
            base = anonymous_peak([*argv, "plan"])[2]
            status, error, peak = anonymous_peak([*argv, "run"])
            check(name, status == 0, error[-300:])
            slack = 3e6  # stacks of the threads, and what the allocator keeps
            check(name, peak - base <= planned[0] + slack, f"{(peak - base) / 1e6:.1f} MB were taken, {planned[0] / 1e6:.1f} MB forecast")
            # A worker needs some blocks of at least 256 KiB, whatever the limit.
            check(name, planned[0] <= max(limit, int(threads) * (1 << 20)), f"{planned[0] / 1e6:.1f} MB forecast for a limit of {memory}")
            size = os.path.getsize(target)
            check(name, size * 0.98 - 65536 <= planned[1] <= size * 1.02 + 65536, f"{planned[1]} bytes forecast, {size} written")
            os.remove(target)
    os.remove(source)


WAITING = """
local cbk = require "cbk"
local root = cbk.open(arg[1]).root
local function wait()
  io.write "ready\\n"
  io.flush()
  io.read()
end
local job = arg[3]
if job == "stats" then
  wait()
  print(root.w:stats().mean)
elseif job == "bytes" then
  wait()
  print(root.w:sha256())
else
  local out = cbk.create(arg[2], { shard_size = job == "shards" and "1MB" or nil })
  for name, value in cbk.items(root) do out[name] = value:to "float64" end
  if job ~= "progress" and job ~= "shards" then wait() end
  out:commit { progress = (job == "progress" or job == "shards") and function() wait() end or nil }
end
"""


class Waiting:
    """A cbk that has opened its source, and waits in the middle of its work for `go`."""

    def __init__(self, cbk, top, source, target, job):
        script = os.path.join(top, "waiting.lua")
        with open(script, "w", encoding="utf-8") as f:
            f.write(WAITING)
        self.process = subprocess.Popen([cbk, "run", script, source, target, job], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline() == "ready\n"

    def go(self):
        """What it says on stderr, until it ends."""
        try:
            return self.process.communicate("\n", timeout=60)[1]
        finally:
            self.process.kill()


def shortened_sources(cbk, top):
    """A mapped file that is cut while it is read: one line, exit status 1, no target."""
    folder = os.path.join(top, "shortened")
    os.makedirs(folder)
    for source_name in ("cut.pt", "cut.safetensors", "cut.mdl"):
        for job in ("stats", "bytes", "copy"):
            whole, source = os.path.join(folder, "whole.pt"), os.path.join(folder, source_name)
            torch.save({"w": torch.randn(2000, 1000)}, whole)
            if source != whole:
                subprocess.run([cbk, "copy", whole, source, "--overwrite"], check=True, capture_output=True)
            target = os.path.join(folder, "target.safetensors")
            waiting = Waiting(cbk, top, source, target, job)
            os.truncate(source, 4096)
            error = waiting.go()
            status = waiting.process.returncode
            good = waiting.ready and status == 1 and error.count("\n") == 1 and source_name in error and not os.path.exists(target)
            check(f"{source_name} cut during {job}", good and sorted(os.listdir(folder)) == sorted({source_name, "whole.pt"}),
                  f"exit status {status}, {os.listdir(folder)}, {error[-300:]}")
            os.remove(source)
    shutil.rmtree(folder)


def ends(cbk, top):
    """SIGTERM and SIGHUP in the middle of a commit: no target and no debris, be it a file, an old file or a folder of shards."""
    folder = os.path.join(top, "ends")
    source = os.path.join(top, "ends.pt")
    torch.save({f"w{i}": torch.randn(300, 1000) for i in range(6)}, source)
    for sent in (signal.SIGTERM, signal.SIGHUP):
        for name, job in (("x.mdl", "progress"), ("x.pt", "progress"), ("x.safetensors", "progress"), ("x", "shards")):
            os.makedirs(folder)
            waiting = Waiting(cbk, top, source, os.path.join(folder, name), job)
            waiting.process.send_signal(sent)
            try:
                status = waiting.process.wait(60)
            finally:
                waiting.process.kill()
            left = os.listdir(folder)
            check(f"{sent.name} while writing {name}", waiting.ready and status == 128 + sent and not left, f"exit status {status}, left {left}")
            shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    cbk = os.path.abspath(parser.parse_args().cbk)
    top = tempfile.mkdtemp(prefix="cbk-streaming-")
    try:
        exactness(cbk, top)
        interrupted(cbk, top)
        ends(cbk, top)
        shortened_sources(cbk, top)
        forecasts(cbk, top)
        memory(cbk, top)
        scattered_reads(cbk, top)
        sent_early(cbk, top)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
