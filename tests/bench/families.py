#!/usr/bin/python3
"""How fast each family converts: a generated checkpoint with the family's real shapes, both ways, against `cp` of the same file.

    families.py CBK FOLDER [--gb 4] [--rounds 5] [--touch 6] [FAMILY...]

Whole processes in turn, warm page cache, nothing dirty before a run; the ratio is taken round by round. `--touch` touches that many
GB of memory before each run: under a hypervisor that takes idle pages back, whoever writes first would pay for them. On such a
machine system time swings by a factor of ten; the least of all rounds and the time in user mode say more than medians there. The
peak is of anonymous memory. Goals: at 4 GB no family slower than 1.6 times cp (medians), and a peak of at most 100 MB.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
import typing

import numpy as np

SLOWEST, LARGEST = 1.6, 100e6
UNTIED = {"tie_word_embeddings": False}


# ------------------------------------------------------------------ what the families consist of: config, once, per layer
def gpt2():
    d, vocabulary = 2048, 50257
    once = {"transformer.wte.weight": (vocabulary, d), "transformer.wpe.weight": (1024, d), "transformer.ln_f.weight": (d,),
            "transformer.ln_f.bias": (d,), "lm_head.weight": (vocabulary, d)}
    layer = {}
    for name, rows, columns in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, 4 * d), ("mlp.c_proj", 4 * d, d)):
        layer.update({f"transformer.h.%d.{name}.weight": (rows, columns), f"transformer.h.%d.{name}.bias": (columns,)})
    layer.update({f"transformer.h.%d.{name}.{part}": (d,) for name in ("ln_1", "ln_2") for part in ("weight", "bias")})
    return {"model_type": "gpt2", "n_embd": d, "n_head": 16, "n_positions": 1024, "vocab_size": vocabulary,
            "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
            "layer_norm_epsilon": 1e-5, **UNTIED}, ["n_layer"], once, layer


def llama():
    d, heads, groups, inner, vocabulary = 4096, 32, 8, 14336, 32000
    once = {"model.embed_tokens.weight": (vocabulary, d), "model.norm.weight": (d,), "lm_head.weight": (vocabulary, d)}
    shapes = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (d // heads * groups, d), "self_attn.v_proj": (d // heads * groups, d),
              "self_attn.o_proj": (d, d), "mlp.gate_proj": (inner, d), "mlp.up_proj": (inner, d), "mlp.down_proj": (d, inner),
              "input_layernorm": (d,), "post_attention_layernorm": (d,)}
    return {"model_type": "llama", "hidden_size": d, "num_attention_heads": heads, "num_key_value_heads": groups,
            "intermediate_size": inner, "vocab_size": vocabulary, "max_position_embeddings": 4096, **UNTIED}, ["num_hidden_layers"], once, {
                f"model.layers.%d.{name}.weight": shape for name, shape in shapes.items()}


def bert():
    d, inner, vocabulary = 1024, 4096, 30522
    linear = {"bert.pooler.dense": (d, d), "cls.predictions.transform.dense": (d, d), "cls.seq_relationship": (2, d),
              "cls.predictions.decoder": (vocabulary, d)}
    once = {f"bert.embeddings.{name}.weight": (rows, d) for name, rows in (
        ("word_embeddings", vocabulary), ("position_embeddings", 512), ("token_type_embeddings", 2))}
    norms = {"bert.embeddings.LayerNorm": (d,), "cls.predictions.transform.LayerNorm": (d,)}
    layer = {"attention.self.query": (d, d), "attention.self.key": (d, d), "attention.self.value": (d, d), "attention.output.dense": (d, d),
             "intermediate.dense": (inner, d), "output.dense": (d, inner), "attention.output.LayerNorm": (d,), "output.LayerNorm": (d,)}
    for name, shape in {**linear, **norms}.items():
        once.update({name + ".weight": shape, name + ".bias": shape[:1]})
    once["cls.predictions.bias"] = (vocabulary,)
    each = {}
    for name, shape in layer.items():
        each.update({f"bert.encoder.layer.%d.{name}.weight": shape, f"bert.encoder.layer.%d.{name}.bias": shape[:1]})
    return {"model_type": "bert", "hidden_size": d, "num_attention_heads": 16, "intermediate_size": inner, "vocab_size": vocabulary,
            "max_position_embeddings": 512, **UNTIED}, ["num_hidden_layers"], once, each


def t5():
    d, inner, heads, vocabulary = 1024, 4096, 16, 32128
    once = {"shared.weight": (vocabulary, d), "lm_head.weight": (vocabulary, d)}
    each = {}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        once.update({f"{stack}.embed_tokens.weight": (vocabulary, d), f"{stack}.final_layer_norm.weight": (d,),
                     f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, heads)})
        block = f"{stack}.block.%d.layer."
        each.update({f"{block}{i}.layer_norm.weight": (d,) for i in range(last + 1)})
        for part in ["0.SelfAttention"] + (["1.EncDecAttention"] if last == 2 else []):
            each.update({f"{block}{part}.{name}.weight": (d, d) for name in "qkvo"})
        each.update({f"{block}{last}.DenseReluDense.{name}.weight": shape for name, shape in (
            ("wi_0", (inner, d)), ("wi_1", (inner, d)), ("wo", (d, inner)))})
    return {"model_type": "t5", "d_model": d, "d_kv": 64, "d_ff": inner, "num_heads": heads, "vocab_size": vocabulary,
            "is_encoder_decoder": True, "feed_forward_proj": "gated-silu", **UNTIED}, ["num_layers", "num_decoder_layers"], once, each


def falcon(config, depth, d, heads, groups, norms):
    once = {"transformer.word_embeddings.weight": (65024, d), "lm_head.weight": (65024, d)}
    once.update({f"transformer.ln_f.{part}": (d,) for part in ("weight", "bias")})
    shapes = {"self_attention.query_key_value": (d // heads * (heads + 2 * groups), d), "self_attention.dense": (d, d),
              "mlp.dense_h_to_4h": (4 * d, d), "mlp.dense_4h_to_h": (d, 4 * d)}
    each = {f"transformer.h.%d.{name}.weight": shape for name, shape in shapes.items()}
    each.update({f"transformer.h.%d.{name}.{part}": (d,) for name in norms for part in ("weight", "bias")})
    return {**config, "hidden_size": d, "vocab_size": 65024, "parallel_attn": True, "bias": False, **UNTIED}, [depth], once, each


def clip():
    d, inner = 1024, 4096
    once = {"vision_model.embeddings.class_embedding": (d,), "vision_model.embeddings.patch_embedding.weight": (d, 3, 14, 14),
            "vision_model.embeddings.position_embedding.weight": (577, d)}
    for name in ("pre_layrnorm", "post_layernorm"):
        once.update({f"vision_model.{name}.{part}": (d,) for part in ("weight", "bias")})
    shapes = {**{f"self_attn.{name}_proj": (d, d) for name in ("q", "k", "v", "out")}, "mlp.fc1": (inner, d), "mlp.fc2": (d, inner),
              "layer_norm1": (d,), "layer_norm2": (d,)}
    each = {}
    for name, shape in shapes.items():
        each.update({f"vision_model.encoder.layers.%d.{name}.{part}": size for part, size in (("weight", shape), ("bias", shape[:1]))})
    return {"model_type": "clip_vision_model", "hidden_size": d, "num_attention_heads": 16, "intermediate_size": inner, "image_size": 336,
            "patch_size": 14, "num_channels": 3, "projection_dim": 768, "hidden_act": "quick_gelu"}, ["num_hidden_layers"], once, each


def llava_text():
    config, depths, once, each = llama()
    for i, inputs in ((0, 1024), (2, config["hidden_size"])):
        once.update({f"model.mm_projector.{i}.weight": (config["hidden_size"], inputs), f"model.mm_projector.{i}.bias": (config["hidden_size"],)})
    return {**config, "model_type": "llava", "hidden_act": "silu", "mm_hidden_size": 1024, "mm_projector_type": "mlp2x_gelu",
            "mm_vision_select_layer": -2, "mm_vision_select_feature": "patch", "tune_mm_mlp_adapter": False}, depths, once, each


class Family(typing.NamedTuple):
    model: str
    dtype: str
    parts: dict  # folder below that of the model: contents, share of the size
    cs: str = "cs-2.9"


def single(model, dtype, contents, **more):
    return Family(model, dtype, {"": (contents, 1.0)}, **more)


FAMILIES = {
    "gpt2": single("gpt2", "F32", gpt2), "llama": single("llama", "BF16", llama), "bert": single("bert", "F32", bert),
    "t5": single("t5", "F32", t5),
    "falcon-7b": single("falcon", "BF16", lambda: falcon({"model_type": "RefinedWebModel", "n_head": 71, "multi_query": True},
                                                         "n_layer", 4544, 71, 1, ["input_layernorm"])),
    "falcon-40b": single("falcon", "BF16", lambda: falcon({"model_type": "RefinedWeb", "n_head": 64, "n_head_kv": 8},
                                                          "n_layer", 4096, 64, 8, ["ln_attn", "ln_mlp"])),
    "falcon-180b": single("falcon", "BF16", lambda: falcon(
        {"model_type": "falcon", "num_attention_heads": 64, "num_kv_heads": 8, "new_decoder_architecture": True},
        "num_hidden_layers", 4096, 64, 8, ["ln_attn", "ln_mlp"])),
    "llava": Family("llava", "F32", {"image_model": (clip, 0.2), "text_model": (llava_text, 0.8)}),
    "dpo": single("dpo", "F32", llama, cs="cs-2.9-dpo"),  # the second copy in the file is a link to the first
}


def make(cbk, folder, contents, dtype, size):
    """folder/config.json and folder/pytorch_model.bin of about `size` bytes; random bits that are no NaN."""
    config, depths, once, layer = contents()
    width = {"F32": 4, "BF16": 2}[dtype]

    def volume(shapes):
        return sum(int(np.prod(shape)) for shape in shapes.values()) * width
    depth = max(1, round((size - volume(once)) / volume(layer)))
    shapes = {**once, **{key % i: shape for i in range(depth) for key, shape in layer.items()}}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, **{field: depth for field in depths}}, f)
    header, at = {}, 0
    for key, shape in shapes.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + int(np.prod(shape)) * width]}
        at = header[key]["data_offsets"][1]
    text = json.dumps(header).encode()
    pool = (np.random.default_rng(1).integers(0, 1 << 16, 1 << 22, dtype=np.uint16) & 0xBFFF).tobytes()
    source, target = os.path.join(folder, "made.safetensors"), os.path.join(folder, "pytorch_model.bin")
    with open(source, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, at, len(pool)):
            f.write(pool[: at - start])
    subprocess.run([cbk, "copy", "-q", "--overwrite", source, target], check=True, stdout=subprocess.DEVNULL)
    os.remove(source)


# ------------------------------------------------------------------ measuring
def run(command):
    """(seconds, seconds in user mode, the largest RssAnon that was seen)"""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, ended = [0], threading.Event()

    def watch():
        while not ended.wait(0.003):
            try:
                with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                    found = re.search(r"RssAnon:\s+(\d+)", f.read())
                peak[0] = max(peak[0], int(found[1]) * 1024 if found else 0)
            except OSError:
                return
    watcher = threading.Thread(target=watch)
    watcher.start()
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = status
    ended.set()
    watcher.join()
    if status:
        sys.exit(f"{' '.join(command)}: status {status}\n{said.decode()[-2000:]}")
    return took, usage.ru_utime, peak[0]


def files_of(path):
    return [os.path.join(top, name) for top, _, names in os.walk(path) for name in names] if os.path.isdir(path) else [path]


def settle(out, path, touch):
    """An empty folder, nothing that waits to be written, the input in the page cache."""
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    os.sync()
    if touch:
        subprocess.run([sys.executable, "-c", f"x = b'x' * ({touch} << 30)"], check=True)
    for one in files_of(path):
        with open(one, "rb") as f:
            while f.read(1 << 22):
                pass


def race(title, path, command, copied, out, options):
    """`command` reads `path`; `cp` copies `copied`, which is the larger one of its input and its output."""
    cp, cbk = [], []
    for _ in range(options.rounds):
        for samples, argv, source in (cp, ["cp", "-r", copied, os.path.join(out, "x")], copied), (cbk, command, path):
            settle(out, source, options.touch)
            samples.append(run(argv))
    ratio = statistics.median(b[0] / a[0] for a, b in zip(cp, cbk))
    peak = max(sample[2] for sample in cbk)
    fine = ratio <= SLOWEST and peak <= LARGEST

    def shown(samples):
        return f"{statistics.median(s[0] for s in samples):5.2f} s ({min(samples)[0]:.2f} to {max(samples)[0]:.2f})"
    print(f"{title:18} {sum(map(os.path.getsize, files_of(copied))) / 1e9:5.2f} GB  cp {shown(cp)}  cbk {shown(cbk)}, {min(s[1] for s in cbk):.2f} s user  "
          f"ratio {ratio:5.2f}, of the least {min(cbk)[0] / min(cp)[0]:4.2f}  peak {peak / 1e6:3.0f} MB{'' if fine else '  MISSED'}",
          flush=True)
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cbk")
    parser.add_argument("folder", help="for inputs and outputs; three times the size is needed")
    parser.add_argument("family", nargs="*", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--touch", type=int, default=0)
    options = parser.parse_args()
    cbk, fine = os.path.abspath(options.cbk), True
    for name in options.family or FAMILIES:
        folder, out, there = (os.path.join(options.folder, part) for part in (name, name + ".out", name + ".cs"))
        try:
            family = FAMILIES[name]
            for part, (contents, share) in family.parts.items():
                make(cbk, os.path.join(folder, part), contents, family.dtype, options.gb * share * 1e9)
            is_whole = len(family.parts) > 1  # folders are converted as one
            path = folder if is_whole else os.path.join(folder, "pytorch_model.bin")
            config = folder if is_whole else os.path.join(folder, "config.json")
            convert = [cbk, "convert", "-q", "--model", family.model]
            command = [*convert, "--src-fmt", "hf", "--tgt-fmt", family.cs, "--config", config, path, "--output-dir"]
            run([*command, there])
            made = os.path.join(there, f"pytorch_model_to_{family.cs}.mdl")
            larger = max(path, made, key=lambda one: sum(map(os.path.getsize, files_of(one))))
            fine = race(name + " to CS", path, [*command, out], larger, out, options) and fine
            shutil.rmtree(out)
            shutil.rmtree(folder)
            command = [*convert, "--src-fmt", family.cs, "--tgt-fmt", "hf", "--config", os.path.join(there, f"config_to_{family.cs}.yaml"), made,
                       "--output-dir", out]
            fine = race(name + " to HF", made, command, made, out, options) and fine
        finally:
            for used in (folder, out, there):
                shutil.rmtree(used, ignore_errors=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
