-- What decoders compute, from token ids to logits.

local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local positions = require "cstorch.nn.positions"
local rotary = require "cstorch.models.rotary"
local tensors = require "cstorch.tensors"

local decoder = {}

---@class cstorch.models.Decoder   A model with its numbers and the names of its tensors. Names in a layer are without the layer's prefix.
---@field place string   what is before all names but the head's: "model."
---@field depth integer
---@field head_width integer
---@field embedding string
---@field embedding_scale? number
---@field embedding_norm? string
---@field learned? { name: string, offset: integer }   the table of positions
---@field rotary? cstorch.models.Rotary
---@field slopes? fun(w: cstorch.models.Weights): cstorch.Tensor   of ALiBi: [heads]
---@field layer string             "model.layers.%d."
---@field norm cstorch.models.Norm
---@field norms { attention: string, feed_forward?: string, after_attention?: string, after_feed_forward?: string }
---@field is_parallel? boolean     attention and feed-forward part read the same input; without `norms.feed_forward`, the same norm of it
---@field project cstorch.models.Project
---@field head_norms? { q: string, k: string, how: cstorch.models.Norm }
---@field scale fun(layer: integer): number         of scores
---@field cap? number                               of scores
---@field window? fun(layer: integer): integer|nil  keys that a query sees
---@field output cstorch.models.Compute             after attention
---@field feed_forward cstorch.models.Compute
---@field final_norm string
---@field head? { name: string, scale?: number, cap?: number }   nil: the model ends with its last norm

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights   of the layer
---@param x cstorch.Tensor           [batch, length, width]
---@param layer integer              from 0
---@param place { turns?: cstorch.Turns, slopes?: cstorch.Tensor }
local function attention(d, w, x, layer, place)
  local q, k, v = d.project(w, x)
  local norms = d.head_norms
  if norms then q, k = w:norm(norms.q, q, norms.how), w:norm(norms.k, k, norms.how) end
  if place.turns then
    q, k = positions.rotate(q, place.turns, d.rotary.halves), positions.rotate(k, place.turns, d.rotary.halves)
  end
  local seen = functional.scaled_dot_product_attention(q, k, v, { causal = true, scale = d.scale(layer), cap = d.cap,
    window = d.window and d.window(layer), slopes = place.slopes })
  return d.output(w, seen:permute({ 0, 2, 1, 3 }):reshape { x:size(0), x:size(1), -1 })
end

local function block(d, w, x, layer, place)
  local names, norm = d.norms, d.norm
  local normed = w:norm(names.attention, x, norm)
  local attended = attention(d, w, normed, layer, place)
  if names.after_attention then attended = w:norm(names.after_attention, attended, norm) end
  if d.is_parallel then
    return x + attended + d.feed_forward(w, names.feed_forward and w:norm(names.feed_forward, x, norm) or normed)
  end
  x = x + attended
  local out = d.feed_forward(w, w:norm(names.feed_forward, x, norm))
  if names.after_feed_forward then out = w:norm(names.after_feed_forward, out, norm) end
  return x + out
end

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights
---@param ids cstorch.Tensor
local function embedded(d, w, ids)
  local x = w:embedding(d.embedding, ids)
  if d.learned then
    local at = tensors.arange(ids:size(1)):to "int64" + d.learned.offset
    local rows = w:get(d.learned.name .. ".weight"):size(0)
    errors.check(ids:size(1) + d.learned.offset <= rows, "value", "the model has %d positions, and the text %d tokens",
      rows - d.learned.offset, ids:size(1))
    x = x + w:embedding(d.learned.name, at)
  end
  if d.embedding_norm then x = w:norm(d.embedding_norm, x, d.norm) end
  return d.embedding_scale and x * d.embedding_scale or x
end

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights
---@param ids cstorch.Tensor   [batch, length], whole numbers
---@param seen? fun(place: string, x: cstorch.Tensor)   gets what leaves the embedding, each layer and the last norm
---@return cstorch.Tensor      # logits [batch, length, vocabulary], or [batch, length, width] of a model without a head
function decoder.forward(d, w, ids, seen)
  seen = seen or function() end
  local body = w:below(d.place)
  local x = embedded(d, body, ids)
  seen("the embedding", x)
  local place = { turns = d.rotary and rotary.turns(d.rotary, ids:size(1)), slopes = d.slopes and d.slopes(body) }
  for layer = 0, d.depth - 1 do
    x = block(d, body:below(d.layer:format(layer)), x, layer, place)
    seen(("layer %d"):format(layer), x)
  end
  x = body:norm(d.final_norm, x, d.norm)
  seen("the last norm", x)
  if not d.head then return x end
  local logits = w:linear(d.head.name, x)
  if d.head.scale then logits = logits * d.head.scale end
  local cap = d.head.cap
  return cap and (logits / cap):tanh() * cap or logits
end

return decoder
