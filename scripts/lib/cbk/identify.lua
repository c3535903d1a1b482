-- Finds out which model, format and release a checkpoint is of, and which config belongs to it.

local cbk = require "cbk"
local converters = require "cbk.converters"
local other_names = require "cbk.other_names"
local release = require "cbk.release"
local spec_tree = require "cbk.spec_tree"
local fit = require "converters.engine.fit"
local kinds = require "converters.engine.kinds"
local quiet = require "converters.engine.quiet"
local sections = require "converters.engine.sections"
local coverage = require "converters.diagnosis.coverage"
local weight_names = require "converters.diagnosis.weight_names"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local identify = {}

-- --- the config

local function has_suffix(name, ...)
  for _, suffix in ipairs { ... } do
    if name:sub(-#suffix) == suffix then return true end
  end
  return false
end

---The config beside a checkpoint: config.json, or the YAML of the same name, or the only one that has a model section.
---@param path string       a file or a folder
---@param is_hf boolean
---@return string|nil
function identify.config_of(path, is_hf)
  local folder = cbk.fs.is_dir(path) and path or cbk.fs.dirname(path)
  if is_hf then
    local file = cbk.fs.join(folder, "config.json")
    return cbk.fs.exists(file) and file or nil
  end
  local files, stem = {}, cbk.fs.basename(path):gsub("%.%a+$", "")
  for _, name in ipairs(cbk.fs.list(folder)) do
    if has_suffix(name, ".yaml", ".yml") then
      local file = cbk.fs.join(folder, name)
      local fine, config = pcall(cbk.config.load, file)
      local is_config = fine and kinds.is_dict(config) and (config.model ~= nil or config.trainer ~= nil)
      if is_config then files[#files + 1] = file end
      if is_config and name:gsub("%.ya?ml$", "") == stem then return file end
    end
  end
  local suffix = stem:match "_to_cs%-[%w.-]+$" -- as `cbk convert` names a pair
  for _, file in ipairs(suffix and files or {}) do
    if has_suffix(file, suffix .. ".yaml") then return file end
  end
  return #files == 1 and files[1] or nil
end

-- --- candidates

---Every model of the catalogue once, with its class of a side.
---@param side Side
---@return { model: Model, class: Class }[]
local function described(side)
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    local class = model.model == name and model.classes and model.classes[side]
    if class then out[#out + 1] = { model = model, class = class } end
  end
  return out
end

---@class Candidate
---@field model Model
---@field class Class
---@field fit Fit
---@field mistakes integer

---Those that fit best first.
local function ranked(list)
  table.sort(list, function(a, b)
    if a.mistakes ~= b.mistakes then return a.mistakes < b.mistakes end
    if #a.model.model ~= #b.model.model then return #a.model.model < #b.model.model end
    return a.model.model < b.model.model
  end)
  return list
end

---@param side Side
---@param format string
---@param section Dict    the model's config
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil
---@param accepts fun(one: { model: Model, class: Class }): boolean
---@return Candidate[]
local function candidates(side, format, section, keys, shape_of, accepts)
  local out = {}
  for _, one in ipairs(described(side)) do
    local class, of = catalogue.class_of(one.model, {}, format)
    local known = class and accepts(one) and select(2, pcall(class.tensors, class, section, { release = of }))
    if type(known) == "table" and known.by_key then
      local fine, found = pcall(fit.of, known, keys, shape_of)
      if fine then out[#out + 1] = { model = one.model, class = class, fit = found, mistakes = fit.mistakes(found) } end
    end
  end
  return ranked(out)
end

---The types that a model's Hugging Face configs say.
local function types_of(model)
  local out = {}
  for _, converter in ipairs(model) do
    for _, one in pairs(converter.variants or { converter }) do
      local after = one.after and one.after.left
      if after and after.model_type then out[after.model_type] = true end
    end
  end
  return out
end

local old_types = { RefinedWeb = "falcon", RefinedWebModel = "falcon" }

---@param config Dict
---@return fun(one: { model: Model, class: Class }): boolean
local function of_type(config)
  local stated = config.model_type
  if type(stated) ~= "string" then return function() return true end end
  return function(one) return types_of(one.model)[old_types[stated] or stated] == true end
end

---Whether a model's table to Hugging Face takes this config.
local function takes(model, format, section)
  local step = catalogue.direct(model, format, "hf")
  for _, converter in pairs(step and (step.converter.variants or { step.converter }) or {}) do
    local fine, refused = quiet(sections.refused, converter, step.side, section)
    if fine and refused and #refused == 0 then return true end
  end
  return not step
end

---@param format string
---@param section Dict
local function of_name(format, section)
  local stated = section.name
  return function(one)
    if type(stated) == "string" then
      local name = one.model.name or one.model.model
      return name == stated or (one.model.aliases or {})[stated] ~= nil
    end
    return takes(one.model, format, section)
  end
end

-- --- what is found

---@class Identity
---@field model? string     the base name: "llama"
---@field format string     "hf" or "cs-X.Y"
---@field class? string
---@field release? string   "2.4"
---@field config? string    a path
---@field why string[]
---@field others string[]   models that fit as well

---@param checkpoint Checkpoint
---@param config Dict|nil
---@return string format, string|nil release, string[] why
local function format_of(checkpoint, config)
  local root = checkpoint.root
  if not kinds.is_dict(root, "model") then return "hf", nil, { "the tensors are at the top, as in Hugging Face's files" } end
  local old = spec_tree.old_file(checkpoint)
  local evidence, why = release.evidence(checkpoint, config or cbk.dict(), old.has_scalar_dicts), {}
  local possible = release.candidates(evidence)
  for _, one in ipairs(evidence) do why[#why + 1] = release.line(one) end
  if #possible == 0 then cbk.fail("format", "the checkpoint and the config are not of one release: " .. table.concat(why, "; ")) end
  return "cs-" .. possible[1], #possible == 1 and possible[1] or nil, why
end

---Keys of the model, and their shapes.
local function keys_of(checkpoint)
  local root = other_names.added(checkpoint)
  kinds.check_root(root)
  local model = kinds.is_dict(root, "model") and root.model or root
  local function shape_of(key)
    local value = model[key]
    return kinds.is_tensor(value) and value:shape() or nil
  end
  return coverage.keys_of(root), shape_of
end

---@param found Identity
---@param list Candidate[]
local function take(found, list, count)
  local best = list[1]
  if not best or best.fit.matched * 2 < count then return end
  found.model, found.class = best.model.model, best.class.name
  found.others = {}
  for i = 2, #list do
    local is_headless = list[i].model.model:find "%-headless$"
    if list[i].mistakes == best.mistakes and not is_headless then found.others[#found.others + 1] = list[i].model.model end
  end
  local one = best.fit
  found.why[#found.why + 1] = ("%d of %d keys are tensors of %s with the shapes that the config says"):format(one.matched, count,
    best.class.name)
  for what, keys in pairs { missing = one.missing, unknown = one.unknown } do
    if #keys > 0 then found.why[#found.why + 1] = ("%d %s: %s"):format(#keys, what, weight_names.shown(keys)) end
  end
  if #one.wrong > 0 then
    found.why[#found.why + 1] = ("'%s': %s"):format(one.wrong[1].key, one.wrong[1].why)
  end
end

---Which model a checkpoint is, by its config and its tensors.
---@param path string           of the checkpoint
---@param checkpoint Checkpoint
---@param config_path? string   default: the config beside it
---@return Identity
function identify.checkpoint(path, checkpoint, config_path)
  local is_hf = not kinds.is_dict(checkpoint.root, "model")
  config_path = config_path or identify.config_of(path, is_hf)
  local config = config_path and cbk.config.load(config_path)
  local format, of, why = format_of(checkpoint, config)
  local found = { format = format, release = of, config = config_path, why = why, others = {} }
  local keys, shape_of = keys_of(checkpoint)
  if config then
    local section = is_hf and config or trainer.model(config)
    local accepts = is_hf and of_type(config) or of_name(format, section)
    local stated = is_hf and config.model_type or section.name
    if type(stated) == "string" then why[#why + 1] = ("the config says %s=%s"):format(is_hf and "model_type" or "name", stated) end
    take(found, candidates(is_hf and "left" or "right", format, section, keys, shape_of, accepts), #keys)
  else
    local names = weight_names.models_that_fit(keys, format)
    found.model, found.others = names[1], { unpack(names, 2) }
    local model = found.model and catalogue.find(found.model)
    local class = model and catalogue.class_of(model, {}, format)
    found.class = class and class.name
    why[#why + 1] = found.model and ("there is no config; the names of all %d tensors are those of %s"):format(#keys, found.model)
      or "there is no config, and the names of the tensors fit no model"
  end
  return found
end

---The model whose parts are the folders of a folder, as Hugging Face's LLaVA; nil where none is.
---@param path string
---@return Model|nil
local function composite_in(path)
  for _, name in ipairs(cbk.fs.is_dir(path) and catalogue.names() or {}) do
    local model = catalogue.find(name)
    for _, converter in ipairs(model) do
      local has_all = converter.components ~= nil
      for _, part in ipairs(converter.components or {}) do
        has_all = has_all and cbk.fs.is_dir(cbk.fs.join(path, part.left))
      end
      if has_all then return model end
    end
  end
end

---Sets the options of a conversion that the user did not give: model, source format and config.
---@param args table          of the command: checkpoint_file, model, src_fmt, config
---@param open fun(): Checkpoint
---@return Identity|nil found   what was found; nil where all was given
---@return string[] names       of the options that were set
function identify.complete(args, open)
  if args.model and args.src_fmt and args.config then return nil, {} end
  local function ask(option, why)
    cbk.fail("usage", ("cannot find out %s of '%s': %s; name it with %s"):format(option:match "^%-%-src" and "the format"
      or "the " .. option:sub(3), args.checkpoint_file, why, option))
  end
  local whole = composite_in(args.checkpoint_file)
  local found = whole and { model = whole.model, format = "hf", config = args.checkpoint_file, why = {}, others = {} }
    or identify.checkpoint(args.checkpoint_file, open(), args.config)
  local names = {}
  local function set(field, value)
    if args[field] == nil then args[field], names[#names + 1] = value, field end
  end
  if not args.model and not found.model then
    ask("--model", "no model has its tensors" .. (found.config and "" or ", and no config is beside it"))
  end
  if not args.model and #found.others > 0 then
    ask("--model", ("%s or %s fit"):format(found.model, table.concat(found.others, " or ")))
  end
  if not found.config then ask("--config", "no config is beside it") end
  set("model", found.model)
  set("src_fmt", (found.format == "hf" or found.release) and found.format or "cs-auto")
  set("config", found.config)
  return found, names
end

---Which model and format a config is of, where the user does not say it. Of several formats of the Model Zoo, the newest.
---@param config Dict
---@param model? string    as the user says
---@param format? string
---@return string model, string format
function identify.model_of_config(config, model, format)
  local is_zoo = kinds.is_dict(config) and (config.model ~= nil or config.trainer ~= nil)
  format = format or (is_zoo and "cs-current" or "hf")
  if model then return model, format end
  local section = is_zoo and trainer.model(config) or config
  local stated = is_zoo and section.name or section.model_type
  if type(stated) ~= "string" then
    cbk.fail("usage", ("the config does not say its model (no '%s'); name it with --model"):format(is_zoo and "model.name" or "model_type"))
  end
  local wanted = kinds.is_list(config, "architectures") and config.architectures[1] or nil
  local accepts, found = is_zoo and of_name(catalogue.resolve(format), section) or of_type(config), {}
  for _, one in ipairs(described(is_zoo and "right" or "left")) do
    if accepts(one) then
      if one.class.name == wanted then return one.model.model, format end
      found[#found + 1] = { model = one.model, mistakes = 0 }
    end
  end
  if #found == 0 then cbk.fail("unsupported", ("no known model is '%s'; name one with --model ('cbk list' lists them)"):format(stated)) end
  return ranked(found)[1].model.model, format
end

return identify
