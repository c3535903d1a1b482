-- Attention and transformer layers with the parameter names of the Model Zoo.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local keywords = require "cstorch.keywords"
local layers = require "cstorch.nn.layers"
local Module = require "cstorch.nn.module"
local positions = require "cstorch.nn.positions"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local transformer = {}

local ATTENTION = {
  kv_groups = keywords.OPTIONAL, bias = true, output_bias = true, dropout = 0, inner_width = keywords.OPTIONAL, causal = false,
  window = keywords.OPTIONAL, position = keywords.OPTIONAL, rotary_dim = keywords.OPTIONAL, rope_theta = 10000,
}

---Attention of several heads. Groups of query heads may share keys and values; positions are "rotary", "alibi" or none.
transformer.MultiheadAttention = Module:subclass("MultiheadAttention", ATTENTION)
class.optional(transformer.MultiheadAttention, "slopes")

local function is_extent(value) return type(value) == "number" and value >= 1 and value == math.floor(value) end

local function check_divides(what, part, whole)
  local is_count = is_extent(part)
  check(is_count and whole % part == 0, "value", "MultiheadAttention: %s must divide %d, but is %s", what, whole, show(part))
end

---@param width integer
---@param heads integer
---@param kw table   kv_groups = heads, bias, output_bias, dropout, inner_width = width, causal, window, position, rotary_dim, rope_theta
function transformer.MultiheadAttention:init(width, heads, kw)
  Module.init(self)
  check(is_extent(width), "value", "MultiheadAttention: width must be a whole number from 1, not %s", show(width))
  local inner = kw.inner_width or width
  check(is_extent(inner), "value", "MultiheadAttention: inner_width must be a whole number from 1, not %s", show(inner))
  check_divides("the number of heads", heads, inner)
  local groups = kw.kv_groups or heads
  check_divides("kv_groups", groups, heads)
  local known = kw.position == nil or kw.position == "rotary" or kw.position == "alibi"
  check(known, "value", 'MultiheadAttention: position must be "rotary", "alibi" or nil, not %s', show(kw.position))
  check(type(kw.rope_theta) == "number" and kw.rope_theta > 0, "value", "MultiheadAttention: rope_theta must be a number > 0, not %s",
    show(kw.rope_theta))
  local head = inner / heads
  local rotary_dim = kw.rotary_dim or head
  local fits = type(rotary_dim) == "number" and rotary_dim % 2 == 0 and rotary_dim <= head
  check(kw.position ~= "rotary" or fits, "value", "MultiheadAttention: rotary_dim must be even and at most %d, not %s", head,
    show(rotary_dim))
  self.heads, self.groups, self.head_width, self.options, self.rotary_dim = heads, groups, head, kw, rotary_dim
  self.proj_q_dense_layer = layers.Linear(width, inner, { bias = kw.bias })
  self.proj_k_dense_layer = layers.Linear(width, groups * head, { bias = kw.bias })
  self.proj_v_dense_layer = layers.Linear(width, groups * head, { bias = kw.bias })
  self.proj_output_dense_layer = layers.Linear(inner, width, { bias = kw.output_bias })
  if kw.position == "alibi" then self:register_buffer("slopes", positions.alibi_slopes(heads), { persistent = false }) end
  self.dropout = layers.Dropout(kw.dropout)
end

--- [batch, length, heads · width] to [batch, heads, length, width].
local function split_heads(x, heads, width)
  return x:reshape({ x:size(0), x:size(1), heads, width }):permute { 0, 2, 1, 3 }
end

local function check_sequence(name, x)
  local is_tensor = tensors.is_tensor(x)
  check(is_tensor and x:dim() == 3, "type", "MultiheadAttention: expected %s as a tensor [batch, length, width], found %s", name,
    is_tensor and shapes.text(x) or show(x))
end

