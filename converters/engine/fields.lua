-- What a converter's tables of config fields may say: pairs of fields, values that must hold, defaults. One table for both directions.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"
local arguments = require "converters.notation.arguments"
local entries = require "converters.notation.entries"
local position = require "converters.notation.position"
local shapes = require "converters.notation.shapes"

local fields = {}

---@class FieldAction   An invertible pair on values; nil means that nothing is written.
---@field forward fun(value: any, at: FieldAt): any
---@field backward fun(value: any, at: FieldAt): any
---@field further_names? table<any, any>   values of the left that `backward` does not give, and what `forward` makes of them

local function shown(value)
  if value == nil or value == cbk.null then return "null" end
  if type(value) == "table" and value.any_of then
    local out = {}
    for i, one in ipairs(value.any_of) do out[i] = shown(one) end
    return table.concat(out, " or ")
  end
  local kind = type(value)
  if kind == "string" then return "'" .. value .. "'" end
  if kind == "number" or kind == "boolean" then return tostring(value) end
  local ok, text = pcall(cbk.json, value)
  return ok and text or tostring(value)
end
---`fields.shown(value)`: a config value as messages show it.
fields.shown = shown

---The error for a value that cannot be converted.
---@param supported any   what the other side can express: a value, or a text
---@param advice? string
function fields.refuse(field, value, supported, advice)
  local what = type(supported) == "string" and supported or shown(supported)
  cbk.fail("config", ("cannot convert the config with %s=%s"):format(field, shown(value)),
    { field = field, found = shown(value), supported = what, advice = advice })
end

---The error for a field that the config lacks.
---@param name string    its path in the model's section: "moe.num_experts"
---@param more? string   the end of the message
---@private
function fields.lack(name, more)
  cbk.fail("config", ("the config has no '%s'%s"):format(name, more or ""), { field = name, found = "nothing" })
end

local function plain(value)
  local kind = type(value) == "userdata" and cbk.kind(value)
  if kind == "float" or kind == "int" then return tonumber(tostring(value)) end
  if value == true then return 1 end
  if value == false then return 0 end
  return value
end

local function same(a, b)
  if type(b) == "table" and b.any_of then
    for _, one in ipairs(b.any_of) do
      if same(a, one) then return true end
    end
    return false
  end
  a, b = plain(a), plain(b)
  if a == b then return true end
  if type(a) ~= type(b) or type(a) == "number" then return false end
  local are_alike = kinds.is_list(a) and kinds.is_list(b) or kinds.is_dict(a) and kinds.is_dict(b)
  if not are_alike then return cbk.equal(a, b) end
  for key in cbk.items(a) do
    if b[key] == nil or not same(a[key], b[key]) then return false end
  end
  return cbk.count(a) == cbk.count(b)
end
---`fields.same(a, b)`: whether the programs that read a config see the same value: true is 1, false is 0. `b` may be
---`fields.any_of(…)`.
fields.same = same

-- --- writing tables

