-- Conversions by the user's own tables that `cbk convert` does not run step by step: between layouts of the user's own ("a", "b"), and
-- by tables that need no config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local coverage = require "converters.authoring.coverage"
local dry_run = require "converters.authoring.dry_run"
local kinds = require "converters.engine.kinds"
local modelzoo = require "converters.modelzoo.checkpoint"
local own_layouts = require "converters.conversion.own_layouts"
local quantised = require "cbk.quantised"
local unmatched = require "converters.conversion.unmatched"

local own_layout = {}

local other_side = { left = "right", right = "left" }

---@class OwnStep: Step
---@field model Model

---The table of the command line's formats, if it is one of these.
---@param args table          of `cbk convert`
---@param only string|nil     of converters.load
---@return OwnStep|nil
function own_layout.step(args, only)
  local name = args.model or only
  local model = name and catalogue.is_own(name) and catalogue.find(name)
  for _, converter in ipairs(model or {}) do
    for place, side in ipairs { "right", "left" } do -- the left reads what the right writes
      local src, tgt = converter[3 - place], converter[place]
      local wanted = catalogue.resolve(args.tgt_fmt, model)
      local is_own = catalogue.has_own_layout(converter) or converter.without_config and not args.config
      if is_own and catalogue.names_format(tgt, wanted) and (not args.src_fmt or catalogue.names_format(src, args.src_fmt)) then
        return { model = model, converter = converter, side = side, src = args.src_fmt or catalogue.formats(src)[1], tgt = wanted }
      end
    end
  end
end

---The tensors of a checkpoint by key: those of its model, if it has other parts.
---@param checkpoint Checkpoint
---@param strangers? fun(names: string[]): integer   of own_layouts.strangers
---@return Dict tensors, string|nil looked   what was looked through
function own_layout.tensors(checkpoint, strangers)
  kinds.check_root(checkpoint.root)
  return own_layouts.tensors(checkpoint.root, strangers)
end

local SUFFIX = { torch = ".pt", safetensors = ".safetensors", h5 = ".h5", mdl = ".mdl" }

---Advice if all keys are those of the other layout.
---@param step OwnStep
---@param names string[]
---@return string|nil
local function advice_on(step, names)
  local one = { keys = step.converter.keys, converter = step.converter }
  if #coverage.of(one, other_side[step.side], names).unmatched > 0 then return nil end
  return ("; all keys are those of %s: the checkpoint has this layout already, and --to %s makes the other one of it"):format(step.tgt,
    step.src)
end

---An error of the conversion, with facts about keys without a rule added.
local function explained(problem, step, source)
  if type(problem) ~= "table" or not problem.unmatched then return problem end
  local check = ("cbk rules %s CHECKPOINT"):format(catalogue.file_of(step.model.model))
  return unmatched.explained(problem, { advice = advice_on(step, cbk.keys(source)), check = check })
end

---The container in which a layout of the user's own is written, for a format of its files.
---@param format string   of Checkpoint
---@return "torch"|"safetensors"|"h5"|"mdl"
function own_layout.container(format)
  if format == "cerebras-h5" then return "mdl" end
  return format:find "safetensors" and "safetensors" or format:find "h5" and "h5" or "torch"
end

---@param args table
---@param step OwnStep
---@param format string   of the input's file
---@return string path
---@return "hf"|"release"|"torch"|"safetensors"|"h5"|"mdl" kind   hf: a folder, as Hugging Face has it
---@return string container
local function output_of(args, step, format)
  local folder = args.output_dir or cbk.fs.folder_of(args.checkpoint_file)
  local name = ("%s_to_%s"):format((cbk.fs.basename(args.checkpoint_file):gsub("%.%a%w*$", "")), step.tgt)
  if catalogue.release(step.tgt) then return cbk.fs.join(folder, name .. ".mdl"), "release", "h5" end
  local is_hf = step.tgt == "hf"
  local container = is_hf and "torch" or own_layout.container(format)
  container = args.export_safetensors and "safetensors" or (step.converter.files or {})[other_side[step.side]] or container
  if is_hf then return cbk.fs.join(folder, name), "hf", container end
  return cbk.fs.join(folder, name .. SUFFIX[container]), container, container == "mdl" and "h5" or container
end