---@param q cstorch.Tensor      [batch, queries, width]
---@param k? cstorch.Tensor     [batch, keys, width]; default: q
---@param v? cstorch.Tensor     default: k
---@param options? { mask: cstorch.Tensor }   broadcast to [batch, heads, queries, keys]: added, or bools that are true where a key is seen
---@return cstorch.Tensor       # [batch, queries, width]
function transformer.MultiheadAttention:forward(q, k, v, options)
  options = keywords.complete("MultiheadAttention", { mask = keywords.OPTIONAL }, options)
  k = k or q
  v = v or k
  check_sequence("q", q)
  check_sequence("k", k)
  check_sequence("v", v)
  local kw = self.options
  local queries = split_heads(self.proj_q_dense_layer(q), self.heads, self.head_width)
  local keys = split_heads(self.proj_k_dense_layer(k), self.groups, self.head_width)
  local values = split_heads(self.proj_v_dense_layer(v), self.groups, self.head_width)
  if kw.position == "rotary" then
    local frequencies = positions.frequencies(self.rotary_dim, kw.rope_theta)
    queries = positions.rotate(queries, positions.turns(frequencies, 0, queries:size(-2)))
    keys = positions.rotate(keys, positions.turns(frequencies, 0, keys:size(-2)))
  end
  local seen = functional.scaled_dot_product_attention(queries, keys, values,
    { causal = kw.causal, window = kw.window, mask = options.mask, slopes = self.slopes })
  local joined = seen:permute({ 0, 2, 1, 3 }):reshape { q:size(0), q:size(1), self.heads * self.head_width }
  return self.dropout(self.proj_output_dense_layer(joined))
end

local ACTIVATIONS = {
  relu = functional.relu, silu = functional.silu, tanh = functional.tanh, gelu = functional.gelu,
  gelu_tanh = function(x) return functional.gelu(x, { approximate = "tanh" }) end,
}

--- A linear layer under the names of the Model Zoo's feed-forward network, with a gate if there is one.
local Projection = Module:subclass("Projection", { bias = true, gated = false })
class.optional(Projection, "linear_layer_for_glu")

function Projection:init(inputs, outputs, kw)
  Module.init(self)
  self.linear_layer = layers.Linear(inputs, outputs, { bias = kw.bias })
  if kw.gated then self.linear_layer_for_glu = layers.Linear(inputs, outputs, { bias = kw.bias }) end
end

--- Two linear layers with an activation between them; gated: up(x) · activation(gate(x)).
local FeedForward = Module:subclass "FeedForward"

