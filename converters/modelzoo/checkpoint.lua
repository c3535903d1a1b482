-- The parts of a Model Zoo checkpoint besides the model, from one release to the next: sparsity masks, schedules, the states of
-- data loaders, and the list of the file's releases.

local cbk = require "cbk"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local python_int = require "cbk.python_int"
local scalar = require "cbk.scalar"
local kinds = require "converters.engine.kinds"
local hf_config = require "converters.modelzoo.hf_config"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local releases = require "converters.engine.releases"
local run_config = require "converters.modelzoo.run_config"
local sparsity = require "converters.modelzoo.sparsity"

local is_dict, is_list, present = kinds.is_dict, kinds.is_list, kinds.present

local checkpoint = {}

---The error for a checkpoint that should have a dict 'model', and has keys with dots.
---@param file string   its name in quotes, or "the checkpoint"
---@return string
function checkpoint.flat_text(file)
  return ("%s has flat keys ('model.x'), no dict 'model'; in Lua: cbk.create(path, { root = tree }), with a tree that has it"):format(file)
end

---Releases whose schedules had to be corrected, and whose data loaders kept their states in files.
local function is_before_2_0(release) return not releases.since(release, "2.0") end

---Whether what is beside the model becomes the same, of whichever of two releases a checkpoint is.
---@param a string
---@param b string
function checkpoint.is_same_state(a, b) return is_before_2_0(a) == is_before_2_0(b) end

---Before 2.0 the schedule's own count of steps could lag behind. If it is right, or there is no step, it stays as it is.
local function fix_last_epoch(root)
  if not present(root.global_step) or not is_dict(root, "lr_scheduler") or root.lr_scheduler.last_epoch == nil then return end
  local step, last = scalar.of(root, "global_step"), scalar.of(root.lr_scheduler, "last_epoch")
  if step and last and scalar.equal(step, last) then return end
  local scheduler = cbk.copy(root.lr_scheduler)
  scheduler.last_epoch = cbk.raw(root, "global_step")
  root.lr_scheduler = scheduler
end

local loader_kinds = { GptHDF5DataProcessor = "iterable", GptHDF5MapDataProcessor = "map" }

---The folder of data loader states in a config, or nil.
local function state_folder(config)
  local folder = is_dict(config, "cerebras") and config.cerebras.save_iter_state_path
  if not present(folder) or folder == false then return nil end
  if type(folder) ~= "string" or folder == "" then
    cbk.fail("config", ("cerebras.save_iter_state_path: expected the name of a folder, found %s"):format(
      folder == "" and "an empty string" or cbk.json(folder)))
  end
  return folder
end

---The seed of a map loader that shuffles or mixes; nil if it does neither. A number in quotes counts as a number.
---@param input Dict   train_input, or the section that it became
---@return integer|Value|nil
function checkpoint.shuffle_seed(input)
  if not (input.shuffle == true or present(input.mixture)) then return nil end
  if not present(input.shuffle_seed) then return 0 end
  local raw = cbk.raw(input, "shuffle_seed")
  local seed = python_int(tostring(raw), true)
  if seed == nil or type(input.shuffle_seed) == "boolean" then
    cbk.fail("config", ("shuffle_seed: expected a whole number, found %s"):format(cbk.json(input.shuffle_seed)))
  end
  return seed
end

---@class LoaderOptions   How the states of data loaders are read from their files. Default: like the original converter.
---@field seed? integer|Value|"config"   of a map loader; "config": the seed with which the run shuffles; default: 0
---@field kind? "map"|"iterable"         default: from train_input.data_processor
---@field step? integer                  the checkpoint's step, if conversions may have dropped it
---@field is_upgrade? boolean            prefer files of the checkpoint's own step, and refuse others; a class may be qualified

---The kind of a config's data loader.
---@param options LoaderOptions
local function loader_kind(config, options)
  if options.kind then return options.kind end
  local input = is_dict(config, "train_input") and config.train_input or cbk.dict()
  local processor = input.data_processor
  local class = options.is_upgrade and type(processor) == "string" and naming.last(processor) or processor
  if loader_kinds[class] then return loader_kinds[class] end
  local advice = options.is_upgrade
    and "; pass --dataloader_type map or iterable, or --no-dataloader-state to continue without the state" or ""
  if not present(processor) then
    cbk.fail("config", "cannot read the data loader states of cerebras.save_iter_state_path: expected train_input.data_processor to be "
      .. "GptHDF5DataProcessor or GptHDF5MapDataProcessor, found none" .. advice)
  end
  local given = type(processor) == "userdata" and cbk.json(processor) or tostring(processor)
  cbk.fail("config", ("cannot convert data loader states of train_input.data_processor=%s: expected GptHDF5DataProcessor or "
    .. "GptHDF5MapDataProcessor%s"):format(given, advice))
end

