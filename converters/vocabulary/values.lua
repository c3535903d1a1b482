-- The things that happen to config values on their way, each written once as an invertible pair.

local cbk = require "cbk"
local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"

local values = {}

local absent, is_dict = kinds.absent, kinds.is_dict

---`values.absent(value)`: whether a value is nil or null.
values.absent = absent

local function size_of(from, name)
  local value = from[name]
  if absent(value) then fields.lack(name) end
  if not field_kinds.is_size(value) then fields.refuse(name, value, field_kinds.size) end
  return value
end

---`values.size_of(config, name)`: a size from the config, or an error that names the field.
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

---The function of a map of values. 1 and 0 are true and false, as to the target programs.
local function by(map)
  return function(value, at)
    local out = map[value]
    if out == nil and (value == 1 or value == 0) then out = map[value == 1] end
    if out == nil then at:refuse(value, keys_of(map)) end
    return out
  end
end

---`values.choice { [true] = "a", [false] = "b" }`: one value for another, both ways. Any other value is an error.
function values.choice(forward) return { forward = by(forward), backward = by(inverse(forward)) } end

-- --- activations

-- What Hugging Face's programs (ACT2FN) and the Model Zoo's (get_activation) both have, first where the names are the same.
local activations = { relu2 = "squared_relu" }
for name in ("gelu gelu_fast gelu_new leaky_relu linear mish quick_gelu relu relu6 sigmoid silu swish tanh"):gmatch "%S+" do
  activations[name] = name
end
-- Hugging Face has two names for what the Model Zoo has one for.
local further_activations = { gelu_accurate = "gelu_new", gelu_python = "gelu", gelu_pytorch_tanh = "gelu_new" }
-- Names of Hugging Face only. The Model Zoo's own converters copy them, so its configs may have them all the same.
local hf_activations = { gelu_10 = true, laplace = true, relu2 = true }
for name in pairs(further_activations) do hf_activations[name] = true end

---Names of Hugging Face go back to it as they are.
local function with_copied(backward)
  return function(value, at)
    if not hf_activations[value] then return backward(value, at) end
    cbk.warn(("%s=%s is written as it is: Hugging Face has this activation, but the Model Zoo's class refuses it"):format(at.field,
      fields.shown(value)))
    return value
  end
end

---`values.activations { ["gated-gelu"] = "geglu" }`: activations that both sides know, and a family's own. On the way back, names that
---only Hugging Face knows are kept, with a warning.
---@param own table<string, string>
function values.activations(own)
  local forward = rules.variant(rules.variant(further_activations, activations), own)
  local backward, further = rules.variant(inverse(activations), inverse(own)), {}
  for left, right in pairs(forward) do further[left] = backward[right] ~= left and right or nil end
  return { forward = by(forward), backward = with_copied(by(backward)), further_names = further }
end

---`values.warn_unless_taken(field, value, { "relu", "gelu" })`: a warning if the Model Zoo's class refuses an activation that is written.
---@param field string
---@param value any
---@param taken string[]   what the class takes
function values.warn_unless_taken(field, value, taken)
  for _, name in ipairs(taken) do
    if value == name then return end
  end
  cbk.warn(("%s=%s is written, but the Model Zoo's class takes only %s: it refuses this config"):format(field, fields.shown(value),
    fields.shown(fields.any_of(unpack(taken)))))
end

---Activations that both sides know. The family has none of its own.
values.activation = values.activations {}

---Activations with a gate: silu to swiglu.
values.glu = values.choice { silu = "swiglu", relu = "reglu", gelu = "geglu" }

---@param groups any
---@param from Dict
---@param heads string   the field that counts the heads
---@param field string   the one that counts the key heads
local function check_groups(groups, from, heads, field)
  local count = size_of(from, heads)
  if not field_kinds.is_size(groups) or count % groups ~= 0 then
    fields.refuse(field, groups, ("a divisor of %s (%d)"):format(heads, count), "correct one of them")
  end
end

---`values.check_groups(groups, config, heads, field)`: an error if the number of key heads does not divide the config's `heads`.
---`field` is named in the error.
values.check_groups = check_groups

---Key heads: `num_key_value_heads` of the left to `attention_module` and `extra_attention_params` of the right.
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
      if groups ~= nil and groups ~= at.from.num_heads then
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

---Key heads as in release 2.0: the way back reads them only for `multiquery_attention`.
values.grouped_queries_2_0 = {
  forward = values.grouped_queries.forward,
  backward = function(extra, at)
    local is_grouped = at.from.attention_module == "multiquery_attention"
    return is_grouped and values.grouped_queries.backward(extra, at) or nil
  end,
}

-- --- what has no place, but changes what the model computes

