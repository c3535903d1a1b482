-- The fields in which the configs of two folders differ.

local cbk = require "cbk"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local listing = require "cbk.listing"
local model_of = require("cbk.recognise.configs").model_of
local values = require "cbk.diff.values"
local warnings = require "cbk.warnings"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local configs = {}

---@class FieldDifference
---@field field string
---@field a any   nil: absent
---@field b any

---The config of a folder.
---@return Dict|nil config, boolean|nil is_hf
local function config_in(folder, checkpoint)
  for _, is_hf in ipairs { true, false } do
    local config = config_beside.of(folder, checkpoint, is_hf).config or not is_hf and zoo_checkpoint.params(checkpoint.root)
    if config then return config, is_hf end
  end
end

---The fields of the class that a config is of, by all their names; none if it is not known.
---@param config Dict
---@return table<string, ClassField>
local function known_fields(config)
  converters.load()
  local fine, model, format = warnings.quietly(model_of, config)
  if not fine then return {} end
  model = converters.catalogue.find(model)
  local class = converters.catalogue.class_of(model, {}, converters.catalogue.resolve(format, model))
  return class and class:by_name() or {}
end

---A function that says whether a value is the default of a field, which may lack then.
---@param config Dict
---@return fun(path: string, value: any): boolean
local function is_default_in(config)
  local known
  return function(path, value)
    known = known or known_fields(config)
    local field = known[path] or known[path:match "^model%.(.*)$" or path:match "^trainer%.init%.model%.(.*)$"]
    return field ~= nil and field.default ~= nil and fields.same(value, field.default)
  end
end

local EXACTLY = { rtol = 0, atol = 0, ignore_dtype = true } -- 1 and 1.0 are the same

---Null counts as absent, and so does the default of the class.
---@param a Dict
---@param b Dict
---@return FieldDifference[]
function configs.differences(a, b)
  local rows_a, rows_b, is_default, out = cbk.leaf_rows(a), cbk.leaf_rows(b), is_default_in(a), {}
  local in_b, in_a = values.matcher(rows_a, rows_b), values.matcher(rows_b, rows_a)
  local function value_at(rows, n)
    if n and kinds.present(rows:value(n)) then return rows:raw(n), rows:value(n) end
  end
  local function add(field, i, k)
    local one, plain_one = value_at(rows_a, i)
    local other, plain_other = value_at(rows_b, k)
    if one == nil and (other == nil or is_default(field, plain_other)) or other == nil and is_default(field, plain_one) then return end
    out[#out + 1] = { field = field, a = one, b = other }
  end
  for i = 1, #rows_a do
    local k = in_b(i)
    if not k or values.compare(rows_a:raw(i), rows_b:raw(k), EXACTLY) then add(rows_a:path(i), i, k) end
  end
  for k = 1, #rows_b do
    if not in_a(k) then add(rows_b:path(k), nil, k) end
  end
  return out
end

---The differences between the configs of two folders; nil if they cannot be compared.
---@param a { path: string, checkpoint: Checkpoint }
---@param b { path: string, checkpoint: Checkpoint }
---@return FieldDifference[]|nil
function configs.of_folders(a, b)
  if not (cbk.fs.is_dir(a.path) and cbk.fs.is_dir(b.path)) then return nil end
  local config_a, is_hf = config_in(a.path, a.checkpoint)
  local config_b, is_other_hf = config_in(b.path, b.checkpoint)
  return config_a and config_b and is_hf == is_other_hf and configs.differences(config_a, config_b) or nil
end

---@param list FieldDifference[]
---@return DifferenceTable
function configs.table(list)
  local rows = {}
  for n, one in ipairs(list) do
    local a, b = listing.pair_texts(one.a, one.b)
    rows[n] = { cbk.shown(one.field), one.a == nil and "(absent)" or cbk.shown(a), one.b == nil and "(absent)" or cbk.shown(b) }
  end
  local columns = { { title = "field" }, { title = "A", weight = 2 }, { title = "B", weight = 1 } }
  return { title = "different fields of the configs", count = #list, columns = columns, rows = rows }
end

return configs
