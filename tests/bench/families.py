#!/usr/bin/python3
"""How fast each family converts: a generated checkpoint with the family's real shapes, both ways, against `cp` of the same file.

    families.py CBK FOLDER [--gb 4] [--rounds 5] [--touch 6] [FAMILY...]

Whole processes in turn, warm page cache, nothing dirty before a run; the ratio is taken round by round. `--touch` touches that many
GB of memory before each run: under a hypervisor that takes idle pages back, whoever writes first would pay for them. On such a
machine system time swings by a factor of ten; the least of all rounds and the time in user mode say more than medians there. The
peak is of anonymous memory. Goals: at 4 GB no family slower than 1.2 times cp (medians), and a peak of at most 64 MB.
"""
import argparse
import json
import mmap
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

SLOWEST, LARGEST = 1.2, 64e6


# ------------------------------------------------------------------ configs in the families' real shapes
LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
         "max_position_embeddings": 4096}
GPT2 = {"model_type": "gpt2", "n_embd": 2048, "n_head": 16, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"}
BERT = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512}
FALCON = {"hidden_size": 4096, "vocab_size": 65024, "parallel_attn": True, "bias": False}
IMAGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "image_size": 336, "patch_size": 14, "num_channels": 3}
CLIP = {**IMAGE, "model_type": "clip_vision_model", "projection_dim": 768, "hidden_act": "quick_gelu"}
LLAVA = {**LLAMA, "model_type": "llava", "hidden_act": "silu", "mm_hidden_size": 1024, "mm_projector_type": "mlp2x_gelu",
         "mm_vision_select_layer": -2, "mm_vision_select_feature": "patch", "tune_mm_mlp_adapter": False}
PROJECTOR = {"model.mm_projector.0.weight": [4096, 1024], "model.mm_projector.0.bias": [4096],
             "model.mm_projector.2.weight": [4096, 4096], "model.mm_projector.2.bias": [4096]}
BIGCODE = {"n_embd": 4096, "n_head": 32, "n_inner": 16384, "n_positions": 2048, "vocab_size": 49152,
           "activation_function": "gelu_pytorch_tanh"}
EXPERTS = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}
TWO_ENCODERS = {**BERT, "model_type": "dpr", "projection_dim": 0}


def mllama(depth):
    """Every fifth layer looks at the image."""
    text = {**LLAMA, "model_type": "mllama_text_model", "num_hidden_layers": depth, "cross_attention_layers": [*range(3, depth, 5)],
            "pad_token_id": 3, "hidden_act": "silu", "tie_word_embeddings": False}
    image = {"model_type": "mllama_vision_model", "hidden_size": 1280, "attention_heads": 16, "num_hidden_layers": 16,
             "num_global_layers": 4, "intermediate_size": 5120, "vision_output_dim": 3840, "image_size": 448, "patch_size": 14,
             "max_num_tiles": 4, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 2]], "intermediate_layers_indices": [3, 7],
             "num_channels": 3, "norm_eps": 1e-5, "hidden_act": "gelu"}
    return {"model_type": "mllama", "text_config": text, "vision_config": image}


class Part(typing.NamedTuple):
    config: typing.Any  # a dict, or a function of the number of layers
    depths: tuple = ("num_hidden_layers",)  # fields that count layers
    share: float = 1.0  # of the size
    model: str = ""  # whose tensors it has, if that is not the family's
    kind: str = ""  # … and its model_type
    prefix: tuple = ("", "")  # … of its keys, and what replaces it; keys without it are left out
    more: dict = {}  # … and further ones


class Family(typing.NamedTuple):
    model: str
    dtype: str
    parts: dict  # by the folder below that of the model
    cs: str = "cs-2.9"


def single(model, dtype, config, *depths, cs="cs-2.9", like=""):
    return Family(model, dtype, {"": Part(config, depths or ("num_hidden_layers",), 1.0, like)}, cs)


LLAVA_PARTS = {"image_model": Part(CLIP, share=0.2, model="clip-vit"),
               "text_model": Part(LLAVA, share=0.8, model="llama", kind="llama", more=PROJECTOR)}


