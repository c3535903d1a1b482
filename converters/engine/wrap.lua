-- A model inside another one: the inner family's own table is run, and its Model Zoo keys are below a prefix.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local patterns = require "converters.engine.patterns"
local rules = require "converters.engine.rules"

local wrap = {}

---@class Wrap
---@field says table<Side, string>        The config field, on each side, that has the name of the inner model:
---                                       `{ left = "model_type", right = "model_name" }`.
---@field called? table<string, string|fun(config: Dict): string>   Values of that field on the left that differ from the name in
---                                       `cbk list`: `{ gpt_neox = "gpt-neox" }`. A function computes the name from the config.
---@field models string[]                 The models that can be the inner model.
---@field place string                    The prefix of the inner model's keys on the right: "policy_model.model".
---@field copy string                     The prefix of a second copy of these keys on the right, "ref_model.model". It is written, and
---                                       ignored when it is read.

---The name of the model inside, or an error.
---@param wrapper Wrap
---@param config Dict   the model section of `side`
---@param side Side
---@return string
function wrap.model_in(wrapper, config, side)
  local field, section = wrapper.says[side], wrapper.place:match "^[^.]+"
  if side == "right" and kinds.is_dict(config, section) then
    cbk.fail("config", ("the config has the fields of the model inside in a section '%s', which cbk does not read"):format(section), {
      field = section, advice = ("move all of them up, beside 'dpo', and write its name as %s"):format(field) })
  end
  local said = config[field]
  if said == nil then
    cbk.fail("config", ("the config has no '%s', which names the model inside: add %s: llama, or another one of %s"):format(field, field,
      table.concat(wrapper.models, ", ")))
  end
  local name = side == "left" and wrapper.called and wrapper.called[said] or said
  if type(name) == "function" then name = name(config) end
  for _, known in ipairs(wrapper.models) do
    if name == known then return known end
  end
  return fields.refuse(field, said, fields.any_of(unpack(wrapper.models)))
end

---The table of the inner model, with the wrapper's fields added.
---@param outer Converter
---@param inner Converter
---@param name string   the inner model
---@param named_from? string   in place of the inner model's (Converter.named_from)
---@return Converter
function wrap.around(outer, inner, name, named_from)
  local says = outer.wrap.says.right
  local out = fields.with(inner, {
    inside = outer.wrap, named_from = named_from,
    config = inner.config and fields.config { fields.fixed.right { [says] = name }, outer.config, inner.config },
  })
  if inner.variants then
    out.variants = {}
    for key, variant in pairs(inner.variants) do out.variants[key] = wrap.around(outer, variant, name, named_from) end
  end
  return out
end

---The table of the inner model between two releases, applied to both copies: once trained, they differ.
---@param wrapper Wrap
---@param inner Converter
---@return Converter
function wrap.between(wrapper, inner)
  return fields.with(inner, {
    keys = rules.keys {
      { wrapper.place, wrapper.place, inner.keys }, { wrapper.copy, wrapper.copy, inner.keys }, { "*" },
    },
  })
end

---A key without the inner model's prefix; nil if it does not have that prefix.
---@param wrapper Wrap
---@param key any
---@return string|nil
function wrap.inner_key(wrapper, key)
  local place = wrapper.place .. "."
  return type(key) == "string" and key:sub(1, #place) == place and key:sub(#place + 1) or nil
end

---Whether a key belongs to the second copy of the inner model.
---@param wrapper Wrap
---@param key string
function wrap.is_copy(wrapper, key) return key:sub(1, #wrapper.copy + 1) == wrapper.copy .. "." end

---The compiled rule that leaves out the second copy.
---@param wrapper Wrap
local function copies_of(wrapper)
  local rule = rules.drop.right(wrapper.copy .. ".*", ("a copy; the model below '%s' is used"):format(wrapper.place))
  return patterns.compile(rules.keys { rule }, "right")
end

---Whether a tensor of the second copy is the same as the inner model's, so that nothing is lost without it.
local function is_its_own(wrapper, source, key, value)
  local own = source[wrapper.place .. key:sub(#wrapper.copy + 1)]
  return kinds.is_tensor(value) and kinds.is_tensor(own) and value:same(own)
end

---Extracts the inner model from a checkpoint.
---@param wrapper Wrap
---@param source Dict
---@param trace? fun(record: KeyRecord)
---@return Dict inner, string[] strangers   keys that belong to neither copy
function wrap.take_out(wrapper, source, trace)
  local compiled, endings = copies_of(wrapper)
  local inner, strangers, copies = cbk.dict(), {}, 0
  for key, value in cbk.items(source) do
    local own = wrap.inner_key(wrapper, key)
    local hit = not own and type(key) == "string" and patterns.match(compiled, key)[1] or nil
    if own then
      inner[own] = value
    elseif hit then
      copies = copies + (is_its_own(wrapper, source, key, value) and 0 or 1)
    else
      strangers[#strangers + 1] = tostring(key)
    end
    if trace and not own then
      trace {
        what = hit and "pass" or "unmatched", source = tostring(key), key = tostring(key), given = value, rejected = {},
        ending = hit and hit.ending, caught = hit and hit.caught, compiled = compiled, endings = endings,
      }
    end
  end
  if copies > 0 then
    local what = copies == 1 and "key below '%s' is" or "keys below '%s' are"
    cbk.warn(("%d " .. what .. " left out; the model below '%s' is used"):format(copies, wrapper.copy, wrapper.place))
  end
  return inner, strangers
end

return wrap
