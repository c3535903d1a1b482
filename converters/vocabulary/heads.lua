-- Attention heads, as a config counts them: one of the Model Zoo, or one of Hugging Face.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local values = require "converters.vocabulary.values"

local heads = {}

---@class HeadFields   The fields of a config that count heads.
---@field count string
---@field width string     the width of the model
---@field inner? string    the width of all heads, where it is another one
---@field size? string     the rows of a head
---@field keys string      the number of key heads
---@field module? string   that says whether there are fewer key heads
---@field shares? string[] the share of a head's rows that is rotated

-- The names of Hugging Face's fields; of several, a class has the first that its config has.
local COUNTS, WIDTHS, KEYS = { "num_attention_heads", "n_head", "n_heads" }, { "hidden_size", "n_embd", "d_model" },
  { "num_key_value_heads", "num_kv_heads", "n_head_kv" }
local SHARES = { "partial_rotary_factor", "rotary_pct" }

---The first of some fields that a config has.
---@param names string[]
---@return string|nil
local function first_of(config, names)
  for _, name in ipairs(names) do
    if kinds.present(config[name]) then return name end
  end
end

---The fields that count the heads of a config. A Model Zoo config must have num_heads.
---@param config Dict
---@return HeadFields
function heads.fields(config)
  local count = kinds.absent(config.num_heads) and first_of(config, COUNTS)
  if not count then
    return { count = "num_heads", width = "hidden_size", inner = "attention_inner_dim", keys = "num_kv_groups",
      module = "attention_module" }
  end
  return { count = count, width = first_of(config, WIDTHS) or "hidden_size", size = "head_dim", keys = first_of(config, KEYS) or count,
    shares = SHARES }
end

---The number of heads, in a config of the Model Zoo or of Hugging Face.
---@param config Dict
---@return integer
function heads.queries(config) return values.size_of(config, heads.fields(config).count) end

---The number of key heads, in a config of the Model Zoo or of Hugging Face.
---@param config Dict
---@return integer
function heads.keys(config)
  local names = heads.fields(config)
  if not names.module then return values.size_of(config, names.keys) end
  local module = config[names.module]
  if kinds.absent(module) or module == "aiayn_attention" then return heads.queries(config) end
  if module ~= "multiquery_attention" then
    fields.refuse("attention_module", module, fields.any_of("aiayn_attention", "multiquery_attention"))
  end
  local extra = config.extra_attention_params
  if not kinds.is_dict(extra) then fields.lack "extra_attention_params.num_kv_groups" end
  return values.size_of(extra, names.keys)
end

---The width of the model, which its projections read, and the field that has it.
---@param config Dict
---@return integer width, string field
function heads.inputs(config)
  local field = heads.fields(config).width
  return values.size_of(config, field), field
end

---The width of all heads together, and the field that has it, or how it is computed.
---@param config Dict
---@return integer width, string field
function heads.width(config)
  local names = heads.fields(config)
  if names.size and kinds.present(config[names.size]) then
    return values.size_of(config, names.size) * values.size_of(config, names.count), ("%s * %s"):format(names.size, names.count)
  end
  local field = names.inner and kinds.present(config[names.inner]) and names.inner or names.width
  return values.size_of(config, field), field
end

---The rows of one head, and how they are computed: "hidden_size // num_heads".
---@param config Dict
---@return integer size, string formula
function heads.size(config)
  local names = heads.fields(config)
  if names.size and kinds.present(config[names.size]) then return values.size_of(config, names.size), names.size end
  local count, width, field = values.size_of(config, names.count), heads.width(config)
  if width % count ~= 0 then cbk.fail("config", ("%s %d is not a multiple of %s %d"):format(field, width, names.count, count)) end
  return width / count, ("%s // %s"):format(field, names.count)
end

---The rotated rows of one head: `rotary_dim`; in a config of Hugging Face also a share of the head, or all of its rows.
---@param config Dict
---@return integer
function heads.rotary(config)
  local names = heads.fields(config)
  if not names.shares or kinds.present(config.rotary_dim) then return values.size_of(config, "rotary_dim") end
  local maps = { config, kinds.is_dict(config, "rope_parameters") and config.rope_parameters or config }
  for _, map in ipairs(maps) do
    local share = first_of(map, names.shares)
    if share then
      if type(map[share]) ~= "number" then fields.refuse(share, map[share], "a number") end
      return math.floor(heads.size(config) * map[share])
    end
  end
  return (heads.size(config))
end

return heads
