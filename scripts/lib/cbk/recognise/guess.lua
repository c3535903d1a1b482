-- Guesses a config for tensors without one: for the fields that decide which tensors a class has, it finds values that give the names of
-- the checkpoint.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local releases = require "converters.engine.releases"

local guess = {}

local LEAST_SHARE = 4 -- one of this many names must be the class's, or the class is not tried

---A key with N in place of its numbers: "h.N.attn.c_attn.weight". All layers have the same name.
---@param key string
---@return string
function guess.outline(key) return (("." .. key):gsub("%.%d+%f[.%z]", ".N"):sub(2)) end

---@class Outline: table<string, string>   The names of tensors without their numbers, each with the first key of that name.

---@param keys string[]
---@return Outline
function guess.outlines(keys)
  local out = {}
  for _, key in ipairs(keys) do
    local name = guess.outline(key)
    out[name] = out[name] or key
  end
  return out
end

---@class Guess
---@field config Dict        the fields that the names decide
---@field configs Dict[]     all configs with these names, including those with values that do not change names; the last one may
---                           need more names than there are
---@field matched integer    names that both have
---@field unknown integer    names that the class lacks
---@field missing integer    names that the checkpoint lacks
---@field spare integer      names that only some versions of the class have
---@field is_told fun(name: string): boolean   whether the names determine the value of a field
---@field odd integer        tensors with an extent that contradicts other tensors with the same config field
---@field known ClassTensors   of the first layers
---@field asked table<string, true>   releases that a name depends on

---@class NamesOfClass   The names of a class's tensors with one config.
---@field known ClassTensors|nil          nil: the class has no tensors with this config
---@field own table<string, ClassTensor>   by outline
---@field root table<string, string>      the name that a name is tied to, or itself
---@field asked table<string, true>       releases that they depend on

---@return NamesOfClass
local function names_with(class, config, release)
  local asked, own, root = {}, {}, {}
  local fine, known = pcall(class.tensors, class, config, { release = release, is_outline = true, asked = asked })
  for _, one in ipairs(fine and known or {}) do
    local name = guess.outline(one.key)
    own[name], root[name] = own[name] or one, one.tied_to and guess.outline(one.tied_to) or name
  end
  return { known = fine and known or nil, own = own, root = root, asked = asked }
end

local names_by_default = setmetatable({}, { __mode = "k" }) -- by class and release: each checkpoint is compared with them first

---@return NamesOfClass
local function names_of(class, config, release)
  if cbk.count(config) > 0 then return names_with(class, config, release) end
  names_by_default[class] = names_by_default[class] or {}
  local made, of = names_by_default[class], release or ""
  made[of] = made[of] or names_with(class, config, release)
  return made[of]
end

---Compares the names of a class with those of a checkpoint; nil if the class has no tensors with this config.
---@param asked table<string, true>   changed
---@return Guess|nil
local function compared(class, config, release, names, asked)
  local of = names_of(class, config, release)
  for first in pairs(of.asked) do asked[first] = true end
  if not of.known then return nil end
  local own, root, is_there = of.own, of.root, {}
  local out = { config = config, matched = 0, unknown = 0, missing = 0, spare = 0, odd = 0, asked = asked, known = of.known }
  for name, key in pairs(names) do
    local found = own[name] and name or guess.outline(of.known:own_key(key) or "")
    if own[found] then
      out.matched, is_there[root[found]] = out.matched + 1, true
      if own[found].optional then out.spare = out.spare + 1 end
    else
      out.unknown = out.unknown + 1
    end
  end
  for name, one in pairs(own) do
    if not (one.buffer or one.optional or one.part or is_there[root[name]]) then
      out.missing, is_there[root[name]] = out.missing + 1, true
    end
  end
  return out
end

---The values to try for a field.
---@param field ClassField
---@return any[]
local function tries_of(field) return field.kind == "boolean" and { true, false } or field.tries or {} end

---@alias GuessScore fun(one: Guess): integer   the number of mismatches

---@type GuessScore
local function unknown_names(one) return one.unknown end
---@type GuessScore
local function all_mistakes(one) return 1e6 * one.unknown + one.missing end

---The change of one field that reduces the mismatches most.
---@param class Class
---@param best Guess
---@param score GuessScore
---@return Guess|nil
local function improved(class, best, release, names, score)
  local out
  for _, name in ipairs(class.field_names) do
    for _, value in ipairs(best.config[name] == nil and tries_of(class.fields[name]) or {}) do
      local config = cbk.copy(best.config)
      config[name] = value
      local one, least = compared(class, config, release, names, best.asked), out or best
      if one and score(one) < score(least) then out = one end
    end
  end
  return out
