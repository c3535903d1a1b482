-- The checkpoints of a folder that contains several: files side by side, or the parts of a model in their own folders.

local cbk = require "cbk"
local links = require "cbk.links"
local parts = require "cbk.parts"
local shards = require "cbk.check.shards"

local folder = {}

---@param path string
---@return string[]   paths of indexes and of files that are not shards
local function files_in(path)
  local out = {}
  for _, name in ipairs(cbk.fs.list(path)) do
    local full = cbk.fs.join(path, name)
    local is_index = parts.is_index(name) or name:find "%.index$"
    local is_file = cbk.format_of_name(name) ~= nil and not shards.parts(name)
    if (is_index or is_file) and not cbk.fs.is_dir(full) then out[#out + 1] = full end
  end
  return out
end

---@param path string
---@param allowed? string[]
---@return string[]   the folders in it that hold a checkpoint
local function folders_in(path, allowed)
  local out = {}
  for _, name in ipairs(cbk.fs.list(path)) do
    local full = cbk.fs.join(path, name)
    if cbk.fs.is_dir(full) then
      links.folder(path, name, allowed)
      local _, loose = shards.find(full)
      if loose or #files_in(full) > 0 then out[#out + 1] = full end
    end
  end
  return out
end

---The checkpoints in a folder that has a model as pickles beside the one as safetensors, which alone is opened; nil of other folders.
---@param path string
---@return string[]|nil
function folder.of_both_formats(path)
  local function has(name)
    return cbk.fs.exists(cbk.fs.join(path, name)) or cbk.fs.exists(cbk.fs.join(path, name .. ".index.json"))
  end
  local is_both = cbk.fs.is_dir(path) and has "pytorch_model.bin" and has "model.safetensors"
  return is_both and files_in(path) or nil
end

---The checkpoints in a folder that cannot be opened as one checkpoint; nil if it cannot be opened for another reason.
---@param path string
---@param problem table   the error
---@param allowed? string[]   folders that links may lead to
---@return string[]|nil
function folder.checkpoints(path, problem, allowed)
  if not cbk.fs.is_dir(path) then return nil end
  local found = problem.code == "ambiguous" and files_in(path) or problem.code == "missing" and folders_in(path, allowed) or {}
  return #found > 0 and found or nil
end

return folder
