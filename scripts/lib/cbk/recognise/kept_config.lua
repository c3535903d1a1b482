-- The config that a Model Zoo checkpoint keeps in its __metadata__, against the config file that is read with it.

local checkpoint = require "converters.modelzoo.checkpoint"
local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local trainer = require "converters.modelzoo.trainer"

local kept_config = {}

local MOST = 5 -- fields in a message
local SCALARS = { number = true, string = true, boolean = true }

---Whether the order of rows depends on a field: no shape shows a wrong one.
local function says_order(name, value)
  return type(value) == "number" and (name:find "head" or name:find "group" or name:find "rotary_dim") ~= nil
end

---The fields that two model sections have with different values.
---@param own Dict
---@param kept Dict
---@return string[] all, string[] of_order
local function differences(own, kept)
  local all, of_order = {}, {}
  local function compare(a, b, place)
    for name in cbk.items(a) do
      local text, value, stored = tostring(name), a[name], b[name]
      if kinds.is_dict(a, name) and kinds.is_dict(b, name) then
        compare(value, stored, place .. text .. ".")
      elseif SCALARS[type(value)] and type(stored) == type(value) and not fields.same(value, stored) then
        local line = ("%s=%s (there %s)"):format(place .. text, fields.shown(value), fields.shown(stored))
        all[#all + 1], of_order[#of_order + 1] = line, says_order(text, value) and line or nil
      end
    end
  end
  compare(own, kept, "")
  return all, of_order
end

---What a config file says otherwise than the checkpoint's own config; nil if nothing.
---@param config Dict   the whole file that is read
---@param root Dict     of the checkpoint
---@return string|nil text, boolean|nil is_contradiction   the order of rows depends on it
---@return string|nil fields   "rope_theta=500000 (there 10000)"
function kept_config.doubt(config, root)
  local params = checkpoint.params(root)
  local fine, own, kept = pcall(function() return trainer.model(config), params and trainer.model(params) end)
  if not fine or not kinds.is_dict(own) or not kinds.is_dict(kept) then return nil end
  local all, of_order = differences(own, kept)
  if #of_order > 0 then
    return ("the config contradicts the one in the checkpoint's __metadata__, which it was trained with: %s; wrong numbers of heads put "
      .. "rows in a wrong order"):format(naming.listed(of_order, MOST)), true, naming.listed(all, MOST)
  elseif #all > 0 then
    local said = naming.listed(all, MOST)
    return ("the config differs from the one in the checkpoint's __metadata__, which is not used: %s"):format(said), false, said
  end
end

return kept_config
