-- Fills in the options of `cbk convert` that the user left out: model, source format and config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local composite = require "cbk.converters.composite"
local config_beside = require "cbk.recognise.config_beside"
local configs = require "cbk.recognise.configs"
local own_config = require "converters.conversion.own_config"
local recognise = require "cbk.recognise"
local release = require "cbk.recognise.release"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local left_out = {}

---The table of the user's own that leads to --to from one of their layouts, or without a config.
---@param args table      of the command
---@param only string|nil   the one model of the user's converter
---@return Model|nil, Step|nil
local function own_step(args, only)
  local name = args.model or only
  local model = name and catalogue.is_own(name) and catalogue.find(name) or nil
  local wanted = catalogue.resolve(args.tgt_fmt, model)
  for _, converter in ipairs(model or {}) do
    for place, side in ipairs { "right", "left" } do -- the left reads what the right writes
      local src, tgt = converter[3 - place], converter[place]
      local is_own = catalogue.has_own_layout(converter) or converter.without_config
      if is_own and catalogue.names_format(tgt, wanted) and (not args.src_fmt or catalogue.names_format(src, args.src_fmt)) then
        return model, { converter = converter, side = side, src = args.src_fmt or catalogue.formats(src)[1], tgt = wanted }
      end
    end
  end
end

---The format that a table of the user's own reads: of a release, if the checkpoint says one. Fails if the table reads others.
---@param step Step
---@param root Dict
---@return string
local function own_format(step, root)
  local reads = step.converter[step.side == "left" and 1 or 2]
  local version, stated = release.of_metadata(root)
  if not stated or not catalogue.release(step.src) or catalogue.names_format(reads, "cs-" .. stated) then
    return stated and catalogue.release(step.src) and "cs-" .. stated or step.src
  end
  return cbk.fail("unsupported", ("the checkpoint's __metadata__ says release %s, and the converter reads %s: first convert it to %s, "
    .. "without the converter's layout, or name the release with --src-fmt"):format(cbk.shown(version), reads, step.src))
end

---The config beside a checkpoint in a layout of the user's own. Tables have defaults, so there may be none.
---@param args table
---@param step Step
---@param checkpoint Checkpoint
---@return string|nil path
---@return Dict|nil kept   the config in the checkpoint's __metadata__, if there is no file
local function own_config_beside(args, step, checkpoint)
  if step.converter.without_config then return nil end
  local is_zoo = catalogue.release(step.src) ~= nil
  local found = config_beside.of(args.checkpoint_file, checkpoint, not is_zoo)
  local kept = is_zoo and not found.path and not found.problem and zoo_checkpoint.params(checkpoint.root) or nil
  if not (found.path or kept) and (found.problem or own_config.is_needed(step.converter)) then
    local called = config_beside.called(not is_zoo)
    local why = found.problem or ("there is no %s beside the checkpoint: name a config with --config"):format(called)
    cbk.warn(why .. "; fields have their defaults, if any")
  end
  return found.path, kept
end

---Sets the options that the user left out, for a table of the user's own. The first of its formats is read, unless the checkpoint is of a
---release and the table would read it in a layout.
---@param args table
---@param open fun(): Checkpoint
---@param only string|nil
---@return string[]|nil names   the options that were set; nil: there is no such table
local function detect_own(args, open, only)
  local model, step = own_step(args, only)
  if not model then return nil end
  local _, stated = release.of_metadata(open().root)
  if stated and not args.src_fmt and catalogue.is_own_layout(step.src) then return nil end
  local set_ones = {}
  local function set(field, value)
    if args[field] == nil and value ~= nil then args[field], set_ones[#set_ones + 1] = value, field end
  end
  set("model", model.model)
  if not args.src_fmt then set("src_fmt", own_format(step, open().root)) end
  if not args.config then
    local path, kept = own_config_beside(args, step, open())
    set("config", path)
    args.own_config = kept
  end
  return set_ones
end

---Sets the options that the user left out: model, source format and config. A table of the user's own may have no config; without a file,
---`own_config` is the config in the checkpoint's __metadata__, if there is one.
---@param args table          of the command: checkpoint_file, model, src_fmt, tgt_fmt, config
---@param open fun(): Checkpoint
---@param only string|nil      the one model of the user's converter: the default of --model
---@return Identity|nil found   what was recognised; nil if nothing had to be
---@return string[] names       the options that were set
function left_out.detect(args, open, only)
  local names = detect_own(args, open, only)
  if names then return nil, names end
  if (args.model or only) and args.src_fmt and args.config then
    args.model = args.model or only
    return nil, {}
  end
  local function ask(option, why, what_to_do)
    cbk.fail("usage", ("cannot detect %s of '%s': %s; %s"):format(option:match "^%-%-src" and "the format"
      or "the " .. option:sub(3), args.checkpoint_file, why, what_to_do or "name it with " .. option))
  end
  local whole = composite.model_in(args.checkpoint_file)
  local found = whole and { model = whole.model, format = "hf", config = args.checkpoint_file, why = {}, others = {} }
  local config, own
  if not found then
    found, config, own = recognise.checkpoint(args.checkpoint_file, open(), { config = args.config, format = args.src_fmt })
  end
  local set_ones = {}
  local function set(field, value)
    if args[field] == nil and value ~= nil then args[field], set_ones[#set_ones + 1] = value, field end
  end
  if found.holds then
    cbk.fail("unsupported", ("cannot convert '%s': %s"):format(args.checkpoint_file, found.reason), { advice = found.advice })
  end
  if found.problem then cbk.fail("config", found.problem) end
  if found.unused then cbk.warn(found.unused) end
  if args.src_fmt and args.src_fmt ~= "hf" and found.format == "hf" and config and configs.says_hugging_face(config) then
    cbk.fail("usage", ("'%s' is a checkpoint of Hugging Face, but --src-fmt is %s; use --src-fmt hf"):format(args.checkpoint_file,
      args.src_fmt))
  end
  if only then set("model", only) end
  if not args.model and not found.model then
    if found.cause then error(found.cause, 0) end
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
  if not found.config then args.own_config = own end
  if not found.config and not own then ask("--config", ("there is no %s beside it"):format(config_beside.called(not is_zoo))) end
  set("model", found.model)
  set("src_fmt", (found.release or not is_zoo) and found.format or "cs-auto")
  set("config", found.config)
  return found, set_ones
end

return left_out