---Rules for fields of one side: their names, or each with its value.
---@param own string    the function's name: "fixed"
---@param rule table   what they have in common
local function one_sided(own, rule)
  local make = {}
  for side in pairs(rules.other) do
    make[side] = function(names)
      local out, with_values = { is_fields = true }, {}
      for key in pairs(names) do
        if type(key) == "string" then with_values[#with_values + 1] = key end
      end
      table.sort(with_values)
      for _, name in ipairs(names) do out[#out + 1] = rules.variant(rule, { [side] = name }) end
      for _, name in ipairs(with_values) do out[#out + 1] = rules.variant(rule, { [side] = name, value = names[name] }) end
      return out
    end
  end
  return setmetatable(make, { __call = function()
    local file, line = position.here(3)
    local said = ("fields.NAME needs a side: fields.NAME.left { … } or fields.NAME.right { … }"):gsub("NAME", own)
    position.fail(file, line, "%s", said)
  end })
end

---`fields.fixed.right { norm_type = "rmsnorm" }`: a field of one side only, with the one value that the other side can express. The
---field is written, and another value is refused.
fields.fixed = one_sided("fixed", { kind = "must", is_written = true })

---`fields.must.right { use_rms_norm = true }`: as `fields.fixed`, but the field is not written.
fields.must = one_sided("must", { kind = "must" })

---`fields.used.right { "rotary_dim" }`: fields that other rules or functions of the converter read. Without this, such a field
---must have its class's default.
fields.used = one_sided("used", { kind = "used" })

---`fields.drop.right { "seed", bias = false }`: fields that have no place on the other side. A warning names them, unless they are null
---or have the value given here.
fields.drop = one_sided("drop", { kind = "drop" })

---`fields.written.right { loss_weight = 1 }`: as `fields.drop`, and the field is written with this value.
fields.written = one_sided("written", { kind = "drop", is_written = true })

---In `defaults`: the field has no default.
function fields.none() end

---One of several values, in `fields.must` and in messages.
function fields.any_of(...) return { any_of = { ... } } end

---Fails if a rule that copies or converts a field would never run, as an earlier one takes the field. Of rules for one side alone, the
---first one counts, so that a table can be put before others. Two pairs of one field are for two fields of the other side.
---@param list table[]
---@param source string
---@param line integer
local function refuse_idle(list, source, line)
  local seen, pairs_seen, star = { left = {}, right = {} }, {}, false
  for _, rule in ipairs(list) do
    for _, side in ipairs { "left", "right" } do
      local name = rule[side]
      if star and name then
        position.fail(source, line, "the config rule of '%s' comes after { \"*\" }, which takes all fields: put that last", name)
      end
      if name and seen[side][name] and rule.kind == "pair" then
        position.fail(source, line, "the config rule of '%s' would never run: an earlier one of the %s takes the field", name, side)
      end
      if name and rule.kind ~= "pair" then seen[side][name] = true end
    end
    local both = rule.kind == "pair" and ("%s %s"):format(tostring(rule.left), tostring(rule.right))
    if both and pairs_seen[both] and pairs_seen[both].action ~= rule.action then
      position.fail(source, line, "two config rules are of '%s' and '%s': only one can give the value", tostring(rule.left),
        tostring(rule.right))
    end
    if both then pairs_seen[both] = rule end
    star = star or rule.kind == "pair" and rule.left == "*"
  end
end

---`fields.config { { left, right, pair }, … }`: a table of config rules. A name without a partner is the same on both sides. `{ "*" }`
---copies all fields that no rule names. `{ "old", false, pair }` is for a field of one side only.
function fields.config(written)
  local out, source, line = { is_fields = true }, position.here(3)
  for name in pairs(written) do
    if type(name) ~= "number" then
      position.fail(source, line, "a table of config fields has an entry '%s = …'; write { \"%s\", … }", tostring(name), tostring(name))
    end
  end
  for place = 1, table.maxn(written) do
    local entry = written[place]
    if type(entry) == "table" and entry.is_fields then
      for _, rule in ipairs(entry) do out[#out + 1] = rule end
    elseif type(entry) == "table" and entry.kind then
      out[#out + 1] = entry
    elseif entry then
      entries.check_field(entry, place, source, line)
      local left, right, action = entry[1], entry[2], entry[3]
      if right == nil then right = left end
      out[#out + 1] = { left = left or nil, right = right or nil, action = action, kind = "pair",
        origin = { source = source, line = line, place = place, names = { left or right, right or nil } } }
    end
  end
  refuse_idle(out, source, line)
  return out
end

---Config rules without those that name the given fields, for an older release.
function fields.without(base, names)
  local gone, has, out = {}, {}, { is_fields = true }
  for _, name in ipairs(names) do gone[name] = true end
  for _, rule in ipairs(base) do
    has[rule.left or ""], has[rule.right or ""] = true, true
    if not (gone[rule.left or ""] or gone[rule.right or ""]) then out[#out + 1] = rule end
  end
  for _, name in ipairs(names) do
    if not has[name] then
      local source, line = position.here(3)
      local near = cbk.nearest(name, naming.sorted(has))[1]
      position.fail(source, line, "fields.without: no rule names '%s'%s", name, naming.suggestion(near))
    end
  end
  return out
end

---A copy of a table of defaults with more fields, and without some names.
function fields.with(base, more, names)
  local out = rules.variant(base, more)
  for _, name in ipairs(names or {}) do out[name] = nil end
  return out
end

local function is_table(value) return type(value) == "table" and getmetatable(value) == nil end

local function tree(value)
  if not is_table(value) then return kinds.own(value) end
  return value[1] ~= nil and cbk.list(value) or cbk.dict(value)
end

---A default that is the value of another field, even if that is null.
---@param other string
function fields.same_as(other)
  return function(config) return config[other] ~= nil and cbk.raw(config, other) or nil end
end

---Adds missing fields to a config. A default may be a function of the config; these come last. Maps are filled one level deep.
---@param defaults? table<string, any>
function fields.fill(config, defaults)
  local names, made = {}, {}
  for name, value in pairs(defaults or {}) do
    local list = type(value) == "function" and made or names
    list[#list + 1] = name
  end
  table.sort(names)
  table.sort(made)
  for _, name in ipairs(made) do names[#names + 1] = name end
  for _, name in ipairs(names) do
    local value = defaults[name]
    if type(value) == "function" then
      if kinds.absent(config[name]) then config[name] = value(config) end
    elseif config[name] == nil then
      config[name] = tree(value)
    elseif is_table(value) and kinds.is_dict(config, name) then
      config[name] = fields.fill(cbk.copy(config[name]), value)
    end
  end
  return config
end

shapes.guard(fields, "fields", arguments.fields)

return rules.strict(fields, "function", "fields.")
