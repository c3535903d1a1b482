-- Mixtures of experts. Hugging Face has tensors for each expert. The Model Zoo has three layouts: `fused` has one tensor for all experts,
-- `single` and `functional` have tensors for each, under different names. moe.moe_implementation chooses; its default changed with 2.6.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local values = require "converters.vocabulary.values"

local null = cbk.null

local experts = {}

local function moe_of(config) return config.moe or config.moe_params end
local function count(at) return values.size_of(moe_of(at.right), "num_experts") end

local LAYOUTS = { optimized = "fused", experimental = "single" } -- all other implementations are functional

---The layout of the Model Zoo's tensors.
---@param implementation any   moe.moe_implementation; nil: the default of the release
---@param since fun(release: string): boolean
---@return "fused"|"single"|"functional"
function experts.layout(implementation, since)
  if values.absent(implementation) then return since "2.6" and "single" or "fused" end
  return LAYOUTS[implementation] or "functional"
end

---All experts' matrices in one tensor: (rows, experts, columns). Of biases it is (rows, experts, 1).
---@param parts Tensor[]
local function fuse(parts)
  local matrices = {}
  for i, part in ipairs(parts) do matrices[i] = part:reshape { part:shape()[1], part:shape()[2] or 1 } end
  return cbk.stack(matrices, 1)
end

---@param value Tensor
---@param is_bias? boolean
local function separate(value, is_bias)
  local rows, number, columns = unpack(value:shape())
  local out = {}
  for i = 1, number do out[i] = value:slice(1, i - 1, i):reshape(is_bias and { rows } or { rows, columns }) end
  return out
end

local stacked = actions.pair("stacked experts", fuse, function(value) return separate(value) end)

---@class ExpertNames   The left's names.
---@field place string    of the mixture in a layer: "block_sparse_moe"
---@field gate string     the matrix of an expert whose product goes through the activation: "w1"
---@field up string       the matrix whose product is multiplied with that
---@field down string     the matrix of the output

---The rules for one layout of the right.
---@param names ExpertNames
---@param right string     with %s for a layer of an expert
---@param why? string      if it is read only
---@param action? Action   if it has one tensor for all experts
local function matrices(names, right, why, action)
  local function left(name)
    local pattern = ("%s.experts.E.%s.weight"):format(names.place, name)
    return action and rules.each(pattern, "E", count) or pattern
  end
  return rules.keys {
    { left(names.gate), right:format "0.linear_layer_for_glu", action, read_only = why },
    { left(names.up),   right:format "0.linear_layer",         action, read_only = why },
    { left(names.down), right:format "1.linear_layer",         action, read_only = why },
  }
end

---Key rules that write one layout, and read all.
---@param names ExpertNames
---@param written "fused"|"single"
function experts.keys(names, written)
  local function unless(layout, why) return written ~= layout and why or nil end
  local of_optimized = unless("fused", "with moe_implementation: optimized, and of checkpoints that others converted")
  local fused = matrices(names, "ffn.experts.fused_ffns.%s.expert_weights", of_optimized, stacked)
  local single = matrices(names, "ffn.experts.experts.E.%s.weight", unless("single", "with moe_implementation: experimental"))
  return rules.keys {
    { names.place .. ".gate.{weight,bias}", "ffn.gate.{weight,bias}" },
    written == "fused" and fused or single,
    written == "fused" and single or fused,
    matrices(names, "ffn.experts.experts.E.ffn.%s.weight", "with moe_implementation: functional"),
  }
end

-- --- 2.5 to 2.6: the default layout was fused, and is single

---How many experts every token goes to, besides those that the router chooses.
local function shared_experts(section)
  local number = moe_of(section).num_shared_experts
  return values.absent(number) and 0 or number
end

---A key of a shared expert.
---@param key string   the same tensor's of another expert, or of all
---@param number integer
local function shared_key(key, number)
  local place, name = key:match "^(.*%.experts)%.fused_ffns%.(.*)$"
  if not place then place, name = key:match "^(.*%.experts)%.experts%.%d+%.(.*)$" end
  return ("%s.shared_experts.%d.ffn.%s"):format(place, number, (name:gsub("expert_weights$", "weight"):gsub("expert_biases$", "bias")))
end

---All experts in one tensor, the shared ones last; and each by itself.
---@param is_bias boolean
local function repacked(is_bias)
  return actions.pair("single experts", function(value, at)
    local parts, routed = separate(value, is_bias), count(at)
    for i = #parts, routed + 1, -1 do
      at:emit(shared_key(at.key, i - routed - 1), parts[i])
      parts[i] = nil
    end
    return parts
  end, function(parts, at)
    for i = 0, shared_experts(at.right) - 1 do
      local key = shared_key(at.key, i)
      parts[#parts + 1] = at:source(key) or cbk.fail("convert", ("the checkpoint has no '%s'"):format(key))
    end
    return fuse(parts)
  end)
end

local PLACE = "[model.]transformer_decoder.layers.N.ffn.experts."

---@param layer string   of an expert
local function step(layer)
  local function rule(fused, single, is_bias)
    return { ("%sfused_ffns.%s.%s"):format(PLACE, layer, fused),
      rules.each(("%sexperts.E.%s.%s"):format(PLACE, layer, single), "E", count), repacked(is_bias) }
  end
  return rules.keys { rule("expert_weights", "weight", false), rule("expert_biases", "bias", true) }
end

---A step of a class (ClassTable.steps).
experts.to_2_6 = {
  keys = rules.keys {
    step "0.linear_layer_for_glu", step "0.linear_layer", step "1.linear_layer",
    rules.only.right(PLACE .. "shared_experts.S.ffn.*", "it is a part of the tensor of all experts"),
    { "*" },
  },
  config = fields.config { { "*" } },
  applies = function(section)
    local moe = moe_of(section)
    return kinds.is_dict(moe) and values.absent(moe.moe_implementation) and not values.absent(moe.num_experts)
      and moe.num_experts + shared_experts(section) > 1
  end,
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
        if own[name] and values.absent(value) then fields.lack("moe." .. name) end
        if own[name] then at:set(own[name], value) end
      end
      if values.absent(map.num_experts) then fields.lack "moe.num_experts" end
      return values.size_of(map, "num_experts")
    end,
  }
end

---For `prepare.right`: an error if the config has no experts.
function experts.check_there(from)
  if values.absent(moe_of(from)) then fields.lack("moe", ", which says how many experts there are") end
end

return experts
