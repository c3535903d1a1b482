-- Which conversions a checkpoint allows, from which format and to which.

local cbk = require "cbk"
local advice = require "cbk.recognise.advice"
local candidates = require "cbk.recognise.candidates"
local configs = require "cbk.recognise.configs"
local contents = require "converters.conversion.contents"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local detect = require "cbk.recognise.detect"
local doubts = require "cbk.recognise.doubts"
local errors = require "cbk.errors"
local fit_checks = require "converters.engine.fit_checks"
local guess = require "cbk.recognise.guess"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local release = require "cbk.recognise.release"
local releases = require "converters.engine.releases"
local warnings = require "cbk.warnings"
local spec_tree = require "cbk.spec_tree"
local steps = require "converters.conversion.steps"
local state_dict = require "converters.engine.state_dict"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local ways = {}

---How well names fit a model, by its class and the config; nil if no class describes it.
---@param model Model
---@param converter Converter
---@param format string
---@param config Dict   the whole file
---@return ContentsFit|nil
local function fit_of(model, converter, format, config)
  local class, of = catalogue.class_of(model, converter, format)
  local fine, section = pcall(catalogue.release(format) and trainer.model or configs.hugging_face_section, config)
  if not (class and fine and kinds.is_dict(section)) then return nil end
  return function(keys) return guess.mistakes(class, section, of, keys) end
end

---The tensors that a step with a layout of the user's own reads.
---@param checkpoint Checkpoint
---@param step Step
---@param config Dict|nil
---@return JobInput, Contents
local function bare_input(checkpoint, step, config)
  local found = contents.of_layout(checkpoint.root, contents.strangers(step.converter.keys, step.side), config)
  local input = converters.input(checkpoint)
  if cbk.count(found.root) == 0 then cbk.fail("key", "the checkpoint has no tensors: nothing to convert") end
  if #found.values > 0 then cbk.warn("values that are no tensors are left out: " .. naming.all_folded(found.values)) end
  input.source, input.whole = found.root, checkpoint.root
  return input, found
end

---@param checkpoint Checkpoint
---@param route Route
---@param config Dict|nil
---@param identity Identity|nil   what the checkpoint was recognised as
---@return JobInput, Contents
local function stored_input(checkpoint, route, config, identity)
  kinds.check_root(checkpoint.root)
  if steps.is_bare(route.path[1], config) then return bare_input(checkpoint, route.path[1], config) end
  local is_hf = route.src == "hf"
  local fit = fit_of(route.model, route.path[1].converter, route.src, config)
  local input = converters.input(checkpoint)
  if not is_hf and not kinds.is_dict(checkpoint.root, "model") then return input, contents.as_it_is(checkpoint.root) end
  local is_known = identity and identity.model == route.model.model and identity.format == route.src
  local found = is_known and identity.contents or contents.of(checkpoint.root, not is_hf, fit, config)
  input.source, input.whole = found.root, checkpoint.root
  return input, found
end

---The part of a checkpoint that a job reads: the model in it. Quantised weights are numbers of the dtype that the config states.
---@param checkpoint Checkpoint
---@param route Route
---@param config Dict|nil   of the source, the whole file
---@param identity? Identity   what the checkpoint was recognised as, by this config
---@return JobInput
---@return Contents
---@return Dict|nil config       without the fields about quantisation, if weights were dequantised
---@return string|nil text       what was dequantised, for people
function ways.input(checkpoint, route, config, identity)
  local input, found = stored_input(checkpoint, route, config, identity)
  local source, own_config, text = dequantised.model(input.source, config, "cannot convert the checkpoint", found.dequantised)
  input.source = source
  return input, found, own_config, text
end

---The format that --src-fmt cs-auto selects.
---@param checkpoint Checkpoint
---@param name string     a model
---@param tgt_fmt string
---@param config Dict
---@param config_path? string
---@return string
function ways.auto_format(checkpoint, name, tgt_fmt, config, config_path)
  local model = catalogue.find(name)
  local tgt, old = catalogue.resolve(tgt_fmt, model), spec_tree.old_file(checkpoint)
  local evidence, root = release.evidence(checkpoint, config, old.has_scalar_dicts), checkpoint.root
  local fit = model and kinds.is_dict(root, "model") and fit_of(model, {}, catalogue.format_at(model, releases.newest), config)
  if fit then root = contents.of(root, true, fit, config).root end
  local files = { root = root, config = config, paths = { checkpoint = checkpoint.path, config = config_path } }
  local found = detect.release(evidence, name, tgt, files, "name the release with --src-fmt cs-X.Y")
  return model and catalogue.format_at(model, found) or "cs-" .. found
end

---How tables treat a key that the class does not have: whether they drop or write it; nil if no rule matches it.
---@param tables { converter: Converter }[]
---@param side Side
---@param key string
---@return "drop"|"write"|nil
local function fate_of(tables, side, key)
  for _, one in ipairs(tables) do
    local compiled = patterns.compile(one.converter.keys, side)
    local hit = patterns.match(compiled, key)[1] or patterns.match(compiled, (key:gsub("^model%.", "")))[1]
    if hit then return hit.ending.kind == "drop" and "drop" or "write" end
  end
