-- Fills in the options of `cbk convert` that the user left out: model, source format and config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local composite = require "cbk.converters.composite"
local config_beside = require "cbk.recognise.config_beside"
local configs = require "cbk.recognise.configs"
local recognise = require "cbk.recognise"

local left_out = {}

---Sets the options that the user left out: model, source format and config.
---@param args table          of the command: checkpoint_file, model, src_fmt, config
---@param open fun(): Checkpoint
---@param only string|nil      the one model of the user's converter: the default of --model
---@return Identity|nil found   what was found; nil if the user gave all options
---@return string[] names       the options that were set
function left_out.detect(args, open, only)
  if (args.model or only) and args.src_fmt and args.config then
    args.model = args.model or only
    return nil, {}
  end
  local function ask(option, why, what_to_do)
    cbk.fail("usage", ("cannot detect %s of '%s': %s; %s"):format(option:match "^%-%-src" and "the format"
      or "the " .. option:sub(3), args.checkpoint_file, why, what_to_do or "name it with " .. option))
  end
  local whole = composite.model_in(args.checkpoint_file)
  local found, config = whole and { model = whole.model, format = "hf", config = args.checkpoint_file, why = {}, others = {} }, nil
  if not found then found, config = recognise.checkpoint(args.checkpoint_file, open(), args.config) end
  local set_ones = {}
  local function set(field, value)
    if args[field] == nil then args[field], set_ones[#set_ones + 1] = value, field end
  end
  if found.problem then cbk.fail("config", found.problem) end
  if args.src_fmt and args.src_fmt ~= "hf" and found.format == "hf" and config and configs.says_hugging_face(config) then
    cbk.fail("usage", ("'%s' is a checkpoint of Hugging Face, but --src-fmt is %s; use --src-fmt hf"):format(args.checkpoint_file,
      args.src_fmt))
  end
  if only then set("model", only) end
  if not args.model and not found.model then
    ask("--model", found.reason, found.advice or found.is_config_wrong and "correct the config, or name another with --config"
      or found.config and "correct the config, name another with --config, or name the model with --model")
  end
  if not args.model and #found.others > 0 then
    ask("--model", ("%s or %s fit"):format(found.model, table.concat(found.others, " or ")))
  end
  local is_zoo = catalogue.release(found.format) ~= nil
  if not args.src_fmt and #(found.layouts or {}) > 0 then
    ask("--src-fmt", ("the layouts %s and %s fit alike"):format(found.format, table.concat(found.layouts, ", ")))
  end
  if not found.config then ask("--config", ("there is no %s beside it"):format(config_beside.called(not is_zoo))) end
  set("model", found.model)
  set("src_fmt", (found.release or not is_zoo) and found.format or "cs-auto")
  set("config", found.config)
  return found, set_ones
end

return left_out
