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
---@field dropout? cstorch.models.Dropout                        nil: none
---@field inner? integer                                         width of all queries of a token
---@field rates? table<string, number>                           factors of learning rates by globs, of muP
local Decoder = {}
Decoder.__index = Decoder

---@class cstorch.models.Dropout   Probabilities with which elements become 0 in training.
---@field embedding number
---@field attention number   of weights of values
---@field residual number    of what is added to the hidden states

---@class cstorch.models.Pass   How a forward pass runs.
---@field training? boolean                               with dropout
---@field routes? cstorch.models.Route[]                   gets those of the mixtures
---@field seen? fun(place: string, x: cstorch.Tensor)      gets what leaves the embedding, each layer and the last norm
---@field cache? cstorch.models.Cache                      keys and values of the tokens before these; gets those of these tokens
---@field recomputed? cstorch.models.Recomputed            inner values of layers are not kept, but computed again
---@field only_last? boolean                              the logits of the last token alone

---@class cstorch.models.Cache   Keys and values of each layer, from 0.
---@field length integer   tokens
---@field [integer] { k: cstorch.Tensor, v: cstorch.Tensor }   [batch, groups, more tokens, width]

---@class cstorch.models.Place   What all layers of a pass share.
---@field turns? cstorch.Turns
---@field slopes? cstorch.Tensor
---@field dropout cstorch.models.Dropout
---@field cache? cstorch.models.Cache

local NO_DROPOUT = { embedding = 0, attention = 0, residual = 0 }

---@param x cstorch.Tensor
---@param p number
local function dropped(x, p) return p > 0 and functional.dropout(x, { p = p }) or x end

---Writes rows behind earlier ones, into memory with room for more.
---@param room? cstorch.Tensor   [batch, groups, more tokens, width]
---@param first integer          the tokens before
---@param x cstorch.Tensor       [batch, groups, tokens, width]
---@return cstorch.Tensor room, cstorch.Tensor all   # all of them: a view of the room
local function behind(room, first, x)
  local last = first + x:size(2)
  if not room or room:size(2) < last then
    local larger = tensors.zeros({ x:size(0), x:size(1), 2 * last, x:size(3) }, { dtype = x.dtype })
    if room then larger:slice(2, 0, first):copy_(room:slice(2, 0, first)) end
    room = larger
  end
  room:slice(2, first, last):copy_(x)
  return room, room:slice(2, 0, last)
end

---Keys and values with those of earlier tokens before them.
---@param cache cstorch.models.Cache
---@param layer integer
local function with_earlier(cache, layer, k, v)
  local kept = cache[layer] or {}
  cache[layer] = kept
  kept.k, k = behind(kept.k, cache.length, k)
  kept.v, v = behind(kept.v, cache.length, v)
  return k, v
end

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights   of the layer
---@param x cstorch.Tensor           [batch, length, width]
---@param layer integer              from 0
---@param place cstorch.models.Place
local function attention(d, w, x, layer, place)
  local q, k, v = d.project(w, x)
  local norms = d.head_norms
  if norms then q, k = w:norm(norms.q, q, norms.how), w:norm(norms.k, k, norms.how) end
  if place.turns then
    q, k = positions.rotate(q, place.turns, d.rotary.halves), positions.rotate(k, place.turns, d.rotary.halves)
  end
  if place.cache then k, v = with_earlier(place.cache, layer, k, v) end
  local seen = functional.scaled_dot_product_attention(q, k, v, { causal = true, scale = d.scale(layer), cap = d.cap,
    window = d.window and d.window(layer), slopes = place.slopes, dropout_p = place.dropout.attention })
  return dropped(d.output(w, seen:permute({ 0, 2, 1, 3 }):reshape { x:size(0), x:size(1), -1 }), place.dropout.residual)
end

local function block(d, w, x, layer, place)
  local names, norm, p = d.norms, d.norm, place.dropout.residual
  local normed = w:norm(names.attention, x, norm)
  local attended = attention(d, w, normed, layer, place)
  if names.after_attention then attended = w:norm(names.after_attention, attended, norm) end
  if d.is_parallel then
    return x + attended + dropped(d.feed_forward(w, names.feed_forward and w:norm(names.feed_forward, x, norm) or normed), p)
  end
  x = x + attended
  local out = dropped(d.feed_forward(w, w:norm(names.feed_forward, x, norm)), p)
  if names.after_feed_forward then out = w:norm(names.after_feed_forward, out, norm) end
  return x + out
end

