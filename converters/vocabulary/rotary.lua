-- Rotary positions on their way between configs. Hugging Face says them in rope_scaling, in the rope_parameters of Transformers 5, or in
-- fields of their own, the Model Zoo in pos_scaling_*; each is read into one form, and what is said twice must be the same.

local cbk = require "cbk"
local class = require "converters.engine.class"
local sections = require "converters.engine.sections"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"
local heads = require "converters.vocabulary.heads"
local values = require "converters.vocabulary.values"

local rotary = {}

local absent, null = kinds.absent, cbk.null

-- --- the one form

---@class Said   What a config says of one property.
---@field value any
---@field raw any       the value with its kind and spelling
---@field name string   the field's path in the file: "rope_parameters.factor"

---@class Positions   By the names that rope_parameters has: rope_type, factor, rope_theta, partial_rotary_factor, and others of the type's
---own; their names in the order of the file.
---@field [integer] string
---@field [string] Said

local head = { rope_type = true, factor = true, rope_theta = true, partial_rotary_factor = true }

local aliases = { type = "rope_type" }

local BASE = 10000 -- of the frequencies, where a config has none

local ORIGINAL = "original_max_position_embeddings"

local positive = class.kinds.positive

local known = {
  factor = positive(), rope_theta = positive(), partial_rotary_factor = class.kinds.rate(), beta_fast = positive(),
  beta_slow = positive(), low_freq_factor = positive(), high_freq_factor = positive(),
  original_max_position_embeddings = class.kinds.size(),
}

