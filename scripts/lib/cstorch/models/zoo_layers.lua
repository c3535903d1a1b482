-- What the Model Zoo's classes share: attention, feed-forward parts and norms by their names, and the factors of muP. Source:
-- AttentionLayer.py, FeedForwardNetwork.py, norms.py and bert_model.py of the Model Zoo 2.9.

local activations = require "cstorch.models.activations"
local errors = require "cstorch.errors"
local kinds = require "converters.engine.kinds"
local parts = require "cstorch.models.parts"

local zoo_layers = {}

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
