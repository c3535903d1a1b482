-- Functions that make a tensor that the other side lacks: a mask, an identity, positions, frequencies, slopes, or a constant. Each new
-- kind of tensor is one more function of this file.

local cbk = require "cbk"
local expression = require "cbk.infer.expression"
local sizes = require "cbk.infer.sizes"
local source = require "cbk.infer.source"
local trials = require "cbk.infer.trials"
local evidence = require "converters.vocabulary.evidence"

local makers = {}

---@class Maker
---@field text string       an expression: a function of `at` and the tensor beside it
---@field expected string   an expression: a function of the tensor that is read and `at`, with the expected tensor; others are not dropped
---@field assumes? string   numbers of the pair that `text` has: "a mask of 9 positions"
---@field extent? integer   the number, if another tensor may have it too
---@field is_rounded? boolean   it makes values that differ by rounding

local number = source.number

local LEAST_OF_ANY_BASE = 4 -- frequencies: two or three are near those of some base, whatever they are
local NAMES = { "freq", "rot", "rope", "slope", "alibi" }

---Whether the name of a tensor says that it has frequencies or slopes.
---@param item Item
local function is_named_so(item)
  for _, word in ipairs(NAMES) do
    if item.key:lower():find(word, 1, true) then return true end
  end
  return false
end

---@class MakerTrial   A tensor that one side lacks, and the data that may explain it.
---@field item Item
---@field configs { left: Dict|nil, right: Dict|nil }
---@field rows? Tensor   of the rule that will write it
---@field others? Others

---@class Others   The tensors of the side that is read.
---@field read fun(key: string): Tensor|nil
---@field positions fun(n: integer): string|nil   the key of position embeddings with n rows

---@alias AddMaker fun(maker: Maker)

---@param trial MakerTrial
---@param add AddMaker
local function scalar(trial, add)
  local item = trial.item
  if #item.shape > 0 then return end
  local value = tonumber(item.tensor:to("float64"):item())
  local is_float = item.dtype == "float32"
  local is_certain = value == 0 or math.abs(value) == 1 or is_float and math.abs(value) >= 1000 -- what masks are filled with
  local text = ('function() return cbk.full({}, %s, { dtype = "%s" }) end'):format(number(value), item.dtype)
  add { text = is_float and ("actions.buffer.scalar(%s)"):format(number(value)) or text, expected = text,
    assumes = not is_certain and ("the number %.9g"):format(value) or nil }
end

---Adds a maker of a tensor. Its number of positions is from the config, from the rows of the position embeddings, or its own.
---@param trial MakerTrial
---@param n integer
---@param maker Maker   `text`: an expression over n; `assumes`: about the number itself
---@param add AddMaker
local function with_positions(trial, n, maker, add)
  local read = trial.item.side == "left" and "right" or "left"
  local field = trial.configs[read] and sizes.span(trial.configs[read], read, n, trial.item.key)
  local function with(number_of, assumes)
    add { text = ("function(at) local n = %s return %s end"):format(number_of, maker.text), expected = maker.expected, assumes = assumes,
      extent = n }
  end
  if field then with(field) end
  local key = trial.others and trial.others.positions(n)
  if key then with(("counts.rows_of(at, %s)"):format(source.text(key))) end
  with(tostring(n), maker.assumes:format(n))
end