---The files in a folder that belong to the checkpoint; warns about doubts.
---@param options LoaderOptions
local function files_of(folder, root, options)
  local dataloader_state = require "cbk.dataloader_state"
  local step = options.step or dataloader_state.step_of(root)
  local read, files = pcall(dataloader_state.read_files, folder, options.is_upgrade and step or nil)
  if not read then
    local advice = "pass --worker_data_iter_files_dir for another folder, or --no-dataloader-state to continue without"
    local said = options.is_upgrade and errors.with(files, { advice = advice }) or files
    error(errors.put_in(said, "cerebras.save_iter_state_path"), 0)
  end
  local warnings, is_useless, is_other = dataloader_state.doubts(files, root, step)
  if is_useless then cbk.fail("value", ("%s; %s"):format(warnings[1], warnings[2])) end
  if is_other and options.is_upgrade then
    cbk.fail("value", warnings[1] .. "; pass --no-dataloader-state to continue without them")
  end
  for _, warning in ipairs(warnings) do cbk.warn(warning) end
  return files
end

---Adds `dataloader` if the config of a 1.8 or 1.9 run names a folder with the states of its data loaders.
---@param config Dict   the whole old config
---@param root Dict     the new checkpoint, changed in place
---@param options? LoaderOptions
function checkpoint.add_data_state(config, root, options)
  options = options or {}
  local folder = state_folder(config)
  if not folder then return end
  if present(root.dataloader) then
    cbk.warn("the checkpoint has a 'dataloader' already: cerebras.save_iter_state_path is ignored")
    return
  end
  local kind = loader_kind(config, options)
  local files = files_of(folder, root, options)
  local wanted = kind == "map" and is_dict(config, "train_input") and checkpoint.shuffle_seed(config.train_input) or 0
  local seed = options.seed
  if seed == "config" then seed = wanted end
  if kind == "map" and seed == nil and tostring(wanted) ~= "0" then
    cbk.warn(("the data loader state gets seed 0 (like the Model Zoo's converter), but train_input has shuffle_seed %s and will refuse "
      .. "it: use `cbk upgrade`, or run `cbk data-iter-state-conversion --shuffle_seed %s` before")
      :format(tostring(wanted), tostring(wanted)))
  end
  local dataloader_state = require "cbk.dataloader_state"
  root.dataloader = dataloader_state.to_dict(dataloader_state.from_files(files, kind, seed))
end

---Adds the checkpoint's new release and config to its metadata, and the kept fields of a Hugging Face config.
---@param kept? Dict
local function add_metadata(root, release, params, kept)
  local list = cbk.list()
  if is_list(root, "__metadata__") then
    for _, entry in cbk.items(root.__metadata__) do list[#list + 1] = entry end
  end
  local entry = cbk.dict()
  entry.version, entry.model_name, entry.params = release .. ".0", "", cbk.deep_copy(params)
  entry.hf_config = kept
  list[#list + 1] = entry
  root.__metadata__ = list
end

---The new checkpoint from an old one, with the converted model.
---@param old Dict
---@param model Dict        the new model
---@param from string       the release of the old one
---@param to string
---@param configs { old: Dict, new: Dict, loader?: LoaderOptions, is_between?: boolean, moves: table<string, KeyMove>, split: Split }   the
---                              whole config files; `is_between`: the release is not added to the metadata; `moves`: of the model's keys
---@return Dict
function checkpoint.upgrade(old, model, from, to, configs)
  local out = cbk.dict()
  for name in cbk.items(old) do
    if name == "model" then
      out.model = model
    elseif name ~= "__metadata__" then
      out[name] = cbk.raw(old, name)
    end
  end
  optimizer_state.warn_of_positions(out, configs.moves, old.model)
  optimizer_state.rename_parameters(out, configs.moves, old.model, configs.split)
  sparsity.move(out, from, to)
  if is_before_2_0(from) then fix_last_epoch(out) end
  if run_config.takes_states(from, to) then checkpoint.add_data_state(configs.old, out, configs.loader) end
  if old.__metadata__ ~= nil then out.__metadata__ = old.__metadata__ end
  if not configs.is_between then add_metadata(out, to, configs.new, hf_config.of(old)) end
  return out
end

---The new checkpoint from a Hugging Face model.
---@param model Dict
---@param release string
---@param params Dict     the whole config file
---@param kept Dict       the fields of the old config without a place in the new one
---@return Dict
function checkpoint.from_hf(model, release, params, kept)
  local out = cbk.dict()
  out.model = model
  add_metadata(out, release, params, cbk.count(kept) > 0 and kept or nil)
  return out
end

---The release in a checkpoint's metadata, or nil.
---@param root any
---@return string|nil
function checkpoint.release(root)
  if not is_dict(root) or not is_list(root, "__metadata__") or #root.__metadata__ == 0 then return nil end
  local last = root.__metadata__[#root.__metadata__]
  local version = is_dict(last) and last.version or nil
  return type(version) == "string" and version:match "^(%d+%.%d+)" or nil
end

---The whole config file that a checkpoint keeps in its __metadata__; nil if it keeps none.
---@param root Dict
---@return Dict|nil
function checkpoint.params(root)
  local list = kinds.is_list(root, "__metadata__") and root.__metadata__
  local last = list and #list > 0 and list[#list]
  local params = kinds.is_dict(last) and kinds.is_dict(last, "params") and last.params
  return params and (kinds.is_dict(params, "model") or kinds.is_dict(params, "trainer")) and params or nil
end

return checkpoint
