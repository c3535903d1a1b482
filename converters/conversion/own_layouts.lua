-- Conversions by tables of the user's own layouts ("a", "b"), and by tables that need no config. Each is a single step, without the
-- parts that surround a model in files of the Model Zoo. It writes no files.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local contents = require "converters.conversion.contents"
local errors = require "cbk.errors"
local fit = require "converters.engine.fit"
local fit_checks = require "converters.engine.fit_checks"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local pretrained = require "converters.engine.pretrained"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local tensors = require "converters.conversion.tensors"
local trainer = require "converters.modelzoo.trainer"
local unmatched = require "converters.conversion.unmatched"

local own_layouts = {}

---@class OwnConfigs   Both configs of a table; `made` is the one to write, if the user has a config.
---@field left Dict
---@field right Dict
---@field made? Dict
---@field given? Dict   the fields of the user's config

---Whether a table has config rules, so that a config belongs to the checkpoint. Other tables copy the config, if there is one.
---@param converter Converter
function own_layouts.needs_config(converter) return not converter.without_config and not sections.takes_any(converter, "left") end

---The name of a side's format.
local function format_of(converter, side) return converter[side == "left" and 1 or 2] end

---Fails if the table knows no field of the config.
---@param converter Converter
---@param formats Converter   that names the two formats
---@param side Side
---@param section Dict
local function refuse_other(converter, formats, side, section)
  local counts, names = { left = 0, right = 0 }, {}
  for name, value in cbk.items(section) do
    names[#names + 1] = name
    for inner in cbk.items(kinds.is_dict(value) and value or cbk.dict()) do names[#names + 1] = ("%s.%s"):format(name, tostring(inner)) end
  end
  for _, one in ipairs { "left", "right" } do
    local is_known = sections.known(converter, one)
    for _, name in ipairs(names) do counts[one] = counts[one] + (is_known(tostring(name)) and 1 or 0) end
  end
  if counts[side] > 0 or #names == 0 or sections.takes_any(converter, side) then return end
  local other = rules.other[side]
  cbk.fail("config", ("the config has no field that the table knows on the side of %s: %s%s"):format(format_of(formats, side),
    naming.listed(names, 5), counts[other] > 0 and ("; it is a config of %s: name the format or the config that belongs "
    .. "to the checkpoint"):format(format_of(formats, other)) or ""))
end

---The fields of a side without a config: the defaults of the table, and of its class.
---@param converter Converter
---@param side Side
---@return Dict
local function defaults_of(converter, side)
  local fine, made = pcall(sections.of_defaults, converter, side)
  if fine then return made end
  cbk.fail("config", ("the table's defaults cannot be computed without a config (%s); name one with --config"):format(errors.text(made)))
end

---@param converter Converter
---@param formats Converter   that names the two formats: the converter, or the one that it is a variant of
---@param side Side           that is read
---@param config? Dict        the whole file; nil: defaults alone
---@return OwnConfigs
function own_layouts.configs(converter, formats, side, config)
  if not config then return { left = defaults_of(converter, "left"), right = defaults_of(converter, "right") } end
  if not kinds.is_dict(config) then
    cbk.fail("config", ("the config should be a map of fields, found a %s"):format(tostring(cbk.kind(config))))
  end
  local is_zoo = catalogue.release(catalogue.formats(format_of(formats, side))[1]) ~= nil
  if is_zoo and kinds.is_dict(config, "model") or trainer.is_file(config) then config = trainer.model(config) end
  refuse_other(converter, formats, side, config)
  local to, from, dropped = sections.convert(converter, side, config)
  local lost, has_class = {}, (converter.classes or {})[side] ~= nil
  for _, name in ipairs(dropped) do
    local is_class = name == "architectures" and has_class -- the new config names its own
    if not (is_class or pretrained.goes_without_saying(name, config[name])) then lost[#lost + 1] = name end
  end
  if #lost > 0 then cbk.warn("config fields without a counterpart are left out: " .. naming.listed(lost)) end
  local out = { [side] = sections.nested(converter, side, from), [rules.other[side]] = to, made = to, given = config }
  keys.check_counts(converter.keys or {}, out)
  return out
end

---Says what is beside the model, and is not converted.
---@param root Dict
---@param name string   of the model in it
local function warn_of_rest(root, name)
  local beside = {}
  for key in cbk.items(root) do
    if key ~= name and key ~= "__metadata__" then beside[#beside + 1] = tostring(key) end
  end
  if #beside > 0 then cbk.warn(("the tensors are those of '%s'; beside it, and not read: %s"):format(name, naming.listed(beside, 5))) end
end

---The tensors of a tree by their keys, also of dicts in it.
---@param tree Dict
---@return Dict
local function flat(tree)
  local out = cbk.dict()
  for key, tensor in cbk.tensors(tree) do out[key] = tensor end
  return out
end

---How many of some keys no rule fits.
---@param set Rule[]
---@param side Side
---@return fun(names: string[]): integer
function own_layouts.strangers(set, side)
  local compiled = patterns.compile(set, side)
  return function(names)
    local count = 0
    for _, key in ipairs(names) do count = count + (patterns.match(compiled, key)[1] and 0 or 1) end
    return count
  end
end

---The tensors of a checkpoint by their keys: those of the model, if it has more. Wrappers are looked through where rules fit more keys
---without them.
---@param root Dict
---@param strangers? fun(names: string[]): integer   keys that no rule fits; nil: there are no rules
---@return Dict tensors
---@return string|nil looked   what was looked through
function own_layouts.tensors(root, strangers)
  local model
  for _, name in ipairs { "model", "state_dict" } do model = model or kinds.is_dict(root, name) and name end
  local plain = flat(model and root[model] or root)
  local count = strangers and strangers(cbk.keys(plain)) or 0
  if count > 0 then
    local found = contents.of(root, false, strangers)
    local inner = flat(found.root)
    if strangers(cbk.keys(inner)) < count then return inner, contents.text(found) end
  end
  if model then warn_of_rest(root, model) end
  return plain
end

---Warns about a side without a class.
---@param side Side   that is read
local function warn_of_no_class(classes, side)
  if classes.left and classes.right then return end
  cbk.warn(("no class describes %s: completeness, and the numbers and sizes in the config, are not checked"):format(
    not (classes.left or classes.right) and "layouts of one's own" or classes[side] and "the layout that is written"
      or "the layout that is read"))
end

---@class OwnOptions
---@field seed? integer
---@field deduplicated? boolean   the file has each tensor under one name
---@field drop_unmatched? boolean
---@field trace? fun(record: KeyRecord)

---The tensors of the other side.
---@param converter Converter
---@param step { side: Side, src: string, tgt: string }
---@param configs OwnConfigs
---@param source Dict
---@param options OwnOptions
---@return Dict out, string[] doubts   what it lacks, or has without need; each was a warning
function own_layouts.checkpoint(converter, step, configs, source, options)
  local classes, doubts = converter.classes or {}, {}
  warn_of_no_class(classes, step.side)
  local function fit_of(side, has)
    local class, is_read = classes[side], side == step.side
    if not class then return nil end
    local release, given = catalogue.release(is_read and step.src or step.tgt), is_read and configs.given or nil
    return fit.of(class:tensors(configs[side], { release = release, given = given }), has.keys, has.shape_of)
  end
  local found = tensors.convert({
    converter = converter, configs = configs, side = step.side, src = step.src, tgt = step.tgt, source = source, reads = "",
    writes = "", fit_of = fit_of,
  }, {
    seed = options.seed, deduplicated = options.deduplicated, is_refused = not options.drop_unmatched, trace = options.trace,
    doubt = function(text)
      doubts[#doubts + 1] = text
      cbk.warn(text)
    end,
  })
  unmatched.report { keys = found.unmatched, all = cbk.keys(source), shapes = found.shapes, lacking = found.lacking,
    invented = found.invented, is_dropped = options.drop_unmatched }
  fit_checks.refuse_incomplete(found.lacking)
  return found.out, doubts
end

return own_layouts