---Warns about options of `cbk convert` that have no effect: the output is one file in the table's format.
---@param kind string   of `output_of`
local function warn_of_idle_options(args, kind)
  local idle = kind ~= "hf" and { { "hf_shard_size", "--hf-shard-size" }, { "single_file", "--single-file" } } or {}
  if kind == "release" or kind == "mdl" then idle[#idle + 1] = { "export_safetensors", "--export-safetensors" } end
  if kind ~= "release" then idle[#idle + 1] = { "h5_version", "--h5-version" } end
  for _, one in ipairs(idle) do
    if args[one[1]] then cbk.warn(("%s is ignored: the output is one file of the format that the converter names"):format(one[2])) end
  end
end

---The options of cbk.create for an output.
---@param out Dict   tensors
local function options_of(out, step, kind, container, args)
  local options = kind == "hf" and converters.hf_shards(args) or {}
  options.root, options.format = kind == "mdl" and cbk.dict { model = out } or out, container
  if kind == "release" then
    local release = catalogue.release(step.tgt)
    options.root = modelzoo.from_hf(out, release, cbk.dict(), cbk.dict())
    options.h5_version, options.framework_version = converters.h5_version(release, args.h5_version), release .. ".0"
  end
  return options
end

---The config's file, if one is written.
---@param made Dict|nil
---@return ConfigFile|nil
local function config_of(made, path, step, kind)
  if not made then return nil end
  if kind == "hf" then return { path = cbk.fs.join(path, "config.json"), tree = made, format = "json", style = { indent = 4 } } end
  local is_release = kind == "release"
  local format = is_release and "yaml" or "json"
  return { path = cbk.fs.join(cbk.fs.dirname(path), ("config_to_%s.%s"):format(step.tgt, format)), format = format, style = { indent = 4 },
    tree = is_release and cbk.dict { model = made } or made }
end

---Converts in memory.
---@param step OwnStep
---@param checkpoint Checkpoint
---@param configs OwnConfigs
---@param options OwnOptions
---@return Dict out   tensors
---@return string|nil looked   what was looked through
function own_layout.converted(step, checkpoint, configs, options)
  local source, looked = own_layout.tensors(checkpoint, own_layouts.strangers(step.converter.keys, step.side))
  options.deduplicated = converters.input(checkpoint).deduplicated
  local fine, out = pcall(own_layouts.checkpoint, step.converter, step, configs, source, options)
  if not fine then error(explained(out, step, source), 0) end
  return out, looked
end

---Both configs.
---@param step OwnStep
---@param checkpoint Checkpoint
---@param config Dict|nil   the whole file
---@return OwnConfigs
function own_layout.configs(step, checkpoint, config)
  quantised.refuse(checkpoint:raw_root(), config, "cannot convert the checkpoint")
  return own_layouts.configs(step.converter, step.converter, step.side, config)
end

---Converts and writes.
---@param step OwnStep
---@param checkpoint Checkpoint
---@param args table   of `cbk convert`
---@param show fun(watch: Watch, planned: boolean, out: any): DryRunRow[]   prints what becomes of each key; fails with `out` if that
---                                                                        is an error
function own_layout.convert(step, checkpoint, args, show)
  local path, kind, container = output_of(args, step, checkpoint.format)
  warn_of_idle_options(args, kind)
  converters.refuse_existing(path, args)
  local config = args.config and cbk.config.load(args.config)
  local configs = own_layout.configs(step, checkpoint, config)
  local watch = (args.debug or args.dry_run)
    and dry_run.watch { path = { step }, configs = { { converter = step.converter, left = configs.left, right = configs.right } } } or nil
  local planned, out, looked = pcall(own_layout.converted, step, checkpoint, configs, { seed = args.seed,
    drop_unmatched = args.drop_unmatched_keys,
    trace = watch and function(record) watch.trace(record, 1) end })
  if planned and looked then cli.say(args, "Looked inside: " .. cbk.shown(looked)) end
  local rows = show(watch, planned, out)
  local options, file = options_of(out, step, kind, container, args), config_of(configs.made, path, step, kind)
  if file and kind ~= "hf" then converters.refuse_existing(file.path, args) end
  local saved, forecast
  if file then
    saved, forecast = converters.write(path, options, file, args)
  else
    saved, forecast = converters.write_all({ { path = path, options = options } }, args)
  end
  local result = { { "checkpoint", path }, { "config", file and file.path or cbk.null } }
  for field, value in cbk.items(args.dry_run and dry_run.tree(rows) or {}) do result[#result + 1] = { field, value } end
  cli.print_result(args, saved, result, forecast)
  local verb = saved and "saved" or "would be saved"
  cli.say(args, ("Checkpoint %s to %s"):format(verb, path))
  if file then cli.say(args, ("Config %s to %s"):format(verb, file.path)) end
end

return own_layout
