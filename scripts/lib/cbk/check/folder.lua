-- The checkpoints of a folder that contains several: files side by side, or the parts of a model in their own folders; and what a trainer
-- has written beside the one of a model.

local cbk = require "cbk"
local errors = require "cbk.errors"
local links = require "cbk.links"
local parts = require "cbk.parts"
local shards = require "cbk.check.shards"
local training_files = require "cbk.training_files"

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

local DAMAGE = { format = true, missing = true, refused = true } -- codes of errors

---What a file beside a model is: one to check as well, with the states of a training or damaged; or why it is left alone.
---@param path string     the folder
---@param name string
---@param reading table   options of cbk.open
---@return string|nil reason   nil: it is to be checked
local function why_not_checked(path, name, reading)
  local file = cbk.fs.join(path, name)
  local fine, checkpoint = pcall(function() return cbk.open(cbk.fs.beside(path, name, reading.allow_external) or file, reading) end)
  if not fine then
    if type(checkpoint) ~= "table" or checkpoint.code == "interrupted" then error(checkpoint, 0) end
    local is_damaged = DAMAGE[checkpoint.code] and cbk.container(file)
    local problem = errors.outside(checkpoint)
    problem.advice = nil -- of a command that is to open it
    return not is_damaged and errors.text(problem) or nil
  end
  local root = checkpoint:raw_root()
  if training_files.content(root) then return nil end
  if cbk.kind(root) == "object" then return "it holds an object of the class " .. cbk.shown(root.type) end
  return "it is a checkpoint beside the one of the folder"
end

---Why a folder beside a model is not checked; nil if nothing in it could be.
---@param path string     the folder that it is in
---@param name string
---@param reading table   options of cbk.open
---@return string|nil reason
local function why_folder_not_checked(path, name, reading)
  local fine, problem = pcall(links.folder, path, name, reading.allow_external)
  if not fine then
    if type(problem) ~= "table" or problem.code == "interrupted" then error(problem, 0) end
    return errors.text(errors.outside(problem))
  end
  local inner = cbk.fs.join(path, name)
  local _, loose = shards.find(inner)
  return (loose or #files_in(inner) > 0) and "the folder has a checkpoint of its own" or nil
end

---The files and folders in a folder that are no part of the checkpoint that was opened there.
---@param path string       that the user has named
---@param subject CheckSubject
---@param reading table     options of cbk.open
---@return { file: string, reason: string|nil }[]   reason: why it is not checked; nil: it is to be checked
function folder.beside(path, subject, reading)
  local own, out = {}, {}
  for _, file in ipairs(subject.files) do
    for part in file:gmatch "[^/]+" do own[part] = true end
  end
  for _, name in ipairs(cbk.fs.is_dir(path) and next(own) and cbk.fs.list(path) or {}) do
    local file = cbk.fs.join(path, name)
    local is_folder, is_file = cbk.fs.is_dir(file), cbk.format_of_name(name) or name:find "%.pkl$"
    local reason = is_folder and not own[name] and why_folder_not_checked(path, name, reading)
    if reason then out[#out + 1] = { file = file, reason = reason } end
    if not is_folder and is_file and not own[name] and not shards.parts(name) then
      out[#out + 1] = { file = file, reason = why_not_checked(path, name, reading) }
    end
  end
  return out
end

---The names of what is in folders beside their checkpoints, each once.
---@param opened { [1]: string, [2]: Checkpoint }[]   what the user has named
---@param reading table   options of cbk.open
---@return string[]
function folder.names_beside(opened, reading)
  local out, is_known = {}, {}
  for _, one in ipairs(opened) do
    for _, beside in ipairs(folder.beside(one[1], one[2], reading)) do
      local name = cbk.shown(cbk.fs.basename(beside.file))
      if not is_known[name] then out[#out + 1], is_known[name] = name, true end
    end
  end
  return out
end

return folder
