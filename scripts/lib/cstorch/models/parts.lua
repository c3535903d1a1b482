-- What decoders differ in: how queries, keys and values come out of matrices, and what a feed-forward part is.

local activations = require "cstorch.models.activations"
local positions = require "cstorch.nn.positions"
local tensors = require "cstorch.tensors"

local parts = {}

---Queries of x, keys and values of the source, which is x unless a stack attends to another one.
---@alias cstorch.models.Project
---| fun(w: cstorch.models.Weights, x: cstorch.Tensor, source?: cstorch.Tensor): cstorch.Tensor, cstorch.Tensor, cstorch.Tensor
---A part of a layer; of feed-forward parts, `inner` takes what the activation gives.
---@alias cstorch.models.Compute
---| fun(w: cstorch.models.Weights, x: cstorch.Tensor, inner?: fun(h: cstorch.Tensor): cstorch.Tensor): cstorch.Tensor

---[batch, length, heads · width] to [batch, heads, length, width].
---@param x cstorch.Tensor
---@param width integer   of a head
---@return cstorch.Tensor
function parts.heads(x, width)
  return x:reshape({ x:size(0), x:size(1), -1, width }):permute { 0, 2, 1, 3 }
end

--- Parts of given extents along a dim.
local function cut(x, dim, extents)
  local out, start = {}, 0
  for i, extent in ipairs(extents) do
    out[i] = x:slice(dim, start, start + extent)
    start = start + extent
  end
  return unpack(out)
end

--- [batch, length, blocks, parts, width] without what `keep` leaves out: part `i` of each block, as heads.
local function part_of_blocks(x, first, count)
  local picked = x:slice(3, first, first + count)
  return picked:reshape({ x:size(0), x:size(1), -1, x:size(4) }):permute { 0, 2, 1, 3 }
end

---A matrix each for queries, keys and values.
---@param q string   names
---@param k string
---@param v string
---@param width integer   of a head
---@return cstorch.models.Project
function parts.apart(q, k, v, width)
  return function(w, x, source)
    source = source or x
    return parts.heads(w:linear(q, x), width), parts.heads(w:linear(k, source), width), parts.heads(w:linear(v, source), width)
  end
end

---One matrix: all queries, then all keys, then all values.
---@param matrix "linear"|"conv1d"
---@param name string
---@param heads integer
---@param groups integer   heads of keys and values
---@param width integer    of a head
---@return cstorch.models.Project
function parts.stacked(matrix, name, heads, groups, width)
  return function(w, x)
    local q, k, v = cut(w[matrix](w, name, x), -1, { heads * width, groups * width, groups * width })
    return parts.heads(q, width), parts.heads(k, width), parts.heads(v, width)
  end
end

---One matrix: for each group of heads its queries, one key and one value.
---@param name string
---@param heads integer
---@param groups integer
---@param width integer
---@return cstorch.models.Project
function parts.per_group(name, heads, groups, width)
  local shared = heads / groups
  return function(w, x)
    local blocks = w:linear(name, x):reshape { x:size(0), x:size(1), groups, shared + 2, width }
    return part_of_blocks(blocks, 0, shared), part_of_blocks(blocks, shared, 1), part_of_blocks(blocks, shared + 1, 1)
  end
end

---One matrix: a quarter of the queries, of the values and of the keys, four times (CodeGen).
---@param name string
---@param heads integer
---@param width integer
---@return cstorch.models.Project
function parts.quarters(name, heads, width)
  local each = heads / 4
  return function(w, x)
    local blocks = w:linear(name, x):reshape { x:size(0), x:size(1), 4, 3 * each, width }
    return part_of_blocks(blocks, 0, each), part_of_blocks(blocks, 2 * each, each), part_of_blocks(blocks, each, each)
  end
end

---The slopes of ALiBi, times a factor: a buffer, or what follows from the number of heads where a checkpoint lacks it.
---@param heads integer
---@param factor number
---@param name? string   of the buffer
---@return fun(w: cstorch.models.Weights): cstorch.Tensor   # [heads]
function parts.slopes(heads, factor, name)
  return function(w)
    local own = name and w:find(name)
    return (own and own:reshape { -1 } or positions.alibi_slopes(heads)) * factor
  end
end

---down(activation(up(x))).
---@param matrix "linear"|"conv1d"
---@param up string     names
---@param down string
---@param activation string
---@return cstorch.models.Compute
function parts.plain(matrix, up, down, activation)
  local act = activations.plain(activation)
  return function(w, x, inner)
    local hidden = act(w[matrix](w, up, x))
    return w[matrix](w, down, inner and inner(hidden) or hidden)
  end
end

---down(up(x) · activation(gate(x))).
---@param matrix "linear"|"conv1d"
---@param names { up: string, gate: string, down: string }
---@param act fun(x: cstorch.Tensor): cstorch.Tensor
---@return cstorch.models.Compute
function parts.gated(matrix, names, act)
  return function(w, x, inner)
    local hidden = w[matrix](w, names.up, x) * act(w[matrix](w, names.gate, x))
    return w[matrix](w, names.down, inner and inner(hidden) or hidden)
  end
end

---down(up(x) · activation(gate(x))), with gate and up in one matrix, in this order (Phi-3).
---@param both string   names
---@param down string
---@param act fun(x: cstorch.Tensor): cstorch.Tensor
---@return cstorch.models.Compute
function parts.gate_and_up(both, down, act)
  return function(w, x)
    local joined = w:linear(both, x)
    local half = joined:size(-1) / 2
    return w:linear(down, joined:slice(-1, half, 2 * half) * act(joined:slice(-1, 0, half)))
  end
end

---@class cstorch.models.Experts
---@field gate string        the router's name
---@field count integer
---@field chosen integer     experts of a token
---@field is_normed boolean   the weights of the chosen experts add up to 1

---For each token the weights of its best experts, 0 for the others.
---@param scores cstorch.Tensor
---@param own cstorch.models.Experts
---@return cstorch.Tensor weights, cstorch.Tensor all, cstorch.Tensor is_chosen   each [..., experts]; those of all experts; 1 or 0
local function weights_of(scores, own)
  local all = scores:softmax(-1)
  local _, at = all:detach():topk(own.chosen, -1)
  local is_chosen = at:unsqueeze(-1):eq(tensors.arange(own.count):to(at.dtype)):to(all.dtype):sum(-2)
  local best = all * is_chosen
  return own.is_normed and best / best:sum(-1, { keepdim = true }) or best, all, is_chosen
end

---A mixture: each token goes to the experts with the highest scores. All experts are computed for all tokens.
---@param w cstorch.models.Weights
---@param x cstorch.Tensor   [batch, length, width]
---@param own cstorch.models.Experts
---@param expert fun(i: integer): cstorch.models.Compute   from 0
---@param shared? cstorch.models.Compute[]                 that each token goes to
---@return cstorch.Tensor
function parts.experts(w, x, own, expert, shared)
  local weights, all, is_chosen = weights_of(w:linear(own.gate, x), own)
  if w.routes then table.insert(w.routes, { all = all, is_chosen = is_chosen }) end
  local out
  for i = 0, own.count - 1 do
    local one = expert(i)(w, x) * weights:slice(-1, i, i + 1)
    out = out and out + one or one
  end
  for _, other in ipairs(shared or {}) do out = out + other(w, x) end
  return out
end

return parts
