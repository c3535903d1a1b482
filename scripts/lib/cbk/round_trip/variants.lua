-- A model's config with other sizes: other numbers of heads, key heads and layers, other widths and vocabularies, that fit each other.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local sizes = require "cbk.infer.sizes"

local variants = {}

---@class SizeSpec
---@field keys integer      key heads, if there are several query heads to each
---@field ratio integer     query heads to each of them
---@field heads integer     heads, if all have keys or all share one
---@field size integer      rows of a head: a quarter of them is even
---@field layers integer
---@field words integer
---@field context integer

---@type SizeSpec[]
local SPECS = {
  { keys = 2, ratio = 2, heads = 4, size = 8, layers = 3, words = 211, context = 24 },
  { keys = 3, ratio = 2, heads = 6, size = 16, layers = 2, words = 320, context = 40 },
  { keys = 2, ratio = 3, heads = 3, size = 24, layers = 2, words = 173, context = 16 },
}

-- What a config is tried with, where the model does not take all of it.
local LADDER = {
  {}, { context = true }, { context = true, vocabulary = true }, { context = true, vocabulary = true, layers = true },
}

local function is_size(value) return type(value) == "number" and value % 1 == 0 and value >= 1 end

---The sizes of a section by their roles; a section without heads has those of the config around it.
---@param map Dict
---@param outer table|nil
---@return table
local function numbers_of(map, outer)
  local out = {}
  for name, value in cbk.items(map) do
    local role = type(name) == "string" and is_size(value) and sizes.role(name)
    if role and out[role] == nil and name ~= "attention_inner_dim" then out[role] = value end
  end
  if not out.heads and outer then
    for _, role in ipairs { "heads", "key_heads", "head_size", "width" } do out[role] = out[role] or outer[role] end
  end
  if out.heads and not out.head_size and out.width and out.width % out.heads == 0 then out.head_size = out.width / out.heads end
  return out
end

---@param old table   of numbers_of
---@param spec SizeSpec
---@return table
local function new_numbers(old, spec)
  local heads, keys = old.heads or 1, old.key_heads or old.heads or 1
  local is_grouped = keys > 1 and keys < heads
  local out = { head_size = spec.size, layers = spec.layers, vocabulary = spec.words, context = spec.context }
  out.heads = is_grouped and spec.keys * spec.ratio or spec.heads
  out.key_heads = is_grouped and spec.keys or keys == 1 and heads > 1 and 1 or out.heads
  local all = out.heads * spec.size
  out.width = old.width and old.head_size and old.width ~= heads * old.head_size and all + 8 or all
  return out
end

---The new value of a whole number; nil if it stays.
---@param role SizeRole
local function resized(role, value, old, new, kept)
  if kept[role] then return nil end
  if role == "width" then
    local all = old.heads and old.head_size and old.heads * old.head_size
    return value == old.width and new.width or value == all and new.heads * new.head_size or nil
  elseif role == "inner" then
    return old.width and (value == 4 * old.width and 4 * new.width or value == old.width and new.width or 2 * new.width + 8) or nil
  elseif role == "rotary" then
    if value == old.head_size or not old.head_size then return new.head_size end
    return math.max(2, math.floor(new.head_size * value / old.head_size / 2) * 2)
  end
  return new[role]
end

