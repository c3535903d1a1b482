-- One conversion there and back, in memory and lazily. It reads values only where tensors are compared.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local contents = require "converters.conversion.contents"
local convert = require "converters.conversion.convert"
local errors = require "cbk.errors"
local hf_config = require "converters.modelzoo.hf_config"
local kinds = require "converters.engine.kinds"
local logits = require "cbk.logits"
local rules = require "converters.engine.rules"
local steps = require "converters.conversion.steps"
local warnings = require "cbk.warnings"

local trip = {}

---@class RoundTrip
---@field model Model
---@field converter Converter
---@field side Side          where it begins
---@field src string         formats
---@field tgt string
---@field config Dict|nil    the whole file
---@field source Dict|nil    the tree of the checkpoint
---@field deduplicated? boolean|table<string, boolean>
---@field computes? boolean   whether the logits of both sides are compared

---@param is_back boolean
---@param source Dict|nil
---@return Job
local function job_of(one, is_back, source)
  local src, tgt, side = one.src, one.tgt, one.side
  if is_back then src, tgt, side = tgt, src, rules.other[side] end
  return {
    model = one.model, zoo_name = one.model.name or one.model.model,
    path = { { converter = one.converter, side = side, src = src, tgt = tgt } }, source = source,
    deduplicated = not is_back and one.deduplicated or false, keeps_fields = source ~= nil, seed = 0,
    hf_config = hf_config.of(source),
  }
end

---Runs `f` without its warnings.
---@return any result, any problem   if it fails
local function quietly(f, ...)
  local fine, result = warnings.quietly(f, ...)
  if fine then return result end
  if type(result) == "table" and result.code == "interrupted" then error(result, 0) end
  return nil, result
end

---The job of the way there with its config converted, as the table reads it; nil and the reason if the table refuses it.
---@param one RoundTrip
---@return Job|nil, string|nil why
function trip.read(one)
  local job = job_of(one, false, nil)
  local _, problem = quietly(convert.config, job, one.config)
  if problem then return nil, errors.text(problem) end
  return job
end

---@param trace? fun(record: KeyRecord, is_back: boolean)
local function run(one, trace)
  local source = one.source
  if steps.is_bare({ converter = one.converter, src = one.src, tgt = one.tgt }, one.config) then
    source = contents.of_layout(source).root
  end
  local out = { source = source }
  local function way(is_back, root, config)
    local job = job_of(one, is_back, root)
    if trace then job.trace = function(record) trace(record, is_back) end end
    local made = convert.config(job, config)
    return job, convert.checkpoint(job, root), made
  end
  local target, config
  out.there, target, config = way(false, source, one.config)
  out.target = target
  out.back, out.result, out.config = way(true, target, config)
  return out
end

---@class Trip
---@field source Dict    what was read
---@field target Dict
---@field result Dict    what came back
---@field config Dict|nil   the config that came back
---@field there Job
---@field back Job

---@param one RoundTrip
---@return Trip|nil, string|nil why   without advice, which is about options of `cbk convert`
function trip.run(one)
  local made, problem = quietly(run, one)
  if made then return made end
  local plain = errors.with(problem, {})
  if type(plain) == "table" then plain.advice = nil end
  return nil, errors.text(plain)
end

---What happened to each key: the records of the way there by the keys that are read, of the way back by those that are written, and of the
---way there by those in between.
---@param one RoundTrip
---@return table<string, KeyRecord> there, table<string, KeyRecord> back, table<string, KeyRecord> between
function trip.records(one)
  local there, back, between = {}, {}, {}
  quietly(run, one, function(record, is_back)
    local key = record.target
    if is_back and key then back[key] = record.what ~= "part" and record or back[key] end
    if not is_back then there[record.source] = there[record.source] or record end
    if not is_back and key then between[key] = record end
  end)
  return there, back, between
end

---The tensors of a model's tree by their keys; those of a composite as "part/key".
---@param root Dict
---@return table<string, Tensor> tensors, string[] order
function trip.tensors(root)
  local out, order = {}, {}
  local function add(map, prefix)
    for key, value in cbk.items(map) do
      local name = type(key) == "string" and prefix .. key
      if name and kinds.is_tensor(value) then
        out[name], order[#order + 1] = value, name
      elseif name and prefix == "" and kinds.is_dict(value) then
        add(value, name .. "/")
      end
    end
  end
  add(kinds.is_dict(root, "model") and root.model or root, "")
  return out, order
end

---The tree that a trip reads, from tensors as `trip.tensors` names them: the parts of a composite are dicts on the left.
---@param one RoundTrip
---@param tensors Dict
---@return Dict
function trip.tree(one, tensors)
  if not (one.converter.components and one.side == "left") then return tensors end
  local out = cbk.dict()
  for key, tensor in cbk.items(tensors) do
    local part, name = key:match "^([^/]*)/(.*)$"
    out[part] = out[part] or cbk.dict()
    out[part][name] = tensor
  end
  return out
end

---The tensors that the class of a side has; nil if no class describes it.
---@param one RoundTrip
---@param job Job   of the way there
---@param side Side
---@return ClassTensors|nil
function trip.known(one, job, side)
  local both = job.configs[1]
  local class, release = catalogue.class_of(one.model, both.converter, side == one.side and one.src or one.tgt)
  if not class or both.converter.components then return nil end
  return (quietly(class.tensors, class, both[side], { release = release }))
end

---How far the logits of what was read and of what was made of it differ; nil and the reason if they are not computed.
---@param one RoundTrip
---@param made Trip
---@return LogitsDifference|nil, string|nil why
function trip.logits(one, made)
  local read, written = trip.known(one, made.there, one.side), trip.known(one, made.there, rules.other[one.side])
  if not (read and written) then return nil, "no class describes the tensors of both sides" end
  return logits.compare({ list = read, tensors = (trip.tensors(made.source)) }, { list = written, tensors = (trip.tensors(made.target)) })
end

return trip
