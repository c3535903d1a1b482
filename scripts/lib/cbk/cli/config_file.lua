-- A config that a command line names. A folder or a checkpoint in its place is refused with the configs that are there.

local cbk = require "cbk"
local naming = require "cbk.naming"

local config_file = {}

local MOST_NAMES = 3 -- in a message

---The config of a folder, or its YAML files.
---@param folder string
---@param likely string   "params.yaml", the name of the one alone if it exists
---@return string[]       paths in quotes
local function configs_in(folder, likely)
  local out, own = {}, cbk.fs.join(folder, likely)
  if cbk.fs.exists(own) then return { cbk.quote(own) } end
  for _, name in ipairs(cbk.fs.list(folder)) do
    if name:find "%.ya?ml$" then out[#out + 1] = cbk.quote(cbk.fs.join(folder, name)) end
  end
  return out
end

---@param path string
---@param found string     "a folder"
---@param wanted string    "the params.yaml of a run"
---@param names string[]   of configs
---@param otherwise? string   advice if there are none
local function refuse(path, found, wanted, names, otherwise)
  local advice = #names > 0 and (#names == 1 and "name %s" or "name one of %s"):format(naming.listed(names, MOST_NAMES)) or otherwise
  cbk.fail("io", ("cannot read %s: expected %s, found %s"):format(cbk.quote(path), wanted, found), { advice = advice })
end

---Whether a path is a file of a format of checkpoints.
local function is_checkpoint(path) return cbk.fs.exists(path) and not cbk.fs.is_dir(path) and cbk.container(path) ~= nil end

---Fails if the path cannot be the params.yaml of a run.
---@param path string
---@param of_checkpoint? string   what to do with a checkpoint: "--checkpoint FILE begins with it"
function config_file.check_run(path, of_checkpoint)
  local wanted = "the params.yaml of a run"
  if cbk.fs.is_dir(path) then refuse(path, "a folder", wanted, configs_in(path, "params.yaml"), of_checkpoint) end
  if is_checkpoint(path) then refuse(path, "a checkpoint", wanted, {}, of_checkpoint) end
end

---Fails if the path is a checkpoint, or a folder without a config.json, where the config of a model is wanted.
---@param path string
function config_file.check_model(path)
  local wanted = "the config of a model"
  if cbk.fs.is_dir(path) and not cbk.fs.exists(cbk.fs.join(path, "config.json")) then
    local names = configs_in(path, "params.yaml")
    if #names > 0 then refuse(path, "a folder", wanted, names) end
  end
  if not is_checkpoint(path) then return end
  local names = configs_in(cbk.fs.dirname(path), cbk.container(path) == "h5" and "params.yaml" or "config.json")
  refuse(path, "a checkpoint", wanted, names, ("name its config; `cbk ls %s` lists what the checkpoint has"):format(
    cbk.shown(path)))
end

return config_file
