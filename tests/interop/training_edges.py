"""Single operators against PyTorch where programs of training_interop.py do not go: every dtype and pairs of them, views, empty and 0-dim
tensors, NaN, infinities, zeros of both signs, numbers near the ends of the range, large logits and masks, writes in place into views.

A result may be off by a few roundings of its dtype, or as much as PyTorch in that dtype is.
"""
import json
import math
import os
import random

import h5py
import numpy
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
FLOATS, WHOLE = [torch.float32, torch.float64, torch.float16, torch.bfloat16], [torch.int64, torch.int32, torch.uint8]
NAMES = {one: str(one).split(".", maxsplit=1)[1] for one in [*FLOATS, *WHOLE, torch.bool]}
SHAPES = [(), (1,), (3,), (17,), (2, 3), (3, 1), (1, 4), (0,), (2, 0), (2, 3, 4), (5, 1, 3), (33, 7), (70,)]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-20, 1e20, -1e20, 6e4, -6e4, 300, 88.0, -88.0, 104.0, 1e-8, 0.5, 1.0, 2.0]


class Case:
    """`code` in Lua has the inputs as x[1], x[2], …; `call` has them in a list."""

    def __init__(self, name, code, call, inputs, grads=True, near=8.0, spread=8.0):  # pylint: disable=too-many-arguments
        self.name, self.code, self.call, self.inputs, self.near, self.spread = name, code, call, inputs, near, spread
        self.grads = [grads and one.is_floating_point() for one in inputs]
        self.upstream = None

    def run(self, dtype_of):
        """The result and the gradients, of inputs whose dtype is dtype_of(theirs)."""
        x = [one.to(dtype_of(one.dtype)).clone().requires_grad_(needs) for one, needs in zip(self.inputs, self.grads)]
        y = self.call(x)
        if self.upstream is None:
            self.upstream = torch.randn(y.shape).to(y.dtype)
        if y.requires_grad:
            y.backward(self.upstream.to(y.dtype))
        return [y.detach()] + [one.grad if y.requires_grad else None for one in x]

    def expected(self):
        """In the dtypes of the inputs, and with floats in float64."""
        try:
            same = self.run(lambda dtype: dtype)
        except RuntimeError as error:  # PyTorch lacks many operators in half precision
            if "not implemented for" not in str(error):
                raise
            half = next(one.dtype for one in self.inputs if one.dtype in (torch.float16, torch.bfloat16))
            self.upstream = None
            same = [one if one is None or one.dtype != torch.float32 else one.to(half)
                    for one in self.run(lambda dtype: torch.float32 if dtype == half else dtype)]
            self.upstream = self.upstream.to(half) if self.upstream.is_floating_point() else self.upstream
        return same, self.run(lambda dtype: torch.float64 if dtype in FLOATS else dtype)


