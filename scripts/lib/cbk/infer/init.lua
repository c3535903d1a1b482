-- Writes a converter for two checkpoints of the same weights in two layouts (`cbk infer`). match.lua finds the tensors that belong
-- together, trials.lua the action for each, fields.lua the config fields that correspond; write.lua makes the file.

local cbk = require "cbk"
local buffers = require "cbk.infer.buffers"
local catalogue = require "converters.engine.catalogue"
local fold = require "cbk.fold"
local content = require "cbk.infer.content"
local match = require "cbk.infer.match"
local infer_fields = require "cbk.infer.fields"
local layers = require "cbk.infer.layers"
local trials = require "cbk.infer.trials"
local rows_of = require "cbk.infer.rows"
local source = require "cbk.infer.source"
local output = require "cbk.converters.output"
local naming = require "cbk.naming"
local write = require "cbk.infer.write"

local infer = {}

---@class InferSide
---@field tensors Dict      key to tensor
---@field config? Dict
---@field parts? InferPart[]   in place of tensors and config: several checkpoints
---@field format string
---@field source string     the file
---@field file? string      its container (Checkpoint.format)
---@field path? string

---@class Inferred
---@field text string         the file
---@field rules InferredRule[]
---@field matched { left: integer, right: integer }   tensors that have a rule
---@field count { left: integer, right: integer }
---@field by_name integer      rules that were decided by names
---@field guesses string[]      pairs of fields with values that other fields have too
---@field is_related boolean   whether tensors of both sides have the same values; constants do not count
---@field fixed string[]       layers that rules name with their number, as the pair has one
---@field unexplained { side: Side, key: string, why: string }[]

local other_side = { left = "right", right = "left" }

-- --- rules

---The text in a rule for the number of tensors of an `each`: a field of a config, or the number.
---@param configs { left: Dict|nil, right: Dict|nil }
local function count_text(configs, count)
  local found
  local function look(map, path, depth)
    for key, value in cbk.items(map) do
      local field = type(key) == "string" and source.field(path, key)
      if field and value == count and not found and key:find "expert" then found = field end
      if field and depth < 2 and cbk.kind(map, key) == "dict" then look(value, field, depth + 1) end
    end
  end
  if configs.right then look(configs.right, "at.right", 1) end
  return ("function(%s) return %s end"):format(found and "at" or "", found or count)
end

local function release_items(rule)
  for _, pair in ipairs(rule.pairs) do
    for _, side in ipairs { "left", "right" } do
      for _, item in ipairs(pair[side]) do item.rule = nil end
    end
  end
end

---Whether a config has the Model Zoo's counts of heads.
local function has_head_counts(config)
  return config ~= nil and type(config.num_heads) == "number" and type(config.hidden_size) == "number"
end

