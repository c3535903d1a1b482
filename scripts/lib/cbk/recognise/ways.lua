-- What can be converted of a checkpoint, from which format, and to which.

local cbk = require "cbk"
local advice = require "cbk.recognise.advice"
local candidates = require "cbk.recognise.candidates"
local configs = require "cbk.recognise.configs"
local contents = require "cbk.recognise.contents"
local converters = require "cbk.converters"
local detect = require "cbk.recognise.detect"
local doubts = require "cbk.recognise.doubts"
local errors = require "cbk.errors"
local guess = require "cbk.recognise.guess"
local kinds = require "converters.engine.kinds"
local release = require "cbk.recognise.release"
local report = require "cbk.report"
local spec_tree = require "cbk.spec_tree"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local ways = {}

---What a job reads of a checkpoint: the model in it.
---@param checkpoint Checkpoint
---@param route Route
---@param config Dict   of the source, the whole file
---@return JobInput
---@return Contents
function ways.input(checkpoint, route, config)
  kinds.check_root(checkpoint.root)
  local is_hf = route.src == "hf"
  local class, of = catalogue.class_of(route.model, route.path[1].converter, route.src)
  local fine, section = pcall(is_hf and configs.hugging_face_section or trainer.model, config)
  local fit = class and fine and kinds.is_dict(section) and function(keys) return guess.mistakes(class, section, of, keys) end or nil
  local input = converters.input(checkpoint)
  if not is_hf and not kinds.is_dict(checkpoint.root, "model") then return input, { root = checkpoint.root, taken = {}, beside = {} } end
  local found = contents.of(checkpoint.root, not is_hf, fit)
  input.source, input.whole = found.root, checkpoint.root
  return input, found
end

---The format that --src-fmt cs-auto means.
---@param checkpoint Checkpoint
---@param name string     a model
---@param tgt_fmt string
---@param config Dict
---@return string
function ways.auto_format(checkpoint, name, tgt_fmt, config)
  local model = catalogue.find(name)
  local tgt, old = catalogue.resolve(tgt_fmt, model), spec_tree.old_file(checkpoint)
  local evidence, files = release.evidence(checkpoint, config, old.has_scalar_dicts), { root = checkpoint.root, config = config }
  local found = detect.release(evidence, name, tgt, files, "name the release with --src-fmt cs-X.Y")
  return model and catalogue.format_at(model, found) or "cs-" .. found
end

---The format that a checkpoint can be converted to, found by trying; nil and the reason if there is none.
---@param found Identity
---@param checkpoint Checkpoint
---@param config Dict|nil   of the file `found.config`
---@return string|nil target, string|nil reason
function ways.target(found, checkpoint, config)
  if not found.model then return nil end
  if not config then
    return nil, found.is_broken and "to convert it, correct the config or name another with --config"
      or "to convert it, name its config with --config"
  end
  local model = catalogue.find(found.model)
  local fine, result = report.quietly(function()
    local probe = found.format == "hf" and "cs-current" or "hf"
    local format = (found.format == "hf" or found.release) and found.format
      or ways.auto_format(checkpoint, found.model, probe, config)
    local _, target = candidates.way_from(model, format)
    if not target then cbk.fail("unsupported", "no converter reads it") end
    local route = converters.route(found.model, format, target)
    local job = converters.job(route, ways.input(checkpoint, route, config), { advise = advice })
    converters.config(found.model, job, config)
    converters.convert.checkpoint(job, job.source)
    doubts.refuse(job, config, job.source)
    return target
  end)
  if fine then return result end
  return nil, ("it cannot be converted: %s"):format(errors.text(errors.outside(result, "cannot convert the checkpoint")))
end

return ways
