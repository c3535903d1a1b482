-- Texts that a model continues: one token after the other, with the keys and values of those before.

local cbk = require "cbk"
local decoder = require "cstorch.models.decoder"
local errors = require "cstorch.errors"
local tensors = require "cstorch.tensors"
local weights = require "cstorch.models.weights"

local generate = {}

---@class cstorch.models.GenerateOptions
---@field temperature? number   scores are divided by it; 0 (default): the most likely token
---@field top_k? integer        only the k most likely tokens
---@field top_p? number         only the most likely tokens that together have this probability
---@field seed? integer         of the random numbers; default 0
---@field stop? integer         a token that ends the text

--- Numbers in [0, 1), the same for a seed.
local function random_numbers(seed)
  local numbers, used, drawn = {}, 0, 0
  return function()
    if used == #numbers then
      numbers, used, drawn = cbk.rand({ 256 }, { seed = seed * 65536 + drawn, dtype = "float64" }):tolist(), 0, drawn + 1
    end
    used = used + 1
    return numbers[used]
  end
end

local LEAST_TEMPERATURE = 2 ^ -126 -- smaller numbers lose digits in float32, or are 0

---A token by its probability, among the most likely ones.
---@param logits cstorch.Tensor   [vocabulary]
---@param options cstorch.models.GenerateOptions
---@param random fun(): number
---@return integer
local function sample(logits, options, random)
  local all = logits:size(0)
  local scores, ids = logits:topk(math.min(options.top_k or all, all), -1)
  -- Differences to the largest score: however small the temperature is, that one stays 0, and the others become at most -inf.
  local divided = (scores - scores:slice(0, 0, 1)) / math.max(options.temperature, LEAST_TEMPERATURE)
  local likely, total = divided:softmax(-1):tolist(), 0
  local count = 0
  repeat
    count = count + 1
    total = total + likely[count]
  until count == #likely or total >= (options.top_p or 1)
  local left, i = random() * total, 1
  while i < count and left >= likely[i] do left, i = left - likely[i], i + 1 end
  return ids:slice(0, i - 1, i):item()
end

local function check_options(options)
  local function check(name, is_fine, expected)
    local value = options[name]
    errors.check(value == nil or type(value) == "number" and is_fine(value), "value", "generate: %s must be %s, not %s", name, expected,
      errors.show(value))
  end
  check("temperature", function(value) return value >= 0 and value < math.huge end, "a number from 0")
  check("top_k", function(value) return value >= 1 and value == math.floor(value) end, "a whole number from 1")
  check("top_p", function(value) return value > 0 and value <= 1 end, "above 0 and at most 1")
end

---Continues a text: an iterator of token ids, which ends with the stop token (not given), or where the model has no more positions.
---@param model cstorch.models.Trainable
---@param ids integer[]   at least one
---@param options? cstorch.models.GenerateOptions
---@return fun(): integer|nil
function generate.tokens(model, ids, options)
  options = options or {}
  check_options(options)
  errors.check(model.description.continues, "value", "generate: %s does not continue texts; decoders do", model.class_name)
  errors.check(#ids > 0, "value", "generate: expected at least one token to begin with")
  local w, cache, random = weights.new(model.values), { length = 0 }, random_numbers(options.seed or 0)
  local is_greedy, following = (options.temperature or 0) == 0, ids
  return function()
    if cache.length + #following > model:longest() then return nil end
    return tensors.no_grad(function()
      local next_ids = tensors.tensor({ following }, { dtype = "int64" })
      local last = decoder.forward(model.description, w, next_ids, { cache = cache, only_last = true }):select(1, 0):select(0, 0)
      local id = is_greedy and last:argmax(-1):item() or sample(last, options, random)
      if id == options.stop then return nil end
      following = { id }
      return id
    end)
  end
end

return generate
