-- Attention heads, as a Model Zoo config counts them.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local values = require "converters.vocabulary.values"

local heads = {}

---The number of heads in a Model Zoo config.
---@param config Dict
---@return integer
function heads.queries(config) return values.size_of(config, "num_heads") end

---The number of key heads in a Model Zoo config.
---@param config Dict
---@return integer
function heads.keys(config)
  local module = config.attention_module
  if kinds.absent(module) or module == "aiayn_attention" then return heads.queries(config) end
  if module ~= "multiquery_attention" then
    fields.refuse("attention_module", module, fields.any_of("aiayn_attention", "multiquery_attention"))
  end
  local extra = config.extra_attention_params
  if not kinds.is_dict(extra) then fields.lack "extra_attention_params.num_kv_groups" end
  return values.size_of(extra, "num_kv_groups")
end

---The width of all heads together in a Model Zoo config, and the field that has it.
---@param config Dict
---@return integer width, string field
function heads.width(config)
  local field = kinds.absent(config.attention_inner_dim) and "hidden_size" or "attention_inner_dim"
  return values.size_of(config, field), field
end

---The rows of one head in a Model Zoo config, and how they are computed: "hidden_size // num_heads".
---@param config Dict
---@return integer size, string formula
function heads.size(config)
  local count, width, field = heads.queries(config), heads.width(config)
  if width % count ~= 0 then cbk.fail("config", ("%s %d is not a multiple of num_heads %d"):format(field, width, count)) end
  return width / count, field .. " // num_heads"
end

return heads
