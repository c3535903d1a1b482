-- What the Model Zoo's classes share: attention, feed-forward parts and norms by their names, and the factors of muP. Source:
-- AttentionLayer.py, FeedForwardNetwork.py, norms.py and bert_model.py of the Model Zoo 2.9.

local activations = require "cstorch.models.activations"
local cbk = require "cbk"
local errors = require "cstorch.errors"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local parts = require "cstorch.models.parts"

local zoo_layers = {}

---@param value any
---@param most? integer
---@return boolean
function zoo_layers.is_count(value, most)
  return type(value) == "number" and value % 1 == 0 and value >= 1 and value <= (most or value)
end

---Fails if a map of the config has a name that is not known.
---@param map Dict|nil
---@param place string
---@param known table<string, any>
function zoo_layers.check_names(map, place, known)
  if kinds.absent(map) then return end
  errors.check_field(kinds.is_dict(map), place, "expected a map of fields, found %s", errors.show(map))
  for name in cbk.items(map) do
    local names = naming.sorted(known)
    local near = errors.suggestion(name, names)
    errors.check_field(known[name] ~= nil, ("%s.%s"):format(place, tostring(name)), "unknown field%s",
      near ~= "" and near or "; known: " .. table.concat(names, ", "))
  end
end

---Fails if the value of a field is not a known one.
---@param field string
---@param value any
---@param known string[]
function zoo_layers.check_choice(field, value, known)
  for _, one in ipairs(known) do
    if value == one then return end
  end
  errors.check_field(false, field, "expected %s or %s, found %s%s", table.concat(known, ", ", 1, #known - 1), known[#known],
    errors.show(value), errors.suggestion(value, known))
end

local GROUPED = "multiquery_attention"

---Fails if heads share keys and values in a way that is not computed.
---@param c table   fields of the model section
---@param may_share boolean
function zoo_layers.check_groups(c, may_share)
  local kind, extra = c.attention_module or "aiayn_attention", c.extra_attention_params
  zoo_layers.check_choice("attention_module", kind, { "aiayn_attention", GROUPED })
  zoo_layers.check_names(extra, "extra_attention_params", { num_kv_groups = true })
  local groups = extra and extra.num_kv_groups
  if groups == c.num_heads then return end
  errors.check_field(may_share or kind ~= GROUPED, "attention_module", "%s is not emulated for this class", GROUPED)
  if kinds.absent(groups) then return end
  local place = "extra_attention_params.num_kv_groups"
  errors.check_field(kind == GROUPED, place, "%s needs attention_module: %s", errors.show(groups), GROUPED)
  errors.check_field(zoo_layers.is_count(groups) and c.num_heads % groups == 0, place, "expected a divisor of num_heads (%d), found %s",
    c.num_heads, errors.show(groups))
end

---@param activation string
---@param first string    names
---@param second string
---@return cstorch.models.Compute
function zoo_layers.feed_forward(activation, first, second)
  local act = activations.gate(activation)
  if not act then return parts.plain("linear", first .. ".linear_layer", second .. ".linear_layer", activation) end
  return parts.gated("linear",
    { up = first .. ".linear_layer", gate = first .. ".linear_layer_for_glu", down = second .. ".linear_layer" }, act)
end

---Queries, keys and values of an attention layer.
---@param place string   "self_attn"
---@param width integer  of a head
---@return cstorch.models.Project
function zoo_layers.project(place, width)
  return parts.apart(place .. ".proj_q_dense_layer", place .. ".proj_k_dense_layer", place .. ".proj_v_dense_layer", width)
end

---@param place string
---@return cstorch.models.Compute
function zoo_layers.output(place)
  return function(w, x) return w:linear(place .. ".proj_output_dense_layer", x) end
end

local NORMS = { layernorm = "layernorm", rmsnorm = "rmsnorm", ["biasless-layernorm"] = "layernorm" }

---@param kind string|nil   norm_type
---@param eps number
---@return cstorch.models.Norm
function zoo_layers.norm(kind, eps)
  local own = NORMS[(kind or "layernorm"):lower()]
  errors.check(own, "value", "norm_type=%s is not emulated", tostring(kind))
  return { kind = own, eps = eps }
end

---The scale of scores, with muP.
---@param c table      fields of the model section
---@param whole Dict   the section, which may leave to muP what the class has a default for
---@return number
function zoo_layers.scale(c, whole)
  zoo_layers.check_choice("attention_type", c.attention_type, { "scaled_dot_product", "dot_product" })
  local by_width = c.scale_qk_dot_by_d
  if kinds.absent(whole.scale_qk_dot_by_d) then by_width = c.mup_base_hidden_size ~= nil end
  local scale = c.attention_logits_alpha or 1
  return c.attention_type == "scaled_dot_product" and scale * c.head_dim ^ (by_width and -1 or -0.5) or scale
end

---What muP multiplies logits by: said by 2.2, computed since 2.3.
---@param c table
---@return number|nil
function zoo_layers.logits_scale(c)
  if kinds.absent(c.mup_base_hidden_size) then return kinds.present(c.output_logits_scale) and c.output_logits_scale or nil end
  local alpha = kinds.present(c.output_logits_alpha) and c.output_logits_alpha ~= 0 and c.output_logits_alpha or 1
  return alpha / (c.hidden_size / c.mup_base_hidden_size) ^ (c.scale_output_logits_by_d == false and 0.5 or 1)
end

---Fails unless the sizes of muP's base model are all given or all left out.
---@param config Dict
---@param names string[]
function zoo_layers.check_base(config, names)
  local given, lacking
  for _, name in ipairs(names) do
    local value = config[name]
    if kinds.present(value) then
      errors.check_field(type(value) == "number" and value > 0 and value < math.huge, name, "expected a number above 0, found %s",
        errors.show(value))
      given = given or name
    else
      lacking = lacking or name
    end
  end
  if given and lacking then errors.check_field(false, given, "muP needs %s, too", lacking) end
end

---How many times a size of a config is that of muP's base model; 1 without muP.
---@param config Dict
---@param size string
---@param base string
---@return number
function zoo_layers.wider(config, size, base)
  local own, of = config[size], config[base]
  return kinds.present(of) and kinds.present(own) and own / of or 1
end

return zoo_layers
