-- Functions that make a tensor that the other side lacks: a mask, positions, frequencies, slopes, or one number everywhere. A new kind of
-- such a tensor is one more function of this file.

local definitions = require "cbk.infer.definitions"
local sizes = require "cbk.infer.sizes"
local source = require "cbk.infer.source"
local trials = require "cbk.infer.trials"

local makers = {}

---@class Maker
---@field text string       an expression: a function of `at` and the tensor beside it
---@field expected string   … a function of a tensor that is read and `at`: what such a tensor is, so that nothing else is dropped
---@field assumes? string   numbers of the pair that `text` has: "a mask of 9 positions"
---@field needs? string[]     definitions
---@field extent? integer   the number, if it may be that of another tensor

local number = source.number

---@class MakerTrial   A tensor that one side lacks, and what may explain it.
---@field item Item
---@field configs { left: Dict|nil, right: Dict|nil }
---@field rows? Tensor   of the rule that will write it

---@alias AddMaker fun(maker: Maker)

---@param trial MakerTrial
---@param add AddMaker
local function scalar(trial, add)
  local item = trial.item
  if #item.shape > 0 or item.dtype ~= "float32" then return end
  local value = item.tensor:item()
  local is_certain = value == 0 or math.abs(value) == 1 or math.abs(value) >= 1000 -- what masks are filled with
  add { text = ("actions.buffer.scalar(%s)"):format(number(value)),
    expected = ('function() return cbk.full({}, %s, { dtype = "float32" }) end'):format(number(value)),
    assumes = not is_certain and ("the number %.9g"):format(value) or nil }
end

---@param trial MakerTrial
---@param add AddMaker
local function mask(trial, add)
  local shape, dtype = trial.item.shape, trial.item.dtype
  local n = shape[4]
  if #shape ~= 4 or shape[1] ~= 1 or shape[2] ~= 1 or shape[3] ~= n then return end
  local expected = "function(t) return cbk.tril(t:shape(), { dtype = t.dtype }) end"
  local field = trial.configs.right and sizes.positions(trial.configs.right, n)
  if field then add { text = "actions.buffer.causal_mask " .. source.text(field), expected = expected } end
  add { text = ('function() return cbk.tril({ 1, 1, %d, %d }, { dtype = "%s" }) end'):format(n, n, dtype), expected = expected,
    assumes = ("a mask of %d positions"):format(n), extent = n }
end

---@param trial MakerTrial
---@param add AddMaker
local function positions(trial, add)
  local shape, rows = trial.item.shape, trial.rows
  local n = shape[2]
  if #shape ~= 2 or shape[1] ~= 1 or trial.item.dtype ~= "int64" or not rows or rows:shape()[1] < n then return end
  local field = trial.configs.left and sizes.positions(trial.configs.left, n) or "max_position_embeddings" -- else as many as rows
  add { text = "actions.buffer.positions " .. source.text(field),
    expected = 'function(t) return actions.buffer.positions "n" ({ left = {} }, t:transpose(0, 1)) end' }
end

---@param trial MakerTrial
---@param add AddMaker
local function frequencies(trial, add)
  local item, configs = trial.item, trial.configs
  if #item.shape ~= 1 or item.dtype ~= "float32" then return end
  local theta = configs.left and configs.left.rope_theta
  for _, base in ipairs { theta ~= nil and "at.left.rope_theta" or "10000", "10000" } do
    local given, of_config = base:find "at" and "t, at" or "t", base:find "at" and "function(at) return %s(at) end" or "%s"
    local text = ("actions.rotary.frequencies(%s)"):format(base)
    local expected = ("function(%s) return %s { right = { rotary_dim = 2 * t:numel() } } end"):format(given, text)
    if configs.right then add { text = of_config:format(text), expected = expected } end
    if not configs.right then
      add { text = ("function() return %s { right = { rotary_dim = %d } } end"):format(text, 2 * item.numel), expected = expected,
        assumes = ("frequencies of %d rotated rows and base 10000"):format(2 * item.numel), extent = item.numel }
    end
  end
end

---@param trial MakerTrial
---@param add AddMaker
local function slopes(trial, add)
  local shape = trial.item.shape
  if #shape ~= 2 or shape[2] ~= 1 then return end
  add { text = "actions.buffer.alibi_slopes", expected =
    'function(t) return actions.buffer.alibi_slopes { right = { position_embedding_type = "alibi", num_heads = t:shape()[1] } } end' }
end

---One number everywhere, with extents of the config, of the tensor beside it, or of the pair.
---@param trial MakerTrial
---@param add AddMaker
local function equal_numbers(trial, add)
  local item, configs, rows = trial.item, trial.configs, trial.rows
  local stats = #item.shape > 0 and item.tensor:stats()
  if not stats or not stats.min or stats.min ~= stats.max or stats.nan + stats.inf > 0 then return end
  local extents, value, given, first = {}, tonumber(stats.min), { at = false, t = false }, nil
  for i, n in ipairs(item.shape) do
    local field = n > 1 and configs.right and sizes.length(configs.right, "right", n, item.key)
    local is_row = not field and n > 1 and rows and rows:shape()[1] == n
    if field then given.at = true elseif is_row then given.t = true elseif n > 1 then first = first or n end
    extents[i] = field or is_row and "t:shape()[1]" or tostring(n)
  end
  local arguments = given.t and (given.at and "at, t" or "_, t") or given.at and "at" or ""
  local is_certain = not first and (value == 0 or value == 1)
  add { text = ('function(%s) return cbk.full({ %s }, %s, { dtype = "%s" }) end'):format(arguments, table.concat(extents, ", "),
      number(value), item.dtype),
    expected = ("function(t) return cbk.full(t:shape(), %s, { dtype = t.dtype }) end"):format(number(value)),
    assumes = not is_certain and ("%g in all of %s"):format(value, table.concat(item.shape, "x")) or nil, extent = first,
    needs = { table.concat(extents):find("agreed(", 1, true) and "agreed" or nil } }
end

local MOST_BYTES = 2 ^ 24 -- of what is made to be compared: a file of 1 KB can announce a terabyte of equal numbers

local KINDS = { scalar, mask, positions, frequencies, slopes, equal_numbers } -- the first that fits counts

---Whether both functions of a maker give the tensor.
---@param maker Maker
---@param trial MakerTrial
local function fits(maker, trial)
  local item, left, right = trial.item, trial.configs.left or {}, trial.configs.right or {}
  local fine, made = pcall(function()
    local at = { left = left, right = right, side = "left", key = item.key }
    return trials.same_values(definitions.evaluate { text = maker.text, needs = maker.needs }(at, trial.rows), item.tensor)
      and trials.same_values(definitions.evaluate { text = maker.expected }(item.tensor, at), item.tensor)
  end)
  if not fine and type(made) == "table" and made.code == "interrupted" then error(made, 0) end
  return fine and made
end

---How a tensor that the other side lacks is made.
---@param item Item
---@param configs { left: Dict|nil, right: Dict|nil }
---@param rows? Tensor   of the rule that will write it
---@return Maker|nil
function makers.find(item, configs, rows)
  local trial, found = { item = item, configs = configs, rows = rows }, nil
  if item.tensor:nbytes() > MOST_BYTES then return nil end
  for _, kind in ipairs(KINDS) do
    kind(trial, function(maker) found = found or fits(maker, trial) and maker or nil end)
    if found then return found end
  end
end

return makers
