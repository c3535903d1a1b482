-- A model inside another one: the inner family's own table is run, and its Model Zoo keys stand below a name.

local cbk = require "cbk"
local fields = require "converters.engine.fields"

local wrap = {}

---@class Wrap
---@field says table<Side, string>        the config field of each side that names the model inside
---@field called? table<string, string>   what the left calls a model, where its name here is another
---@field models string[]                 those that may be inside
---@field place string                    the inner model's keys of the right stand below it
---@field copy string                     … and once more below this; passed over when they are read

---The name of the model inside, or an error.
---@param wrapper Wrap
---@param config Dict   the model section of `side`
---@param side Side
---@return string
function wrap.model_in(wrapper, config, side)
  local field = wrapper.says[side]
  local said = config[field]
  if said == nil then cbk.fail("config", ("the config has no '%s', which names the model inside"):format(field)) end
  local name = side == "left" and wrapper.called and wrapper.called[said] or said
  for _, known in ipairs(wrapper.models) do
    if name == known then return known end
  end
  return fields.refuse(field, said, fields.any_of(unpack(wrapper.models)))
end

---The table of the inner model, as the wrapper has it.
---@param outer Converter
---@param inner Converter
---@param name string   the inner model
---@return Converter
function wrap.around(outer, inner, name)
  local says = outer.wrap.says.right
  local after = inner.after or {}
  local out = fields.with(inner, {
    inside = outer.wrap,
    config = inner.config and fields.config { fields.must.right { [says] = name }, outer.config, inner.config },
    after = { left = after.left, right = fields.with(after.right or {}, fields.with(outer.after.right, { [says] = name })) },
  })
  if inner.variants then
    out.variants = {}
    for key, variant in pairs(inner.variants) do out.variants[key] = wrap.around(outer, variant, name) end
  end
  return out
end

local function below(place, key)
  place = place .. "."
  return type(key) == "string" and key:sub(1, #place) == place and key:sub(#place + 1) or nil
end

---Takes the inner model out of a checkpoint.
---@param wrapper Wrap
---@param source Dict
---@return Dict inner, string[] strangers   keys that stand in neither place
function wrap.take_out(wrapper, source)
  local inner, strangers, copies = cbk.dict(), {}, 0
  for key, value in cbk.items(source) do
    local own = below(wrapper.place, key)
    if own then
      inner[own] = value
    elseif below(wrapper.copy, key) then
      copies = copies + 1
    else
      strangers[#strangers + 1] = tostring(key)
    end
  end
  if copies > 0 then
    cbk.warn(("the %d keys below '%s' are left out; the model is that below '%s'"):format(copies, wrapper.copy, wrapper.place))
  end
  return inner, strangers
end

---Puts the inner model into both its places.
---@param wrapper Wrap
---@param inner Dict
---@return Dict
function wrap.put_in(wrapper, inner)
  local out = cbk.dict()
  for _, place in ipairs { wrapper.place, wrapper.copy } do
    for key, value in cbk.items(inner) do out[place .. "." .. key] = value end
  end
  return out
end

---What became of an inner key, under the names of the checkpoint.
---@param wrapper Wrap
---@param side Side
---@param record KeyRecord
---@return KeyRecord
function wrap.seen(wrapper, side, record)
  local out = {}
  for name, value in pairs(record) do out[name] = value end
  local field = side == "right" and "source" or "target"
  if out[field] then out[field] = wrapper.place .. "." .. out[field] end
  return out
end

return wrap
