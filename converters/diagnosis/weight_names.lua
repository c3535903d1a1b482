-- Checks the names in a checkpoint against those of a model in a format, and finds the models that they look like. Tables between
-- releases take any key; those to Hugging Face and of named layers know all names.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.diagnosis.coverage"
local patterns = require "converters.engine.patterns"
local tables = require "converters.diagnosis.tables"
local releases = require "converters.engine.releases"
local sections = require "converters.engine.sections"

local weight_names = {}

---The tables that know all names of a format, each with its side.
---@return { table: Table, side: Side }[]
function weight_names.tables_of(model, format)
  local out = {}
  for _, one in ipairs(tables.of { model }) do
    for i, side in ipairs { "left", "right" } do
      local knows_names = catalogue.names_format(one.converter[i], format) and not coverage.takes_all(one)
      if knows_names then out[#out + 1] = { table = one, side = side } end
    end
  end
  return out
end

---@class Names   Tables and patterns that know the names of a format.
---@field readings { table: Table, side: Side }[]
---@field own table[]   trees of patterns: names of this format in steps between releases
---@field old table[]   trees of patterns: names of earlier formats that such steps have changed

---Adds the names of one side of a step between releases.
---@param names Names
---@param one Table   takes any key, but renames some
---@param side Side
---@param place integer   of the format
local function add_step(names, one, side, place)
  local first, last = math.huge, 0
  for _, format in ipairs((catalogue.formats(one.converter[side == "left" and 1 or 2]))) do
    local own = catalogue.place_of(format) or 0
    first, last = math.min(first, own), math.max(last, own)
  end
  local list = (side == "left" and place <= last or side == "right" and place >= first) and names.own or side == "left" and names.old
  if list then list[#list + 1] = (patterns.compile(one.keys, side)) end
end

---Whether one of the trees has a rule for the key other than the rule for any key.
---@param trees table[]
---@param is_renamed? boolean   only rules that give another name
local function is_named(trees, key, is_renamed)
  for _, tree in ipairs(trees) do
    for _, hit in ipairs(patterns.match(tree, key)) do
      local rule = hit.ending.rule
      local other = not is_renamed or rule.left and rule.right and rule.left[1] ~= rule.right[1]
      if other and not hit.ending.pattern:find "%*$" then return true end
    end
  end
  return false
end

---Whether the tables only read the key, as a further name of a tensor.
---@param names Names
local function is_other_name(names, key)
  for _, reading in ipairs(names.readings) do
    local tree = patterns.compile(reading.table.keys, reading.side)
    local hit = patterns.match(tree, key)[1] or patterns.match(tree, (key:gsub("^model%.", "")))[1]
    if hit and not (hit.ending.rule.read_only or hit.ending.rule.kind) then return false end
  end
  return true
end

---The weight of a mask or of a LoRA update's factors, whose names extend its own; else the key itself.
local function weight_of(key) return (key:gsub("_mask$", ""):gsub("%.lora_[AB]$", ".weight")) end

--- The keys that none of these tables knows, or that have been renamed since.
---@param names Names
local function unknown(names, keys)
  local left, is_left, out = {}, {}, {}
  for i, key in ipairs(keys) do left[i] = weight_of(key) end
  for _, key in ipairs(left) do is_left[key] = is_named(names.old, key, true) and is_other_name(names, key) or nil end
  for _, reading in ipairs(names.readings) do left = coverage.of(reading.table, reading.side, left).unmatched end
  for _, key in ipairs(left) do is_left[key] = is_left[key] or not is_named(names.own, key) end
  for _, key in ipairs(keys) do
    if is_left[weight_of(key)] then out[#out + 1] = key end
  end
  return out
end

---The tables of a format, or of the newest earlier format with tables.
---@return Names|nil
---@return boolean is_exact
local function nearest_names(model, format)
  local readings, is_exact = weight_names.tables_of(model, format), true
  for i = (catalogue.place_of(format) or 1) - 1, 1, -1 do
    if #readings > 0 then break end
    readings, is_exact = weight_names.tables_of(model, catalogue.format_at(model, releases.known[i])), false
  end
  if #readings == 0 then return nil, false end
  local names, place = { readings = readings, own = {}, old = {} }, (catalogue.place_of(format))
  for _, one in ipairs(place and tables.of { model } or {}) do
    for _, side in ipairs(coverage.takes_all(one) and { "left", "right" } or {}) do add_step(names, one, side, place) end
  end
  return names, is_exact
end

---A function that tests whether a name is one of the model's weights. Without tables every name is.
---@param model_name string
---@param format string   "cs-2.5"
---@return fun(key: string): boolean
function weight_names.knows(model_name, format)
  local model = catalogue.find(model_name)
  local names = model and nearest_names(model, format)
  return function(key) return not names or #unknown(names, { key }) == 0 end
end

---One key of each kind: keys that differ only in their numbers (of layers, of experts) are one kind.
---@param keys string[]
---@return string[]
local function kinds_of(keys)
  local seen, out = {}, {}
  for _, key in ipairs(keys) do
    local kind = key:gsub("%d+", "0")
    if not seen[kind] then seen[kind], out[#out + 1] = true, key end
  end
  return out
end

---@class StrangeNames
---@field keys string[]     keys that the model's tables for the format do not know
---@field count integer     number of all keys in the checkpoint
---@field is_exact boolean  whether there are tables for this very format
---@field is_other boolean  whether most kinds of names are unknown: the checkpoint is of another model or release

---@param model_name string
---@param format string   "cs-2.5"
---@param root Dict
---@return StrangeNames|nil   nil if no table knows the names
function weight_names.strange(model_name, format, root)
  local model = catalogue.find(model_name)
  if not model then return nil end
  local names, is_exact = nearest_names(model, format)
  if not names then return nil end
  local keys = coverage.keys_of(root)
  local strange = unknown(names, keys)
  return { keys = strange, count = #keys, is_exact = is_exact, is_other = #kinds_of(strange) * 2 > #kinds_of(keys) }
end

---The other models whose tables for a format know every key. Those with the fewest fields come first, as the others are made from them;
---then those with the fewest unused rules.
---@param keys string[]
---@param format string
---@param model Model
---@param accepts? fun(one: Table, side: Side): boolean|nil   further conditions
---@return string[] names   three at most
function weight_names.models_that_fit(keys, format, model, accepts)
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local other = catalogue.find(name)
    local least, fewest
    for _, reading in ipairs(other ~= model and not (other.aliases or {})[name] and weight_names.tables_of(other, format) or {}) do
      local one = reading.table
      local knows_first = not one.part and not one.inside and coverage.knows(one, reading.side, keys[1])
      local found = knows_first and coverage.of(one, reading.side, keys)
      local fits = found and #found.unmatched + #found.refused + found.copied == 0
      if fits and (not accepts or accepts(one, reading.side)) then
        least = math.min(least or math.huge, #found.idle)
        fewest = math.min(fewest or math.huge, sections.idle(one.own, reading.side, {}))
      end
    end
    if least then out[#out + 1] = { name = name, idle = least, fields = fewest } end
  end
  table.sort(out, function(a, b)
    if a.fields ~= b.fields then return a.fields < b.fields end
    return a.idle < b.idle or a.idle == b.idle and a.name < b.name
  end)
  for i, one in ipairs(out) do out[i] = one.name end
  return { unpack(out, 1, 3) }
end

---The models and formats that names look like: "bert of cs-1.6". The model that was asked for comes first.
---@param names string[]
---@param model_name string
---@return string|nil
function weight_names.resembled(names, model_name)
  local keys = kinds_of(names)
  local best, found, asked = 0, {}, catalogue.find(model_name)
  local seen = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    if not seen[model] then
      seen[model] = true
      for _, one in ipairs(tables.of { model }) do
        for i, side in ipairs { "left", "right" } do
          local of = not coverage.takes_all(one) and coverage.of(one, side, keys)
          local known = of and #keys - #of.unmatched or 0
          if known > best then best, found = known, {} end
          if known == best and known > 0 then
            found[#found + 1] = { model = model, format = one.converter[i], is_asked = model == asked, idle = #of.idle, place = #found,
              fields = sections.idle(one.own, side, {}) }
          end
        end
      end
    end
  end
  table.sort(found, function(a, b)
    if a.is_asked ~= b.is_asked then return a.is_asked end
    if (a.format == "hf") ~= (b.format == "hf") then return b.format == "hf" end
    if a.fields ~= b.fields then return a.fields < b.fields end
    if a.idle ~= b.idle then return a.idle < b.idle end
    return a.place < b.place
  end)
  local out, named = {}, {}
  for _, one in ipairs(found) do
    if #out < 3 and not named[one.model] then
      out[#out + 1], named[one.model] = ("%s of %s"):format(one.model.model, one.format), true
    end
  end
  return #out > 0 and table.concat(out, ", or ") or nil
end

---The first of some names, for people.
---@param keys string[]
function weight_names.shown(keys)
  local rest = #keys - 3
  local first = {}
  for i = 1, math.min(3, #keys) do first[i] = cbk.shown(keys[i]) end
  return table.concat(first, ", ") .. (rest > 0 and (", … and %d more"):format(rest) or "")
end

---A prefix of all keys that the model does not have, such as `module` after data-parallel training.
---@param model Model
---@param format string
---@param keys string[]
---@return string|nil
function weight_names.name_to_remove(model, format, keys)
  local names = nearest_names(model, format)
  local name, below = keys[1] and keys[1]:match "^([^.]+)%.", {}
  for i, key in ipairs(name and keys or {}) do
    below[i] = key:sub(1, #name + 1) == name .. "." and key:sub(#name + 2) or nil
    if not below[i] then return nil end
  end
  return names and #below > 0 and #unknown(names, below) == 0 and name or nil
end

---@param strange StrangeNames
local function text_of(strange, model_name, format)
  return ("%d of %d weight names are unknown in %s %s: %s"):format(#strange.keys, strange.count, model_name, format,
    weight_names.shown(strange.keys))
end

---The warning about names that the model does not have in this format; nil if that is not certain.
---@param model_name string
---@param format string
---@param root Dict
---@return string|nil
function weight_names.warning(model_name, format, root)
  local strange = weight_names.strange(model_name, format, root)
  local is_sure = strange and #strange.keys > 0 and (strange.is_exact or strange.is_other)
  return is_sure and text_of(strange, model_name, format) .. "; they are kept as they are" or nil
end

---Refuses a checkpoint if most kinds of its names are unknown for the model in this format.
---@param model_name string
---@param format string
---@param root Dict
---@param options string   the options for model and format: "--model and --from"
function weight_names.refuse_others(model_name, format, root, options)
  local strange = weight_names.strange(model_name, format, root)
  if not strange or not strange.is_other then return end
  local name = weight_names.name_to_remove(catalogue.find(model_name), format, strange.keys)
  local like = not name and weight_names.resembled(strange.keys, model_name)
  local advice = name and ("remove the prefix '%s.' with `cbk copy CHECKPOINT NEW --rename 'model.%s.*=model.*'`"):format(name, name)
    or like and ("they look like those of %s; choose with %s"):format(like, options)
    or "no known model has such names"
  cbk.fail("key", ("%s; %s"):format(text_of(strange, model_name, format), advice))
end

---Refuses a checkpoint if most of its names are unknown for the model in this format; a few are a warning.
---@param model_name string
---@param format string
---@param root Dict
---@return string|nil warning
function weight_names.check(model_name, format, root)
  weight_names.refuse_others(model_name, format, root, "--model and --from")
  return weight_names.warning(model_name, format, root)
end

return weight_names
