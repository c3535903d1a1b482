-- The things that happen to config values on their way, each written once as an invertible pair.

local cbk = require "cbk"
local demands = require "converters.engine.demands"
local sections = require "converters.engine.sections"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"

local values = {}

local absent, is_dict = kinds.absent, kinds.is_dict
values.absent = absent

---A size that a rule computes with, or an error that names the field.
local function size_of(from, name)
  local value = from[name]
  if absent(value) then cbk.fail("config", ("the config has no '%s'"):format(name)) end
  if not demands.is_size(value) then fields.refuse(name, value, demands.size) end
  return value
end
values.size_of = size_of

local function keys_of(map)
  local out = {}
  for key in pairs(map) do out[#out + 1] = key end
  table.sort(out, function(a, b)
    if type(a) == "string" and type(b) == "string" then return a < b end
    return tostring(a) > tostring(b)
  end)
  return fields.any_of(unpack(out))
end

local function inverse(map)
  local out = {}
  for left, right in pairs(map) do out[right] = left end
  return out
end

---One value for another, by a map; another value is an error.
local function by(map)
  return function(value, at)
    local out = map[value]
    if out == nil then at:refuse(value, keys_of(map)) end
    return out
  end
end

---One value for another, both ways: `choice { [true] = "scaled_dot_product", [false] = "dot_product" }`.
function values.choice(forward) return { forward = by(forward), backward = by(inverse(forward)) } end

-- --- activations

-- What Hugging Face's programs (ACT2FN) and the Model Zoo's (get_activation) both have, first where the names are the same.
local activations = { relu2 = "squared_relu" }
for name in ("gelu gelu_fast gelu_new leaky_relu linear mish quick_gelu relu relu6 sigmoid silu swish tanh"):gmatch "%S+" do
  activations[name] = name
end
-- Hugging Face has two names for what the Model Zoo has one for.
local further_activations = { gelu_accurate = "gelu_new", gelu_python = "gelu", gelu_pytorch_tanh = "gelu_new" }

---Activations that both sides know, and a family's own pairs of names.
---@param own table<string, string>
function values.activations(own)
  local forward = rules.variant(rules.variant(further_activations, activations), own)
  local backward = rules.variant(inverse(activations), inverse(own))
  return { forward = by(forward), backward = by(backward), is = { left = "text", right = "text" } }
end

---… of a feed-forward part without a gate.
values.activation = values.activations {}

---… of a gated one: silu <-> swiglu.
values.glu = values.choice { silu = "swiglu", relu = "reglu", gelu = "geglu" }

---Refuses key heads that the heads do not share evenly.
---@param groups any
---@param from Dict
---@param heads string   the field that counts the heads
---@param field string   the one that counts the key heads
local function check_groups(groups, from, heads, field)
  local count = size_of(from, heads)
  if not demands.is_size(groups) or count % groups ~= 0 then fields.refuse(field, groups, ("a divisor of %s (%d)"):format(heads, count)) end
end
values.check_groups = check_groups

---Key heads, and how many queries share one.
values.grouped_queries = {
  forward = function(groups, at)
    local heads = size_of(at.from, "num_attention_heads")
    if absent(groups) or groups == heads then
      if not absent(groups) then at:set("attention_module", "aiayn_attention") end
      return nil
    end
    check_groups(groups, at.from, "num_attention_heads", at.field)
    at:set("attention_module", "multiquery_attention")
    return cbk.dict { num_kv_groups = groups }
  end,
  backward = function(extra, at)
    local module = at.from.attention_module
    if not absent(extra) and not is_dict(extra) then at:refuse(extra, "a map with num_kv_groups") end
    local groups = not absent(extra) and extra.num_kv_groups or nil
    if not absent(extra) then at:leave_out_others(extra, { num_kv_groups = true }) end
    if absent(module) or module == "aiayn_attention" then
      if groups ~= nil then
        cbk.fail("config", "extra_attention_params.num_kv_groups asks for multi-query attention, but attention_module is aiayn_attention")
      end
      return at.from.num_heads
    elseif module ~= "multiquery_attention" then
      fields.refuse("attention_module", module, fields.any_of("aiayn_attention", "multiquery_attention"))
    elseif groups == nil then
      cbk.fail("config", "attention_module=multiquery_attention needs extra_attention_params.num_kv_groups")
    end
    check_groups(groups, at.from, "num_heads", "extra_attention_params.num_kv_groups")
    return groups
  end,
}

---As release 2.0 had it: the way back knows key heads only for multiquery_attention.
values.grouped_queries_2_0 = {
  forward = values.grouped_queries.forward,
  backward = function(extra, at)
    local is_grouped = at.from.attention_module == "multiquery_attention"
    return is_grouped and values.grouped_queries.backward(extra, at) or nil
  end,
}

-- --- longer contexts: rope_scaling <-> pos_scaling_*

local scaling_types = { linear = true, yarn = true, llama3 = true, longrope = true }
local typed_scalings = { linear = true, yarn = true, longrope = true }

local yarn = { beta_fast = 32, beta_slow = 1, attention_factor = cbk.null, mscale = cbk.null, mscale_all_dim = cbk.null }

---Names the part of a scaling that has no place, and what comes of it where it changes what the model computes.
local function leave_out(name, scaling, kind, at)
  if kind ~= "yarn" or yarn[name] == nil or fields.same(scaling[name], yarn[name]) then return at:leave_out("rope_scaling." .. name) end
  cbk.warn(("rope_scaling.%s=%s is left out: the Model Zoo scales by yarn without it, so logits change"):format(name,
    fields.shown(scaling[name])))
end

local function extra_arguments(kind, scaling)
  if kind == "yarn" then
    local n = scaling.original_max_position_embeddings
    if absent(n) then cbk.fail("config", "rope_scaling of type yarn needs original_max_position_embeddings") end
    local extra = cbk.dict()
    extra.original_max_position_embeddings = cbk.raw(scaling, "original_max_position_embeddings")
    return extra
  elseif kind == "linear" then
    return cbk.dict()
  end
  local extra = cbk.copy(scaling)
  local named = kind == "llama3" and not absent(scaling.rope_type) and "rope_type" or "type"
  extra[named], extra.factor = nil, nil
  return extra
end

---The CS fields are pos_scaling_factor, pos_scaling_type and pos_scaling_extra_args.
values.rope_scaling = {
  is = { right = "positive" },
  forward = function(scaling, at)
    if absent(scaling) then return cbk.float(1) end
    if not is_dict(scaling) then at:refuse(scaling, "null or a map") end
    local type_field = absent(scaling.type) and "rope_type" or "type"
    local kind = scaling[type_field]
    if absent(kind) then cbk.fail("config", "rope_scaling has neither 'type' nor 'rope_type'") end
    kind = tostring(kind):lower()
    if kind == "default" then
      at:leave_out_others(scaling, { type = true, rope_type = true })
      return cbk.float(1)
    end
    if not scaling_types[kind] then
      fields.refuse("rope_scaling.type", kind, fields.any_of("linear", "yarn", "llama3", "longrope"))
    end
    if absent(scaling.factor) then cbk.fail("config", "rope_scaling has no 'factor'") end
    sections.check(scaling, { factor = "positive" }, "rope_scaling.")
    at:set("pos_scaling_type", kind)
    local extra = extra_arguments(kind, scaling)
    if #extra > 0 or kind ~= "linear" then at:set("pos_scaling_extra_args", extra) end
    for name in cbk.items(scaling) do
      local is_told = extra[name] ~= nil or name == "factor" or tostring(scaling[name]):lower() == kind
      if not is_told and not absent(scaling[name]) then leave_out(tostring(name), scaling, kind, at) end
    end
    return cbk.raw(scaling, "factor")
  end,
  backward = function(factor, at)
    if factor == 1 then
      if not absent(at.from.pos_scaling_extra_args) then at:leave_out "pos_scaling_extra_args" end
      return cbk.null
    end
    local kind = at.from.pos_scaling_type
    if absent(kind) then cbk.fail("config", "pos_scaling_factor is not 1, but pos_scaling_type is missing") end
    local out = cbk.dict()
    out[kind == "llama3" and "rope_type" or "type"] = kind
    out.factor = cbk.raw(at.from, "pos_scaling_factor")
    if not absent(at.from.pos_scaling_extra_args) then
      if not is_dict(at.from.pos_scaling_extra_args) then
        fields.refuse("pos_scaling_extra_args", at.from.pos_scaling_extra_args, "a map")
      end
      for name in cbk.items(at.from.pos_scaling_extra_args) do out[name] = cbk.raw(at.from.pos_scaling_extra_args, name) end
    end
    return out
  end,
}

---Transformers 5 says all of the rotary positions in one map; here it is as earlier configs say it (prepare.left).
---@param from Dict
---@param given Dict        without defaults: what it says in both ways must be the same
---@param beside string[]   what of it stands beside rope_scaling then
---@return Dict
function values.without_rope_parameters(from, given, beside)
  local map = from.rope_parameters
  if absent(map) then return from end
  if not is_dict(map) then fields.refuse("rope_parameters", map, "null or a map") end
  local out, scaling = cbk.copy(from), cbk.copy(map)
  out.rope_parameters = nil
  local function check(name, value)
    if not absent(given[name]) and not fields.same(given[name], value) then
      fields.refuse(name, given[name], ("what rope_parameters say (%s)"):format(fields.shown(value)))
    end
  end
  for _, name in ipairs(beside) do
    if not absent(scaling[name]) then
      check(name, scaling[name])
      out[name] = cbk.raw(scaling, name)
    end
    scaling[name] = nil
  end
  local kind = absent(scaling.rope_type) and scaling.type or scaling.rope_type
  local is_scaled = not absent(kind) and kind ~= "default"
  out.rope_scaling = is_scaled and scaling or cbk.null
  check("rope_scaling", out.rope_scaling)
  for name in cbk.items(is_scaled and cbk.dict() or scaling) do
    if name ~= "rope_type" and name ~= "type" and not absent(scaling[name]) then
      cbk.warn(("rope_parameters.%s=%s is left out: it is not known what it means"):format(name, fields.shown(scaling[name])))
    end
  end
  return out
end

---As it was before llama3: `type` only.
values.typed_rope_scaling = {
  is = { right = "positive" },
  forward = function(scaling, at)
    local kind = scaling
    if is_dict(scaling) then kind = absent(scaling.type) and scaling.rope_type or scaling.type end
    if not absent(scaling) and kind ~= "default" and not typed_scalings[tostring(kind):lower()] then
      fields.refuse("rope_scaling.type", kind, fields.any_of("linear", "yarn", "longrope"))
    end
    return values.rope_scaling.forward(scaling, at)
  end,
  backward = values.rope_scaling.backward,
}

-- --- what has no place, but changes what the model computes

---Of one side: left out with a warning that says the value and what comes of it, where it is not the usual one.
---@param usual any
---@param consequence string
function values.lost(usual, consequence)
  local function tell(value, at)
    if absent(value) or fields.same(value, usual) then return end
    cbk.warn(("%s=%s is left out: %s"):format(at.field, fields.shown(value), consequence))
  end
  return { forward = tell, backward = tell }
end

-- --- the size of a head

---Refuses rotary dimensions that are more than a head has.
---@param size any          of the part of a head that is turned
---@param at FieldAt        of the field that says it
---@param width string      the fields that make the size of a head
---@param heads string
local function check_rotary_part(size, at, width, heads)
  local head = math.floor(size_of(at.from, width) / size_of(at.from, heads))
  if type(size) ~= "number" or size <= head then return end
  if at.assumed.rotary_dim then
    cbk.warn(("the config has no %s, and the usual %s is more than the head size, %s // %s (%d)"):format(at.field,
      tostring(at.from[at.field]), width, heads, head))
  else
    at:refuse(at.from[at.field], ("at most the head size, %s // %s (%d),"):format(width, heads, head))
  end
end

---A rotary_dim that is at most the size of a head.
---@param width string   what the left calls the width and the number of heads
---@param heads string
function values.rotary_dim(width, heads)
  local function copy(of_width, of_heads)
    return function(size, at)
      check_rotary_part(size, at, of_width, of_heads)
      return cbk.raw(at.from, at.field)
    end
  end
  return { forward = copy(width, heads), backward = copy("hidden_size", "num_heads"), is = { left = "size?", right = "size?" } }
end

---Left to right: rotary_dim is the head size (finish.right).
---@param heads? string   what the left calls the number of heads
function values.set_rotary_dim(to, from, heads)
  to.rotary_dim = math.floor(size_of(from, "hidden_size") / size_of(from, heads or "num_attention_heads"))
end

---Right to left: rotary_dim must be the head size, which Hugging Face has no field for (prepare.right).
function values.check_rotary_dim(from)
  if absent(from.rotary_dim) then cbk.fail("config", "rotary_dim must be specified in the config") end
  local size = math.floor(size_of(from, "hidden_size") / size_of(from, "num_heads"))
  if from.rotary_dim ~= size then
    fields.refuse("rotary_dim", from.rotary_dim, ("the head_dim, hidden_size // num_heads (%d),"):format(size))
  end
end

return rules.strict(values, "pair of functions on values")