end

---Why tensors prevent a conversion; nil if they do not.
---@param one Fit
---@param tables { converter: Converter }[]   that read them
---@param side Side
---@param advise fun(strangers: string[]): string|nil
---@return string|nil
local function obstacle(one, tables, side, advise)
  if one.wrong[1] then return ("'%s': %s"):format(one.wrong[1].key, one.wrong[1].why) end
  if #one.missing > 0 then
    return ("the checkpoint is incomplete: %d %s missing: %s"):format(#one.missing, #one.missing == 1 and "weight is" or "weights are",
      naming.folded(one.missing))
  end
  local strangers = {}
  for _, key in ipairs(one.unknown) do
    local fate = fate_of(tables, side, key)
    local is_fine = fate == "drop" or fate == "write" and fit_checks.is_copied(one.known, key)
    if not is_fine then strangers[#strangers + 1] = key end
  end
  if #strangers == 0 then return nil end
  return ("%s has no such %s: %s%s"):format(one.known.class.name, #strangers == 1 and "tensor" or "tensors", naming.folded(strangers),
    advise(strangers) or "")
end

---Fails because no converter reads the format. The user must name a layout of their own, unless a class shows which one it is.
---@param model Model
local function fail_without_way(model)
  for _, converter in ipairs(model) do
    if catalogue.has_own_layout(converter) then
      cbk.fail("unsupported", ("its converter reads the layouts '%s' and '%s': which one this is, --src-fmt and --to of `cbk convert` say")
        :format(converter[1], converter[2]))
    end
  end
  cbk.fail("unsupported", "no converter reads it")
end

---The format that a table of the user's own leads to from a layout.
---@param found Identity   in that layout
---@return string
local function target_of_own(found)
  if #found.layouts > 0 then
    cbk.fail("unsupported", ("it fits the layouts '%s' and '%s' alike: which one it is, --src-fmt and --to of `cbk convert` say")
      :format(found.format, table.concat(found.layouts, "', '")))
  end
  local path, target = candidates.way_from(catalogue.find(found.model), found.format)
  fit_checks.codes(found.fit, "", state_dict.of(found.contents.root))
  fit_checks.layers(found.fit, "")
  local problem = obstacle(found.fit, path, path[1].side, function() end)
  if problem then cbk.fail("convert", problem) end
  return target
end

---The layout of the user's own that a checkpoint has: the rules of one side of a table that needs no config fit all of its keys.
---@param checkpoint Checkpoint
---@param name string   a model
---@return string|nil layout, string|nil other   the other one of the table; nil: none fits, or several do
---@return integer|nil count                     of keys
function ways.own_layout(checkpoint, name)
  local model, found = catalogue.is_own(name) and kinds.is_dict(checkpoint.root) and catalogue.find(name) or {}, {}
  for _, converter in ipairs(model) do
    for place, side in ipairs(converter.without_config and catalogue.has_own_layout(converter) and { "left", "right" } or {}) do
      local strangers = contents.strangers(converter.keys, side)
      local fine, inner = warnings.quietly(contents.of_layout, checkpoint.root, strangers)
      local keys = fine and cbk.keys(inner.root) or {}
      if #keys > 0 and strangers(keys) == 0 then
        local own, other = catalogue.formats(converter[place])[1], catalogue.formats(converter[3 - place])[1]
        found[#found + 1] = { layout = own, other = other, count = #keys }
      end
    end
  end
  if #found == 1 then return found[1].layout, found[1].other, found[1].count end
end

---Finds a format to convert a checkpoint to. Returns nil and the reason if there is none.
---@param found Identity
---@param checkpoint Checkpoint
---@param config Dict|nil   of the file `found.config`
---@return string|nil target, string|nil reason
function ways.target(found, checkpoint, config)
  if not found.model then return nil end
  if not config then
    return nil, found.is_broken and "to convert it, correct the config or name another with --config"
      or "to convert it, name its config with --config"
  end
  local model = catalogue.find(found.model)
  local fine, result = warnings.quietly(function()
    if catalogue.is_own_layout(found.format) then return target_of_own(found) end
    local probe = found.format == "hf" and "cs-current" or "hf"
    local format = (found.format == "hf" or found.release) and found.format
      or ways.auto_format(checkpoint, found.model, probe, config, found.config)
    local _, target = candidates.way_from(model, format)
    if not target then fail_without_way(model) end
    local route = converters.route(found.model, format, target)
    local input, _, own_config = ways.input(checkpoint, route, config, found)
    local job = converters.job(route, input)
    converters.config(found.model, job, own_config)
    fit_checks.codes(found.fit, "", state_dict.of(route.src == "hf" and job.source or job.source.model))
    local problem = found.fit and obstacle(found.fit, steps.tables(job.configs[1]), job.path[1].side, function(strangers)
      return advice.unmatched(job, job.source, strangers)
    end)
    if problem then cbk.fail("convert", problem) end
    doubts.refuse(job, config, job.source)
    return target
  end)
  if fine then return result end
  return nil, ("it cannot be converted: %s"):format(errors.text(errors.outside(result, "cannot convert the checkpoint")))
end

return ways
