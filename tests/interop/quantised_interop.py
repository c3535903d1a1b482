#!/usr/bin/python3
"""Quantised weights as the programs that make them write them, of random sizes: what cbk makes of the codes is what NumPy and PyTorch compute in
float32, bit for bit; cut, transposed and rounded as other weights are; and files that lie are errors.

Usage: quantised_interop.py --cbk PATH [--seed N]
"""
import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch

import harness
import safetensors_file

KEY = "model.layers.0.mlp.up_proj"
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


# ------------------------------------------------------------------ schemes: files, settings of the config, and the weight
def float8(codes, mantissa, bias, largest):
    """The numbers of 8-bit floats, in float64; codes beyond the largest one are NaN."""
    size, exponent = codes & 127, (codes & 127) >> mantissa
    fraction = (size & ((1 << mantissa) - 1)) / (1 << mantissa)
    number = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent.astype(np.float64) - bias))
    return np.where(size > largest, np.nan, np.where(codes > 127, -number, number)).astype(np.float32)


FLOATS = {"F8_E4M3": (3, 7, 126), "F8_E5M2": (2, 15, 123)}


def fp8(rng, how):
    name = list(FLOATS)[rng.integers(2)] if how != "block" else "F8_E4M3"
    rows, columns = (int(n) for n in rng.integers(1, 300, 2))
    codes = rng.integers(0, 256, (rows, columns)).astype(np.uint8)
    codes[(codes & 127) > FLOATS[name][2]] = 1
    settings, size = {"quant_method": "compressed-tensors"}, [int(n) for n in rng.integers(1, 150, 2)]
    if how == "block":
        settings = {"quant_method": "fp8", "weight_block_size": size}
        scale = rng.random((-(-rows // size[0]), -(-columns // size[1]))).astype(np.float32)
        whole = scale.repeat(size[0], 0).repeat(size[1], 1)[:rows, :columns]
    elif how == "row":
        whole = scale = rng.random((rows, 1)).astype(np.float32)
    else:
        whole = scale = rng.random(()).astype(np.float32)
    scale = torch.from_numpy(np.array(scale))
    if how != "block" and rng.integers(2):
        scale = scale.bfloat16()
        whole = scale.float().numpy()
    files = {KEY + ".weight": (name, codes.shape, codes.tobytes()), KEY + (".weight_scale_inv" if how == "block" else ".weight_scale"): scale}
    return files, settings, float8(codes, *FLOATS[name]) * whole


def int8(rng):
    rows, columns = (int(n) for n in rng.integers(1, 200, 2))
    codes = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    scale = rng.random(rows).astype(np.float32)
    files = {KEY + ".weight": torch.from_numpy(codes), KEY + ".SCB": torch.from_numpy(scale), KEY + ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    weight = codes.astype(np.float32) * scale[:, None] * np.float32(1 / 127)  # as bitsandbytes does
    return files, {"quant_method": "bitsandbytes", "load_in_8bit": True}, weight


def mxfp4(rng):
    experts, rows, blocks = (int(n) for n in rng.integers(1, 7, 3) * (1, 13, 1))
    codes = rng.integers(0, 256, (experts, rows, blocks, 16)).astype(np.uint8)
    powers = rng.integers(0, 253, (experts, rows, blocks)).astype(np.uint8)
    weight = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(experts, rows, blocks, 32) * np.ldexp(np.float32(1), powers.astype(int) - 127)[..., None]
    files = {KEY + "_blocks": torch.from_numpy(codes), KEY + "_scales": torch.from_numpy(powers)}
    return files, {"quant_method": "mxfp4"}, weight.astype(np.float32).reshape(experts, rows, blocks * 32).transpose(0, 2, 1)


def packed(codes, axis, order=range(8)):
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    words = np.zeros(codes.shape[:-1], np.uint32)
    for place, number in enumerate(order):
        words |= codes[..., number] << np.uint32(4 * place)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def grouped(rng, how):
    """GPTQ packs inputs, AWQ outputs. The last group may be shorter."""
    is_awq = how == "awq"
    size, inputs, outputs = int(rng.integers(3, 40)), 8 * int(rng.integers(1, 30)), 8 * int(rng.integers(1, 30))
    groups = -(-inputs // size)
    q, z = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (groups, outputs))
    scales = rng.random((groups, outputs)).astype(np.float16)
    index, term = np.arange(inputs) // size, 0 if is_awq or how == "gptq v2" else 1
    if how == "gptq by activation":
        index = rng.permutation(index)
    weight = (q - (z[index] + term)).astype(np.float32) * scales[index].astype(np.float32)
    order = AWQ_ORDER if is_awq else range(8)
    files = {KEY + ".qweight": packed(q, 1 if is_awq else 0, order), KEY + ".qzeros": packed(z, 1, order), KEY + ".scales": torch.from_numpy(scales)}
    if how in ("gptq", "gptq by activation"):
        files[KEY + ".g_idx"] = torch.from_numpy(index.astype(np.int32))
    settings = {"quant_method": "awq" if is_awq else "gptq", "bits": 4, "group_size": size}
    if how == "gptq v2":
        settings["checkpoint_format"] = "gptq_v2"
    return files, settings, weight.T


SCHEMES = {
    **{f"FP8 by {how}": lambda rng, how=how: fp8(rng, how) for how in ("block", "row", "tensor")}, "int8": int8, "MXFP4": mxfp4,
    **{how: lambda rng, how=how: grouped(rng, how) for how in ("gptq", "gptq by activation", "gptq v2", "gptq without g_idx", "awq")},
}


# ------------------------------------------------------------------ checks
def make(run, name, files, settings, dtype="bfloat16"):
    folder = run.path(name)
    os.makedirs(folder, exist_ok=True)
    safetensors_file.save(os.path.join(folder, "model.safetensors"), {**files, "model.norm.weight": torch.ones(7)})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "llama", "torch_dtype": dtype, "quantization_config": settings}, file)
    return folder


def limited(run, memory, *args):
    """cbk with so many bytes of memory that is no file."""
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    return subprocess.run([run.cbk, *args], capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit)  # pylint: disable=W1509


def same_bits(found, wanted):
    return found.dtype == wanted.dtype and found.shape == wanted.shape and safetensors_file.raw(found) == safetensors_file.raw(wanted)


def numbers(run, rng, name, scheme):
    files, settings, weight = scheme(rng)
    folder = make(run, "source", files, settings)
    key = KEY if name == "MXFP4" else KEY + ".weight"
    wanted = torch.from_numpy(np.ascontiguousarray(weight))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        text = str(dtype).split(".", maxsplit=1)[1]
        run.call("copy", folder, run.path("out.safetensors"), "--overwrite", "-q", "--allow-overflow", "--dequantize", text, "--memory", "1MiB")
        found, _ = safetensors_file.load(run.path("out.safetensors"))
        assert set(found) == {key, "model.norm.weight"}, set(found)
        assert same_bits(found[key], wanted.to(dtype)), f"{text} {list(wanted.shape)}"
    run.call("copy", folder, run.path("out.pt"), "--overwrite", "-q", "--dequantize", "float32")
    assert same_bits(torch.load(run.path("out.pt"), weights_only=True)[key], wanted), "in a pickle"


def beside(run):
    """Plain tensors with the names of scales stay; the blocks of the config are used, or the config is an error."""
    codes = torch.full((6, 6), 56, dtype=torch.uint8)  # ones in float8_e4m3fn

    def made(settings, more=None, scale=torch.tensor([[1.0, 2.0], [3.0, 4.0]])):
        return make(run, "source", {"l.weight": ("F8_E4M3", (6, 6), codes.numpy().tobytes()), "l.weight_scale": scale, **(more or {})}, settings)

    def copied(source):
        done = run.run("copy", source, run.path("out.safetensors"), "--overwrite", "--dequantize", "float32")
        assert done.returncode == 0, done.stderr
        return safetensors_file.load(run.path("out.safetensors"))[0], done.stderr
    plain = {"layers.0.layer_scales": torch.ones(3), "vq.centroids": torch.ones(2), "scaler.zero": torch.ones(1), "other.weight_scale_inv": torch.ones(1)}
    block = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [4, 3]}}}}
    found, said = copied(made(block, {**plain, "l.input_scale": torch.ones(1)}))
    assert set(found) == {"l.weight", "model.norm.weight", *plain} and "no codes beside" in said, (set(found), said)
    assert torch.equal(found["l.weight"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]).repeat_interleave(4, 0)[:6].repeat_interleave(3, 1)), found["l.weight"]
    source = made(block)
    with open(source + "/config.json", "w", encoding="utf-8") as file:
        file.write('{"quantization_config": {"quant_method": "fp8",}}')
    done = run.run("copy", source, run.path("no.safetensors"), "--dequantize", "float32")
    assert done.returncode == 1 and "cannot dequantise" in done.stderr and not os.path.exists(run.path("no.safetensors")), done
    assert "shown as stored" in run.run("stats", source).stderr
    files, settings = grouped(np.random.default_rng(1), "gptq")[:2]
    for own in ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, {"packing_format": "auto_round"}):
        done = run.run("copy", make(run, "source", files, {**settings, **own}), run.path("no.safetensors"), "--dequantize", "float32")
        assert done.returncode == 1 and "auto" in done.stderr, done
    for before, after in (({"l.input_scale": torch.ones(1)}, {"l.input_scale": torch.zeros(1)}), ({"layer_scales": torch.ones(1)}, {"layer_scales": torch.zeros(1)})):
        one = made(block, before)
        os.rename(one, run.path("one"))
        assert run.run("diff", run.path("one"), made(block, after)).returncode == 1
        shutil.rmtree(run.path("one"))


