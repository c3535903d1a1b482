-- Whether the names in a checkpoint are those that a model has in a format, and whose they are when not. Tables between releases
-- take any key; those to Hugging Face and of named layers know them all.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.bench.coverage"
local tables = require "converters.bench.tables"
local releases = require "converters.modelzoo.releases"

local weight_names = {}

---The tables that know all names of a format, each with its side.
---@return { table: Table, side: Side }[]
function weight_names.tables_of(model, format)
  local out = {}
  for _, one in ipairs(tables.of { model }) do
    for i, side in ipairs { "left", "right" } do
      local is_told = catalogue.names_format(one.converter[i], format) and not coverage.takes_all(one)
      if is_told then out[#out + 1] = { table = one, side = side } end
    end
  end
  return out
end

--- The keys that none of these tables knows. A mask bears its weight's name.
local function unknown(readings, keys)
  local left, out = {}, {}
  for i, key in ipairs(keys) do left[i] = key:gsub("_mask$", "") end
  for _, reading in ipairs(readings) do left = coverage.of(reading.table, reading.side, left).unmatched end
  local is_left = {}
  for _, key in ipairs(left) do is_left[key] = true end
  for _, key in ipairs(keys) do
    if is_left[(key:gsub("_mask$", ""))] then out[#out + 1] = key end
  end
  return out
end

---The tables of a format, or of the newest one before it that has any.
---@return { table: Table, side: Side }[] readings
---@return boolean is_exact
local function nearest_tables(model, format)
  local readings = weight_names.tables_of(model, format)
  if #readings > 0 then return readings, true end
  for i = (catalogue.place_of(format) or 1) - 1, 1, -1 do
    readings = weight_names.tables_of(model, catalogue.format_at(model, releases.known[i]))
    if #readings > 0 then return readings, false end
  end
  return {}, false
end

---Tells the names of a model's weights from others; without tables all are its weights.
---@param model_name string
---@param format string   "cs-2.5"
---@return fun(key: string): boolean
function weight_names.knows(model_name, format)
  local model = catalogue.find(model_name)
  local readings = model and nearest_tables(model, format) or {}
  return function(key) return #readings == 0 or #unknown(readings, { key }) == 0 end
end

---@class StrangeNames
---@field keys string[]     that the model's tables for the format do not know
---@field count integer     of all keys of the checkpoint
---@field is_exact boolean  there are tables for this very format
---@field is_other boolean  most are strange: the checkpoint is of another model or release

---@param model_name string
---@param format string   "cs-2.5"
---@param root Dict
---@return StrangeNames|nil   nil where no table tells
function weight_names.strange(model_name, format, root)
  local model = catalogue.find(model_name)
  if not model then return nil end
  local readings, is_exact = nearest_tables(model, format)
  if #readings == 0 then return nil end
  local keys = coverage.keys_of(root)
  local strange = unknown(readings, keys)
  return { keys = strange, count = #keys, is_exact = is_exact, is_other = #strange * 2 > #keys }
end

---The models whose tables for a format know every key, without that one; those that use most of their rules first.
---@param keys string[]
---@param format string
---@param model Model
---@param accepts? fun(one: Table, side: Side): boolean|nil   further conditions
---@return string[] names   three at most
function weight_names.models_that_fit(keys, format, model, accepts)
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local other = catalogue.find(name)
    local least
    for _, reading in ipairs(other ~= model and not (other.aliases or {})[name] and weight_names.tables_of(other, format) or {}) do
      local one = reading.table
      local found = not one.part and not one.inside and coverage.of(one, reading.side, keys)
      local fits = found and #found.unmatched + #found.refused + found.copied == 0
      if fits and (not accepts or accepts(one, reading.side)) then least = math.min(least or math.huge, #found.idle) end
    end
    if least then out[#out + 1] = { name = name, idle = least } end
  end
  table.sort(out, function(a, b) return a.idle < b.idle or a.idle == b.idle and a.name < b.name end)
  for i, one in ipairs(out) do out[i] = one.name end
  return { unpack(out, 1, 3) }
end

---Which models, and of which formats, names look like: "bert of cs-1.6". The model that was asked for is preferred.
---@param keys string[]
---@param model_name string
---@return string|nil
function weight_names.likeness(keys, model_name)
  local best, found, asked = 0, {}, catalogue.find(model_name)
  local seen = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    if not seen[model] then
      seen[model] = true
      for _, one in ipairs(tables.of { model }) do
        for i, side in ipairs { "left", "right" } do
          local known = coverage.takes_all(one) and 0 or #keys - #coverage.of(one, side, keys).unmatched
          if known > best then best, found = known, {} end
          if known == best and known > 0 then
            found[#found + 1] = { model = model, format = one.converter[i], is_asked = model == asked, place = #found }
          end
        end
      end
    end
  end
  table.sort(found, function(a, b)
    if a.is_asked ~= b.is_asked then return a.is_asked end
    if (a.format == "hf") ~= (b.format == "hf") then return b.format == "hf" end
    return a.place < b.place
  end)
  local names, named = {}, {}
  for _, one in ipairs(found) do
    if #names < 3 and not named[one.model] then
      names[#names + 1], named[one.model] = ("%s of %s"):format(one.model.model, one.format), true
    end
  end
  return #names > 0 and table.concat(names, ", or ") or nil
end

---The first of some names, for people.
---@param keys string[]
function weight_names.shown(keys)
  local rest = #keys - 3
  local first = {}
  for i = 1, math.min(3, #keys) do first[i] = cbk.shown(keys[i]) end
  return table.concat(first, ", ") .. (rest > 0 and (", … and %d more"):format(rest) or "")
end

---Refuses a checkpoint whose names are not those of the model in this format; a few strange ones are a warning.
---@param model_name string
---@param format string
---@param root Dict
---@return string|nil warning
function weight_names.check(model_name, format, root)
  local strange = weight_names.strange(model_name, format, root)
  if not strange or #strange.keys == 0 then return nil end
  local few = ("%d of %d names of weights are none that %s has in %s: %s"):format(#strange.keys, strange.count, model_name, format,
    weight_names.shown(strange.keys))
  if not strange.is_other then return strange.is_exact and few .. "; they are kept as they are" or nil end
  local like = weight_names.likeness(strange.keys, model_name)
  cbk.fail("key", ("%s; %s"):format(few, like and ("they look like those of %s: say what fits with --model and --from"):format(like)
    or "no model that is known has such names"))
end

return weight_names
