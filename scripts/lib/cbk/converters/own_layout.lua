-- Conversions by the user's own tables that `cbk convert` does not run step by step: between layouts of the user's own ("a", "b"), and
-- by tables that need no config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local coverage = require "converters.authoring.coverage"
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
      local is_own = catalogue.is_own_layout(src) or catalogue.is_own_layout(tgt) or converter.without_config and not args.config
      if is_own and catalogue.names_format(tgt, wanted) and (not args.src_fmt or catalogue.names_format(src, args.src_fmt)) then
        return { model = model, converter = converter, side = side, src = args.src_fmt or catalogue.formats(src)[1], tgt = wanted }
      end
    end
  end
end

---The tensors of a checkpoint by key: those of its model, if it has other parts.
---@param checkpoint Checkpoint
---@return Dict
function own_layout.tensors(checkpoint)
  kinds.check_root(checkpoint.root)
  return own_layouts.tensors(checkpoint.root)
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
local function explained(problem, step, source, args)
  if type(problem) ~= "table" or not problem.unmatched then return problem end
  local check = ("cbk rules %s CHECKPOINT"):format(args.converter or "CONVERTER")
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
local function output_of(args, step, format)
  local folder = args.output_dir or cbk.fs.folder_of(args.checkpoint_file)
  local name = ("%s_to_%s"):format((cbk.fs.basename(args.checkpoint_file):gsub("%.%a%w*$", "")), step.tgt)
  if catalogue.release(step.tgt) then return cbk.fs.join(folder, name .. ".mdl"), "release" end
  local kind = step.tgt == "hf" and "torch" or own_layout.container(format)
  kind = args.export_safetensors and "safetensors" or (step.converter.files or {})[other_side[step.side]] or kind
  return cbk.fs.join(folder, name .. SUFFIX[kind]), kind
end

---Warns about options of `cbk convert` that have no effect: the output is one file in the table's format.
---@param kind string   of `output_of`
local function warn_of_idle_options(args, kind)
  local idle = { { "hf_shard_size", "--hf-shard-size" }, { "single_file", "--single-file" } }
  if kind == "release" or kind == "mdl" then idle[#idle + 1] = { "export_safetensors", "--export-safetensors" } end
  if kind ~= "release" then idle[#idle + 1] = { "h5_version", "--h5-version" } end
  for _, one in ipairs(idle) do
    if args[one[1]] then cbk.warn(("%s is ignored: the output is one file of the format that the converter names"):format(one[2])) end
  end
end

---Converts and writes.
---@param step OwnStep
---@param args table   of `cbk convert`
function own_layout.convert(step, args)
  if #args.explain > 0 then cbk.fail("usage", "--explain needs a conversion with a config, between hf and cs-X.Y") end
  local checkpoint = cli.open(args.checkpoint_file, args)
  local path, kind = output_of(args, step, checkpoint.format)
  warn_of_idle_options(args, kind)
  converters.refuse_existing(path, args)
  local config = args.config and cbk.config.load(args.config)
  quantised.refuse(checkpoint:raw_root(), config, "cannot convert the checkpoint")
  local configs = own_layouts.configs(step.converter, step.converter, step.side, config)
  local source, made = own_layout.tensors(checkpoint), configs.made
  local fine, out = pcall(own_layouts.checkpoint, step.converter, step.side, configs, source,
    { seed = args.seed, drop_unmatched = args.drop_unmatched_keys,
      releases = { [step.side] = catalogue.release(step.src), [other_side[step.side]] = catalogue.release(step.tgt) } })
  if not fine then error(explained(out, step, source, args), 0) end
  local options = { root = out, overwrite = args.overwrite or args.dry_run, format = kind }
  if kind == "mdl" then
    options.root, options.format = cbk.dict { model = out }, "h5"
  elseif kind == "release" then
    local release = catalogue.release(step.tgt)
    options.root, options.format = modelzoo.from_hf(out, release, cbk.dict(), cbk.dict()), "h5"
    options.h5_version, options.framework_version = converters.h5_version(release, args.h5_version), release .. ".0"
  end
  local config_path = made and cbk.fs.join(cbk.fs.dirname(path), "config_to_" .. step.tgt .. (kind == "release" and ".yaml" or ".json"))
  if made then
    converters.refuse_existing(config_path, args)
    if kind == "release" then made = cbk.dict { model = made } end
    options.companions = { [cbk.fs.basename(config_path)] = cbk.config.dump(made, kind == "release" and "yaml" or "json", { indent = 4 }) }
  end
  local saved, forecast = cli.commit({ cbk.create(path, options) }, args)
  cli.print_result(args, saved, { { "checkpoint", path }, { "config", config_path or cbk.null } }, forecast)
  local verb = saved and "saved" or "would be saved"
  cli.say(args, ("Checkpoint %s to %s"):format(verb, path))
  if config_path then cli.say(args, ("Config %s to %s"):format(verb, config_path)) end
end

return own_layout
