-- The config that belongs to a checkpoint: config.json, or one of the YAML files beside it.

local cbk = require "cbk"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local kept_config = require "cbk.recognise.kept_config"
local naming = require "cbk.naming"
local warnings = require "cbk.warnings"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local config_beside = {}

local MOST_NAMES = 5 -- in a message

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

---The JSON files that may be the config of a checkpoint, the likeliest first: in a layout of the user's own, `cbk convert` names it after
---the checkpoint, and `cbk convert-config` after the config that it read.
---@param stem string
---@return string[]
local function json_names(stem)
  local layout = stem:match "_to_(%l)$"
  return layout and { stem .. ".json", ("config_to_%s.json"):format(layout), "config.json" } or { "config.json" }
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
  local said = ("cannot read the config '%s'"):format(file)
  return nil, ("%s: %s"):format(beside, errors.text(errors.outside(result, said)))
end

---Why a file is not read: a link out of the folder, with the option that names the config; a folder or a pipe.
local function refusal(problem)
  if type(problem) == "table" and problem.code == "io" then return errors.text(problem) end
  if type(problem) ~= "table" or problem.code ~= "external" then error(problem, 0) end
  return errors.text(errors.with(problem, { advice = "--config FILE reads it" }))
end

---@class ConfigBeside
---@field path? string
---@field config? Dict     its content
---@field problem? string   why none of the files is used
---@field is_broken? boolean   because it cannot be read
---@field is_named? boolean    it has the checkpoint's name, or that of its conversion
---@field unused? string       why a file that could be its config is not

---The last part of such a suffix: "_to_cs-2.5".
local function last_of(suffix) return suffix and suffix:match "_to_cs%-[%w.-]-$" end

---@class YamlFiles       Files with a name, or of a conversion.
---@field readable string[]   paths of configs
---@field problem? string     of the first of the others

