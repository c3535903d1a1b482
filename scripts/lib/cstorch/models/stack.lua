-- Layers of encoders, and of decoders that also attend to an encoder's output: attention, attention to the other side, feed-forward part,
-- each added to what it reads.

local functional = require "cstorch.nn.functional"
local tensors = require "cstorch.tensors"

local stack = {}

---@class cstorch.models.Attention
---@field project cstorch.models.Project
---@field scale number   of scores
---@field output cstorch.models.Compute

---@class cstorch.models.Stack   Names in a layer are without the layer's prefix.
---@field layer string              "encoder.layers.%d."
---@field depth integer
---@field inner? integer            width of all queries of a token
---@field seen_as? string           how a layer is called: "layer %d"
---@field norm cstorch.models.Norm
---@field norms { attention: string, cross?: string, feed_forward: string }
---@field is_norm_first boolean     before each part, else after what it is added to
---@field attention cstorch.models.Attention
---@field cross? cstorch.models.Attention
---@field feed_forward cstorch.models.Compute
---@field final_norm? string

---@class cstorch.models.StackDropout   Probabilities with which elements become 0.
---@field embedding number
---@field attention number   of weights of values
---@field residual number    of what is added to the hidden states
---@field inner number       of what the activation of a feed-forward part gives

---@class cstorch.models.StackPass
---@field mask? cstorch.Tensor      where keys are seen: bools that broadcast to [batch, heads, queries, keys]
---@field bias? cstorch.Tensor      added to scores: [heads, queries, keys]
---@field memory? cstorch.Tensor    the encoder's output
---@field memory_mask? cstorch.Tensor
---@field dropout cstorch.models.StackDropout
---@field seen fun(place: string, x: cstorch.Tensor)
---@field recomputed? cstorch.models.Recomputed   inner values of layers are not kept, but computed again

stack.NO_DROPOUT = { embedding = 0, attention = 0, residual = 0, inner = 0 }

---Where padding does not hide keys.
---@param attention_mask cstorch.Tensor|nil   [batch, keys], 0 at padding
---@return cstorch.Tensor|nil                 # [batch, 1, 1, keys]
function stack.padding(attention_mask)
  return attention_mask and attention_mask:ne(0):reshape { attention_mask:size(0), 1, 1, attention_mask:size(1) }
end

---Where later keys are hidden.
---@param length integer
---@return cstorch.Tensor   # [length, length]
function stack.earlier(length)
  local at = tensors.arange(length)
  return at:unsqueeze(0):le(at:unsqueeze(1))
end

---What is added to scores that have a bias. The kernel gives no gradient for it, so these scores are computed one by one.
local function biased(q, k, v, scale, bias, p)
  local weights = (q:matmul(k:permute { 0, 1, 3, 2 }) * scale + bias):softmax(-1)
  return functional.dropout(weights, { p = p }):matmul(v)
end

---@param own cstorch.models.Attention
---@param w cstorch.models.Weights      of the layer
---@param x cstorch.Tensor              [batch, queries, width]
---@param source cstorch.Tensor         [batch, keys, width]
---@param mask cstorch.Tensor|nil
---@param bias cstorch.Tensor|nil       with -inf where the mask hides keys
---@param p number
local function attention(own, w, x, source, mask, bias, p)
  local q, k, v = own.project(w, x, source)
  local seen = bias and biased(q, k, v, own.scale, bias, p)
    or functional.scaled_dot_product_attention(q, k, v, { scale = own.scale, mask = mask, dropout_p = p })
  return own.output(w, seen:permute({ 0, 2, 1, 3 }):reshape { x:size(0), x:size(1), -1 })
end

---@param s cstorch.models.Stack
---@param w cstorch.models.Weights
---@param x cstorch.Tensor      [batch, length, width]
---@param pass cstorch.models.StackPass
---@return cstorch.Tensor
function stack.run(s, w, x, pass)
  local p, bias = pass.dropout, pass.bias
  if bias and pass.mask then bias = tensors.where(pass.mask, bias, -math.huge) end
  local function added(layer, name, before, compute)
    local out = functional.dropout(compute(s.is_norm_first and layer:norm(name, before, s.norm) or before), { p = p.residual })
    return s.is_norm_first and before + out or layer:norm(name, before + out, s.norm)
  end
  local function inner(h) return functional.dropout(h, { p = p.inner }) end
  local function compute(layer, inputs)
    local out = added(layer, s.norms.attention, inputs.x, function(y)
      return attention(s.attention, layer, y, y, pass.mask, inputs.bias, p.attention)
    end)
    if s.cross then
      out = added(layer, s.norms.cross, out, function(y)
        return attention(s.cross, layer, y, inputs.memory, pass.memory_mask, nil, p.attention)
      end)
    end
    return added(layer, s.norms.feed_forward, out, function(y) return s.feed_forward(layer, y, inner) end)
  end
  local again, inputs = pass.recomputed, { x = x, bias = bias, memory = pass.memory }
  if again then
    for name, one in pairs(inputs) do inputs[name] = again:input(one) end
    x = inputs.x
  end
  for i = 0, s.depth - 1 do
    local layer, before = w:below(s.layer:format(i)), { x = x, bias = inputs.bias, memory = inputs.memory }
    if again then x = again:layer(before, function(own) return compute(layer, own) end) else x = compute(layer, before) end
    pass.seen((s.seen_as or "layer %d"):format(i), x)
  end
  return s.final_norm and w:norm(s.final_norm, x, s.norm) or x
end

return stack
