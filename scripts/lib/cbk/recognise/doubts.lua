-- Checks that files are of the release and model that the user named, and that the user's own converter writes what the class can read.
-- Steps between releases accept any config and any key. The model's class knows its names and the weights it needs; its table to Hugging
-- Face knows the values of its fields.

local cbk = require "cbk"
local architectures = require "cbk.recognise.architectures"
local config_changes = require "cbk.config_changes"
local catalogue = require "converters.engine.catalogue"
local check_config = require "converters.authoring.check_config"
local checkpoint = require "converters.modelzoo.checkpoint"
local converters = require "cbk.converters"
local fit = require "converters.engine.fit"
local kept_config = require "cbk.recognise.kept_config"
local kinds = require "converters.engine.kinds"
local likeness = require "cbk.recognise.likeness"
local names = require "cbk.recognise.names"
local naming = require "cbk.naming"
local steps = require "converters.conversion.steps"
local ties = require "converters.engine.ties"
local trainer = require "converters.modelzoo.trainer"
local warnings = require "cbk.warnings"

local doubts = {}

---The changes that are skipped if a checkpoint is older than the user says.
---@param stated string   the format in the file
local function missed(job, stated)
  local from, to, target = (catalogue.place_of(stated)), (catalogue.place_of(job.src)), (catalogue.place_of(job.tgt))
  local is_passed_over = from and from < to and (not target or to <= target) and catalogue.path(job.model, stated, job.src)
  return is_passed_over and (", without the changes from %s to %s"):format(stated, job.src) or ""
end

---Warns about metadata with another release than the user says. If both have the same table to Hugging Face, it makes no difference.
---@param job Job
---@param root Dict       the checkpoint of a release
---@param option string   the option for the release: "--src-fmt"
---@return string|nil
function doubts.release(job, root, option)
  local found = checkpoint.release(root)
  if not found then return nil end
  local stated = catalogue.resolve("cs-" .. found .. job.src:match "^cs%-%d+%.%d+(.*)$")
  if stated == job.src then return nil end
  local direct = job.tgt == "hf" and #job.path == 1 and catalogue.direct(job.model, stated, "hf")
  if direct and direct.converter == job.path[1].converter then return nil end
  local advice = catalogue.path(job.model, stated, job.tgt) and ("; if __metadata__ is right, use %s %s"):format(option, stated) or ""
  return ("the checkpoint's __metadata__ says release %s, but %s is %s: converted as %s%s%s"):format(found, option, job.src, job.src,
    missed(job, stated), advice)
end

---A Hugging Face config that names a class which cbk does not know, for a checkpoint with the tensors of another.
---@param job Job
---@param config Dict
---@return string|nil
function doubts.foreign_class(job, config)
  local class, own = architectures.foreign(config), job.model.classes and job.model.classes.left
  return class and own and ("the config says architectures=%s, which is not supported: its tensors are converted as those of %s, and if it "
    .. "computes something else with them, the new model does not"):format(class, own.name) or nil
end

