"""Layers of the Model Zoo that PyTorch 1.13 does not have, written down in PyTorch: attention with shared keys, rotary positions, ALiBi and a
window, layers with gates and root-mean-square norms. Their parameters have the Model Zoo's names."""
import math

import torch
import torch.nn.functional as F


class Attention(torch.nn.Module):
    def __init__(self, width, heads, kv_groups=None, inner_width=None, bias=True, causal=False, window=None, position=None, rotary_dim=None,
                 rope_theta=10000):  # pylint: disable=too-many-arguments
        super().__init__()
        inner = inner_width or width
        self.heads, self.groups, self.head = heads, kv_groups or heads, inner // heads
        self.causal, self.window, self.position, self.theta = causal, window, position, rope_theta
        self.rotary_dim = rotary_dim or self.head
        for name, extent in (("q", inner), ("k", self.groups * self.head), ("v", self.groups * self.head)):
            setattr(self, f"proj_{name}_dense_layer", torch.nn.Linear(width, extent, bias=bias))
        self.proj_output_dense_layer = torch.nn.Linear(inner, width)

    def slopes(self):
        def powers(n):
            return [2 ** (-8 * (i + 1) / n) for i in range(n)]
        lower = 2 ** int(math.log2(self.heads))
        return torch.tensor(powers(lower) + powers(2 * lower)[::2][:self.heads - lower])

    def rotate(self, x):
        angle = torch.arange(x.shape[-2])[:, None] * self.theta ** (-torch.arange(0, self.rotary_dim, 2) / self.rotary_dim)
        turned, rest = x[..., :self.rotary_dim], x[..., self.rotary_dim:]
        numbers = torch.view_as_complex(turned.reshape(*turned.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([torch.view_as_real(numbers).flatten(-2), rest], -1)

    def forward(self, x):
        def split(y, heads):
            return y.reshape(*y.shape[:2], heads, self.head).transpose(1, 2)
        q = split(self.proj_q_dense_layer(x), self.heads)
        k, v = split(self.proj_k_dense_layer(x), self.groups), split(self.proj_v_dense_layer(x), self.groups)
        if self.position == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        k, v = (one.repeat_interleave(self.heads // self.groups, 1) for one in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        if self.position == "alibi":
            scores = scores - self.slopes()[:, None, None] * distance.abs()
        if self.causal:
            scores = scores.masked_fill((distance < 0) | (distance >= (self.window or x.shape[1])), -math.inf)
        return self.proj_output_dense_layer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class RMSNorm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps, self.weight = eps, torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Layer(torch.nn.Module):
    """A decoder layer, or an encoder layer, whose second norm is called norm2."""

    def __init__(self, width, heads, filter_size, decoder=True, gated=False, nonlinearity="gelu", norm="layernorm", norm_first=True, eps=1e-5,
                 ffn_bias=True, **attention):  # pylint: disable=too-many-arguments
        super().__init__()
        self.norm_first, self.gated, self.second = norm_first, gated, "norm3" if decoder else "norm2"
        self.activation = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu, "tanh": torch.tanh}[nonlinearity]
        self.self_attn = Attention(width, heads, causal=decoder, **attention)
        for name in ("norm1", self.second):
            setattr(self, name, RMSNorm(width, eps) if norm == "rmsnorm" else torch.nn.LayerNorm(width, eps))
        up = {"linear_layer": torch.nn.Linear(width, filter_size, bias=ffn_bias)}
        if gated:
            up["linear_layer_for_glu"] = torch.nn.Linear(width, filter_size, bias=ffn_bias)
        down = {"linear_layer": torch.nn.Linear(filter_size, width, bias=ffn_bias)}
        self.ffn = torch.nn.ModuleDict({"ffn": torch.nn.ModuleList([torch.nn.ModuleDict(up), torch.nn.ModuleDict(down)])})

    def feed_forward(self, x):
        up, down = self.ffn["ffn"]
        inner = up["linear_layer"](x)
        inner = inner * self.activation(up["linear_layer_for_glu"](x)) if self.gated else self.activation(inner)
        return down["linear_layer"](inner)

    def forward(self, x):
        for norm, part in (("norm1", self.self_attn), (self.second, self.feed_forward)):
            norm = getattr(self, norm)
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


ATTENTION = {
    "shared keys": {"kv_groups": 2}, "one key": {"kv_groups": 1, "causal": True}, "rotary": {"position": "rotary", "causal": True},
    "rotary in part": {"position": "rotary", "rotary_dim": 2, "rope_theta": 500.0, "kv_groups": 2}, "wider": {"inner_width": 24, "bias": False},
    "window": {"causal": True, "window": 2}, "ALiBi": {"position": "alibi", "causal": True, "window": 4},
    "ALiBi both ways": {"position": "alibi"},
}
LAYERS = {
    "llama": {"norm": "rmsnorm", "gated": True, "nonlinearity": "silu", "kv_groups": 1, "position": "rotary", "bias": False, "ffn_bias": False},
    "mistral": {"norm": "rmsnorm", "gated": True, "nonlinearity": "silu", "kv_groups": 2, "position": "rotary", "window": 3, "eps": 1e-6},
    "norms last": {"norm": "rmsnorm", "norm_first": False, "nonlinearity": "tanh", "position": "alibi"},
    "encoder": {"decoder": False, "gated": True, "position": "rotary"}, "encoder, norms last": {"decoder": False, "norm_first": False, "nonlinearity": "relu"},
}


def layer_cases(add, own):
    """`add(name, where, module, state, inputs)` as in training_interop.py."""
    x = torch.randn(2, 7, 16)
    for name, options in ATTENTION.items():
        add("attention: " + name, ["MultiheadAttention", 16, 4, options], Attention(16, 4, **options), own, [x])
    six = {"position": "alibi", "causal": True}
    add("attention: ALiBi of six heads", ["MultiheadAttention", 12, 6, six], Attention(12, 6, **six), own, [x[..., :12].clone()])
    for name, options in LAYERS.items():
        options = dict(options)
        is_decoder = options.get("decoder", True)
        module = Layer(16, 4, 20, **options)
        options.pop("decoder", None)
        where = "TransformerDecoderLayer" if is_decoder else "TransformerEncoderLayer"
        add("layer: " + name, [where, 16, 4, {"filter_size": 20, **options}], module, own, [x])