---@param group YamlFiles
---@param path string
---@param problem string|nil
local function add(group, path, problem)
  if problem then group.problem = group.problem or problem else group.readable[#group.readable + 1] = path end
end

---@param groups table<string, YamlFiles>
---@param name string|nil
---@param path string
---@param problem string|nil
local function add_named(groups, name, path, problem)
  if not name then return end
  groups[name] = groups[name] or { readable = {} }
  add(groups[name], path, problem)
end

---@param name string   of a file
---@return string
local function stem_of(name) return (name:gsub("%.%a%w*$", "")) end

---@class FolderOfYaml   The YAML files of a folder that may be configs. Their content is not kept: there may be very many.
---@field stem table<string, YamlFiles>     by the stems of their names
---@field suffix table<string, YamlFiles>   by the suffixes of their conversions
---@field last table<string, YamlFiles>     by the last of these
---@field plain YamlFiles                   those of no conversion

---The files with the checkpoint's name; else those of its conversions; else those of its last conversion; else those of no conversion.
---Converting a folder again gives the checkpoint a new name, but not the config.
---@param files FolderOfYaml
---@param stem string
---@return YamlFiles, boolean is_named
local function nearest(files, stem)
  local own = suffix_of(stem)
  local last = last_of(own)
  local named = files.stem[stem] or own and files.suffix[own] or last and files.last[last]
  return named or files.plain, named ~= nil
end

---Whether a checkpoint in a folder has a config there by its name.
---@param files FolderOfYaml
local function is_claimed(files, folder)
  for _, name in ipairs(cbk.fs.list(folder)) do
    if select(2, nearest(files, stem_of(name))) then
      local is_file, container = pcall(cbk.container, cbk.fs.join(folder, name))
      if is_file and container then return true end
    end
  end
  return false
end

---The YAML files of a folder. The only one of a conversion counts as one of none if its checkpoint has been renamed.
---@return FolderOfYaml
local function yaml_files(folder)
  local out, converted = { stem = {}, suffix = {}, last = {}, plain = { readable = {} } }, { readable = {} }
  for _, name in ipairs(cbk.fs.list(folder)) do
    local stem = name:match "^(.*)%.ya?ml$"
    if stem then
      local path = cbk.fs.join(folder, name)
      local fine, problem = pcall(cbk.fs.beside, folder, name)
      local config, is_other
      if fine then config, problem, is_other = select(2, warnings.quietly(try, path)) else problem = refusal(problem) end
      local is_config = config and (config.model ~= nil or config.trainer ~= nil)
      if is_config or problem and not is_other then
        local suffix = suffix_of(stem)
        add_named(out.stem, stem, path, problem)
        add_named(out.suffix, suffix, path, problem)
        add_named(out.last, last_of(suffix), path, problem)
        add(suffix and converted or out.plain, path, problem)
      end
    end
  end
  if not out.plain.readable[1] and #converted.readable == 1 and not is_claimed(out, folder) then out.plain = converted end
  return out
end

---The folders that may have the config of a checkpoint in a folder: the weights of accelerate's FSDP are in one below it.
---@param folder string
---@return string[]
local function places_of(folder)
  local plain = folder:gsub("/+$", "")
  if not cbk.fs.basename(plain):find "^pytorch_model_fsdp_%d+$" then return { folder } end
  return { folder, cbk.fs.join(plain, "..") }
end

---The name of the config that is wanted, for messages.
---@param is_hf boolean
function config_beside.called(is_hf) return is_hf and "config.json" or "YAML config" end

---@param path string    of the checkpoint: a file or a folder
---@param is_hf boolean
---@param known? table    what was found out about folders, for further checkpoints in them
---@return ConfigBeside
function config_beside.find(path, is_hf, known)
  local folder, stem = cbk.fs.folder_of(path), stem_of(cbk.fs.basename(path))
  for _, place in ipairs(is_hf and places_of(folder) or {}) do
    for _, name in ipairs(json_names(stem)) do
      local fine, file = pcall(cbk.fs.beside, place, name)
      if not fine then return { problem = refusal(file), is_broken = true } end
      if file then
        local config, problem = try(file)
        return { path = config and file, config = config, problem = problem, is_broken = problem ~= nil }
      end
    end
  end
  if is_hf then return {} end
  known = known or {}
  local place = folder .. "\0yaml"
  known[place] = known[place] or yaml_files(folder)
  local files, is_named = nearest(known[place], stem)
  if #files.readable > 1 then
    local names = {}
    for i = 1, math.min(#files.readable, MOST_NAMES) do names[i] = cbk.fs.basename(files.readable[i]) end
    names.count = #files.readable
    return { problem = ("there are several configs beside it: %s; name one with --config"):format(naming.listed(names, MOST_NAMES)),
      is_named = is_named }
  end
  if not files.readable[1] and not is_named then return { unused = files.problem } end -- any YAML, perhaps of another program
  if not files.readable[1] then return { problem = files.problem, is_broken = files.problem ~= nil or nil, is_named = true } end
  local config, problem = try(files.readable[1])
  return { path = config and files.readable[1], config = config, problem = problem, is_broken = problem ~= nil or nil,
    is_named = is_named }
end

---A config that does not have the checkpoint's name, unless the checkpoint carries its own config, or the file is named after another
---release.
---@param found ConfigBeside
---@param root Dict
---@return ConfigBeside
local function unless_foreign(found, root)
  local file = found.path and cbk.quote(found.path)
  if zoo_checkpoint.params(root) then
    local said = found.config and select(3, kept_config.doubt(found.config, root))
    return { unused = said and ("%s is not read, as it does not have the checkpoint's name, and it contradicts the config in __metadata__: "
      .. "%s; --config reads it"):format(file, said) }
  end
  local own, of = zoo_checkpoint.release(root), found.path and last_of(suffix_of(stem_of(cbk.fs.basename(found.path))))
  if own and of and of ~= "_to_cs-" .. own then
    return { unused = ("%s is not read, as the checkpoint is of release %s; --config reads it"):format(file, own) }
  end
  return found
end

---The config of a checkpoint that the user may have named by its folder, where the file names the config in other layouts than Hugging
---Face's: `NAME_to_a.json` beside `NAME_to_a.pt`.
---@param path string          as the user names it
---@param checkpoint Checkpoint
---@param is_hf boolean
---@param known? table          as in `config_beside.find`
---@return ConfigBeside
function config_beside.of(path, checkpoint, is_hf, known)
  local found = config_beside.find(is_hf and path or checkpoint.path, is_hf, known)
  local is_none = is_hf and not found.path and not found.problem and cbk.fs.is_dir(path)
  if not is_hf and not found.is_named then return unless_foreign(found, checkpoint.root) end
  return is_none and config_beside.find(checkpoint.path, is_hf, known) or found
end

return config_beside