---Adds what `map[key]` says of a property, unless it contradicts what has been said of it.
---@param said Positions
---@param place string   what is before the key in messages
local function say(said, property, map, key, place)
  local value, before, name = map[key], said[property], place .. tostring(key)
  if absent(value) then return end
  if property == "rope_type" then
    if type(value) ~= "string" then fields.refuse(name, value, "a string") end
    value = value:lower()
  end
  if not before then
    said[#said + 1], said[property] = property, { value = value, raw = cbk.raw(map, key), name = name }
  elseif not fields.same(value, before.value) then
    fields.refuse(name, map[key], ("the value of %s (%s)"):format(before.name, fields.shown(before.value)))
  end
end

local function say_map(said, config, section)
  local map, place = config[section], section .. "."
  if absent(map) then return end
  if not kinds.is_dict(map) then fields.refuse(section, map, "null or a map") end
  sections.check(map, known, place)
  for name in cbk.items(map) do say(said, aliases[name] or tostring(name), map, name, place) end
end

local function has_type(map) return not (absent(map.rope_type) and absent(map.type)) end

---The one map in rope_parameters. Models with several kinds of attention have a map for each ("sliding_attention"); all must be equal, as
---the Model Zoo has one base and one scaling for all layers.
---@param map any   rope_parameters
---@return any
local function of_all_layers(map)
  local first, name_of_first, others = nil, nil, 0
  for name in cbk.items(kinds.is_dict(map) and map or cbk.dict()) do
    local is_of_layers = tostring(name):find "_attention$" and kinds.is_dict(map, name)
    if is_of_layers and first and not cbk.equal(first, map[name]) then
      cbk.fail("config", ("cannot convert the config: rope_parameters.%s differs from rope_parameters.%s, and the Model Zoo has one base "
        .. "and one scaling of positions for all layers"):format(tostring(name), name_of_first))
    end
    if is_of_layers then first, name_of_first = map[name], tostring(name) else others = others + 1 end
  end
  if first and others > 0 then
    cbk.fail("config", ("cannot convert the config: rope_parameters has a map '%s', and properties beside it; it must be one or the other")
      :format(name_of_first))
  end
  return first or map
end

---What the maps of a Hugging Face config say.
---@return Positions
local function said_by_maps(config)
  local said, parameters, scaling = {}, of_all_layers(config.rope_parameters), config.rope_scaling
  say_map(said, cbk.dict { rope_parameters = parameters }, "rope_parameters")
  if kinds.is_dict(parameters) and not has_type(parameters) then
    said.rope_type = { value = "default", name = "rope_parameters.rope_type" }
  end
  say_map(said, config, "rope_scaling")
  if kinds.is_dict(scaling) and not has_type(scaling) then
    cbk.fail("config", "rope_scaling has neither 'type' nor 'rope_type'")
  end
  return said
end

---What a Hugging Face config says of positions in maps, as plain values: `rope_type`, `factor`, `rope_theta` and the type's own.
---@param config Dict
---@return table<string, any>
function rotary.said(config)
  local out, said = {}, said_by_maps(config)
  for name, one in pairs(said) do
    if type(name) == "string" then out[name] = one.value end
  end
  return out
end

---Whether such a map leaves positions as they are.
local function is_unscaled(map)
  map = of_all_layers(map)
  if not kinds.is_dict(map) then return absent(map) end
  local kind = absent(map.rope_type) and map.type or map.rope_type
  kind = absent(kind) and "default" or tostring(kind):lower()
  return kind == "default" or kind == "linear" and map.factor == 1
end

local unscaled = { "2.1", is_unscaled, says = "null or of type 'default'" }

---For `since`: releases before 2.1 do not scale positions.
function rotary.unscaled_before_2_1() return { rope_scaling = unscaled, rope_parameters = unscaled } end

---For `prepare.left`: moves `rope_scaling` and `rope_parameters` into single fields.
---@param only table<string, any>   the values that the right can express, `{ partial_rotary_factor = 1 }`
---@param own? table<string, string>   the model's own names of the fields, `{ rope_theta = "rotary_emb_base" }`
function rotary.in_one_form(only, own)
  own = own or {}
  return function(from, given)
    local said = said_by_maps(given)
    for _, property in ipairs { "rope_theta", "partial_rotary_factor" } do
      local field = own[property] or property
      say(said, property, given, field, "")
      say(said, property, given, property, "")
      if said[property] then from[field] = said[property].raw end
    end
    if said[ORIGINAL] and absent(given[ORIGINAL]) and not absent(from[ORIGINAL]) then from[ORIGINAL] = said[ORIGINAL].raw end
    for _, property in ipairs(naming.sorted(head)) do
      local one, value = said[property], only[property]
      if one and value ~= nil and not fields.same(one.value, value) then fields.refuse(one.name, one.value, fields.any_of(value)) end
    end
    local is_default = not said.rope_type or said.rope_type.value == "default"
    for _, property in ipairs(is_default and said or {}) do
      local one = said[property]
      if not head[property] or property == "factor" then
        cbk.warn(("%s=%s is left out: positions that are not scaled do not use it"):format(one.name, fields.shown(one.value)))
      end
    end
    if not is_default and from.rope_scaling == nil then from.rope_scaling = null end -- its rule runs, and reads rope_parameters, too
    return from
  end
end

-- --- longer contexts

---@class Scaling   One type.
---@field needs string[]   its own parts; without one, neither side's programs run
---@field usual table<string, any>   parts that both sides have, and what they are where nothing is said
---@field only table<string, any>    parts that one side has, and what the other one computes
---@field is_open? boolean           any other part goes along
---@field lists? string[]            parts that are lists of numbers

---@type table<string, Scaling>
local scalings = {
  linear = { needs = {}, usual = {}, only = {} },
  llama3 = { needs = { "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" }, usual = {}, only = {} },
  longrope = { needs = { "short_factor", "long_factor" }, usual = {}, is_open = true, lists = { "short_factor", "long_factor" },
    only = { short_mscale = null, long_mscale = null } }, -- of the Model Zoo, and of PhiMoE; attention_factor is of both
  yarn = {
    needs = { "original_max_position_embeddings" }, usual = { beta_fast = 32, beta_slow = 1 },
    only = { attention_factor = null, mscale = null, mscale_all_dim = null, truncate = true, -- of Hugging Face
      extrapolation_factor = 1, mscale_a = 0.1, mscale_b = 1 }, -- of the Model Zoo
  },
}

---@param said Positions   of a type that there is
---@param place string     where its parts are
local function check(said, place)
  local kind = said.rope_type.value
  local scaling = scalings[kind]
  for _, name in ipairs(scaling.needs) do
    if not said[name] then cbk.fail("config", ("%s has no '%s', which type %s needs"):format(place, name, kind)) end
  end
  for _, name in ipairs(scaling.lists or {}) do
    local one = said[name]
    if one and not kinds.is_list(one.value) then fields.refuse(one.name, one.value, "a list of numbers") end
  end
  for _, name in ipairs(naming.sorted(scaling.only)) do
    local one = said[name]
    if one and not fields.same(one.value, scaling.only[name]) then fields.refuse(one.name, one.value, scaling.only[name]) end
  end
end

---Left to right: the parts of a scaling that pos_scaling_extra_args has.
---@param said Positions
local function extra_arguments(said, at)
  local scaling, extra, needed = scalings[said.rope_type.value], cbk.dict(), {}
  for _, name in ipairs(scaling.needs) do needed[name] = true end
  for _, name in ipairs(said) do
    local one, usual = said[name], scaling.usual[name]
    if needed[name] or scaling.is_open and not head[name] or usual and not fields.same(one.value, usual) then
      extra[name] = one.raw
    elseif not head[name] and usual == nil and scaling.only[name] == nil then
      at:leave_out(one.name)
    end
  end
  return extra
end

---What the right says; where extra arguments repeat a field, they must say the same.
---@return Positions
local function said_by_fields(config)
  local said = {}
  say(said, "rope_type", config, "pos_scaling_type", "")
  say(said, "factor", config, "pos_scaling_factor", "")
  say(said, "rope_theta", config, "rope_theta", "")
  say_map(said, config, "pos_scaling_extra_args")
  local theta = said.rope_theta
  if theta and absent(config.rope_theta) and theta.value ~= BASE then
    fields.refuse(theta.name, theta.value, "the value of rope_theta (10000, the default)")
  end
  return said
end

---Right to left: as rope_scaling has it.
---@param said Positions
local function rope_scaling(said)
  local out, kind = cbk.dict(), said.rope_type.value
  out[kind == "llama3" and "rope_type" or "type"] = kind
  out.factor = said.factor.raw
  for _, name in ipairs(said) do
    if not head[name] and scalings[kind].only[name] == nil then out[name] = said[name].raw end
  end
  return out
end

---The length of the context before it was made longer, which Hugging Face's longrope reads beside rope_scaling, and computes the factor
---from. Source: _compute_longrope_parameters in modeling_rope_utils.py of transformers 4.53.
---@param said Positions   changed
local function say_original(said, from)
  say(said, ORIGINAL, from, ORIGINAL, "")
  local original = said[ORIGINAL]
  if not original or type(from.max_position_embeddings) ~= "number" then return end
  local ratio, given = from.max_position_embeddings / original.value, said.factor
  if given and not absent(from[ORIGINAL]) and math.abs(given.value - ratio) > 1e-6 * ratio then
    fields.refuse(given.name, given.value, ("max_position_embeddings / %s (%g)"):format(ORIGINAL, ratio),
      "programs differ in which of them they use: leave the factor out, or give it this value")
  end
  if given then return end
  local factor = cbk.float(ratio)
  said[#said + 1], said.factor = "factor", { value = factor, raw = factor, name = ORIGINAL }
end

---Warns where the two sides rotate by other factors: Hugging Face by the short ones for inputs that are not longer than the original
---length, the Model Zoo by the long ones always. Source: _longrope_computations in RotaryPositionEmbeddingHelper.py of the Model Zoo.
---@param said Positions
local function warn_of_short_inputs(said, from)
  local original, most = said[ORIGINAL] and said[ORIGINAL].value, from.max_position_embeddings
  if said.rope_type.value ~= "longrope" or type(original) ~= "number" or type(most) ~= "number" or most <= original then return end
  cbk.warn(("longrope: for inputs of up to %g positions Hugging Face uses short_factor, and the Model Zoo long_factor: their logits differ")
    :format(original))
end

local READS = "the table needs prepare = { left = rotary.in_one_form { … } }, which moves it there"

---Fails if the maps say a number that no field beside them says: then rotary.in_one_form did not read them, and it would be lost.
---@param usual? number   which need not be there
local function check_numbers(said, at, usual)
  for _, property in ipairs { "rope_theta", "partial_rotary_factor" } do
    local one, is_known = said[property], false
    for name in cbk.items(one and at.from or cbk.dict()) do is_known = is_known or fields.same(at.from[name], one.value) end
    if one and not is_known and one.value ~= usual then fields.refuse(one.name, one.value, "the value of a field beside the map", READS) end
  end
end

---Fails if rope_parameters says what the rule of rope_scaling does not read.
local function check_read(at)
  local said = said_by_maps(at.from)
  local kind = said.rope_type
  if kind and kind.value ~= "default" and at.from.rope_scaling == nil then fields.refuse(kind.name, kind.value, "'default'", READS) end
  check_numbers(said, at)
end

---`rotary.scaling { "linear", … }`: config rules for longer contexts of these types. `rope_scaling` or `rope_parameters` become
---`pos_scaling_factor`, `pos_scaling_type` and `pos_scaling_extra_args`. Needs `rotary.in_one_form` in `prepare.left`.
---@param types string[]
---@param only_scaled? boolean   neither side gets a field where positions are not scaled
function rotary.scaling(types, only_scaled)
  local supported, is_supported = fields.any_of(unpack(types)), {}
  for _, name in ipairs(types) do is_supported[name] = true end
  local pair = {}

  function pair.forward(_, at)
    check_read(at)
    local said = said_by_maps(at.from)
    local kind = said.rope_type
    if not kind or kind.value == "default" then return not only_scaled and cbk.float(1) or nil end
    if not is_supported[kind.value] then fields.refuse(kind.name, kind.value, supported) end
    local place = kind.name:match "^[^.]+"
    if kind.value == "longrope" then say_original(said, at.from) end
    if not said.factor then cbk.fail("config", ("%s has no 'factor'"):format(place)) end
    check(said, place)
    warn_of_short_inputs(said, at.from)
    at:set("pos_scaling_type", kind.value)
    local extra = extra_arguments(said, at)
    if kind.value ~= "linear" then at:set("pos_scaling_extra_args", extra) end
    return said.factor.raw
  end

  function pair.backward(_, at)
    local said, kind = said_by_fields(at.from), at.from.pos_scaling_type
    local is_one = not said.factor or tonumber(said.factor.value) == 1
    if is_one and not (said.rope_type and said.rope_type.value == "longrope") then -- whose own factors count all the same
      if not absent(at.from.pos_scaling_extra_args) then at:leave_out "pos_scaling_extra_args" end
      return not only_scaled and null or nil
    end
    if absent(kind) then cbk.fail("config", "pos_scaling_factor is not 1, but pos_scaling_type is missing") end
    if not is_supported[said.rope_type.value] then fields.refuse("pos_scaling_type", kind, supported) end
    check(said, "pos_scaling_extra_args")
    warn_of_short_inputs(said, at.from)
    if said.rope_type.value == "longrope" and said[ORIGINAL] then
      cbk.warn(("longrope: transformers 4 reads %s at the top of config.json, where it is written for Phi-3 alone, as by the Model Zoo's "
        .. "converter: for other models, add %s=%s there, or positions are scaled otherwise at every length"):format(ORIGINAL, ORIGINAL,
        fields.shown(said[ORIGINAL].value)))
    end
    return rope_scaling(said)
  end

  return fields.config {
    { "rope_scaling", "pos_scaling_factor", pair },
    { left = "rope_parameters", kind = "used", check = function(_, at) check_read(at) end },
    fields.used.right { "pos_scaling_type", "pos_scaling_extra_args" },
  }
end

---Refuses a map that scales positions.
local never_scaled = { forward = function(map, at)
  if not is_unscaled(map) then at:refuse(map, "null or of type 'default'") end
  check_numbers(said_by_maps(at.from), at, BASE)
end }

---Refuses another base, which in_one_form may have moved there.
local function check_base(base, at)
  if not absent(base) and base ~= BASE then at:refuse(base, BASE) end
end

---Config rules for a model whose positions are never scaled.
function rotary.unscaled()
  return fields.config {
    { "rope_scaling", false, never_scaled },
    { "rope_parameters", false, never_scaled },
    fields.used.left { "partial_rotary_factor" },
    { left = "rope_theta", kind = "used", check = check_base },
    fields.must.right { rope_theta = fields.any_of(BASE, null), pos_scaling_factor = fields.any_of(1, null) },
    fields.used.right { "pos_scaling_type", "pos_scaling_extra_args" },
  }
end

-- --- the part of a head that is rotated, in pairs of rows

---What the left's fields say.
local function left_size(from, width, count)
  return math.floor(values.size_of(from, width) / values.size_of(from, count)), ("%s // %s"):format(width, count)
end

---Refuses a rotated part that is not an even number of a head's rows.
---@param value any   of the field, which `rows` are made of
---@param supported string
local function check_rows(rows, size, value, at, supported)
  if rows >= 2 and rows <= size and rows % 2 == 0 then return end
  if not at.assumed.rotary_dim then at:refuse(value, supported .. ",") end
  cbk.fail("config", ("the config has no '%s', and the default %s is not %s; add it"):format(at.field, fields.shown(value), supported))
end

local part = "an even number, at most the head size, %s (%d)"

---A pair for `rotary_dim` on both sides.
---@param width string   the left's field of the hidden size
---@param count string   the left's field of the number of heads
function rotary.dim(width, count)
  local function copy(size_of)
    return function(rows, at)
      local size, formula = size_of(at.from)
      if type(rows) == "number" then check_rows(rows, size, rows, at, part:format(formula, size)) end
      return cbk.raw(at.from, at.field)
    end
  end
  local function size_left(from) return left_size(from, width, count) end
  return { forward = copy(size_left), backward = copy(heads.size) }
end

---For `rotary_dim`: the left has it as a share of the head size, `partial_rotary_factor`.
---@param count string
function rotary.share(count)
  return {
    forward = function(share, at)
      if type(share) ~= "number" then at:refuse(share, "a number") end
      local size = left_size(at.from, "hidden_size", count)
      local rows = math.floor(size * share)
      check_rows(rows, size, share, at, ("a share that gives an even number of a head's %d rows (not %d)"):format(size, rows))
      return rows
    end,
    backward = function(rows, at)
      local size, formula = heads.size(at.from)
      check_rows(rows, size, rows, at, part:format(formula, size))
      return cbk.float(rows / size)
    end,
  }
end

---For `finish.right`: sets `rotary_dim` to the head size.
function rotary.set_dim(to) to.rotary_dim = heads.size(to) end

---For `prepare.right`: an error if `rotary_dim` is not the head size.
function rotary.check_dim(from)
  if absent(from.rotary_dim) then fields.lack "rotary_dim" end
  local size, formula = heads.size(from)
  if from.rotary_dim ~= size then
    fields.refuse("rotary_dim", from.rotary_dim, ("the head_dim, %s (%d),"):format(formula, size))
  end
end

local count = shapes.named("what the left calls the number of heads", shapes.text)
local of_head = {}
for name in pairs(head) do of_head[name] = shapes.any end
shapes.guard(rotary, "rotary", {
  unscaled_before_2_1 = {}, unscaled = {}, share = { count },
  in_one_form = { shapes.record("values by the names of rope_parameters", of_head),
    shapes.maybe(shapes.record("fields by these names", { rope_theta = shapes.text, partial_rotary_factor = shapes.text })) },
  scaling = { shapes.list(shapes.one_of(naming.sorted(scalings)), "a list of types"), shapes.maybe(shapes.flag) },
  dim = { shapes.named("what the left calls the width", shapes.text), count },
})

return rules.strict(rotary, "way of rotary positions", "rotary.")
