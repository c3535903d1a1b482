-- The checkpoints of a run: everything that the next step depends on.

local adapters = require "cbk.recognise.adapters"
local cbk = require "cbk"
local catalogue = require("cbk.converters").catalogue
local checkpoints = require "cbk.training.checkpoints"
local configs = require "cbk.diff.configs"
local cstorch = require "cstorch"
local fields = require "cbk.training.fields"
local kinds = require "converters.engine.kinds"
local lora = require "converters.modelzoo.lora"
local naming = require "cbk.naming"
local params = require "cbk.training.params"
local ordered_map = require "cstorch.ordered_map"
local scalar = require "cbk.scalar"
local systems = require "cstorch.run.systems"

local saving = {}

local NAME = "checkpoint_{step}.mdl"

---@param given TrainingParams
local function name_of(given) return given.init.checkpoint.checkpoint_name or NAME end

---Saves the state after a step, and removes the checkpoints that are not to be kept. In a closure of a checkpoint step.
---@param self TrainingRun
---@param step integer
---@return string path
function saving.save(self, step)
  local root = ordered_map.new()
  root.model = self.module:state_dict()
  self.optimizing:save(root)
  root.dataloader = self.loader:state_dict()
  root.global_step = step
  local release = catalogue.release(catalogue.resolve(self.model.format))
  root.__metadata__ = { { version = release .. ".0", model_name = self.model.name, params = self.params.config } }
  local dir, name = self.params.init.model_dir, name_of(self.params)
  local path = systems.exchange(checkpoints.path(dir, name, step))[1] -- of several ranks, the first one looks what is there
  cstorch.save(root, path)
  local kept = self.params.init.callbacks.KeepNCheckpoints
  if kept and kept.n then checkpoints.keep(dir, name, kept.n, self.others) end
  return path
end

---The checkpoints in a run's folder that it did not save.
---@param given TrainingParams
---@param last number   those up to this step
---@return table<string, boolean>   by their paths
function saving.others(given, last)
  local out = {}
  for _, one in ipairs(saving.all(given)) do
    if one.step <= last then out[one.path] = true end
  end
  return out
end

---The checkpoints of a run's folder, by their steps.
---@param given TrainingParams
---@return SavedCheckpoint[]
function saving.all(given) return checkpoints.list(given.init.model_dir, name_of(given)) end