---The extent of a square, or of several; nil for other shapes.
---@param shape integer[]
---@return integer|nil
local function square(shape)
  local n, ones = shape[#shape], 0
  for i = 1, #shape - 2 do ones = ones + (shape[i] == 1 and 1 or 0) end
  return #shape >= 2 and n > 1 and shape[#shape - 1] == n and ones == #shape - 2 and n or nil
end

---The elements of a square at three of its corners.
---@return number first, number below, number above
local function corners(item, n)
  local view = item.tensor:reshape { n, n }
  local function element(i, k) return view:slice(0, i, i + 1):slice(1, k, k + 1):to("float64"):item() end
  return element(0, 0), element(n - 1, 0), element(0, n - 1)
end

---The shape of a square as an expression over n.
local function square_shape(shape) return "{ " .. ("1, "):rep(#shape - 2) .. "n, n }" end

---@param trial MakerTrial
---@param add AddMaker
local function mask(trial, add)
  local shape = trial.item.shape
  local field = #shape == 4 and square(shape) and trial.configs.right and sizes.positions(trial.configs.right, shape[4])
  if field then
    add { text = "actions.buffer.causal_mask " .. source.text(field),
      expected = "function(t) return cbk.tril(t:shape(), { dtype = t.dtype }) end" }
  end
end

---Adds a maker for a causal mask: one number in a triangle with the diagonal, and another one elsewhere.
---@param trial MakerTrial
---@param add AddMaker
local function triangle(trial, add)
  local item = trial.item
  local n = square(item.shape)
  if not n then return end
  local first, below, above = corners(item, n)
  if below == above or first ~= below and first ~= above then return end
  local shape, assumes = square_shape(item.shape), "a mask of %d positions"
  if first == below and below == 1 and above == 0 then
    return with_positions(trial, n, { text = ('cbk.tril(%s, { dtype = "%s" })'):format(shape, item.dtype), assumes = assumes,
      expected = "function(t) return cbk.tril(t:shape(), { dtype = t.dtype }) end" }, add)
  end
  local numbers = ("%s, %s"):format(number(first), number(first == below and above or below))
  local is_upper = first == above and ", true" or ""
  with_positions(trial, n, { text = ('buffers.triangle(%s, %s, "%s"%s)'):format(shape, numbers, item.dtype, is_upper), assumes = assumes,
    expected = ("function(t) return buffers.triangle(t:shape(), %s, t.dtype%s) end"):format(numbers, is_upper) }, add)
end

---@param trial MakerTrial
---@param add AddMaker
local function identity(trial, add)
  local item = trial.item
  local n = square(item.shape)
  local first, below, above = nil, nil, nil
  if n then first, below, above = corners(item, n) end
  if first ~= 1 or below ~= 0 or above ~= 0 then return end
  local read = item.side == "left" and "right" or "left"
  local field = trial.configs[read] and sizes.length(trial.configs[read], read, n, item.key)
  add { text = ('function(at) local n = %s return buffers.identity(%s, "%s") end'):format(field or n, square_shape(item.shape), item.dtype),
    expected = "function(t) return buffers.identity(t:shape(), t.dtype) end",
    assumes = not field and ("an identity of %d rows"):format(n) or nil, extent = n }
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

---Adds a maker for 0, 1, 2, … in a vector, or in a matrix with one row or column.
---@param trial MakerTrial
---@param add AddMaker
local function numbered(trial, add)
  local item, extents, long = trial.item, {}, 0
  for i, extent in ipairs(item.shape) do
    extents[i] = extent == 1 and "1" or "n"
    long = long + (extent > 1 and 1 or 0)
  end
  if long ~= 1 or item.dtype == "bool" or item.tensor:reshape({ -1 }):slice(0, 1, 2):to("float64"):item() ~= 1 then return end
  with_positions(trial, item.numel, { text = ('buffers.numbered({ %s }, "%s")'):format(table.concat(extents, ", "), item.dtype),
    expected = "function(t) return buffers.numbered(t:shape(), t.dtype) end", assumes = "%d positions" }, add)
end

---The side whose config the converter reads.
---@param trial MakerTrial
---@return Side
local function read_side(trial) return trial.item.side == "left" and "right" or "left" end

---A config's scaling of rotary positions, as an expression: nil if it has none.
---@param config Dict|nil
---@param side Side
---@return string|nil text, number|nil base   the base in the same section
local function scaling_of(config, side)
  for _, name in ipairs(config and { "rope_scaling", "rope_parameters" } or {}) do
    if cbk.kind(config, name) == "dict" then return ("at.%s.%s"):format(side, name), config[name].rope_theta end
  end
end

---Bases of rotary frequencies that a tensor may have, the most certain first: those of the configs, and the roundest that its last element
---allows.
---@param trial MakerTrial
---@return number[]
local function bases_of(trial)
  local out, n = {}, trial.item.numel
  local function add(base)
    if base > 1 then out[#out + 1] = base end
  end
  for _, side in ipairs { read_side(trial), trial.item.side } do
    for _, base in ipairs(trial.configs[side] and sizes.rotary_bases(trial.configs[side]) or {}) do add(base) end
  end
  add(10000)
  local base = trial.item.tensor:slice(0, n - 1, n):to("float64"):item() ^ (-n / (n - 1))
  if not (base > 1 and base < 1e15) then return out end
  local has_any = n >= LEAST_OF_ANY_BASE and (trial.item.dtype == "float32" or is_named_so(trial.item))
  for digits = 1, has_any and 5 or 0 do add(tonumber(("%%.%dg"):format(digits):format(base))) end
  if trial.item.dtype == "float32" then add(math.floor(base + 0.5)) end
  return out
end

---Adds makers for frequencies with PyTorch's rounding and any whole base, also scaled as the configs say.
---@param trial MakerTrial
---@param add AddMaker
local function frequencies(trial, add)
  local item, configs = trial.item, trial.configs
  local n, key = item.numel, item.key
  if #item.shape ~= 1 or n < 2 or not item.dtype:find "float" then return end
  local dim, read = 2 * n, read_side(trial)
  local known_dim = configs[read] and sizes.rotary_dim(configs[read], read, dim, key)
  local cast = item.dtype == "float32" and "" or (":to(%q)"):format(item.dtype)
  local function with(base, known_base, scaling)
    local text = ("buffers.rotary_frequencies(%s, %s%s)"):format(known_base or number(base), "%s", scaling and ", " .. scaling or "")
    add { text = ("function(at) return %s%s end"):format(text:format(known_dim or number(dim)), cast),
      expected = ("function(t, at) return %s end"):format(text:format "2 * t:numel()"), extent = n, is_rounded = true,
      assumes = not (known_base and known_dim) and ("frequencies of %d rotated rows and base %.9g"):format(dim, base) or nil }
  end
  local function known_of(base)
    for _, side in ipairs { read, item.side } do
      local text = configs[side] and sizes.rotary_base(configs[side], side, base, key)
      if text then return text end
    end
  end
  for _, base in ipairs(bases_of(trial)) do with(base, known_of(base)) end
  for _, side in ipairs { read, item.side } do
    local scaling, own = scaling_of(configs[side], side)
    local theta = scaling and (own or configs[side].rope_theta or 10000)
    if type(theta) == "number" then with(theta, known_of(theta), scaling) end
  end
end

---Adds a maker for the slopes of ALiBi, with any dims of 1 besides that of the heads.
---@param trial MakerTrial
---@param add AddMaker
local function slopes(trial, add)
  local item, configs, extents = trial.item, trial.configs, {}
  for i, extent in ipairs(item.shape) do extents[i] = extent == 1 and "1" or tostring(extent) == tostring(item.numel) and "n" or nil end
  if #extents ~= #item.shape or #extents == 0 or not item.dtype:find "float" then return end
  if #item.shape == 2 and item.shape[2] == 1 then
    add { text = "actions.buffer.alibi_slopes", is_rounded = true, expected =
      'function(t) return actions.buffer.alibi_slopes { right = { position_embedding_type = "alibi", num_heads = t:shape()[1] } } end' }
  end
  local read = read_side(trial)
  local known = configs[read] and sizes.query_heads(configs[read], read, item.numel, item.key)
  if not known then return end -- no other tensor shows the number of heads; --same-sizes covers only their rows
  local shape = "{ " .. table.concat(extents, ", ") .. " }"
  add { text = ("function(at) local n = %s return buffers.slopes_of(n, %s, %q) end"):format(known, shape, item.dtype),
    expected = 'function(t) return buffers.slopes_of(t:numel(), t:shape(), "float32") end', is_rounded = true }
end

---Adds a maker for a constant. Its extents are from the config, from the tensor beside it, or from the pair.
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
    assumes = not is_certain and ("%g in all of %s"):format(value, table.concat(item.shape, "x")) or nil, extent = first }
end

-- Formulas that programs round differently. A tensor whose name says that it is one may have values that are near.
local ROUNDED = { frequencies, slopes }

local MOST_BYTES = 2 ^ 24 -- of a tensor that is made to be compared: a file of 1 KB can announce a terabyte of equal numbers

-- The first one that fits is used.
local KINDS = { scalar, mask, triangle, identity, positions, numbered, frequencies, slopes, equal_numbers }

---Whether both functions of a maker reproduce the tensor.
---@param maker Maker
---@param trial MakerTrial
---@param are_same fun(made: Tensor, wanted: Tensor): boolean
local function fits(maker, trial, are_same)
  local item, left, right = trial.item, trial.configs.left or {}, trial.configs.right or {}
  local fine, made = pcall(function()
    local at = { left = left, right = right, side = "left", key = item.key }
    function at.source(_, key) return trial.others and trial.others.read(key) end
    return are_same(expression.value(maker.text)(at, trial.rows), item.tensor)
      and are_same(expression.value(maker.expected)(item.tensor, at), item.tensor)
  end)
  if not fine and type(made) == "table" and made.code == "interrupted" then error(made, 0) end
  return fine and made
end

local function are_near(made, wanted) return type(made) == "userdata" and evidence.is_rounded(wanted, made) end

---The maker of a tensor that the other side lacks.
---@param trial MakerTrial
---@return Maker|nil
function makers.find(trial)
  local tensor = trial.item.tensor
  if tensor:nbytes() > MOST_BYTES or tensor.dtype:find "^complex" then return nil end -- no maker makes complex numbers
  local function first_of(list, are_same)
    local found
    for _, kind in ipairs(list) do
      kind(trial, function(maker) found = found or fits(maker, trial, are_same) and maker or nil end)
      if found then return found end
    end
  end
  local found = first_of(KINDS, trials.same_values)
  return found or is_named_so(trial.item) and first_of(ROUNDED, are_near) or nil
end

return makers
