#!/usr/bin/python3
"""Tensors that compute, against PyTorch: random programs of operators forwards and backwards, modules with the same weights, checkpoints.

A program is a list of operators over earlier values. PyTorch draws it (shapes and values decide what fits), one cbk process runs all of them
(training_programs.lua), and values and gradients are compared: in float64, and in float32 within what PyTorch's own float32 is off.

Usage: training_interop.py --cbk PATH [--seeds N]
"""
import argparse
import json
import os
import random
import sys
import tempfile

import h5py
import numpy
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Run  # noqa: E402  pylint: disable=wrong-import-position
from training_edges import check_edges  # noqa: E402  pylint: disable=wrong-import-position
from training_layers import layer_cases  # noqa: E402  pylint: disable=wrong-import-position

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = [(2, 3), (3,), (2, 3, 4), (4, 1), (1, 3), (), (2, 2, 3, 4), (3, 3), (0, 3), (1,)]


def lua(value):
    """A Lua literal."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"[{json.dumps(k)}]={lua(v)}" for k, v in value.items()) + "}"
    return "{" + ",".join(lua(v) for v in value) + "}"


# --- operators: what PyTorch computes, and what parameters fit an input

def attention(p, a):
    q, k, v = a, a * 0.7, a + 0.1
    scores = q @ k.transpose(-1, -2) * p["scale"]
    n = a.shape[-2]
    seen = torch.ones(n, n, dtype=torch.bool)
    if p["causal"]:
        seen = seen.tril()
        if p.get("window"):
            seen = seen & ~torch.ones(n, n, dtype=torch.bool).tril(-p["window"])
    if p.get("mask"):
        seen = seen & torch.tensor(p["mask"])
    return scores.masked_fill(~seen, -float("inf")).softmax(-1) @ v


def layer_norm(p, a):
    w = a.select(0, 0)
    return F.layer_norm(a, w.shape, w, w * 2 if p["bias"] else None, p["eps"])


def in_place(p, a, b):
    return (a * 2 + b * 0).add_(b).mul_(p["n"]).sub_(b * 0.1)


def linear(p, a):
    w = a.reshape(-1, a.shape[-1])
    return F.linear(a, w, w.sum(1) if p["bias"] else None)


def reduce(name):
    def run(p, a):
        dims = tuple(range(a.dim())) if p["dims"] is None else p["dims"]
        if name == "norm":
            return torch.linalg.vector_norm(a, dim=dims, keepdim=p["keepdim"])
        return getattr(a, name)(dim=dims, keepdim=p["keepdim"]) if a.dim() else getattr(a, name)()
    return run


SAFE = lambda b: b.abs() + 0.5  # noqa: E731
OPERATORS = {
    "add": lambda p, a, b: a + b, "sub": lambda p, a, b: a - b, "mul": lambda p, a, b: a * b, "div": lambda p, a, b: a / SAFE(b),
    "maximum": lambda p, a, b: torch.maximum(a, b), "minimum": lambda p, a, b: torch.minimum(a, b),
    "pow_tensor": lambda p, a, b: SAFE(a) ** b.tanh(), "pow": lambda p, a: SAFE(a) ** p["n"], "rpow": lambda p, a: p["n"] ** a.tanh(),
    "number": lambda p, a: p["n"] - a * p["n"] + a / p["n"] + p["n"] / (a.square() + 1),
    "exp": lambda p, a: (a * 0.3).exp(), "log": lambda p, a: SAFE(a).log(), "sqrt": lambda p, a: SAFE(a).sqrt(),
    "rsqrt": lambda p, a: SAFE(a).rsqrt(), "gelu": lambda p, a: F.gelu(a), "gelu_tanh": lambda p, a: F.gelu(a, approximate="tanh"),
    "silu": lambda p, a: F.silu(a), "clamp": lambda p, a: a.clamp(p["low"], p["high"]),
    "sum": reduce("sum"), "mean": reduce("mean"), "amax": reduce("amax"), "amin": reduce("amin"), "norm": reduce("norm"),
    "softmax": lambda p, a: a.softmax(p["dim"]), "log_softmax": lambda p, a: a.log_softmax(p["dim"]), "layer_norm": layer_norm,
    "rms_norm": lambda p, a: a * (a.square().mean(tuple(range(1, a.dim())), keepdim=True) + p["eps"]).rsqrt() * a.select(0, 0),
    "square_product": lambda p, a: a @ a.transpose(-1, -2), "inner_product": lambda p, a: a.transpose(-1, -2) @ a,
    "matmul": lambda p, a, b: a @ b, "linear": linear, "reshape": lambda p, a: a.reshape(p["shape"]),
    "permute": lambda p, a: a.permute(p["dims"]), "transpose": lambda p, a: a.transpose(p["a"], p["b"]),
    "expand": lambda p, a: a.unsqueeze(p["dim"]).expand(p["shape"]), "unsqueeze": lambda p, a: a.unsqueeze(p["dim"]),
    "squeeze": lambda p, a: a.squeeze() if p["dim"] is None else a.squeeze(p["dim"]),
    "slice": lambda p, a: a[(slice(None),) * p["dim"] + (slice(p["start"], p["stop"], p["step"]),)],
    "select": lambda p, a: a.select(p["dim"], p["index"]), "cat": lambda p, a, b: torch.cat([a, b, a], p["dim"]),
    "stack": lambda p, a, b: torch.stack([a, b], p["dim"]), "split": lambda p, a: a.split(p["size"], p["dim"])[p["part"] - 1],
    "where": lambda p, a, b: torch.where(a > b, a, b * 0.5), "masked_fill": lambda p, a: a.masked_fill(a < p["n"], p["n"]),
    "sign_floor_ceil": lambda p, a: a * ((a * 3).floor() + a.sign() - (a * 2).ceil()),
    "compare": lambda p, a, b: a * (a >= b) + b * ~(a <= b) + ((a != b) & (a > 0)) * b,
    "argmax": lambda p, a: a.argmax(p["dim"], keepdim=p["keepdim"]).to(a.dtype) * 0.1, "topk": lambda p, a: a.topk(p["k"])[0].detach(),
    "embedding": lambda p, a: F.embedding(torch.tensor(p["ids"]), a),
    "cross_entropy": lambda p, a: F.cross_entropy(a, torch.tensor(p["labels"]), reduction=p["reduction"], ignore_index=p["ignored"]),
    "mse_loss": lambda p, a, b: F.mse_loss(a, b, reduction=p["reduction"]),
    "bce": lambda p, a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction=p["reduction"]), "attention": attention,
    "in_place": in_place, "no_grad": lambda p, a: a * (a * 0.5).detach() + a.detach(), "cast": lambda p, a: a.float().to(a.dtype),
}
for _name in ("square", "cos", "sin", "tanh", "sigmoid", "relu", "erf", "abs", "neg", "clone", "contiguous", "flatten"):
    OPERATORS[_name] = lambda p, a, name=_name: getattr(a, name)()
# What changes by a step where its input changes by nothing: not for float32.
STEPS = {"sign_floor_ceil", "compare", "where", "masked_fill", "argmax", "topk", "cast"}
BROADCAST = {"add", "sub", "mul", "div", "maximum", "minimum", "pow_tensor", "where", "compare"}
SAME = {"mse_loss", "bce", "stack", "in_place"}


def parameters(name, a, r):  # pylint: disable=too-many-return-statements,too-many-branches
    """Parameters of the operator for this input; None where it does not fit."""
    dims, shape = a.dim(), list(a.shape)
    dim = r.randrange(-dims, dims) if dims else None
    if name in ("pow", "rpow"):
        return {"n": r.choice([2, 3, 0.5, -1, 1.5, -0.5] if name == "pow" else [2, 1.7])}
    if name in ("number", "in_place", "masked_fill"):
        return {"n": r.choice([2, 0.25, 1.5])}
    if name == "clamp":
        return r.choice([{"low": -0.5, "high": 0.5}, {"low": None, "high": 0.1}, {"low": 0, "high": None}])
    if name in ("sum", "mean", "amax", "amin", "norm"):
        if name != "sum" and a.numel() == 0:
            return None
        chosen = sorted(r.sample(range(dims), r.randint(1, dims))) if dims and r.random() < 0.8 else None
        return {"dims": chosen, "keepdim": r.random() < 0.5}
    if name in ("layer_norm", "rms_norm"):
        return {"eps": r.choice([1e-5, 0.1]), "bias": r.random() < 0.5} if dims > 1 and a.numel() else None
    if name in ("square_product", "inner_product"):
        return {} if dims > 1 else None
    if name == "linear":
        return {"bias": r.random() < 0.5} if dims and a.numel() else None
    if name == "reshape":
        return {"shape": r.choice([[a.numel()], [1, a.numel()], shape + [1], [-1] + shape[1:]])} if a.numel() else None
    if name == "permute":
        return {"dims": r.sample(range(dims), dims)}
    if name == "unsqueeze":
        return {"dim": r.randrange(-dims - 1, dims + 1)}
    if name == "expand":
        place = r.randrange(dims + 1)
        return {"dim": place, "shape": shape[:place] + [r.randint(1, 3)] + shape[place:]} if dims < 4 else None
    if name == "squeeze":
        return {"dim": dim if r.random() < 0.6 else None} if dims else None
    if name in ("stack", "cat"):
        return {"dim": dim} if dims else None
    if name == "embedding":
        return {"ids": [[r.randrange(shape[0]) for _ in range(3)] for _ in range(2)]} if dims == 2 and a.numel() else None
    if name == "cross_entropy":
        labels = [r.choice([-1, *range(shape[1])]) for _ in range(shape[0])] if dims == 2 and a.numel() else [-1]
        return {"labels": labels, "reduction": r.choice(["mean", "sum", "none"]), "ignored": -1} if max(labels) >= 0 else None
    if name in ("mse_loss", "bce"):
        return {"reduction": r.choice(["mean", "sum", "none"])} if a.numel() else None
    if name == "attention":
        if dims < 2 or dims > 4 or not a.numel():
            return None
        mask = [[i == j or r.random() < 0.5 for j in range(shape[-2])] for i in range(shape[-2])] if r.random() < 0.4 else None
        causal = r.random() < 0.5
        return {"causal": causal, "scale": r.choice([0.3, 1]), "window": r.choice([None, 1, 2]) if causal else None, "mask": mask}
    if name in ("softmax", "log_softmax"):
        return {"dim": dim} if dims and a.numel() else None
    if name == "transpose":
        return {"a": dim, "b": r.randrange(dims)} if dims else None
    if name == "slice":
        if not dims:
            return None
        start = r.randint(0, shape[dim])
        return {"dim": dim % dims, "start": start, "stop": r.randint(start, shape[dim] + 1), "step": r.randint(1, 2)}
    if name == "select":
        return {"dim": dim, "index": r.randrange(-shape[dim], shape[dim])} if dims and shape[dim] else None
    if name == "split":
        return {"dim": dim, "size": r.randint(1, 2), "part": 1} if dims and shape[dim] else None
    if name == "argmax":
        return {"dim": dim, "keepdim": r.random() < 0.5} if dims and a.numel() else None
    if name == "topk":
        return {"k": r.randint(1, shape[-1])} if dims and a.numel() else None
    return {}


def partner(name, values, a, r):
    """A second input, of a shape that fits."""
    fitting = [i for i, b in enumerate(values) if name in BROADCAST or b.shape == a.shape]
    if name == "matmul":
        fitting = [i for i, b in enumerate(values) if a.dim() and b.dim() and a.shape[-1] == (b.shape[-2] if b.dim() > 1 else b.shape[0])]
    return r.choice(fitting) if fitting else None


def draw(seed):
    """A program, and whether a step decides something by a comparison."""
    r = random.Random(seed)
    inputs = []
    for _ in range(r.randint(1, 3)):
        shape = r.choice(SHAPES)
        count = int(numpy.prod(shape, dtype=int))
        inputs.append({"shape": list(shape), "values": [round(r.uniform(-1.5, 1.5), 4) for _ in range(count)]})
    program = {"inputs": inputs, "steps": [], "dtype": "float64"}
    values = [tensor_of(one, torch.float64) for one in inputs]
    names, length = sorted(OPERATORS), r.randint(3, 12)
    has_steps = seed % 3 == 0
    for _ in range(1000):
        if len(program["steps"]) == length:
            break
        name = r.choice(names)
        first = r.randrange(len(values)) if r.random() < 0.4 else len(values) - 1
        given, a = [first], values[first]
        if name in BROADCAST or name in SAME or name in ("cat", "matmul"):
            given.append(partner(name, values, a, r))
        p = None if given[-1] is None or (name in STEPS and not has_steps) else parameters(name, a, r)
        if p is None:
            continue
        try:
            result = OPERATORS[name](p, *[values[i] for i in given])
        except RuntimeError as error:
            assert "must match" in str(error), (name, p, error)  # shapes that cannot be broadcast
            continue
        if result.numel() <= 400 and result.dim() <= 5 and bool(torch.isfinite(result).all()) and (
                not result.numel() or float(result.abs().max()) < 50):
            program["steps"].append({"op": name, "inputs": given, "p": p})
            values.append(result)
    return program, has_steps


def tensor_of(one, dtype):
    return torch.tensor(one["values"], dtype=torch.float64).reshape(one["shape"]).to(dtype).requires_grad_()


def run_torch(program, dtype):
    leaves = [tensor_of(one, dtype) for one in program["inputs"]]
    values = list(leaves)
    for step in program["steps"]:
        values.append(OPERATORS[step["op"]](step["p"], *[values[i] for i in step["inputs"]]))
    sum((value * 0.7).sin().sum() for value in values).backward()
    return values, [leaf.grad for leaf in leaves]


def compare(what, found, expected, allowed):
    expected = expected.detach().double().reshape(-1).numpy()
    found = numpy.array(found, dtype=float).reshape(-1)
    assert found.shape == expected.shape, f"{what}: {found.shape} numbers, expected {expected.shape}"
    distance = numpy.abs(found - expected).max(initial=0)
    assert distance <= allowed, f"{what}: off by {distance:.3g}, allowed {allowed:.3g}: {found[:4]} and {expected[:4]}"


def distance_of(a, b):
    return float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0


def check_program(program, result):
    assert "error" not in result, f"{result.get('error')}: {program['steps']}"
    exact = run_torch(program, torch.float64)
    rough = run_torch(program, torch.float32) if program["dtype"] == "float32" else exact
    for kind, found, wanted, near in zip(("value", "gradient"), (result["values"], result["gradients"]), exact, rough):
        for i, expected in enumerate(wanted):
            scale = 1 + (float(expected.detach().abs().max()) if expected.numel() else 0)
            allowed = 1e-10 * scale if near is wanted else 10 * distance_of(near[i], expected) + 3e-5 * scale
            if kind == "value":
                shape = list(result["shapes"][i])
                assert shape == list(expected.shape), f"value {i} has shape {shape}, expected {list(expected.shape)}: {program['steps']}"
            compare(f"{kind} {i} of {[step['op'] for step in program['steps']]}", found[i], expected, allowed)


def check_programs(run, seeds):
    programs = []
    for seed in range(seeds):
        program, has_steps = draw(seed)
        programs.append((seed, program))
        if not has_steps:
            programs.append((seed, {**program, "dtype": "float32"}))
    used = {step["op"] for _, program in programs for step in program["steps"]}
    if seeds >= 500:
        run.check("every operator is in a program", lambda: assert_equal(sorted(used), sorted(OPERATORS)))
    path = run.path("programs.lua")
    with open(path, "w", encoding="utf-8") as file:
        file.write("local programs = {}\n")
        for number, (_, program) in enumerate(programs):
            file.write(f"programs[{number + 1}] = (function() return {lua(program)} end)()\n")
        file.write("return programs\n")
    run.call("run", os.path.join(HERE, "training_programs.lua"), path, run.path("results.json"))
    with open(run.path("results.json"), encoding="utf-8") as file:
        results = json.load(file)
    for (seed, program), result in zip(programs, results):
        run.check(f"seed {seed} in {program['dtype']}", lambda p=program, x=result: check_program(p, x))


# --- modules: PyTorch's own, with their weights under the names of the Model Zoo

def split_attention(name, layer, out):
    """Weights of a torch.nn.MultiheadAttention."""
    for place, part in enumerate("qkv"):
        for kind in ("weight", "bias"):
            if getattr(layer, "in_proj_" + kind) is not None:
                out[f"{name}proj_{part}_dense_layer.{kind}"] = getattr(layer, "in_proj_" + kind).chunk(3)[place]
    for kind in ("weight", "bias"):
        if getattr(layer.out_proj, kind) is not None:
            out[f"{name}proj_output_dense_layer.{kind}"] = getattr(layer.out_proj, kind)


def layer_state(layer, renamed):
    out = {}
    for name, part in layer.named_children():
        if isinstance(part, torch.nn.MultiheadAttention):
            split_attention(name + ".", part, out)
        elif name in renamed:
            out.update({f"{renamed[name]}.{kind}": value for kind, value in part.named_parameters()})
    return out


def attention_state(layer):
    out = {}
    split_attention("", layer, out)
    return out


FFN = {"linear1": "ffn.ffn.0.linear_layer", "linear2": "ffn.ffn.1.linear_layer"}


def module_cases():
    """name: class and arguments in Lua, the module, its state, inputs, options in Lua, a call."""
    torch.manual_seed(3)
    x, memory, causal = torch.randn(2, 5, 8), torch.randn(2, 3, 8), torch.nn.Transformer.generate_square_subsequent_mask(5)
    seen = torch.rand(5, 5) < 0.6
    seen |= torch.eye(5, dtype=torch.bool)
    cases = {}

    def add(name, where, module, state, inputs, options=None, call=None):
        for p in module.parameters():  # weights that differ from the initial ones and from 0
            torch.nn.init.normal_(p, std=0.4)
        cases[name] = (where, module, state(module), inputs, options or {}, call or module)

    def own(module):
        return dict(module.named_parameters())

    for norm_first in (True, False):
        for activation in ("relu", "gelu"):
            kw = {"dim_feedforward": 12, "dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
            options = {"filter_size": 12, "nonlinearity": activation, "norm_first": norm_first}
            encoder, decoder = torch.nn.TransformerEncoderLayer(8, 2, **kw), torch.nn.TransformerDecoderLayer(8, 2, **kw)
            name = f"{activation}_{'first' if norm_first else 'last'}"
            add("encoder_" + name, ["TransformerEncoderLayer", 8, 2, options], encoder,
                lambda m: layer_state(m, {"norm1": "norm1", "norm2": "norm2", **FFN}), [x])
            add("decoder_" + name, ["TransformerDecoderLayer", 8, 2, {**options, "cross_attention": True}], decoder,
                lambda m: layer_state(m, {"norm1": "norm1", "norm2": "norm2", "norm3": "norm3", **FFN}), [x], {"memory": memory},
                lambda y, m=decoder: m(y, memory, tgt_mask=causal))
            alone = torch.nn.TransformerEncoderLayer(8, 2, **kw)
            add("causal_" + name, ["TransformerDecoderLayer", 8, 2, options], alone,
                lambda m: layer_state(m, {"norm1": "norm1", "norm2": "norm3", **FFN}), [x], {}, lambda y, m=alone: m(y, src_mask=causal))
    for bias in (True, False):
        plain = torch.nn.MultiheadAttention(8, 4, bias=bias, batch_first=True)
        add(f"attention_{bias}", ["MultiheadAttention", 8, 4, {"bias": bias, "output_bias": bias}], plain, attention_state, [x, x, x], {"mask": seen},
            lambda q, k, v, m=plain: m(q, k, v, attn_mask=~seen)[0])
    cross = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    add("attention_cross", ["MultiheadAttention", 8, 2, {}], cross, attention_state, [x, memory], {}, lambda y, z, m=cross: m(y, z, z)[0])
    add("layer_norm", ["LayerNorm", [5, 8], {"eps": 0.1}], torch.nn.LayerNorm([5, 8], eps=0.1), own, [x])
    add("linear", ["Linear", 8, 3], torch.nn.Linear(8, 3), own, [x])
    add("embedding", ["Embedding", 6, 4], torch.nn.Embedding(6, 4), own, [torch.tensor([[0, 5, 5], [1, 2, 5]])])
    for form in ("none", "tanh"):
        add("gelu_" + form, ["GELU", {"approximate": form}], torch.nn.GELU(form), own, [x * 3])
    labels = torch.tensor([[1, 7, 3, 3, 0], [3, 2, 3, 6, 5]])
    for reduction in ("mean", "sum", "none"):
        loss = torch.nn.CrossEntropyLoss(ignore_index=3, reduction=reduction)
        add("cross_entropy_" + reduction, ["CrossEntropyLoss", {"ignore_index": 3, "reduction": reduction}], loss, own, [x, labels], {},
            lambda y, t, f=loss: f(y.transpose(1, 2), t))
    add("mse_loss", ["MSELoss", {"reduction": "sum"}], torch.nn.MSELoss(reduction="sum"), own, [x, x.flip(0)])
    layer_cases(add, own)
    return cases


def check_module(file, name, case):
    _, _, _, inputs, _, call = case
    leaves = [one.clone().requires_grad_(one.is_floating_point() and i == 0) for i, one in enumerate(inputs)]
    out = call(*leaves)
    out.square().sum().backward()

    def near(what, expected):
        found = file[f"{name}.{what}"][()]
        assert found.shape == tuple(expected.shape), f"{what}: {found.shape}, expected {tuple(expected.shape)}"
        numpy.testing.assert_allclose(found, expected.detach().numpy(), rtol=2e-4, atol=2e-4 * (1 + float(expected.detach().abs().max())), err_msg=what)
    near("out", out)
    if leaves[0].requires_grad:
        near("gradients.input", leaves[0].grad)
    return near


def check_weights(case, near):
    """Gradients of the weights: of a part of PyTorch's in_proj, that part of its gradient."""
    _, module, state, _, _, _ = case
    for name, value in state.items():
        base = next(p for p in module.parameters() if p is value or p.data_ptr() <= value.data_ptr() < p.data_ptr() + 4 * p.numel())
        first = (value.data_ptr() - base.data_ptr()) // 4
        near("gradients.p." + name, base.grad.reshape(-1)[first:first + value.numel()].reshape(value.shape))


def check_modules(run):
    cases = module_cases()
    tree = {
        name: {"class": where[0], "arguments": where[1:], "state": {k: v.detach().clone() for k, v in state.items()}, "inputs": inputs, "options": options}
        for name, (where, _, state, inputs, options, _) in cases.items()
    }
    torch.save(tree, run.path("cases.pt"))
    run.call("run", os.path.join(HERE, "training_modules.lua"), run.path("cases.pt"), run.path("results.mdl"))
    with h5py.File(run.path("results.mdl")) as file:
        for name, case in cases.items():
            run.check("module " + name, lambda n=name, c=case: check_weights(c, check_module(file, n, c)))


def assert_equal(found, expected):
    assert found == expected, f"{found}, expected {expected}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--seeds", type=int, default=500)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.cbk, folder)
        check_programs(run, args.seeds)
        check_edges(run, 2 * args.seeds, lua)
        check_modules(run)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