---Rules in their order, with those of constants last: the other rules show what constants may be.
---@param rules InferredRule[]
---@return InferredRule[]
local function constants_last(rules)
  local out, constants = {}, {}
  for _, rule in ipairs(rules) do
    local list = content.is_constant(rule.pairs[1].left[1]) and constants or out
    list[#list + 1] = rule
  end
  for _, rule in ipairs(constants) do out[#out + 1] = rule end
  return out
end

---Finds the action of each rule. Rules without one are removed.
---@param rules InferredRule[]
---@param configs_of fun(rule: InferredRule): { left: Dict|nil, right: Dict|nil }
---@return InferredRule[] rules, InferredRule[] unknown
local function with_actions(rules, configs_of)
  local out, unknown, rotary = {}, {}, {}
  for _, rule in ipairs(constants_last(rules)) do
    local configs = configs_of(rule)
    if rule.each then rule.each.text = count_text(configs, rule.each.count) end
    local like = rule.like and rule.like.choice and rule.like or nil
    rule.like = like
    rule.choice, rule.order = trials.find(rule, configs, has_head_counts(configs.right), rotary)
    if rule.choice then
      if rule.choice.text:find "rotary" and #rule.right == 1 then rotary[trials.module(rule.pairs[1].right[1])] = rule.choice end
      out[#out + 1] = rule
    else
      unknown[#unknown + 1] = rule
      release_items(rule)
    end
  end
  local weights = {}
  for _, rule in ipairs(out) do weights[rule.left[1]] = rule end
  for _, rule in ipairs(out) do -- one action for a weight and its bias, if it suits both
    local weight = weights[(rule.left[1]:gsub("%.bias$", ".weight"))]
    local choice = weight and weight ~= rule and not (rule.each or weight.affine) and weight.choice
    if choice and choice.text ~= rule.choice.text and trials.also_fits(rule, choice, configs_of(rule)) then rule.choice = choice end
  end
  return out, unknown
end

-- --- all of it

---Why an item has no rule: no other tensor has its elements in its order.
local function reason(item)
  if item.is_numbered_apart then return "its number on the other side depends on how many others there are before it" end
  local why = "no tensor of the other side has its values"
  return item.dtype:find "^complex" and why .. " (complex numbers are matched with those of the same dtype only)" or why
end

---The tensors without a rule, grouped by template.
local function unexplained_of(inventories, unknown)
  local out, lines, same = {}, {}, {}
  for _, rule in ipairs(unknown) do
    for side, other in pairs(other_side) do
      for _, pair in ipairs(rule.pairs) do
        for _, item in ipairs(pair[side]) do same[item] = pair[other][1].key end
      end
    end
  end
  for _, side in ipairs { "left", "right" } do
    local keys = {}
    local function add(item, why, what)
      out[#out + 1] = { side = side, key = item.key, why = why }
      local id = ("%s: %s [%s]  %s"):format(side, item.dtype, table.concat(item.shape, ", "), what)
      if not keys[id] then
        keys[id] = {}
        keys[#keys + 1] = id
      end
      table.insert(keys[id], item.key)
    end
    for _, item in ipairs(inventories[side].items) do
      if not item.rule then
        local near = same[item] and ("the elements of '%s' in another order, which is no known action"):format(same[item])
        add(item, near or reason(item), near and "elements in another order"
          or item.is_numbered_apart and "its number depends on those before it" or "values that the other side lacks")
      end
    end
    for _, item in ipairs(inventories[side].unnamed) do
      add(item, "its name has control characters (0 to 2), which no pattern has; rename it first", "control characters in the name")
    end
    for _, id in ipairs(keys) do lines[#lines + 1] = ("%s: %s"):format(id, naming.all_folded(keys[id])) end
  end
  return out, lines
end

-- --- parts: on the left a model may be several checkpoints, each with its config

---@class InferPart
---@field name? string     the part's folder; nil of a whole model
---@field tensors Dict
---@field config? Dict

---The section of the right config that corresponds to a part's config.
---@param part InferPart
---@param config Dict
---@return string|nil
local function section_of(part, config)
  if cbk.kind(config, part.name) == "dict" then return part.name end
  local best, most = nil, 2
  for name, section in cbk.items(config) do
    local count = 0
    for field, value in cbk.items(cbk.kind(config, name) == "dict" and section or cbk.dict()) do
      if type(value) == "number" and part.config[field] == value then count = count + 1 end
    end
    if count > most then best, most = name, count end
  end
  return best
end

---The parts of the left with their configs, or the whole model as one part.
---@param left InferSide
---@param right InferSide
---@return { name: string|nil, section: string|nil, configs: { left: Dict|nil, right: Dict|nil } }[]
---@return Dict tensors   with the part's name before each key
local function parts_of(left, right)
  if not left.parts then return { { configs = { left = left.config, right = right.config } } }, left.tensors end
  local out, tensors = {}, cbk.dict()
  for i, part in ipairs(left.parts) do
    local section = section_of(part, right.config)
    out[i] = { name = part.name, section = section, configs = { left = part.config,
      right = section and right.config[section] or cbk.dict() } }
    for key, tensor in cbk.items(part.tensors) do tensors[part.name .. "/" .. key] = tensor end
  end
  return out, tensors
end

---The part that a key or pattern of the left belongs to.
local function part_of(parts, key)
  for _, part in ipairs(parts) do
    if not part.name or key:sub(1, #part.name + 1) == part.name .. "/" then return part end
  end
  return parts[1]
end

local function without_part(part, text) return part.name and text:gsub("^" .. part.name:gsub("%p", "%%%0") .. "/", "") or text end

---Fields of the right config that are not a section of a part.
local function beside_parts(parts, config)
  local out, is_section = {}, {}
  for _, part in ipairs(parts) do is_section[part.section or ""] = true end
  for name in cbk.items(config) do
    if not is_section[name] then out[#out + 1] = tostring(name) end
  end
  return out
end

---The entries of `files` for layouts of the user's own.
local function files_of(sides)
  local out = {}
  for _, side in ipairs { "left", "right" } do
    local kind = sides[side].file and output.container(sides[side].file, sides[side].path)
    if kind and catalogue.is_own_layout(sides[side].format) then out[#out + 1] = ('%s = "%s"'):format(side, kind) end
  end
  return out
end

---Adds warnings about unexplained keys: a converter that writes a side without them reports it.
---@param parts table[]
---@param unexplained { side: Side, key: string }[]
local function warn_of_lacks(parts, unexplained)
  for _, part in ipairs(parts) do
    for _, side in ipairs { "left", "right" } do
      local entries = {}
      for _, one in ipairs(unexplained) do
        if one.side == side and part_of(parts, one.key) == part then
          entries[#entries + 1] = { path = side == "left" and without_part(part, one.key) or one.key }
        end
      end
      for _, group in ipairs(fold.groups(entries)) do
        table.insert(part.made[side], ("{ %s, evidence.lacks %s }"):format(source.text(group.members[1].path), source.text(group.name)))
      end
    end
  end
end

---@param left InferSide
---@param right InferSide
---@param options { model: string, on_read: fun(key: string, bytes: integer)|nil, has_same_sizes: boolean|nil }
---@return Inferred
function infer.run(left, right, options)
  local parts, tensors = parts_of(left, right)
  for _, part in ipairs(parts) do
    for _, side in ipairs { "left", "right" } do
      if part.configs[side] then infer_fields.check(part.configs[side], side) end
    end
  end
  local inventories = { left = content.inventory("left", tensors, options.on_read),
    right = content.inventory("right", right.tensors, options.on_read) }
  local rules, unknown = with_actions(match.rules(inventories.left, inventories.right, trials.is_affine), function(rule)
    return part_of(parts, rule.pairs[1].left[1].key).configs
  end)
  local depths = { left = content.depths(inventories.left), right = content.depths(inventories.right) }
  for _, part in ipairs(parts) do
    part.rows, part.one_sided, part.checks, part.made = {}, {}, {}, { left = {}, right = {} }
    part.depths = depths
    part.numbers = part.configs.left and part.configs.right and "numbers" .. write.suffix(part) or nil
  end
  local rows = {}
  for _, rule in ipairs(rules) do
    local part = part_of(parts, rule.pairs[1].left[1].key)
    local row = rows_of.rule(rule, function(text) return without_part(part, text) end, part.numbers)
    rows[rule] = row
    part.rows[#part.rows + 1] = row
    for _, check in ipairs(row.checks) do part.checks[#part.checks + 1] = check end
  end
  for _, side in ipairs { "left", "right" } do
    buffers.explain(inventories, side, rules, rows, { part_for = function(key) return part_of(parts, key) end,
      without_part = without_part, has_parts = left.parts ~= nil })
  end
  local unexplained, lines = unexplained_of(inventories, unknown)
  warn_of_lacks(parts, unexplained)
  local is_zoo = catalogue.release(right.format) ~= nil
  for _, part in ipairs(parts) do
    table.sort(part.rows, function(a, b) return a.order < b.order or a.order == b.order and a.right[1] < b.right[1] end)
    local configs = part.configs
    part.fields = configs.left and configs.right and infer_fields.infer(configs.left, configs.right, is_zoo) or nil
  end
  local text = write.text {
    model = options.model, formats = { left = left.format, right = right.format }, parts = parts,
    files = files_of { left = left, right = right }, unexplained = lines, sources = { left = left.source, right = right.source },
    right_only = left.parts and beside_parts(parts, right.config), right_config = right.config,
    has_same_sizes = options.has_same_sizes,
  }
  local count, matched = {}, {}
  for side, inventory in pairs(inventories) do
    count[side] = #inventory.items + #inventory.unnamed
    matched[side] = count[side]
  end
  for _, one in ipairs(unexplained) do matched[one.side] = matched[one.side] - 1 end
  local by_name, is_related, guesses = 0, false, {}
  for _, item in ipairs(inventories.left.items) do is_related = is_related or item.is_numbered_apart == true end
  for _, part in ipairs(parts) do
    for _, guess in ipairs(part.fields and part.fields.guesses or {}) do guesses[#guesses + 1] = guess end
  end
  for _, rule in ipairs(rules) do
    if rows[rule].note and rows[rule].note:find "^by name" then by_name = by_name + 1 end
    is_related = is_related or not content.is_constant(rule.pairs[1].left[1])
  end
  return { text = text, rules = rules, matched = matched, count = count, unexplained = unexplained, by_name = by_name,
    is_related = is_related, guesses = guesses, fixed = layers.fixed(inventories, rules) }
end

return infer
