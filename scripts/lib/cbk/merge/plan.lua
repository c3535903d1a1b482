-- The tensors of a merged model, as lazy expressions over those of its sources.
-- Rules: mergekit/plan.py.

local cbk = require "cbk"
local extents = require "cbk.extents"
local methods = require "cbk.merge.methods"
local model = require "cbk.merge.model"
local parameters = require "cbk.merge.parameters"
local ties = require "cbk.ties"
local token_weights = require "cbk.token_weights"

local plan = {}

---@class MergePlan
---@field root Dict              key to tensor
---@field depth? integer         of the layers, if the config has slices
---@field words? integer         rows of the embeddings, if the models have different numbers of them
---@field is_untied? boolean     a head that some models lack is written

---@class MergeStep   A tensor of the output.
---@field slice MergeSlice
---@field key string         in the output
---@field keys string[]      in each source of the slice
---@field t number           the place of its layer in the slice

local Planner = {}
Planner.__index = Planner

-- Buffers that older versions of transformers saved; they follow from the config.
local function is_buffer(key) return key:find "rotary_emb%.inv_freq$" or key:find "%.masked_bias$" or key:find "position_ids$" end

local function is_token_weight(key)
  return token_weights.is_weight_of(token_weights.EMBEDDINGS, key) or token_weights.is_weight_of(token_weights.HEADS, key)
end

local function is_floating(tensor) return cbk.dtype(tensor.dtype).floating end

---@return MergeModel
function Planner:model(source) return self.models[source.model] end

-- --- inputs of one tensor

