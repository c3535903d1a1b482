"""What the model definitions are made of: weights that know their names and shapes, attention, positions, activations."""
import copy
import math

import torch
import torch.nn.functional as F


class Different(Exception):
    pass


class Weights:
    """The tensors of one checkpoint, by name.

    A new one makes a random tensor when a name is first asked for, so that a forward pass is all that a definition has to say
    about names and shapes. A loaded one must have every tensor that is asked for, in that shape; `unused` says what nobody
    asked for.
    """

    def __init__(self, tensors=None, seed=0, embedding_std=1.0):
        self.embedding_std = embedding_std
        self.tensors = {} if tensors is None else tensors
        self.random = torch.Generator().manual_seed(seed) if tensors is None else None
        self.used, self.prefix = set(), ""

    def below(self, prefix):
        """The same checkpoint, for a definition that does not know that its names begin with `prefix`."""
        out = copy.copy(self)
        out.prefix = self.prefix + prefix
        return out

    def has(self, name):
        return self.prefix + name in self.tensors

    def get(self, name, *shape, mean=0.0, std=1.0):
        name = self.prefix + name
        if self.random and name not in self.tensors:
            self.tensors[name] = mean + std * torch.randn(shape, generator=self.random)
        if name not in self.tensors:
            raise Different(f"the checkpoint has no '{name}'")
        self.used.add(name)
        tensor = self.tensors[name]
        if tuple(tensor.shape) != shape:
            raise Different(f"'{name}' is {list(tensor.shape)} instead of {list(shape)}")
        return tensor

    def again(self, name, other):
        """`other` is a second name of the tensor `name`."""
        name, other = self.prefix + name, self.prefix + other
        if self.random:
            if other in self.tensors:
                raise Different(f"'{other}' was used before it became '{name}'")
            self.tensors[other] = self.tensors[name]
        if other not in self.tensors or not torch.equal(self.tensors[other], self.tensors[name]):
            raise Different(f"'{other}' is not the tensor '{name}'")
        self.used.add(other)

    def unused(self):
        return sorted(set(self.tensors) - self.used)

    def bias(self, name, size):
        return self.get(name + ".bias", size, std=0.3)

    def linear(self, name, x, size, bias=True):
        weight = self.get(name + ".weight", size, x.shape[-1], std=x.shape[-1] ** -0.5)
        return F.linear(x, weight, self.bias(name, size) if bias else None)

    def conv1d(self, name, x, size):
        """GPT-2's linear layer: the matrix is transposed."""
        return x @ self.get(name + ".weight", x.shape[-1], size, std=x.shape[-1] ** -0.5) + self.bias(name, size)

    def embedding(self, name, ids, count, size, padding=None):
        """The row of `padding` gets no gradient here."""
        return F.embedding(ids, self.get(name + ".weight", count, size, std=self.embedding_std), padding_idx=padding)

    def layer_norm(self, name, x, eps, bias=True):
        size = x.shape[-1]
        weight = self.get(name + ".weight", size, mean=1.0, std=0.3)
        return F.layer_norm(x, (size,), weight, self.bias(name, size) if bias else None, eps)

    def rms_norm(self, name, x, eps):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.get(name + ".weight", x.shape[-1], mean=1.0, std=0.3)

    def head(self, name, x, count, embedding=None, bias=False):
        """The last projection, which may be the embedding (a tensor's name)."""
        if embedding:
            self.again(embedding, name + ".weight")
        return self.linear(name, x, count, bias)


ACTIVATIONS = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "gelu": F.gelu, "relu": F.relu, "silu": F.silu, "tanh": torch.tanh,
    "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]  # two names of one


def unpadded(mask):
    """What is added to scores, so that no query sees a key that the mask (batch, keys) has a 0 for."""
    return None if mask is None else torch.zeros(mask.shape).masked_fill(mask == 0, -math.inf)[:, None, None, :]


# ------------------------------------------------------------------ attention; heads are (batch, heads, length, size)
def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attention(q, k, v, scale=1.0, bias=None, causal=False, window=None, cap=None):
    """Fewer key heads serve equal runs of queries; the heads stand beside each other in the result.

    A token sees no more than `window` tokens, itself among them. Scores stay below `cap`."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias
    if window:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-window), -math.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


# ------------------------------------------------------------------ positions
def angles(length, size, base, stretch=1.0):
    """Of each position and pair; `stretch` divides the positions (linear scaling)."""
    return torch.outer(torch.arange(length) / stretch, base ** (-torch.arange(0, size, 2) / size))


def stretched_bands(angle, factor, low, high, original):
    """LLaMA 3's scaling: slow rotations are stretched by `factor`, fast ones are not, those between partly.

    `low` and `high` say how often a rotation goes round within `original` positions at the two edges."""
    frequency = angle[1]
    turns = original * frequency / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return angle * (share + (1 - share) / factor)


def rotate_halves(x, angle):
    """Element i of a head belongs to element i + half of those that rotate; elements behind these stay."""
    half = angle.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest], -1)


def rotate_pairs(x, angle):
    """Element 2i of a head belongs to element 2i + 1; elements behind those that rotate stay."""
    turned, rest = x[..., : 2 * angle.shape[-1]], x[..., 2 * angle.shape[-1]:]
    a, b = turned[..., 0::2], turned[..., 1::2]
    turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def alibi_slopes(heads):
    """ALiBi: a power of two of heads, each half as steep as some heads before."""
    return 2.0 ** (-8 / heads * torch.arange(1, heads + 1))


def alibi_bias(slopes, length):
    """How far the key is behind the query, times each head's slope."""
    return slopes[:, None, None] * (torch.arange(length)[None, :] - torch.arange(length)[:, None])


def relative_bias(table, length, both_ways, farthest=128):
    """T5: a table (buckets, heads) of what to add for each distance; far ones share buckets, of logarithmic width."""
    buckets = table.shape[0] // (2 if both_ways else 1)
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    ahead = (distance > 0) * buckets if both_ways else 0
    distance = distance.abs() if both_ways else (-distance).clamp(min=0)
    exact = buckets // 2
    far = exact + (torch.log(distance.clamp(min=1) / exact) / math.log(farthest / exact) * (buckets - exact)).long()
    return table[ahead + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))].permute(2, 0, 1)
