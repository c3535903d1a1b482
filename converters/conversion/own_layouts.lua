-- Conversions by tables of the user's own layouts ("a", "b"), and by tables that need no config. Each is a single step, without the
-- parts that surround a model in files of the Model Zoo. It writes no files.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local fit = require "converters.engine.fit"
local fit_checks = require "converters.engine.fit_checks"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local state_dict = require "converters.engine.state_dict"
local trainer = require "converters.modelzoo.trainer"
local unmatched = require "converters.conversion.unmatched"

local own_layouts = {}

---@class OwnConfigs   Both configs of a table; `made` is the one to write, if the user has a config.
---@field left Dict
---@field right Dict
---@field made? Dict

---Whether one of a table's formats is a layout of the user's own.
---@param converter Converter
function own_layouts.has_own_layout(converter) return catalogue.is_own_layout(converter[1]) or catalogue.is_own_layout(converter[2]) end

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
  local counts, names = { left = 0, right = 0 }, cbk.keys(section)
  for _, one in ipairs { "left", "right" } do
    local is_known = sections.known(converter, one)
    for _, name in ipairs(names) do counts[one] = counts[one] + (is_known(tostring(name)) and 1 or 0) end
  end
  if counts[side] > 0 or #names == 0 or sections.takes_any(converter, side) then return end
  local other = rules.other[side]
  cbk.fail("config", ("the config has no field that the table knows on the side of %s: %s%s"):format(format_of(formats, side),
    naming.listed(names, 5), counts[other] > 0 and ("; it is a config of %s"):format(format_of(formats, other)) or ""))
end

---@param converter Converter
---@param formats Converter   that names the two formats: the converter, or the one that it is a variant of
---@param side Side           that is read
---@param config? Dict        the whole file; nil: defaults alone
---@return OwnConfigs
function own_layouts.configs(converter, formats, side, config)
  local defaults = converter.defaults or {}
  if not config then return { left = cbk.dict(defaults.left or cbk.dict()), right = cbk.dict(defaults.right or cbk.dict()) } end
  if not kinds.is_dict(config) then
    cbk.fail("config", ("the config should be a map of fields, found a %s"):format(tostring(cbk.kind(config))))
  end
  if kinds.is_dict(config, "model") or trainer.is(config) then config = trainer.model(config) end
  refuse_other(converter, formats, side, config)
  local to, from, dropped = sections.convert(converter, side, config)
  if #dropped > 0 then cbk.warn("config fields without a counterpart are left out: " .. naming.listed(dropped)) end
  local out = { [side] = sections.nested(converter, side, from), [rules.other[side]] = to, made = to }
  keys.check_counts(converter.keys or {}, out)
  return out
end

---Says what is beside the model, and is not converted.
---@param root Dict
---@param name string   of the model in it
local function warn_of_rest(root, name)
  local beside = {}
  for key in cbk.items(root) do
    if key ~= name then beside[#beside + 1] = tostring(key) end
  end
  if #beside > 0 then cbk.warn(("the tensors are those of '%s'; beside it, and not read: %s"):format(name, naming.listed(beside, 5))) end
end

---The tensors of a checkpoint by their keys: those of the model, if it has more.
---@param root Dict
---@return Dict
function own_layouts.tensors(root)
  for _, name in ipairs { "model", "state_dict" } do
    if kinds.is_dict(root, name) then
      warn_of_rest(root, name)
      root = root[name]
      break
    end
  end
  local out = cbk.dict()
  for key, tensor in cbk.tensors(root) do out[key] = tensor end
  return out
end

---How tensors fit the class that the table has for their side; nil without a class, or without a config.
---@param converter Converter
---@param side Side
---@param configs OwnConfigs
---@param tensors Dict
---@param release? string   of the Model Zoo, if the side is one of its
---@return Fit|nil
local function fit_of(converter, side, configs, tensors, release)
  local class = (converter.classes or {})[side]
  if not class or not configs.made then return nil end
  local has = state_dict.of(tensors)
  return fit.of(class:tensors(configs[side], { release = release }), has.keys, has.shape_of)
end

---Fails if what was read is not whole.
---@param read Fit|nil
local function refuse_incomplete(read)
  if read and #read.missing > 0 then
    cbk.fail("convert", fit_checks.incomplete_text(fit_checks.lacking(read, read.missing), "; use a complete checkpoint"))
  end
end

---Reports what is wrong with the output, and which sides have no class that could tell.
---@param read Fit|nil
---@param written Fit|nil
local function check_output(read, written)
  fit_checks.shapes(written, "", false)
  if written and #written.missing > 0 then
    local count = numbers.counted(#written.missing, "tensor")
    cbk.warn(("the output lacks %s that its class has: %s"):format(count, naming.folded(written.missing)))
  end
  local strange = written and fit_checks.strange_output(written, false)
  if strange then cbk.warn(strange) end
  if read and written then return end
  cbk.warn(("no class describes %s: completeness, and the numbers and sizes in the config, are not checked"):format(
    not (read or written) and "layouts of one's own" or read and "the layout that is written" or "the layout that is read"))
end

---@class OwnOptions
---@field seed? integer
---@field drop_unmatched? boolean
---@field releases? { left?: string, right?: string }   of the Model Zoo, for a side that is one of its

---The tensors of the other side.
---@param converter Converter
---@param side Side
---@param configs OwnConfigs
---@param source Dict
---@param options OwnOptions
---@return Dict
function own_layouts.checkpoint(converter, side, configs, source, options)
  local other, release = rules.other[side], options.releases or {}
  local read = fit_of(converter, side, configs, source, release[side])
  fit_checks.shapes(read, "", true)
  local out, strangers, _, invented = keys.convert(converter.keys, side, source, {
    left = configs.left, right = configs.right, seed = options.seed, fill = converter.fill,
    is_refused = not options.drop_unmatched,
  })
  refuse_incomplete(read)
  check_output(read, fit_of(converter, other, configs, out, release[other]))
  local shapes = {}
  for i, key in ipairs(strangers) do shapes[i] = source[key]:shape() end
  unmatched.report { keys = strangers, all = cbk.keys(source), shapes = shapes, lacking = { count = 0 }, invented = invented,
    is_dropped = options.drop_unmatched }
  return out
end

return own_layouts