def encoders(model, kind, *prefixes):
    return Family(model, "F32", {folder: Part({**TWO_ENCODERS, "model_type": kind}, share=0.5, model="bert", kind="bert",
                                              prefix=("bert.", prefix)) for folder, prefix in zip(("q_encoder", "ctx_encoder"), prefixes)})


FAMILIES = {
    "gpt2": single("gpt2", "F32", GPT2, "n_layer"),
    "llama": single("llama", "BF16", {**LLAMA, "model_type": "llama"}),
    "bert": single("bert", "F32", {**BERT, "model_type": "bert"}),
    "t5": single("t5", "F32", {"model_type": "t5", "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16, "vocab_size": 32128,
                               "is_encoder_decoder": True, "feed_forward_proj": "gated-silu"}, "num_layers", "num_decoder_layers"),
    "falcon-7b": single("falcon", "BF16", {**FALCON, "model_type": "RefinedWebModel", "hidden_size": 4544, "n_head": 71,
                                           "multi_query": True}, "n_layer"),
    "falcon-40b": single("falcon", "BF16", {**FALCON, "model_type": "RefinedWeb", "n_head": 64, "n_head_kv": 8}, "n_layer"),
    "falcon-180b": single("falcon", "BF16", {**FALCON, "model_type": "falcon", "num_attention_heads": 64, "num_kv_heads": 8,
                                             "new_decoder_architecture": True}),
    "llava": Family("llava", "F32", LLAVA_PARTS),
    "mmsimple-llava": Family("mmsimple-llava", "F32", LLAVA_PARTS),
    "dpo": single("dpo", "F32", {**LLAMA, "model_type": "llama"}, cs="cs-2.9-dpo", like="llama"),  # the second copy is a link
    "gptj": single("gptj", "BF16", {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048,
                                    "vocab_size": 50400, "n_inner": 16384}, "n_layer"),
    "gpt-neox": single("gpt-neox", "BF16", {"model_type": "gpt_neox", "hidden_size": 4096, "num_attention_heads": 32,
                                            "intermediate_size": 16384, "vocab_size": 50432, "rotary_pct": 0.25}),
    "bloom": single("bloom", "BF16", {"model_type": "bloom", "hidden_size": 4096, "n_head": 32, "vocab_size": 250880}, "n_layer"),
    "mpt": single("mpt", "BF16", {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "expansion_ratio": 4, "max_seq_len": 2048,
                                  "vocab_size": 50432, "no_bias": True, "attn_config": {"alibi": True}}, "n_layers", cs="cs-2.3"),
    "mistral": single("mistral", "BF16", {**LLAMA, "model_type": "mistral"}),
    "mixtral": single("mixtral", "BF16", {**EXPERTS, "model_type": "mixtral"}),
    "mixtral, stacked": single("mixtral", "BF16", {**EXPERTS, "model_type": "mixtral"}, cs="cs-2.8"),
    "gemma2": single("gemma2", "BF16", {"model_type": "gemma2", "vocab_size": 256000}),
    "qwen2": single("qwen2", "BF16", {**LLAMA, "model_type": "qwen2"}),
    "qwen3": single("qwen3", "BF16", {**LLAMA, "model_type": "qwen3", "head_dim": 128}),
    "qwen3-moe": single("qwen3-moe", "BF16", {**LLAMA, "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 16,
                                              "num_experts_per_tok": 2, "moe_intermediate_size": 1536}),
    "phi3": single("phi3", "BF16", {**LLAMA, "model_type": "phi3"}),
    "btlm": single("btlm", "F32", {**GPT2, "model_type": "btlm", "activation_function": "swiglu", "position_embedding_type": "alibi"},
                   "n_layer"),
    "jais": single("jais", "F32", {**GPT2, "model_type": "jais", "activation_function": "swiglu", "position_embedding_type": "alibi"},
                   "n_layer"),
    "codegen": single("codegen", "BF16", {"model_type": "codegen", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048,
                                          "n_ctx": 2048, "vocab_size": 51200, "n_inner": 16384}, "n_layer"),
    "santacoder": single("santacoder", "BF16", {**BIGCODE, "model_type": "gpt2", "attention_head_type": "multiquery"}, "n_layer"),
    "starcoder": single("starcoder", "BF16", {**BIGCODE, "model_type": "gpt_bigcode", "multi_query": True}, "n_layer"),
    "roberta": single("roberta", "F32", {**BERT, "model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1}),
    "esm-2": single("esm-2", "F32", {**BERT, "model_type": "esm", "vocab_size": 33, "position_embedding_type": "rotary",
                                     "token_dropout": True, "pad_token_id": 1, "mask_token_id": 32}),
    "dpr": encoders("dpr", "dpr", "question_encoder.bert_model.", "ctx_encoder.bert_model."),
    "dragon": encoders("dragon", "bert", "", ""),
    "mllama": single("mllama", "BF16", mllama),
    "clip-vit": single("clip-vit", "F32", {**CLIP, "model_type": "clip_vision_model"}),
    "vit": single("vit", "F32", {**IMAGE, "model_type": "vit", "num_labels": 1000}),
    "dinov2": single("dinov2", "F32", {"model_type": "dinov2", "hidden_size": 1024, "num_attention_heads": 16, "mlp_ratio": 4,
                                       "image_size": 518, "patch_size": 14, "num_channels": 3, "num_labels": 1000}),
}


def tensors_of(cbk, config, model):
    """Shapes by key, of tied tensors too: pickles have all names."""
    said = subprocess.run([cbk, "params", config, "--model", model, "--format", "hf", "--json"], stdout=subprocess.PIPE, check=True)
    return {one["key"]: one["shape"] for one in json.loads(said.stdout)["tensors"]
            if not (one.get("buffer") or one.get("optional"))}


def make(cbk, folder, part, family, size):
    """folder/config.json and folder/pytorch_model.bin of about `size` bytes; random bits that are no NaN."""
    os.makedirs(folder, exist_ok=True)
    path, width = os.path.join(folder, "config.json"), {"F32": 4, "BF16": 2}[family.dtype]

    def write(depth, changed):
        if callable(part.config):
            config = part.config(depth)
        else:
            config = {"tie_word_embeddings": False, **part.config, **{field: depth for field in part.depths}, **changed}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)

    def describe(depth):
        write(depth, {"model_type": part.kind} if part.kind else {})
        old, new = part.prefix
        shapes = {new + key.removeprefix(old): shape for key, shape in tensors_of(cbk, path, part.model or family.model).items()
                  if key.startswith(old)} | part.more
        return shapes, sum(int(np.prod(shape)) for shape in shapes.values()) * width
    (_, one), (_, two) = describe(1), describe(2)
    depth = max(2, 1 + round((size - one) / (two - one)))
    shapes, _ = describe(depth)
    write(depth, {})
    header, at = {}, 0
    for key, shape in shapes.items():
        header[key] = {"dtype": family.dtype, "shape": shape, "data_offsets": [at, at + int(np.prod(shape)) * width]}
        at = header[key]["data_offsets"][1]
    text = json.dumps(header).encode()
    pool = (np.random.default_rng(1).integers(0, 1 << 16, 1 << 22, dtype=np.uint16) & 0xBFFF).tobytes()
    source, target = os.path.join(folder, "made.safetensors"), os.path.join(folder, "pytorch_model.bin")
    with open(source, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for one in header.values():  # tensors of one shape are equal, as tied ones are
            length = one["data_offsets"][1] - one["data_offsets"][0]
            for start in range(0, length, len(pool)):
                f.write(pool[: length - start])
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


def touch(gigabytes):
    """Takes and frees memory, by large pages: what the next run takes is then really there."""
    if not gigabytes:
        return
    with mmap.mmap(-1, gigabytes << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        page = b"x" * (2 << 20)
        while memory.tell() < len(memory):
            memory.write(page)


def settle(out, path, gigabytes):
    """An empty folder, nothing that waits to be written, the input in the page cache, memory at hand."""
    for one in files_of(path):
        with open(one, "rb") as f:
            while f.read(1 << 22):
                pass
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    os.sync()
    touch(gigabytes)


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
            for place, part in family.parts.items():
                make(cbk, os.path.join(folder, place), part, family, options.gb * part.share * 1e9)
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