---Fields that the new config lacks, and that its conversion to Hugging Face needs.
---@param job Job
---@param config Dict   the whole file, of the target
---@return string|nil
function doubts.unconvertible(job, config)
  if not catalogue.path(job.model, job.tgt, "hf") then return nil end
  local fine, problem = warnings.quietly(function()
    converters.convert.config(converters.job(converters.route(job.model.model, job.tgt, "hf")), config)
  end)
  if fine or type(problem) ~= "table" or problem.found ~= "nothing" then return nil end
  local lacking = {}
  for i, field in ipairs(problem.fields or { problem.field }) do lacking[i] = trainer.place_of_model(config) .. "." .. field end
  return ("the new config lacks %s, without which cbk cannot convert it to hf: %s"):format(naming.listed(lacking, 5),
    problem.advice or "add " .. (#lacking > 1 and "them" or "it"))
end

---Weights that the model's config needs and the checkpoint lacks.
---@param job Job
---@param config Dict   the whole file, of the target
---@param root Dict     the target checkpoint
---@return string|nil
function doubts.lacking(job, config, root)
  local of, lacking = names.of(job.model, job.tgt, config), {}
  for _, place in ipairs(of and of.places or {}) do
    local keys = {}
    for _, key in ipairs(names.keys_of(root)) do
      if key:sub(1, #place) == place then keys[#keys + 1] = key:sub(#place + 1) end
    end
    local found = fit.of(of.known, keys, function() end)
    for _, part in ipairs { { keys = found.missing }, unpack(found.lacks) } do
      for _, key in ipairs(part.keys) do lacking[#lacking + 1] = place .. key end
    end
  end
  if #lacking == 0 then return nil end
  return ("the checkpoint lacks %d %s that its config needs (%s): the output lacks them as well"):format(#lacking,
    #lacking == 1 and "weight" or "weights", naming.folded(lacking))
end

---Weights that the config ties, but that differ. A dry run (job.trace) reads no values.
---@param job Job
---@param config Dict   the whole file, of the target
---@param root Dict     the target checkpoint
---@return string|nil
function doubts.untied(job, config, root)
  local model = not job.trace and kinds.is_dict(root, "model") and root.model or cbk.dict()
  local of = names.of(job.model, job.tgt, config)
  for _, place in ipairs(of and of.places or {}) do
    local function value(key) return model[place .. key] or model[place .. "model." .. key] end
    for _, one in ipairs(of.known) do
      if one.tied_to and kinds.differ(value(one.key), value(one.tied_to)) then
        return ("the config ties '%s%s' and '%s%s', but their values differ: both are kept"):format(place, one.key, place,
          one.tied_to)
      end
    end
  end
end

---Fields that contradict the model and fit another: of the config as it is read, and of the new one. In that, only the user's fields count:
---the steps fill in values, too.
---@param job Job
---@param old { config: Dict, root: Dict }   before the steps
---@param new { config: Dict, root: Dict }   after them
---@return string|nil
function doubts.other_model(job, old, new)
  local before = likeness.warning(job.model, job.src, old.config, old.root, function() return true end)
  if before then return before end
  local moves, place = {}, trainer.place_of_model(new.config)
  for _, configs in ipairs(job.configs) do
    for _, move in ipairs(configs.moves or {}) do moves[#moves + 1] = move end
  end
  return likeness.warning(job.model, job.tgt, new.config, new.root, function(field)
    return cbk.find(old.config, config_changes.origin(("%s.%s"):format(place, field), moves)) ~= nil
  end)
end

---Mistakes of a user's own converter in the config that it writes for the Model Zoo: field names that the class does not have, missing
---fields with a default that asks for tensors, and tensors that the config ties although they differ.
---@param job Job
---@param config Dict|nil   that is written
---@param root Dict     that is written
---@param add fun(text: string)
function doubts.own_converter(job, config, root, add)
  if not catalogue.is_own(job.model.model) or not catalogue.release(job.tgt) then return end
  local converter = job.path[#job.path].converter
  local class, release = catalogue.class_of(job.model, converter, job.tgt)
  if not (class and config) then return end
  for _, finding in ipairs(check_config.names({ config = converter.config, classes = { right = class } }, nil, true)) do
    add(finding.text)
  end
  local model = root.model or cbk.dict()
  local known = class:tensors(trainer.model(config), { release = release })
  for _, difference in ipairs(job.watch and {} or ties.differences(known, model)) do
    add(("in the output, %s; set the field that ties them with a pair or with fields.fixed.right"):format(difference))
  end
  for _, one in ipairs(fit.of(known, cbk.keys(model), function() end).unsaid) do
    add(("the output's config does not say %s, whose default means %d biases that the output lacks: %s; set it with "
      .. "fields.fixed.right"):format(one.name, #one.keys, naming.listed(one.keys)))
  end
end

---Fails if a checkpoint between releases is empty, or if the model does not know most of its weight names.
---@param job Job
---@param config Dict|nil   the whole file, of the source
---@param root Dict     the source checkpoint
function doubts.refuse(job, config, root)
  local is_checked = job.src == "hf" or job.tgt == "hf" or steps.is_bare(job.path[1], config)
  if is_checked then return end -- with the keys, by the tables
  if #names.keys_of(root) == 0 then cbk.fail("key", "the checkpoint's 'model' has no weights: nothing to convert") end
  names.check(job.model.model, job.src, config, root, "--model and --src-fmt")
end

---All doubts about the release and model that the user named, and about the user's own converter.
---@param job Job
---@param old { config: Dict|nil, root: Dict }   the files that are read
---@param new { config: Dict|nil, root: Dict }   the files that are written
---@return string[]
function doubts.all(job, old, new)
  local out = {}
  local function add(text) out[#out + 1] = text end
  doubts.own_converter(job, new.config, new.root, add)
  if steps.is_bare(job.path[1], old.config) then return out end
  if job.src == "hf" then
    add(doubts.foreign_class(job, old.config))
    return out
  end
  add(doubts.release(job, old.root, "--src-fmt"))
  add((kept_config.doubt(old.config, old.root)))
  if job.tgt == "hf" then return out end
  add(names.check(job.model.model, job.tgt, new.config, new.root, "--model and --src-fmt"))
  add(doubts.unconvertible(job, new.config))
  add(doubts.lacking(job, new.config, new.root))
  add(doubts.untied(job, new.config, new.root))
  add(doubts.other_model(job, old, new))
  return out
end

return doubts