function FeedForward:init(width, kw)
  Module.init(self)
  local names = {}
  for name in pairs(ACTIVATIONS) do names[#names + 1] = name end
  table.sort(names)
  check(ACTIVATIONS[kw.nonlinearity], "value", "nonlinearity must be one of %s, not %s", table.concat(names, ", "), show(kw.nonlinearity))
  self.activation = ACTIVATIONS[kw.nonlinearity]
  local inner = kw.filter_size or 4 * width
  self.ffn = layers.ModuleList {
    Projection(width, inner, { bias = kw.ffn_bias, gated = kw.gated }), Projection(inner, width, { bias = kw.ffn_bias }),
  }
  self.dropout = layers.Dropout(kw.dropout)
end

function FeedForward:forward(x)
  local up, down = self.ffn[1], self.ffn[2]
  local inner = up.linear_layer(x)
  inner = up.linear_layer_for_glu and inner * self.activation(up.linear_layer_for_glu(x)) or self.activation(inner)
  return self.dropout(down.linear_layer(inner))
end

local LAYER = {
  filter_size = keywords.OPTIONAL, nonlinearity = "gelu", gated = false, norm = "layernorm", norm_first = true, eps = 1e-5,
  cross_attention = false, ffn_bias = true,
}
for name, default in pairs(ATTENTION) do LAYER[name] = default end
LAYER.causal = nil

local function new_norm(width, kw)
  local classes = { layernorm = layers.LayerNorm, rmsnorm = layers.RMSNorm }
  check(classes[kw.norm], "value", 'norm must be "layernorm" or "rmsnorm", not %s', show(kw.norm))
  return classes[kw.norm](width, { eps = kw.eps })
end

local function new_attention(width, heads, kw, own)
  local options = {}
  for name in pairs(ATTENTION) do options[name] = kw[name] end
  for name, value in pairs(own) do options[name] = value end
  return transformer.MultiheadAttention(width, heads, options)
end

--- x + f(norm(x)), or norm(x + f(x)) when norms come last.
local function residual(norm, norm_first, x, f)
  if norm_first then return x + f(norm(x)) end
  return norm(x + f(x))
end

---Causal self-attention, cross-attention if asked for, and a feed-forward network, each with a residual and a norm.
transformer.TransformerDecoderLayer = Module:subclass("TransformerDecoderLayer", LAYER)
class.optional(transformer.TransformerDecoderLayer, "multihead_attn")

---@param width integer
---@param heads integer
---@param kw table   filter_size = 4 * width, nonlinearity, gated, norm, norm_first, eps, dropout, cross_attention, ffn_bias, and those of
---   the attention
function transformer.TransformerDecoderLayer:init(width, heads, kw)
  Module.init(self)
  self.norm_first = kw.norm_first
  self.self_attn = new_attention(width, heads, kw, { causal = true })
  self.norm1 = new_norm(width, kw)
  if kw.cross_attention then
    self.multihead_attn = new_attention(width, heads, kw, { causal = false, window = nil })
    self.norm2 = new_norm(width, kw)
  end
  self.ffn = FeedForward(width, kw)
  self.norm3 = new_norm(width, kw)
end

---@param x cstorch.Tensor   [batch, length, width]
---@param options? { memory: cstorch.Tensor, mask: cstorch.Tensor, memory_mask: cstorch.Tensor }
---@return cstorch.Tensor
function transformer.TransformerDecoderLayer:forward(x, options)
  options = keywords.complete("TransformerDecoderLayer",
    { memory = keywords.OPTIONAL, mask = keywords.OPTIONAL, memory_mask = keywords.OPTIONAL }, options)
  check(self.multihead_attn or not (options.memory or options.memory_mask), "type",
    "TransformerDecoderLayer: only a layer made with { cross_attention = true } takes memory")
  x = residual(self.norm1, self.norm_first, x, function(y) return self.self_attn(y, y, y, { mask = options.mask }) end)
  if self.multihead_attn then
    check(options.memory, "type", "TransformerDecoderLayer: a layer with cross_attention needs { memory = … }")
    local memory = options.memory
    x = residual(self.norm2, self.norm_first, x, function(y)
      return self.multihead_attn(y, memory, memory, { mask = options.memory_mask })
    end)
  end
  return residual(self.norm3, self.norm_first, x, self.ffn)
end

---Self-attention and a feed-forward network, each with a residual and a norm.
transformer.TransformerEncoderLayer = Module:subclass("TransformerEncoderLayer", LAYER)

---@param width integer
---@param heads integer
---@param kw table   as of TransformerDecoderLayer
function transformer.TransformerEncoderLayer:init(width, heads, kw)
  Module.init(self)
  check(not kw.cross_attention, "value", "TransformerEncoderLayer: cross_attention belongs to a decoder layer")
  self.norm_first = kw.norm_first
  self.self_attn = new_attention(width, heads, kw, {})
  self.norm1 = new_norm(width, kw)
  self.ffn = FeedForward(width, kw)
  self.norm2 = new_norm(width, kw)
end

---@param x cstorch.Tensor   [batch, length, width]
---@param options? { mask: cstorch.Tensor }
---@return cstorch.Tensor
function transformer.TransformerEncoderLayer:forward(x, options)
  options = keywords.complete("TransformerEncoderLayer", { mask = keywords.OPTIONAL }, options)
  x = residual(self.norm1, self.norm_first, x, function(y) return self.self_attn(y, y, y, { mask = options.mask }) end)
  return residual(self.norm2, self.norm_first, x, self.ffn)
end

return transformer
