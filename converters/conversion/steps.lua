-- The steps of a conversion: its job, and what the config and the checkpoint have in common.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"
local releases = require "converters.engine.releases"

local steps = {}

---@class StepConfigs   The model sections of a step, by side, complete with defaults.
---@field converter Converter   that is run
---@field left Dict
---@field right Dict
---@field given? Dict      the model's fields in the user's file, without defaults; nil: there is no config
---@field assumed table<string, boolean>   fields of the right side that come from defaults, not from the file
---@field moves? Moves     between releases: of the whole file
---@field scale? fun(key: string, value: any): any, string?   folds muP multipliers into a tensor
---@field untie? fun(source: Dict): Dict

---@class Job
---@field model Model
---@field zoo_name string
---@field path Path
---@field drop_unmatched? boolean
---@field take_unmatched? fun(key: string)   gets the keys without a rule, which are an error only if weights are missing
---@field seed? integer
---@field deduplicated? boolean|table<string, boolean>   At.deduplicated of the source file, or of each part's file
---@field source? Dict          the tree of the source checkpoint; nil if only a config is converted
---@field whole? Dict           the whole checkpoint around that model, for commands in messages
---@field keeps_fields? boolean   the checkpoint is converted, too, so that no field of a Hugging Face config is lost (hf_config)
---@field hf_config? Dict        the Hugging Face config fields that the checkpoint keeps. For a source, the code that opens it
---                              sets them before the config is converted; otherwise converting the config sets them
---@field keeps_lists? boolean   states to load and tags may be lists in the trainer layout; the original converter drops these
---@field loader? LoaderOptions   for states of data loaders that are read from files
---@field warnings? Warnings     gets those of the steps; default: they go where all warnings go
---@field trace? fun(record: KeyRecord, step: integer)
---@field configs StepConfigs[]   of each step, once the config is converted
---@field files (Dict|nil)[]   the config file before each step, and after the last; a layout of the user's own may have none
---@field plain? Dict        a source whose weights are known not to be quantised
---@field doubts? string[]   what the output lacks, or has without need; each was a warning
---@field is_unchecked? boolean   the warning that the model has no class has been printed
---@field is_config_only? boolean   no checkpoint is converted after it: `configs` and `files` are not kept
---@field copies string[]   the steps that change metadata and config only, no tensor

---Runs `body`. If there are several steps, its errors name the step.
---@param job Job
---@param i integer   the step
function steps.run(job, i, body, ...)
  local fine, result
  if job.warnings then fine, result = job.warnings:run(body, job, i, ...) else fine, result = pcall(body, job, i, ...) end
  if fine then return result end
  if result == nil then cbk.fail("converter", "a function of the converter called error() without a text") end
  if #job.path > 1 then errors.put_in(result, ("%s -> %s"):format(job.path[i].src, job.path[i].tgt)) end
  error(result, 0)
end

---The tables of keys that a step runs, each with its configs. The parts of a composite have their own sections.
---@param configs StepConfigs
---@return { converter: Converter, configs: table }[]
function steps.tables(configs)
  local out = {}
  for k, part in ipairs(configs.converter.components or {}) do
    local own = { left = configs.left[part.left], right = configs.right[part.right], assumed = configs.assumed[part.right] }
    out[k] = { converter = part, configs = own }
  end
  return #out > 0 and out or { { converter = configs.converter, configs = configs } }
end

---Whether a step reads or writes a layout of the user's own, or is of a table that needs no config and gets none: it reads tensors alone,
---without what surrounds a model in files of the Model Zoo.
---@param step Step
---@param config Dict|nil   the whole file that is read
---@return boolean
function steps.is_bare(step, config)
  local needs_none = config == nil and step.converter.without_config == true
  return needs_none or catalogue.is_own_layout(step.src) or catalogue.is_own_layout(step.tgt)
end

---Fails if the weights of the source are quantised.
---@param job Job
---@param root Dict
---@param config Dict|nil   of the source, the whole file
function steps.refuse_quantised(job, root, config)
  quantised.refuse(root, not catalogue.release(job.path[1].src) and config or nil, "cannot convert the checkpoint")
  job.plain = root
end

---Whether a step drops all parts of a checkpoint but its model.
---@param step Step
function steps.keeps_model_only(step) return releases.keeps_model_only(step.src, step.tgt) end

---Warns about parts of a file that only the Model Zoo's files have.
---@param step Step
---@param what string   the file
---@param names string[]
function steps.warn_of_others(step, what, names)
  if #names == 0 then return end
  local whose = step.tgt == "hf" and "Hugging Face files" or ("files of the layout '%s'"):format(step.tgt)
  cbk.warn(("%s describe the model only; left out of the %s: %s"):format(whose, what, naming.all_folded(names)))
end

return steps