end

local MOST_ALIKE = 32 -- configs

---The configs with the same names.
---@param class Class
---@param found Guess
---@return Dict[]   the guess's own is the first
local function alike(class, found, release, names)
  local out = { found.config }
  for _, name in ipairs(class.field_names) do
    for _, value in ipairs(found.config[name] ~= nil and tries_of(class.fields[name]) or {}) do
      for i = 1, value ~= found.config[name] and math.min(#out, MOST_ALIKE - #out) or 0 do
        local config = cbk.copy(out[i])
        config[name] = value
        local one = compared(class, config, release, names, found.asked)
        if one and one.unknown == found.unknown and one.missing == found.missing then out[#out + 1] = config end
      end
    end
  end
  return out
end

---@param score GuessScore
---@return Guess
local function climbed(class, best, release, names, score)
  while score(best) > 0 do
    local better = improved(class, best, release, names, score)
    if not better then return best end
    best = better
  end
  return best
end

---@param class Class
---@param release string|nil
---@param names Outline
---@param asked table<string, true>   changed
---@return Guess|nil   nil: few of the names are the class's
local function new_guess(class, release, names, asked)
  local best = compared(class, cbk.dict(), release, names, asked)
  if not best or best.matched * LEAST_SHARE < best.matched + best.unknown then return nil end
  best = climbed(class, best, release, names, unknown_names)
  local whole = climbed(class, best, release, names, all_mistakes)
  whole.configs = alike(class, whole, release, names)
  if whole.missing > 0 then table.insert(whole.configs, best.config) end -- in a part of a model, missing names mean nothing
  return whole
end

---A function that returns whether names determine a field's value: the names require it, or another value gives other names.
---@param class Class
---@param found Guess
---@return fun(name: string): boolean
local function telling(class, found, release, names)
  local known = {}
  return function(name)
    if known[name] ~= nil then return known[name] end
    local field = class.fields[name]
    local tries = field and tries_of(field) or {}
    known[name] = #tries > 0
    for _, value in ipairs(found.config[name] == nil and tries or {}) do
      local config = cbk.copy(found.config)
      config[name] = value
      local one = not fields.same(value, field.default) and compared(class, config, release, names, found.asked)
      if one and all_mistakes(one) == all_mistakes(found) then known[name] = false end
    end
    return known[name]
  end
end

---How many tensors contradict others: each field that is an extent by itself must have one value.
---@param found Guess
---@param shape_of fun(key: string): integer[]|nil
local function odd_shapes(found, shape_of)
  local values, count = {}, 0
  for _, one in ipairs(found.known) do
    local shape, is_odd = not one.buffer and (shape_of(one.key) or shape_of("model." .. one.key)) or nil, false
    if shape and #shape ~= #one.extents then is_odd = true end
    for i, written in ipairs(shape and one.extents or {}) do
      if type(written) == "string" and found.known.class.fields[written] then
        values[written] = values[written] or shape[i]
        is_odd = is_odd or values[written] ~= shape[i]
      end
    end
    if is_odd then count = count + 1 end
  end
  return count
end

---Whether a guess also holds for another release.
local function holds_for(asked, release, other)
  for first in pairs(asked) do
    if releases.since(release, first) ~= releases.since(other, first) then return false end
  end
  return true
end

---The number of mismatches between a class with a config and names; nil if the class has no tensors with that config.
---@param class Class
---@param config Dict
---@param release string|nil
---@param keys string[]
---@return integer|nil
function guess.mistakes(class, config, release, keys)
  local one = compared(class, config, release, guess.outlines(keys), {})
  return one and one.unknown + one.missing
end

---A function that finds the nearest config of a class for the names of a checkpoint. It changes one field after the other, each time the
---one that helps most, and caches its results.
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil   nil: it is not a tensor
---@return fun(class: Class, release: string|nil): Guess|nil   nil: few of the names are the class's
function guess.of(keys, shape_of)
  local names, made = guess.outlines(keys), {}
  return function(class, release)
    made[class] = made[class] or {}
    for _, one in ipairs(made[class]) do
      if not release or holds_for(one.asked, one.release, release) then return one.guess or nil end
    end
    local asked = {}
    local found = new_guess(class, release, names, asked)
    if found then found.odd, found.is_told = odd_shapes(found, shape_of), telling(class, found, release, names) end
    table.insert(made[class], { asked = asked, release = release, guess = found or false })
    return found
  end
end

return guess
