-- Conversions by a user's own table that `cbk convert` does not run step by step: between layouts of the user's own ("a", "b"), and
-- by a table that needs no config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local modelzoo = require "converters.modelzoo.checkpoint"
local naming = require "converters.engine.naming"
local other_names = require "cbk.converters.other_names"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"

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

---The tensors of a checkpoint by their keys: those of the model, if it has more.
---@param checkpoint Checkpoint
---@return Dict tensors, table<string, string> kept   (other_names)
function own_layout.tensors(checkpoint)
  local root, kept = checkpoint.root, {}
  for _, name in ipairs { "model", "state_dict" } do
    if kinds.is_dict(root) and kinds.is_dict(root, name) then
      root = root[name]
      break
    end
  end
  if root == checkpoint.root then root, kept = other_names.added(checkpoint) end
  local out = cbk.dict()
  for key, tensor in cbk.tensors(root) do out[key] = tensor end
  return out, kept
end

---@param step OwnStep
---@param path string|nil   of the config
---@return { left: Dict, right: Dict } configs, Dict|nil made
local function configs_of(step, path)
  local defaults = step.converter.defaults or {}
  if not path then return { left = cbk.dict(defaults.left or cbk.dict()), right = cbk.dict(defaults.right or cbk.dict()) } end
  local config = cbk.config.load(path)
  if kinds.is_dict(config, "model") or trainer.is(config) then config = trainer.model(config) end
  local to, from, dropped = sections.convert(step.converter, step.side, config)
  if #dropped > 0 then cbk.warn("config fields without a counterpart are left out: " .. naming.first(dropped)) end
  return { [step.side] = from, [other_side[step.side]] = to }, to
end

local SUFFIX = { torch = ".pt", safetensors = ".safetensors", h5 = ".h5", mdl = ".mdl" }

---What a layout of a user's own is written as, if files of it have this format.
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
  local folder = args.output_dir or cbk.fs.dirname(args.checkpoint_file)
  local name = ("%s_to_%s"):format((cbk.fs.basename(args.checkpoint_file):gsub("%.%a%w*$", "")), step.tgt)
  if catalogue.release(step.tgt) then return cbk.fs.join(folder, name .. ".mdl"), "release" end
  local kind = step.tgt == "hf" and "torch" or own_layout.container(format)
  kind = args.export_safetensors and "safetensors" or (step.converter.files or {})[other_side[step.side]] or kind
  return cbk.fs.join(folder, name .. SUFFIX[kind]), kind
end

---Converts and writes.
---@param step OwnStep
---@param args table   of `cbk convert`
function own_layout.convert(step, args)
  if #args.explain > 0 then cbk.fail("usage", "--explain needs a conversion with a config, between hf and cs-X.Y") end
  local checkpoint = cli.open(args.checkpoint_file, args)
  local path, kind = output_of(args, step, checkpoint.format)
  converters.refuse_existing(path, args)
  local configs, made = configs_of(step, args.config)
  local source, kept = own_layout.tensors(checkpoint)
  local out, unmatched = keys.convert(step.converter.keys, step.side, source, {
    left = configs.left, right = configs.right, kept = kept, seed = args.seed, fill = step.converter.fill,
    is_refused = not args.drop_unmatched_keys,
  })
  if #unmatched > 0 then
    local message = ("%d %s not matched: %s"):format(#unmatched, #unmatched == 1 and "key was" or "keys were", naming.few(unmatched))
    if not args.drop_unmatched_keys then
      cbk.fail("unmatched", message .. "; to leave them out, if the model works without them, add --drop-unmatched-keys")
    end
    cbk.warn(message .. "; dropped because of --drop-unmatched-keys")
  end
  local options = { root = out, overwrite = args.overwrite or args.dry_run, format = kind }
  if kind == "mdl" then
    options.root, options.format = cbk.dict { model = out }, "h5"
  elseif kind == "release" then
    local release = catalogue.release(step.tgt)
    options.root, options.format = modelzoo.from_hf(out, release, cbk.dict(), cbk.dict()), "h5"
    options.h5_version, options.framework_version = args.h5_version or converters.h5_version(release), release .. ".0"
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
