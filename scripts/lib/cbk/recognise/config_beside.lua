-- The config that belongs to a checkpoint: config.json, or one of the YAML files beside it.

local cbk = require "cbk"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"

local config_beside = {}

---Fails if a folder has no config of its own.
local function check_folder(path)
  if not cbk.fs.is_dir(path) then return end
  local model, parts = composite.model_in(path)
  if not model then cbk.fail("io", ("cannot read a config in '%s': the folder has no config.json"):format(path)) end
  local names = {}
  for i, part in ipairs(parts) do names[i] = part.left end
  cbk.fail("io", ("cannot read one config in '%s': it is a folder of several models (%s), such as %s; %s"):format(path,
    table.concat(names, ", "), model.model, composite.config_advice(model.model, path)))
end

local MAP = "a map of fields"

---A config file, which must be a map of fields.
---@param path string   the file, or the folder with a config.json
---@return Dict
function config_beside.load(path)
  local file = converters.config_file(path)
  check_folder(file)
  local config = cbk.config.load(file)
  if not kinds.is_dict(config) then
    cbk.fail("config", ("cannot read the config '%s'"):format(path),
      { file = file, expected = MAP, found = "a " .. tostring(cbk.kind(config)) })
  end
  return config
end

---The JSON files that may be the config of a checkpoint, the likeliest first: a table's output in a layout of the user's own has one that
---is named after the layout.
---@param stem string
---@return string[]
local function json_names(stem)
  local layout = stem:match "_to_(%l)$"
  return layout and { ("config_to_%s.json"):format(layout), "config.json" } or { "config.json" }
end

---The suffix that `cbk convert` adds to file names, once for each conversion: "_to_cs-2.4_to_cs-2.5".
---@param stem string
---@return string|nil
local function suffix_of(stem)
  local rest = stem
  while rest:find "_to_cs%-[%w.-]+$" do rest = rest:gsub("_to_cs%-[%w.-]+$", "") end
  return #rest < #stem and stem:sub(#rest + 1) or nil
end

---@param file string
---@return Dict|nil config, string|nil problem
---@return boolean|nil is_other   the file can be read and is not a config
local function try(file)
  local fine, result = pcall(config_beside.load, file)
  if fine then return result end
  local is_other = type(result) == "table" and result.file == file and result.expected == MAP
  local beside = ("cannot read the config '%s' beside the checkpoint"):format(file)
  if is_other then return nil, errors.text(errors.with(result, { problem = beside })), true end
  return nil, ("%s: %s"):format(beside, errors.text(result))
end

---Why a link out of the folder is not followed, with the option that names the config.
local function refusal(problem)
  if type(problem) ~= "table" or problem.code ~= "external" then error(problem, 0) end
  return errors.text(errors.with(problem, { advice = "--config FILE reads it" }))
end

---@class ConfigBeside
---@field path? string
---@field config? Dict     its content
---@field problem? string   why none of the files is used
---@field is_broken? boolean   because it cannot be read

---The YAML files of a folder that may be configs, with the stems of their names.
---@return { path: string, stem: string, config?: Dict, problem?: string }[]
local function yaml_files(folder)
  local out = {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    local stem = name:match "^(.*)%.ya?ml$"
    if stem then
      local one = { path = cbk.fs.join(folder, name), stem = stem }
      local fine, problem = pcall(cbk.fs.beside, folder, name)
      local is_other
      if fine then one.config, one.problem, is_other = try(one.path) else one.problem = refusal(problem) end
      local is_config = one.config and (one.config.model ~= nil or one.config.trainer ~= nil)
      if is_config or one.problem and not is_other then out[#out + 1] = one end
    end
  end
  return out
end

---The last part of such a suffix: "_to_cs-2.5".
local function last_of(suffix) return suffix and suffix:match "_to_cs%-[%w.-]-$" end

---The files with the checkpoint's name; else those of its conversions; else those of its last conversion; else those of no conversion.
---Converting a folder again gives the checkpoint a new name, but not the config.
local function nearest(files, stem)
  local own = suffix_of(stem)
  local last = last_of(own)
  for _, fits in ipairs {
    function(one) return one.stem == stem end,
    function(one) return own ~= nil and suffix_of(one.stem) == own end,
    function(one) return last ~= nil and last_of(suffix_of(one.stem)) == last end,
    function(one) return suffix_of(one.stem) == nil end,
  } do
    local out = {}
    for _, one in ipairs(files) do
      if fits(one) then out[#out + 1] = one end
    end
    if #out > 0 then return out end
  end
  return {}
end

---The name of the config that is wanted, for messages.
---@param is_hf boolean
function config_beside.called(is_hf) return is_hf and "config.json" or "YAML config" end

---@param path string    of the checkpoint: a file or a folder
---@param is_hf boolean
---@return ConfigBeside
function config_beside.find(path, is_hf)
  local folder, stem = cbk.fs.folder_of(path), (cbk.fs.basename(path):gsub("%.%a+$", ""))
  for _, name in ipairs(is_hf and json_names(stem) or {}) do
    local fine, file = pcall(cbk.fs.beside, folder, name)
    if not fine then return { problem = refusal(file), is_broken = true } end
    if file then
      local config, problem = try(file)
      return { path = config and file, config = config, problem = problem, is_broken = problem ~= nil }
    end
  end
  if is_hf then return {} end
  local files = nearest(yaml_files(folder), stem)
  local readable, names = {}, {}
  for _, one in ipairs(files) do
    if one.config then readable[#readable + 1], names[#names + 1] = one, cbk.fs.basename(one.path) end
  end
  if #readable > 1 then
    return { problem = ("there are several configs beside it: %s; name one with --config"):format(table.concat(names, ", ")) }
  end
  if readable[1] or not files[1] then return readable[1] or {} end
  return { problem = files[1].problem, is_broken = true }
end

return config_beside
