-- Mixtures of experts. Hugging Face has tensors for each expert, as the Model Zoo has since 2.9; up to 2.8 it has one for all experts.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local naming = require "converters.engine.naming"
local values = require "converters.vocabulary.values"

local null = cbk.null

local experts = {}

local function moe_of(config) return config.moe or config.moe_params end
local function count(at) return values.size_of(moe_of(at.right), "num_experts") end

---All experts' matrices in one tensor: (rows, experts, columns).
local stacked = actions.pair("stacked experts", function(parts)
  return cbk.stack(parts, 1)
end, function(value)
  local out = {}
  for i = 1, value:shape()[2] do out[i] = value:slice(1, i - 1, i):reshape { value:shape()[1], value:shape()[3] } end
  return out
end)

---@class ExpertNames   The left's names.
---@field place string    of the mixture in a layer: "block_sparse_moe"
---@field gate string     the matrix of an expert whose product goes through the activation: "w1"
---@field up string       … that is multiplied with it
---@field down string     … of the output

---@param names ExpertNames
local function router(names) return { names.place .. ".gate.{weight,bias}", "ffn.gate.{weight,bias}" } end

---@param names ExpertNames
---@param why? string   where they are read only
local function matrices(names, why)
  local function each(name) return rules.each(("%s.experts.E.%s.weight"):format(names.place, name), "E", count) end
  return rules.keys {
    { each(names.gate), "ffn.experts.fused_ffns.0.linear_layer_for_glu.expert_weights", stacked, read_only = why },
    { each(names.up),   "ffn.experts.fused_ffns.0.linear_layer.expert_weights",         stacked, read_only = why },
    { each(names.down), "ffn.experts.fused_ffns.1.linear_layer.expert_weights",         stacked, read_only = why },
  }
end

---Key rules for one tensor of all experts.
---@param names ExpertNames
function experts.fused(names) return rules.keys { router(names), matrices(names) } end

---Key rules for the tensors of each expert.
---@param names ExpertNames
function experts.single(names)
  local function left(name) return ("%s.experts.E.%s.weight"):format(names.place, name) end
  return rules.keys {
    router(names),
    { left(names.gate), "ffn.experts.experts.E.0.linear_layer_for_glu.weight" },
    { left(names.up),   "ffn.experts.experts.E.0.linear_layer.weight" },
    { left(names.down), "ffn.experts.experts.E.1.linear_layer.weight" },
    matrices(names, "of checkpoints that others converted"),
  }
end

local function step(name)
  return { ("[model.]transformer_decoder.layers.N.ffn.experts.fused_ffns.%s.expert_weights"):format(name),
    rules.each(("[model.]transformer_decoder.layers.N.ffn.experts.experts.E.%s.weight"):format(name), "E", count),
    actions.pair("single experts", stacked.backward, stacked.forward) }
end

---For `rules.between("cs-2.8", "cs-2.9", …)`.
experts.to_2_9 = {
  keys = rules.keys { step "0.linear_layer_for_glu", step "0.linear_layer", step "1.linear_layer", { "*" } },
}

-- --- config

-- What the left computes, whatever it says.
local fixed = {
  routing_algorithm = "learned", router_selection_nonlinearity = "softmax", expert_weighting_nonlinearity = "softmax",
  expert_weighting_normalization = true, num_shared_experts = fields.any_of(null, 0), null_expert_bias = fields.any_of(null, 0),
  router_use_bias = false,
}

-- What the left may say in fields of its own, in the order in which it is written.
local carried = { "top_k", "load_balancing_loss_coef", "expert_weighting_normalization" }

---@param own table<string, string>
local function check(map, at, own)
  if not kinds.is_dict(map) then at:refuse(map, "a map with num_experts, top_k and load_balancing_loss_coef") end
  local known = { num_experts = true, moe_implementation = true, router_fp32 = true }
  for _, name in ipairs(naming.sorted(fixed)) do
    local usual = fixed[name]
    if not own[name] and map[name] ~= nil and not fields.same(map[name], usual) then fields.refuse("moe." .. name, map[name], usual) end
    known[name] = true
  end
  for name in pairs(own) do known[name] = true end
  at:leave_out_others(map, known)
end

---A token cannot go to more experts than there are.
---@param field string   the side's name of top_k
local function check_top_k(field, top_k, number)
  local chosen, all = tonumber(tostring(top_k)), tonumber(tostring(number))
  if chosen and all and chosen > all then fields.refuse(field, top_k, ("at most the number of experts, %s,"):format(all)) end
end

---A pair for the left's number of experts and the Model Zoo's one map, with what the left says in other fields.
---@param own { top_k: string, load_balancing_loss_coef: string, expert_weighting_normalization: string|nil }   their names
function experts.count(own)
  return {
    forward = function(number, at)
      local map = cbk.dict { { "num_experts", number } }
      for _, name in ipairs(carried) do
        if own[name] then map[name] = cbk.raw(at.from, own[name]) end
      end
      check_top_k(own.top_k, cbk.raw(map, "top_k"), number)
      return map
    end,
    backward = function(map, at)
      check(map, at, own)
      check_top_k("moe.top_k", cbk.raw(map, "top_k"), cbk.raw(map, "num_experts"))
      for _, name in ipairs(carried) do
        local value = cbk.raw(map, name)
        if value == nil and name == "expert_weighting_normalization" then value = true end
        if own[name] and values.absent(value) then cbk.fail("config", ("the config has no moe.%s"):format(name)) end
        if own[name] then at:set(own[name], value) end
      end
      return values.size_of(map, "num_experts")
    end,
  }
end

---For `prepare.right`: an error if the config has no experts.
function experts.check_there(from)
  if values.absent(moe_of(from)) then cbk.fail("config", "the config has no 'moe', which says how many experts there are") end
end

return experts
