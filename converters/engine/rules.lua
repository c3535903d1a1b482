-- What a converter's tables of keys may say (patterns.lua: what a pattern is).

local rules = {}

---@alias Side "left"|"right"
---@class Rule
---@field left? string[]     patterns; several when one tensor on the other side is made of them
---@field right? string[]
---@field action? Action
---@field when? fun(at: At): boolean      the rule counts only where this holds
---@field also table<Side, { [1]: string, [2]: fun(at: At, value: any): any }[]>  further keys written on that side
---@field required? boolean   a checkpoint without its weights is incomplete
---@field kind? "ignore"|"refuse"
---@field why? string

rules.other = { left = "right", right = "left" }

-- --- writing tables

local function list(value)
  if value == nil or value == false then return nil end
  return type(value) == "table" and value or { value }
end

local function also(entry)
  local out = {}
  for i, one in ipairs(list(entry) or {}) do
    if type(one) ~= "table" then one = { one } end
    out[i] = { one[1], one[2] or function(_, value) return value end }
  end
  return out
end

---A copy of `rule` with every pattern of each side passed through the side's function.
---@param rule Rule
---@param change table<Side, fun(pattern: string): string>
---@return Rule
function rules.map(rule, change)
  local out = { action = rule.action, when = rule.when, kind = rule.kind, why = rule.why, required = rule.required, also = {} }
  for side in pairs(rules.other) do
    if rule[side] then
      out[side] = {}
      for i, pattern in ipairs(rule[side]) do out[side][i] = change[side](pattern) end
      out[side].each = rule[side].each
    end
    out.also[side] = {}
    for i, extra in ipairs(rule.also[side]) do out.also[side][i] = { change[side](extra[1]), extra[2] } end
  end
  return out
end

local function below(prefix)
  return function(pattern) return prefix == "" and pattern or prefix .. "." .. pattern end
end

---A table of key rules: `{ left, right, action }`; one name alone stands for both sides; a table of rules in the third place
---is put below the two names. Options of a rule: when, also_left, also_right.
---@return Rule[]
function rules.keys(entries)
  local out = { is_rules = true }
  for _, entry in ipairs(entries) do
    if entry.is_rules then
      for _, rule in ipairs(entry) do out[#out + 1] = rule end
    elseif entry.kind then
      out[#out + 1] = entry
    elseif type(entry[3]) == "table" and entry[3].is_rules then
      local change = { left = below(entry[1]), right = below(entry[2]) }
      for _, rule in ipairs(entry[3]) do out[#out + 1] = rules.map(rule, change) end
    else
      out[#out + 1] = {
        left = list(entry[1]),
        right = list(entry[2] or entry[1]),
        action = entry[3],
        when = entry.when,
        also = { left = also(entry.also_left), right = also(entry.also_right) },
      }
    end
  end
  return out
end

---The same rules; each layer of a checkpoint must have the weights they name.
---@param set Rule[]
---@return Rule[]
function rules.required(set)
  for _, rule in ipairs(set) do rule.required = rule.kind == nil end
  return set
end

---The weights of one layer that a checkpoint must have: patterns with one `N`.
---@param set Rule[]
---@param side Side
---@return string[]
function rules.required_patterns(set, side)
  local out = {}
  for _, rule in ipairs(set) do
    for _, pattern in ipairs(rule.required and rule[side] or {}) do
      pattern = pattern:gsub("{weight,bias}$", "weight")
      if pattern:find "%.N%..*%.weight$" then out[#out + 1] = pattern end
    end
  end
  return out
end

local function one_sided(kind)
  local make = {}
  for side in pairs(rules.other) do
    make[side] = function(pattern, why)
      return { [side] = { pattern }, kind = kind, why = why, also = { left = {}, right = {} } }
    end
  end
  return make
end

---`rules.only.left(pattern, why)`: exists on that side only; reading that side, it is passed over.
rules.only = one_sided "ignore"
---`rules.refuse.left(pattern, why)`: reading such a key is an error.
rules.refuse = one_sided "refuse"

---Several keys of one side, one per value of the capital letter: `each("experts.E.w1.weight", "E", count)`.
---@param count fun(at: At): integer
function rules.each(pattern, letter, count)
  return { pattern, each = { letter = letter, count = count } }
end

---The same converter with fields that differ: a release that changed a little.
---@param converter Converter
---@param change? table
---@return Converter
function rules.variant(converter, change)
  local out = {}
  for key, value in pairs(converter) do out[key] = value end
  for key, value in pairs(change or {}) do out[key] = value end
  return out
end

---A converter between two (further) formats: `between("cs-2.0", "cs-2.1", decoder.to_2_1)`.
---@param left string
---@param right string
---@param converter Converter
---@param change? table   fields that differ
---@return Converter
function rules.between(left, right, converter, change)
  local out = rules.variant(converter, change)
  out[1], out[2] = left, right
  return out
end

return rules