class Draw:
    """Tensors and views of them."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def tensor(self, shape, dtype, special=0.0, scale=1.0):
        r, count = self.r, int(numpy.prod(shape, dtype=int))
        if dtype in WHOLE:
            values = [r.randint(0 if dtype == torch.uint8 else -9, 9) for _ in range(count)]
        else:
            values = [r.choice(SPECIAL) if r.random() < special else r.gauss(0, 1) * scale for _ in range(count)]
        return torch.tensor(values, dtype=torch.int64 if dtype in WHOLE else torch.float64).reshape(shape).to(dtype)

    def view(self, shape, dtype, special=0.0, scale=1.0):
        """A tensor, Lua that takes a view of this shape of it, and the same in Python."""
        kind, dims, base = self.r.choice(["", "", "transpose", "step", "narrow", "expand", "select"]), len(shape), list(shape)
        lua, take = "", lambda x: x
        if kind == "transpose" and dims > 1:
            base[0], base[-1] = base[-1], base[0]
            lua, take = ":transpose(0, -1)", lambda x: x.transpose(0, -1)
        elif kind == "step" and dims and shape[-1]:
            base[-1] = base[-1] * 2 + 1
            lua, take = f":slice(-1, 1, {base[-1]}, 2)", lambda x: x[..., 1::2]
        elif kind == "narrow" and dims:
            base[0] += 3
            lua, take = f":slice(0, 2, {2 + shape[0]})", lambda x: x[2:2 + shape[0]]
        elif kind == "expand" and dims and shape[0]:
            base[0] = 1
            lua, take = ":expand{" + ",".join(map(str, shape)) + "}", lambda x: x.expand(shape)
        elif kind == "select":
            base.append(3)
            lua, take = ":select(-1, 1)", lambda x: x.select(-1, 1)
        return self.tensor(base, dtype, special, scale), lua, take

    def partner(self, shape):
        """A shape that is broadcast with this one."""
        return self.r.choice([shape, shape[1:], tuple(1 if self.r.random() < 0.4 else one for one in shape), (), (2, *shape)])


# name: Lua of a, and Python
UNARY = {name: (f"a:{name}()", lambda a, n=name: getattr(a, n)()) for name in (
    "exp", "log", "sqrt", "rsqrt", "square", "floor", "ceil", "cos", "sin", "tanh", "sigmoid", "relu", "erf", "neg")}
UNARY |= {"gelu": ("F.gelu(a)", F.gelu), "gelu_tanh": ('F.gelu(a, { approximate = "tanh" })', lambda a: F.gelu(a, approximate="tanh")),
          "silu": ("F.silu(a)", F.silu), "clamp": ("a:clamp(-0.5, 1)", lambda a: a.clamp(-0.5, 1)),
          "crossed clamp": ("a:clamp(1, -0.5)", lambda a: a.clamp(1, -0.5)), "isfinite": ("a:isfinite()", lambda a: a.isfinite())}
for _n in (0.1, 3, -1, -2.5, 0.5, math.inf):
    _lua = {math.inf: "1/0"}.get(_n, _n)
    UNARY |= {
        f"a+{_n}": (f"a+({_lua})", lambda a, n=_n: a + n), f"{_n}-a": (f"({_lua})-a", lambda a, n=_n: n - a),
        f"a*{_n}": (f"a*({_lua})", lambda a, n=_n: a * n), f"{_n}/a": (f"({_lua})/a", lambda a, n=_n: n / a),
        f"a^{_n}": (f"a^({_lua})", lambda a, n=_n: a ** n), f"a>={_n}": (f"a:ge({_lua})", lambda a, n=_n: a >= n),
    }
BINARY = {name: (f"a:{name}(b)", lambda a, b, n=name: getattr(torch, n)(a, b)) for name in (
    "add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "ge", "logical_and")}
BINARY |= {"where": ("C.where(a:gt(0), a, b)", lambda a, b: torch.where(a > 0, a, b))}
# not with two dtypes
SAME = {"clamp tensor": ("a:clamp(b)", lambda a, b: a.clamp(min=b)), "clamp two": ("a:clamp(b, b+1)", lambda a, b: a.clamp(b, b + 1)),
        "pow": ("a:abs() ^ b", lambda a, b: a.abs() ** b), "ties": ("(a*2):floor():maximum((b*2):floor())",
                                                                  lambda a, b: torch.maximum((a * 2).floor(), (b * 2).floor()))}


def element_wise(draw):
    r, shape, special = draw.r, draw.r.choice(SHAPES), draw.r.choice([0, 0.3])
    kind = r.choice(["unary", "binary", "same"])
    name, (lua, call) = r.choice(list({"unary": UNARY, "binary": BINARY, "same": SAME}[kind].items()))
    dtype = r.choice(FLOATS + WHOLE[:2] if kind == "binary" and name != "where" else FLOATS)
    first, view, take = draw.view(shape, dtype, special)
    if kind == "unary":
        return Case(f"{name} of {NAMES[dtype]} {list(shape)}{view}", f"local a = x[1]{view} return {lua}", lambda x: call(take(x[0])), [first])
    other = r.choice(FLOATS + WHOLE[:2]) if kind == "binary" and name != "where" else dtype
    if {dtype, other} == {torch.float16, torch.bfloat16}:
        other = dtype
    second, view_b, take_b = draw.view(draw.partner(shape), other, special if name not in ("pow", "clamp two") else 0)
    return Case(f"{name} of {NAMES[dtype]} {list(shape)}{view} and {NAMES[other]} {list(second.shape)}{view_b}",
                f"local a, b = x[1]{view}, x[2]{view_b} return {lua}", lambda x: call(take(x[0]), take_b(x[1])), [first, second])


def reduction(draw):
    r, shape = draw.r, draw.r.choice([*SHAPES, (5000,), (700, 3), (3, 20000)])
    name = r.choice(["sum", "mean", "amax", "amin", "norm", "softmax", "log_softmax"])
    dtype = r.choice(FLOATS + WHOLE if name in ("sum", "amax", "amin") and 0 not in shape else FLOATS)
    first, view, take = draw.view(shape, dtype, r.choice([0, 0, 0.1]) if name != "norm" else 0, r.choice([1, 100]))
    if name in ("amax", "amin", "softmax", "log_softmax") and 0 in shape:
        name = "sum"
    dims, keep = r.sample(range(-len(shape), 0), r.randint(1, len(shape))) if shape else None, r.random() < 0.5
    if "softmax" in name:
        dim = dims[0] if dims else 0
        return Case(f"{name} of {NAMES[dtype]} {list(shape)}{view}", f"return x[1]{view}:{name}({dim})", lambda x: getattr(take(x[0]), name)(dim), [first])

    def call(x):
        a = take(x[0])
        if name == "norm":
            return torch.linalg.vector_norm(a, dim=dims, keepdim=keep and bool(dims))
        return getattr(a, name)(dim=dims, keepdim=keep) if dims else getattr(a, name)()
    lua = "{" + ",".join(map(str, dims)) + "}" if dims else "nil"
    return Case(f"{name} of {NAMES[dtype]} {list(shape)}{view}", f"return x[1]{view}:{name}({lua}, {{ keepdim = {str(keep).lower()} }})", call, [first])


def product(draw):
    r, dtype = draw.r, draw.r.choice(FLOATS)
    m, k, n = (r.choice([0, 1, 2, 5, 17, 40]) for _ in range(3))
    batch = r.choice([(2,), (3, 2), (0,)])
    left = r.choice([(k,), (m, k), (*batch, m, k), (1, m, k)])
    right = r.choice([(k,), (k, n), (*batch, k, n), (1, k, n)])
    a, view_a, take_a = draw.view(left, dtype)
    b, view_b, take_b = draw.view(right, dtype)
    return Case(f"matmul of {NAMES[dtype]} {list(left)}{view_a} and {list(right)}{view_b}", f"return (x[1]{view_a}):matmul(x[2]{view_b})",
                lambda x: take_a(x[0]) @ take_b(x[1]), [a, b], spread=16)


def loss(draw):
    r, dtype, (rows, width) = draw.r, draw.r.choice(FLOATS), draw.r.choice([(2, 3), (1, 7), (4, 1), (6, 130), (0, 3)])
    logits, view, take = draw.view((rows, width), dtype, 0, r.choice([1, 100, 1e6]) if dtype != torch.float16 else 10)
    labels = torch.tensor([r.choice([-100, *range(width)]) for _ in range(rows)], dtype=torch.int64)
    how = r.choice(["mean", "sum", "none"])
    return Case(f"cross_entropy of {NAMES[dtype]} {rows} {width} {how}{view}", f'return F.cross_entropy(x[1]{view}, x[2], {{ reduction = "{how}" }})',
                lambda x: F.cross_entropy(take(x[0]), x[1], reduction=how), [logits, labels])


def attention(draw):
    r, dtype = draw.r, draw.r.choice(FLOATS[:2])
    groups, queries, keys, width = r.choice([1, 2]), r.choice([1, 5, 130]), r.choice([1, 7, 140]), r.choice([1, 3, 33])
    heads, scale = groups * r.choice([1, 3]), r.choice([1, 10])
    q, view, take = draw.view((2, heads, queries, width), dtype, 0, scale)
    k, v = draw.tensor((2, groups, keys, width), dtype, 0, scale), draw.tensor((2, groups, keys, 4), dtype)
    hidden = r.choice([torch.finfo(dtype).min, -1e4, -math.inf])
    mask = torch.where(torch.rand(queries, keys) < 0.6, torch.tensor(hidden, dtype=dtype), torch.randn(queries, keys, dtype=dtype))
    if hidden == -math.inf:
        mask[:, 0] = 0  # a row that sees nothing is 0 here, and NaN in PyTorch

    def call(x):
        shared = [one.repeat_interleave(heads // groups, 1) for one in x[1:3]]
        return (take(x[0]) @ shared[0].transpose(-1, -2) / math.sqrt(width) + x[3].to(x[0].dtype).detach()).softmax(-1) @ shared[1]
    case = Case(f"attention of {NAMES[dtype]} {heads}/{groups} {queries} {keys} {width}{view}, mask {hidden}",
                f"return F.scaled_dot_product_attention(x[1]{view}, x[2], x[3], {{ mask = x[4] }})", call, [q, k, v, mask], spread=40 * scale * scale)
    case.grads[3] = False
    return case


def in_place(draw):
    """Written into a view; the whole tensor is compared."""
    r, shape, dtype = draw.r, draw.r.choice([(2, 3, 4), (4, 1), (3,), (5, 2), (), (0, 3), (300, 7)]), draw.r.choice(FLOATS[:2] + WHOLE[:2])
    first, view, take = draw.view(shape, dtype)
    if "expand" in view:
        view, take, first = "", lambda x: x, draw.tensor(shape, dtype)
    lua, calls, inputs = "", [], [first]
    for _ in range(r.randint(1, 4)):
        name = r.choice(["add_", "sub_", "mul_", "copy_", "alpha", "addcmul_", "overlap"])
        other, view_b, take_b = draw.view(r.choice([shape, shape[1:], ()]), dtype)
        inputs.append(other)
        b = f"x[{len(inputs)}]{view_b}"
        if name == "alpha":
            lua, call = f"{lua} a:add_({b}, {{ alpha = -3 }})", lambda a, o: a.add_(o, alpha=-3)
        elif name == "addcmul_":
            lua, call = f"{lua} a:addcmul_({b}, {b}, {{ value = 2 }})", lambda a, o: a.add_(o * o * 2)
        elif name == "overlap" and shape and shape[0]:
            lua, call = f"{lua} a:add_(a:slice(0, 0, 1))", lambda a, o: a.add_(a[0:1].clone())
        else:
            name = "mul_" if name == "overlap" else name
            lua, call = f"{lua} a:{name}({b})", lambda a, o, n=name: getattr(a, n)(o)
        calls.append((call, len(inputs) - 1, take_b))

    def run(x):
        whole = x[0].clone()
        for call, place, take_other in calls:
            call(take(whole), take_other(x[place]))
        return whole
    return Case(f"in place of {NAMES[dtype]} {list(shape)}{view}:{lua}", f"local whole = x[1]:clone() local a = whole{view}{lua} return whole", run, inputs, False)


KINDS = [element_wise, element_wise, element_wise, reduction, product, loss, attention, in_place]


def draw_cases(count):
    torch.manual_seed(1)
    cases = []
    for seed in range(count):
        case = KINDS[seed % len(KINDS)](Draw(seed))
        try:
            case.wanted = case.expected()
        except RuntimeError:  # shapes or dtypes that do not fit together
            continue
        except IndexError:
            continue
        cases.append(case)
    return cases


def compare(case, what, found, same, exact):
    assert tuple(found.shape) == tuple(same.shape), f"{what}: shape {found.shape}, expected {tuple(same.shape)}"
    found, same_values, exact = (numpy.asarray(one).reshape(-1) for one in (found, same.double(), exact.double()))
    if not same.is_floating_point():
        assert (found == same_values).all(), f"{what}: {found[found != same_values][:3]}, expected {same_values[found != same_values][:3]}"
        return
    limits = torch.finfo(same.dtype)
    with numpy.errstate(all="ignore"):
        finite = numpy.isfinite(same_values) & numpy.isfinite(exact)
        most = numpy.abs(exact[finite]).max(initial=0)
        allowed = case.near * (numpy.nan_to_num(numpy.abs(same_values - exact)) + limits.eps * numpy.abs(exact)) + limits.tiny + case.spread * limits.eps * (most + 1)
        near = numpy.isfinite(found) & (numpy.abs(found - exact) <= allowed)
    fine = near | (found == same_values) | (found == exact) | (numpy.isnan(found) & (numpy.isnan(same_values) | numpy.isnan(exact)))
    assert fine.all(), f"{what}: {found[~fine][:3]}, expected {same_values[~fine][:3]} (exactly {exact[~fine][:3]})"


def check_case(case, file, dtypes):
    assert "error" not in dtypes, f"{dtypes.get('error')}: {case.code}"
    same, exact = case.wanted
    for place, name in enumerate(["out", *(f"gradient{i + 1}" for i in range(len(case.inputs)))]):
        if same[place] is None or name not in dtypes:
            assert same[place] is None or not case.grads[place - 1], f"{name} is missing"
            continue
        assert dtypes[name] == NAMES[same[place].dtype], f"{name} is {dtypes[name]}, expected {NAMES[same[place].dtype]}"
        compare(case, name, file[name][()], same[place], exact[place])


def check_edges(run, count, lua):
    """`lua`: writes a value as Lua."""
    cases, given, codes = draw_cases(count), {}, []
    for number, case in enumerate(cases):
        backward = any(one is not None for one in case.wanted[0][1:])
        given[f"case{number + 1}"] = [*case.inputs, *([case.upstream] if backward else [])]
        codes.append({"code": case.code, "grads": case.grads, "backward": backward})
    torch.save(given, run.path("edges.pt"))
    with open(run.path("codes.lua"), "w", encoding="utf-8") as file:
        file.write("local cases = {}\n" + "".join(f"cases[{i + 1}] = {lua(one)}\n" for i, one in enumerate(codes)) + "return cases\n")
    run.call("run", os.path.join(HERE, "training_edges.lua"), run.path("edges.pt"), run.path("codes.lua"), run.path("edges.mdl"), run.path("edges.json"))
    with open(run.path("edges.json"), encoding="utf-8") as file:
        dtypes = json.load(file)
    with h5py.File(run.path("edges.mdl")) as file:
        values = {}
        for name in file:
            values.setdefault(name.split(".")[0], {})[name.split(".")[1]] = file[name]
        for number, case in enumerate(cases):
            name = f"case{number + 1}"
            run.check(case.name, lambda c=case, n=name: check_case(c, values.get(n, {}), dtypes[n]))