---The same without its inner values. The probabilities of a mixture get gradients from the loss, too.
---@param again cstorch.models.Recomputed
local function recomputed_block(d, w, x, layer, place, again)
  local routes
  local out, all = again:layer({ x = x }, function(inputs)
    local own = w:routed {}
    local y, list = block(d, own, inputs.x, layer, place), {}
    routes = own.routes
    for i, route in ipairs(routes) do list[i] = route.all end
    return y, list
  end)
  for i, route in ipairs(w.routes and routes or {}) do
    table.insert(w.routes, { all = all[i], is_chosen = route.is_chosen })
  end
  return out
end

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights
---@param ids cstorch.Tensor
---@param first integer        the position of the first token
local function embedded(d, w, ids, first)
  local x = w:embedding(d.embedding, ids)
  if d.learned then
    local last = first + ids:size(1)
    local at = tensors.arange(first + d.learned.offset, last + d.learned.offset):to "int64"
    local rows = w:get(d.learned.name .. ".weight"):size(0)
    errors.check(last + d.learned.offset <= rows, "value", "the model has %d positions, and the text %d tokens",
      rows - d.learned.offset, last)
    x = x + w:embedding(d.learned.name, at)
  end
  if d.embedding_norm then x = w:norm(d.embedding_norm, x, d.norm) end
  return d.embedding_scale and x * d.embedding_scale or x
end

---Token ids are below this.
---@param d cstorch.models.Decoder
---@param given table<string, Tensor|cstorch.Tensor>
---@return integer
function decoder.vocabulary(d, given) return tonumber(given[d.place .. d.embedding .. ".weight"]:shape()[1]) end

---The tokens that a text may have; math.huge where nothing limits them.
---@param d cstorch.models.Decoder
---@param given table<string, Tensor|cstorch.Tensor>
---@return number
function decoder.longest(d, given)
  if not d.learned then return math.huge end
  return tonumber(given[d.place .. d.learned.name .. ".weight"]:shape()[1]) - d.learned.offset
end

---@param d cstorch.models.Decoder
---@param w cstorch.models.Weights
---@param ids cstorch.Tensor   [batch, length], whole numbers
---@param pass? cstorch.models.Pass
---@return cstorch.Tensor      # logits [batch, length, vocabulary], or [batch, length, width] of a model without a head
function decoder.forward(d, w, ids, pass)
  pass = pass or {}
  local seen, cache = pass.seen or function() end, pass.cache
  local body, first = w:below(d.place), cache and cache.length or 0
  local dropout = pass.training and d.dropout or NO_DROPOUT
  local x = dropped(embedded(d, body, ids, first), dropout.embedding)
  seen("the embedding", x)
  local place = { turns = d.rotary and rotary.turns(d.rotary, first, ids:size(1)), slopes = d.slopes and d.slopes(body),
    dropout = dropout, cache = cache }
  if pass.recomputed then x = pass.recomputed:input(x) end
  for layer = 0, d.depth - 1 do
    local within = body:below(d.layer:format(layer))
    if pass.recomputed then
      x = recomputed_block(d, within, x, layer, place, pass.recomputed)
    else
      x = block(d, within, x, layer, place)
    end
    seen(("layer %d"):format(layer), x)
  end
  if cache then cache.length = first + ids:size(1) end
  if pass.only_last then x = x:slice(1, x:size(1) - 1, x:size(1)) end
  x = body:norm(d.final_norm, x, d.norm)
  seen("the last norm", x)
  if not d.head then return x end
  local logits = w:linear(d.head.name, x)
  if d.head.scale then logits = logits * d.head.scale end
  local cap = d.head.cap
  return cap and (logits / cap):tanh() * cap or logits
end

---@param fields table
---@return cstorch.models.Decoder
function decoder.new(fields) return setmetatable(fields, Decoder) end

---@param w cstorch.models.Weights
---@param batch table   of which input_ids count
---@param pass? cstorch.models.Pass
function Decoder:forward(w, batch, pass) return decoder.forward(self, w, batch.input_ids, pass) end

Decoder.vocabulary, Decoder.longest, Decoder.continues = decoder.vocabulary, decoder.longest, true
function Decoder:has_head() return self.head ~= nil end

---@return table<string, integer>   # by features: the numbers are below these
function Decoder:limits(given)
  local words = self:vocabulary(given)
  return { input_ids = words, labels = words }
end

---What a sample costs: the tokens that go through a matrix, and the operations of scores and their sums.
---@param lengths table<string, integer>   of the parts of a sample
---@return fun(name: string): integer, number
function Decoder:work(lengths)
  local length = lengths.input_ids
  return function() return length end, 2 * self.depth * length * length * self.inner
end

return decoder
