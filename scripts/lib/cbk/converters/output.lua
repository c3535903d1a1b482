-- What a conversion writes: the names, containers and options of its files.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local rules = require "converters.engine.rules"

local output = {}

---@class Targets
---@field folder string         of the checkpoint
---@field checkpoints string[]  one for each part
---@field config? string        a path; "*" in it is each part; nil: there is no config
---@field kind "hf"|"release"|"layout"   layout: one of the user's own
---@field container "torch"|"safetensors"|"h5"|"mdl"

---The container in which a layout of the user's own is written if its files are like another one.
---@param format string   of Checkpoint
---@param path string     its name decides whether an H5 file is a checkpoint of the Model Zoo, with a dict `model`
---@return "torch"|"safetensors"|"h5"|"mdl"
function output.container(format, path)
  if format == "cerebras-h5" and path:find "%.mdl$" then return "mdl" end
  return format:find "safetensors" and "safetensors" or format:find "h5" and "h5" or "torch"
end

---@param route Route
---@param args table   of `cbk convert`
---@param format string|nil   of the input's file; nil: its parts are several files
---@return "hf"|"release"|"layout" kind, "torch"|"safetensors"|"h5"|"mdl" container
local function kind_of(route, args, format)
  if catalogue.release(route.tgt) then return "release", "mdl" end
  local last = route.path[#route.path]
  local kind = route.tgt == "hf" and "hf" or "layout"
  local usual = kind == "hf" and "torch" or output.container(format or "torch", args.checkpoint_file)
  return kind, args.export_safetensors and "safetensors" or (last.converter.files or {})[rules.other[last.side]] or usual
end

local SUFFIX = { torch = ".pt", safetensors = ".safetensors", h5 = ".h5", mdl = ".mdl" }

---@param route Route
---@param parts Component[]|nil
---@param args table   of `cbk convert`
---@param format string|nil   of the input's file
---@return Targets
function output.targets(route, parts, args, format)
  local kind, container = kind_of(route, args, format)
  local reads_parts = parts and kind ~= "hf" -- the input is a folder of folders
  ---An output's folder, beside or inside the input, and its name without a suffix.
  local function place(path, name_inside)
    local stem = reads_parts and name_inside or converters.stem(path, route)
    return args.output_dir or cbk.fs.folder_of(path), ("%s_to_%s"):format(stem, route.tgt)
  end
  local folder, name = place(args.checkpoint_file, "pytorch_model")
  local out = { folder = folder, kind = kind, container = container }
  out.checkpoints = { cbk.fs.join(folder, kind == "hf" and name or name .. SUFFIX[container]) }
  if kind == "hf" and parts then
    for i, part in ipairs(parts) do out.checkpoints[i] = composite.output_folder(folder, part) end
  end
  if not (args.config or args.own_config) then return out end
  if kind == "hf" then
    out.config = cbk.fs.join(parts and cbk.fs.join(folder, "*") or out.checkpoints[1], "config.json")
  elseif kind == "layout" then
    out.config = cbk.fs.join(folder, name .. ".json")
  else
    local beside = cbk.fs.join(cbk.fs.folder_of(args.checkpoint_file), "config.yaml") -- where a config would be
    local config_folder, config_name = place(args.config or beside, "config")
    out.config = cbk.fs.join(config_folder, config_name .. ".yaml")
  end
  return out
end

---@param targets Targets
---@param args table   of `cbk convert`
function output.refuse_existing(targets, args)
  for _, target in ipairs(targets.checkpoints) do converters.refuse_existing(target, args) end
  if targets.config then converters.refuse_existing(targets.config, args) end
end

---Names options that have no effect on an output of this kind.
---@param targets Targets
---@param args table   of `cbk convert`
function output.warn_of_idle_options(targets, args)
  local kind = targets.kind
  local function tell(option, is_idle, why)
    if is_idle and args[option] then cbk.warn(("--%s is ignored: %s"):format(option:gsub("_", "-"), why)) end
  end
  local one_file = kind == "release" and "a Cerebras checkpoint is one file"
    or "the output is one file of the format that the converter names"
  tell("h5_version", kind ~= "release", kind == "hf" and "the output is in Hugging Face's format" or one_file)
  tell("hf_shard_size", kind == "hf" and args.single_file, "--single-file writes no shards")
  tell("hf_shard_size", kind ~= "hf", one_file)
  tell("single_file", kind ~= "hf", one_file)
  tell("export_safetensors", kind == "release", "the output is a Cerebras checkpoint")
end

---@param job Job
---@param targets Targets
---@param args table   of `cbk convert`
---@return table   options of cbk.create
local function options_of(job, targets, args)
  if targets.kind == "layout" then return { format = targets.container == "mdl" and "h5" or targets.container } end
  if targets.kind == "release" then
    local number = catalogue.release(job.tgt)
    return { format = "h5", h5_version = converters.h5_version(number, args.h5_version), framework_version = number .. ".0" }
  end
  local out = converters.hf_shards(args)
  out.format = targets.container
  if out.shard_size and job.path[#job.path].converter.tool == "1.9.1" then
    if args.hf_shard_size then cbk.warn(("--hf-shard-size is ignored: %s writes one file"):format(job.src)) end
    out.shard_size = "1000000GB"
  end
  return out
end

---Writes what was converted, with its config. With --dry-run it only prints the plan.
---@param job Job
---@param targets Targets
---@param parts Component[]|nil   to write
---@param root Dict
---@param config Dict|nil
---@param args table   of `cbk convert`
---@return boolean saved, table forecast
function output.write(job, targets, parts, root, config, args)
  local options, outputs = options_of(job, targets, args), {}
  for i, part in ipairs(parts or {}) do
    local own = { root = root[part.left], companions = composite.files(part, config, targets.folder) }
    for option, value in pairs(options) do own[option] = value end
    outputs[i] = { path = targets.checkpoints[i], options = own }
  end
  if parts then return converters.write_all(outputs, args) end
  options.root = targets.kind == "layout" and targets.container == "mdl" and cbk.dict { model = root } or root
  if not config then return converters.write_all({ { path = targets.checkpoints[1], options = options } }, args) end
  local is_yaml = targets.kind == "release"
  return converters.write(targets.checkpoints[1], options, {
    path = targets.config, tree = config, format = is_yaml and "yaml" or "json", style = { indent = 4, sort = is_yaml },
  }, args)
end

return output