def threads(run, rng):
    """The bytes are the same for any number of threads and any memory."""
    for how in ("gptq by activation", "awq"):
        folder = make(run, "source", *grouped(rng, how)[:2])
        contents = set()
        for count, memory in ("1", "96MiB"), ("4", "1MiB"), ("3", "8MiB"):
            run.call("copy", folder, run.path("out.safetensors"), "--overwrite", "-q", "--dequantize", "bfloat16", "--threads", count, "--memory", memory)
            with open(run.path("out.safetensors"), "rb") as file:
                contents.add(file.read())
        assert len(contents) == 1, how


def large(run, rng):
    """A matrix of many blocks, in little memory."""
    codes = rng.integers(0, 256, (8192, 8192)).astype(np.uint8)
    folder = make(run, "large", {KEY + "_blocks": torch.from_numpy(codes.reshape(1, 8192, 512, 16)),
                                 KEY + "_scales": torch.full((1, 8192, 512), 127, dtype=torch.uint8)}, {"quant_method": "mxfp4"})
    done = limited(run, 200 << 20, "copy", folder, run.path("large.safetensors"), "-q", "--dequantize", "float32")
    assert done.returncode == 0, done.stderr
    found, _ = safetensors_file.load(run.path("large.safetensors"))
    for row, column in rng.integers(0, 8192, (200, 2)):
        code = codes[row, column]
        assert found[KEY][0, 2 * column, row] == E2M1[code & 15] and found[KEY][0, 2 * column + 1, row] == E2M1[code >> 4], (row, column)