---A list with one item per layer, for another number of layers.
local function resized_list(list, count)
  local out = cbk.list()
  for i = 1, count do out[i] = list[(i - 1) % #list + 1] end
  return out
end

---Changes a section and those in it.
---@param map Dict   changed in place
local function resize(map, spec, kept, outer)
  local old = numbers_of(map, outer)
  local new = new_numbers(old, spec)
  for _, name in ipairs(cbk.keys(map)) do
    local value, role = map[name], type(name) == "string" and sizes.role(name)
    if role and is_size(value) then
      map[name] = resized(role, value, old, new, kept) or value
    elseif kinds.is_dict(map, name) and name ~= "rope_scaling" and name ~= "rope_parameters" then
      resize(value, spec, kept, old)
    elseif kinds.is_list(map, name) and not kept.layers and old.layers and old.layers > 1 and #value == old.layers then
      map[name] = resized_list(value, new.layers)
    end
  end
end

---The sizes that a config has, for people: "hidden_size=32, num_attention_heads=4".
---@param config Dict
---@return string
local function text_of(config)
  local out = {}
  local function add(map, place)
    for name, value in cbk.items(map) do
      local role = type(name) == "string" and is_size(value) and sizes.role(name)
      if role and role ~= "context" and role ~= "rotary" and #out < 8 then out[#out + 1] = ("%s%s=%d"):format(place, name, value) end
      if kinds.is_dict(map, name) then add(value, place .. tostring(name) .. ".") end
    end
  end
  add(config, "")
  return table.concat(out, ", ")
end

---The config, with the sizes that it leaves to its class.
---@param config Dict
---@param class Class|nil
---@return Dict
function variants.with_defaults(config, class)
  local out = cbk.deep_copy(config)
  for _, name in ipairs(class and class.field_names or {}) do
    local field = class.fields[name]
    local default = field.default
    if (sizes.role(name) or field.kind == "size") and is_size(default) and class:leaves_out(out, name) then
      local section, inner = name:match "^(.-)%.(.*)$"
      if not section then out[name] = default elseif kinds.is_dict(out, section) then out[section][inner] = default end
    end
  end
  return out
end

---Configs of other sizes that the model takes, each with a text that names the sizes.
---@generic T
---@param config Dict           of the model alone
---@param class Class|nil
---@param take fun(config: Dict): T|nil, string|nil   something of the model with this config; nil and the reason if it takes other sizes
---@return { text: string, config: Dict, taken: T }[] list, string|nil why   no variant is taken
function variants.of(config, class, take)
  local out, base, why = {}, variants.with_defaults(config, class), nil
  for _, spec in ipairs(SPECS) do
    for _, kept in ipairs(LADDER) do
      local own = cbk.deep_copy(base)
      resize(own, spec, kept)
      local taken, problem = take(own)
      why = why or problem
      if taken then
        out[#out + 1] = { text = text_of(own), config = own, taken = taken }
        break
      end
    end
  end
  return out, #out == 0 and why or nil
end

-- --- without a class: the extents of a checkpoint

local MOST = 2 ^ 24 -- elements of a checkpoint whose extents are multiplied

---The factors for a checkpoint's extents: larger ones of a small checkpoint, halves of a large one.
---@param tensors table<string, Tensor>
---@return number[]
function variants.factors(tensors)
  local count = 0
  for _, tensor in pairs(tensors) do count = count + tensor:numel() end
  if count < MOST then return { 2, 3 } end
  local factor = 1 / 2
  while count * factor * factor > MOST and factor > 2 ^ -6 do factor = factor / 2 end
  return { factor }
end

local COUNTS = { heads = true, key_heads = true, layers = true }

---Multiplies an extent; one that a small factor does not divide stays.
local function scaled(extent, factor) return extent > 1 and extent * factor % 1 == 0 and extent * factor or extent end

---The shape with other extents: those of rows and columns, but not those of kernels.
---@param shape integer[]
---@param factor number
---@param is_count table<integer, true>   numbers that stay
---@return integer[]
function variants.shape(shape, factor, is_count)
  local out = {}
  for i, extent in ipairs(shape) do
    extent = tonumber(extent)
    out[i] = (i > 2 and #shape > 3 or is_count[extent]) and extent or scaled(extent, factor)
  end
  return out
end

---A config whose sizes are multiplied as the extents are, and the numbers that stay: counts of heads and layers.
---@param config Dict|nil
---@param factor number
---@param extents table<integer, true>   of the checkpoint
---@param limits table<string, any>   fields that a table accepts with one value only
---@return Dict|nil config, table<integer, true> is_count
function variants.scaled(config, factor, extents, limits)
  local is_count, is_scaled, is_fixed = {}, {}, {}
  for _, value in pairs(limits) do
    if is_size(value) then is_fixed[value] = true end
  end
  ---Whether a number without a known role is one of the extents.
  local function is_extent(name, value)
    return extents[value] and not (is_fixed[value] or name:find "expert" or name:find "token" or name:find "_id$")
  end
  local function scale(map)
    for _, name in ipairs(cbk.keys(map)) do
      local value, role = map[name], type(name) == "string" and sizes.role(name)
      if kinds.is_dict(map, name) then
        scale(value)
      elseif type(name) == "string" and is_size(value) and value > 1 and limits[name] == nil then
        if role and COUNTS[role] then
          is_count[value] = true
        elseif role or is_extent(name, value) then
          is_scaled[value], map[name] = true, scaled(value, factor)
        end
      end
    end
  end
  local out = config and cbk.deep_copy(config)
  if out then scale(out) end
  for value in pairs(is_scaled) do is_count[value] = nil end
  for value in pairs(is_fixed) do is_count[value] = true end
  return out, is_count
end

return variants