local function keys_of(section)
  local out = {}
  for key in cbk.items(section) do out[#out + 1] = tostring(key) end
  return out
end

---Whether a model section has low-rank matrices.
---@param section Dict
---@return boolean
function saving.has_adapters(section) return adapters.matrix_in(keys_of(section)) ~= nil end

---The last checkpoint of a run's folder. Beside those of a run with low-rank matrices there may be those that it began with, and they
---may have later steps.
---@param given TrainingParams
---@return SavedCheckpoint|nil
function saving.last(given)
  local list, wanted = saving.all(given), lora.is_in(given.config)
  for i = #list, 1, -1 do
    local fine, opened = pcall(cbk.open, list[i].path)
    local is_like = not fine or kinds.is_dict(opened.root, "model") and saving.has_adapters(opened.root.model) == wanted
    if is_like then return list[i] end
  end
  return list[#list]
end

---The state dict of the model's parameters out of a checkpoint's model section, by its own names.
---@param self { model: TrainingModel, module: cstorch.models.Trainable }
---@param section Dict
---@return table
local function weights_of(self, section)
  local out, list, own_state = ordered_map.new(), self.model.list, self.module:state_dict()
  for key, tensor in cbk.items(section) do
    local own = list:own_key(key)
    local one = own and list.by_key[own]
    local is_of_others = one and one.buffer and not own_state[own]
    if not is_of_others then out[own or key] = tensor end
  end
  for key, tensor in cstorch.items(own_state) do -- matrices that a run adds to a checkpoint without them
    if out[key] == nil and key:find "%.lora_[AB]$" then out[key] = tensor end
  end
  for _, one in ipairs(list) do
    local is_missing = own_state[one.key] ~= nil and out[one.key] == nil
    if is_missing then out[one.key] = one.tied_to and out[one.tied_to] or one.buffer and own_state[one.key] or nil end
  end
  return out
end

---Loads the weights of a checkpoint.
---@param self { params: TrainingParams, model: TrainingModel, module: cstorch.models.Trainable }
---@param section Dict   the model's
---@param path string
function saving.load_weights(self, section, path)
  local is_strict = self.params.init.checkpoint.disable_strict_checkpoint_loading ~= true
  if is_strict and not self.module.adapted then adapters.check_folded(path, keys_of(section)) end
  self.module:load_state_dict(weights_of(self, section), { strict = is_strict })
end

---What to do to begin with the optimizer and the schedules of the file.
---@param path string
---@param is_own boolean   the run saved it
local function advice_to_begin(path, is_own)
  local callback = "the callback LoadCheckpointStates with `model` takes its weights alone"
  return is_own and ("with another --model-dir and --checkpoint %s, %s"):format(cbk.shown(path), callback) or callback
end

local check_classes

---Fails where the state of one class would be loaded into another one.
---@param given TrainingParams
---@param saved any      a map with the name of a class, as it was when the checkpoint was saved
---@param own any        that of the file
---@param place string   of the map
---@param from { path: string, advice: string }   the checkpoint, and what to do
local function check_class(given, saved, own, place, from)
  if not (kinds.is_dict(saved) and kinds.is_dict(own)) then return end
  local saved_name, saved_options = cbk.items(saved)(saved)
  local name, options = cbk.items(own)(own)
  local at = ("%s.%s"):format(place, tostring(name))
  if tostring(saved_name):lower() ~= tostring(name):lower() then
    params.refuse(given, at, ("%s has the state of %s, which does not fit %s; %s"):format(cbk.quote(from.path), tostring(saved_name),
      tostring(name), from.advice))
  end
  if not (kinds.is_dict(saved_options) and kinds.is_dict(options)) then return end
  check_class(given, saved_options.scheduler, options.scheduler, at .. ".scheduler", from)
  check_classes(given, saved_options.schedulers, options.schedulers, at .. ".schedulers", from)
end

---The same for each of a list.
function check_classes(given, saved, own, place, from)
  if not (kinds.is_list(saved) and kinds.is_list(own)) then return end
  for i = 1, math.min(#saved, #own) do check_class(given, saved[i], own[i], ("%s.%d"):format(place, i - 1), from) end
end

---The section trainer.init of the file that a checkpoint was saved with; nil if it does not say.
---@param root Dict   of the checkpoint
---@return Dict|nil
local function saved_init(root)
  local metadata = kinds.is_list(root, "__metadata__") and root.__metadata__[1]
  local saved = kinds.is_dict(metadata) and kinds.is_dict(metadata, "params") and kinds.is_dict(metadata.params, "trainer")
    and metadata.params.trainer.init
  return kinds.is_dict(saved) and saved or nil
end

local MOST_CHANGES = 4 -- that a message names

---What the file says otherwise than the one that a checkpoint was saved with: "trainer.init.model.num_heads is 2 there and 4 in 'a.yaml'".
---@param given TrainingParams
---@param saved Dict       sections of trainer.init
---@param own Dict         the same of the file
---@return string|nil
local function changes(given, saved, own)
  local texts = {}
  for _, one in ipairs(configs.differences(saved, own)) do
    local function shown(value) return value == nil and "nothing" or cbk.json(value) end
    texts[#texts + 1] = ("trainer.init.%s is %s there and %s in '%s'"):format(one.field, shown(one.a), shown(one.b), given.file)
  end
  return texts[1] and naming.listed(texts, MOST_CHANGES)
end

---Warns if the model of the file computes otherwise than the one that a checkpoint's weights were trained in. Shapes need not show it.
---@param given TrainingParams
---@param root Dict   of the checkpoint
---@param path string
function saving.check_model(given, root, path)
  local saved = saved_init(root)
  if not (saved and kinds.is_dict(saved, "model")) then return end
  local text = changes(given, cbk.dict { model = saved.model }, cbk.dict { model = given.config.trainer.init.model })
  if text then cbk.warn(("the weights in %s were trained in another model: %s"):format(cbk.quote(path), text)) end
end

---Optimizer and schedules have the values of their states, so what the file says otherwise has no effect: it is named. Another class has
---other values, and is refused.
---@param given TrainingParams
---@param root Dict   of the checkpoint
---@param want table<string, true>   states to load
---@param from { path: string, advice: string }
local function check_states(given, root, want, from)
  local saved, own = saved_init(root), given.config.trainer.init
  if not saved then return end
  if want.optimizer then check_class(given, saved.optimizer, own.optimizer, "trainer.init.optimizer", from) end
  if want.schedulers then check_classes(given, saved.schedulers, own.schedulers, "trainer.init.schedulers", from) end
  if not (want.optimizer and want.schedulers) then return end
  local function sections(init) return cbk.dict { { "optimizer", init.optimizer }, { "schedulers", init.schedulers or cbk.null } } end
  local text = changes(given, sections(saved), sections(own))
  if text then cbk.warn(("optimizer and schedules continue as in the checkpoint: %s; %s"):format(text, from.advice)) end
end

---Loads a checkpoint into a run that has not begun.
---@param self TrainingRun
---@param path string
---@param is_own boolean      the run saved it: all is loaded
---@return string[] lacking   the states that it has not
function saving.load(self, path, is_own)
  local root, callback = cbk.open(path).root, self.params.init.callbacks.LoadCheckpointStates
  local want = not is_own and callback and callback.load_checkpoint_states or fields.STATES
  if not kinds.is_dict(root, "model") then
    cbk.fail("value", ("'%s' has no 'model' with the weights of a Model Zoo run"):format(path),
      { file = path, advice = "`cbk convert` makes one of a Hugging Face checkpoint" })
  end
  -- The states of a run without low-rank matrices are those of other parameters.
  if self.module.adapted and not saving.has_adapters(root.model) then want = { model = want.model } end
  if want.model then saving.load_weights(self, root.model, path) end
  local rest = cbk.dict()
  for _, name in ipairs { "optimizer", "schedulers", "grad_scaler" } do
    if want[name] then rest[name] = root[name] end
  end
  if want.schedulers then rest.lr_scheduler = root.lr_scheduler end
  if want.model then saving.check_model(self.params, root, path) end
  check_states(self.params, root, want, { path = path, advice = advice_to_begin(path, is_own) })
  local lacking = want.optimizer and self.optimizing:load(rest) or {}
  if want.dataloader and kinds.present(root.dataloader) then
    self.loader:load_state_dict(root.dataloader)
  elseif want.dataloader then
    lacking[#lacking + 1] = "dataloader"
  end
  self.step = want.global_step and kinds.present(root.global_step) and tonumber(tostring(scalar.of(root, "global_step"))) or 0
  return lacking
end

return saving