def conversion(run):
    """A converted weight has the numbers of its codes, and the new config does not say that it is quantised."""
    generator = np.random.default_rng(3)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 24, "hidden_size": 16, "num_attention_heads": 2,
              "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "float16",
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [10, 7]}}
    folder, files, wanted = run.path("llama"), {}, {}
    os.makedirs(folder, exist_ok=True)
    layer = "model.layers.0."
    for name, shape in {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (16, 16), "self_attn.v_proj": (16, 16), "self_attn.o_proj": (16, 16),
                        "mlp.gate_proj": (32, 16), "mlp.up_proj": (32, 16), "mlp.down_proj": (16, 32)}.items():
        codes = generator.integers(0, 120, shape).astype(np.uint8)
        scale = generator.random((-(-shape[0] // 10), -(-shape[1] // 7))).astype(np.float32)
        files[f"{layer}{name}.weight"] = ("F8_E4M3", shape, codes.tobytes())
        files[f"{layer}{name}.weight_scale_inv"] = torch.from_numpy(scale)
        whole = scale.repeat(10, 0).repeat(7, 1)[:shape[0], :shape[1]]
        wanted[f"{layer}{name}.weight"] = torch.from_numpy(float8(codes, *FLOATS["F8_E4M3"]) * whole).half()
    for name, shape in {"model.embed_tokens": (24, 16), "lm_head": (24, 16), "model.norm": (16,), layer + "input_layernorm": (16,),
                        layer + "post_attention_layernorm": (16,)}.items():
        wanted[name + ".weight"] = files[name + ".weight"] = torch.from_numpy(generator.random(shape)).half()
    safetensors_file.save(os.path.join(folder, "model.safetensors"), files)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    said = run.call("convert", folder, "--to", "cs-2.5", "-o", run.path("zoo"))
    assert "Dequantised: 7 weights (FP8, a scale per block) to float16" in said, said
    run.call("convert", run.path("zoo/llama_to_cs-2.5.mdl"), "--to", "hf", "-o", run.path("back"))
    back = run.path("back/llama_to_cs-2.5_to_hf")
    run.call("copy", back, run.path("back.safetensors"), "-q")
    found, _ = safetensors_file.load(run.path("back.safetensors"))
    for key, tensor in wanted.items():
        assert same_bits(found[key], tensor), key
    with open(os.path.join(back, "config.json"), encoding="utf-8") as file:
        assert "quantization_config" not in json.load(file)


def not_read(run):
    """Codes of a variant that is not read are named, without a shape that a guess would give."""
    files, settings, _ = grouped(np.random.default_rng(3), "gptq")
    for more in ({"bits": 3}, {"checkpoint_format": "marlin"}):
        rows = json.loads(run.call("ls", "--json", make(run, "variant", files, {**settings, **more})))["entries"]
        weight = next(row["weight"] for row in rows if "weight" in row)
        assert weight["method"] == "GPTQ" and weight["shape"] is None, weight


def lies(run):
    """Shapes and dtypes that contradict each other: an error that names the key, at once, and no output."""
    def case(name, files, settings, *words):
        def check():
            folder = make(run, "lie", files, settings)
            done = limited(run, 200 << 20, "copy", folder, run.path("lie.safetensors"), "--dequantize", "float32")
            assert done.returncode == 1, (done.returncode, done.stderr)
            assert all(word in done.stderr for word in words), done.stderr
            assert not os.path.exists(run.path("lie.safetensors"))
        run.check(name, check)
    files, settings, _ = grouped(np.random.default_rng(1), "gptq by activation")
    index = files[KEY + ".g_idx"].clone()
    for value in -1, -2 ** 31, 2 ** 31 - 1:
        index[0] = value
        case(f"g_idx of {value}", {**files, KEY + ".g_idx": index.clone()}, settings, "g_idx", str(value))
    for name, tensor in {"text": torch.zeros(3, dtype=torch.bool), "no elements": torch.zeros(0), "another shape": torch.zeros(3, 3, 3)}.items():
        case(f"scales that are {name}", {**files, KEY + ".scales": tensor}, settings, ".scales'")
        case(f"zero points that are {name}", {**files, KEY + ".qzeros": tensor}, settings, ".qzeros'")
        case(f"g_idx that is {name}", {**files, KEY + ".g_idx": tensor}, settings, ".g_idx'")
    for size in ([], [0, 0], [-1, 4], [1.5, 2], ["a", 1], [2 ** 60, 2 ** 60], {"a": 1}):
        files, _, _ = fp8(np.random.default_rng(2), "block")
        case(f"blocks of {size}", files, {"quant_method": "fp8", "weight_block_size": size}, "'" + KEY)
    for shape in ([2 ** 62, 0], [0, 2 ** 62], [0]):
        case(f"codes of shape {shape}", {KEY + ".qweight": ("I32", shape, b""), KEY + ".qzeros": ("I32", shape, b""), KEY + ".scales": ("F16", shape, b"")},
             {"quant_method": "gptq", "bits": 4}, KEY)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, folder)
        for i in range(4):
            for name, scheme in SCHEMES.items():
                rng = np.random.default_rng([args.seed, i])
                run.check(f"{name}, round {i}", lambda: numbers(run, rng, name, scheme))  # pylint: disable=cell-var-from-loop
        run.check("what is beside quantised weights", lambda: beside(run))
        run.check("any number of threads", lambda: threads(run, np.random.default_rng(args.seed)))
        run.check("a large matrix", lambda: large(run, np.random.default_rng(args.seed)))
        run.check("a conversion and back", lambda: conversion(run))
        run.check("a variant that is not read", lambda: not_read(run))
        lies(run)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