---The sources' tensors for a step. Fails if one is missing.
---@param step MergeStep
---@return MergeInput[]
function Planner:inputs(step)
  local out = {}
  for i, source in ipairs(step.slice.sources) do
    local one = self:model(source)
    local tensor = one:tensor(step.keys[i])
    if tensor == nil and not is_buffer(step.key) then
      cbk.fail("key", ("'%s' is missing in '%s', but another model of the merge has it"):format(step.keys[i], source.model),
        { key = step.keys[i] })
    end
    if tensor ~= nil then
      self.has_tied_source = self.has_tied_source or one.root[step.keys[i]] == nil
      out[#out + 1] = { model = source.model, tensor = tensor, source = source, key = step.keys[i], is_base = source.is_base }
    end
  end
  return out
end

---Gives each input its parameters, and returns those of all.
---@param step MergeStep
---@param inputs MergeInput[]
---@return MergeGlobals
function Planner:set_parameters(step, inputs)
  local method, slice = methods.all[self.config.method], step.slice
  local function value(name, default, sections, key, whose)
    local found = parameters.first(sections, name, key, step.t)
    if found == nil and default.is_required then
      cbk.fail("config", ("the parameter '%s' is missing%s for '%s'"):format(name, whose, key), { field = name })
    end
    return found == nil and default.value or found
  end
  for _, input in ipairs(inputs) do
    for name, default in pairs(method.locals) do
      local is_optional = input.is_base and method.has_base
      input[name] = value(name, is_optional and { value = default.value } or default,
        { input.source.parameters, slice.parameters, self.config.parameters }, input.key, (" of '%s'"):format(input.model))
    end
  end
  local globals = { seed = self.seed, name = step.key }
  for name, default in pairs(method.globals) do
    globals[name] = value(name, default, { slice.parameters, self.config.parameters }, step.key, "")
  end
  return globals
end

---The dtype of the result before `out_dtype`: the config's, that of the base model, or one that holds all.
local function result_dtype(config, inputs)
  if config.dtype then return config.dtype end
  local base
  for _, input in ipairs(inputs) do base = input.is_base and input or base end
  if methods.all[config.method].rounds_like_base and base then return base.tensor.dtype end
  local dtype = inputs[1].tensor.dtype
  for _, input in ipairs(inputs) do
    local other = input.tensor.dtype
    if other ~= dtype then dtype = (dtype == "float64" or other == "float64") and "float64" or "float32" end
  end
  return dtype
end

---Cuts embeddings of models with other vocabularies to the rows and columns that all have; in methods with differences, to the base
---model's. Other tensors of another shape are an error, or left out of differences, with a warning.
---@return MergeInput[]
function Planner:aligned(step, inputs)
  local method, first = methods.all[self.config.method], inputs[1]
  for _, input in ipairs(inputs) do first = method.has_base and input.is_base and input or first end
  local shape, is_alike = first.tensor:shape(), true
  local function has_shape(input) return extents.shape(input.tensor:shape()) == extents.shape(shape) end
  for _, input in ipairs(inputs) do is_alike = is_alike and has_shape(input) end
  if is_alike then return inputs end
  if is_token_weight(step.key) and #shape == 2 then return self:cut(step, inputs, first) end
  local out = {}
  for _, input in ipairs(inputs) do
    if has_shape(input) then
      out[#out + 1] = input
    else
      local found = ("'%s' is %s in '%s', but %s in '%s'"):format(step.key, extents.shape(shape), first.model,
        extents.shape(input.tensor:shape()), input.model)
      if not (method.has_base and not method.models) then cbk.fail("shape", found, { key = step.key }) end
      cbk.warn(found .. "; that model is left out there")
    end
  end
  return out
end

---@return MergeInput[]
function Planner:cut(step, inputs, first)
  local method, rows, columns = methods.all[self.config.method], math.huge, math.huge
  for _, input in ipairs(inputs) do
    local shape = input.tensor:shape()
    rows, columns = math.min(rows, shape[1]), math.min(columns, shape[2])
  end
  local own = first.tensor:shape()
  local is_of_base = method.has_base and not method.models
  if self.config.keeps_tokens or is_of_base and (rows < own[1] or columns < own[2]) or columns < own[2] then
    cbk.fail("shape", ("'%s' has other sizes in the models (%s in '%s'): %s"):format(step.key, extents.shape(own), first.model,
      self.config.keeps_tokens and "with tokenizer_source: base, all must have the base model's vocabulary"
      or "only models with more rows than the base model's can be cut"), { key = step.key })
  end
  cbk.warn(("'%s' has other numbers of rows in the models: the first %d of each are merged"):format(step.key, rows))
  self.words = rows
  for _, input in ipairs(inputs) do input.tensor = input.tensor:slice(0, 0, rows) end
  return inputs
end

-- --- the result of one tensor

---A text that two steps share if their results are the same; nil if that cannot be known.
local function signature(inputs, globals)
  local parts = {}
  for _, input in ipairs(inputs) do
    local id = ties.view_id(input.tensor)
    if not id then return nil end
    parts[#parts + 1] = ("%s %s %s %s"):format(id, tostring(input.weight), tostring(input.density), tostring(input.scale))
  end
  for _, name in ipairs { "normalize", "rescale", "lambda", "t" } do parts[#parts + 1] = tostring(globals[name]) end
  return table.concat(parts, ";")
end

---Whole numbers, flags and buffers are not merged: all models must have the same.
local function kept(step, inputs)
  local first = inputs[1]
  for _, input in ipairs(inputs) do first = input.is_base and input or first end
  for _, input in ipairs(is_floating(first.tensor) and {} or inputs) do
    local one, other = first.tensor, input.tensor
    local is_alike = one.dtype == other.dtype and extents.shape(one:shape()) == extents.shape(other:shape())
    if not (is_alike and (one:same(other) or one:compare(other).different == 0)) then
      cbk.fail("value", ("'%s' holds %s, which cannot be merged, and differs between '%s' and '%s'"):format(step.key, one.dtype,
        first.model, input.model), { key = step.key })
    end
  end
  return first.tensor
end

---@param step MergeStep
---@return Tensor
function Planner:merged(step)
  local inputs = self:inputs(step)
  local config, method = self.config, methods.all[self.config.method]
  for _, input in ipairs(inputs) do
    if not is_floating(input.tensor) or is_buffer(step.key) then return kept(step, inputs) end
  end
  local globals = self:set_parameters(step, inputs)
  inputs = self:aligned(step, inputs)
  local id = is_token_weight(step.key) and signature(inputs, globals)
  if id and self.known[id] then return self.known[id] end
  local dtype = result_dtype(config, inputs)
  local wide = dtype == "float64" and "float64" or "float32"
  local rounded = (config.dtype or method.rounds_like_base) and dtype or nil
  for _, input in ipairs(inputs) do
    if rounded then input.tensor = input.tensor:to(rounded) end
    if method ~= methods.all.passthrough then input.tensor = input.tensor:to(wide) end
  end
  local merged = method.merge(inputs, globals):to(dtype)
  if config.out_dtype then merged = merged:to(config.out_dtype) end
  if id then self.known[id] = merged end
  return merged
end

---A tensor that no other key has: layers that are taken twice are two layers, not tied weights.
function Planner:distinct(key, tensor)
  local id = not is_token_weight(key) and ties.view_id(tensor)
  if not id then return tensor end
  if self.taken[id] then return cbk.cat({ tensor }, 0) end
  self.taken[id] = true
  return tensor
end

---@param step MergeStep
function Planner:add(step)
  local fine, problem = pcall(function() self.root[step.key] = self:distinct(step.key, self:merged(step)) end)
  if fine then return end
  if type(problem) ~= "table" or problem.key then error(problem, 0) end
  cbk.fail(problem.code, ("cannot merge '%s': %s"):format(step.key, problem.problem),
    { key = step.key, advice = problem.advice, field = problem.field })
end

-- --- all tensors

---The keys of several models, in the order of the first.
---@param models MergeModel[]
---@return string[]
local function union(models)
  local seen, out = {}, {}
  for i, one in ipairs(models) do
    for _, key in ipairs(one.keys) do
      if not seen[key] and not (i > 1 and is_buffer(key)) then seen[key], out[#out + 1] = true, key end
    end
  end
  return out
end

---@param slice MergeSlice
---@return MergeModel[]
function Planner:sources(slice)
  local out = {}
  for i, source in ipairs(slice.sources) do out[i] = self:model(source) end
  return out
end

---Adds a tensor outside of the layers.
function Planner:add_loose(slice, key)
  local keys = {}
  for i in ipairs(slice.sources) do keys[i] = key end
  self:add { slice = slice, key = key, keys = keys, t = 0 }
end

---The t of a layer: 1 if it is the only one.
local function place_in(layer, count) return count > 1 and layer / (count - 1) or 1 end

---Merges whole models.
---@param slice MergeSlice
function Planner:add_models(slice)
  local models = self:sources(slice)
  for _, one in ipairs(models) do
    for prefix, count in pairs(models[1].depths) do
      if one.depths[prefix] ~= count then
        cbk.fail("shape", ("'%s' has %d layers of '%s', but '%s' has %d; merge equal parts of them with slices"):format(
          models[1].path, count, prefix, one.path, one.depths[prefix] or 0))
      end
    end
  end
  for _, key in ipairs(union(models)) do
    local prefix, layer = model.layer_of(key)
    local keys = {}
    for i in ipairs(models) do keys[i] = key end
    self:add { slice = slice, key = key, keys = keys, t = prefix and place_in(layer, models[1].depths[prefix] or 1) or 0 }
  end
end

---What is behind the numbers in the keys of layers.
---@param models MergeModel[]
---@return string[]
local function layer_names(models)
  local seen, out = {}, {}
  for _, one in ipairs(models) do
    for _, key in ipairs(one.keys) do
      local _, _, rest = model.layer_of(key)
      if rest and not seen[rest] then seen[rest], out[#out + 1] = true, rest end
    end
  end
  return out
end

---Adds the layers of a slice behind those before it.
---@param slice MergeSlice
function Planner:add_layers(slice)
  local models, first = self:sources(slice), slice.sources[1].range
  local count = first[2] - first[1]
  for i, source in ipairs(slice.sources) do
    local depth = models[i].depths[models[i]:prefix()]
    models[i]:check_layers(models[i]:prefix())
    if source.range[2] > depth then
      cbk.fail("config", ("%s.layer_range: '%s' has %d layers, so that [%d, %d] is beyond its end"):format(source.place, source.model,
        depth, source.range[1], source.range[2]))
    elseif source.range[2] - source.range[1] ~= count then
      cbk.fail("config", ("%s: all sources of a slice must have the same number of layers, found %d and %d"):format(slice.place, count,
        source.range[2] - source.range[1]))
    end
  end
  local prefix = models[1]:prefix()
  local rests = layer_names(models)
  for offset = 0, count - 1 do
    for _, rest in ipairs(rests) do
      local keys, exists = {}, false
      for i, source in ipairs(slice.sources) do
        keys[i] = ("%s.%d.%s"):format(models[i]:prefix(), source.range[1] + offset, rest)
        exists = exists or models[i].root[keys[i]] ~= nil
      end
      if exists then
        self:add { slice = slice, key = ("%s.%d.%s"):format(prefix, self.depth, rest), keys = keys, t = place_in(offset, count) }
      end
    end
    self.depth = self.depth + 1
  end
end

---What comes before the layers is the first slice's, what comes behind them the last one's.
function Planner:add_slices()
  local slices = self.config.slices
  local first, last = slices[1], slices[#slices]
  self.depth = 0
  for _, key in ipairs(union(self:sources(first))) do
    if not model.layer_of(key) and model.is_before_layers(key) then self:add_loose(first, key) end
  end
  for _, slice in ipairs(slices) do self:add_layers(slice) end
  for _, key in ipairs(union(self:sources(last))) do
    if not model.layer_of(key) and not model.is_before_layers(key) then self:add_loose(last, key) end
  end
end

---Leaves out a head that is tied to the embeddings, as transformers does when it saves a model. Whether a head that was tied in a model
---no longer is.
---@return boolean
function Planner:settle_ties()
  local head, embedding = token_weights.pair_in(self.root)
  if not (head and embedding) then return false end
  local base = self.models[self.config.base or self.config.slices[1].sources[1].model]
  if self.root[head]:same(self.root[embedding]) then
    if not (base.config and base.config.tie_word_embeddings == false) then self.root[head] = nil end
    return false
  end
  for _, one in pairs(self.models) do
    if one:is_tied() then return true end
  end
  return self.has_tied_source or false
end

---@param config MergeConfig
---@param models table<string, MergeModel>   by path
---@param seed integer
---@return MergePlan
function plan.make(config, models, seed)
  local self = setmetatable({ config = config, models = models, seed = seed, root = cbk.dict(), known = {}, taken = {} }, Planner)
  if config.is_sliced then self:add_slices() else self:add_models(config.slices[1]) end
  return { root = self.root, depth = self.depth, words = self.words, is_untied = self:settle_ties() }
end

return plan