---For a field of one side that changes what the model computes. It is left out; if its value is not the usual one, a warning names the
---value and the consequence. Only for releases whose original converter continues; elsewhere use `fields.must`.
---@param usual any
---@param consequence string
function values.lost(usual, consequence)
  local function tell(value, at)
    if absent(value) or fields.same(value, usual) then return end
    cbk.warn(("%s=%s is left out: %s"):format(at.field, fields.shown(value), consequence))
  end
  return { forward = tell, backward = tell }
end

-- --- sections and fields that one side has alone

---A map on the right; of each entry its name, and the field of the left that it is, or a value that it always has. On the way back,
---an entry that is missing or has another value is an error, and one without a place is a lost field.
---@param entries { [1]: string, field?: string, value?: any }[]   `{ { "num_kv_groups", field = "n_kv_heads" }, { "kind", value = 1 } }`
function values.in_map(entries)
  local known, names = {}, {}
  for i, one in ipairs(entries) do known[one[1]], names[i] = true, fields.shown(one[1]) end
  return {
    forward = function(_, at)
      local map = cbk.dict()
      for _, one in ipairs(entries) do
        local entry = one[1]
        if one.field and at.from[one.field] == nil then fields.lack(one.field, (", which '%s' of the other side is"):format(entry)) end
        if one.field then map[entry] = cbk.raw(at.from, one.field) else map[entry] = one.value end
      end
      return map
    end,
    backward = function(map, at)
      if not is_dict(map) then at:refuse(map, "a map with " .. table.concat(names, ", ")) end
      for _, one in ipairs(entries) do
        local value, place = map[one[1]], ("%s.%s"):format(at.field, one[1])
        if value == nil then fields.lack(place) end
        if not one.field and not fields.same(value, one.value) then fields.refuse(place, value, fields.any_of(one.value)) end
        if one.field then at:set(one.field, cbk.raw(map, one[1])) end
      end
      at:leave_out_others(map, known)
    end,
  }
end

---The right is the left times another field.
---@param of_left string
---@param of_right string
function values.times_field(of_left, of_right)
  local function factor(value, at, field)
    local other = at.from[field]
    if type(value) ~= "number" then at:refuse(value, "a number") end
    if other == nil then fields.lack(field, (", which '%s' is converted with"):format(at.field)) end
    if type(other) ~= "number" or other == 0 then fields.refuse(field, other, "a number other than 0") end
    return other
  end
  return {
    forward = function(value, at) return value * factor(value, at, of_left) end,
    backward = function(value, at) return value / factor(value, at, of_right) end,
  }
end

local function check_config(config)
  if not is_dict(config) then cbk.fail("converter", "values.in_no_section: expected a config") end
end

---The right config has no section for these parts: they get an empty one while rules run.
---@param parts string[]
function values.in_no_section(parts)
  return {
    read = function(config)
      check_config(config)
      for _, part in ipairs(parts) do config[part] = config[part] or cbk.dict() end
      return config
    end,
    write = function(config)
      check_config(config)
      for _, part in ipairs(parts) do config[part] = nil end
      return config
    end,
  }
end

-- --- what constructors take

---Each value of the right is one of the left's, or there is no way back.
local choice = { says = "values of the left and those of the right, each once" }
function choice.mistake(map, name)
  if type(map) ~= "table" or next(map) == nil then return ("%s must be %s"):format(name, choice.says) end
  local lefts = {}
  for left, right in pairs(map) do
    local earlier, shown = lefts[right], fields.shown
    if earlier ~= nil then return ("%s is for both %s and %s"):format(shown(right), shown(earlier), shown(left)) end
    lefts[right] = left
  end
end

local entry = shapes.record("{ name, field = … } or { name, value = … }", { shapes.text, field = shapes.text, value = shapes.any }, { 1 })
local in_map = { says = "a list of { name, field = … } and { name, value = … }" }
function in_map.mistake(list, name)
  local mistake, seen = shapes.list(entry, in_map.says).mistake(list, name), {}
  for _, one in ipairs(mistake and {} or list) do
    if seen[one[1]] then return ("%s has '%s' twice"):format(name, one[1]) end
    if (one.field == nil) == (one.value == nil) then return ("'%s' needs either a field or a value"):format(one[1]) end
    seen[one[1]] = true
  end
  return mistake
end

shapes.guard(values, "values", {
  in_map = { in_map }, times_field = { shapes.text, shapes.text },
  choice = { choice }, lost = { shapes.any, shapes.named("what comes of it", shapes.text) },
  warn_unless_taken = { shapes.text, shapes.any, shapes.list(shapes.text, "a list of names") },
  activations = { shapes.map(shapes.text, shapes.text, "names of the left and those of the right") },
})

return rules.strict(values, "pair of functions on values")
