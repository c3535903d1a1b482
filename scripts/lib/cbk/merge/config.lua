-- The YAML of a merge (mergekit's), checked, as slices of layers with their sources.
-- Fields: mergekit/config.py.

local cbk = require "cbk"
local methods = require "cbk.merge.methods"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local parameters = require "cbk.merge.parameters"

local config = {}

---@class MergeSource
---@field model string               a path
---@field place string               in the config: "slices[1].sources[2]"
---@field range? integer[]           first layer and the one after the last, from 0; nil: all
---@field parameters table<string, MergeSetting>
---@field is_base boolean            it is the base model of its slice

---@class MergeSlice
---@field place string
---@field sources MergeSource[]
---@field base? string
---@field parameters table<string, MergeSetting>

---@class MergeConfig
---@field method string
---@field base? string
---@field slices MergeSlice[]        one, of whole models, if the config has `models`
---@field is_sliced boolean
---@field parameters table<string, MergeSetting>
---@field dtype? string
---@field out_dtype? string
---@field keeps_tokens boolean      the result has the base model's vocabulary

local FIELDS = { "models", "slices", "merge_method", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source" }
-- Fields of mergekit that cbk has nothing for, and what to do instead.
local REFUSED = {
  modules = "merge models of one module with 'models' or 'slices'",
  tokenizer = "only 'tokenizer_source: base' is supported",
  chat_template = "the base model's template is kept; edit it in the output",
  residual_weight = "use the method passthrough with 'scale' by filters",
}
local DTYPES = { float16 = true, bfloat16 = true, float32 = true }
local OTHER_METHODS = "breadcrumbs, della, model_stock, nuslerp, karcher, sce and others of mergekit are not supported"

local function refuse(field, message, ...) cbk.fail("config", (message):format(...), { field = field }) end

local function is_absent(value) return value == nil or value == cbk.null end

---Fails for a field that is not known.
---@param map Dict
---@param known string[]
---@param place string   "" for the whole config
local function check_fields(map, known, place)
  local names = {}
  for _, name in ipairs(known) do names[name] = true end
  local before = place == "" and "" or place .. ": "
  for name, value in cbk.items(map) do
    local text = tostring(name)
    if not names[name] and not is_absent(value) then
      if REFUSED[name] then refuse(text, "%s'%s' is not supported; %s", before, text, REFUSED[name]) end
      refuse(text, "%sunknown field '%s'%s known: %s", before, text, naming.suggestion(cbk.nearest(text, known, 1)[1] or known[1]),
        table.concat(known, ", "))
    end
  end
end

---A list of maps.
---@return fun(): integer, Dict, string
local function each_map(list, place, what)
  if cbk.kind(list) ~= "list" or cbk.count(list) == 0 then refuse(place, "%s: expected a list of %s", place, what) end
  local i = 0
  return function()
    i = i + 1
    if i > cbk.count(list) then return nil end
    local at = ("%s[%d]"):format(place, i)
    if cbk.kind(list[i]) ~= "dict" then refuse(at, "%s: expected a map", at) end
    return i, list[i], at
  end
end

---The path of a model.
---@param value any
---@param place string
---@return string
local function path_of(value, place)
  if is_absent(value) then refuse(place, "%s is missing: the path of a model", place) end
  if type(value) ~= "string" or value == "" then
    refuse(place, "%s: expected the path of a model, found %s", place, cbk.quote(cbk.json(value), 40))
  end
  if value:find "%z" then refuse(place, "%s: %s is not a path", place, cbk.quote(value)) end
  if cbk.fs.exists(value) then return value end
  local base, lora = value:match "^(.-)%+(.+)$"
  if base then
    refuse(place, "%s: '%s' names a LoRA adapter, which is not supported here; fold it first: "
      .. "cbk fold-lora-checkpoint --adapter %s %s -o FOLDER", place, value, lora, base)
  end
  refuse(place, "%s: there is no '%s'; models are folders on this machine: download it from the hub first", place, value)
end

---@return integer[]
local function range_of(value, place)
  local first, last
  if cbk.kind(value) == "list" and cbk.count(value) == 2 then first, last = value[1], value[2] end
  local function is_layer(number) return type(number) == "number" and number % 1 == 0 and number >= 0 and number < 2 ^ 31 end
  if not (is_layer(first) and is_layer(last) and first < last) then
    refuse(place, "%s: expected the first layer and the one after the last, such as [0, 16], found %s", place,
      is_absent(value) and "nothing" or cbk.quote(cbk.json(value), 40))
  end
  return { first, last }
end

---@param fields string[]
---@return MergeSource
local function source_of(map, place, fields)
  check_fields(map, fields, place)
  return {
    model = path_of(map.model, place .. ".model"), place = place, parameters = parameters.parse(map.parameters, place .. ".parameters"),
    range = fields[2] == "layer_range" and range_of(map.layer_range, place .. ".layer_range") or nil,
  }
end

---Fails if a model is listed twice in a slice: mergekit would merge it once.
---@param slice MergeSlice
local function check_distinct(slice)
  local seen = {}
  for _, source in ipairs(slice.sources) do
    local path = cbk.fs.real(source.model)
    if seen[path] then
      refuse(source.place, "%s: '%s' is listed twice, first in %s; give it one entry with the sum of the weights", source.place,
        source.model, seen[path])
    end
    seen[path] = source.place
  end
end

---@return MergeSlice[]
local function slices_of(list)
  local out = {}
  for i, map, place in each_map(list, "slices", "maps with 'sources'") do
    check_fields(map, { "sources", "base_model", "parameters" }, place)
    local slice = {
      place = place, sources = {}, parameters = parameters.parse(map.parameters, place .. ".parameters"),
      base = not is_absent(map.base_model) and path_of(map.base_model, place .. ".base_model") or nil,
    }
    for j, source, at in each_map(map.sources, place .. ".sources", "maps with 'model' and 'layer_range'") do
      slice.sources[j] = source_of(source, at, { "model", "layer_range", "parameters" })
    end
    out[i] = slice
  end
  return out
end

---One slice of whole models. A base model that is not listed is the last source.
---@return MergeSlice
local function whole_models(list, base)
  local slice, has_base = { place = "models", sources = {}, parameters = {} }, false
  for i, map, place in each_map(list, "models", "maps with 'model'") do
    slice.sources[i] = source_of(map, place, { "model", "parameters" })
    has_base = has_base or base ~= nil and cbk.fs.real(slice.sources[i].model) == cbk.fs.real(base)
  end
  if base and not has_base then slice.sources[#slice.sources + 1] = { model = base, place = "base_model", parameters = {} } end
  return slice
end

---@return string|nil
local function dtype_of(map, field)
  local value = map[field]
  if is_absent(value) then return nil end
  local name = tostring(value):gsub("^torch%.", "")
  if not DTYPES[name] then refuse(field, "%s: expected float32, bfloat16 or float16, found %s", field, cbk.quote(tostring(value), 40)) end
  return name
end

---@return string
local function method_of(map)
  local name = map.merge_method
  local names = naming.sorted(methods.all)
  if is_absent(name) then refuse("merge_method", "merge_method is missing; known: %s", table.concat(names, ", ")) end
  name = tostring(name)
  if methods.all[name] then return name end
  refuse("merge_method", "there is no merge_method '%s'%s known: %s; %s", name,
    naming.suggestion(cbk.nearest(name, names, 1)[1] or "linear"), table.concat(names, ", "), OTHER_METHODS)
end

---Warns of parameters that the method does not read.
---@param out MergeConfig
local function warn_of_unused(out)
  local method, unused = methods.all[out.method], {}
  local sections = { out.parameters }
  for _, slice in ipairs(out.slices) do
    sections[#sections + 1] = slice.parameters
    for _, source in ipairs(slice.sources) do sections[#sections + 1] = source.parameters end
  end
  for _, section in ipairs(sections) do
    for name in pairs(section) do
      if not method.globals[name] and not method.locals[name] then unused[name] = true end
    end
  end
  for _, name in ipairs(naming.sorted(unused)) do
    cbk.warn(("the parameter '%s' has no effect on the method %s"):format(name, out.method))
  end
end

---Marks the base model among the sources. Fails unless these are the ones that the method needs.
---@param out MergeConfig
local function check_sources(out)
  local method = methods.all[out.method]
  for _, slice in ipairs(out.slices) do
    check_distinct(slice)
    local base, count = slice.base or out.base, #slice.sources
    if method.models and count ~= method.models then
      refuse(slice.place, "%s: %s merges exactly %s%s, found %d", slice.place, out.method, numbers.counted(method.models, "model"),
        method.has_base and ", one of them the base_model" or "", count)
    end
    local has_base = false
    for _, source in ipairs(slice.sources) do
      source.is_base = base ~= nil and cbk.fs.real(source.model) == cbk.fs.real(base)
      has_base = has_base or source.is_base
    end
    if method.has_base and not base then refuse("base_model", "base_model is missing, which %s needs", out.method) end
    if method.has_base and not has_base then
      refuse(slice.place, "%s: the base model '%s' is not among the sources, and %s needs its layers", slice.place, base, out.method)
    end
  end
end

---@param map any   the YAML
---@return MergeConfig
function config.parse(map)
  if cbk.kind(map) ~= "dict" then refuse("", "expected a map with 'merge_method' and 'models' or 'slices'") end
  check_fields(map, FIELDS, "")
  local method = method_of(map)
  local has_models, has_slices = not is_absent(map.models), not is_absent(map.slices)
  if has_models == has_slices then
    refuse("models", "expected either 'models' or 'slices', found %s", has_models and "both" or "neither")
  end
  local base = not is_absent(map.base_model) and path_of(map.base_model, "base_model") or nil
  local tokens = map.tokenizer_source
  if not is_absent(tokens) and tokens ~= "base" then
    refuse("tokenizer_source", "tokenizer_source: only 'base' is supported, found %s", cbk.quote(tostring(tokens), 60))
  end
  if tokens == "base" and not base then refuse("tokenizer_source", "tokenizer_source: base needs a base_model") end
  local out = {
    method = method, base = base, is_sliced = has_slices, parameters = parameters.parse(map.parameters, "parameters"),
    slices = has_slices and slices_of(map.slices) or { whole_models(map.models, base) }, keeps_tokens = tokens == "base",
    dtype = dtype_of(map, "dtype"), out_dtype = dtype_of(map, "out_dtype"),
  }
  check_sources(out)
  warn_of_unused(out)
  return out
end

return config
